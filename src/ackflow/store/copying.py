"""Copying SQLite's log into the file, most of it beside the writer.

A checkpoint is two syncs and as many pages as the log has; a verb need not wait for all of them.
"""

import contextlib
import threading
from collections.abc import Callable

import apsw

# A log that starts again from its beginning is faster to sync than one that grows, and small enough
# to be copied out of the reserve when the disk is full.
SOON_PAGES = 800
NOW_PAGES = 1_000
LONG_PAGES = 2_000

_WRITTEN = apsw.SQLITE_DBSTATUS_CACHE_WRITE


class Copying:
    """Copies the log of one file in a thread of its own, which the first long log starts.

    It does so once for each log, as its syncs slow the writer down. At `NOW_PAGES` the writer
    copies what is left: only a log copied whole starts again from its beginning.
    """

    def __init__(self, open: Callable[[], apsw.Connection]) -> None:
        self._open = open
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
            self.copy(db)
            self._copied += pages
            self._asked = False
        elif not self._asked:
            self._asked = True
            self._call()

    def copy(self, db: apsw.Connection, *, empty: bool = False) -> None:
        """Copy as much of the log as nobody reads and there is room for, after the thread has.

        `empty`: wait for those who read, and give the room of the log back to the disk.
        """
        mode = apsw.SQLITE_CHECKPOINT_TRUNCATE if empty else apsw.SQLITE_CHECKPOINT_PASSIVE
        with self._lock, contextlib.suppress(apsw.Error):
            pages, _ = db.wal_checkpoint(mode=mode)
            if pages > LONG_PAGES:
                self._copy_alone(db)

    def _copy_alone(self, db: apsw.Connection) -> None:
        """Others write faster than the log is copied: keep them out meanwhile."""
        with contextlib.closing(self._open()) as other:
            db.execute("begin immediate")
            try:
                other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            finally:
                db.execute("rollback")

    def close(self) -> None:
        self._closing = True
        self._called.set()
        if self._thread is not None:
            self._thread.join()

    def _call(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ackflow-log", daemon=True)
            self._thread.start()
        self._called.set()

    def _run(self) -> None:
        with contextlib.suppress(apsw.Error), contextlib.closing(self._open()) as db:
            while self._called.wait() and not self._closing:
                self._called.clear()
                self.copy(db)
