"""The shared store: a schema in a PostgreSQL database, used by any number of brokers.

The brokers may run on any machines. Limits: one broker writes at a time, in one transaction for all
its queued verbs, so more brokers serve more clients but do not increase write throughput; a broker
that finds that another broker has written clears its cache and reads the records again.
"""

import contextlib
import hashlib
import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import psycopg
from psycopg import errors as pg

from ... import ids
from ...clock import FAR, Bearing, Clock, SystemClock
from ...errors import (
    InvalidArgument,
    NotADatabase,
    OutcomeUnknown,
    SessionClosed,
    StorageAway,
    StorageBusy,
    StorageFailed,
    StorageFull,
)
from .. import hints, migrate
from ..cache import Cache
from ..durability import MayLose, chosen
from ..tx import CLOCK_BACK, Tx
from .connection import Connection, DatabaseUrl, PipelinedConnection, statements
from .notify import Notifier

T = TypeVar("T")

# `synchronous_commit` for verbs that must be on disk when they are answered, and for all others.
LEVELS: dict[MayLose, tuple[str, str]] = {
    "nothing": ("on", "on"),
    "acks": ("on", "off"),
    "recent": ("off", "off"),
    "everything": ("off", "off"),
}
BEGIN = "select set_config('synchronous_commit', $1, true), pg_advisory_xact_lock($2)"
# Run while the lock is held, so that the result is current and includes every earlier transaction.
# The newest index entry is read first, so that dead rows before it are not visited.
LOOK = """select n, (extract(epoch from clock_timestamp()) * 1000000)::bigint,
    (select value from meta where key = 'schema'), hints from writes order by n desc limit 1"""
WROTE = """with before as (delete from writes where n = $3)
    insert into writes (n, broker, hints) values ($1, $2, $4)"""
FORGET = """delete from writes where at < now() - interval '1 day'
    and n < (select max(n) from writes)"""
# The server's time, and the newest time that was written while the clock was ahead.
CLOCKS = """select (extract(epoch from clock_timestamp()) * 1000000)::bigint,
    (select (extract(epoch from max(at)) * 1000000)::bigint
        from writes where at > now() + interval '60 seconds')"""
# How long a call blocks while the server is unavailable: during a restart or a failover.
AWAY_SECONDS = 30.0
# SQLSTATE prefixes of a terminated connection: connection failure, shutdown, session timeouts.
LOST = ("08", "57P", "25P03", "25P04")
# Connection errors that are not retried. A server that starts or stops also reports FATAL.
REFUSED = re.compile(
    "FATAL:(?!.*(starting up|shutting down|recovery|not yet accepting|too many|slots are reserved"
    "|terminating|server login|server conn|timeout|cannot connect))"
    "|no password supplied|SSL|Name or service not known"
)
log = logging.getLogger("ackflow")


class ServerClock(SystemClock):
    """The clock of the database server, as last read, advanced by the local monotonic clock."""

    _asked = False

    def follow(self, now: int) -> int:
        """Set the clock to the server's time, and return the time that applies.

        Steps of the server's clock are followed; a step of more than a day only after it has lasted
        for five minutes.
        """
        steady, bearing = self._steady(), self._course.bearing
        offset = now * 1000 - steady
        if self._asked and abs(offset - bearing.offset) > FAR:
            bearing = bearing.towards(now * 1000, steady)
        else:
            bearing = Bearing(offset, steady)
        self._asked = True
        self._steer(bearing)
        return now if bearing.offset == offset else self.now()

    def _look(self, steady: int) -> None:
        pass  # the wall clock of this machine is not used


