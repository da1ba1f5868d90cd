"""Typed tasks: push, arguments, retries, the last attempt."""

import dataclasses
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from ackflow.errors import InvalidArgument
from ackflow.testing import Harness
from ackflow.worker import (
    ACK,
    REJECT,
    REQUEUE,
    Context,
    Reject,
    Requeue,
    ResultFailed,
    Retry,
    Status,
    Worker,
    current,
)


@dataclasses.dataclass
class Address:
    to: str
    name: str = ""


def mail(worker: Worker, **options: Any) -> Any:
    calls: list[tuple[Any, ...]] = []

    @worker.task("mail", **options)
    def send_mail(to: str, subject: str = "Hello", *, copies: list[int] | None = None) -> int:
        calls.append((to, subject, copies))
        return len(calls)

    return send_mail, calls


def test_a_pushed_call_is_run_with_its_arguments(h: Harness) -> None:
    send_mail, calls = mail(h.worker)
    send_mail.push("a@b.c")
    send_mail.push("d@e.f", subject="Hi", copies=[1, 2])
    h.drain()
    assert calls == [("a@b.c", "Hello", None), ("d@e.f", "Hi", [1, 2])]
    h.assert_messages_sent("mail", [{"to": "a@b.c"},
                                    {"to": "d@e.f", "subject": "Hi", "copies": [1, 2]}])  # fmt: skip


def test_calling_a_task_runs_it_here(h: Harness) -> None:
    send_mail, calls = mail(h.worker)
    assert send_mail("a") == 1
    assert calls == [("a", "Hello", None)]
    h.assert_messages_empty()


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [((), {}, "missing a required argument: 'to'"), ((1,), {}, r"Expected `str`, got `int`.*\$.to"),
     (("a",), {"nix": 1}, "unexpected keyword argument 'nix'"),
     (("a", "b", "c"), {}, "too many positional"),
     (("a",), {"copies": ["x"]}, r"Expected `int`"), ((object(),), {}, "must be JSON")],
)  # fmt: skip
def test_arguments_are_validated_at_push(
    h: Harness, args: tuple[Any, ...], kwargs: dict[str, Any], said: str
) -> None:
    send_mail, _ = mail(h.worker)
    with pytest.raises(InvalidArgument, match=said):
        send_mail.push(*args, **kwargs)
    h.assert_messages_empty()


def test_not_a_number_is_refused(h: Harness) -> None:
    @h.worker.task()
    def free(value: Any) -> None: ...

    with pytest.raises(InvalidArgument, match="nan"):
        free.push(float("nan"))


