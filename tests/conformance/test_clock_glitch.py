"""A clock that was wrong for a moment and was corrected leaves no lasting effect."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

import ackflow
from ackflow import Session, VirtualClock
from ackflow.broker.broker import Broker

pytestmark = pytest.mark.every_store

YEARS = 10 * 365 * 86_400.0


def pop_data(q: Session, **options: Any) -> list[Any]:
    return [m.data for m in q.pop("q", **{"group": "g", "batch": 100, **options})]


@pytest.mark.parametrize("ordering", ["shared", "ordered"])
def test_what_was_pushed_under_a_clock_far_ahead_and_after_it_is_handed_out(
    q: Session, clock: VirtualClock, ordering: str
) -> None:
    q.group("q", "g", ordering=ordering)
    clock.step(YEARS)
    (early,) = q.push("q", "early")
    clock.step(-YEARS)
    (late,) = q.push("q", "late")
    assert q.group_stats("q", "g").counts.ready == 2
    assert [m.data for m in q.peek("q", group="g", limit=5)] == ["early", "late"]
    assert [m.state for m in q.browse("q", group="g").items] == ["ready", "ready"]
    assert [q.why("q", id, group="g").state for id in (early, late)] == ["ready", "ready"]
    assert pop_data(q) == ["early", "late"]


def test_a_delay_that_was_asked_for_is_kept_behind_a_message_from_the_future(
    q: Session, clock: VirtualClock
) -> None:
    clock.step(YEARS)
    q.push("q", "early")
    clock.step(-YEARS)
    q.push("q", "delayed", delay=5)
    assert pop_data(q) == ["early"]
    clock.advance(5)
    assert pop_data(q) == ["delayed"]


# a step while something waits or is held


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_a_pop_waits_as_long_as_it_was_asked_to_whatever_the_clock_is_set_to(
    q: Session, clock: VirtualClock, step: float
) -> None:
    broker = q.broker
    if not isinstance(broker, Broker):
        pytest.skip("another broker waits, on a clock of its own")
    done: list[Any] = []
    waiting = threading.Thread(target=lambda: done.append(q.pop("q", wait=5)), daemon=True)
    waiting.start()
    while not broker.waiters.by_key:
        time.sleep(0.001)
    clock.step(step)
    waiting.join(0.1)
    assert not done, "no time has passed"
    clock.advance(5)
    waiting.join(10)
    assert [list(batch) for batch in done] == [[]]


@pytest.mark.parametrize("store", ["file", "postgres"])
def test_the_turn_of_a_closed_session_passes_at_once(
    tmp_path: Path, clock: VirtualClock, store: str, request: pytest.FixtureRequest
) -> None:
    place = request.getfixturevalue("postgres_url") if store == "postgres" else tmp_path / "t.db"
    with ackflow.connect(place, clock=clock, upkeep=False) as second:
        first = ackflow.connect(place, clock=clock, upkeep=False)
        for message in ("a", "b"):
            second.push("q", message)
            second.pop("q", lease_seconds=1)
            clock.advance(1)
            assert upkeep_works(first)
        second.push("q", "c")
        second.pop("q", batch=3, lease_seconds=1)
        clock.advance(1)
        assert not upkeep_works(second), "another has the turn"
        first.close()
        assert upkeep_works(second)


@pytest.mark.parametrize("store", ["file", "postgres"])
def test_a_turn_taken_under_a_clock_far_ahead_is_over(
    tmp_path: Path, clock: VirtualClock, store: str, request: pytest.FixtureRequest
) -> None:
    place = request.getfixturevalue("postgres_url") if store == "postgres" else tmp_path / "t.db"
    with (
        ackflow.connect(place, clock=clock, upkeep=False) as first,
        ackflow.connect(place, clock=clock, upkeep=False) as second,
    ):
        clock.step(YEARS)
        first.push("q", "a")
        first.pop("q", lease_seconds=1)
        clock.advance(1)
        assert upkeep_works(first)
        clock.step(-YEARS)
        second.pop("q", lease_seconds=1)
        clock.advance(1)
        assert upkeep_works(second)


def upkeep_works(q: Session) -> bool:
    """Whether a round of a session's upkeep does something."""
    assert isinstance(q.broker, Broker)
    return q.broker._round()
