"""A worker on a server that is killed and started again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from bench.peers import free_port

import ackflow
from ackflow import Message
from ackflow.worker import ACK, ProcessorSession, Status, Worker

from .conftest import SRC, Running, until

pytestmark = pytest.mark.outer
GROUP = "__QUEUE_MODE__"


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[], "subprocess.Popen[bytes]"]]:
    """Start a server on one database and port; each call starts it again."""
    port = free_port()
    started: list[subprocess.Popen[bytes]] = []

    def start() -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "ackflow", "serve", "--db", str(tmp_path / "s.db")]
        with open(tmp_path / "server.log", "ab") as log:
            started.append(
                subprocess.Popen(
                    [*command, "--port", str(port)], stderr=log, stdout=log,
                    env={**os.environ, "PYTHONPATH": str(SRC)},
                )
            )  # fmt: skip
        until(lambda: _answers(port), 60)
        return started[-1]

    start.url = f"http://127.0.0.1:{port}"  # type: ignore[attr-defined]
    yield start
    for process in started:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/livez", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_a_worker_outlives_its_server_and_sends_everything_once(
    serve: Callable[[], "subprocess.Popen[bytes]"],
) -> None:
    server = serve()
    worker = Worker(serve.url, redelivery_delay=0)  # type: ignore[attr-defined]
    seen: set[tuple[str, int]] = set()

    def process(message: Message, session: ProcessorSession) -> Status:
        time.sleep(0.01)
        seen.add((message.queue, message.data))
        session.push("out", f"{message.queue}{message.data}")
        return ACK

    for queue in ("a", "b"):
        worker.processor(queue)(process)
        worker.push(queue, list(range(200)))
    running = Running(worker, concurrency=4)
    until(lambda: len(seen) > 50)
    server.send_signal(signal.SIGKILL)
    server.wait()
    time.sleep(0.5)
    serve()
    with ackflow.connect(serve.url) as q:  # type: ignore[attr-defined]
        until(lambda: sum(q.group_stats(n, GROUP).counts.done for n in "ab") == 400, 60)
        running.stop()
        assert len(seen) == 400
        out = sorted(m.data for m in q.pop("out", batch=1_000))
        assert out == sorted(f"{queue}{n}" for queue, n in seen)
    worker.close()


def test_results_progress_limits_and_ticks_work_over_http(
    serve: Callable[[], "subprocess.Popen[bytes]"],
) -> None:
    serve()
    ticks: list[str] = []
    with Worker(serve.url) as worker:  # type: ignore[attr-defined]

        @worker.task("sums", result=True, unique=True, concurrency=1, rate="100/s")
        def add(*numbers: int) -> int:
            worker.current().progress(0.5, {"added": numbers[0]})
            return sum(numbers)

        @worker.every(0.2)
        def tick() -> None:
            ticks.append(str(worker.current().tick))

        handle = add.push(1, 2, 3)
        assert add.push(1, 2, 3).duplicate
        running = Running(worker, concurrency=4)
        assert handle.result(timeout=20) == 6
        progress = handle.progress()
        assert progress is not None
        assert progress.data == {"added": 1}
        until(lambda: len(ticks) >= 2)
        running.stop()
        assert len(set(ticks)) == len(ticks)
        assert worker.session.values("limits/slot/") == worker.session.values("unique/") == []
