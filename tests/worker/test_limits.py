"""Limits per key across workers: how many run at once, how many start per time."""

import itertools
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import ackflow
from ackflow import Message, Session, VirtualClock
from ackflow.errors import InvalidArgument
from ackflow.worker import Deferred, Limits, Permit, Rate
from ackflow.worker.coordination.limits import _short, parse_rate


@pytest.fixture
def limits(q: Session) -> Limits:
    return Limits(q)


def popped(q: Session, n: int, lease_seconds: float = 60) -> list[Message]:
    q.push("work", list(range(n)))
    found = [q.pop("work", lease_seconds=lease_seconds)[0] for _ in range(n)]
    assert len(found) == n
    return found


@pytest.mark.parametrize(
    ("text", "count", "seconds"),
    [("10/s", 10, 1), ("100/m", 100, 60), ("5/h", 5, 3600), ("20/10s", 20, 10), ("1 / 2d", 1, 172_800),
     ("3/min", 3, 60)],
)  # fmt: skip
def test_a_rate_is_a_number_per_time(text: str, count: int, seconds: float) -> None:
    assert parse_rate(text) == Rate(count, seconds)


@pytest.mark.parametrize(
    "bad", ["", "10", "10/", "/s", "0/s", "1001/s", "10/0s", "-1/s", "10/y", 10]
)
def test_what_is_no_rate_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidArgument, match="a rate must be"):
        parse_rate(bad)


def test_so_many_messages_of_a_key_run_at_once_and_another_key_does_not_matter(
    q: Session, limits: Limits
) -> None:
    messages = popped(q, 4)
    got = [limits.acquire(m, "eu", concurrency=2) for m in messages[:3]]
    assert [type(one) for one in got] == [Permit, Permit, Deferred]
    assert isinstance(limits.acquire(messages[3], "eu/west", concurrency=1), Permit)
    assert isinstance(limits.acquire(messages[3], "us", concurrency=2), Permit)


def test_a_slot_is_given_back_with_the_ack(q: Session, limits: Limits) -> None:
    one, two = popped(q, 2)
    permit = limits.acquire(one, "k", concurrency=1)
    assert isinstance(permit, Permit)
    assert isinstance(limits.acquire(two, "k", concurrency=1), Deferred)
    with q.transaction() as t:
        t.ack(one)
        permit.release(t, limits.now())
    assert isinstance(limits.acquire(two, "k", concurrency=1), Permit)


def test_a_slot_ends_with_the_lease_of_a_worker_that_died(
    q: Session, limits: Limits, clock: VirtualClock
) -> None:
    (dead,) = popped(q, 1, lease_seconds=10)
    assert isinstance(limits.acquire(dead, "k", concurrency=1), Permit)
    q.push("other", 1)
    (other,) = q.pop("other")
    assert isinstance(limits.acquire(other, "k", concurrency=1), Deferred)
    clock.advance(10)
    assert isinstance(limits.acquire(other, "k", concurrency=1), Permit)


def test_messages_over_the_limit_come_back_one_after_another(q: Session, limits: Limits) -> None:
    messages = popped(q, 30)
    limits.acquire(messages[0], "k", concurrency=1)
    delays = [limits.acquire(m, "k", concurrency=1) for m in messages[1:]]
    times = [one.delay for one in delays if isinstance(one, Deferred)]
    assert len(times) == 29
    assert times == sorted(times)
    assert all(b - a == pytest.approx(0.05) for a, b in itertools.pairwise(times))


def test_while_that_is_not_known_the_pace_follows_how_long_the_oldest_runs(
    q: Session, limits: Limits, clock: VirtualClock
) -> None:
    one, two = popped(q, 2)
    limits.acquire(one, "k", concurrency=1)
    for passed, delay in ((0.5, 0.5), (4.5, 1.0)):
        clock.advance(passed)
        answer = limits.acquire(two, "k", concurrency=1)
        assert isinstance(answer, Deferred)
        assert answer.delay == pytest.approx(delay)


def test_many_slots_are_all_found(q: Session, limits: Limits) -> None:
    messages = popped(q, 21)
    got = [limits.acquire(message, "k", concurrency=20) for message in messages]
    assert [type(one) for one in got] == [Permit] * 20 + [Deferred]


