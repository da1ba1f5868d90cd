"""The only source of time. Times are whole microseconds since 1970; durations given by users are
seconds."""

import threading
import time
from typing import Protocol

SECOND = 1_000_000


def micros(seconds: float) -> int:
    return round(seconds * SECOND)


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

    def seconds_until(self, time: int) -> float:
        """How long to wait for a time to come, at most; the waiter then looks again."""

    def watch(self, signal: Signal) -> None:
        """Ring a signal whenever the clock is moved by hand, until it is unwatched."""

    def unwatch(self, signal: Signal) -> None: ...


class SystemClock:
    """The machine's clock, kept from going backwards within the process."""

    def __init__(self) -> None:
        self._last = 0

    def now(self) -> int:
        self._last = max(self._last, time.time_ns() // 1000)
        return self._last

    def seconds_until(self, time: int) -> float:
        return max(0.0, (time - self.now()) / SECOND)

    def watch(self, signal: Signal) -> None:
        pass

    def unwatch(self, signal: Signal) -> None:
        pass


class VirtualClock:
    """A clock that moves only when told to, for tests."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = micros(start)
        self._lock = threading.Lock()
        self._watching: list[Signal] = []

    def now(self) -> int:
        return self._now

    def advance(self, seconds: float) -> None:
        with self._lock:
            self._now += micros(seconds)
            for signal in self._watching:
                signal.ring()

    def seconds_until(self, time: int) -> float:
        return 0.0 if self._now >= time else 60.0

    def watch(self, signal: Signal) -> None:
        with self._lock:
            self._watching.append(signal)

    def unwatch(self, signal: Signal) -> None:
        with self._lock:
            self._watching.remove(signal)
