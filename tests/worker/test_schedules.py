"""Schedules: one tick each, whoever runs; missed ticks; changes of the clock."""

import itertools
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import ackflow
from ackflow import Session, VirtualClock
from ackflow.errors import InvalidArgument, NotFound
from ackflow.worker import Schedules, Tick, cron, every
from ackflow.worker.coordination.schedules import Missed, spec_of, upcoming

BERLIN = ZoneInfo("Europe/Berlin")
YEARS = 10 * 365 * 86_400.0
START = 1_700_000_000.0  # 2023-11-14 22:13:20 UTC, where the virtual clock begins


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15m", 900), ("1h30m", 5400), ("30s", 30), (2, 2), ("1d", 86_400), ("500ms", 0.5)],
)
def test_an_interval_is_seconds_or_text(text: Any, seconds: float) -> None:
    assert every(text).seconds == seconds


@pytest.mark.parametrize("bad", ["", "15", "m", "15 m", "1x", 0, -1, 0.01, None, True, "0s"])
def test_what_is_no_interval_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidArgument):
        every(bad)


@pytest.mark.parametrize(
    "bad", ["", "* * * *", "60 * * * *", "* * * * * * *", "a b c d e", "0 0 31 2 *"]
)
def test_what_is_no_cron_expression_is_refused(bad: str) -> None:
    with pytest.raises(InvalidArgument):
        cron(bad)
    with pytest.raises(InvalidArgument, match="unknown time zone"):
        cron("* * * * *", tz="Mars/Base")


def test_intervals_tick_at_whole_multiples() -> None:
    ticks = upcoming(every("15m"), datetime(2026, 1, 1, 10, 7, tzinfo=UTC), 2)
    assert ticks == [datetime(2026, 1, 1, 10, n, tzinfo=UTC) for n in (15, 30)]
    exact = datetime(2026, 1, 1, 10, 15, tzinfo=UTC)
    assert upcoming(every("15m"), exact, 1) == [exact + timedelta(minutes=15)]


# What Debian's cron does, in Berlin: on 29 March 2026 there is no time from 2 to 3 o'clock, and on
# 25 October 2026 there is twice the time from 2 to 3.
CHANGES = [
    ("0 6 * * *", (2026, 3, 28, 12), ["2026-03-29T06:00:00+02:00", "2026-03-30T06:00:00+02:00"]),
    ("30 2 * * *", (2026, 3, 28, 12), ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]),
    ("30 2 * * *", (2026, 10, 24, 12), ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]),
    (
        "0 * * * *", (2026, 10, 25, 1),
        ["2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25T03:00:00+01:00"],
    ),
    ("0 * * * *", (2026, 3, 29, 1), ["2026-03-29T03:00:00+02:00", "2026-03-29T04:00:00+02:00"]),
    ("0 0 29 2 *", (2026, 1, 1), ["2028-02-29T00:00:00+01:00"]),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "start", "expected"), CHANGES)
def test_cron_follows_the_clock_of_its_zone(
    expression: str, start: tuple[int, ...], expected: list[str]
) -> None:
    at = datetime(*start, tzinfo=BERLIN)  # type: ignore[misc, arg-type]
    found = upcoming(cron(expression, tz="Europe/Berlin"), at, len(expected))
    assert [tick.isoformat() for tick in found] == expected


def opened(q: Session, missed: Missed = "once", spec: Any = None) -> Schedules:
    schedules = Schedules(q)
    schedules.add("tick", spec or every("1h"), queue="ticks", data={"n": 1}, missed=missed)
    return schedules


def ticks(q: Session) -> list[str]:
    batch = q.pop("ticks", batch=1_000)
    q.ack(batch)
    return [message.headers["ackflow-tick"][11:16] for message in batch]


def test_a_schedule_begins_with_the_next_tick_and_ticks_once_each(
    q: Session, clock: VirtualClock
) -> None:
    workers = [opened(q) for _ in range(3)]
    assert [one.run_due() for one in workers] == [0, 0, 0]
    due = workers[0].next_due()
    assert due == datetime(2023, 11, 14, 23, tzinfo=UTC)
    clock.advance((due - datetime.fromtimestamp(START, UTC)).total_seconds())
    assert [one.run_due() for one in workers] == [1, 0, 0]
    clock.advance(3600)
    assert [one.run_due() for one in reversed(workers)] == [1, 0, 0]
    assert ticks(q) == ["23:00", "00:00"]


