"""Limits, results, unique keys and schedules as parts of a running worker."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ackflow.worker import Jobs, LimitHooks, ResultFailed, ResultHooks, ScheduleHooks, Schedules

from ackflow.worker import Unique, UniqueHooks, every  # isort: skip

worker_module = pytest.importorskip("ackflow.worker.worker")
hooks_module = pytest.importorskip("ackflow.worker.hooks")
status_module = pytest.importorskip("ackflow.worker.status")


def part(hooks: type, *arguments: Any) -> Any:
    """The hooks as an extension and middleware of the worker."""
    bases = (hooks, hooks_module.Extension, hooks_module.Middleware)
    return type(hooks.__name__, bases, {})(*arguments)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Any]:
    made = worker_module.Worker(str(tmp_path / "a.db"))
    yield made
    made.stop()
    made.close()


def run(worker: Any, until: Any, seconds: float = 30) -> None:
    thread = threading.Thread(target=lambda: worker.run(concurrency=8), daemon=True)
    thread.start()
    deadline = time.monotonic() + seconds
    while not until() and time.monotonic() < deadline:
        time.sleep(0.01)
    worker.stop()
    thread.join(seconds)
    assert until()


def test_so_many_calls_of_a_task_run_at_once(worker: Any) -> None:
    worker.add(part(LimitHooks))
    inside: list[int] = []
    most: list[int] = []

    @worker.task(queue="t", concurrency=2)
    def work(n: int) -> None:
        inside.append(n)
        most.append(len(inside))
        time.sleep(0.01)
        inside.remove(n)

    for n in range(12):
        work.push(n)
    run(worker, lambda: len(most) == 12)
    assert max(most) == 2
    assert worker.session.values("limits/slot/") == []


def test_so_many_calls_of_a_task_start_per_time(worker: Any) -> None:
    worker.add(part(LimitHooks))
    starts: list[float] = []

    @worker.task(queue="t", rate="5/s")
    def work(n: int) -> None:
        starts.append(time.monotonic())

    for n in range(12):
        work.push(n)
    run(worker, lambda: len(starts) == 12)
    assert starts[5] - starts[0] > 0.8
    assert starts[10] - starts[5] > 0.8


def test_a_handle_gets_the_result_or_the_failure(worker: Any) -> None:
    worker.add(part(ResultHooks))

    @worker.task(queue="t", result=60)
    def double(n: int) -> int:
        return 2 * n

    @worker.task(queue="t", result=60, retries=0)
    def bad() -> int:
        raise KeyError("x")

    good, failed = double.push(21), bad.push()
    found: list[Any] = []

    def wait() -> None:
        found.append(good.result(timeout=30))
        with pytest.raises(ResultFailed, match="KeyError"):
            failed.result(timeout=30)
        found.append("failed")

    waiting = threading.Thread(target=wait)
    waiting.start()
    run(worker, lambda: len(found) == 2)
    waiting.join()
    assert found == [42, "failed"]


def test_a_unique_key_is_free_when_its_message_was_processed(worker: Any) -> None:
    worker.add(part(UniqueHooks))
    seen: list[Any] = []

    @worker.processor("u")
    def process(message: Any, session: Any) -> Any:
        seen.append(message.data)
        return status_module.ACK

    unique = Unique(worker.session)
    assert unique.push("u", 1, "k") is not None
    assert unique.push("u", 2, "k") is None
    run(worker, lambda: seen == [1] and not worker.session.values("unique/"))
    assert unique.push("u", 3, "k") is not None


def test_ticks_are_pushed_while_the_worker_runs(worker: Any) -> None:
    schedules = Schedules(worker.session)
    schedules.add("t", every(0.1), queue="ticks")
    worker.add(part(ScheduleHooks, schedules))
    ticks: list[str] = []

    @worker.processor("ticks")
    def process(message: Any, session: Any) -> Any:
        ticks.append(message.headers["ackflow-tick"])
        return status_module.ACK

    run(worker, lambda: len(ticks) >= 3)
    assert len(set(ticks)) == len(ticks)


def test_the_ack_of_a_processor_after_its_job_changes_nothing(worker: Any) -> None:
    jobs = Jobs(worker.session)

    @worker.processor("work")
    def process(message: Any, session: Any) -> Any:
        done = jobs.run_unique(message, "import", lambda job: True)
        return status_module.ACK if done else status_module.REJECT

    worker.session.push("work", 1)

    def settled() -> bool:
        return bool(jobs.roots() and jobs.roots()[0].status == "success")

    run(worker, settled)
    counts = worker.session.group_stats("work").counts
    assert (counts.done, counts.dead, counts.leased) == (1, 0, 0)
