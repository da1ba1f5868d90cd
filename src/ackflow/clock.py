"""The only source of time: times are microseconds since 1970, durations of users are seconds.

Durations are measured with `steady`, a monotonic clock that setting the wall clock does not change.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

SECOND = 1_000_000
# A stored time this far ahead of the clock was written while the clock was wrong.
AHEAD = 60 * SECOND
LOOK = 1_000_000_000  # ns between two reads of the wall clock
SLEW = LOOK // 10  # the maximum correction per read, which limits the error of durations to 10 %
NOISE = 1_000_000
FAR = 86_400_000_000_000  # a larger difference is not slewed
STOOD = 300_000_000_000  # a larger difference is applied after it has lasted this long


def micros(seconds: float) -> int:
    return round(seconds * SECOND)


def _steady_source() -> Callable[[], int]:
    """Return a monotonic clock in ns that, if possible, also counts the time of a suspend."""
    for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC"):
        with contextlib.suppress(AttributeError, OSError):
            source = partial(time.clock_gettime_ns, getattr(time, name))
            source()
            return source
    return time.monotonic_ns


def _this_boot() -> str:
    """Return an id shared by all processes with the same monotonic clock; empty if unknown."""
    boot = ""
    with contextlib.suppress(OSError):
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        # A time namespace has its own monotonic clock.
        boot += os.readlink("/proc/self/ns/time").removeprefix("time:")
    return boot


STEADY = _steady_source()


class Signal:
    """A wake-up for one waiter; it stays set until it is cleared."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def ring(self) -> None:
        self._event.set()

    def rung(self) -> bool:
        return self._event.is_set()

    def clear(self) -> None:
        self._event.clear()

    def wait(self, seconds: float) -> bool:
        return self._event.wait(seconds)


class Clock(Protocol):
    def now(self) -> int: ...

    def steady(self) -> int:
        """Return the monotonic time in microseconds, for durations."""

    def seconds_until(self, time: int) -> float:
        """Return the longest wait for a time in seconds; the waiter then checks the time again."""

    def seconds_left(self, steady: int) -> float:
        """Return the longest wait for a monotonic time in seconds."""

    def to_write(self) -> bool:
        """Return whether the next transaction must write a clock correction to the database."""

    def watch(self, signal: Signal) -> None:
        """Set a signal whenever a test moves the clock, until `unwatch`."""

    def unwatch(self, signal: Signal) -> None: ...


class Bearing(NamedTuple):
    """The broker's time relative to the monotonic clock, in ns: time = steady + offset.

    `corrected`: the time of the last correction. `apart`: the time since which the wall clock
    differs by more than `FAR`, or -1.
    """

    offset: int
    corrected: int
    apart: int = -1

    def towards(self, wall: int, steady: int) -> "Bearing":
        """Return this bearing corrected towards the wall clock, by at most one correction step."""
        difference = wall - steady - self.offset
        if abs(difference) > FAR:
            if self.apart < 0:
                return self._replace(apart=steady)
            return self if steady - self.apart < STOOD else Bearing(wall - steady, steady)
        if abs(difference) < NOISE:
            return self if self.apart < 0 else self._replace(apart=-1)
        if steady - self.corrected < LOOK:
            return self
        return Bearing(self.offset + max(-SLEW, min(SLEW, difference)), steady)


class _Course:
    """A bearing and the last time returned with it: time may stand still but not go back."""

    def __init__(self, bearing: Bearing, last: int = 0) -> None:
        self.bearing = bearing
        self.offset = bearing.offset
        self.last = last