def test_a_long_transaction_id_has_a_start_of_its_own(q: Session, limits: Limits) -> None:
    q.push("work", [ackflow.Item(data=n, transaction_id=f"{'x' * 250}{n}") for n in range(3)])
    got = [limits.acquire(m, "k" * 160, rate="1/10s") for m in q.pop("work", batch=3)]
    assert [round(one.delay) for one in got if isinstance(one, Deferred)] == [10, 20]


@pytest.mark.parametrize("known", [1, 2])
def test_starts_that_an_earlier_version_stored_still_count(
    q: Session, limits: Limits, clock: VirtualClock, known: int
) -> None:
    """They had no time of writing: a list of times, and for a message that waits one time."""
    one, two = popped(q, 2)
    now = limits.now()
    with q.transaction() as t:
        t.put("limits/starts/k", [now + n * 1_000_000 for n in range(known)])
        t.put(f"limits/wait/k/{_short(two.transaction_id)}", now + 5_000_000)
    for message, delay in ((one, 10 if known == 1 else 11), (two, 5)):
        got = limits.acquire(message, "k", rate="1/10s")
        assert isinstance(got, Deferred)
        assert got.delay == pytest.approx(delay)
    clock.advance(5)
    assert isinstance(limits.acquire(two, "k", rate="1/10s"), Permit)


def test_the_pace_follows_how_long_messages_run(
    q: Session, limits: Limits, clock: VirtualClock
) -> None:
    one, two, three = popped(q, 3)
    permit = limits.acquire(one, "k", concurrency=1)
    assert isinstance(permit, Permit)
    clock.advance(0.8)
    with q.transaction() as t:
        t.ack(one)
        permit.release(t, limits.now())
    limits.acquire(two, "k", concurrency=1)
    wait = limits.acquire(three, "k", concurrency=1)
    assert isinstance(wait, Deferred)
    assert wait.delay == pytest.approx(0.8)


def test_a_waiting_message_is_never_sent_away_for_long(q: Session, limits: Limits) -> None:
    messages = popped(q, 200)
    limits.acquire(messages[0], "k", concurrency=1)
    for message in messages[1:]:
        answer = limits.acquire(message, "k", concurrency=1)
        assert isinstance(answer, Deferred)
        assert answer.delay <= 30


def drain(q: Session, limits: Limits, clock: VirtualClock, rate: str) -> tuple[list[float], int]:
    """Run a worker by hand until nothing is left; the times of starts, and the number of pops."""
    started: list[float] = []
    pops = 0
    while counts := q.group_stats("work").counts:
        if not counts.ready + counts.waiting + counts.leased:
            break
        batch = q.pop("work")
        for message in batch:
            pops += 1
            answer = limits.acquire(message, "k", rate=rate)
            if isinstance(answer, Deferred):
                message.release(delay=answer.delay)
            else:
                started.append(clock.now() / 1e6)
                message.ack()
        if not batch:
            clock.advance(0.01)
    return started, pops


