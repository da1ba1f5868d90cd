"""The shared store: a schema in a PostgreSQL database, used by any number of brokers.

The brokers may run on any machines. Each writes in one transaction at a time, for all its queued verbs
on queues that no other broker writes to at that moment (fences.py). A broker that finds that another
one has written to a queue clears what it has cached of it and reads it again.
"""

import contextlib
import logging
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import psycopg
from psycopg import RawCursor
from psycopg import errors as pg

from ...clock import Clock
from ...errors import InvalidArgument, SessionClosed
from ...ids import QueueId
from .. import hints, migrate
from ..cache import Cache
from ..durability import MayLose, chosen
from ..protocol import EVERYTHING, CommitLost, Reach
from ..tx import Tx
from . import setup
from .clock import ServerClock
from .commits import BEGIN, Commits, Moved
from .connection import (
    Connection,
    DatabaseUrl,
    PipelinedConnection,
    bigints,
    first_line,
    is_lost,
    statements,
)
from .failures import translated
from .fences import LOOK, ON_DISK, OUR_ROWS, SCHEMA, Query, lock_key, locks_for
from .flush import SYNC, Flushes
from .homes import Homes
from .lease_ids import next_block
from .notify import Notifier
from .short import MOST_MICROSECONDS, ShortTransactions
from .sync import SyncRecord, Unchecked
from .tx import FencedTx

T = TypeVar("T")

# `synchronous_commit` for verbs that must be on disk when they are answered, and for all others.
LEVELS: dict[MayLose, tuple[str, str]] = {
    "nothing": ("on", "on"),
    "acks": ("on", "off"),
    "recent": ("off", "off"),
    "everything": ("off", "off"),
}
ON_CONNECT = "set default_transaction_isolation = 'read committed'; set synchronous_commit = off"
SET_LEVEL = "select set_config('synchronous_commit', $1, true)"
MOST_FENCES = 1_000  # with more in the cache, a transaction that is alone in the schema clears it
MOST_TRIES = 3
UNREAD = 0  # in place of a version that was not read: right for a fence that was never written
MET_SECONDS = 2.0  # for so long a queue counts as shared after another broker wrote to it
# How long a call blocks while the server is unavailable: during a restart or a failover.
AWAY_SECONDS = 30.0
log = logging.getLogger("ackflow")


