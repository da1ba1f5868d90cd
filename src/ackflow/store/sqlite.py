"""The embedded store: one SQLite file in WAL mode, any number of threads and processes.

Known weaknesses: one writer at a time for the whole file; other processes notice a push by polling
(every 5 ms while they wait); the file must be on a local disk, as SQLite's shared memory does not
work over a network file system.
"""

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar, cast
from weakref import WeakSet

import apsw

from .. import ids
from ..clock import AHEAD, Clock, FileClock, SystemClock, written_at
from ..errors import (
    NotADatabase,
    OutcomeUnknown,
    SessionClosed,
    SessionForked,
    StorageBusy,
    StorageFailed,
    StorageFull,
)
from . import migrate
from .asking import Execute
from .ballast import Ballast
from .cache import Cache
from .copying import NOW_PAGES, Copying
from .forms import Row
from .levels import MayLose, chosen
from .syncing import Log
from .tx import CLOCK_BACK, Tx

T = TypeVar("T")

# What `synchronous` is, and whether the log is synced by hand for verbs that must be on disk when
# they are answered.
LEVELS: dict[MayLose, tuple[str, bool]] = {
    "nothing": ("full", False),
    "acks": ("normal", True),
    "recent": ("normal", False),
    "everything": ("off", False),
}
PAGE_SIZE = 4096
CACHE_KIB = 8_192  # more would be memory touched for the first time by each large push
BUSY_SECONDS = 30.0
CLOSING_SECONDS = 1.0
LOOK_SECONDS = 0.1
ROOM_INSIDE = 4 * 1024 * 1024


