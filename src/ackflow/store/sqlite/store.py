"""The embedded store: one SQLite file in WAL mode, used by any number of threads and processes.

Limits: one writer at a time per file; other processes detect a push by polling (every 5 to
40 ms while they wait); local disks only: SQLite's shared memory does not work on network file systems.
"""

import contextlib
import errno
import os
import random
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar, cast

import apsw

from ... import ids
from ...clock import AHEAD, Clock, FileClock, SystemClock, written_at
from ...errors import (
    AckflowError,
    InvalidArgument,
    OutcomeUnknown,
    SessionClosed,
    StorageBusy,
    StorageFailed,
    StorageFull,
)
from .. import migrate
from ..cache import Cache
from ..durability import MayLose, agreed, checked
from ..mapping import Row
from ..protocol import EVERYTHING, Reach
from ..statements import Execute
from ..tx import CLOCK_BACK, Tx
from .backup import COPY_OF, backup
from .checkpoint import NOW_PAGES, Checkpointer
from .create import create_file, fill_memory
from .disk_reserve import DiskReserve
from .errors import translated
from .open_files import file_at, opened, refuse_inherited
from .wal_sync import SyncRecord, WalFile, boot_id

T = TypeVar("T")

# The value of `pragma synchronous`, and whether this store fsyncs the WAL for verbs that need it.
LEVELS: dict[MayLose, tuple[str, bool]] = {
    "nothing": ("full", False),
    "acks": ("normal", True),
    "recent": ("normal", False),
    "everything": ("off", False),
}
PAGE_SIZE = 4096
CACHE_KIB = 8_192  # a larger cache costs page faults in each large push
BUSY_SECONDS = 30.0
CLOSING_SECONDS = 1.0
LOOK_SECONDS = 0.1
ROOM_INSIDE = 4 * 1024 * 1024
DEAD_SYNC_SECONDS = 0.1
OTHER_SYNC_SECONDS = 0.005
MODE = "may_lose"
LOSSY = ("recent", "everything")


