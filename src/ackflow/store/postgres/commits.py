"""The commits of a broker: each is sent, confirmed, and looked for after a lost connection.

A transaction of one round trip is sent as a whole (short.py), by a thread that waits for it or by an
event loop that follows it (flight.py).
"""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import psycopg
from psycopg import errors as pg
from psycopg.pq.abc import PGresult

from ...clock import Clock
from ...errors import OutcomeUnknown, StorageBusy
from ...ids import QueueId
from .. import hints
from ..cache import Cache
from ..protocol import Reach, WiderReach
from ..tx import Tx
from .clock import ServerClock
from .connection import DatabaseUrl, PipelinedConnection, bigints, is_lost
from .fences import OUR_ROWS, SCHEMA, WROTE, Locks
from .flight import Flight, Results, refuse_to_wait
from .flush import CLOCK, SYNC, Flushes
from .homes import Homes
from .notify import Notifier
from .short import ShortTransactions
from .sync import Marker, SyncRecord
from .tx import FencedTx

T = TypeVar("T")
Rows = dict[int, int]  # the new versions of fences
# An older snapshot would not show what was committed while a transaction waited for its locks.
BEGIN = "begin isolation level read committed"


class Moved(WiderReach):
    """A queue was deleted and made again while a transaction waited for its fence."""