class SqliteStore:
    """A database file, or a private one in memory for the path `:memory:`."""

    def __init__(
        self,
        path: str,
        clock: Clock | None,
        may_lose: MayLose = "acks",
        vfs: str | None = None,
        sync: Callable[[], None] | None = None,
    ) -> None:
        """`vfs` and `sync` are for tests: another disk, and how its log is synced."""
        level, by_hand = chosen(LEVELS, may_lose)
        self.path = path
        # A custom VFS has no shared memory, and a database in memory no second connection.
        self._single = path == ":memory:" or vfs is not None
        self.clock: Clock = clock or (SystemClock() if self._single else FileClock())
        self._hurried = threading.Event()
        self._vfs = vfs
        self._cache = Cache()
        self._statements = migrate.statements("sqlite")
        self._version = -1
        self.interrupted: BaseException | None = None
        self._full = False
        self._bare = False  # without the reserve: only room inside the file keeps pushes going
        self._look_again = 0.0
        self._alone = threading.RLock()
        self._closed = False
        self._readers: list[apsw.Connection] = []
        self._ballast = Ballast(None if self._single else path + "-ballast")
        self._copying = Copying(self._open)
        self._pid = os.getpid()
        if not self._single:
            _refuse_inherited(path)
        with translated(path):
            self._db = self._first_open()
            self._write = self._db.cursor().execute
            self._execute = _executor(self._db)
            self.id = self._store_id()
            self._db.pragma("synchronous", level)
        self._log = Log(self._db.filename_wal) if by_hand and not self._single else None
        self._sync_log = self._log.sync if self._log else sync if by_hand else None
        self.sync = None if self._sync_log is None else self._sync
        self._doubtful = False  # whether some of the log may be missing on the disk
        self._writing = self._tx(self._execute, self._cache, writes=True)
        if not self._single:
            self._full = not self._ballast.restore()
            self._watch = self._open()
            self._file = _file(path)
            _opened.add(self)

    def _sync(self) -> None:
        assert self._sync_log is not None
        try:
            self._sync_log()
        except OutcomeUnknown:
            self._doubtful = True
            raise

    def _copy_doubtful(self) -> None:
        """After a sync that failed another may succeed, though something is missing on the disk: what
        comes behind it in the log would be lost with it. So all of the log is copied before anything
        more is confirmed."""
        try:
            with self._alone:
                self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.Error as error:
            raise StorageFailed(
                f"the disk of {self.path} did not confirm what was written before, and nothing is "
                f"taken until it does ({error}); see to the disk, and open the file again"
            ) from error
        self._doubtful = False

    def transact(self, body: Callable[[Tx], None], synced: bool) -> Tx:
        """Run a body in one transaction; on return it is committed, on error it never was.

        `synced`: it is to be on disk before it is answered, and takes room that must be there.
        """
        if synced and self._doubtful:
            self._copy_doubtful()
        if synced and (self._full or time.monotonic() > self._look_again):
            self._look_again = time.monotonic() + LOOK_SECONDS
            self.look_for_space()
        elif synced and self._bare:
            self._full = not self._roomy()
        with self._alone:
            try:
                return self._transact(body)
            except apsw.FullError:
                self._full = True
                self._ballast.give_up()
                self._copying.copy(self._db, empty=True)
                with translated(self.path):
                    return self._transact(body)
            except apsw.Error as error:
                with translated(self.path):
                    raise error

    def read(self, body: Callable[[Tx], T]) -> T:
        """Run a body on a snapshot of what is committed, beside the writer."""
        if self._single:
            with self._alone, translated(self.path):
                return body(self._tx(self._execute, self._cache))
        with translated(self.path):
            db = self._readers.pop() if self._readers else self._open()
            execute = _executor(db)
            execute("begin", ())
            try:
                self._refuse_newer(db)
                self._agree(execute, writes=False)
                return body(self._tx(execute, Cache()))
            finally:
                execute("commit", ())
                if self._closed:
                    db.close()
                else:
                    self._readers.append(db)

    def changed(self) -> int:
        """A number that changes when any other connection has committed."""
        if self._single:
            return 0
        with translated(self.path):
            return cast(int, self._watch.execute("pragma data_version").get)

    def look_for_space(self) -> None:
        """Take pushes only while the reserve is there, or can be made again.

        Another process may have given it up.
        """
        self._bare = not self._ballast.there() and not self._ballast.restore()
        self._full = self._bare and not self._roomy()

    def _roomy(self) -> bool:
        """Whether trimmed messages left enough room inside the file to go without the reserve."""
        with translated(self.path):
            pages = self._execute("pragma freelist_count", ())[0][0]
        return bool(pages * PAGE_SIZE >= ROOM_INSIDE)

    def backup(self, target: str) -> None:
        """Copy the database, as it is at one moment, to a new file, which is there when it is whole."""
        part = f"{target}.part"
        if os.path.exists(target):
            raise StorageFailed(f"{target} is there already; a backup is a new file")
        try:
            with (
                translated(target),
                contextlib.closing(apsw.Connection(part)) as copy,
                self._open_source() as source,
                copy.backup("main", source, "main") as backup,
            ):
                backup.step()
            os.replace(part, target)
        finally:
            for left in (part, f"{part}-journal"):
                with contextlib.suppress(FileNotFoundError):
                    os.remove(left)

    def hurry(self) -> None:
        """Wait no longer than a moment for others, as this is about to be closed."""
        self._hurried.set()

    def close(self) -> None:
        self._closed = True
        _opened.discard(self)
        self._copying.close()
        with self._alone:
            if self._log is not None:
                self._log.close()
            for db in [*self._readers, self._db] + ([] if self._single else [self._watch]):
                db.close()
            self._readers.clear()

    def _transact(self, body: Callable[[Tx], None]) -> Tx:
        db, tx, write = self._db, self._writing, self._write
        if db.in_transaction:
            # A signal was handled where nothing could be cleaned up: do it now.
            self._cache.clear()
            self._execute("rollback", ())
        committing = False
        try:
            write("begin immediate")
            if db.data_version() != self._version:  # another connection has written
                self._cache.clear()
                self._refuse_newer(db)
            if self._cache.crowded:
                self._cache.shrink()
            self._agree(self._execute, writes=True)
            tx.begin(self.clock.now(), self._full)
            body(tx)
            tx.flush()
            committing = True
            write("commit")
            tx.latest = tx.now
            self._version = db.data_version()
            if not self._single:
                self._copying.look(db)
        except BaseException as error:
            if committing and not isinstance(error, apsw.Error) and not db.in_transaction:
                # A signal was handled while the commit returned: it is done all the same.
                self.interrupted = error
                return tx
            self._cache.clear()
            with contextlib.suppress(apsw.Error):
                self._execute("rollback", ())
            raise
        return tx

    def _agree(self, execute: Execute, *, writes: bool) -> None:
        """Agree with other processes on what time it is, once in a second."""
        clock = self.clock
        if isinstance(clock, FileClock) and clock.due():
            found = execute(self._statements["get_meta"], ("clock",))
            row = clock.agree(found[0][0] if found else None, writes)
            if row is not None:
                execute(self._statements["put_meta"], ("clock", row))

    def _refuse_newer(self, db: apsw.Connection) -> None:
        """A newer Ackflow may have migrated the file while it was open here."""
        migrate.refuse_newer(int(db.pragma("user_version")), self._schema)

    def _tx(self, execute: Execute, cache: Cache, *, writes: bool = False) -> Tx:
        doing: tuple[Any, Any, Any] = self._write, self._savepoint, self._insert
        write, savepoint, insert = doing if writes else (_refuse, _refuse, _refuse)
        return Tx(
            execute,
            write,
            self._statements,
            cache,
            savepoint,
            insert,
            store=self.id,
            now=self.clock.now(),
            full=self._full,
        )

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
        """Open the file and bring it to the newest schema, beside others that do the same."""
        migrations = migrate.shipped("sqlite")
        self._schema = migrations[-1][0]
        again = _patience(self._hurried)
        tries = 0
        while True:
            try:
                if not self._single and os.path.exists(self.path):
                    with contextlib.closing(apsw.Connection(self.path)) as look:
                        look.execute("begin")  # one moment, as another may be creating it
                        migrate.check(look, migrations)
                db = self._open()
                try:
                    migrate.migrate(db, migrations)
                except BaseException:
                    db.close()
                    raise
                return db
            except (apsw.BusyError, apsw.LockedError):
                # SQLite asks no busy handler while a file is switched to its log.
                if not again(tries):
                    raise
                tries += 1

    def _open(self) -> apsw.Connection:
        db = apsw.Connection(self.path, vfs=self._vfs)
        db.set_busy_handler(_patience(self._hurried))
        # Without this, SQLite compiles many statements anew whenever a value bound to them changes.
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        if self._single:
            db.pragma("locking_mode", "exclusive")
        db.pragma("page_size", PAGE_SIZE)
        db.pragma("journal_mode", "wal")
        db.pragma("cache_size", -CACHE_KIB)
        db.pragma("temp_store", "memory")
        db.wal_autocheckpoint(NOW_PAGES)
        return db

    def _open_source(self) -> contextlib.AbstractContextManager[apsw.Connection]:
        if self._single:
            return contextlib.nullcontext(self._db)
        return contextlib.closing(self._open())

    def _store_id(self) -> int:
        self._execute("begin immediate", ())
        sql = self._statements
        if not self._execute(sql["get_meta"], ("store",)):
            self._execute(sql["put_meta"], ("store", str(ids.new_store())))
        found = int(self._execute(sql["get_meta"], ("store",))[0][0])
        if isinstance(self.clock, FileClock):
            row = self._execute(sql["get_meta"], ("clock",))
            self._agree(self._execute, writes=True)
            last, now = written_at(row[0][0] if row else None), self.clock.now()
            if now + AHEAD < last:
                self._execute(sql["put_meta"], (CLOCK_BACK, f"{now} {last}"))
        self._execute("commit", ())
        return found


