"""Clients that do not read, never finish or flood: memory is bounded, and others are served.

A probe pushes beside them.
"""

import contextlib
import socket
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from .conftest import Process
from .raw import response

Start = Callable[..., Process]
HOST = b"host: localhost\r\n"
PUSH = b'POST /queue/probe/push HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n{"item":1}'
STALL = 0.100


class Probe:
    """Pushes to a server all the time, and watches its memory.

    The time that a thread of either process waits for a processor is not counted: it is the
    machine's, not the server's.
    """

    def __init__(self, server: Process) -> None:
        self._server = server
        self.times: list[float] = []
        self.memory: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Probe":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        process = psutil.Process(self._server.process.pid)
        loop = f"/proc/{process.pid}/task/{process.pid}/schedstat"
        own = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        with connect(self._server) as sock:
            while not self._stop.wait(0.005):
                before = self._delays(own)
                began = time.perf_counter()
                sock.sendall(PUSH)
                assert response(sock).startswith(b"HTTP/1.1 200 ")
                took = time.perf_counter() - began
                after = self._delays(own)
                waits = {task: after[task] - before.get(task, 0.0) for task in after}
                path = waits.pop(str(own), 0.0) + waits.pop(loop, 0.0)
                waited = path + max(waits.values(), default=0.0)  # of the writer
                self.times.append(max(0.0, took - waited))
                self.memory.append(process.memory_info().rss)

    def _delays(self, own: Path) -> dict[str, float]:
        """The seconds that each thread was ready and had no processor."""
        found = {}
        for file in (own, *Path(f"/proc/{self._server.process.pid}/task").glob("*/schedstat")):
            with contextlib.suppress(OSError):  # a thread that has ended
                found[str(file)] = int(file.read_text().split()[1]) / 1e9
        return found

    def __str__(self) -> str:
        ordered = sorted(self.times)
        return (
            f"{len(ordered)} pushes, p50 {statistics.median(ordered) * 1e3:.1f} ms, p99 "
            f"{ordered[int(len(ordered) * 0.99)] * 1e3:.1f}, max {ordered[-1] * 1e3:.1f}; "
            f"memory {self.memory[0] / 1e6:.0f} to {max(self.memory) / 1e6:.0f} MB"
        )

    def check(self, megabytes: int) -> None:
        """No push took longer than a stall may take, and no more memory than that was added."""
        print(self)
        assert max(self.memory) - self.memory[0] < megabytes * 1e6, str(self)
        assert max(self.times) < STALL, str(self)


def connect(server: Process) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=30)


def fill(server: Process, messages: int) -> None:
    """Messages of a megabyte each."""
    for _ in range(messages):
        body = {"items": [{"queue": "big", "payload": "x" * 1_000_000}]}
        assert httpx.post(server.url + "/api/v1/push", json=body, timeout=60).status_code == 201


def do_not_read(start: Start, clients: int, messages: int, most: int) -> None:
    """Clients ask for large responses, each in a group of its own, and never read them."""
    with contextlib.ExitStack() as stack:
        attacked = start()
        fill(attacked, messages)
        with Probe(attacked) as probe:
            for n in range(clients):
                sock = stack.enter_context(connect(attacked))
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                target = b"/api/v1/pop/queue/big?batch=%d&consumerGroup=g%d" % (messages, n)
                sock.sendall(b"GET " + target + b" HTTP/1.1\r\n" + HOST + b"\r\n")
                time.sleep(0.05)
            time.sleep(3.0)
        probe.check(most)


def upload_partly(start: Start, clients: int, size: int, most: int) -> None:
    """Clients send most of a large body and stop."""
    attacked = start()
    with contextlib.ExitStack() as stack, Probe(attacked) as probe:
        head = b"POST /queue/q/push HTTP/1.1\r\n" + HOST + b"content-length: 60000000\r\n\r\n"
        for _ in range(clients):
            sock = stack.enter_context(connect(attacked))
            sock.sendall(head)
            with contextlib.suppress(OSError):  # refused: all clients together hold too much
                for _ in range(size):
                    sock.sendall(b"x" * 1_000_000)
        time.sleep(2.0)
    probe.check(most)


def flood(start: Start, clients: int, seconds: float) -> None:
    """Clients send heads that never end, garbage, and pipelined requests without reading."""
    kinds = [
        b"GET /livez HTTP/1.1\r\nx: ", b"\x00" * 1000, (b"GET /nowhere HTTP/1.1\r\n" + HOST + b"\r\n") * 100,
        b"POST /queue/q/push HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n1\r\n",
        b"POST /v1/verbs/settle HTTP/1.1\r\n" + HOST + b"content-length: 9\r\n\r\n[true,[]]",
        b"GET /api/v1/pop/queue/q?" + b"a=%&" * 15_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    ]  # fmt: skip
    attacked = start()
    with contextlib.ExitStack() as stack, Probe(attacked) as probe:
        until, held = time.monotonic() + seconds, list[socket.socket]()
        while time.monotonic() < until:
            for kind in kinds:
                sock = stack.enter_context(connect(attacked))
                sock.setblocking(False)
                with contextlib.suppress(OSError):
                    sock.send(kind)
                held.append(sock)
            while len(held) > clients:
                held.pop(0).close()
            time.sleep(0.02)
    probe.check(200)


def test_clients_that_do_not_read_hold_little(start_process: Start) -> None:
    do_not_read(start_process, clients=10, messages=5, most=150)


def test_a_flood_delays_no_other(start_process: Start) -> None:
    flood(start_process, clients=100, seconds=2.0)


@pytest.mark.soak
def test_60_clients_that_do_not_read_20_mb_hold_little(start_process: Start) -> None:
    do_not_read(start_process, clients=60, messages=20, most=500)


@pytest.mark.soak
def test_100_partial_uploads_hold_little(start_process: Start) -> None:
    upload_partly(start_process, clients=100, size=6, most=500)


@pytest.mark.soak
def test_a_flood_of_half_a_minute_delays_no_other(start_process: Start) -> None:
    flood(start_process, clients=1_000, seconds=30.0)