class PostgresStore:
    """A schema in a PostgreSQL database, created if it is missing and the role may create it."""

    def __init__(self, url: str, clock: Clock | None, may_lose: MayLose | None = None) -> None:
        self._place = DatabaseUrl(url)
        self.clock: Clock = clock or ServerClock()
        self.interrupted: BaseException | None = None
        self._hurried = False
        self.sync: None = None  # a synced commit is on the server's disk when it returns
        self._synced, self._plain = chosen(LEVELS, may_lose)
        self._lock_key = lock_key(self._place.schema)
        self._statements = statements()
        self._cache = Cache()
        self._me = secrets.randbits(62)
        self._version = -1
        self._wrote = -1  # the number of this broker's last row in `writes`
        self._latest = 0
        self._alone = threading.RLock()
        self._readers: list[PipelinedConnection] = []
        self._writer: PipelinedConnection | None = None
        self._tx: Tx | None = None
        self._closed = False
        self._notifier = Notifier(self._place.open, self._place.schema)
        with self._translated():
            seconds = min(AWAY_SECONDS, self._place.connect_seconds)
            self._schema, self.id = self._patiently(self._set_up, seconds)

    def transact(self, body: Callable[[Tx], None], synced: bool) -> Tx:
        """Run a body in one transaction; on return it is committed, on error it is rolled back.

        The exception is OutcomeUnknown: the connection was lost during the commit, and the server
        remains unavailable. If the connection is lost and nothing was committed, the body runs
        again.
        """
        level = self._synced if synced else self._plain
        with self._alone, self._translated():
            tx = self._patiently(lambda: self._transact(body, level))
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
        for channel in [*self._readers, self._writer]:
            if channel is not None:
                channel.close()
        self._readers.clear()

    def _set_up(self) -> tuple[int, int]:
        """Create or migrate the schema if needed; returns its version and the store id."""
        with contextlib.closing(self._place.open()) as db:
            schema = _migrate(db, self._place.schema, self._lock_key)
            with db.begun():
                store = _store_id(db)
                db.execute(FORGET)
                if isinstance(self.clock, ServerClock):
                    self.clock.follow(_look_at_clocks(db))
        return schema, store

    def _patiently(self, work: Callable[[], T], seconds: float | None = None) -> T:
        """Run `work`, and retry it while the server is unavailable.

        If the lock times out, terminate a hung broker that holds it, and try once more.
        """
        until = time.monotonic() + (AWAY_SECONDS if seconds is None else seconds)
        pause = 0.0
        locked = False
        while True:
            try:
                return work()
            except pg.LockNotAvailable:
                if locked:
                    raise
                locked = True
                self._place.end_hung(self._lock_key)
            except psycopg.Error as error:
                if not _lost(error) or self._closed or self._hurried or time.monotonic() > until:
                    raise
                if not pause:
                    log.warning("waiting for %s: %s", self._place.name, _first_line(error))
                time.sleep(pause)
                pause = min(pause + 0.05, 1.0)

    def _transact(self, body: Callable[[Tx], None], level: str) -> Tx:
        channel = self._writing()
        try:
            tx = self._begin(channel, level)
            body(tx)
            tx.flush()
        except BaseException as error:
            self._undo(channel, error)
            raise
        version = self._version
        try:
            if channel.wrote:
                version += 1
                channel.write(WROTE, (version, self._me, self._wrote, hints.pack(self._cache)))
            channel.commit()
        except BaseException as error:
            wrote = version if version != self._version else None
            self._undo(channel, error)
            if wrote is None or not self._was_committed(wrote):
                raise
            self._wrote = wrote
            if not isinstance(error, Exception):
                self.interrupted = error
        else:
            if version != self._version:
                self._version = self._wrote = version
        self._latest = tx.latest = tx.now
        return tx

    def _begin(self, channel: PipelinedConnection, level: str) -> Tx:
        """Begin a transaction under the writer lock, with the current time."""
        channel.begin("begin")
        channel.write(BEGIN, (level, self._lock_key))
        version, now, schema, known = channel.execute(LOOK)[0]
        channel.wrote = False
        if version != self._version:
            self._cache.clear()
            self._version = version
            hints.unpack(known, self._cache)
            migrate.refuse_newer(int(schema), self._schema)
        if self._cache.crowded:
            self._cache.shrink()
        clock = self.clock
        now = clock.follow(now) if isinstance(clock, ServerClock) else clock.now()
        assert self._tx is not None
        self._tx.begin(now, False)
        return self._tx

    def _writing(self) -> PipelinedConnection:
        if self._closed:
            raise SessionClosed()
        if self._writer is None:
            self._writer = PipelinedConnection(self._place.open())
            self._tx = self._new_tx(self._writer, self._cache, writes=True)
            self._tx.latest = self._latest
        return self._writer

    def _undo(self, channel: PipelinedConnection, error: BaseException) -> None:
        self._cache.clear()
        self._version = -1
        if not channel.rollback(error):
            self._writer = None

    def _was_committed(self, version: int) -> bool:
        """Return whether a transaction was committed whose commit got no response."""
        try:
            return self._patiently(lambda: self._is_written(version))
        except psycopg.Error as error:
            raise OutcomeUnknown() from error

    def _is_written(self, version: int) -> bool:
        with contextlib.closing(self._place.open()) as db, db.begun():
            # The server may still be committing it; the lock is free once that has ended.
            db.execute("select pg_advisory_xact_lock(%s)", (self._lock_key,))
            mine = "select 1 from writes where n = %s and broker = %s"
            return db.execute(mine, (version, self._me)).fetchone() is not None

    def _read(self, body: Callable[[Tx], T]) -> T:
        channel = self._readers.pop() if self._readers else PipelinedConnection(self._place.open())
        try:
            channel.begin("begin isolation level repeatable read read only")
            answer = body(self._new_tx(channel, Cache(), writes=False))
            channel.commit()
        except BaseException as error:
            if channel.rollback(error):
                self._readers.append(channel)
            raise
        self._readers.append(channel)
        return answer

    def _new_tx(self, channel: PipelinedConnection, cache: Cache, *, writes: bool) -> Tx:
        return Tx(
            channel.execute,
            channel.write,
            self._statements,
            cache,
            lambda: self._savepoint(channel),
            channel.insert,
            store=self.id,
            now=self.clock.now(),
            writes=writes,
        )

    @contextlib.contextmanager
    def _savepoint(self, channel: PipelinedConnection) -> Iterator[None]:
        channel.write("savepoint verb")
        try:
            yield
        except BaseException:
            self._cache.clear()
            channel.write("rollback to verb")
            channel.write("release verb")
            raise
        channel.write("release verb")

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate errors of PostgreSQL, with a message that says what to do."""
        where = self._place.name
        try:
            yield
        except pg.DiskFull:
            raise StorageFull(f"the disk of {where} is full: nothing is written there") from None
        except pg.LockNotAvailable:
            raise StorageBusy() from None
        except pg.InsufficientPrivilege as error:
            raise StorageFailed(f"cannot use {where}: {_first_line(error)}") from None
        except psycopg.OperationalError as error:
            if self._closed:
                raise SessionClosed() from None
            raise StorageAway(f"there is no connection to {where}: {_first_line(error)}") from error
        except psycopg.Error as error:
            raise StorageFailed(f"the database {where} failed: {_first_line(error)}") from error


def _migrate(db: Connection, schema: str, lock: int) -> int:
    """Migrate a schema to the newest version, in one transaction, and return its version.

    Other brokers may do the same concurrently.
    """
    shipped = migrate.shipped("postgres")
    newest = shipped[-1][0]
    with db.begun():
        db.execute("select pg_advisory_xact_lock(%s)", (lock,))
        tables = db.execute("select tablename from pg_tables where schemaname = %s", (schema,))
        names = {row[0] for row in tables.fetchall()}
        if names and not {"meta", "writes"} <= names:
            raise NotADatabase(f"the schema {schema} holds tables of another program")
        version = 0
        if names:
            row = db.execute("select value from meta where key = 'schema'").fetchone()
            version = int(str(row[0])) if row else 0
        migrate.refuse_newer(version, newest)
        if version == newest:
            return newest
        if not names:
            db.execute(f'create schema if not exists "{schema}"'.encode())
        for sql in migrate.missing(version, shipped, migrate.schema("postgres")):
            db.execute(sql.encode())
        put = "insert into meta values ('schema', %s) on conflict (key) do update set value = %s"
        db.execute(put, (str(newest), str(newest)))
    return newest


def _look_at_clocks(db: Connection) -> int:
    """Return the server's time; store a mark if its clock went back since the last write."""
    row = db.execute(CLOCKS).fetchone()
    assert row is not None
    now, last = row
    if last is not None:
        put = "insert into meta values (%s, %s) on conflict (key) do update set value = %s"
        mark = f"{now} {last}"
        db.execute(put, (CLOCK_BACK, mark, mark))
        db.execute("update writes set at = now() where at > now()")
    return int(str(now))


def _store_id(db: Connection) -> int:
    db.execute(
        "insert into meta values ('store', %s) on conflict do nothing", (str(ids.new_store()),)
    )
    row = db.execute("select value from meta where key = 'store'").fetchone()
    assert row is not None
    return int(str(row[0]))


def lock_key(schema: str) -> int:
    """Return the key of the advisory lock of the brokers on one schema."""
    digest = hashlib.blake2b(f"ackflow {schema}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def _lost(error: psycopg.Error) -> bool:
    """Return whether an error means a lost or unavailable connection, not a failed statement."""
    if error.sqlstate is None:  # connection errors have no SQLSTATE, and one line for each server
        tried = re.findall("^- host: .*", str(error), re.MULTILINE) or [_first_line(error)]
        return isinstance(error, psycopg.OperationalError) and any(
            not REFUSED.search(attempt) for attempt in tried
        )
    return error.sqlstate.startswith(LOST)


def _first_line(error: psycopg.Error) -> str:
    return str(error).strip().partition("\n")[0]