def test_a_worker_that_is_overtaken_between_reading_and_committing_pushes_nothing(
    q: Session, clock: VirtualClock
) -> None:
    faster, slower = opened(q), Schedules(q)
    done: list[int] = []

    def send(t: Any, tick: Tick) -> None:
        done.append(faster.run_due())
        t.push("ticks", "slower", headers={"ackflow-tick": tick.at.isoformat()})

    slower.add("tick", every("1h"), send=send)
    slower.run_due()
    clock.advance(3600)
    assert slower.run_due() == 0
    assert done == [1]
    assert [message.data for message in q.pop("ticks", batch=9)] == [{"n": 1}]


@pytest.mark.parametrize(
    ("missed", "expected"),
    [("skip", []), ("once", ["03:00"]), ("all", ["23:00", "00:00", "01:00", "02:00", "03:00"])],
)
def test_missed_ticks_follow_the_policy(
    q: Session, clock: VirtualClock, missed: Missed, expected: list[str]
) -> None:
    opened(q, missed).run_due()
    clock.advance(5 * 3600)  # 03:13:20
    assert opened(q, missed).run_due() == len(expected)
    assert ticks(q) == expected
    clock.advance(3600)
    opened(q, missed).run_due()
    assert ticks(q) == ([] if missed == "skip" else ["04:00"])


def test_a_tick_that_is_a_little_late_is_not_missed(q: Session, clock: VirtualClock) -> None:
    schedules = opened(q, "skip")
    schedules.run_due()
    clock.advance(2800 + 59)
    assert schedules.run_due() == 1
    assert ticks(q) == ["23:00"]


def test_one_push_for_several_missed_ticks_says_how_many(q: Session, clock: VirtualClock) -> None:
    opened(q).run_due()
    clock.advance(5 * 3600)
    opened(q).run_due()
    (message,) = q.pop("ticks", batch=9)
    assert message.headers["ackflow-missed"] == "4"


def test_very_many_missed_ticks_are_pushed_in_slices(q: Session, clock: VirtualClock) -> None:
    opened(q, "all", every("1s")).run_due()
    clock.advance(250)
    assert opened(q, "all", every("1s")).run_due() == 250
    assert len(ticks(q)) == 250


def test_a_clock_that_goes_back_repeats_no_tick(q: Session, clock: VirtualClock) -> None:
    schedules = opened(q)
    schedules.run_due()
    clock.advance(3600)
    assert schedules.run_due() == 1
    clock.step(-1800)
    assert schedules.run_due() == 0
    clock.advance(1800)
    assert schedules.run_due() == 0
    clock.advance(3600)
    assert schedules.run_due() == 1


@pytest.mark.parametrize("missed", ["once", "skip"])
def test_a_schedule_goes_on_when_a_clock_that_was_years_ahead_is_set_right(
    q: Session, clock: VirtualClock, missed: Missed
) -> None:
    schedules = opened(q, missed, every("1s"))  # 315 million ticks are passed over at once
    schedules.run_due()
    clock.step(YEARS)
    schedules.run_due()
    clock.step(-YEARS)
    ticks(q)
    assert schedules.run_due() == 0
    clock.advance(1)
    assert schedules.run_due() == 1
    assert ticks(q) == ["22:13"]


def test_a_changed_specification_begins_anew(q: Session, clock: VirtualClock) -> None:
    opened(q, spec=every("1h")).run_due()
    clock.advance(7200)
    assert opened(q, spec=every("10m")).run_due() == 0
    clock.advance(600)
    assert opened(q, spec=every("10m")).run_due() == 1


