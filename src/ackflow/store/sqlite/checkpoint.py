"""Copying SQLite's log into the file, most of it beside the writer.

A checkpoint is two syncs and as many pages as the log has; a verb need not wait for all of them.
"""

import contextlib
import threading
import time
from collections.abc import Callable

import apsw

# A log that starts again from its beginning is faster to sync than one that grows, and small enough
# to be copied out of the reserve when the disk is full.
SOON_PAGES = 800
NOW_PAGES = 1_000
LONG_PAGES = 2_000
STUCK_PAGES = 2_500
ALONE_SECONDS = 1.0
READERS_SECONDS = 0.25

_WRITTEN = apsw.SQLITE_DBSTATUS_CACHE_WRITE


class Copying:
    """Copies the log of one file in a thread of its own, which the first long log starts.

    It does so once for each log, as its syncs slow the writer down. At `NOW_PAGES` the writer
    copies what is left: only a log copied whole starts again from its beginning.
    """

    def __init__(
        self, open: Callable[[], apsw.Connection], failed: Callable[[], None] = lambda: None
    ) -> None:
        """`failed` is called when the disk has not taken a copy, or not synced the log before it."""
        self._open = open
        self._failed = failed
        self._called = threading.Event()
        self._lock = threading.Lock()
        self._copied = 0
        self._asked = False
        self._thread: threading.Thread | None = None
        self._closing = False

    def look(self, db: apsw.Connection) -> None:
        """Called after each commit; what other processes have written, SQLite itself looks after.

        Its hook would tell the length of the log, but takes the interpreter's lock inside a commit.
        """
        pages = db.status(_WRITTEN)[0] - self._copied
        if pages < SOON_PAGES:
            return
        if pages >= NOW_PAGES:
            alone = pages >= LONG_PAGES
            if self.copy(db, alone=alone) or alone:  # whoever is in the way is not waited for again
                self._copied += pages
                self._asked = False
        elif not self._asked:
            self._asked = True
            self._call()

    def copy(self, db: apsw.Connection, *, alone: bool = False, empty: bool = False) -> bool:
        """Copy as much of the log as nobody reads and there is room for, after the thread has.

        `alone`: keep all who write out meanwhile, as for a log that is long. `empty`: wait for
        those who read, and give the room of the log back to the disk. False: another process is
        at it, or it failed.
        """
        mode = apsw.SQLITE_CHECKPOINT_TRUNCATE if empty else apsw.SQLITE_CHECKPOINT_PASSIVE
        with self._lock, contextlib.suppress(apsw.Error):
            try:
                if alone or db.wal_checkpoint(mode=mode)[0] > LONG_PAGES:
                    self._copy_alone(db)
            except apsw.IOError:
                self._failed()
                raise
            return True
        return False

    def _copy_alone(self, db: apsw.Connection) -> None:
        """Others write faster than the log is copied: keep them out until it is."""
        until = time.monotonic() + ALONE_SECONDS
        with contextlib.closing(self._open()) as other:
            db.execute("begin immediate")
            try:
                while True:
                    try:
                        pages, _ = other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                        break
                    except apsw.BusyError:  # another copies, and has not much left to do now
                        if time.monotonic() > until:
                            raise
                        time.sleep(0.001)
            finally:
                db.execute("rollback")
            if pages > STUCK_PAGES:
                self._restart(other)

    def _restart(self, other: apsw.Connection) -> None:
        """Readers that follow each other without a pause keep the log from starting again although it
        is copied: wait for those there are now, with writers kept out, as the next ones read the
        file alone. One that reads for longer is not waited for."""
        other.set_busy_timeout(round(READERS_SECONDS * 1000))
        with contextlib.suppress(apsw.BusyError):
            other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)

    def close(self) -> None:
        self._closing = True
        self._called.set()
        if self._thread is not None:
            self._thread.join()

    def _call(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="ackflow-log", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads, or the interpreter ends: the writer copies
                return
            self._thread = thread
        self._called.set()

    def _run(self) -> None:
        with contextlib.suppress(apsw.Error), contextlib.closing(self._open()) as db:
            while self._called.wait() and not self._closing:
                self._called.clear()
                self.copy(db)
