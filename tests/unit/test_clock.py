"""The system's clock: steps of the wall clock in both directions, and processes that agree."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import ackflow
from ackflow import Session
from ackflow.clock import SECOND, FileClock, SystemClock

NS = 1_000_000_000
START = 1_700_000_000 * NS
HOUR, DAY = 3600.0, 86_400.0
YEARS = 10 * 365 * DAY


class Machine:
    """A wall clock and a monotonic clock that the test sets."""

    def __init__(self, up: float = 1_000.0) -> None:
        self._wall, self._steady = START, round(up * NS)

    def wall(self) -> int:
        return self._wall

    def steady(self) -> int:
        return self._steady

    def run(self, seconds: float, look: float = 1.0, *clocks: SystemClock) -> None:
        """Let time pass, while these clocks are read."""
        passed = 0.0
        while passed < seconds:
            part = min(look, seconds - passed)
            self._wall += round(part * NS)
            self._steady += round(part * NS)
            passed += part
            for clock in clocks:
                clock.now()

    def step(self, seconds: float) -> None:
        self._wall += round(seconds * NS)

    def error(self, clock: SystemClock) -> float:
        """Return by how many seconds a clock is ahead of the wall clock."""
        return clock.now() / SECOND - self._wall / NS

    def reboot(self) -> None:
        self._steady = 0


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.mark.parametrize("step", [-HOUR, -1.0, 0.0, 1.0, HOUR, -YEARS, YEARS])
def test_a_step_of_the_wall_clock_changes_a_duration_by_a_tenth_at_most(
    machine: Machine, step: float
) -> None:
    clock = SystemClock(machine.wall, machine.steady)
    began = clock.now()
    machine.step(step)
    machine.run(60, 0.5, clock)
    assert (clock.now() - began) / SECOND == pytest.approx(60, rel=0.1)
    assert clock.steady() == machine.steady() // 1000


@pytest.mark.parametrize("step", [-20.0, 20.0])
def test_a_step_is_corrected_in_ten_times_its_length(machine: Machine, step: float) -> None:
    clock = SystemClock(machine.wall, machine.steady)
    machine.step(step)
    machine.run(150, 0.5, clock)
    assert machine.error(clock) == pytest.approx(-step * 0.25, abs=1)
    machine.run(60, 0.5, clock)
    assert abs(machine.error(clock)) < 0.001


def test_time_never_goes_back_while_it_is_corrected(machine: Machine) -> None:
    clock = SystemClock(machine.wall, machine.steady)
    machine.step(-30)
    last = clock.now()
    for _ in range(4_000):
        machine.run(0.01)
        assert clock.now() >= last
        last = clock.now()


def test_a_clock_that_is_years_ahead_for_a_minute_is_not_followed(machine: Machine) -> None:
    clock = SystemClock(machine.wall, machine.steady)
    for sign in (1, -1):
        machine.step(sign * YEARS)
        machine.run(60, 1, clock)
        machine.step(-sign * YEARS)
        machine.run(1, 1, clock)
        assert abs(machine.error(clock)) < 0.001


@pytest.mark.parametrize("step", [-YEARS, YEARS])
def test_a_step_of_more_than_a_day_is_followed_when_it_has_stood_for_five_minutes(
    machine: Machine, step: float
) -> None:
    clock = SystemClock(machine.wall, machine.steady)
    machine.step(step)
    machine.run(299, 1, clock)
    assert abs(machine.error(clock)) > DAY
    machine.run(3, 1, clock)
    assert abs(machine.error(clock)) < 0.001
    machine.run(10, 1, clock)
    assert abs(machine.error(clock)) < 0.001


def test_a_look_that_is_interrupted_between_the_two_clocks_corrects_nothing(
    machine: Machine,
) -> None:
    def slow_wall() -> int:
        machine.run(0.5)
        return machine.wall() - NS // 2

    clock = SystemClock(slow_wall, machine.steady)
    before = machine.error(clock)
    for _ in range(10):
        machine.run(1)
        clock.now()  # reads the wall clock
        assert machine.error(clock) == pytest.approx(before)


# processes on one file


@pytest.fixture
def sessions(tmp_path: Path, machine: Machine) -> Iterator[list[Session]]:
    opened: list[Session] = []
    yield opened
    for session in opened:
        session.close()


def connect(sessions: list[Session], path: Path, machine: Machine, boot: str = "a") -> Session:
    clock = FileClock(machine.wall, machine.steady, boot)
    sessions.append(ackflow.connect(path / "test.db", clock=clock, upkeep=False, may_lose="recent"))
    return sessions[-1]


def times(*sessions: Session) -> list[float]:
    return [session.broker.clock.now() / SECOND for session in sessions]


@pytest.mark.parametrize("step", [-HOUR, HOUR])
def test_one_that_opens_a_file_after_a_step_has_the_time_of_those_before(
    sessions: list[Session], tmp_path: Path, machine: Machine, step: float
) -> None:
    first = connect(sessions, tmp_path, machine)
    machine.step(step)
    second = connect(sessions, tmp_path, machine)
    first.push("q", "a")
    (message,) = second.pop("q", lease_seconds=2)
    assert not first.pop("q")
    machine.run(2.5)
    assert [m.data for m in first.pop("q")] == ["a"]
    with pytest.raises(ackflow.errors.LeaseLost):
        message.ack()


def test_processes_on_one_file_correct_its_time_together_and_no_faster(
    sessions: list[Session], tmp_path: Path, machine: Machine
) -> None:
    three = [connect(sessions, tmp_path, machine) for _ in range(3)]
    machine.step(-5)
    for second in range(60):
        machine.run(1)
        for session in three:
            session.push("q", "a")
        apart = times(*three)
        assert max(apart) - min(apart) < 0.2
        if second == 19:
            assert machine.error(three[0].broker.clock) == pytest.approx(3, abs=0.5)  # type: ignore[arg-type]
    assert abs(machine.error(three[0].broker.clock)) < 0.001  # type: ignore[arg-type]


def test_one_that_only_looks_follows_the_others(
    sessions: list[Session], tmp_path: Path, machine: Machine
) -> None:
    writer, looker = (connect(sessions, tmp_path, machine) for _ in range(2))
    machine.step(-5)
    for _ in range(70):
        machine.run(1)
        writer.push("q", "a")
    machine.run(1)
    looker.queue_stats("q")
    assert times(looker) == pytest.approx(times(writer), abs=0.001)


def test_after_a_restart_of_the_machine_the_wall_clock_counts(
    sessions: list[Session], tmp_path: Path, machine: Machine
) -> None:
    connect(sessions, tmp_path, machine).push("q", "a")
    machine.run(3600)
    machine.reboot()
    again = connect(sessions, tmp_path, machine, "b")
    assert times(again) == [machine.wall() / NS]


def test_a_file_first_opened_under_a_clock_years_ahead_is_set_right_by_short_sessions(
    sessions: list[Session], tmp_path: Path, machine: Machine
) -> None:
    machine.step(YEARS)
    connect(sessions, tmp_path, machine).push("q", "a")
    machine.step(-YEARS)
    for _ in range(7):
        machine.run(60)
        q = connect(sessions, tmp_path, machine)
        q.push("q", "a")
    assert times(q) == [machine.wall() / NS]
    q.upkeep()
    assert all(m.created_at.timestamp() <= machine.wall() / NS for m in q.browse("q").items)


def test_where_the_boot_is_unknown_each_process_keeps_its_own_time(
    sessions: list[Session], tmp_path: Path, machine: Machine
) -> None:
    first, second = (connect(sessions, tmp_path, machine, "") for _ in range(2))
    machine.step(-5)
    for _ in range(70):
        machine.run(1)
        first.push("q", "a")
        second.queue_stats("q")
    assert times(first, second) == pytest.approx([machine.wall() / NS] * 2, abs=0.001)


def test_a_real_clock_is_read_by_many_threads() -> None:
    clock = SystemClock()
    seen: list[bool] = []

    def look() -> None:
        last = 0
        for _ in range(2_000):
            now = clock.now()
            seen.append(now >= last - 1_000)
            last = now

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(seen)
