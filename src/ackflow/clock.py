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

    def wait(self, signal: Signal, until: int) -> None:
        """Return when the signal is rung or the time has come, whichever is first."""


class SystemClock:
    """The machine's clock, kept from going backwards within the process."""

    def __init__(self) -> None:
        self._last = 0

    def now(self) -> int:
        self._last = max(self._last, time.time_ns() // 1000)
        return self._last

    def wait(self, signal: Signal, until: int) -> None:
        signal.wait(max(0.0, (until - self.now()) / SECOND))


class VirtualClock:
    """A clock that moves only when told to, for tests."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = micros(start)
        self._moved = threading.Condition()
        self._waiting: list[Signal] = []

    def now(self) -> int:
        return self._now

    def advance(self, seconds: float) -> None:
        with self._moved:
            self._now += micros(seconds)
            for signal in self._waiting:
                signal.ring()

    def wait(self, signal: Signal, until: int) -> None:
        with self._moved:
            if self._now >= until:
                return
            self._waiting.append(signal)
        try:
            while not signal.wait(60) and self._now < until:
                pass
        finally:
            with self._moved:
                self._waiting.remove(signal)