@pytest.mark.parametrize(("rate", "n", "per", "seconds"), [("10/s", 45, 10, 1), ("1/2s", 4, 1, 2)])
def test_never_more_start_in_any_window_and_no_message_is_tried_again_and_again(
    q: Session, limits: Limits, clock: VirtualClock, rate: str, n: int, per: int, seconds: float
) -> None:
    q.group("work", "__QUEUE_MODE__", max_deliver=1)
    q.push("work", list(range(n)))
    started, pops = drain(q, limits, clock, rate)
    assert len(started) == n
    late = Rate(per, seconds).late_seconds
    for first in started:
        inside = [s for s in started if first <= s < first + seconds - late]
        assert len(inside) <= per
    assert started[-1] - started[0] <= seconds * (n // per + 0.5)
    assert pops <= 2 * n
    assert q.group_stats("work").counts.dead == 0


def test_reserved_starts_that_no_worker_used_in_time_are_no_burst(
    q: Session, limits: Limits, clock: VirtualClock
) -> None:
    q.push("work", list(range(30)))
    for message in q.pop("work", batch=30):
        answer = limits.acquire(message, "k", rate="5/s")
        if isinstance(answer, Deferred):
            message.release(delay=answer.delay)
        else:
            message.ack()
    clock.advance(60)  # every worker is down
    started, pops = drain(q, limits, clock, "5/s")
    assert len(started) == 25
    windows = Counter(int((s - started[0]) / 1.0) for s in started)
    assert max(windows.values()) <= 6
    assert pops <= 60


def test_a_start_that_a_killed_worker_took_is_not_given_back(
    q: Session, limits: Limits, clock: VirtualClock
) -> None:
    (dead,) = popped(q, 1, lease_seconds=1)
    assert isinstance(limits.acquire(dead, "k", rate="1/10s"), Permit)
    clock.advance(1)
    (again,) = q.pop("work")
    answer = limits.acquire(again, "k", rate="1/10s")
    assert isinstance(answer, Deferred)
    assert answer.delay == pytest.approx(9)


def test_a_rate_goes_on_when_a_clock_that_was_years_ahead_is_set_right(
    q: Session, limits: Limits, clock: VirtualClock
) -> None:
    messages, years = popped(q, 4, lease_seconds=600), 10 * 365 * 86_400.0
    clock.step(years)
    first, second = (limits.acquire(one, "k", rate="1/m") for one in messages[:2])
    clock.step(-years)
    assert isinstance(first, Permit)
    assert isinstance(second, Deferred)
    started: list[int] = []
    for minute in range(5):
        for number in (1, 2):
            if number in started:
                continue
            if isinstance(limits.acquire(messages[number], "k", rate="1/m"), Permit):
                started.append(number)
        assert len(started) <= minute
        clock.advance(60)
    assert sorted(started) == [1, 2]


def test_what_limits_leave_behind_ends(q: Session, limits: Limits, clock: VirtualClock) -> None:
    for message in popped(q, 5):
        limits.acquire(message, "k", rate="1/s", concurrency=2)
    clock.advance(7200)
    q.upkeep()
    assert q.values("limits/") == []


def test_bad_limits_are_refused(q: Session, limits: Limits) -> None:
    (message,) = popped(q, 1)
    for options in ({}, {"concurrency": 0}, {"rate": "often"}):
        with pytest.raises(InvalidArgument):
            limits.acquire(message, "k", **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        limits.acquire(message, "ä" * 100, concurrency=1)
    assert q.values("limits/") == []


WORKER = """
import os, sys, time, ackflow
from ackflow.worker import Deferred, Limits
with ackflow.connect(sys.argv[1], upkeep=False) as q:
    limits = Limits(q)
    until = time.monotonic() + 60
    while time.monotonic() < until and q.group_stats("work").counts.done < 40:
        for message in q.pop("work", wait=0.05, lease_seconds=30):
            answer = limits.acquire(message, "k", concurrency=2)
            if isinstance(answer, Deferred):
                message.release(delay=answer.delay)
                continue
            here = os.open(f"{sys.argv[2]}/{message.data}", os.O_CREAT | os.O_EXCL)
            os.close(here)
            assert len(os.listdir(sys.argv[2])) <= 2
            time.sleep(0.005)
            os.unlink(f"{sys.argv[2]}/{message.data}")
            with q.transaction() as t:
                t.ack(message)
                answer.release(t, limits.now())
"""


@pytest.mark.outer
def test_processes_together_keep_the_limit(tmp_path: Path) -> None:
    path, inside = str(tmp_path / "a.db"), tmp_path / "inside"
    inside.mkdir()
    with ackflow.connect(path) as q:
        q.push("work", list(range(40)))
        q.group("work", "__QUEUE_MODE__")
        workers = [
            subprocess.Popen([sys.executable, "-c", WORKER, path, str(inside)]) for _ in range(3)
        ]
        assert [worker.wait(100) for worker in workers] == [0, 0, 0]
        assert q.group_stats("work").counts.done == 40


KILLED = """
import sys, time, ackflow
from ackflow.worker import Limits
q = ackflow.connect(sys.argv[1], upkeep=False)
(message,) = q.pop("work", lease_seconds=3)
Limits(q).acquire(message, "k", concurrency=1)
print("runs", flush=True)
time.sleep(60)
"""


def test_the_slot_of_a_killed_process_is_free_when_its_lease_is_over(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    with ackflow.connect(path) as q:
        q.push("work", ["killed", "other"])
        process = subprocess.Popen([sys.executable, "-c", KILLED, path], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"runs\n"
        process.kill()
        process.wait()
        process.stdout.close()
        limits = Limits(q)
        (message,) = q.pop("work", wait=5)
        deferred = 0
        while isinstance(answer := limits.acquire(message, "k", concurrency=1), Deferred):
            deferred += 1
            time.sleep(answer.delay)
        assert deferred >= 1
        message.ack()
        (again,) = q.pop("work", wait=5)
        assert again.data == "killed"
