"""Keyed values that end after a time or with a lease, pages of values, and a release with a delay."""

import pytest

from ackflow import Session, VirtualClock, errors
from ackflow.errors import InvalidArgument, TransactionFailed

pytestmark = pytest.mark.every_store


def put(q: Session, key: str, value: object = 1, **options: object) -> None:
    with q.transaction() as t:
        t.put(key, value, **options)  # type: ignore[arg-type]


def test_a_value_with_a_ttl_ends_when_its_time_is_over(q: Session, clock: VirtualClock) -> None:
    put(q, "k", "v", ttl=10)
    found = q.value("k")
    assert found is not None
    assert found.expires_at is not None
    assert (found.expires_at - found.updated_at).total_seconds() == 10
    clock.advance(9.9)
    assert q.value("k") is not None
    clock.advance(0.1)
    assert q.value("k") is None
    assert q.values("k") == []


def test_a_value_that_has_ended_counts_as_missing_and_its_version_is_not_used_again(
    q: Session, clock: VirtualClock
) -> None:
    put(q, "k", ttl=1, expect=0)
    with pytest.raises(TransactionFailed):
        put(q, "k", expect=0)
    clock.advance(1)
    put(q, "k", ttl=1, expect=0)
    found = q.value("k")
    assert found is not None
    assert found.version == 2
    clock.advance(1)
    assert q.upkeep().pruned == 1
    put(q, "k", expect=0)
    found = q.value("k")
    assert found is not None
    assert (found.version, found.expires_at) == (3, None)


def test_a_value_put_again_without_a_ttl_stays(q: Session, clock: VirtualClock) -> None:
    put(q, "k", ttl=1)
    put(q, "k")
    clock.advance(100)
    q.upkeep()
    assert q.value("k") is not None


def test_a_value_bound_to_a_lease_ends_with_the_ack(q: Session) -> None:
    q.push("orders", 1)
    (message,) = q.pop("orders")
    put(q, "lock", "mine", expect=0, lease=message)
    with pytest.raises(TransactionFailed):
        put(q, "lock", "theirs", expect=0)
    message.ack()
    assert q.value("lock") is None
    put(q, "lock", "theirs", expect=0)


def test_a_value_bound_to_a_lease_lives_as_long_as_the_lease_is_extended(
    q: Session, clock: VirtualClock
) -> None:
    q.push("orders", 1)
    (message,) = q.pop("orders", lease_seconds=10)
    put(q, "lock", lease=str(message.token))
    for _ in range(3):
        clock.advance(8)
        message.extend(10)
        q.upkeep()
        assert q.value("lock") is not None
    clock.advance(10)
    assert q.value("lock") is None
    assert q.upkeep().pruned == 1
    assert q.values("lock") == []


def test_a_value_cannot_be_bound_to_a_lease_that_is_over(q: Session, clock: VirtualClock) -> None:
    q.push("orders", 1)
    (message,) = q.pop("orders", lease_seconds=10)
    clock.advance(10)
    with pytest.raises(TransactionFailed) as caught:
        put(q, "lock", lease=message)
    assert caught.value.details["code"] == "invalid_lease"
    assert q.value("lock") is None


def test_a_value_has_one_end_at_most(q: Session) -> None:
    q.push("orders", 1)
    (message,) = q.pop("orders")
    with pytest.raises(InvalidArgument, match="not both"):
        put(q, "lock", lease=message, ttl=1)
    for bad in (0, -1, "soon", float("nan")):
        with pytest.raises(InvalidArgument, match="ttl"):
            put(q, "lock", ttl=bad)
    q.push("orders", 1)
    (message,) = q.pop("orders", auto_ack=True)
    with pytest.raises(InvalidArgument, match="without a lease"):
        put(q, "lock", lease=message)


def test_values_are_listed_in_pages_in_both_directions(q: Session, clock: VirtualClock) -> None:
    with q.transaction() as t:
        for n in range(7):
            t.put(f"p/{n}", n, ttl=10 if n in (0, 3) else None)
        t.put("o", 1)
        t.put("q", 1)
    clock.advance(10)
    assert [v.data for v in q.values("p/", limit=3)] == [1, 2, 4]
    assert [v.data for v in q.values("p/", limit=3, after="p/4")] == [5, 6]
    assert [v.data for v in q.values("p/", limit=3, reverse=True)] == [6, 5, 4]
    assert [v.data for v in q.values("p/", limit=3, after="p/4", reverse=True)] == [2, 1]
    assert q.values("p/", after="p/6") == []
    with pytest.raises(InvalidArgument):
        q.values("p/", after="")


def test_upkeep_removes_more_ended_values_than_fit_into_one_slice(
    q: Session, clock: VirtualClock
) -> None:
    with q.transaction() as t:
        for n in range(1_200):
            t.put(f"many/{n}", n, ttl=1)
    clock.advance(1)
    assert sum(q.upkeep().pruned for _ in range(3)) == 1_200


def test_a_release_with_a_delay_comes_again_when_due_and_counts_nothing(
    q: Session, clock: VirtualClock
) -> None:
    q.push("orders", ["a", "b"])
    q.pop("orders")[0].release(delay=5)
    (other,) = q.pop("orders", batch=2)
    assert other.data == "b"
    clock.advance(5)
    (message,) = q.pop("orders", batch=2)
    assert (message.data, message.deliveries, message.failures) == ("a", 1, 0)
    assert q.release([message], delay=1).settled == 1
    assert not q.pop("orders")


def test_a_bad_delay_of_a_release_changes_nothing(q: Session) -> None:
    q.push("orders", 1)
    (message,) = q.pop("orders")
    with pytest.raises(errors.InvalidArgument):
        message.release(delay=-1)
    message.ack()


def test_a_value_does_not_come_back_with_a_later_lease(q: Session) -> None:
    """When all leases are removed, their ids are given again; tokens are not."""
    q.push("orders", 1)
    (message,) = q.pop("orders")
    put(q, "lock", lease=message)
    q.delete_queue("orders")
    assert q.value("lock") is None
    q.push("orders", 1)
    q.pop("orders")
    assert q.value("lock") is None
