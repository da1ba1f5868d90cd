"""Processors' arguments, extensions, middleware, and what a processor sends."""

import dataclasses
import logging
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ackflow import Message, Session, VirtualClock
from ackflow.errors import InvalidArgument, TransactionFailed
from ackflow.testing import Harness
from ackflow.worker import (
    ACK,
    REJECT,
    REQUEUE,
    Context,
    Extension,
    Middleware,
    ProcessorSession,
    Push,
    Reject,
    Requeue,
    RunState,
    Status,
    Worker,
)


class Order(msgspec.Struct):
    id: int
    lines: list[str] = []


@dataclasses.dataclass
class Customer:
    name: str


def test_the_body_is_decoded_into_the_type_of_a_parameter(h: Harness) -> None:
    got: list[Any] = []
    h.worker.processor("a")(_takes_struct(got))

    @h.worker.processor("b")
    class Named:
        def process(self, message: Message, session: ProcessorSession, who: Customer) -> Status:
            got.append(who)
            return ACK

    h.worker.push("a", {"id": 5, "lines": ["x"]})
    h.worker.push("b", {"name": "Ann"})
    h.drain()
    assert got == [Order(5, ["x"]), Customer("Ann")]


def _takes_struct(got: list[Any]) -> Any:
    def process(order: Order) -> Status:
        got.append(order)
        return ACK

    return process


@pytest.mark.parametrize("body", [{"id": "5"}, {}, b"\xff", 7])
def test_an_invalid_body_is_logged_critical_and_rejected(
    h: Harness, body: Any, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[Any] = []
    h.worker.processor("a")(_takes_struct(got))
    h.worker.push("a", body)
    h.drain()
    assert not got
    (dead,) = h.session.dead_letters("a")
    assert dead.kind == "rejected"
    assert "invalid body" in str(dead.reason)
    found = [r.levelno for r in caplog.records if r.name == "ackflow.worker"]
    assert found == [logging.CRITICAL]


def test_a_json_schema_validates_the_body(h: Harness) -> None:
    schema = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}
    h.worker.processor("a", schema=schema)(lambda message, session: ACK)
    h.worker.push("a", {"id": 1})
    h.worker.push("a", {"id": "1"})
    assert [one.status for one in h.drain()] == [ACK, REJECT]
    (dead,) = h.session.dead_letters("a")
    assert dead.reason == "invalid body: '1' is not of type 'integer' - at `$.id`"
    with pytest.raises(InvalidArgument, match="JSON Schema is invalid"):
        h.worker.processor("b", schema={"type": 5})(lambda message: ACK)


def test_awaited_processors_and_classes_are_run(h: Harness) -> None:
    @h.worker.processor("a")
    async def process(message: Message, session: ProcessorSession) -> Status:
        session.push("next", message.data)
        return ACK

    h.worker.push("a", 1)
    h.drain()
    h.assert_processed_status(ACK)
    h.assert_message_sent("next", 1)