def _refuse(*_: object) -> NoReturn:
    raise AssertionError("who looks writes nothing")


def _executor(db: apsw.Connection) -> Execute:
    cursor = db.cursor()

    def execute(sql: str, args: Sequence[Any]) -> list[Row]:
        return cursor.execute(sql, args).fetchall()

    return execute


def _patience(hurried: threading.Event) -> Callable[[int], bool]:
    started = 0.0

    def again(tries: int) -> bool:
        nonlocal started
        if tries == 0:
            started = time.monotonic()
        time.sleep(random.uniform(0.0002, 0.002))
        limit = CLOSING_SECONDS if hurried.is_set() else BUSY_SECONDS
        return time.monotonic() - started < limit

    return again


@contextlib.contextmanager
def translated(path: str) -> Iterator[None]:
    """Turn the errors of SQLite into ours, with a sentence that says what to do."""
    try:
        yield
    except (apsw.ConnectionClosedError, apsw.CursorClosedError):
        raise SessionClosed() from None  # it waited for its turn while another thread closed
    except apsw.FullError:
        raise StorageFull() from None
    except (apsw.BusyError, apsw.LockedError):
        raise StorageBusy() from None
    except apsw.NotADBError:
        raise NotADatabase(f"{path} is not an Ackflow database") from None
    except apsw.CantOpenError:
        folder = os.path.dirname(os.path.abspath(path))
        why = "it cannot be created there" if os.path.isdir(folder) else f"{folder} does not exist"
        raise StorageFailed(f"cannot open {path}: {why}") from None
    except (apsw.ReadOnlyError, apsw.PermissionsError):
        raise StorageFailed(f"cannot write {path}: it is read-only") from None
    except apsw.Error as error:
        raise StorageFailed(f"the database {path} failed: {error}") from error


# What this process has open, and what it inherited when it was forked.
_opened: WeakSet[SqliteStore] = WeakSet()


def _file(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _refuse_inherited(path: str) -> None:
    """Refuse a file that the parent had open when it forked.

    SQLite in the child counts the parent's locks as its own and takes none: the parent, or anyone,
    could then remove the log while the child writes to it, and what was confirmed would be lost.
    """
    inherited = [store._file for store in list(_opened) if store._pid != os.getpid()]
    if inherited and os.path.exists(path) and _file(path) in inherited:
        raise SessionForked(
            f"{path} was open when this process was forked and cannot be opened here; "
            "connect only after the fork, or start the process by spawn"
        )
