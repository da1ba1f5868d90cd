"""Fixtures of the worker's tests: a worker on a broker in memory, with a virtual clock."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ackflow import VirtualClock
from ackflow.testing import Harness
from ackflow.worker import Counts, Worker

SRC = Path(__file__).parents[2] / "src"


@pytest.fixture
def worker() -> Worker:
    return Worker(":memory:")


@pytest.fixture
def h(worker: Worker, clock: VirtualClock) -> Iterator[Harness]:
    """The harness of `worker`; handlers may be declared after it is made."""
    with Harness(worker, clock) as harness:
        yield harness


class Process:
    """`ackflow work` in a process of its own, with what it wrote to standard error."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self.log = folder / f"log-{time.monotonic_ns()}"
        with open(self.log, "wb") as log:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "ackflow", "work", *arguments], cwd=folder, stderr=log,
                env={**os.environ, "PYTHONPATH": str(SRC), **environment},
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self.popen.pid

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def wait_for(self, text: str, seconds: float = 30.0) -> str:
        """Wait until the log has a text."""
        deadline = time.monotonic() + seconds
        while text not in self.text():
            assert time.monotonic() < deadline, self.text()
            assert self.popen.poll() is None or text in self.text(), self.text()
            time.sleep(0.01)
        return self.text()

    def interrupt(self) -> None:
        self.popen.send_signal(signal.SIGINT)

    def end(self, seconds: float = 30.0) -> int:
        return self.popen.wait(seconds)


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Start `ackflow work` in a folder of the test; what still runs at the end is killed."""
    started: list[Process] = []

    def start(*arguments: str, **environment: str) -> Process:
        started.append(Process(tmp_path, *arguments, **environment))
        return started[-1]

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            process.popen.kill()
        process.popen.wait()


class Running:
    """`worker.run` in a thread."""

    def __init__(self, worker: Worker, **options: object) -> None:
        self.worker = worker
        self.error: BaseException | None = None
        self.counts: Counts | None = None
        self._thread = threading.Thread(target=self._run, kwargs=options, daemon=True)
        self._thread.start()

    def _run(self, **options: object) -> None:
        try:
            self.counts = self.worker.run(**options)  # type: ignore[arg-type]
        except BaseException as error:
            self.error = error

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, seconds: float = 20.0) -> None:
        self._thread.join(seconds)
        assert not self._thread.is_alive()

    def stop(self) -> None:
        until(lambda: self.worker._consumer is not None or not self._thread.is_alive())
        self.worker.stop()
        self.join()
        if self.error is not None:
            raise self.error


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
