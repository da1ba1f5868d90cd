"""The consumer with real threads: concurrency, stops, limits, time limits, lost leases."""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ackflow
from ackflow import Message, Session, VirtualClock
from ackflow.worker import (
    ACK,
    REQUEUE,
    Context,
    Extension,
    Middleware,
    ProcessorExited,
    ProcessorSession,
    RunState,
    SoftTimeLimitExceeded,
    Status,
    Worker,
)

from .conftest import Running, until

GROUP = "__QUEUE_MODE__"


@pytest.fixture
def q(tmp_path: Path) -> Iterator[Session]:
    with ackflow.connect(tmp_path / "q.db") as session:
        yield session


@pytest.fixture
def worker(q: Session) -> Worker:
    return Worker(q, redelivery_delay=0)


def counts(q: Session, queue: str = "a") -> Any:
    return q.group_stats(queue, GROUP).counts


def test_messages_are_processed_at_the_same_time_and_once(q: Session, worker: Worker) -> None:
    together = threading.Barrier(4)
    seen: list[int] = []

    @worker.processor("a")
    def process(message: Message, session: ProcessorSession) -> Status:
        if message.data < 4:
            together.wait(10)  # passes only if four run at once
        seen.append(message.data)
        return ACK

    q.push("a", list(range(500)))
    result = worker.run(concurrency=4, message_limit=500)
    assert sorted(seen) == list(range(500))
    assert (result.acked, counts(q).done) == (500, 500)


def test_acknowledgements_are_gathered(q: Session, worker: Worker) -> None:
    worker.processor("a")(lambda message, session: ACK)
    q.push("a", list(range(2_000)))
    settles = [0]
    settle = q.settle

    def counted(*args: Any, **kwargs: Any) -> Any:
        settles[0] += 1
        return settle(*args, **kwargs)

    q.settle = counted  # type: ignore[method-assign]
    worker.run(concurrency=8, message_limit=2_000)
    assert settles[0] < 500


def test_a_slow_handler_holds_back_nothing_for_other_workers(q: Session, worker: Worker) -> None:
    begun = threading.Event()
    go = threading.Event()

    @worker.processor("a")
    def process(message: Message, session: ProcessorSession) -> Status:
        if message.data == 0:
            time.sleep(0.5)  # the first one says how long they take
        else:
            begun.set()
            go.wait(10)
        return ACK

    q.push("a", list(range(10)))
    running = Running(worker, concurrency=1)
    begun.wait(10)
    time.sleep(0.1)
    assert counts(q).leased == 1
    go.set()
    running.stop()


def test_few_large_messages_are_popped_ahead(q: Session, worker: Worker) -> None:
    most = [0]

    @worker.processor("a")
    def process(message: Message, session: ProcessorSession) -> Status:
        most[0] = max(most[0], counts(q).leased)
        return ACK

    for _ in range(6):
        q.push("a", ["x" * 2_000_000] * 10)
    worker.run(message_limit=60)
    assert most[0] <= 20  # of 60: 16 MiB, and acks of others that are still gathered


def test_a_stop_finishes_what_runs_and_returns_the_rest_uncounted(
    q: Session, worker: Worker
) -> None:
    begun, go = threading.Event(), threading.Event()

    @worker.processor("a")
    def process(message: Message, session: ProcessorSession) -> Status:
        begun.set()
        go.wait(10)
        return ACK

    q.push("a", list(range(10)))
    running = Running(worker, prefetch=9)
    begun.wait(10)
    until(lambda: counts(q).leased == 10)
    worker.stop()
    until(lambda: counts(q).leased == 1)  # what was not begun is back before the handler returns
    go.set()
    running.join()
    assert counts(q).done == 1
    rest = q.pop("a", batch=10)
    assert [(m.data, m.deliveries) for m in rest] == [(n, 1) for n in range(1, 10)]


def test_an_exception_ends_the_consumer_after_the_others_have_finished(
    q: Session, worker: Worker
) -> None:
    begun = threading.Barrier(3)
    failed = threading.Event()

    @worker.processor("a")
    def process(message: Message, session: ProcessorSession) -> Status:
        begun.wait(10)
        if message.data == 0:
            failed.set()
            raise ValueError("no stock")
        failed.wait(10)
        return ACK

    q.push("a", [0, 1, 2])
    with pytest.raises(ValueError, match="no stock"):
        worker.run(concurrency=3)
    assert (counts(q).done, counts(q).ready, counts(q).leased) == (3, 1, 0)  # a copy of 0