class SqliteStore:
    """A database file, or a private database in memory for the path `:memory:`."""

    by_queue = False  # SQLite has one lock
    launch = None  # there is no server to wait for

    def __init__(
        self,
        path: str,
        clock: Clock | None,
        may_lose: MayLose | None = None,
        vfs: str | None = None,
        sync: Callable[[], None] | None = None,
    ) -> None:
        """Without `may_lose` the mode of the file applies, and for a new file the default.

        `vfs` and `sync` are for tests: another VFS, and a function that fsyncs its WAL.
        """
        checked(may_lose)
        self.path = path
        # A custom VFS has no shared memory, and a database in memory has no second connection.
        self._single = path == ":memory:" or vfs is not None
        self.clock: Clock = clock or (SystemClock() if self._single else FileClock())
        self._shared_clock = self.clock if isinstance(self.clock, FileClock) else None
        self._hurried = threading.Event()
        self._vfs = vfs
        self._cache = Cache()
        self._statements = migrate.statements("sqlite")
        self._version = -1
        self.interrupted: BaseException | None = None
        self._full = False
        self._bare = False  # the reserve is released: pushes need free pages in the file
        self._next_space_check = 0.0
        self._alone = threading.RLock()
        self._closed = False
        self._readers: list[apsw.Connection] = []
        self._others = 0  # changes by other connections, as seen by transactions
        self._seen = 0  # the same, as seen by `changed` between transactions
        # The process may change its working directory.
        self._place = path if self._single else os.path.abspath(path)
        self._reserve = DiskReserve(None if self._single else self._place)
        self._checkpointer = Checkpointer(self._open, lambda: self._record.fail())
        self._syncing = threading.Lock()
        self._committed = 0  # the highest number in the sync record that this store has committed
        self._pid = os.getpid()
        if not self._single:
            refuse_inherited(path)
        with translated(path):
            self._db = self._first_open()
            self._write = self._db.cursor().execute
            self._write_many = self._db.cursor().executemany
            self._execute = _executor(self._db)
            try:
                self.id, level, by_hand = self._identity(may_lose)
                self._db.pragma("synchronous", level)
                shares = (by_hand or level == "full") and not self._single
                self._log = WalFile(self._db.filename_wal) if shares else None
            except BaseException:
                self._db.close()
                raise
        self._sync_log = self._log.sync if self._log else sync
        self.sync = self._sync if by_hand and self._sync_log else None
        self._doubt_dead_syncs()
        self._writing = self._tx(self._execute, self._cache, writes=True)
        if not self._single:
            self._full = not self._reserve.allocate(again=not self._created)
            self._file = file_at(self._place)
            opened.add(self)

    def _sync(self, number: int) -> None:
        """Fsync the WAL up to a number of the sync record, and everything this store has committed.

        Another thread or process may have done it meanwhile: an fsync covers all earlier writes.
        """
        record = self._record
        if number:
            self._await_other(number)
        with self._syncing:
            if self._closed:
                raise SessionClosed()
            if record.reached(number or self._committed):
                return
            number = max(number, self._committed)
            if record.ask(number):
                self._sync_whole()
            while not record.confirm(number):
                try:
                    self._clear_doubt()
                except StorageFailed as error:
                    raise OutcomeUnknown(str(error)) from error

    def _await_other(self, number: int) -> None:
        """Wait for another process that is syncing: a second fsync would slow down the first."""
        until = time.monotonic() + OTHER_SYNC_SECONDS
        while self._record.unconfirmed >= number and not self._syncing.locked():
            if time.monotonic() > until:
                return
            time.sleep(0.0001)

    def _sync_shown(self) -> None:
        """Fsync the whole WAL for a reader, which does not hold the write lock."""
        with self._syncing:
            if self._closed:
                raise SessionClosed()
            self._sync_whole()
            if self._record.in_doubt:
                self._clear_doubt()

    def _sync_whole(self) -> None:
        assert self._sync_log is not None
        try:
            self._sync_log()
        except OutcomeUnknown:
            self._record.fail()
            raise

    def _doubt_dead_syncs(self) -> None:
        """Treat an fsync whose process died as failed.

        The system reports a failed fsync to processes that had the WAL open, but not to those that
        open it later.
        """
        asked = 0 if self._record.in_doubt else self._record.unconfirmed
        until = time.monotonic() + DEAD_SYNC_SECONDS
        while asked and self._record.synced < asked:
            if time.monotonic() > until:
                self._record.fail()
                return
            time.sleep(0.001)

    def _clear_doubt(self) -> None:
        """Rewrite the whole WAL after a failed fsync, before anything is confirmed.

        A later fsync may succeed although pages are missing on disk, and everything behind them in
        the WAL would be lost with them. The first process that needs an fsync does it for all.
        """
        failures = self._record.failures
        try:
            with self._alone, translated(self.path):
                if self._log is None:
                    self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
                else:
                    if self._db.in_transaction:
                        self._undo()
                    self._execute("begin immediate", ())  # keeps other writers out of the WAL
                    try:
                        self._log.rewrite()
                    finally:
                        self._execute("rollback", ())
        except AckflowError as error:
            raise StorageFailed(
                f"the disk of {self.path} did not confirm earlier writes, and no more are accepted until "
                f"it does ({error}); check the disk, and open the file again"
            ) from error
        self._record.clear(failures)

    def transact(
        self,
        body: Callable[[Tx], None],
        synced: bool,
        reaches: Sequence[Reach | None] = (EVERYTHING,),
    ) -> Tx:
        """Run a body in one transaction; on return it is committed, on error it is rolled back.

        `synced`: it must be on disk before it is answered, and needs free space.
        """
        if synced and self._record.in_doubt:
            self._clear_doubt()
        if synced and (self._full or time.monotonic() > self._next_space_check):
            self._next_space_check = time.monotonic() + LOOK_SECONDS
            self.look_for_space()
        elif synced and self._bare:
            self._full = not self._roomy()
        with self._alone:
            try:
                return self._transact(body, synced)
            except apsw.FullError:
                self._full = True
                self._reserve.release()
                self._checkpointer.checkpoint(self._db, truncate=True)
                with translated(self.path):
                    return self._transact(body, synced)
            except apsw.Error as error:
                with translated(self.path):
                    raise error

    def transact_at_once(self, body: Callable[[Tx], None], synced: bool) -> Tx | None:
        """Like `transact`; None, and nothing is changed, if it would wait for anything."""
        unsure = self._record.in_doubt or self._full or self._bare
        if synced and (unsure or time.monotonic() > self._next_space_check):
            return None
        if self._checkpointer.due(self._db) or not self._alone.acquire(blocking=False):
            return None
        try:
            self._db.set_busy_handler(None)
            self._db.wal_autocheckpoint(0)
            return self._transact(body, synced, waits=False)
        except (apsw.BusyError, apsw.FullError):
            return None
        finally:
            self._db.wal_autocheckpoint(NOW_PAGES)
            self._db.set_busy_handler(_busy_handler(self._hurried))
            self._alone.release()

    def read(self, body: Callable[[Tx], T]) -> T:
        """Run a body in a read-only transaction, concurrently with the writer."""
        if self._single:
            with self._alone, translated(self.path):
                tx = self._tx(self._execute, self._cache)
                answer = body(tx)
        else:
            tx, answer = self._read(body)
        if tx.sync_number:
            self._sync_shown()
        return answer

    def _read(self, body: Callable[[Tx], T]) -> tuple[Tx, T]:
        with translated(self.path):
            db = self._readers.pop() if self._readers else self._open()
            execute = _executor(db)
            execute("begin", ())
            try:
                self._refuse_newer(db)
                self._now(execute, writes=False)
                tx = self._tx(execute, Cache())
                return tx, body(tx)
            finally:
                execute("commit", ())
                if self._closed:
                    db.close()
                else:
                    self._readers.append(db)

    def changed(self) -> int:
        """Return a number that changes when any other connection has committed.

        It is asked of the connection that writes: on any other one, our own commits would count. If
        that one is in a transaction, the transaction looks itself.
        """
        if not self._single and self._alone.acquire(blocking=False):
            try:
                with translated(self.path):
                    self._seen = cast(int, self._db.execute("pragma data_version").get)
            finally:
                self._alone.release()
        return self._seen + self._others

    def look_for_space(self) -> None:
        """Refuse pushes unless the disk reserve is allocated, or can be allocated again.

        Another process may have released the reserve or replaced the database file.
        """
        if not self._single and file_at(self._place) != self._file:
            raise StorageFailed(
                f"{self.path} was moved, removed or replaced while it was open, and takes no more "
                "writes; open it again"
            )
        self._bare = not self._reserve.allocated() and not self._reserve.allocate()
        self._full = self._bare and not self._roomy()

    def _roomy(self) -> bool:
        """Return whether the file has enough free pages to accept pushes without the reserve."""
        with translated(self.path):
            pages = self._execute("pragma freelist_count", ())[0][0]
        return bool(pages * PAGE_SIZE >= ROOM_INSIDE)

    def backup(self, target: str) -> None:
        """Copy a snapshot of the database to a new file, which appears when it is complete."""
        with translated(target), self._open_source() as source:
            backup(source, target, self._statements["put_meta"])

    def hurry(self) -> None:
        """Shorten the busy timeout, as the store is about to be closed."""
        self._hurried.set()

    def close(self) -> None:
        self._closed = True
        opened.discard(self)
        self._checkpointer.close()
        with self._syncing, self._alone:
            if self._log is not None:
                self._log.close()
            self._record.close()
            for db in (*self._readers, self._db):
                db.close()
            self._readers.clear()

    def _transact(self, body: Callable[[Tx], None], synced: bool, waits: bool = True) -> Tx:
        db, tx, write, record = self._db, self._writing, self._write, self._record
        if db.in_transaction:
            self._undo()
        committing, number = False, self._committed
        try:
            write("begin immediate")
            record.noted = False
            if db.data_version() != self._version:  # another connection has written
                self._others += 1
                self._cache.clear()
                self._refuse_newer(db)
            if self._cache.crowded:
                self._cache.shrink()
            tx.begin(self._now(self._execute, writes=True), self._full)
            body(tx)
            tx.flush()
            if synced:
                number = record.number()
            committing = True
            write("commit")
            self._committed = number
            tx.latest = tx.now
            self._version = db.data_version()
            if not self._single:
                self._checkpointer.after_commit(db, only_ask=not waits)
        except BaseException as error:
            if committing and not isinstance(error, apsw.Error) and not db.in_transaction:
                # A signal handler raised while the commit returned: it is committed.
                self.interrupted = error
                self._committed = number
                return tx
            self._cache.clear()
            with contextlib.suppress(apsw.Error):
                self._execute("rollback", ())
            if committing and isinstance(error, apsw.IOError):
                # It is rolled back here, but the next open may still find it in the WAL.
                record.fail()
                raise OutcomeUnknown(
                    f"the disk of {self.path} did not write or confirm a commit ({error}): it may be "
                    "found when the file is opened again"
                ) from error
            raise
        return tx

    def _undo(self) -> None:
        """Roll back a transaction that an interrupt has left open."""
        self._cache.clear()
        self._execute("rollback", ())

    def _now(self, execute: Execute, *, writes: bool) -> int:
        """Return the time, which processes on the file synchronize once a second."""
        now, clock = self.clock.now(), self._shared_clock
        if clock is not None and clock.due:
            found = execute(self._statements["get_meta"], ("clock",))
            row = clock.agree(found[0][0] if found else None, writes)
            if row is not None:
                execute(self._statements["put_meta"], ("clock", row))
            now = clock.now()
        return now

    def _refuse_newer(self, db: apsw.Connection) -> None:
        """Refuse a file that a newer Ackflow has migrated while it was open here."""
        migrate.refuse_newer(int(db.pragma("user_version")), self._schema)

    def _tx(self, execute: Execute, cache: Cache, *, writes: bool = False) -> Tx:
        doing: tuple[Any, Any, Any] = self._write, self._savepoint, self._insert
        write, savepoint, insert = doing if writes else (_refuse, _refuse, _refuse)
        record = None if self.sync is None else self._record
        return Tx(
            execute, write, self._statements, cache, savepoint, insert, store=self.id,
            now=self.clock.now(), writes=writes, full=self._full, record=record,
            write_many=self._write_many if writes else _refuse,
        )  # fmt: skip

    def _insert(self, sql: str, args: Sequence[Any]) -> int:
        self._write(sql, args)
        return self._db.last_insert_rowid()

    @contextlib.contextmanager
    def _savepoint(self) -> Iterator[None]:
        self._execute("savepoint verb", ())
        try:
            yield
        except BaseException:
            self._cache.clear()
            self._execute("rollback to verb", ())
            self._execute("release verb", ())
            raise
        self._execute("release verb", ())

    def _first_open(self) -> apsw.Connection:
        """Open the file and migrate it, concurrently with other processes that do the same."""
        migrations = migrate.shipped("sqlite")
        self._schema = migrations[-1][0]
        again = _busy_handler(self._hurried)
        tries = 0
        while True:
            try:
                return self._open_migrated(migrations)
            except (apsw.BusyError, apsw.LockedError):
                # SQLite calls no busy handler while it switches a file to WAL mode.
                if not again(tries):
                    raise
                tries += 1

    def _open_migrated(self, migrations: Sequence[migrate.Migration]) -> apsw.Connection:
        existing = not self._single and os.path.exists(self._place)
        if not existing and not self._single:
            create_file(self._place)
        db = apsw.Connection(self._place, vfs=self._vfs)
        try:
            if self._place == ":memory:":
                fill_memory(db)
            elif not self._single:
                db.execute("begin")  # one snapshot, as another process may be creating it
                migrate.check(db, migrations)
                db.execute("rollback")
            db.set_busy_handler(_busy_handler(self._hurried))
            if self._single:
                db.pragma("locking_mode", "exclusive")  # before anything reads the file
            db.pragma("page_size", PAGE_SIZE)
            db.pragma("journal_mode", "wal")
            self._set_up(db)
            # A power cut may undo writes of the open; the first synced commit makes them durable.
            db.pragma("synchronous", "normal")
            migrate.migrate(db, migrations, migrate.schema("sqlite"))
        except BaseException:
            db.close()
            raise
        self._created = not existing
        return db

    def _open(self) -> apsw.Connection:
        db = apsw.Connection(self._place, vfs=self._vfs)
        self._set_up(db)
        return db

    def _set_up(self, db: apsw.Connection) -> None:
        db.set_busy_handler(_busy_handler(self._hurried))
        # Without this, SQLite recompiles many statements whenever a bound value changes.
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        db.pragma("cache_size", -CACHE_KIB)
        db.pragma("temp_store", "memory")
        db.wal_autocheckpoint(NOW_PAGES)

    def _open_source(self) -> contextlib.AbstractContextManager[apsw.Connection]:
        if self._single:
            return contextlib.nullcontext(self._db)
        return contextlib.closing(self._open())

    def _identity(self, named: MayLose | None) -> tuple[int, str, bool]:
        """Return the store id, and the fsync settings of the durability mode.

        The store id is part of every message id. A copy, and a file that may have lost messages in
        a power cut, get a new one; otherwise they would assign the same ids again.
        """
        get, put = self._statements["get_meta"], self._statements["put_meta"]
        self._execute("begin immediate", ())
        try:
            found = {key: self._execute(get, (key,)) for key in ("store", COPY_OF, MODE, "boot")}
            known = {key: str(rows[0][0]) for key, rows in found.items() if rows}
            mode = agreed(named, cast("MayLose | None", known.get(MODE)))
            new: dict[str, str] = {} if MODE in known else {MODE: mode}
            lossy = known.get(MODE, mode) in LOSSY
            if (boot := boot_id()) and lossy and known.get("boot") != boot:
                new["boot"] = boot
            if known.get("store") == known.get(COPY_OF) or ("boot" in known and "boot" in new):
                new["store"] = str(ids.new_store())
            for key, value in new.items():
                self._execute(put, (key, value))
            self._note_clock()
            self._record = self._open_record(mode, boot)
            self._execute("commit", ())
        except BaseException:
            self._execute("rollback", ())
            raise
        return (int(new.get("store") or known["store"]), *LEVELS[mode])

    def _note_clock(self) -> None:
        """Synchronize the time, and store a mark if the clock was further ahead before."""
        if self._shared_clock is None:
            return
        row = self._execute(self._statements["get_meta"], ("clock",))
        last = written_at(row[0][0] if row else None)
        now = self._now(self._execute, writes=True)
        if now + AHEAD < last:
            self._execute(self._statements["put_meta"], (CLOCK_BACK, f"{now} {last}"))

    def _open_record(self, may_lose: MayLose, boot: str) -> SyncRecord:
        """Open the shared sync record; modes that guarantee nothing need none."""
        if self._single or may_lose in LOSSY:
            return SyncRecord(None)
        mode = os.stat(self._place).st_mode & 0o777
        try:
            record = SyncRecord(self._place + "-sync", mode)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise StorageFailed(f"cannot write {self.path}-sync: {error.strerror}") from error
            self._reserve.release()
            try:
                record = SyncRecord(self._place + "-sync", mode)
            except OSError:
                raise StorageFull() from error
        record.begin(zlib.crc32(boot.encode()))
        return record


