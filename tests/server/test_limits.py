"""Too much, too slow, or no HTTP at all: a clear refusal, and the server stays well."""

import socket
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from ackflow import VirtualClock, connect
from ackflow.broker.requests import (
    DeadFilter,
    Hold,
    Mark,
    PutOperation,
    TransactionRequest,
    Verdict,
)
from ackflow.options import MAX_OPERATIONS
from ackflow.remote import wire
from ackflow.server.limits import Limits

from ..running import Running
from .conftest import Process

Start = Callable[..., Process]


@pytest.fixture
def small(clock: VirtualClock) -> Iterator[Running]:
    """A server that takes little."""
    with connect(":memory:", clock=clock, upkeep=False) as session:
        running = Running(session, limits=Limits(body_bytes=1000, batch=10, waiting_pops=1))
        yield running
        running.stop()


def test_a_body_too_large_is_refused(small: Running) -> None:
    answer = httpx.post(small.url + "/queue/orders/push", json={"item": "x" * 1000})
    assert answer.status_code == 413
    assert "at most 1,000 bytes" in answer.json()["message"]


def test_a_body_too_large_without_a_length_is_refused(small: Running) -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(20):
            yield b"x" * 100

    answer = httpx.post(small.url + "/queue/orders/push", content=parts())
    assert answer.status_code == 413


def test_more_messages_than_a_batch_may_have_are_refused(small: Running) -> None:
    answer = httpx.post(small.url + "/queue/orders/pop?count=11")
    assert answer.status_code == 413
    assert "at most 10 messages" in answer.json()["message"]


def test_too_many_long_polls_are_told_when_to_come_again(small: Running) -> None:
    body = {"queue": "orders", "group": "g", "consumer": "c"}
    waiting = threading.Thread(
        target=lambda: httpx.post(small.url + "/v1/pop?wait=30", json=body, timeout=60)
    )
    waiting.start()
    _until(lambda: small.app.waiting == 1)
    answer = httpx.post(small.url + "/v1/pop?wait=30", json=body)
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "1"
    small.session.push("orders", 1)
    waiting.join()
    assert small.app.waiting == 0


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# raw sockets against a process


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """One server for all of these tests: what one of them does to it, the next ones would see."""
    server = Process(tmp_path_factory.mktemp("limits") / "server.db", 0, "--read-timeout", "0.5")
    yield server
    assert server.stop() == 0
    assert server.process.stdout is not None
    server.process.stdout.close()


def speak(process: Process, *parts: bytes, pause: float = 0.0) -> bytes:
    """Send bytes and read what comes until the server closes, or for two seconds."""
    with socket.create_connection(("127.0.0.1", process.port), timeout=3) as sock:
        sock.settimeout(3)
        try:
            for part in parts:
                sock.sendall(part)
                time.sleep(pause)
        except OSError:
            pass  # the server has closed already: read what it said
        got = b""
        try:
            while chunk := sock.recv(65536):
                got += chunk
        except TimeoutError:
            got += b"<still open>"
        except ConnectionResetError:
            pass
    return got


def well(process: Process) -> None:
    """The server takes and gives messages as before."""
    answer = httpx.post(process.url + "/queue/well/push", json={"item": 1})
    assert answer.status_code == 200
    assert httpx.post(process.url + "/queue/well/pop").json()["items"] == [1]


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00" * 1000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xaa" * 500,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"FROBNICATE / HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"POST /queue/a/push HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
        b"POST /queue/a/push HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcde",
        b"POST /queue/a/push HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nZZZ\r\n",
        b"POST /queue/a/push HTTP/1.1\r\nbad header\r\n\r\n",
    ],
)
def test_garbage_is_answered_with_400_or_a_closed_connection(
    process: Process, garbage: bytes
) -> None:
    got = speak(process, garbage)
    assert got == b"" or got.startswith(b"HTTP/1.1 4"), got
    assert b"<still open>" not in got
    well(process)


def test_a_head_that_never_ends_in_size_is_refused(process: Process) -> None:
    head = b"GET /livez HTTP/1.1\r\n" + b"x-long: " + b"a" * 200_000
    got = speak(process, *[head[at : at + 10_000] for at in range(0, len(head), 10_000)])
    assert got == b"" or b" 431 " in got
    assert b"<still open>" not in got
    well(process)


def test_a_long_head_that_comes_at_once_is_refused(process: Process) -> None:
    got = speak(process, b"GET /livez HTTP/1.1\r\nx-long: " + b"a" * 150_000 + b"\r\n\r\n")
    assert b" 431 " in got
    well(process)


@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        b"GET /livez HTT",
        b"GET /livez HTTP/1.1\r\nhost: localhost\r\n",
        b"POST /queue/a/push HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{",
        b"POST /queue/a/push HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab",
    ],
)
def test_a_request_that_never_becomes_whole_is_ended(process: Process, beginning: bytes) -> None:
    started = time.monotonic()
    got = speak(process, beginning)
    assert b" 408 " in got
    assert time.monotonic() - started < 10
    well(process)


