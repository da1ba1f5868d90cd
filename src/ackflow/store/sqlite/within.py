"""Work inside a transaction of the user's own SQLite connection, on the file of the queue.

The user's connection is one more writer of the file: SQLite lets one write at a time, other
processes find its commit by the data version, and the messages it adds are numbered in the sync
record before they are visible, so that no id is shown before it is on disk.
"""

import contextlib
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import apsw

from ...clock import Clock, FileClock
from ...errors import (
    InvalidArgument,
    NotADatabase,
    StorageBusy,
    StorageFailed,
    StorageFull,
)
from .. import migrate
from ..cache import Cache
from ..mapping import Row
from ..tx import Tx
from .disk_reserve import DiskReserve
from .open_files import is_open_here
from .store import LOSSY, MODE
from .wal_sync import SyncRecord, boot_id

T = TypeVar("T")
SqliteConnection = apsw.Connection | sqlite3.Connection
LEAST = (3, 38, 0)
NO_TRANSACTION = (
    "the connection has no open transaction that a message could belong to; "
    "execute `begin immediate` first"
)
TWO_COPIES = (
    "this process has the file open in an Ackflow session, which uses another copy of SQLite than the "
    "module sqlite3: the two would cancel each other's locks. Use an apsw.Connection, or close the "
    "session"
)
STALE = (
    "another connection writes to the file, or has written since your transaction first read; "
    "roll back, and begin again with `begin immediate`"
)


class OuterTransaction:
    """The open transaction of a connection; `run` adds to it, or changes nothing and raises."""

    def __init__(self, connection: SqliteConnection, clock: Clock | None = None) -> None:
        self._db = connection
        self._clock: Clock = clock or FileClock()
        self._statements = migrate.statements("sqlite")

    def run(self, body: Callable[[Tx], T]) -> T:
        """Run a body in a savepoint of the user's transaction, with the write lock held."""
        with _translated(), _cursor(self._db) as execute:
            path = self._check(execute)
            execute("savepoint ackflow_within", ())
            try:
                # A write that changes nothing: it takes the write lock, or fails if the snapshot
                # of the transaction is not the newest state.
                execute("delete from meta where key is null", ())
                tx = self._tx(execute, path)
                answer = body(tx)
                tx.flush()
            except BaseException:
                # SQLite itself rolls back the whole transaction when the disk is full.
                with contextlib.suppress(apsw.Error, sqlite3.Error):
                    execute("rollback to ackflow_within", ())
                    execute("release ackflow_within", ())
                raise
            execute("release ackflow_within", ())
            return answer

    def _check(self, execute: "Execute") -> str:
        """Refuse a connection that is not in a transaction on an Ackflow file; return its path."""
        if _version(self._db) < LEAST:
            raise InvalidArgument(f"SQLite {'.'.join(map(str, LEAST))} or newer is needed")
        path = str(execute("select file from pragma_database_list where name = 'main'", ())[0][0])
        if not path:
            raise InvalidArgument("a private database in memory has no queue that others can read")
        if (
            isinstance(self._db, sqlite3.Connection)
            and apsw.using_amalgamation
            and is_open_here(path)
        ):
            raise InvalidArgument(TWO_COPIES)
        if not self._db.in_transaction:
            if isinstance(self._db, apsw.Connection) or self._db.isolation_level is None:
                raise InvalidArgument(NO_TRANSACTION)
            execute("begin immediate", ())  # as the module does itself before an INSERT
        if execute("pragma application_id", ())[0][0] != migrate.APPLICATION_ID:
            raise NotADatabase(
                f"{path} holds no queue; ackflow.connect creates one in a new file, to which your own "
                "tables can be added"
            )
        version, newest = execute("pragma user_version", ())[0][0], migrate.shipped("sqlite")[-1][0]
        migrate.refuse_newer(version, newest)
        if version < newest:
            raise StorageFailed(f"{path} has schema {version}; open it once with ackflow.connect")
        return path

    def _tx(self, execute: "Execute", path: str) -> Tx:
        meta = {
            key: found[0][0]
            for key in ("store", MODE, "clock")
            if (found := execute(self._statements["get_meta"], (key,)))
        }
        mode = meta.get(MODE)
        if isinstance(self._clock, FileClock):
            self._clock.agree(meta.get("clock"), writes=False)
        return Tx(
            execute,
            execute,
            self._statements,
            Cache(),
            lambda: _savepoint(execute),
            lambda sql, args: _insert(execute, sql, args),
            store=int(meta["store"]),
            now=self._clock.now(),
            writes=True,
            full=not DiskReserve(path).allocated(),
            record=None if mode in LOSSY else self._record(execute, path, str(mode)),
        )

    def _record(self, execute: "Execute", path: str, mode: str) -> SyncRecord | None:
        synchronous = execute("pragma synchronous", ())[0][0]
        if synchronous == 0 or (mode == "nothing" and synchronous < 2):
            raise InvalidArgument(
                f"the file may lose {mode} in a power cut, and the connection syncs less than that; "
                "execute `pragma synchronous = full` before the transaction"
            )
        try:
            record = SyncRecord(path + "-sync", os.stat(path).st_mode & 0o777)
        except OSError as error:
            raise StorageFailed(f"cannot write {path}-sync: {error.strerror}") from error
        record.begin(zlib.crc32(boot_id().encode()))
        if record.in_doubt:
            raise StorageFailed(
                f"the disk of {path} did not confirm earlier writes; open it with ackflow.connect"
            )
        return None if mode == "nothing" else record  # there, every commit is synced


Execute = Callable[[str, Sequence[Any]], list[Row]]


@contextlib.contextmanager
def _cursor(db: SqliteConnection) -> Iterator[Execute]:
    """A cursor that returns tuples and str, whatever the connection is set to."""
    if isinstance(db, apsw.Connection):
        own = db.cursor()
        own.row_trace = lambda _, row: row
        own.exec_trace = lambda *_: True
        yield lambda sql, args: own.execute(sql, args).fetchall()
        return
    cursor, factory = db.cursor(), db.text_factory
    cursor.row_factory = None
    db.text_factory = str
    try:
        yield lambda sql, args: cursor.execute(sql, args).fetchall()
    finally:
        db.text_factory = factory
        cursor.close()


def _insert(execute: Execute, sql: str, args: Sequence[Any]) -> int:
    execute(sql, args)
    return int(execute("select last_insert_rowid()", ())[0][0])


@contextlib.contextmanager
def _savepoint(execute: Execute) -> Iterator[None]:
    execute("savepoint verb", ())
    try:
        yield
    except BaseException:
        execute("rollback to verb", ())
        execute("release verb", ())
        raise
    execute("release verb", ())


def _version(db: SqliteConnection) -> tuple[int, ...]:
    text = (
        sqlite3.sqlite_version if isinstance(db, sqlite3.Connection) else apsw.sqlite_lib_version()
    )
    return tuple(int(part) for part in text.split("."))


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (apsw.BusyError, apsw.LockedError):
        raise StorageBusy(STALE) from None
    except apsw.FullError:
        raise StorageFull() from None
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise StorageBusy(STALE) from None
        if "full" in str(error):
            raise StorageFull() from None
        raise StorageFailed(f"your connection failed: {error}") from error
    except (apsw.Error, sqlite3.Error) as error:
        raise StorageFailed(f"your connection failed: {error}") from error