class PostgresStore(Commits):
    """A schema in a PostgreSQL database, created if it is missing and the role may create it."""

    transact_at_once = None  # each statement waits for the server
    by_queue = True

    def __init__(self, url: str, clock: Clock | None, may_lose: MayLose | None = None) -> None:
        self._place = DatabaseUrl(url)
        self._can = self._place.capabilities
        self.clock: Clock = clock or ServerClock()
        self.interrupted: BaseException | None = None
        self._hurried = False
        self._synced, self._plain = chosen(LEVELS, may_lose)
        self._locks = locks_for(self._place.schema, self._can)
        self._statements = statements(self._can.sequences)
        self._homes = Homes(self._statements)
        self._cache = Cache()
        self._me = secrets.randbits(62)
        self._chance = random.Random()
        self._versions: dict[int, int] = {}  # of the fences of which something is cached
        # By fence, the number of this broker's last row in `writes`.
        self._wrote: dict[int, int] = {}
        self._short = ShortTransactions(self._versions)
        self._flushes = Flushes(lock_key("one flush of all schemas"))
        self._met: dict[int, float] = {}  # until when a queue counts as shared with other brokers
        # The keys of the locks for which a transaction waits.
        self._locking = self._locks.keys([SCHEMA])
        self._latest = 0
        self._alone = threading.Lock()
        self._readers: list[PipelinedConnection] = []
        self._writer: PipelinedConnection | None = None
        self._tx: FencedTx | None = None
        self._record = SyncRecord()
        self._syncing = threading.Lock()
        self._syncer: PipelinedConnection | None = None
        self.sync: Callable[[int], None] | None = None
        self._closed = False
        self._notifier = Notifier(self._place.open, self._place.schema, self._can.notify)
        with self._translated():
            seconds = min(AWAY_SECONDS, self._place.connect_seconds)
            opened = self._patiently(self._set_up, seconds)
        self._schema, self.id, pooled = opened.schema, opened.store, opened.pooled
        self._flushes.may_share = self._short.enabled = opened.functions and not pooled
        if (self._synced, self._plain) == ("on", "off") and not pooled:
            # Behind a pooler a connection may outlive the server, and a lost commit go unnoticed.
            self.sync, self._synced = self._sync, "off"

    def transact(
        self,
        body: Callable[[Tx], None],
        synced: bool,
        reaches: Sequence[Reach | None] = (EVERYTHING,),
    ) -> Tx:
        """Run a body in one transaction; on return it is committed, on error it is rolled back.

        The exception is OutcomeUnknown: the connection was lost during the commit, and the server
        remains unavailable. If the connection is lost and nothing was committed, the body runs
        again.
        """
        with self._alone, self._translated():
            tx = self._patiently(lambda: self._transact(body, synced, reaches))
        if tx.touched:
            self._notifier.notify()
        return tx

    def read(self, body: Callable[[Tx], T]) -> T:
        """Run a body in a read-only transaction, concurrently with the writer."""
        with self._translated():
            return self._patiently(lambda: self._read(body))

    def changed(self) -> int:
        """Return a number that changes when another broker may have committed."""
        return self._notifier.listen()

    def backup(self, target: str) -> None:
        raise InvalidArgument(
            f"a PostgreSQL database is not copied to a file: pg_dump -n {self._place.schema} "
            f"makes a backup of {self._place.name}"
        )

    def hurry(self) -> None:
        """Stop waiting for an unavailable server, as the store is about to be closed."""
        self._hurried = True

    def close(self) -> None:
        self._closed = True
        self._notifier.close()
        self._close_readers()
        for channel in [self._writer, self._syncer]:
            if channel is not None:
                channel.close()

    def _set_up(self) -> setup.Opened:
        return setup.open_schema(self._place, self._can, self._locks.kind, self.clock)

    def _patiently(self, work: Callable[[], T], seconds: float | None = None) -> T:
        """Run `work`, and retry it while the server is unavailable.

        If a lock times out, terminate a hung broker that holds it, and try once more.
        """
        until = time.monotonic() + (AWAY_SECONDS if seconds is None else seconds)
        pause = 0.0
        locked = False
        conflicts = 0
        while True:
            try:
                return work()
            except pg.LockNotAvailable:
                if locked:
                    raise
                locked = True
                self._place.end_hung(self._locks.hung, self._locking)
            except Moved:
                pass
            except (pg.DeadlockDetected, pg.UniqueViolation):
                # With the transaction of a user, or by the same request key in two queues.
                conflicts += 1
                if conflicts == MOST_TRIES:
                    raise
            except psycopg.Error as error:
                if not is_lost(error) or self._closed or self._hurried or time.monotonic() > until:
                    raise
                if not pause:
                    log.warning("waiting for %s: %s", self._place.name, first_line(error))
                time.sleep(pause)
                pause = min(pause + 0.05, 1.0)

    def _transact(
        self, body: Callable[[Tx], None], synced: bool, reaches: Sequence[Reach | None]
    ) -> Tx:
        level = self._synced if synced else self._plain
        channel, tx = self._writing()
        if self._cache.crowded:
            self._cache.shrink()
        try:
            if queue := self._short.queue_of(reaches, self._homes.find):
                self._hold_back(
                    channel, tx, queue, lambda: self._begin_late(channel, tx, level, reaches)
                )
            else:
                self._begin(channel, tx, level, reaches)
            body(tx)
            tx.leave()
            if not tx.written:  # what it has read must be what is stored
                channel.start()
        except BaseException as error:
            self._undo(channel, error)
            raise
        rows = self._rows(tx.written)
        # A single verb is synced in the same round trip, unless brokers share a flush.
        # A single verb is synced in the same round trip, unless brokers share a flush.
        fast = self._flushes.fast or (len(reaches) == 1 and not self._flushes.shared)
        at_once = synced and fast and bool(rows) and self.sync is not None
        self._commit(channel, tx, level, rows, at_once)
        if tx.granted is None:
            # Nothing was asked about the fences of queues that it was the first to read.
            for queue in self._cache.of_queues - self._versions.keys():
                self._versions[queue] = UNREAD
        self._locks.made(tx.granted or ())
        return tx

    def _begin_late(
        self,
        channel: PipelinedConnection,
        tx: FencedTx,
        level: str,
        reaches: Sequence[Reach | None],
    ) -> None:
        """Lock what a running transaction has, which must not have changed since it began."""
        known = self._versions.copy()
        granted, now, _ = self._lock(channel, level, reaches)
        moved = any(self._versions.get(fence) != n for fence, n in known.items())
        now = self.clock.follow(now) if isinstance(self.clock, ServerClock) else tx.now
        if moved or abs(now - tx.now) > MOST_MICROSECONDS or granted is None:
            raise Moved

    def _begin(
        self,
        channel: PipelinedConnection,
        tx: FencedTx,
        level: str,
        reaches: Sequence[Reach | None],
    ) -> None:
        """Begin a transaction under the fences of the first verb, and those of others that are free."""
        granted, now, on_disk = self._lock(channel, level, reaches)
        tx.grant(granted)
        if granted is None:
            self._record.may_show_others(on_disk)
            tx.compared = None if on_disk else self._versions
        clock = self.clock
        tx.begin(clock.follow(now) if isinstance(clock, ServerClock) else clock.now(), False)
        if granted is None:
            tx.enter(EVERYTHING)

    def _lock(
        self, channel: PipelinedConnection, level: str, reaches: Sequence[Reach | None]
    ) -> tuple[frozenset[int] | None, int, bool]:
        """Take the fences of the first verb, and those of others that are free.

        Returns what it took (None: the whole schema), the server's time, and whether everything that
        was committed is on disk.
        """
        channel.begin(BEGIN)
        if level == "on" or channel.db.pooled:
            channel.write(SET_LEVEL, (level,))
        first = reaches[0]
        if first is not None and not self._homes.find(first):
            self._homes.ask(channel, reaches)
            if not self._homes.find(first):
                first = None  # a queue that is to be created
        if first is None:
            self._locking = self._locks.keys([SCHEMA])
            self._locks.take_schema(channel)
            granted: frozenset[int] | None = None
            if len(self._versions) > MOST_FENCES:
                self._forget()
            now, on_disk = self._look(channel, {SCHEMA, *self._versions}, [])[1:]
        else:
            assert first.fences is not None
            wanted = first.fences
            self._locking = self._locks.keys([SCHEMA, *wanted])
            self._locks.share_schema(channel, wanted)
            more = {
                fence
                for reach in reaches
                if reach is not None and self._homes.find(reach)
                for fence in reach.fences or ()
            } - wanted
            free = self._locks.take_free(more) if more else None
            known = self._versions.get(SCHEMA)
            got, now, on_disk = self._look(
                channel, {SCHEMA, *wanted, *more}, [free] if free else []
            )
            granted = wanted | got
            if self._versions[SCHEMA] != known:  # names may mean other queues now
                self._homes.ask(channel, reaches)
                if not self._homes.find(first) or not first.fences <= granted:
                    raise Moved
                for reach in reaches:
                    if reach is not None:
                        self._homes.find(reach)
        if on_disk:
            self._record.all_on_disk()
        channel.wrote = False
        return granted, now, on_disk

    def _look(
        self,
        channel: PipelinedConnection,
        fences: set[int],
        free: list[Query],
    ) -> tuple[set[int], int, bool]:
        """Read the versions of fences, and clear what others have changed since.

        Returns the fences that a query for free ones got, the time, and whether everything that was
        committed is on disk.
        """
        listed = sorted(fences)
        known = [self._versions.get(fence, -1) for fence in listed]
        *taken, rows = channel.execute_all([*free, (LOOK, (bigints(listed), bigints(known)))])
        now, schema, on_disk = rows[0][3:]
        found = {row[0]: row for row in rows}
        moved = [row for row in rows if row[1] != self._versions.get(row[0], -1)]
        version = found[SCHEMA][1]
        if version != self._versions.get(SCHEMA):
            self._forget()
            self._versions[SCHEMA] = version
            migrate.refuse_newer(int(schema), self._schema)
            moved = [row for row in rows if row[0] != SCHEMA]
        for fence, n, packed, *_ in moved:
            if fence > SCHEMA:
                if self._versions.get(fence):
                    self._met[fence] = time.monotonic() + MET_SECONDS
                    self._short.note_shared(fence)
                self._cache.clear_queue(QueueId(fence))
                hints.unpack(packed, self._cache, version, QueueId(fence))
            self._versions[fence] = n
        if moved:
            self._record.saw_others(on_disk)
        return {fence for rows in taken for (fence,) in rows}, now, on_disk

    def _forget(self) -> None:
        """Clear everything that is cached."""
        self._cache.clear()
        self._versions.clear()
        self._homes.forget_names()

    def _writing(self) -> tuple[PipelinedConnection, FencedTx]:
        if self._closed:
            raise SessionClosed()
        if self._writer is None or self._tx is None:
            db = self._open()
            if not db.pooled:
                db.execute(ON_CONNECT)
            self._writer = channel = PipelinedConnection(db)
            self._tx = FencedTx(
                channel,
                self._statements,
                self._cache,
                lambda: self._savepoint(channel),
                channel.insert,
                store=self.id,
                now=self.clock.now(),
                writes=True,
                record=self._record if self.sync is not None else None,
            )
            self._tx.homes = self._homes.leases
            self._tx.next_block = lambda: next_block(channel, self._place.open, self._can.sequences)
            self._tx.stocks_body_ids = self._can.sequences and not db.pooled
            self._tx.latest = self._latest
        return self._writer, self._tx

    def _open(self) -> Connection:
        """Open a connection, and find out which unsynced commits a crash has lost. Under `_alone`."""
        db = self._place.open()
        try:
            pending = self._record.pending()
            if pending:
                fences, numbers = [m.fence for m in pending], [m.n for m in pending]
                with db.begun():
                    asked = RawCursor(db).execute(
                        OUR_ROWS, (bigints(fences), bigints(numbers), self._me), binary=True
                    )
                    rows = asked.fetchall()
                self._record.found(set(rows))
        except BaseException:
            db.close()
            raise
        return db

    def _sync(self, number: int) -> None:
        """Put on disk what was committed, at least up to a number; 0: everything."""
        record = self._record
        with self._syncing:
            number = number or record.committed
            if record.synced < number:
                upto = record.committed
                with self._translated():
                    self._patiently(self._write_sync)
                if number not in record.lost:
                    record.confirm(upto)
            if number in record.lost:
                raise CommitLost

    def _write_sync(self) -> None:
        """Make a synced commit, after which everything that was committed before is on disk."""
        if self._syncer is None:
            with self._alone:
                self._syncer = PipelinedConnection(self._open())
        channel = self._syncer
        try:
            self._flushes.flush(channel)
        except BaseException:
            self._syncer = None
            channel.close()
            raise

    def _undo(self, channel: PipelinedConnection, error: BaseException) -> None:
        self._forget()
        if not channel.rollback(error):
            self._writer = None

    def _read(self, body: Callable[[Tx], T]) -> T:
        channel = self._readers.pop() if self._readers else PipelinedConnection(self._place.open())
        record = Unchecked() if self.sync is not None else None
        tx = Tx(
            channel.execute,
            channel.write,
            self._statements,
            Cache(),
            lambda: self._savepoint(channel),
            channel.insert,
            store=self.id,
            now=self.clock.now(),
            writes=False,
            record=record,
        )
        try:
            channel.begin("begin isolation level repeatable read read only")
            answer = body(tx)
            # It shows messages, of which some may not be on disk. They are synced on the same
            # connection: if a crash loses them, it is lost too, and the body runs again.
            behind = tx.sync_number and not channel.execute(f"select {ON_DISK}")[0][0]
            channel.commit(SYNC if behind else None)
        except BaseException as error:
            if channel.rollback(error):
                self._keep(channel)
            raise
        self._keep(channel)
        return answer

    def _keep(self, reader: PipelinedConnection) -> None:
        """Keep a connection for the next read, unless the store was closed during this one."""
        self._readers.append(reader)
        if self._closed:
            self._close_readers()

    def _close_readers(self) -> None:
        with contextlib.suppress(IndexError):  # another thread took the last one
            while self._readers:
                self._readers.pop().close()

    @contextlib.contextmanager
    def _savepoint(self, channel: PipelinedConnection) -> Iterator[None]:
        channel.start()
        channel.write("savepoint verb")
        try:
            yield
        except BaseException:
            self._cache.clear()
            channel.write("rollback to verb")
            channel.write("release verb")
            raise
        channel.write("release verb")

    def _translated(self) -> contextlib.AbstractContextManager[None]:
        return translated(self._place.name, lambda: self._closed)
