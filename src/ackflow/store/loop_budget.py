"""When an event loop may run transactions itself, instead of handing them to another thread.

Handing over costs two thread switches, about as much as a short fsync. But while the loop commits
and syncs it serves nobody, so it does so only while fsyncs are short.
"""

import time
from collections.abc import Callable

SHORT_SECONDS = 0.0005  # an average fsync of at most this is short
COUNTED_SECONDS = 0.002  # a longer fsync counts as this in the average
LONG_SECONDS = 0.02  # after a longer fsync, or turn of the loop, there is a pause
PAUSE_SECONDS, MAX_PAUSE_SECONDS = 1.0, 60.0
RELAPSE = 10  # within so many pauses after one the next is twice as long
WEIGHT = 1 / 8  # of the last fsync in the average


class LoopBudget:
    """The average duration of fsyncs, and a pause after a long one.

    The pauses double, so that a disk which is slow now and then holds the loop up ever less often.
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
        self.spent(seconds)

    def spent(self, seconds: float) -> None:
        """Count a transaction that the loop ran, with its fsync."""
        if seconds <= LONG_SECONDS:
            return
        now = self._now()
        if now < self._not_before:
            return
        relapse = now < self._not_before + RELAPSE * self._pause
        self._pause = min(2 * self._pause, MAX_PAUSE_SECONDS) if relapse else PAUSE_SECONDS
        self._not_before = now + self._pause
