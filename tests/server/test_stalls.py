"""Clients that stall, flood or hold on, certificates that change, and the end of the server."""

import contextlib
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

import ackflow
from ackflow.broker import access_tokens

from ..running import Running
from .conftest import Process, free_port
from .raw import exchange, response
from .test_auth import bearer, make
from .test_tls import certificate as certificate

Start = Callable[..., Process]
PUSH = b'POST /queue/q/push HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n{"item":1}'


def connect(server: Process) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=10)


def test_a_waiting_pop_whose_token_is_revoked_receives_nothing(
    served: Running, http: httpx.Client
) -> None:
    """Not even in the second in which other requests still use the tokens as they were read."""
    token = make(served, "read-write")
    answers: list[httpx.Response] = []
    body = {"queue": "orders", "group": "g", "consumer": "c"}

    def poll() -> None:
        url = served.url + "/v1/pop?wait=30"
        answers.append(httpx.post(url, json=body, headers=bearer(token), timeout=60))

    waiting = threading.Thread(target=poll)
    waiting.start()
    until(lambda: served.app.waiting == 1)
    served.session.broker.do(access_tokens.revoke, True, "one")
    served.session.push("orders", 1)
    waiting.join(20)
    assert answers[0].status_code == 401
    assert len(served.session.pop("orders", group="g")) == 1


def test_a_client_that_never_reads_its_response_is_ended(start_process: Start) -> None:
    server = start_process("--read-timeout", "0.5")
    body = {"items": [{"queue": "big", "payload": "x" * 1_000_000}] * 20}
    assert httpx.post(server.url + "/api/v1/push", json=body, timeout=30).status_code == 201
    pop = b"GET /api/v1/pop/queue/big?batch=20 HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with connect(server) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(pop)
        url = server.url + "/api/v1/pop/queue/big?batch=20&wait=true&timeout=10000"
        answer = httpx.get(url, timeout=30)  # the lease came back when the connection was ended
        assert len(answer.json()["messages"]) == 20


def test_connections_above_the_limit_wait_until_others_close(start_process: Start) -> None:
    server = start_process("--max-connections", "3")
    time.sleep(0.1)
    held = [connect(server) for _ in range(3)]
    for sock in held:
        sock.sendall(PUSH)
        assert response(sock).startswith(b"HTTP/1.1 200 ")
    with connect(server) as late:
        late.sendall(PUSH)
        late.settimeout(0.3)
        with pytest.raises(TimeoutError):
            late.recv(1)
        held.pop().close()
        late.settimeout(10)
        assert response(late).startswith(b"HTTP/1.1 200 ")
    for sock in held:
        sock.close()


def test_out_of_descriptors_the_server_waits_without_spinning(start_process: Start) -> None:
    server = start_process()
    process = psutil.Process(server.process.pid)
    process.rlimit(resource.RLIMIT_NOFILE, (process.num_fds() + 5,) * 2)
    held = [connect(server) for _ in range(20)]
    time.sleep(0.2)
    before = sum(process.cpu_times()[:2])
    time.sleep(1.0)
    assert sum(process.cpu_times()[:2]) - before < 0.3
    for sock in held:
        sock.close()
    assert exchange(server.url, PUSH, timeout=20).startswith(b"HTTP/1.1 200 ")
    server.stop()
    output = server.output()
    assert "Traceback" not in output
    assert 1 <= output.count("cannot accept connections for now") < 10


