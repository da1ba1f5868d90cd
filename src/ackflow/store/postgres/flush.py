"""How commits get to the server's disk: each on its own, or several brokers together.

On a fast disk, the commit of a single verb waits for the disk itself, and a group is followed by one
synced commit. The server's log has one flush at a time: on a slow disk two brokers would alternate,
each waiting for the flush of the other and then for its own. There they wait for each other with a
lock, and who gets it waits a moment for the others (`share_flush_1` in functions.sql), as a server with
`commit_delay` does.
"""

import time
from collections.abc import Callable

from psycopg import errors as pg

from ..commit_pause import MOST_SECONDS, SHORT_SECONDS
from .connection import PipelinedConnection

# A commit that is synced puts everything on disk that was committed before it.
SYNC = "select set_config('synchronous_commit', 'on', true), pg_logical_emit_message(true, 'ackflow', '')"
CLOCK = "select (extract(epoch from clock_timestamp()) * 1000000)::bigint"
SHARE = "select led, others, passed from share_flush_1($1, $2, $3)"
# From here on brokers share flushes: more than a fast disk takes on a busy machine.
LEAST_FLUSH_SECONDS = 0.002
MEASURED = 4  # one in so many short flushes is measured, by the clock of the server
WEIGHT = 1 / 8  # of the last flush in the average
LONGEST = 0.4  # of the duration of a flush: the longest time to wait for other brokers
REMEMBERED = 8  # flushes without another broker, after which none is expected


class Flushes:
    """The average duration of a flush, and how many other brokers are expected to share the next."""

    def __init__(self, lock_key: int, now: Callable[[], float] = time.monotonic) -> None:
        self._lock_key = lock_key
        self._now = now
        self._seconds = 0.0
        self._expected = 0
        self._alone = 0  # flushes since another broker came
        self._unmeasured = -1
        self.may_share = False

    @property
    def shared(self) -> bool:
        """Whether brokers flush together."""
        return self.may_share and self._seconds >= LEAST_FLUSH_SECONDS

    @property
    def fast(self) -> bool:
        """Whether a flush is so short that pops and acks may wait for it with the pushes of a group."""
        return self.may_share and self._seconds <= SHORT_SECONDS

    def due(self) -> bool:
        """Return whether the server's clock should measure the next one: one in a few short ones."""
        self._unmeasured = (self._unmeasured + 1) % MEASURED
        return self._unmeasured == 0 or self._seconds > SHORT_SECONDS

    def took(self, seconds: float) -> None:
        self._seconds += (seconds - self._seconds) * WEIGHT

    def flush(self, channel: PipelinedConnection) -> None:
        """Put on disk what was committed, and remember how long it took."""
        if not self.shared:
            if self.due():
                self.took(channel.timed(SYNC, CLOCK))
            else:
                channel.execute(SYNC)
            return
        began = self._now()
        longest = int(min(self._seconds, MOST_SECONDS) * LONGEST * 1e6)
        try:
            ((led, others, passed),) = channel.execute(
                SHARE, (self._lock_key, self._expected, longest)
            )
        except pg.LockNotAvailable:  # another broker hangs while it has the lock
            channel.execute(SYNC)
            return
        if led:
            self.took(self._now() - began - passed / 1e6)
        self._expect(others if led else max(1, self._expected))

    def _expect(self, others: int) -> None:
        """Note how many other brokers came to the last flush; some may miss one."""
        self._alone = 0 if others else self._alone + 1
        if others or self._alone >= REMEMBERED:
            self._expected = max(others, self._expected - 1)
