"""The only source of time. Times are whole microseconds since 1970; durations given by users are
seconds. What lasts a while is measured by `steady`, which no setting of the clock moves."""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

SECOND = 1_000_000
# A time this far ahead of the clock was written under a clock that was wrong.
AHEAD = 60 * SECOND
LOOK = 1_000_000_000  # ns between two looks at the wall clock
SLEW = LOOK // 10  # by how much one look corrects, so that durations are right to a tenth
NOISE = 1_000_000
FAR = 86_400_000_000_000  # too far apart to be slewed
STOOD = 300_000_000_000  # for how long they are apart before the wall clock is believed


def micros(seconds: float) -> int:
    return round(seconds * SECOND)


def _steady_source() -> Callable[[], int]:
    """Nanoseconds that pass evenly, also while the machine is suspended where that can be had."""
    for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC"):
        with contextlib.suppress(AttributeError, OSError):
            source = partial(time.clock_gettime_ns, getattr(time, name))
            source()
            return source
    return time.monotonic_ns


def _this_boot() -> str:
    """What is the same for all processes that share a steady clock; empty where it is not known."""
    boot = ""
    with contextlib.suppress(OSError):
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        boot += os.readlink("/proc/self/ns/time").removeprefix("time:")  # it may have its own
    return boot


STEADY = _steady_source()


class Signal:
    """A wake-up for one waiter that remembers being rung."""

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
        """Microseconds since some moment, for durations: setting the clock does not change it."""

    def seconds_until(self, time: int) -> float:
        """How long to wait for a time to come, at most; the waiter then looks again."""

    def seconds_left(self, steady: int) -> float:
        """The same for a time of `steady`."""

    def to_write(self) -> bool:
        """Whether there is a correction to be written into the database, by any transaction."""

    def watch(self, signal: Signal) -> None:
        """Ring a signal whenever the clock is moved by hand, until it is unwatched."""

    def unwatch(self, signal: Signal) -> None: ...


class Bearing(NamedTuple):
    """How the broker's time follows from the steady clock, in ns: time = steady + offset.

    `corrected`: when that was last changed. `apart`: since when the wall clock is far from it, or -1.
    """

    offset: int
    corrected: int
    apart: int = -1

    def towards(self, wall: int, steady: int) -> "Bearing":
        """This bearing, corrected towards the wall clock as much as may be done at once."""
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
    """A bearing, and the last time returned under it: time stands rather than goes back."""

    def __init__(self, bearing: Bearing, last: int = 0) -> None:
        self.bearing = bearing
        self.offset = bearing.offset
        self.last = last


class SystemClock:
    """The wall clock at the start plus the steady clock, corrected gently towards the wall clock.

    A step of the wall clock is followed by a tenth of the time that passes; one of more than a day
    at once, when it has stood for five minutes. `wall` and `steady` give nanoseconds.
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
        """Look at the wall clock, by one thread at a time."""
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
            return bearing  # interrupted between the two: it is not known what belongs together
        return bearing.towards(wall, steady)

    def _steer(self, bearing: Bearing) -> None:
        course = self._course
        if bearing != course.bearing:
            back = course.offset - bearing.offset > LOOK
            self._course = _Course(bearing, 0 if back else course.last)


class FileClock(SystemClock):
    """The time of a database file, on which the processes of one machine agree.

    The bearing is a row of the file: a process that opens it after a step of the wall clock uses the
    time of those that opened it before, and they correct it together.
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
        self.due = True  # whether it is time to agree again, as found by the last `now`

    def to_write(self) -> bool:
        return bool(self._boot) and self._corrected(self._course.bearing) != self._course.bearing

    def agree(self, row: str | None, writes: bool) -> str | None:
        """Follow the row of the file; answers with what it is to become, if it is to be written."""
        with self._correcting:
            self._look_at = self._steady() + LOOK
            self.due = False
            boot, found = _parse(row)
            ours, known = boot == self._boot, self._course.bearing
            # A reader may see a row that is older than what the writer knows.
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
        self.due = True  # the file is followed


def _parse(row: str | None) -> tuple[str | None, Bearing | None]:
    if row is None:
        return None, None
    boot, offset, corrected, apart, _ = row.split(" ")
    return boot, Bearing(int(offset), int(corrected), int(apart))


def written_at(row: str | None) -> int:
    """The time at which a bearing was written into a file."""
    return 0 if row is None else int(row.rpartition(" ")[2])


class VirtualClock:
    """A clock that moves only when told to, for tests."""

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
        """Let time pass."""
        with self._lock:
            self._passed += micros(seconds)
            self._move(seconds)

    def step(self, seconds: float) -> None:
        """Set the clock forward or back, while no time passes."""
        with self._lock:
            self._move(seconds)

    def _move(self, seconds: float) -> None:
        self._now += micros(seconds)
        for signal in self._watching:
            signal.ring()

    def seconds_until(self, time: int) -> float:
        """How long to wait for a time: 0 if it has come, otherwise a minute."""
        return 0.0 if self._now >= time else 60.0

    def seconds_left(self, steady: int) -> float:
        """The same for a monotonic time."""
        return 0.0 if self._passed >= steady else 60.0

    def to_write(self) -> bool:
        """Whether a correction is due to be stored: never."""
        return False

    def watch(self, signal: Signal) -> None:
        """Ring a signal whenever the time is changed."""
        with self._lock:
            self._watching.append(signal)

    def unwatch(self, signal: Signal) -> None:
        """Stop ringing a signal that `watch` was given."""
        with self._lock:
            self._watching.remove(signal)
