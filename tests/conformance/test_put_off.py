"""Releases with a delay, and requeues that put a message off without counting the delivery."""

import pytest

from ackflow import Session, Verdict, VirtualClock
from ackflow.errors import InvalidArgument


def test_a_release_with_a_delay_is_delivered_after_it_and_not_counted(
    q: Session, clock: VirtualClock
) -> None:
    q.push("orders", 1)
    (message,) = q.pop("orders")
    q.settle([(message, Verdict("release", delay=5.0))])
    clock.advance(4.9)
    assert not q.pop("orders")
    clock.advance(0.2)
    (again,) = q.pop("orders")
    assert (again.id, again.deliveries, again.failures) == (message.id, 1, 0)


def test_an_uncounted_requeue_keeps_the_count_and_sets_headers(
    q: Session, clock: VirtualClock
) -> None:
    q.push("orders", 1, headers={"a": "1", "b": "2"})
    (message,) = q.pop("orders")
    put_off = Verdict("requeue", delay=10.0, headers=(("b", "3"), ("c", "4")), uncounted=True)
    q.settle([(message, put_off)])
    assert not q.pop("orders")
    clock.advance(10)
    (copy,) = q.pop("orders")
    assert copy.headers == {"a": "1", "b": "3", "c": "4"}
    assert (copy.deliveries, copy.redelivered, copy.data) == (1, True, 1)


def test_an_uncounted_requeue_does_not_use_up_the_delivery_limit(
    q: Session, clock: VirtualClock
) -> None:
    q.group("orders", "g", max_deliver=2)
    q.push("orders", 1)
    q.pop("orders", group="g")[0].requeue()
    (last,) = q.pop("orders", group="g")
    assert last.deliveries == 2
    assert not q.settle([(last, Verdict("requeue", uncounted=True))]).dead
    (last,) = q.pop("orders", group="g")
    assert q.settle([(last, "requeue")]).dead == 1


@pytest.mark.parametrize("verdict", [Verdict("ack", uncounted=True),
                                     Verdict("nack", headers=(("a", "1"),)),
                                     Verdict("requeue", headers=(("a", 1),))])  # type: ignore[arg-type]  # fmt: skip
def test_headers_and_uncounted_of_other_verbs_are_refused(q: Session, verdict: Verdict) -> None:
    q.push("orders", 1)
    (message,) = q.pop("orders")
    with pytest.raises(InvalidArgument):
        q.settle([(message, verdict)])
    message.ack()
