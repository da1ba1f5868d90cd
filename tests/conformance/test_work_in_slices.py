"""Work that comes all at once is done in slices, and nothing is left out."""

from typing import NamedTuple

import pytest

from ackflow import Session
from ackflow.broker.core import take
from ackflow.broker.core.upkeep import expiry
from ackflow.clock import VirtualClock
from ackflow.options import QUEUE_MODE

pytestmark = pytest.mark.every_store


class Sizes(NamedTuple):
    """How much goes into one transaction, small enough for a test to go beyond it."""

    leases: int = 3
    claims: int = 3
    run: int = 4
    passed: int = 8


@pytest.fixture(autouse=True)
def slices(monkeypatch: pytest.MonkeyPatch) -> Sizes:
    sizes = Sizes()
    monkeypatch.setattr(expiry, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(expiry, "LEASES_AT_ONCE", sizes.leases)
    monkeypatch.setattr(expiry, "CLAIMS_AT_ONCE", sizes.claims)
    monkeypatch.setattr(take, "DELAYED_RUN", sizes.run)
    monkeypatch.setattr(take, "PASSED_AT_ONCE", sizes.passed)
    return sizes


def drain(q: Session, batch: int = 1, group: str = QUEUE_MODE) -> list[object]:
    """All that pops hand out, until one gets nothing."""
    found: list[object] = []
    while taken := q.pop("q", batch=batch, group=group):
        found += [message.data for message in taken]
        q.ack(taken)
    return found


def test_what_is_ready_behind_many_delayed_messages_is_handed_out_by_the_next_pop(
    q: Session, clock: VirtualClock
) -> None:
    for n in range(50):
        q.push("q", n, delay=60 + n)
    q.push("q", "ready")
    assert drain(q) == ["ready"]
    clock.advance(200)
    assert drain(q) == list(range(50))


def test_each_delayed_message_comes_at_its_own_time(q: Session, clock: VirtualClock) -> None:
    delays = [30, 10, 20, 50, 40, 10, 30, 20, 60, 15]
    for n, delay in enumerate(delays):
        q.push("q", n, delay=delay)
    assert drain(q) == []
    for second in range(5, 65, 5):
        clock.advance(5)
        assert drain(q, batch=9) == [n for n, delay in enumerate(delays) if delay == second]
        counts = q.group_stats("q").counts
        assert counts.waiting == sum(delay > second for delay in delays)
        assert counts.ready == 0


def test_why_tells_the_time_of_each_of_several_delayed_messages(
    q: Session, clock: VirtualClock
) -> None:
    ids = [q.push("q", n, delay=delay)[0] for n, delay in enumerate([30, 10, 20])]
    assert drain(q) == []
    times = [q.why("q", id).until for id in ids]
    assert times[1] < times[2] < times[0]
    clock.advance(10)
    assert [q.why("q", id).state for id in ids] == ["delayed", "ready", "delayed"]


def test_a_deleted_message_among_several_delayed_ones_does_not_come(
    q: Session, clock: VirtualClock
) -> None:
    ids = [q.push("q", n, delay=10)[0] for n in range(6)]
    assert drain(q) == []
    assert q.delete_message("q", ids[2])
    clock.advance(10)
    assert drain(q) == [0, 1, 3, 4, 5]


def test_waiting_for_a_first_delivery_is_counted_from_the_end_of_each_delay(
    q: Session, clock: VirtualClock
) -> None:
    q.configure("q", max_wait_seconds=30)
    for delay in (10, 20, 30):
        q.push("q", delay, delay=delay)
    assert drain(q) == []
    clock.advance(45)
    assert drain(q) == [20, 30]
    assert [letter.data for letter in q.dead_letters("q").items] == [10]


def test_many_leases_that_are_over_come_back_by_priority_and_sequence(
    q: Session, clock: VirtualClock
) -> None:
    for priority in (5, 1):
        q.push("q", [(priority, n) for n in range(10)], priority=priority)
    for _ in range(20):
        q.pop("q", lease_seconds=10)
    clock.advance(10)
    assert drain(q) == [[priority, n] for priority in (1, 5) for n in range(10)]


def test_many_failures_that_are_due_come_back_by_priority_and_sequence(
    q: Session, clock: VirtualClock
) -> None:
    for priority in (5, 1):
        q.push("q", [(priority, n) for n in range(10)], priority=priority)
    for message in q.pop("q", batch=20):
        message.nack("no", delay=10)
    clock.advance(10)
    assert drain(q) == [[priority, n] for priority in (1, 5) for n in range(10)]


def test_a_pop_gets_as_many_as_it_asks_for_of_what_came_back(
    q: Session, clock: VirtualClock
) -> None:
    q.push("q", list(range(20)))
    for _ in range(20):
        q.pop("q", lease_seconds=10)
    clock.advance(10)
    assert [message.data for message in q.pop("q", batch=20)] == list(range(20))


def test_leases_at_their_last_delivery_do_not_hide_one_that_comes_again(
    q: Session, clock: VirtualClock
) -> None:
    q.group("q", QUEUE_MODE, max_deliver=1)
    q.push("q", list(range(10)))
    for _ in range(10):
        q.pop("q", lease_seconds=10)
    q.group("q", QUEUE_MODE, max_deliver=2)
    clock.advance(10)
    assert len(drain(q)) == 10
    q.push("q", list(range(10)))
    for _ in range(10):
        q.pop("q", lease_seconds=10)
    q.group("q", QUEUE_MODE, max_deliver=1)
    q.push("q", "last")
    clock.advance(10)
    assert drain(q) == ["last"]
    assert q.group_stats("q").counts.dead == 10


def test_a_lease_of_many_claims_does_not_end_the_slices_too_soon(
    q: Session, clock: VirtualClock
) -> None:
    q.group("q", QUEUE_MODE, max_deliver=2)
    for partition in "abcdefgh":
        q.push("q", partition, partition=partition)
    # One lease with a claim in every partition, twice.
    assert len(q.pop("q", batch=8, lease_seconds=10)) == 8
    clock.advance(10)
    assert len(q.pop("q", batch=8, lease_seconds=10)) == 8
    clock.advance(5)
    q.push("q", "last")
    assert len(q.pop("q", lease_seconds=5)) == 1
    clock.advance(5)
    assert drain(q) == ["last"]
    assert q.group_stats("q").counts.dead == 8


def test_copies_for_another_group_are_passed_and_not_counted(q: Session) -> None:
    q.group("q", "other")
    q.push("q", list(range(20)))
    for message in q.pop("q", batch=20):
        message.requeue()
    q.push("q", "last")
    taken = q.pop("q", batch=20, group="other")
    assert [message.data for message in taken] == list(range(20))
    assert taken[-1].metadata.num_pending == 1
    q.ack(taken)
    assert drain(q, group="other") == ["last"]
    (first,) = q.pop("q")
    assert (first.data, first.metadata.num_pending) == (0, 20)


def test_too_old_messages_in_more_than_one_slice_are_never_handed_out(
    q: Session, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(take, "OLD_AT_ONCE", 2)
    q.configure("q", ttl_seconds=10)
    q.group("q", "other")
    for n in range(40):
        q.push("q", n)
    clock.advance(10)
    q.push("q", "new")
    assert drain(q) == ["new"]
    assert drain(q, group="other") == ["new"]


def test_a_lane_of_which_a_slice_was_taken_is_settled_like_any_other(
    q: Session, clock: VirtualClock
) -> None:
    q.push("q", "first")
    for n in range(50):
        q.push("q", n, delay=60)
    q.push("q", "last")
    taken = q.pop("q", batch=9)
    assert [message.data for message in taken] == ["first"]
    assert q.ack(taken).settled == 1
    assert drain(q, batch=9) == ["last"]
