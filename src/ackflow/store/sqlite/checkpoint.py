"""Checkpointing: copying SQLite's write-ahead log (WAL) into the database file.

A checkpoint takes two fsyncs and as many page writes as the WAL has pages. Most of it runs in a
separate thread, so that verbs do not wait for all of it.
"""

import contextlib
import threading
import time
from collections.abc import Callable

import apsw

# A WAL that restarts from its beginning is faster to fsync than one that grows, and is small enough
# to be checkpointed with the space of the disk reserve when the disk is full.
SOON_PAGES = 800  # the thread starts a checkpoint
NOW_PAGES = 1_000  # the writer checkpoints the remaining pages
LONG_PAGES = 2_000  # other writers are locked out during the checkpoint
STUCK_PAGES = 2_500  # the checkpoint waits for readers
EXCLUSIVE_SECONDS = 1.0
READERS_SECONDS = 0.25

_WRITTEN = apsw.SQLITE_DBSTATUS_CACHE_WRITE


class Checkpointer:
    """Checkpoints the WAL of one file, in a thread that is started when it is first needed.

    The thread runs once for each WAL, as its fsyncs slow the writer down. At `NOW_PAGES` the writer
    checkpoints the remaining pages: only a completely checkpointed WAL restarts from its beginning.
    """

    def __init__(
        self, open: Callable[[], apsw.Connection], on_failure: Callable[[], None] = lambda: None
    ) -> None:
        """`on_failure` is called when the disk failed to write pages, or to fsync the WAL first."""
        self._open = open
        self._on_failure = on_failure
        self._requested = threading.Event()
        self._mutex = threading.Lock()
        self._checkpointed = 0  # pages written before the present WAL began
        self._asked = False
        self._thread: threading.Thread | None = None
        self._closing = False

    def due(self, db: apsw.Connection) -> bool:
        """Return whether the writer must checkpoint after its next commit."""
        return db.status(_WRITTEN)[0] - self._checkpointed >= NOW_PAGES

    def after_commit(self, db: apsw.Connection, *, only_ask: bool = False) -> None:
        """Checkpoint if the WAL is long; SQLite itself handles the writes of other processes.

        `only_ask`: ask the thread at most, and leave the rest to a later commit.
        SQLite's WAL hook would report the length, but it acquires the GIL inside a commit.
        """
        pages = db.status(_WRITTEN)[0] - self._checkpointed
        if pages < SOON_PAGES:
            return
        if pages >= NOW_PAGES and not only_ask:
            exclusive = pages >= LONG_PAGES
            if self.checkpoint(db, exclusive=exclusive) or exclusive:  # do not wait a second time
                self._checkpointed += pages
                self._asked = False
        elif not self._asked:
            self._asked = True
            self._request()

    def checkpoint(
        self, db: apsw.Connection, *, exclusive: bool = False, truncate: bool = False
    ) -> bool:
        """Checkpoint as much of the WAL as readers and free space allow.

        It waits for a checkpoint that the thread runs. `exclusive`: lock all writers out during the
        checkpoint, as for a long WAL. `truncate`: wait for readers, and truncate the WAL file.
        Returns False if another process is checkpointing, or if the checkpoint failed.
        """
        mode = apsw.SQLITE_CHECKPOINT_TRUNCATE if truncate else apsw.SQLITE_CHECKPOINT_PASSIVE
        with self._mutex, contextlib.suppress(apsw.Error):
            try:
                if exclusive or db.wal_checkpoint(mode=mode)[0] > LONG_PAGES:
                    self._checkpoint_exclusively(db)
            except apsw.IOError:
                self._on_failure()
                raise
            return True
        return False

    def _checkpoint_exclusively(self, db: apsw.Connection) -> None:
        """Checkpoint under the write lock, as others write faster than the WAL is checkpointed."""
        until = time.monotonic() + EXCLUSIVE_SECONDS
        with contextlib.closing(self._open()) as other:
            db.execute("begin immediate")
            try:
                while True:
                    try:
                        pages, _ = other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                        break
                    except apsw.BusyError:  # another process is checkpointing and will end soon
                        if time.monotonic() > until:
                            raise
                        time.sleep(0.001)
            finally:
                db.execute("rollback")
            if pages > STUCK_PAGES:
                self._restart(other)

    def _restart(self, other: apsw.Connection) -> None:
        """Wait for the present readers, with writers locked out, so that the WAL can restart.

        Overlapping readers prevent a WAL from restarting although it is checkpointed; later readers
        use the database file only. The wait for a long reader times out.
        """
        other.set_busy_timeout(round(READERS_SECONDS * 1000))
        with contextlib.suppress(apsw.BusyError):
            other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)

    def close(self) -> None:
        self._closing = True
        self._requested.set()
        if self._thread is not None:
            self._thread.join()

    def _request(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="ackflow-checkpoint", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads, or interpreter shutdown: the writer checkpoints
                return
            self._thread = thread
        self._requested.set()

    def _run(self) -> None:
        with contextlib.suppress(apsw.Error), contextlib.closing(self._open()) as db:
            while self._requested.wait() and not self._closing:
                self._requested.clear()
                self.checkpoint(db)
