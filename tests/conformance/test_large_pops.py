"""A pop hands out a bounded number of bytes, whatever batch it asks for."""

import pytest

from ackflow import Session
from ackflow.broker.broker import Broker
from ackflow.broker.core import pop
from ackflow.broker.core.handout import payload
from ackflow.broker.core.pop import BoundedPop

LIMIT = 100_000
SIZE = 10_000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop, "MAX_POP_BYTES", LIMIT)


def numbers(batch: object) -> list[int]:
    return [message.data[0] for message in batch]  # type: ignore[attr-defined]


def fill(q: Session, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        q.push("q", [[number, "x" * SIZE]])


def test_a_pop_of_many_large_messages_stops_at_the_limit_and_loses_none(q: Session) -> None:
    fill(q, 25)
    seen: list[int] = []
    sizes = []
    while batch := q.pop("q", group="g", batch=1_000):
        sizes.append(len(batch))
        seen += numbers(batch)
        q.ack(batch)
    assert seen == list(range(25))
    assert max(sizes) <= LIMIT // SIZE
    assert sizes[0] >= LIMIT // SIZE - 1


def test_the_limit_holds_within_one_segment_and_over_partitions(q: Session) -> None:
    q.push("q", [[number, "x" * SIZE] for number in range(15)], partition="a")
    q.push("q", [[number, "x" * SIZE] for number in range(15)], partition="b")
    seen = []
    while batch := q.pop("q", group="g", batch=1_000):
        assert len(batch) <= LIMIT // SIZE
        seen += numbers(batch)
        q.ack(batch)
    assert sorted(seen) == sorted([*range(15), *range(15)])


def test_messages_that_come_again_are_limited_too_and_come_before_new_ones(q: Session) -> None:
    fill(q, 9)
    q.release(q.pop("q", group="g", batch=9))
    fill(q, 9, first=9)
    q.release(q.pop("q", group="g", batch=9))
    seen = []
    while batch := q.pop("q", group="g", batch=1_000):
        assert len(batch) <= LIMIT // SIZE
        seen += numbers(batch)
        q.ack(batch)
    assert seen == list(range(18))


def test_a_message_above_the_limit_is_delivered_alone(q: Session) -> None:
    for number in range(3):
        q.push("q", [[number, "x" * 2 * LIMIT]])
    assert numbers(q.pop("q", group="g", batch=1_000)) == [0]
    again = q.pop("q", group="g", batch=1_000)
    assert numbers(again) == [1]
    q.release(again)
    assert numbers(q.pop("q", group="g", batch=1_000)) == [1]


def test_a_pop_without_a_lease_is_limited_too(q: Session) -> None:
    fill(q, 25)
    assert len(q.pop("q", group="g", batch=1_000, auto_ack=True)) <= LIMIT // SIZE


def bounded(q: Session, batch: int, most_bytes: int) -> list[int]:
    """The sizes of the payloads of a pop with a limit of its own."""
    broker = q.broker
    if not isinstance(broker, Broker):
        pytest.skip("a request of the AMQP server, on one database")
    answer = broker.pop(BoundedPop("q", "g", "me", batch, most_bytes=most_bytes))
    return [len(payload(run.body, at - run.first))
            for run in answer.runs for at in range(run.lo, run.hi)]  # fmt: skip


def test_a_limit_of_the_request_holds_within_a_segment_that_is_cached(q: Session) -> None:
    q.push("q", [[number, "x" * SIZE] for number in range(30)])
    q.ack(q.pop("q", group="g", batch=2))
    assert len(bounded(q, 10, 3 * (SIZE + 100))) == 3
    assert len(bounded(q, 10, LIMIT // 2)) == 4
    assert len(bounded(q, 2, LIMIT // 2)) == 2
    assert len(bounded(q, 10, 100)) == 1


def test_the_limit_counts_each_message_not_their_average(q: Session) -> None:
    q.push("q", [[number, "x" * (50 if number % 10 else 2 * SIZE)] for number in range(100)])
    q.ack(q.pop("q", group="g", batch=5))
    for _ in range(4):
        sizes = bounded(q, 50, SIZE)
        assert sum(sizes) <= SIZE or len(sizes) == 1
    q.release(q.pop("q", group="g", batch=5))  # the claims of what comes again count the same
    assert sum(bounded(q, 50, SIZE)) <= SIZE