def test_a_request_that_comes_drop_by_drop_is_ended(process: Process) -> None:
    head = b"POST /queue/a/push HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n"
    got = speak(process, head, *[b"x"] * 20, pause=0.1)
    assert got == b"" or b" 408 " in got
    assert b"<still open>" not in got
    well(process)


def test_a_long_poll_is_not_taken_for_a_slow_request(process: Process) -> None:
    body = {"queue": "orders", "group": "g", "consumer": "c"}
    answer = httpx.post(process.url + "/v1/pop?wait=1.5", json=body, timeout=10)
    assert answer.status_code == 200


def test_a_kept_connection_is_not_taken_for_a_slow_request(process: Process) -> None:
    with httpx.Client(base_url=process.url) as client:
        assert client.get("/livez").status_code == 200
        time.sleep(1.2)
        assert client.get("/livez").status_code == 200


def test_many_cut_off_requests_leave_nothing_behind(process: Process) -> None:
    for _ in range(100):
        with socket.create_connection(("127.0.0.1", process.port)) as sock:
            sock.sendall(b"POST /queue/a/push HTTP/1.1\r\ncontent-length: 100\r\n\r\n{")
    well(process)
    assert httpx.get(process.url + "/queue/a").status_code in (200, 404)


def test_many_slow_connections_keep_nobody_out(process: Process) -> None:
    slow = [socket.create_connection(("127.0.0.1", process.port)) for _ in range(300)]
    for sock in slow:
        sock.sendall(b"GET /livez HTTP/1.1\r\nx:")
    well(process)
    time.sleep(1.2)
    for sock in slow:
        sock.settimeout(20)
        assert b" 408 " in sock.recv(1000)
        sock.close()


def test_deep_nesting_is_refused(process: Process) -> None:
    for body in (b"[" * 1_000_000, b'{"item":' + b"[" * 500_000 + b"]" * 500_000 + b"}"):
        answer = httpx.post(process.url + "/queue/a/push", content=body)
        assert answer.status_code == 400, answer.text[:200]
    well(process)


@pytest.mark.parametrize(
    "body", [b"", b"null", b"\xff\xfe", b'{"item"', b"[]", b'"\\ud800"', b"1e999"]
)
def test_a_body_that_is_not_what_is_expected_is_refused(process: Process, body: bytes) -> None:
    assert httpx.post(process.url + "/queue/a/push", content=body).status_code == 400


def test_sizes_are_given_as_people_write_them(start_process: Start) -> None:
    server = start_process("--max-body", "1K")
    answer = httpx.post(server.url + "/queue/a/push", content=b"x" * 1025)
    assert answer.status_code == 413


def test_a_query_with_very_many_parameters_is_refused_before_it_is_read(small: Running) -> None:
    answer = httpx.post(small.url + "/queue/orders/pop?" + "a=%&" * 4_000)
    assert answer.status_code == 400
    assert "at most 100 parameters" in answer.json()["message"]
    answer = httpx.post(small.url + "/queue/orders/pop?a=" + "%" * 60_000)
    assert answer.status_code == 400
    assert "at most 16,384 bytes" in answer.json()["message"]
    assert httpx.post(small.url + "/queue/orders/pop?" + "a=1&" * 50).status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/queue/q/acknowledge", "/queue/q/release", "/api/v1/ack", "/api/v1/configure", "/v1/pop",
     "/api/v1/consumer-groups/g/subscription", "/streams/v1/queries"],
)  # fmt: skip
def test_a_large_body_where_a_small_one_belongs_is_not_decoded(
    served: Running, http: httpx.Client, path: str
) -> None:
    answer = http.post(path, content=b'{"z":[' + b"1," * 200_000 + b"1]}")
    assert answer.status_code == 413


def test_a_request_with_too_many_operations_is_refused_before_any_is_run(
    served: Running, http: httpx.Client
) -> None:
    """200,000 settlements in one request held the writer for seconds."""
    many = MAX_OPERATIONS + 1
    ack = [Mark(Verdict("ack"))]
    for verb, arguments in {
        "settle_many": (dict.fromkeys(range(many), ack), False),
        "settle": (1, ack * many),
        "judge": ([], [Hold(1, 1, [0, 1])] * many),
        "transact": (TransactionRequest([PutOperation("k", b"1")] * many),),
        "publish": ("p", 1, ["stage"] * many, None),
        "dead_count": (DeadFilter("q", ids=list(range(many))),),
    }.items():
        packed = wire.write((True, arguments), wire.MSGPACK)
        answer = http.post(f"/v1/verbs/{verb}", content=packed,
                           headers={"content-type": wire.MSGPACK})  # fmt: skip
        assert answer.status_code == 400, verb
        assert "at most 10,000" in answer.text
    assert served.session.value("k") is None
    cycle = {"query_id": "q", "partition_id": "p",
             "state_ops": [{"type": "upsert", "key": "k", "value": 1}] * many}  # fmt: skip
    assert http.post("/streams/v1/cycle", json=cycle).status_code == 400
