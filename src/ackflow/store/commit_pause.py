"""How long the next fsync waits for clients that were just answered.

Many clients that push one message each would form two halves: while one half is on its way to the
disk, the other arrives. After an fsync the next one therefore waits until as many pushes are queued
as both had, as long as some still arrive, and for a part of the time that an fsync takes. Where an
fsync is fast, serving the clients takes longer than it, and there is no pause.
"""

import time
from collections.abc import Callable

LEAST_SYNC_SECONDS = 0.001
LONGEST = 0.75  # of the duration of an fsync
QUIET = 0.4  # the pause ends when nothing has arrived for this part of it
MOST_SECONDS = 0.01  # a slower fsync counts as this
STEP = 0.05
WEIGHT = 1 / 8  # of the last fsync in the average

# A turn of an event loop that commits and syncs itself, see LoopBudget.
SHORT_SECONDS = 0.0005  # an average fsync of at most this is short
COUNTED_SECONDS = 0.002  # a longer fsync counts as this in the average
LONG_SECONDS = 0.02  # after a longer fsync, or turn of the loop, there is a pause
PAUSE_SECONDS, MAX_PAUSE_SECONDS = 1.0, 60.0
RELAPSE = 10  # within so many pauses after one the next is twice as long


class CommitPause:
    """The average duration of an fsync, and the pause that follows from it."""

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._now, self._sleep = now, sleep
        self._seconds = 0.0

    def timed(self, sync: Callable[[], None]) -> None:
        """Fsync, and remember how long it took."""
        start = self._now()
        sync()
        self._seconds += (self._now() - start - self._seconds) * WEIGHT

    @property
    def worthwhile(self) -> bool:
        return self._seconds >= LEAST_SYNC_SECONDS

    def wait(self, waiting: Callable[[], int], expected: int) -> None:
        """Return when so many calls wait, when no more arrive, or after the longest pause."""
        seconds = min(self._seconds, MOST_SECONDS)
        now, before = self._now(), waiting()
        until, quiet = now + seconds * LONGEST, now + seconds * QUIET
        while now < min(until, quiet) and before < expected:
            self._sleep(seconds * STEP)
            now, arrived = self._now(), waiting()
            if arrived > before:
                before, quiet = arrived, now + seconds * QUIET


class LoopBudget:
    """When an event loop may run transactions itself, instead of handing them to another thread.

    Handing over costs two thread switches, about as much as a short fsync. But while the loop
    commits and syncs, it handles no other client, so it does so only while fsyncs are short. After
    a long one there is a pause; pauses double, so that a disk which is slow now and then holds the
    loop up ever less often.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._average = COUNTED_SECONDS
        self._pause = PAUSE_SECONDS
        self._not_before = 0.0

    def allows(self) -> bool:
        """Return whether the loop may run a transaction and sync it now."""
        return self._average <= SHORT_SECONDS and self._now() >= self._not_before

    def synced(self, seconds: float) -> None:
        """Count an fsync, by any thread."""
        self._average += (min(seconds, COUNTED_SECONDS) - self._average) * WEIGHT
        self.ran(seconds)

    def ran(self, seconds: float) -> None:
        """Count a transaction that the loop ran, with its fsync."""
        if seconds <= LONG_SECONDS:
            return
        now = self._now()
        if now < self._not_before:
            return
        relapse = now < self._not_before + RELAPSE * self._pause
        self._pause = min(2 * self._pause, MAX_PAUSE_SECONDS) if relapse else PAUSE_SECONDS
        self._not_before = now + self._pause