def set_may_lose(path: str, may_lose: MayLose) -> None:
    """Change the durability mode of a file that no session has open."""
    if checked(may_lose) is None or not os.path.isfile(path):
        raise InvalidArgument(f"a durability mode belongs to a file, and {path} is not one")
    SqliteStore(path, None).close()  # recovery under the mode it had
    with translated(path), contextlib.closing(apsw.Connection(path)) as db:
        try:
            # Checkpoints everything, and needs exclusive access.
            db.pragma("journal_mode", "delete")
        except (apsw.BusyError, apsw.LockedError):
            reason = "its mode can be changed only while none has it open"
            raise StorageBusy(f"{path} is open in another session; {reason}") from None
        db.execute(migrate.statements("sqlite")["put_meta"], (MODE, may_lose))


def _refuse(*_: object) -> NoReturn:
    raise AssertionError("a write in a read-only transaction")


def _executor(db: apsw.Connection) -> Execute:
    cursor = db.cursor()

    def execute(sql: str, args: Sequence[Any]) -> list[Row]:
        return cursor.execute(sql, args).fetchall()

    return execute


def _busy_handler(hurried: threading.Event) -> Callable[[int], bool]:
    started = 0.0

    def again(tries: int) -> bool:
        nonlocal started
        if tries == 0:
            started = time.monotonic()
        time.sleep(random.uniform(0.0002, 0.002))
        limit = CLOSING_SECONDS if hurried.is_set() else BUSY_SECONDS
        return time.monotonic() - started < limit

    return again
