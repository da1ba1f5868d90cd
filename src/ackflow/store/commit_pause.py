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
