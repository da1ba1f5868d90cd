"""Acks of part of a lease are stored as what its claims no longer hold; the results are the same."""

from datetime import UTC, datetime, timedelta

import pytest

import ackflow
from ackflow import VirtualClock, errors


def _leased(q: ackflow.Session, n: int = 10) -> list[ackflow.Message]:
    q.push("orders", list(range(n)))
    return list(q.pop("orders", group="g", batch=n))


def test_an_ack_tells_its_time_to_the_second_while_the_lease_lives(
    q: ackflow.Session, clock: VirtualClock
) -> None:
    messages = _leased(q)
    times = []
    for message in messages[:4]:
        times.append(datetime.fromtimestamp(clock.now() / 1e6, UTC))
        message.ack()
        clock.advance(5)
    for message, at in zip(messages, times, strict=False):
        told = q.why("orders", message.id, group="g")
        assert told.state == "acked"
        assert told.at is not None
        assert abs(told.at - at) < timedelta(seconds=1)


def test_acks_in_one_second_are_told_apart_from_a_later_nack(
    q: ackflow.Session, clock: VirtualClock
) -> None:
    messages = _leased(q)
    messages[1].ack()
    messages[3].ack()
    clock.advance(2)
    messages[2].nack("no", delay=60)
    states = [q.why("orders", m.id, group="g").state for m in messages[:5]]
    assert states == ["leased", "acked", "waiting", "acked", "leased"]
    (lease,) = q.leases("orders")
    assert (lease.acked, lease.held) == (2, 7)


@pytest.mark.parametrize("verb", ["ack", "reject"])
def test_a_repeated_verb_on_an_acked_message_of_a_live_lease_is_judged_by_the_ack(
    q: ackflow.Session, verb: str
) -> None:
    messages = _leased(q)
    messages[5].ack()
    if verb == "ack":
        messages[5].ack()
        assert q.ack(messages[4:6]).noop == 1
    else:
        with pytest.raises(errors.AlreadySettled):
            messages[5].reject("late")


def test_a_lease_that_expires_after_acks_gives_back_only_the_rest(
    q: ackflow.Session, clock: VirtualClock
) -> None:
    messages = _leased(q)
    for i in (0, 7, 3):
        messages[i].ack()
    clock.advance(301)
    again = q.pop("orders", group="g", batch=20)
    assert [m.data for m in again] == [1, 2, 4, 5, 6, 8, 9]
    assert q.why("orders", messages[7].id, group="g").state == "acked"
    with pytest.raises(errors.LeaseExpired):
        messages[1].ack()
    messages[3].ack()


def test_a_seek_to_the_end_tells_acked_messages_from_those_taken_away(q: ackflow.Session) -> None:
    messages = _leased(q)
    messages[2].ack()
    q.seek("orders", "g", to="end")
    assert q.why("orders", messages[2].id, group="g").state == "acked"
    with pytest.raises(errors.LeaseLost):
        messages[3].ack()
