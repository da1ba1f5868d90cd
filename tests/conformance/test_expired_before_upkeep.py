"""A lease past its end counts as ended for every verb, whether or not upkeep has run."""

from collections.abc import Callable
from typing import Any

import pytest

from ackflow import Session, VirtualClock
from ackflow.errors import LeaseExpired

noticed = pytest.mark.parametrize("noticed", [True, False], ids=["noticed", "unnoticed"])


def let_expire(q: Session, clock: VirtualClock, noticed: bool, **rules: Any) -> str:
    """A message whose only lease is over; answers with its id."""
    q.group("orders", "g", **rules)
    (id,) = q.push("orders", 1)
    q.pop("orders", group="g", lease_seconds=5)
    clock.advance(10)
    if noticed:
        q.upkeep()
    return id


def counts(q: Session, group: str = "g") -> dict[str, int]:
    found = q.group_stats("orders", group).counts
    names = ("ready", "leased", "waiting", "dead", "done", "skipped", "purged")
    return {name: getattr(found, name) for name in names if getattr(found, name)}


VERBS: dict[str, Callable[[Session, str], object]] = {
    "purge": lambda q, _: q.purge("orders"),
    "delete": lambda q, id: q.delete_message("orders", id),
    "seek": lambda q, _: q.seek("orders", "g", to="end"),
}


@noticed
@pytest.mark.parametrize("verb", list(VERBS.values()), ids=list(VERBS))
def test_what_reached_its_limit_is_dead_and_not_purged_or_skipped(
    q: Session, clock: VirtualClock, noticed: bool, verb: Callable[[Session, str], object]
) -> None:
    id = let_expire(q, clock, noticed, max_deliver=1)
    verb(q, id)
    assert counts(q) == {"dead": 1}


@noticed
@pytest.mark.parametrize("rules", [{"max_deliver": 1}, {"backoff": [60]}])
def test_rules_that_came_later_are_not_for_a_lease_that_was_over(
    q: Session, clock: VirtualClock, noticed: bool, rules: dict[str, Any]
) -> None:
    let_expire(q, clock, noticed)
    q.group("orders", "g", **rules)
    assert counts(q) == {"ready": 1}


@noticed
def test_rules_of_the_queue_that_came_later_are_not_either(
    q: Session, clock: VirtualClock, noticed: bool
) -> None:
    let_expire(q, clock, noticed)
    q.configure("orders", backoff=[60])
    assert counts(q) == {"ready": 1}


@noticed
def test_the_dead_letters_are_those_there_are(
    q: Session, clock: VirtualClock, noticed: bool
) -> None:
    let_expire(q, clock, noticed, max_deliver=1)
    assert [letter.kind for letter in q.dead_letters("orders").items] == ["max_deliver"]
    assert [entry.count for entry in q.dead_summary("orders")] == [1]


@noticed
@pytest.mark.parametrize(
    ("max_deliver", "expected", "state"),
    [(1, {"done": 1, "dead": 1}, "dead"), (None, {"done": 2}, "acked")],
    ids=["its message is dead", "its message was given back"],
)
def test_an_ack_of_policy_all_does_not_settle_an_expired_lease(
    q: Session,
    clock: VirtualClock,
    noticed: bool,
    max_deliver: int | None,
    expected: dict[str, int],
    state: str,
) -> None:
    q.group("orders", "g", policy="all", max_deliver=max_deliver)
    q.push("orders", [1, 2])
    (slow,) = q.pop("orders", group="g", lease_seconds=10)
    (quick,) = q.pop("orders", group="g")
    clock.advance(20)
    if noticed:
        q.upkeep()
    quick.ack()
    with pytest.raises(LeaseExpired):
        slow.ack()
    assert counts(q) == expected
    assert q.why("orders", slow.id, group="g").state == state


def test_however_many_leases_are_over_the_first_look_tells_it(
    q: Session, clock: VirtualClock
) -> None:
    q.push("orders", list(range(450)))
    for _ in range(450):
        q.pop("orders", group="g", lease_seconds=5)
    clock.advance(10)
    assert counts(q) == {"ready": 450}
    assert q.leases("orders") == []