def test_sighup_reloads_the_certificate(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    port = free_port()
    line = [sys.executable, "-m", "ackflow", "serve", "--db", str(tmp_path / "a.db"),
            "--port", str(port), "--tls-cert", str(cert), "--tls-key", str(key)]  # fmt: skip
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as server:
        try:
            until(lambda: _certificate(port) is not None)
            first = _certificate(port)
            key.write_text("broken")
            server.send_signal(signal.SIGHUP)
            time.sleep(0.3)
            assert _certificate(port) == first
            shutil.copy(_other(tmp_path, "other-key.pem"), key)
            shutil.copy(tmp_path / "other-cert.pem", cert)
            server.send_signal(signal.SIGHUP)
            until(lambda: _certificate(port) not in (None, first))
        finally:
            server.terminate()
        assert server.stdout is not None
        output = server.stdout.read().decode()
    assert server.returncode == 0
    assert "was not reloaded" in output
    assert "reloaded" in output


def _certificate(port: int) -> str | None:
    with contextlib.suppress(OSError):
        return ssl.get_server_certificate(("127.0.0.1", port), timeout=5)
    return None


def _other(tmp_path: Path, key: str) -> Path:
    """Another certificate of the same kind; returns its key."""
    folder = tmp_path / "other"
    folder.mkdir()
    made = certificate.__wrapped__ if hasattr(certificate, "__wrapped__") else None
    assert made is not None
    cert_file, key_file = made(folder)
    shutil.copy(cert_file, tmp_path / "other-cert.pem")
    shutil.copy(key_file, tmp_path / key)
    return tmp_path / key


def test_sigterm_leaves_no_request_unanswered(start_process: Start) -> None:
    """Clients push and pop until they are told that the connection closes."""
    server = start_process()
    unanswered: list[bytes] = []
    pushed: list[int] = []

    def client(number: int) -> None:
        with connect(server) as sock:
            for n in range(100_000):
                item = number * 100_000 + n
                body = b'{"item":%d}' % item
                head = (
                    b"POST /queue/q/push HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
                )
                sock.sendall(head % len(body) + body)
                got = response(sock)
                if not got.startswith(b"HTTP/1.1 200 "):
                    unanswered.append(got)
                    return
                pushed.append(item)
                if b"connection: close" in got:
                    return

    def poller() -> None:
        url = server.url + "/v1/pop?wait=60"
        body = {"queue": "empty", "group": "g", "consumer": "c"}
        answer = httpx.post(url, json=body, timeout=90)
        if answer.status_code != 200:
            unanswered.append(answer.content)

    threads = [threading.Thread(target=client, args=(n,)) for n in range(8)]
    threads += [threading.Thread(target=poller) for _ in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: len(pushed) > 500)
    assert server.stop() == 0
    for thread in threads:
        thread.join(20)
    assert unanswered == []
    with ackflow.connect(str(server.db)) as q:
        stored: set[int] = set()
        while batch := q.pop("q", group="all", batch=1000, auto_ack=True):
            stored.update(message.data for message in batch)
    assert stored >= set(pushed)


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# Requests that are small for a client to send and large for the server to answer.
TINY = b'{"queue":"q"}'
MANY_PUSHES = b"[" + b",".join([b'{"chunks":[]}'] * 200_000) + b"]"
MANY_MESSAGES = b'{"items":[' + b",".join([b'{"queue":"q","payload":{"a":1}}'] * 100_000) + b"]}"
TOO_MANY_MESSAGES = b'{"items":[' + b",".join([TINY] * 2_000_000) + b"]}"
MANY_ACKS = b'{"acknowledgments":[' + b",".join(
    [b'{"transactionId":"%d","partitionId":"p"}' % n for n in range(100_000)]
) + b"]}"  # fmt: skip


def body_request(path: bytes, body: bytes) -> bytes:
    head = b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
    return head % (path, len(body)) + body


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        pytest.param(body_request(b"/v1/pushes", MANY_PUSHES), 413, id="empty pushes"),
        pytest.param(body_request(b"/api/v1/push", MANY_MESSAGES), 201, id="Queen messages"),
        pytest.param(body_request(b"/api/v1/push", TOO_MANY_MESSAGES), 413, id="too many of them"),
        pytest.param(body_request(b"/api/v1/ack/batch", MANY_ACKS), 200, id="Queen acks"),
        pytest.param(
            b"GET /api/v1/pop/queue/q?" + b"a=%&" * 4_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
            400, id="parameters",
        ),
        pytest.param(
            b"GET /queue/" + b"%" * 60_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n", 400, id="path"
        ),
    ],
)  # fmt: skip
def test_a_costly_request_holds_up_the_others_only_briefly(
    start_process: Start, request_bytes: bytes, status: int
) -> None:
    """A probe beside it waits at most 100 ms, and the memory of the server is bounded.

    The best of a few tries counts: on a busy machine a probe waits for other processes as well.
    """
    server = start_process()
    process = psutil.Process(server.process.pid)
    longest = []
    while not longest or (min(longest) > 0.1 and len(longest) < 8):
        longest.append(_longest_probe(server, request_bytes, status))
    assert min(longest) <= 0.1, longest
    assert process.memory_info().rss < 400 * 1024 * 1024


def _longest_probe(server: Process, request_bytes: bytes, status: int) -> float:
    """The longest wait of a probe while a request is sent and answered."""
    ended = threading.Event()
    answers: list[bytes] = []

    def send() -> None:
        answers.append(exchange(server.url, request_bytes, timeout=60))
        ended.set()

    sending = threading.Thread(target=send)
    waits = []
    with connect(server) as sock:
        sending.start()
        while not (waits and ended.is_set()):
            start = time.perf_counter()
            sock.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
            response(sock)
            waits.append(time.perf_counter() - start)
            time.sleep(0.001)
    sending.join()
    assert answers[0].startswith(b"HTTP/1.1 %d " % status), answers[0][:300]
    return max(waits)
