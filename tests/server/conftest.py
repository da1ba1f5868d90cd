"""Servers for tests: one in this process on a clock of the test's own, and real processes."""

import contextlib
import fcntl
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

import ackflow
from ackflow import VirtualClock
from ackflow.server.run import CannotServe, listen

from ..running import Running

# A client of httpx reads all certificates of the system otherwise, 25 ms for each test.
NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Process:
    """`ackflow serve` as a process of its own, on a port of its own."""

    def __init__(self, db: Path, port: int = 0, *options: str) -> None:
        self.db = db
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._options = options
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "ackflow", "serve", "--db", str(self.db)]
        command += ["--port", str(self.port), *self._options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert self.process.stdout is not None
        deadline = time.monotonic() + 30
        while not self._accepts():
            if self.process.poll() is not None:
                output = self.output()
                self.process.stdout.close()
                raise AssertionError(output)
            assert time.monotonic() < deadline, "the server does not come up"
            time.sleep(0.02)

    def _accepts(self) -> bool:
        """Whether the server answers; a request by httpx would cost more than it takes to start."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as sock:
                sock.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                return bool(sock.recv(1))
        except OSError:
            return False

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.start()

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def output(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.read().decode()


def free_port() -> int:
    """Return a free port below those of outgoing connections.

    One of these could take the port before its server starts, or while it is started again.
    """
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with contextlib.suppress(CannotServe):
            listen("127.0.0.1", port).close()
            return port


@contextlib.contextmanager
def at_port(port: int, start: Callable[..., Process]) -> Iterator[Process]:
    """A server where written examples expect one, one test at a time; elsewhere if it is taken."""
    with (Path(tempfile.gettempdir()) / f"ackflow-{port}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            listen("127.0.0.1", port).close()
        except CannotServe:
            port = 0
        started = start(port=port)
        yield started
        started.stop()


@pytest.fixture
def start_process(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Start `ackflow serve` on a file of the test's; it is stopped with the test."""
    started: list[Process] = []

    def start(*options: str, db: Path | None = None, port: int = 0) -> Process:
        started.append(Process(db or tmp_path / "server.db", port, *options))
        return started[-1]

    yield start
    for process in started:
        if process.process.poll() is None:
            process.kill()
        assert process.process.stdout is not None
        process.process.stdout.close()


@pytest.fixture
def served(request: pytest.FixtureRequest, clock: VirtualClock) -> Iterator[Running]:
    """A server on a private database and the test's clock; `.session` is the session behind it.

    A test may bring options of the server as an indirect parameter.
    """
    with ackflow.connect(":memory:", clock=clock, upkeep=False) as session:
        running = Running(session, **getattr(request, "param", {}))
        yield running
        running.stop()


@pytest.fixture
def http(served: Running) -> Iterator[httpx.Client]:
    """A client of the `served` server."""
    with httpx.Client(base_url=served.url, timeout=30, verify=NO_CERTIFICATES) as client:
        yield client
