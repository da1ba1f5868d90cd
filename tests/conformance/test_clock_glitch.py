"""A clock that was wrong for a moment and was set right leaves nothing behind that lasts."""

from typing import Any

import pytest

from ackflow import Session, VirtualClock

YEARS = 10 * 365 * 86_400.0


def pop_data(q: Session, **options: Any) -> list[Any]:
    return [m.data for m in q.pop("q", **{"group": "g", "batch": 100, **options})]


@pytest.mark.parametrize("ordering", ["shared", "ordered"])
def test_what_was_pushed_under_a_clock_far_ahead_and_after_it_is_handed_out(
    q: Session, clock: VirtualClock, ordering: str
) -> None:
    q.group("q", "g", ordering=ordering)
    clock.advance(YEARS)
    (early,) = q.push("q", "early")
    clock.advance(-YEARS)
    (late,) = q.push("q", "late")
    assert q.group_stats("q", "g").counts.ready == 2
    assert [m.data for m in q.peek("q", group="g", limit=5)] == ["early", "late"]
    assert [m.state for m in q.browse("q", group="g").items] == ["ready", "ready"]
    assert [q.why("q", id, group="g").state for id in (early, late)] == ["ready", "ready"]
    assert pop_data(q) == ["early", "late"]


def test_a_delay_that_was_asked_for_is_kept_behind_a_message_from_the_future(
    q: Session, clock: VirtualClock
) -> None:
    clock.advance(YEARS)
    q.push("q", "early")
    clock.advance(-YEARS)
    q.push("q", "delayed", delay=5)
    assert pop_data(q) == ["early"]
    clock.advance(5)
    assert pop_data(q) == ["delayed"]