class Commits:
    """The part of the store that commits; `_alone` is held from the first verb to the end."""

    clock: Clock
    interrupted: BaseException | None
    sync: Callable[[int], None] | None
    _place: DatabaseUrl
    _me: int
    _met: dict[int, float]
    _alone: threading.Lock
    _cache: Cache
    _chance: random.Random
    _flushes: Flushes
    _homes: Homes
    _latest: int
    _locking: list[int]
    _locks: Locks
    _notifier: Notifier
    _record: SyncRecord
    _short: ShortTransactions
    _tx: FencedTx | None
    _versions: dict[int, int]
    _writer: PipelinedConnection | None
    _wrote: dict[int, int]

    def launch(
        self, body: Callable[[Tx], None], reaches: Sequence[Reach | None]
    ) -> Flight[Tx] | None:
        """Run a body, and send its transaction without waiting for it; it is synced.

        None: nothing was done, as it would have to wait before it is sent.
        """
        channel, tx = self._writer, self._tx
        if channel is None or tx is None or self.sync is None or self._flushes.shared:
            return None
        queue = (
            self._short.queue_of(reaches, self._homes.find) if self._short.may_launch() else None
        )
        try:
            fileno = channel.fileno
        except psycopg.Error:  # it is lost, and a thread opens another one
            return None
        if not queue or not self._alone.acquire(blocking=False):
            return None
        try:
            if self._cache.crowded:
                self._cache.shrink()
            self._hold_back(channel, tx, queue, refuse_to_wait)
            body(tx)
            tx.leave()
            if not tx.written:
                refuse_to_wait()
        except BaseException as error:
            self._cache.undo_in_queue(QueueId(queue))
            self._versions.pop(queue, None)
            if not channel.rollback(error):
                self._writer = None
            self._short.launched(False)
            self._alone.release()
            if not isinstance(error, Exception):
                raise
            return None
        rows = self._rows(tx.written)
        number = self._number(rows)
        self._short.launched(True)
        return Flight(
            fileno,
            lambda: self._launched(channel, tx, rows),
            lambda found: self._landed(channel, tx, rows, number, found),
            lambda error: self._recover(channel, tx, rows, number, error),
        )

    def _launched(self, channel: PipelinedConnection, tx: FencedTx, rows: Rows) -> Results:
        self._send_short(channel, tx, rows, True)
        return channel.coming()

    def _landed(
        self,
        channel: PipelinedConnection,
        tx: FencedTx,
        rows: Rows,
        number: int,
        found: list[PGresult],
    ) -> Tx:
        """End a transaction that an event loop has begun."""
        channel.take(found)
        self._take_short(channel, tx)
        self._versions.update(rows)
        self._committed(tx, rows, number, True)
        if tx.touched:
            self._notifier.notify()
        self._alone.release()
        return tx

    def _recover(
        self,
        channel: PipelinedConnection,
        tx: FencedTx,
        rows: Rows,
        number: int,
        error: BaseException,
    ) -> Tx:
        """Find out whether such a transaction was committed; raises if it was not."""
        try:
            with self._translated():
                self._failed(channel, error, rows, number, True)
            self._committed(tx, rows, number, False)
            if tx.touched:
                self._notifier.notify()
        except StorageBusy:  # it runs again, without a hung broker that had the lock
            self._place.end_hung(self._locks.hung, self._locking)
            raise
        finally:
            self._alone.release()
        return tx

    def _hold_back(
        self, channel: PipelinedConnection, tx: FencedTx, queue: int, begin: Callable[[], None]
    ) -> None:
        """Begin a transaction that is sent at its end; `begin` is called when it needs an answer."""
        channel.hold_back(begin)
        channel.wrote = False
        tx.grant(frozenset({queue}))
        tx.begin(self.clock.now(), False)

    def _send_short(
        self, channel: PipelinedConnection, tx: FencedTx, rows: Rows, synced: bool
    ) -> None:
        """Send a transaction of one round trip."""
        ((queue, n),) = rows.items()
        self._locking = self._locks.keys([SCHEMA, queue])
        row = n, self._me, self._wrote.get(queue, 0), self._hints(queue), synced
        at = tx.now if isinstance(self.clock, ServerClock) else None
        tx.take_body_ids()
        timed = CLOCK if synced and self._flushes.due() else None
        if timed:
            channel.write(timed)
        channel.send_held(self._short.enter(self._locking, queue, at, row), timed)

    def _take_short(self, channel: PipelinedConnection, tx: FencedTx) -> None:
        """Note what the statements of such a transaction have returned."""
        ((now,),) = channel.rows_at(0)
        timed = channel.behind
        if timed:
            ((began,),), ((ended,),) = channel.rows_at(-2), channel.rows_at(-1)
            self._flushes.took((ended - began) / 1e6)
        tx.took_body_ids(-3 if timed else -1)
        clock = self.clock
        # A busy event loop reads the answer late: a time between the beginning and now is no news.
        if isinstance(clock, ServerClock) and not tx.now <= now <= clock.now():
            clock.follow(now)

    def _number(self, rows: Rows) -> int:
        """Return a number for a commit that is about to be sent; 0 if it writes nothing."""
        number = self._record.begin() if rows else 0
        self._record.mark(Marker(number, fence, n) for fence, n in rows.items())
        return number

    def _commit(
        self, channel: PipelinedConnection, tx: FencedTx, level: str, rows: Rows, at_once: bool
    ) -> None:
        """Commit, and note the number of the commit and the new versions of its fences."""
        number = self._number(rows)
        short = channel.held is not None
        try:
            if short:
                self._send_short(channel, tx, rows, at_once or level == "on")
                channel.sync()
                self._take_short(channel, tx)
            else:
                for fence, n in rows.items():
                    channel.write(WROTE, self._row(fence, n))
                # Its locks are free while it waits for the disk.
                timed = at_once and self._flushes.due()
                seconds = channel.commit(SYNC if at_once else None, CLOCK if timed else None)
                if timed:
                    self._flushes.took(seconds)
        except BaseException as error:
            self._failed(channel, error, rows, number, short)
            at_once = False
        else:
            self._versions.update(rows)
        self._committed(tx, rows, number, at_once)

    def _failed(
        self,
        channel: PipelinedConnection,
        error: BaseException,
        rows: Rows,
        number: int,
        short: bool,
    ) -> None:
        """Raise, after a failed commit, unless it was committed all the same."""
        self._undo(channel, error)
        refused = short and isinstance(error, psycopg.Error) and not is_lost(error)
        if not rows or refused or not self._was_committed(rows):
            self._record.discard(number)
            if refused and isinstance(error, pg.SerializationFailure):
                (queue,) = rows
                self._short.refused(queue, error)
                raise Moved from None
            raise error
        if not isinstance(error, Exception):
            self.interrupted = error

    def _committed(self, tx: FencedTx, rows: Rows, number: int, on_disk: bool) -> None:
        record = self._record
        self._wrote.update(rows)
        record.committed = max(record.committed, number)
        if on_disk:
            record.confirm(number)
        tx.on_disk = on_disk
        tx.number = number or record.committed
        self._latest = tx.latest = tx.now

    def _row(self, fence: int, n: int) -> tuple[object, ...]:
        """Return the arguments for the row of a fence in `writes`."""
        before, newest = self._wrote.get(fence, 0), self._versions.get(fence, 0)
        return fence, n, self._me, before, self._hints(fence), newest

    def _rows(self, written: set[int]) -> dict[int, int]:
        """Return the new versions of fences. They leave gaps of random size.

        After a crash that lost a commit, another one does not get the version that it had.
        """
        if SCHEMA in written:
            written = {SCHEMA}
        return {
            fence: self._versions.get(fence, 0) + 1 + self._chance.getrandbits(20)
            for fence in sorted(written)
        }

    def _hints(self, fence: int) -> bytes | None:
        if fence <= SCHEMA:
            return None
        met = time.monotonic() < self._met.get(fence, 0.0)
        return hints.pack(self._cache, self._versions[SCHEMA], QueueId(fence), met)

    def _was_committed(self, rows: dict[int, int]) -> bool:
        """Return whether a transaction was committed whose commit got no response."""
        try:
            return self._patiently(lambda: self._is_written(rows))
        except psycopg.Error as error:
            raise OutcomeUnknown() from error

    def _is_written(self, rows: dict[int, int]) -> bool:
        channel = PipelinedConnection(self._place.open())
        with contextlib.closing(channel):
            channel.begin(BEGIN)
            # The server may still be committing it; the locks are free once that has ended.
            if SCHEMA in rows:
                self._locks.take_schema(channel)
            else:
                self._locks.share_schema(channel, rows)
            ours = channel.execute(OUR_ROWS, (bigints(rows), bigints(rows.values()), self._me))
            channel.commit()
        return bool(ours)

    # what the store has

    def _undo(self, channel: PipelinedConnection, error: BaseException) -> None:
        raise NotImplementedError

    def _patiently(self, work: Callable[[], T], seconds: float | None = None) -> T:
        raise NotImplementedError

    def _translated(self) -> contextlib.AbstractContextManager[None]:
        raise NotImplementedError
