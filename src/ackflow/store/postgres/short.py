"""Transactions of one round trip.

A verb that finds everything in the cache needs no answer of the server. It runs before its queue is
locked; its writes are held back, and sent together with a function of the schema:

    enter_queue      takes the locks, fails if the cached versions are not the newest, and stores the next
    ...              the writes, which the server skips if that has failed
    Sync             commits all of it as one transaction

If something is missing in the cache, or nothing was written, the transaction begins at that point in
the usual way: it takes its locks, compares the versions, and sends what was held back. If the versions
differ, the verb runs again.
"""

import time
from collections.abc import Callable, Sequence

from psycopg import errors as pg

from ..protocol import Reach
from .fences import SCHEMA, Query

ENTER = "select enter_queue_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"
# After a change by another broker, transactions of a queue take two round trips for so long: a failed
# one costs a round trip, and a line in the server's log.
SHARED_SECONDS = 30.0
LATE = "late"  # the detail of the error if only the time differed
MOST_MICROSECONDS = 100_000  # by which the broker's time may differ from the server's
# After an event loop began a transaction that turned out to need an answer.
FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 0.05, 5.0


class ShortTransactions:
    """Chooses the transactions that may take one round trip."""

    def __init__(self, versions: dict[int, int]) -> None:
        self._versions = versions  # those of the store, by fence; 0: not read
        self._shared_until: dict[int, float] = {}
        self.enabled = False
        self._not_before = 0.0
        self._pause = FIRST_PAUSE_SECONDS

    def queue_of(
        self, reaches: Sequence[Reach | None], find: Callable[[Reach], bool]
    ) -> int | None:
        """Return the queue of verbs that may run before it is locked, or None."""
        first = reaches[0]
        if not self.enabled or SCHEMA not in self._versions:
            return None
        if first is None or not find(first) or first.fences is None or len(first.fences) != 1:
            return None
        for reach in reaches[1:]:
            if reach is None or not find(reach) or reach.fences != first.fences:
                return None
        (queue,) = first.fences
        if queue <= SCHEMA or not self._versions.get(queue):
            return None
        until = self._shared_until.get(queue)
        return queue if until is None or time.monotonic() >= until else None

    def note_shared(self, queue: int) -> None:
        """Note that another broker has written to a queue."""
        self._shared_until[queue] = time.monotonic() + SHARED_SECONDS

    def enter(
        self, keys: Sequence[int], queue: int, now: int | None, row: tuple[object, ...]
    ) -> Query:
        """Return the statement that enters a queue under the locks with these keys.

        `now`: the time to compare with that of the server. `row`: the rest of the arguments of
        `enter_queue`. It fails with SerializationFailure if something has changed.
        """
        known = self._versions[SCHEMA], self._versions[queue], now
        return ENTER, (*keys, queue, *known, *row)

    def refused(self, queue: int, error: pg.SerializationFailure) -> None:
        if error.diag.message_detail != LATE:
            self.note_shared(queue)

    # transactions that an event loop begins

    def may_launch(self) -> bool:
        return time.monotonic() >= self._not_before

    def launched(self, succeeded: bool) -> None:
        """Count an attempt: one that needed an answer has cleared what was cached of the queue."""
        if succeeded:
            self._pause = FIRST_PAUSE_SECONDS
        else:
            self._not_before = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, MOST_PAUSE_SECONDS)