class SystemClock:
    """The wall clock at the start plus monotonic time, slewed towards the wall clock.

    After a step of the wall clock, time is corrected by at most a tenth of the time that passes. A
    step of more than a day is applied at once after it has lasted five minutes. `wall` and `steady`
    return nanoseconds.
    """

    def __init__(
        self, wall: Callable[[], int] = time.time_ns, steady: Callable[[], int] = STEADY
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._correcting = threading.Lock()
        began = steady()
        self._course = _Course(Bearing(wall() - began, began))
        self._look_at = began + LOOK

    def now(self) -> int:
        steady = self._steady()
        if steady >= self._look_at:
            self._look(steady)
        course = self._course
        now = (steady + course.offset) // 1000
        if now < course.last:
            return course.last
        course.last = now
        return now

    def steady(self) -> int:
        return self._steady() // 1000

    def seconds_until(self, time: int) -> float:
        return max(0.0, (time - self.now()) / SECOND)

    def seconds_left(self, steady: int) -> float:
        return max(0.0, (steady - self.steady()) / SECOND)

    def to_write(self) -> bool:
        return False

    def watch(self, signal: Signal) -> None:
        pass

    def unwatch(self, signal: Signal) -> None:
        pass

    def _look(self, steady: int) -> None:
        """Correct the time by the wall clock, in one thread at a time."""
        if self._correcting.acquire(blocking=False):
            try:
                self._look_at = steady + LOOK
                self._steer(self._corrected(self._course.bearing))
            finally:
                self._correcting.release()

    def _corrected(self, bearing: Bearing) -> Bearing:
        before = self._steady()
        wall, steady = self._wall(), self._steady()
        if steady - before > NOISE:
            return bearing  # interrupted between the reads, so the times do not belong together
        return bearing.towards(wall, steady)

    def _steer(self, bearing: Bearing) -> None:
        course = self._course
        if bearing != course.bearing:
            back = course.offset - bearing.offset > LOOK
            self._course = _Course(bearing, 0 if back else course.last)


class FileClock(SystemClock):
    """The time of a database file, shared by all processes of one machine that use the file.

    The bearing is stored in the file. A process that opens the file after a step of the wall clock
    uses the time of the processes that opened it before, and they correct it together.
    """

    def __init__(
        self,
        wall: Callable[[], int] = time.time_ns,
        steady: Callable[[], int] = STEADY,
        boot: str | None = None,
    ) -> None:
        super().__init__(wall, steady)
        self._boot = _this_boot() if boot is None else boot
        self._joined = False
        self._look_at = 0
        self.due = True  # whether the stored row must be read again; set by `now`

    def to_write(self) -> bool:
        return bool(self._boot) and self._corrected(self._course.bearing) != self._course.bearing

    def agree(self, row: str | None, writes: bool) -> str | None:
        """Adopt the stored row; return the row to write in its place, or None."""
        with self._correcting:
            self._look_at = self._steady() + LOOK
            self.due = False
            boot, found = _parse(row)
            ours, known = boot == self._boot, self._course.bearing
            # The snapshot of a reader may hold an older row than the one last written.
            newer = found is not None and (not self._joined or found.corrected >= known.corrected)
            if found and newer and ours and self._boot:
                known = found
            self._joined = True
            bearing = self._corrected(known) if writes or not self._boot else known
            self._steer(bearing)
        if not writes or (ours and (bearing == found or not self._boot)):
            return None
        return f"{self._boot} {bearing.offset} {bearing.corrected} {bearing.apart} {self.now()}"

    def _look(self, steady: int) -> None:
        self.due = True  # the next transaction reads the stored row


def _parse(row: str | None) -> tuple[str | None, Bearing | None]:
    if row is None:
        return None, None
    boot, offset, corrected, apart, _ = row.split(" ")
    return boot, Bearing(int(offset), int(corrected), int(apart))


def written_at(row: str | None) -> int:
    """Return the time at which a stored row was written."""
    return 0 if row is None else int(row.rpartition(" ")[2])


class VirtualClock:
    """A clock for tests that moves only by `advance` and `step`."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = micros(start)
        self._passed = 0
        self._lock = threading.Lock()
        self._watching: list[Signal] = []

    def now(self) -> int:
        """The current time, in microseconds since 1970."""
        return self._now

    def steady(self) -> int:
        """The monotonic time, in microseconds."""
        return self._passed

    def advance(self, seconds: float) -> None:
        """Advance the wall clock and the monotonic clock."""
        with self._lock:
            self._passed += micros(seconds)
            self._move(seconds)

    def step(self, seconds: float) -> None:
        """Set the wall clock forward or back; the monotonic clock stays."""
        with self._lock:
            self._move(seconds)

    def _move(self, seconds: float) -> None:
        self._now += micros(seconds)
        for signal in self._watching:
            signal.ring()

    def seconds_until(self, time: int) -> float:
        """Return the longest wait for a time: 0 if it is reached, otherwise a minute."""
        return 0.0 if self._now >= time else 60.0

    def seconds_left(self, steady: int) -> float:
        """Return the longest wait for a monotonic time, as in `seconds_until`."""
        return 0.0 if self._passed >= steady else 60.0

    def to_write(self) -> bool:
        """Return False: this clock has no corrections to store."""
        return False

    def watch(self, signal: Signal) -> None:
        """Set a signal whenever the time changes."""
        with self._lock:
            self._watching.append(signal)

    def unwatch(self, signal: Signal) -> None:
        """Stop setting a signal passed to `watch`."""
        with self._lock:
            self._watching.remove(signal)
