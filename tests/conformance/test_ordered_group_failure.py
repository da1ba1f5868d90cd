"""A failure told to an ordered group yields the rest of its batch to the next hand-out, and only to
a hand-out: a pop or a reader that gets nothing leaves the rest with its holder."""

import pytest

from ackflow import Item, Message, Session, VirtualClock, ids
from ackflow.broker.readers.verbs import hand_over, lease_next, start_reader
from ackflow.broker.requests import PopRequest, ReaderRequest, Verdict
from ackflow.dialects.queen.verbs.settle_by_name import NamedMessage, NamedOutcome, settle_named
from ackflow.errors import LeaseLost

# These verbs are called by servers only, so not over HTTP.
pytestmark = pytest.mark.parametrize("open_session", ["memory", "postgres"], indirect=True)


def pop(q: Session, n: int = 9, **options: object) -> list[Message]:
    return list(q.pop("orders", group="g", batch=n, dialect="queen", **options))  # type: ignore[arg-type]


def data(some: list[Message]) -> list[object]:
    return [message.data for message in some]


def ordered(q: Session, n: int) -> list[Message]:
    q.push("orders", list(range(n)))
    return pop(q, n)


def told(q: Session, message: Message, verdict: Verdict) -> NamedOutcome:
    home = q.broker.do(lambda tx: tx.partition(tx.queue("orders").id, message.partition).id, False)
    assert message.token is not None
    item = NamedMessage(home, message.id, verdict, "g", ids.parse_token(message.token))
    (one,) = q.broker.do(settle_named, False, [item])
    return one


def fail(q: Session, message: Message, delay: float | None = None) -> None:
    assert told(q, message, Verdict("nack", delay=delay, yields=True)).error is None


def read(q: Session, size: int = 1 << 30, number: int = 0) -> list[int]:
    """The sequences that a reader is given next."""

    def run(tx: object) -> list[int]:
        epoch = start_reader(tx, "r", "orders", "g", False, number)  # type: ignore[arg-type]
        asked = ReaderRequest("r", epoch, number, 100, size, 30.0)
        end = lease_next(tx, asked).number  # type: ignore[arg-type]
        lots = hand_over(tx, "r", epoch, number, end, 30.0)  # type: ignore[arg-type]
        return [
            sequence
            for lot in lots
            for lo, hi in zip(lot.ranges[::2], lot.ranges[1::2], strict=True)
            for sequence in range(lo, hi)
        ]

    return q.broker.do(run, True)


def test_a_pop_that_gets_nothing_leaves_the_rest_with_its_holder(
    q: Session, clock: VirtualClock
) -> None:
    first, second, third = ordered(q, 3)
    fail(q, first, delay=5)
    assert not pop(q)
    third.ack()
    clock.advance(5)
    assert data(pop(q)) == [0, 1]
    with pytest.raises(LeaseLost):
        second.ack()


def test_what_is_new_waits_with_a_failure_and_takes_nothing_over(q: Session) -> None:
    first, second, third = ordered(q, 3)
    fail(q, first, delay=5)
    q.push("orders", 3)
    assert not pop(q)
    second.ack()
    third.ack()


def test_a_hand_out_at_another_priority_takes_over_what_is_held_at_the_first(q: Session) -> None:
    first, second, _ = ordered(q, 3)
    fail(q, first, delay=5)
    q.push("orders", "less urgent", priority=7)
    assert data(pop(q)) == ["less urgent"]
    with pytest.raises(LeaseLost):
        second.ack()


def test_an_urgent_message_that_is_delayed_takes_nothing_over(q: Session) -> None:
    q.push("orders", [Item(data=0, priority=3), Item(data=1, priority=3)])
    first, second = pop(q)
    fail(q, first, delay=5)
    q.push("orders", "later", delay=3)
    assert not pop(q)
    second.ack()


def test_the_rest_at_another_priority_is_taken_over_with_what_is_handed_out(q: Session) -> None:
    q.push("orders", [Item(data=0, priority=1), Item(data=1, priority=1), Item(data=2, priority=2)])
    first, second, third = pop(q)
    fail(q, first)
    q.push("orders", "urgent")
    assert data(pop(q, 1)) == ["urgent"]
    for message in (second, third):
        with pytest.raises(LeaseLost):
            message.ack()


def test_a_rest_that_is_too_old_to_be_handed_out_stays_with_its_holder(
    q: Session, clock: VirtualClock
) -> None:
    q.configure("orders", retention_seconds=10)
    first, second, third = ordered(q, 3)
    fail(q, first, delay=60)
    clock.advance(20)
    assert not pop(q)
    second.ack()
    third.ack()


def test_at_the_limit_the_lease_stays_with_its_holder(q: Session) -> None:
    q.configure("orders", retry_limit=1)
    first, second, third = ordered(q, 3)
    assert told(q, first, Verdict("nack", yields=True)).dead
    q.push("orders", 3)
    assert not pop(q)
    second.ack()
    third.ack()
    assert data(pop(q)) == [3]


def test_of_failures_reported_together_those_that_come_again_yield(q: Session) -> None:
    q.configure("orders", retry_limit=2)
    (first,) = ordered(q, 1)
    fail(q, first)
    q.push("orders", [1, 2])
    held = pop(q)
    assert data(held) == [0, 1, 2]
    home = q.broker.do(lambda tx: tx.partition(tx.queue("orders").id, "Default").id, False)
    token = ids.parse_token(held[0].token or "")
    verdict = Verdict("nack", yields=True)
    items = [NamedMessage(home, message.id, verdict, "g", token) for message in held[:2]]
    assert [one.dead for one in q.broker.do(settle_named, False, items)] == [True, False]
    assert data(pop(q)) == [1, 2]


def test_a_reader_takes_over_what_a_pop_would(q: Session) -> None:
    q.push("orders", list(range(5)))
    first, second, third = pop(q, 3)
    fail(q, first)
    assert read(q) == [0, 1, 2, 3, 4]
    for message in (second, third):
        with pytest.raises(LeaseLost):
            message.ack()


def test_a_reader_that_gets_nothing_leaves_the_rest_with_its_holder(q: Session) -> None:
    q.push("orders", list(range(5)))
    first, second, third = pop(q, 3)
    fail(q, first, delay=5)
    assert read(q) == []
    second.ack()
    third.ack()


def test_a_reader_keeps_to_its_size_with_what_it_takes_over(q: Session) -> None:
    q.push("orders", ["x" * 1000 for _ in range(5)])
    first, second, third = pop(q, 3)
    first.ack()
    assert told(q, second, Verdict("release", yields=True)).error is None
    q.push("orders", list(range(100)))
    assert read(q, size=2500) == [1, 2]
    with pytest.raises(LeaseLost):
        third.ack()


def test_a_reader_goes_on_behind_a_lane_that_it_has_just_emptied(q: Session) -> None:
    q.push("orders", [Item(data=i, priority=i) for i in range(3)])
    assert read(q) == [0, 0, 0]


def test_a_lane_that_joins_a_yielding_partition_is_served(q: Session) -> None:
    first, second = ordered(q, 2)
    fail(q, first, delay=5)
    assert not pop(q)
    q.push("orders", "urgent, of a new priority", priority=4)
    answer = q.broker.pop(PopRequest("orders", "g", "b", batch=9, dialect="queen"), 0.0)
    assert [run.priority for run in answer.runs] == [4]
    with pytest.raises(LeaseLost):
        second.ack()
