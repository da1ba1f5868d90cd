"""Unique messages: a key is taken while its message waits or runs, and free with its lease."""

import pytest

from ackflow import Session, VirtualClock
from ackflow.errors import InvalidArgument
from ackflow.worker import Unique


@pytest.fixture
def unique(q: Session) -> Unique:
    return Unique(q, ttl=100)


def test_a_second_message_is_pushed_only_after_the_first_was_settled(
    q: Session, unique: Unique
) -> None:
    first = unique.push("mail", 1, "user/7", headers={"a": "b"}, priority=1)
    assert first is not None
    assert unique.push("mail", 2, "user/7") is None
    assert unique.push("mail", 3, "user/8") is not None
    (message,) = q.pop("mail", batch=1, partition="Default", lease_seconds=60)
    if message.data == 3:
        (message,) = q.pop("mail")
    assert message.id == first[0]
    assert message.headers["a"] == "b"
    assert unique.start(message)
    assert unique.push("mail", 2, "user/7") is None
    with q.transaction() as t:
        unique.end(t.ack(message), message)
    assert unique.push("mail", 2, "user/7") is not None


def test_the_key_of_a_worker_that_died_is_free_when_its_lease_is_over(
    q: Session, unique: Unique, clock: VirtualClock
) -> None:
    unique.push("mail", "first", "k")
    (dead,) = q.pop("mail", lease_seconds=10)
    assert unique.start(dead)
    clock.advance(9)
    assert unique.push("mail", "second", "k") is None
    clock.advance(1)
    assert unique.push("mail", "second", "k") is not None
    first, second = q.pop("mail", batch=2)
    assert unique.start(second)
    assert not unique.start(first)  # it lost the key to the second
    with q.transaction() as t:
        unique.end(t.ack(second), second)
    assert unique.start(first)


def test_a_message_that_is_retried_keeps_its_key(
    q: Session, unique: Unique, clock: VirtualClock
) -> None:
    unique.push("mail", 1, "k")
    (message,) = q.pop("mail")
    unique.start(message)
    with q.transaction() as t:
        unique.end(t.nack(message, delay=50), message, again=True)
    clock.advance(50)
    assert unique.push("mail", 2, "k") is None
    (again,) = q.pop("mail")
    assert unique.start(again)
    with q.transaction() as t:
        unique.end(t.reject(again), again)
    assert q.values("unique/") == []


def test_a_message_that_waits_too_long_loses_its_key(
    q: Session, unique: Unique, clock: VirtualClock
) -> None:
    unique.push("mail", 1, "k")
    clock.advance(100)
    assert unique.push("mail", 2, "k") is not None


def test_a_push_that_is_refused_takes_no_key(q: Session, unique: Unique) -> None:
    with pytest.raises(InvalidArgument):
        unique.push("", 1, "k")
    for bad in ("", "x" * 250, "a\nb"):
        with pytest.raises(InvalidArgument):
            unique.push("mail", 1, bad)
    q.configure("small", max_size=1)
    q.push("small", 0)
    with pytest.raises(Exception, match="refused"):
        unique.push("small", 1, "k")
    assert q.values("unique/") == []


def test_a_message_without_a_key_is_left_alone(q: Session, unique: Unique) -> None:
    q.push("mail", 1)
    q.push("mail", 2, headers={"ackflow-unique": "nonsense"})
    for message in q.pop("mail", batch=2):
        assert unique.start(message)
        with q.transaction() as t:
            unique.end(t.ack(message), message)
    assert q.values() == []
