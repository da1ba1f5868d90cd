"""Limits, results, unique keys and schedules as options of tasks and processors."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ackflow import Message, VirtualClock
from ackflow.errors import InvalidArgument
from ackflow.testing import Harness
from ackflow.worker import (
    ACK,
    REJECT,
    Jobs,
    Middleware,
    ProcessorSession,
    Progress,
    Push,
    Reject,
    ResultFailed,
    ResultTimeout,
    Retry,
    Status,
    Worker,
    current,
    every,
)

from .conftest import Running, until

# limits


def test_a_task_has_all_options_of_its_decorator_without_adding_anything(
    worker: Worker, h: Harness
) -> None:
    @worker.task(
        queue="mail", retries=5, backoff=[1, 5, 30], time_limit=60, concurrency_key="smtp",
        rate="10/s", result=True, unique=lambda to, subject: to,
    )  # fmt: skip
    def send_mail(to: str, subject: str) -> str:
        return f"{subject} to {to}"

    handle = send_mail.push("ann", subject="hello")
    assert send_mail.push("ann", "again").duplicate
    h.drain()
    assert handle.result(timeout=0) == "hello to ann"
    assert h.session.values("limits/slot/") == h.session.values("unique/") == []
    assert not send_mail.push("ann", "again").duplicate


def test_an_option_that_a_task_does_not_have_is_an_error_where_it_is_declared(
    worker: Worker,
) -> None:
    with pytest.raises(TypeError, match="retrise"):
        worker.task("t", retrise=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "options",
    [{"rate": "fast"}, {"concurrency": 0}, {"result": -1}, {"unique": 7}, {"concurrency_key": ""}],
)
def test_a_wrong_value_of_an_option_is_an_error_where_it_is_declared(
    worker: Worker, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArgument):
        worker.task("t", **options)


def test_a_rate_is_kept_by_the_clock_of_the_broker(
    worker: Worker, h: Harness, clock: VirtualClock
) -> None:
    starts: list[int] = []

    @worker.task("t", rate="5/m")
    def work(n: int) -> None:
        starts.append(clock.now())

    for n in range(12):
        work.push(n)
    h.drain()
    assert len(starts) == 5
    h.drain(advance=True)
    assert len(starts) == 12
    assert starts[5] - starts[0] >= 60e6
    assert starts[10] - starts[5] >= 60e6


def test_the_key_of_a_limit_is_a_function_of_the_arguments(worker: Worker, h: Harness) -> None:
    done: list[str] = []

    @worker.task("t", rate="1/m", concurrency_key=lambda user, n: user)
    def work(user: str, n: int) -> None:
        done.append(f"{user}{n}")

    for n in range(2):
        work.push("a", n)
        work.push("b", n=n)
    h.drain()
    assert sorted(done) == ["a0", "b0"]


def test_a_processor_has_a_rate_by_a_key_of_its_message(worker: Worker, h: Harness) -> None:
    @worker.processor("orders", rate="1/m", concurrency_key=lambda message: message.data["shop"])
    def bill(message: Message, session: ProcessorSession) -> Status:
        return ACK

    for shop in ("x", "x", "y"):
        worker.push("orders", {"shop": shop})
    h.drain()
    assert [one.data["shop"] for one in h.processed_messages(ACK)] == ["x", "y"]


def test_a_key_that_cannot_be_computed_exceeds_no_limit(worker: Worker, h: Harness) -> None:
    @worker.task("t", concurrency_key=lambda n: 1 // n)
    def work(n: int) -> None: ...

    work.push(0)
    (one,) = h.drain(1)
    assert one.put_off


def test_so_many_calls_of_a_task_run_at_once(tmp_path: Path) -> None:
    inside: list[int] = []
    most: list[int] = []
    with Worker(tmp_path / "a.db") as worker:

        @worker.task(queue="t", concurrency=2)
        def work(n: int) -> None:
            inside.append(n)
            most.append(len(inside))
            time.sleep(0.01)
            inside.remove(n)

        for n in range(12):
            work.push(n)
        running = Running(worker, concurrency=8)
        until(lambda: len(most) == 12)
        running.stop()
        assert max(most) == 2
        assert worker.session.values("limits/slot/") == []


# results


def test_a_handle_has_the_result_the_failure_or_nothing_yet(worker: Worker, h: Harness) -> None:
    @worker.task("t", result=60, retries=0)
    def divide(a: int, b: int) -> float:
        return a / b

    @worker.task("t", result=True)
    def refuse(by: str) -> Status:
        if by == "raise":
            raise Reject("no such order")
        return REJECT

    good, bad = divide.push(1, 2), divide.push(1, 0)
    raised, returned = refuse.push("raise"), refuse.push("return")
    with pytest.raises(ResultTimeout):
        good.result(timeout=0)
    assert not good.ready
    h.drain()
    assert good.ready
    assert good.result(timeout=0) == 0.5
    with pytest.raises(ResultFailed, match="ZeroDivisionError"):
        bad.result(timeout=0)
    with pytest.raises(ResultFailed, match="no such order"):
        raised.result(timeout=0)
    with pytest.raises(ResultFailed, match="rejected"):
        returned.result(timeout=0)
    h.clock.advance(61)
    with pytest.raises(ResultTimeout):
        good.result(timeout=0)


def test_a_failure_that_is_tried_again_is_no_result(worker: Worker, h: Harness) -> None:
    @worker.task("t", result=True, retries=2, backoff=[60])
    def work() -> int:
        if worker.current().attempt < 3:
            raise Retry("not yet")
        return worker.current().attempt

    handle = work.push()
    h.drain()
    assert not handle.ready
    h.drain(advance=True)
    assert handle.result(timeout=0) == 3


def test_results_are_off_unless_the_task_asks_for_them(worker: Worker, h: Harness) -> None:
    @worker.task("t")
    def work() -> int:
        return 1

    handle = work.push()
    h.drain()
    assert h.session.values("results/") == []
    with pytest.raises(InvalidArgument, match="result=True"):
        handle.result(timeout=0)


def test_a_repeat_with_the_same_key_has_the_result_of_the_first(worker: Worker, h: Harness) -> None:
    @worker.task("t", result=True)
    def work(n: int) -> int:
        return 2 * n

    first, repeat = work.push_with(key="k")(21), work.push_with(key="k")(21)
    assert first.id == repeat.id
    assert len(h.drain()) == 1
    assert first.result(timeout=0) == repeat.result(timeout=0) == 42


def test_progress_is_seen_by_the_handle_and_by_the_next_attempt(worker: Worker, h: Harness) -> None:
    @worker.task("t", result=True, retries=1, backoff=[60])
    def pages() -> int:
        before = worker.current().last_progress()
        if before is None:
            worker.current().progress(0.4, {"page": 2})
            raise ConnectionError
        return int(before.data["page"])

    handle = pages.push()
    assert handle.progress() is None
    h.drain()
    assert handle.progress() == Progress(0.4, {"page": 2}, 1)
    h.drain(advance=True)
    assert handle.result(timeout=0) == 2


def test_a_task_cannot_wait_for_what_goes_out_with_its_acknowledgement(
    worker: Worker, h: Harness
) -> None:
    @worker.task("t", result=True)
    def inner() -> int:
        return 1

    @worker.task("t", result=True, retries=0)
    def outer() -> int:
        return inner.push().result(timeout=5)

    handle = outer.push()
    h.drain()
    with pytest.raises(ResultFailed, match="acknowledgement"):
        handle.result(timeout=0)


def test_the_current_message_is_an_error_outside_a_handler(worker: Worker) -> None:
    assert current() is None
    with pytest.raises(InvalidArgument, match="no message"):
        worker.current()


# unique


def test_a_unique_task_is_pushed_again_when_it_is_done_but_not_while_it_is_retried(
    worker: Worker, h: Harness
) -> None:
    @worker.task("t", unique=True, retries=1, backoff=[60])
    def sync(user: int) -> None:
        if worker.current().attempt == 1:
            raise ConnectionError

    assert not sync.push(7).duplicate
    assert not sync.push(8).duplicate
    repeat = sync.push(7)
    assert repeat.duplicate
    assert repeat.id is None
    h.assert_messages_count("t", 2)
    h.drain()
    assert sync.push(7).duplicate
    h.drain(advance=True)
    assert not sync.push(7).duplicate


def test_a_unique_task_that_is_over_a_limit_keeps_its_key(worker: Worker, h: Harness) -> None:
    @worker.task("t", unique=True, rate="1/m")
    def sync(user: int) -> None: ...

    sync.push(1)
    sync.push(2)
    h.drain()
    assert not sync.push(1).duplicate
    assert sync.push(2).duplicate


def test_a_delayed_unique_task_keeps_its_key_until_it_is_due(worker: Worker, h: Harness) -> None:
    @worker.task("t", unique=True)
    def sync() -> None: ...

    sync.push_with(delay=3 * 86_400)()
    h.clock.advance(2 * 86_400)
    assert sync.push().duplicate


def test_a_unique_push_inside_a_handler_goes_out_once_with_the_acknowledgement(
    worker: Worker, h: Harness
) -> None:
    @worker.processor("u")
    def process(message: Message, session: ProcessorSession) -> Status:
        return ACK

    @worker.task("t")
    def work() -> None:
        for _ in range(2):
            worker.push("u", 1, unique="k")

    work.push()
    work.push()
    h.drain(queues="t")
    h.assert_messages_count("u", 1)
    assert len(h.drain()) == 1
    assert worker.push("u", 2, unique="k") is not None
    assert worker.push("u", 3, unique="k") is None


# schedules


def test_ticks_of_an_interval_run_a_function(worker: Worker, h: Harness) -> None:
    ticks: list[datetime | None] = []

    @worker.every("15m")
    def refresh() -> None:
        ticks.append(worker.current().tick)

    h.drain()
    assert ticks == []
    for _ in range(3):
        h.clock.advance(900)
        h.drain()
    assert len(ticks) == 3
    assert ticks[0] is not None
    assert ticks[1] == ticks[0] + timedelta(minutes=15)
    refresh.push()  # it is a task like any other
    h.drain()
    assert ticks[3] is None


def test_a_cron_expression_runs_a_task_in_its_time_zone(worker: Worker, h: Harness) -> None:
    seen: list[str] = []

    @worker.cron("0 6 * * *", tz="Europe/Berlin", arguments={"region": "eu"})
    @worker.task("reports")
    def report(region: str) -> None:
        tick = worker.current().tick
        assert tick is not None
        seen.append(f"{region} {tick:%H:%M} {tick.astimezone(UTC):%H:%M}")

    h.drain()
    h.clock.advance(86_400)
    h.drain()
    assert len(seen) == 1
    assert seen[0] in ("eu 06:00 04:00", "eu 06:00 05:00")


@pytest.mark.parametrize(("missed", "runs"), [("once", 1), ("skip", 0), ("all", 3)])
def test_missed_ticks_follow_the_policy(
    worker: Worker, h: Harness, missed: Any, runs: int, clock: VirtualClock
) -> None:
    @worker.every("1h", missed=missed)
    def tick() -> None: ...

    h.drain()
    over = (clock.now() / 1e6) % 3600
    h.clock.advance(3600 - over + 2 * 3600 + 300)
    assert len(h.drain()) == runs


def test_each_tick_is_pushed_once_by_several_workers(tmp_path: Path, clock: VirtualClock) -> None:
    with Harness(Worker(":memory:"), clock) as h:
        workers = [Worker(h.session) for _ in range(3)]
        for one in workers:
            one.every("1m")(_nothing)
            one.schedules().run_due()
        clock.advance(60)
        assert sum(one.schedules().run_due() for one in workers) == 1


def _nothing() -> None: ...


def test_a_unique_task_skips_a_tick_while_it_waits(worker: Worker, h: Harness) -> None:
    @worker.every("1m", missed="all")
    @worker.task("t", unique=True)
    def slow() -> None: ...

    h.drain()
    h.clock.advance(300)
    assert len(h.drain()) == 1


def test_a_schedule_pushes_to_the_queue_of_a_processor(worker: Worker, h: Harness) -> None:
    worker.schedule("hourly", every("1h"), queue="ticks", data={"n": 1})

    @worker.processor("ticks")
    def process(message: Message, session: ProcessorSession) -> Status:
        return ACK

    h.drain()
    h.clock.advance(3600)
    h.drain()
    h.assert_processed_status(ACK, queue="ticks", data={"n": 1})


def test_a_tick_goes_through_the_middleware(worker: Worker, h: Harness) -> None:
    class Tenant(Middleware):
        def before_push(self, push: Push) -> None:
            push.headers["tenant"] = "main"

    worker.add(Tenant())
    worker.every("1m")(_nothing)
    h.drain()
    h.clock.advance(60)
    (one,) = h.drain()
    assert one.message.headers["tenant"] == "main"


def test_a_schedule_that_cannot_work_is_an_error_where_it_is_declared(worker: Worker) -> None:
    @worker.task("t")
    def work(n: int) -> None: ...

    with pytest.raises(InvalidArgument, match="missing a required argument"):
        worker.every("1m")(work)
    with pytest.raises(InvalidArgument, match="interval"):
        worker.every("soon")
    with pytest.raises(InvalidArgument, match="cron"):
        worker.cron("6 o'clock")
    with pytest.raises(InvalidArgument, match="time zone"):
        worker.cron("0 6 * * *", tz="Mars/Base")
    worker.every("1m", arguments={"n": 1})(work)
    with pytest.raises(InvalidArgument, match="name"):
        worker.every("2m", arguments={"n": 1})(work)
    worker.every("2m", arguments={"n": 1}, name="other")(work)


def test_a_running_worker_logs_its_schedules_and_pushes_their_ticks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ticks: list[datetime | None] = []
    caplog.set_level("INFO", "ackflow.worker")
    with Worker(tmp_path / "a.db") as worker:

        @worker.every(0.1)
        def tick() -> None:
            ticks.append(worker.current().tick)

        running = Running(worker)
        until(lambda: len(ticks) >= 3)
        running.stop()
    assert len(set(ticks)) == len(ticks)
    assert "schedule" in caplog.text
    assert "every 0.1s, next at" in caplog.text


# jobs


def test_the_ack_of_a_processor_after_its_job_changes_nothing(worker: Worker, h: Harness) -> None:
    jobs = Jobs(h.session)

    @worker.processor("work")
    def process(message: Message, session: ProcessorSession) -> Status:
        done = jobs.run_unique(message, "import", lambda job: True)
        return ACK if done else REJECT

    worker.push("work", 1)
    h.drain()
    h.assert_job_status("import", "success")
    with pytest.raises(AssertionError, match="success"):
        h.assert_job_status("import", "failed")
    counts = h.session.group_stats("work").counts
    assert (counts.done, counts.dead, counts.leased) == (1, 0, 0)
