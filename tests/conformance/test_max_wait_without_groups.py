"""Rule 4 without a group: messages that wait too long become dead letters, for every later group too."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from ackflow import DEFAULTS, Session, VirtualClock
from ackflow.model import when


def counts(q: Session, group: str = "g") -> dict[str, int]:
    """The counts of a group, without those that are 0."""
    found = msgspec.structs.asdict(q.group_stats("q", group).counts)
    return {name: n for name, n in found.items() if n}


def pop_data(q: Session, group: str = "g") -> list[Any]:
    return [m.data for m in q.pop("q", group=group, batch=100)]


def letters(q: Session) -> list[tuple[str, str, Any]]:
    """Group, kind and data of every dead letter, the oldest first."""
    return [(d.group, d.kind, d.data) for d in reversed(q.dead_letters("q").items)]


def died_unread(q: Session, clock: VirtualClock) -> list[tuple[str, Any]]:
    """Let two messages wait too long and one not yet, though no group ever asked."""
    q.configure("q", max_wait_seconds=10)
    q.push("q", [1, 2])
    clock.advance(6)
    q.push("q", 3, partition="p")
    clock.advance(5)
    assert q.upkeep().max_wait == 2
    assert q.upkeep().max_wait == 0
    return [("max_wait", 1), ("max_wait", 2)]


def test_what_waits_too_long_before_any_group_came_is_a_dead_letter(
    q: Session, clock: VirtualClock
) -> None:
    pushed = when(clock.now())
    dead = died_unread(q, clock)
    assert letters(q) == [("__QUEUE_MODE__", *one) for one in dead]
    assert {d.died_at for d in q.dead_letters("q").items} == {pushed + timedelta(seconds=10)}
    assert counts(q, "__QUEUE_MODE__") == {"dead": 2, "ready": 1}


@pytest.mark.parametrize("dialect", ["native", "queen", "pushpop", "jetstream"])
@pytest.mark.parametrize("group", ["g", "__QUEUE_MODE__"])
def test_the_first_group_that_comes_finds_them_dead_and_lives_by_its_own_rules(
    q: Session, clock: VirtualClock, group: str, dialect: Any
) -> None:
    dead = died_unread(q, clock)
    taken = q.pop("q", group=group, batch=9, dialect=dialect)
    assert [m.data for m in taken] == [3]
    assert letters(q) == [(group, *one) for one in dead]
    found = q.group_stats("q", group)
    assert (found.dialect, found.settings) == (dialect, DEFAULTS[dialect])
    assert counts(q, group) == {"dead": 2, "leased": 1}
    assert [one.name for one in q.queue_stats("q").groups] == [group]


def test_a_group_that_is_configured_first_has_its_options(q: Session, clock: VirtualClock) -> None:
    dead = died_unread(q, clock)
    q.group("q", "__QUEUE_MODE__", ordering="ordered", lease_seconds=7)
    found = q.group_stats("q", "__QUEUE_MODE__")
    assert (found.dialect, found.settings.ordering) == ("native", "ordered")
    assert found.settings.lease_seconds == 7
    assert letters(q) == [("__QUEUE_MODE__", *one) for one in dead]


def test_a_first_group_that_begins_now_skips_what_did_not_die(
    q: Session, clock: VirtualClock
) -> None:
    dead = died_unread(q, clock)
    q.group("q", "g", start="new")
    q.push("q", 4)
    assert letters(q) == [("g", *one) for one in dead]
    assert pop_data(q) == [4]
    assert counts(q) == {"dead": 2, "skipped": 1, "leased": 1}
    clock.advance(100)
    q.upkeep()
    assert letters(q) == [("g", *one) for one in dead]


def test_groups_that_come_later_find_them_dead_as_well(q: Session, clock: VirtualClock) -> None:
    dead = died_unread(q, clock)
    assert pop_data(q) == [3]
    assert pop_data(q, group="h") == [3]
    assert sorted(letters(q)) == sorted((group, *one) for group in "gh" for one in dead)
    assert counts(q, "h") == {"dead": 2, "leased": 1}


def test_a_queue_in_which_nothing_waits_too_long_has_no_group(
    q: Session, clock: VirtualClock
) -> None:
    q.configure("q", max_wait_seconds=10)
    q.push("q", 1)
    clock.advance(9)
    assert q.upkeep().max_wait == 0
    assert q.queue_stats("q").groups == []