def test_arguments_are_validated_at_run_and_invalid_ones_are_rejected(
    h: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    _, calls = mail(h.worker)
    name = next(iter(h.worker.bindings[0].tasks))
    h.worker.push("mail", {"to": 5}, headers={"ackflow-task": name})
    h.drain()
    h.assert_processed_status(REJECT)
    assert calls == []
    (record,) = [r for r in caplog.records if r.levelname == "CRITICAL"]
    assert "Expected `str`, got `int`" in record.message


def test_structs_dataclasses_and_variable_arguments_are_passed(h: Harness) -> None:
    class Point(msgspec.Struct):
        x: int

    got: list[Any] = []

    @h.worker.task()
    def many(address: Address, /, point: Any, *rest: int, **more: str) -> None:
        got.append((address, point, rest, more))

    many.push(Address("a"), {"x": 1}, 2, 3, colour="red")
    h.drain()
    assert got == [(Address("a"), {"x": 1}, (2, 3), {"colour": "red"})]


def test_a_type_that_cannot_be_sent_is_refused_at_the_declaration(worker: Worker) -> None:
    with pytest.raises(InvalidArgument, match="arguments of task"):

        @worker.task()
        def broken(target: "type[int] | set[object] | frozenset[int]") -> None: ...


def test_a_failing_task_is_tried_again_after_its_back_off_and_then_kept_as_a_dead_letter(
    h: Harness,
) -> None:
    times: list[float] = []

    @h.worker.task("mail", retries=3, backoff=[1, 5])
    def fails() -> None:
        times.append(h.clock.now() / 1e6)
        raise OSError("no route")

    fails.push()
    h.drain(advance=True)
    pauses = [round(b - a) for a, b in pairwise(times)]
    assert pauses == [1, 5, 5]
    (dead,) = h.session.dead_letters("mail")
    assert (dead.kind, dead.reason) == ("failed", "OSError: no route")


def test_the_last_attempt_has_a_hook_whose_messages_go_out_with_the_dead_letter(
    h: Harness,
) -> None:
    attempts: list[tuple[int, bool]] = []

    @h.worker.task("mail", retries=1, backoff=[1])
    def fails() -> None:
        context = current()
        assert context is not None
        attempts.append((context.attempt, context.last_attempt))
        context.session.push("never", 1)
        raise OSError("no route")

    @fails.on_last_attempt
    def gave_up(context: Context, error: BaseException) -> None:
        context.session.push("alarms", str(error))

    fails.push()
    h.drain(advance=True)
    assert attempts == [(1, False), (2, True)]
    assert [m.data for m in h.session.pop("alarms", batch=5)] == ["no route"]
    assert not h.session.pop("never")


def test_a_task_may_choose_its_pause_or_end_its_attempts(h: Harness) -> None:
    @h.worker.task("mail")
    def picky(what: str) -> None:
        if what == "later" and current().attempt == 1:  # type: ignore[union-attr]
            raise Retry("busy", delay=77)
        if what == "never":
            raise Reject("no such user")

    picky.push("never")
    picky.push("later")
    before = h.clock.now()
    h.drain(advance=True)
    assert round((h.clock.now() - before) / 1e6) == 77
    (dead,) = h.session.dead_letters("mail")
    assert (dead.kind, dead.reason) == ("rejected", "no such user")


@pytest.mark.parametrize("raises", [False, True])
def test_a_requeued_task_is_put_off_and_no_attempt_is_counted(h: Harness, raises: bool) -> None:
    times: list[float] = []

    @h.worker.task("mail", retries=0, result=True)
    def busy() -> Status:
        assert worker_attempt() == 1
        times.append(h.clock.now() / 1e6)
        if len(times) == 3:
            return ACK
        if raises:
            raise Requeue("busy")
        return REQUEUE

    def worker_attempt() -> int:
        return h.worker.current().attempt

    handle = busy.push()
    h.drain(2, advance=True)
    assert not handle.ready  # it is neither done nor given up
    h.drain(advance=True)
    assert [round(b - a) for a, b in pairwise(times)] == [10, 10]
    assert handle.result(timeout=0) is None


def test_a_task_that_kills_its_worker_is_a_dead_letter_after_max_deliver(h: Harness) -> None:
    @h.worker.task("mail", retries=None, max_deliver=3)
    def dies() -> None: ...

    dies.push()
    h.worker.prepare(h.worker.bindings)
    for _ in range(3):
        assert len(h.session.pop("mail", lease_seconds=30)) == 1
        h.clock.advance(30)
    assert not h.session.pop("mail")
    (dead,) = h.session.dead_letters("mail")
    assert dead.kind == "max_deliver"
    with pytest.raises(InvalidArgument, match="max_deliver=3 already"):
        h.worker.task("mail", max_deliver=5, name="other")(lambda: None)


def test_the_last_delivery_is_the_last_attempt(h: Harness) -> None:
    gave_up: list[int] = []

    @h.worker.task("mail", retries=None, backoff=[1], max_deliver=2, result=True)
    def fails() -> None:
        raise OSError("no route")

    fails.on_last_attempt(lambda context, error: gave_up.append(context.attempt))
    handle = fails.push()
    h.drain(advance=True)
    assert gave_up == [2]
    with pytest.raises(ResultFailed, match="no route"):
        handle.result(timeout=0)


def test_the_limit_of_a_group_that_existed_does_not_shorten_the_retries_of_a_task(
    h: Harness,
) -> None:
    @h.worker.task("mail", retries=5, backoff=[1])
    def fails() -> None:
        raise OSError("no route")

    h.session.pop("mail")  # somebody has looked, which made the group with its defaults
    fails.push()
    assert len(h.drain(advance=True)) == 6


def test_push_with_sets_delay_priority_key_and_partition(h: Harness) -> None:
    send_mail, calls = mail(h.worker)
    send_mail.push_with(delay=5, priority=3, partition="eu")("late")
    first = send_mail.push_with(key="once")("a")
    again = send_mail.push_with(key="once")("a")
    assert first.id == again.id is not None
    h.drain()
    assert [call[0] for call in calls] == ["a"]
    h.drain(advance=True)
    assert [call[0] for call in calls] == ["a", "late"]
    late = h.processed[-1].message
    assert (late.priority, late.partition) == (3, "eu")
    with pytest.raises(InvalidArgument, match="no option dellay"):
        send_mail.push_with(dellay=5)


def test_a_task_pushed_inside_a_task_goes_out_with_the_acknowledgement(h: Harness) -> None:
    @h.worker.task("b")
    def second(n: int) -> None: ...

    @h.worker.task("a", retries=0)
    def first(n: int) -> None:
        assert second.push(n).id is None
        assert not h.session.pop("b")
        if n == 2:
            raise ValueError("fails after its push")

    first.push(1)
    first.push(2)
    h.drain()
    assert [one.data for one in h.processed_messages(ACK, queue="b")] == [{"n": 1}]


def test_a_batch_sends_its_pushes_together_or_none(h: Harness) -> None:
    send_mail, calls = mail(h.worker)
    with h.worker.batch():
        handles = [send_mail.push(str(n)) for n in range(3)]
        h.worker.push("other", 1)
        assert not h.session.pop("other")
    assert len({handle.id for handle in handles}) == 3
    with pytest.raises(ZeroDivisionError), h.worker.batch():
        send_mail.push(str(1 / len(send_mail.push("never").push.headers.get("nix", ""))))
    h.drain(queues="mail")
    assert [call[0] for call in calls] == ["0", "1", "2"]
    assert len(h.session.pop("other")) == 1


def test_a_task_that_no_worker_has_is_put_off_and_not_lost(h: Harness) -> None:
    mail(h.worker)
    h.worker.push("mail", {}, headers={"ackflow-task": "removed"})
    (one,) = h.drain()
    assert one.processor is None
    assert h.session.group_stats("mail", "__QUEUE_MODE__").counts.lag == 1


def test_two_handlers_of_one_queue_without_groups_are_refused(worker: Worker) -> None:
    worker.processor("orders")(lambda m, s: ACK)
    with pytest.raises(InvalidArgument, match="a group of its own"):
        worker.processor("orders")(lambda m, s: ACK)
    with pytest.raises(InvalidArgument, match="needs another queue"):
        worker.task("orders")(lambda: None)