@pytest.mark.parametrize(
    ("target", "said"),
    [(lambda a, b, c: ACK, "a processor takes the message, the session"),
     (5, "neither a function"), (int, "neither a function")],
)  # fmt: skip
def test_what_is_no_processor_is_refused(worker: Worker, target: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        worker.processor("a")(target)


def test_a_processor_that_asks_for_a_plain_session_is_told_what_it_gets(worker: Worker) -> None:
    def process(message: Message, session: Session) -> Status:
        return ACK

    with pytest.raises(InvalidArgument, match="ProcessorSession"):
        worker.processor("a")(process)


def test_what_a_processor_sends_goes_out_with_its_status_and_not_if_it_raises(
    h: Harness,
) -> None:
    @h.worker.processor("a")
    def process(message: Message, session: ProcessorSession) -> Status:
        session.push("next", message.data, priority=2)
        session.put("last", message.data)
        assert not session.outside.pop("next")
        if message.data == "raise":
            raise ValueError
        return ACK

    h.worker.push("a", "raise")
    h.worker.push("a", "fine")
    h.drain(keep_going=True)
    assert [m.data for m in h.session.pop("next", batch=5)] == ["fine"]
    found = h.session.value("last")
    assert found is not None
    assert found.data == "fine"


def test_what_cannot_be_committed_requeues_the_message(h: Harness) -> None:
    @h.worker.processor("a")
    def process(message: Message, session: ProcessorSession) -> Status:
        session.put("taken", 1, expect=5)
        session.push("next", 1)
        return ACK

    h.worker.push("a", 1)
    with pytest.raises(TransactionFailed, match="has version 0, expected 5"):
        h.drain()
    assert not h.session.pop("next")
    assert h.session.group_stats("a", "__QUEUE_MODE__").counts.lag == 1


def test_several_processors_of_a_topic_each_get_every_message(h: Harness) -> None:
    seen: list[str] = []
    for group in ("billing", "stock"):
        h.worker.processor("orders", group=group, name=group)(
            lambda message, session: (seen.append(f"{message.group} {message.data}"), ACK)[1]
        )
    h.drain()  # the groups exist
    h.worker.push("orders", 1)
    h.worker.push("orders", 2)
    h.drain()
    assert sorted(seen) == ["billing 1", "billing 2", "stock 1", "stock 2"]


def test_a_requeued_copy_is_for_its_own_subscriber_alone(h: Harness) -> None:
    for group in ("billing", "stock"):
        h.worker.processor("orders", group=group, name=group)(
            lambda message, session: (
                REQUEUE if message.group == "stock" and not message.redelivered else ACK
            )
        )
    h.drain()
    h.worker.push("orders", 1)
    h.drain(advance=True)
    assert [one.group for one in h.processed_messages()] == ["billing", "stock", "stock"]


class Recording(Extension, Middleware):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name in vars(Extension) or name in vars(Middleware):
            if name.startswith("__"):
                return super().__getattribute__(name)
            calls = super().__getattribute__("calls")
            return lambda *_: calls.append(name)
        return super().__getattribute__(name)

    def on_start(self, run: RunState) -> None: ...
    def pre_received(self, context: Context) -> None: ...
    def post_received(self, context: Context) -> None: ...
    def interrupted(self, run: RunState) -> None: ...
    def before_push(self, push: Push) -> None: ...
    def after_push(self, push: Push) -> None: ...
    def before_process(self, context: Context) -> None: ...
    def after_process(self, context: Context) -> None: ...
    def before_settle(self, context: Context) -> None: ...
    def after_settle(self, context: Context, error: BaseException | None) -> None: ...


def test_hooks_are_called_in_order(h: Harness) -> None:
    recording = h.worker.add(Recording())
    h.worker.processor("a")(lambda message, session: ACK)
    h.worker.push("a", 1)
    h.drain()
    assert recording.calls == [
        "attached", "before_push", "after_push", "on_start", "pre_received", "before_process",
        "after_process", "before_settle", "after_settle", "post_received", "interrupted",
    ]  # fmt: skip


def test_pre_received_may_decide_the_status_and_skip_the_processor(h: Harness) -> None:
    class Decides(Extension):
        def pre_received(self, context: Context) -> None:
            if context.message.data == 1:
                context.status = REJECT
            elif context.message.data == 2:
                context.release(delay=5)

    h.worker.add(Decides())
    h.worker.processor("a")(lambda message, session: ACK)
    for n in (1, 2, 3):
        h.worker.push("a", n)
    assert [(one.data, one.status) for one in h.drain()] == [(1, REJECT), (2, None), (3, ACK)]
    h.clock.advance(5)
    (again,) = h.drain()
    assert (again.data, again.message.deliveries) == (2, 1)


def test_a_status_can_be_set_once(h: Harness) -> None:
    errors: list[str] = []

    class Twice(Extension):
        def pre_received(self, context: Context) -> None:
            context.status = ACK
            for call in (lambda: setattr(context, "status", REJECT), context.release):
                with pytest.raises(InvalidArgument, match="once") as caught:
                    call()  # type: ignore[operator]
                errors.append(caught.value.message)

    h.worker.add(Twice())
    h.worker.processor("a")(lambda message, session: REJECT)
    h.worker.push("a", 1)
    assert [one.status for one in h.drain()] == [ACK]
    assert len(errors) == 2


def test_a_failing_extension_is_logged_and_loses_no_message(
    h: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Extension, Middleware):
        def _fail(self, *_: Any) -> None:
            raise ZeroDivisionError("broken extension")

        on_start = pre_received = post_received = idle = interrupted = _fail
        before_process = after_process = before_settle = after_settle = _fail

    h.worker.add(Broken())
    h.worker.processor("a")(lambda message, session: ACK)
    h.worker.push("a", 1)
    assert [one.status for one in h.drain()] == [ACK]
    assert h.session.group_stats("a", "__QUEUE_MODE__").counts.done == 1
    assert len([r for r in caplog.records if "ZeroDivisionError" in str(r.exc_text)]) == 8


def test_reject_and_requeue_can_be_raised_and_the_consumer_goes_on(
    h: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    @h.worker.processor("a")
    def process(message: Message, session: ProcessorSession) -> Status:
        if message.data == 1:
            raise Reject("no such order")
        if message.data == 2 and not message.redelivered:
            raise Requeue("busy", delay=3)
        return ACK

    for n in (1, 2, 3):
        h.worker.push("a", n)
    assert [one.status for one in h.drain()] == [REJECT, REQUEUE, ACK]
    assert "no such order" in next(r for r in caplog.records if r.levelname == "WARNING").message
    h.clock.advance(3)  # its own delay stands in place of the redelivery delay
    assert [one.status for one in h.drain()] == [ACK]


def test_middleware_may_change_a_push_and_add_to_the_transaction_of_the_settlement(
    h: Harness,
) -> None:
    class Stamps(Middleware):
        def before_push(self, push: Push) -> None:
            push.headers["stamp"] = "1"

        def before_settle(self, context: Context) -> None:
            context.session.put("done", context.message.data)

    h.worker.add(Stamps())
    h.worker.processor("a")(lambda message, session: ACK)
    h.worker.push("a", 7)
    (one,) = h.drain()
    assert one.message.headers["stamp"] == "1"
    found = h.session.value("done")
    assert found is not None
    assert found.data == 7


def test_the_log_line_of_a_processed_message(h: Harness, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ackflow.worker")
    h.worker.processor("a")(lambda message, session: REQUEUE)
    h.worker.push("a", 1)
    h.drain(1)
    line = r"Message processed: REQUEUE\. Execution time: \d+ ms"
    assert re.fullmatch(line, caplog.records[-1].message)


def test_a_status_that_an_extension_decides_is_logged_and_counts_for_the_limit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ackflow.worker")
    worker = Worker(tmp_path / "q.db")
    worker.processor("a", schema=int)(lambda message, body: ACK)
    worker.push("a", ["no number", 2, "no number", 4])
    counts = worker.run(message_limit=2)
    worker.close()
    assert (counts.rejected, counts.acked) == (1, 1)
    assert "Message processed: REJECT. Execution time: 0 ms" in caplog.messages


def test_what_was_refused_at_the_commit_is_counted_as_what_became_of_it(tmp_path: Path) -> None:
    worker = Worker(tmp_path / "q.db")

    @worker.processor("a")
    def process(message: Message, session: ProcessorSession) -> Status:
        session.put("key", 1, expect=7)
        return ACK

    worker.push("a", 1)
    counts = worker.run(message_limit=1, keep_going=True)
    worker.close()
    assert (counts.acked, counts.requeued) == (0, 1)


def test_a_redriven_message_is_put_off_like_a_new_one(h: Harness) -> None:
    h.worker.processor("a", max_deliver=3)(lambda message, session: REQUEUE)
    h.worker.push("a", 1)
    h.drain(advance=True)
    h.session.redrive("a")
    assert [one.put_off for one in h.drain()] == [False, True]


@pytest.mark.parametrize("name", ["before_process", "pre_received", "idle"])
def test_a_hook_that_nothing_would_await_is_refused(worker: Worker, name: str) -> None:
    async def hook(self: object, context: Context) -> None: ...

    with pytest.raises(InvalidArgument, match=f"{name} of .* must not be asynchronous"):
        worker.add(type("Awaits", (Middleware,), {name: hook})())


def test_an_awaited_hook_of_the_last_attempt_is_refused(worker: Worker) -> None:
    @worker.task()
    def fails() -> None: ...

    async def hook(context: Context, error: BaseException) -> None: ...

    with pytest.raises(InvalidArgument, match="must not be asynchronous"):
        fails.on_last_attempt(hook)


def redelivered(h: Harness, queue: str, times: int) -> None:
    """Deliver the message of a queue to workers that are killed."""
    for _ in range(times):
        assert h.session.pop(queue, lease_seconds=1)
        h.clock.advance(2)


def hints(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if "max_deliver" in one.getMessage()]


@pytest.mark.parametrize(("times", "warns"), [(4, 0), (5, 1), (6, 0), (10, 1), (15, 0), (20, 1)])
def test_a_message_that_comes_again_without_limit_is_warned_of(
    times: int, warns: int, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(":memory:", redelivery_delay=0)

    @worker.processor("reports")
    def report(message: Message) -> Status:
        return ACK

    @worker.task("sums", retries=50)
    def add(n: int) -> None: ...

    with Harness(worker, clock) as h:
        worker.prepare(worker.bindings)
        worker.push("reports", 1)
        redelivered(h, "reports", times)
        h.drain()
        assert len(hints(caplog)) == warns
        add.push(1)
        redelivered(h, "sums", times)
        h.drain()
        assert len(hints(caplog)) == 2 * warns
        for hint in hints(caplog):
            assert f"has been redelivered {times} times" in hint


def test_failures_that_retries_limit_and_a_limit_of_deliveries_need_no_hint(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(":memory:", redelivery_delay=0)

    @worker.processor("reports", max_deliver=30)
    def report(message: Message) -> Status:
        return ACK

    @worker.task("sums", retries=5)
    def add(n: int) -> None:
        raise ValueError("never")

    with Harness(worker, clock) as h:
        worker.push("reports", 1)
        h.drain()
        worker.push("reports", 2)
        redelivered(h, "reports", 5)
        add.push(1)
        for _ in range(8):
            h.drain()
            h.clock.advance(3_600)
        assert hints(caplog) == []