def test_no_message_is_begun_after_an_exception_while_others_are_settled(
    q: Session, worker: Worker
) -> None:
    begun: list[int] = []

    class SlowToSettle(Extension):
        def post_received(self, context: Context) -> None:
            until(lambda: context.run.interrupted or 2 in begun)

    @worker.processor("a")
    def process(message: Message, session: ProcessorSession) -> Status:
        begun.append(message.data)
        if message.data == 1:
            raise ValueError("no stock")
        return ACK

    worker.add(SlowToSettle())
    q.push("a", [0, 1, 2])
    with pytest.raises(ValueError, match="no stock"):
        worker.run(prefetch=10)
    assert begun == [0, 1]
    assert [(m.data, m.deliveries) for m in q.pop("a", batch=10)] == [(2, 1), (1, 2)]


def test_keep_going_logs_the_exception_and_goes_on(
    q: Session, worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    @worker.processor("a")
    def process(message: Message, session: ProcessorSession) -> Status:
        if not message.redelivered:
            raise ValueError("no stock")
        return ACK

    q.push("a", [1, 2])
    result = worker.run(message_limit=4, keep_going=True)
    assert (result.acked, result.failed) == (2, 2)
    assert "no stock" in caplog.text


def test_a_message_limit_is_exact_with_many_threads(q: Session, worker: Worker) -> None:
    worker.processor("a")(lambda message, session: ACK)
    q.push("a", list(range(1_000)))
    worker.run(concurrency=8, message_limit=100)
    assert (counts(q).done, counts(q).ready, counts(q).leased) == (100, 900, 0)


def test_a_time_limit_and_a_memory_limit_end_the_run(q: Session, worker: Worker) -> None:
    worker.processor("a")(lambda message, session: ACK)
    began = time.monotonic()
    worker.run(time_limit=0.3)
    assert 0.2 < time.monotonic() - began < 5
    worker.run(memory_limit=1)  # the process is larger than that already


def test_idle_interrupt_and_reason_are_told_to_extensions(q: Session, worker: Worker) -> None:
    said: list[str | None] = []

    class StopsWhenIdle(Extension):
        def idle(self, run: RunState) -> None:
            run.interrupt("nothing to do")

        def interrupted(self, run: RunState) -> None:
            said.append(run.reason)

    worker.add(StopsWhenIdle())
    worker.processor("a")(lambda message, session: ACK)
    worker.run()
    assert said == ["nothing to do"]


def test_several_queues_are_waited_for_at_once(q: Session, worker: Worker) -> None:
    got: list[tuple[str, float]] = []
    for queue in ("a", "b", "c"):
        worker.processor(queue)(
            lambda message, session: (got.append((message.queue, time.monotonic())), ACK)[1]
        )
    running = Running(worker)
    until(lambda: worker._consumer is not None)
    time.sleep(0.3)
    for queue in ("c", "a", "b"):
        began = time.monotonic()
        q.push(queue, 1)
        until(lambda: got)
        name, at = got.pop()
        assert name == queue
        assert at - began < 1.0
        time.sleep(0.05)
    began = time.monotonic()
    for _ in range(10):  # a queue is served while the others are waited for
        q.push("b", 1)
        until(lambda: got)
        got.clear()
    assert time.monotonic() - began < 2.5
    running.stop()


def test_an_ordered_group_is_processed_in_order_by_many_threads(q: Session) -> None:
    worker = Worker(q)
    seen: dict[str, list[int]] = {}

    @worker.processor("a", group="g", ordering="ordered")
    def process(message: Message, session: ProcessorSession) -> Status:
        seen.setdefault(message.partition, []).append(message.data)
        time.sleep(0.002 if message.data % 3 else 0.0)
        return ACK

    for partition in ("x", "y", "z"):
        q.push("a", list(range(30)), partition=partition)
    worker.run(concurrency=6, message_limit=90)
    assert seen == {name: list(range(30)) for name in ("x", "y", "z")}


def test_a_push_with_a_key_inside_a_processor_adds_nothing_twice(
    q: Session, worker: Worker
) -> None:
    @worker.processor("a")
    def process(message: Message, session: ProcessorSession) -> Status:
        session.push("next", "once", key="one")
        return ACK

    q.push("a", [1, 2, 3])
    q.push("next", "once", key="one")
    worker.run(message_limit=3)
    assert len(q.pop("next", batch=9)) == 1


def test_awaited_handlers_run_at_the_same_time_in_one_loop(q: Session, worker: Worker) -> None:
    loops: set[int] = set()
    running = [0, 0]

    @worker.task("a")
    async def wait(n: int) -> None:
        loops.add(id(asyncio.get_running_loop()))
        running[0] += 1
        running[1] = max(running)
        await asyncio.sleep(0.1)
        running[0] -= 1

    with worker.batch():
        for n in range(8):
            wait.push(n)
    worker.run(concurrency=4, message_limit=8)
    assert (len(loops), running[1]) == (1, 4)


@pytest.mark.untraced
def test_a_handler_over_its_soft_limit_gets_an_exception_and_may_clean_up(
    q: Session, worker: Worker
) -> None:
    cleaned: list[str] = []

    @worker.task("a", soft_time_limit=0.2, time_limit=20, retries=0)
    def slow(kind: str) -> None:
        try:
            while True:
                time.sleep(0.01)
        except SoftTimeLimitExceeded:
            cleaned.append(kind)
            if kind == "raises":
                raise

    slow.push("returns")
    slow.push("raises")
    result = worker.run(message_limit=2)
    assert cleaned == ["returns", "raises"]
    assert (result.acked, result.failed) == (1, 1)
    (dead,) = q.dead_letters("a")
    assert "exceeded its soft time limit of 0.2 s" in str(dead.reason)


def test_an_awaited_handler_over_its_limit_is_cancelled(q: Session, worker: Worker) -> None:
    cancelled: list[bool] = []

    @worker.task("a", soft_time_limit=0.1, retries=0)
    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    slow.push()
    assert worker.run(message_limit=1).failed == 1
    assert cancelled == [True]


@pytest.mark.untraced
def test_a_handler_that_never_returns_is_given_up_and_replaced(
    q: Session, worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()

    @worker.task("a", time_limit=0.2, retries=0)
    def stuck(n: int) -> None:
        if n == 0:
            release.wait(30)  # blocks in C: no exception reaches it

    stuck.push(0)
    stuck.push(1)
    began = time.monotonic()
    result = worker.run(message_limit=2)
    assert time.monotonic() - began < 10
    assert (result.acked, result.failed) == (1, 1)
    assert "did not return within its time limit of 0.2 s" in caplog.text
    (dead,) = q.dead_letters("a")
    assert dead.raw == b'{"n":0}'
    release.set()


@pytest.mark.untraced
def test_what_a_handler_sends_after_it_was_given_up_does_not_go_out(
    q: Session, worker: Worker
) -> None:
    settling, sent = threading.Event(), threading.Event()

    class SettlesLate(Middleware):
        def before_settle(self, context: Context) -> None:
            settling.set()
            assert sent.wait(10)

    worker.add(SettlesLate())

    @worker.task("a", time_limit=0.1, retries=0)
    def stuck() -> None:
        session = worker.current().session
        with contextlib.suppress(BaseException):
            settling.wait(10)
        session.push("late", 1)
        worker.push("late", 2)
        sent.set()

    stuck.push()
    assert worker.run(message_limit=1).failed == 1
    assert len(list(q.dead_letters("a"))) == 1
    assert not q.pop("late")


@pytest.mark.untraced
def test_a_handler_that_loops_for_ever_in_python_is_ended_by_its_hard_limit(
    q: Session, worker: Worker
) -> None:
    turns = [0]

    @worker.task("a", time_limit=0.2, retries=0)
    def loops() -> None:
        while True:
            turns[0] += 1

    loops.push()
    assert worker.run(message_limit=1).failed == 1
    time.sleep(0.1)
    before = turns[0]
    time.sleep(0.1)
    assert turns[0] == before


TRACED = """
import sys, threading
from ackflow.worker import Worker

def trace(frame, event, argument):
    return trace

worker = Worker(sys.argv[1])

@worker.task("a", soft_time_limit=0.1, time_limit=0.3, retries=0)
def loop():
    while True:
        pass

loop.push()
threading.settrace(trace)
print(worker.run(message_limit=1).failed)
"""


def test_a_handler_that_loops_is_given_up_under_a_tracer_as_well(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-c", TRACED, str(tmp_path / "q.db")], capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert (found.stdout, found.returncode) == ("1\n", 0), found.stderr


def test_sys_exit_in_a_handler_is_an_error_that_names_it(q: Session, worker: Worker) -> None:
    @worker.processor("a")
    def process(message: Message, session: ProcessorSession) -> Status:
        sys.exit(3)

    q.push("a", 1)
    with pytest.raises(ProcessorExited, match=r"process called sys.exit\(3\)"):
        worker.run()
    assert counts(q).ready == 1


def test_a_lost_lease_cancels_an_awaited_handler_and_tells_others(q: Session) -> None:
    worker = Worker(q, redelivery_delay=0, lease_seconds=0.4)
    told: list[str] = []

    @worker.processor("sync")
    def process(message: Message, session: ProcessorSession) -> Status:
        if message.deliveries == 1:
            q.seek("sync", GROUP, to="start")
            until(lambda: message.lost)
            told.append("sync")
        return ACK

    @worker.processor("async")
    async def awaited(message: Message, session: ProcessorSession) -> Status:
        if not told or told[-1] != "async":
            await asyncio.to_thread(q.seek, "async", GROUP, to="start")
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                told.append("async")
                raise
        return ACK

    q.push("sync", 1)
    q.push("async", 1)
    running = Running(worker, concurrency=2)
    until(lambda: sorted(told) == ["async", "sync"])
    until(lambda: counts(q, "async").done == 1)
    running.stop()


def test_a_lease_is_renewed_while_a_handler_runs(q: Session) -> None:
    worker = Worker(q, lease_seconds=0.3)

    @worker.processor("a")
    def process(message: Message, session: ProcessorSession) -> Status:
        time.sleep(1.0)
        return ACK

    q.push("a", 1)
    assert worker.run(message_limit=1).acked == 1
    assert (counts(q).done, counts(q).ready) == (1, 0)


def test_a_child_that_returns_from_a_handler_is_ended(
    q: Session, worker: Worker, capfd: pytest.CaptureFixture[str]
) -> None:
    children: list[int] = []

    @worker.processor("a")
    def process(message: Message, session: ProcessorSession) -> Status:
        pid = os.fork()
        if pid:
            children.append(os.waitpid(pid, 0)[1])
        return ACK

    q.push("a", 1)
    assert worker.run(message_limit=1).acked == 1
    assert [os.waitstatus_to_exitcode(status) for status in children] == [70]
    assert "process forked, and the child returned from it" in capfd.readouterr().err


def test_after_settle_is_told_when_a_message_could_not_be_settled(q: Session) -> None:
    worker = Worker(q)
    errors: list[BaseException | None] = []

    class Watches(Middleware):
        def after_settle(self, context: Context, error: BaseException | None) -> None:
            errors.append(error)

    worker.add(Watches())

    @worker.processor("a")
    def process(message: Message, session: ProcessorSession) -> Status:
        if not errors:
            q.seek("a", GROUP, to="end")
        return ACK

    q.push("a", 1)
    result = worker.run(message_limit=1)
    assert isinstance(errors[0], ackflow.LeaseLost)
    assert result.lost == 1


@pytest.mark.every_store
def test_a_worker_runs_on_every_store(
    open_session: Callable[..., Session], clock: VirtualClock
) -> None:
    q = open_session()
    worker = Worker(q, redelivery_delay=0)

    @worker.processor("a")
    def process(message: Message, session: ProcessorSession) -> Status:
        session.push("next", message.data)
        return REQUEUE if message.data == 1 and not message.redelivered else ACK

    q.push("a", [1, 2, 3])
    running = Running(worker, concurrency=2, message_limit=4)
    while running.alive:
        clock.advance(0.1)  # waiting pops end by this clock
        time.sleep(0.01)
    result = running.counts
    assert result is not None
    assert (result.acked, result.requeued) == (3, 1)
    assert sorted(m.data for m in q.pop("next", batch=9)) == [1, 1, 2, 3]