def test_a_function_adds_to_the_transaction_of_the_tick(q: Session, clock: VirtualClock) -> None:
    seen: list[Tick] = []
    schedules = Schedules(q)

    def send(t: Any, tick: Tick) -> None:
        seen.append(tick)
        t.push("a", 1).put("last", tick.at.isoformat())

    schedules.add("mine", cron("0 6 * * *", tz="Europe/Berlin"), send=send)
    schedules.run_due()
    clock.advance(86_400)
    assert schedules.run_due() == 1
    assert seen[0].at == datetime(2023, 11, 15, 6, tzinfo=BERLIN)
    value = q.value("last")
    assert value is not None
    assert value.data == "2023-11-15T06:00:00+01:00"


def test_a_tick_that_cannot_be_pushed_stops_no_other_and_is_pushed_later(
    q: Session, clock: VirtualClock
) -> None:
    q.configure("full", max_size=1)
    q.push("full", 0)
    schedules = Schedules(q)
    schedules.add("bad", every("1h"), queue="full")
    schedules.add("good", every("1h"), queue="ticks")
    schedules.run_due()
    clock.advance(3600)
    with pytest.raises(ackflow.AckflowError, match="refused"):
        schedules.run_due()
    assert ticks(q) == ["23:00"]
    q.pop("full")[0].ack()
    assert schedules.run_due() == 1


def test_a_bad_schedule_is_refused(q: Session) -> None:
    schedules = opened(q)
    with pytest.raises(InvalidArgument, match="already"):
        schedules.add("tick", every(1), queue="ticks")
    with pytest.raises(InvalidArgument, match="needs a queue"):
        schedules.add("other", every(1))
    with pytest.raises(InvalidArgument):
        schedules.add("other", every(1), queue="")
    with pytest.raises(InvalidArgument):
        schedules.add("other", every(1), queue="q", missed="sometimes")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        schedules.add("", every(1), queue="q")


WORKER = """
import sys, time, ackflow
from ackflow.worker import Schedules, every
with ackflow.connect(sys.argv[1], upkeep=False) as q:
    schedules = Schedules(q)
    schedules.add("tick", every(0.2), queue="ticks", missed="all")
    schedules.start()
    print("up", flush=True)
    time.sleep(60)
"""


def test_several_processes_that_are_killed_tick_exactly_once_each(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    with ackflow.connect(path) as q:
        workers = [
            subprocess.Popen([sys.executable, "-c", WORKER, path], stdout=subprocess.PIPE)
            for _ in range(2)
        ]
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == b"up\n"
        time.sleep(1.0)
        for worker in workers:
            worker.kill()
            worker.wait()
            assert worker.stdout is not None
            worker.stdout.close()
        last = Schedules(q)
        last.add("tick", every(0.2), queue="ticks", missed="all")
        last.run_due()
        found = [
            datetime.fromisoformat(message.headers["ackflow-tick"])
            for message in q.pop("ticks", batch=1_000)
        ]
    steps = {b - a for a, b in itertools.pairwise(found)}
    assert len(found) >= 4
    assert steps == {timedelta(seconds=0.2)}


def test_a_paused_schedule_pushes_nothing_whoever_runs_it(q: Session, clock: VirtualClock) -> None:
    schedules = opened(q, missed="all")
    schedules.run_due()
    Schedules(q).pause("tick")
    clock.advance(3_600)
    assert schedules.run_due() == 0
    assert [(one.paused, one.next) for one in schedules.known()] == [(True, None)]
    Schedules(q).resume("tick")
    assert schedules.run_due() == 0, "what was due meanwhile is left out"
    (known,) = schedules.known()
    assert known.next == schedules.next_due()
    with pytest.raises(NotFound):
        schedules.pause("unknown")


def test_a_schedule_stays_paused_when_its_specification_changes(q: Session) -> None:
    opened(q).run_due()
    Schedules(q).pause("tick")
    opened(q, spec=every("7m")).run_due()
    assert [(one.spec, one.paused) for one in Schedules(q).known()] == [("every 420s", True)]


@pytest.mark.parametrize(
    "spec", [every("15m"), every(2_000_000), every(0.5), cron("0 6 * * 1-5", "Europe/Berlin")]
)
def test_a_specification_is_read_from_its_text(spec: Any) -> None:
    assert spec_of(spec.text) == spec
