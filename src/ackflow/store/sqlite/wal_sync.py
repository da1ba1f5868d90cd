"""Fsync of SQLite's write-ahead log (WAL) for commits that must be on disk before the answer.

SQLite fsyncs all commits or none. An fsync of the WAL covers everything written to it before.
"""

import contextlib
import mmap
import os
from pathlib import Path

from ...errors import OutcomeUnknown
from ...ids import LaneId

_sync = getattr(os, "fdatasync", os.fsync)

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PIECE = 1 << 20
SIZE = 4096
ENTRIES = 240
BEGUN, SYNCED, ASKED, FAILED, CLEARED, BOOT = range(6)  # cells of the record
RING = 16


class WalFile:
    """The WAL file of an open database; it remains the same file while the database is open."""

    def __init__(self, path: str) -> None:
        self._handle = os.open(path, os.O_RDWR)

    def sync(self) -> None:
        try:
            _sync(self._handle)
        except OSError as error:
            raise OutcomeUnknown(
                f"the disk did not confirm a commit ({error.strerror}): it is visible, and may be lost "
                "in a power cut"
            ) from error

    def rewrite(self) -> None:
        """Read the WAL, write the same bytes back, and fsync it.

        After a failed fsync the operating system marks the pages as clean and does not write them
        again. Concurrent readers see the same bytes.
        """
        at = 0
        try:
            while some := os.pread(self._handle, PIECE, at):
                at += os.pwrite(self._handle, some, at)
        except OSError as error:
            raise OutcomeUnknown(
                f"the write-ahead log could not be rewritten: {error.strerror}"
            ) from error
        self.sync()

    def close(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


class SyncRecord:
    """The state of WAL fsyncs, shared by all processes that have the database open.

    It is a small memory-mapped file beside the database. It outlives each process and is needed
    only until the machine stops: after a power cut everything that can be read is on disk.

    Commits that must be on disk, and the segments in them, are numbered (`begun`) under SQLite's
    write lock, before they are visible. `synced` is the number up to which the WAL is on disk. A
    lost update by another process can only lower it, which costs an fsync and breaks no guarantee.
    """

    def __init__(self, path: str | None, mode: int = 0o600) -> None:
        """Without a path the record is private to this process."""
        memory = bytearray(SIZE) if path is None else _shared(path, mode)
        self._cells = memoryview(memory).cast("q")
        self.noted = False  # whether the running transaction has a number

    def begin(self, boot: int) -> None:
        """Reset the record after a reboot. Called under SQLite's write lock."""
        cells = self._cells
        if cells[BOOT] != boot:
            for at in range(len(cells)):
                cells[at] = 0
            cells[BOOT] = boot

    @property
    def begun(self) -> int:
        return self._cells[BEGUN]

    @property
    def synced(self) -> int:
        return self._cells[SYNCED]

    def note(self, lane: int = 0, first: int = 0) -> None:
        """Number a segment that the running transaction appends to a lane, before the commit."""
        cells = self._cells
        number = cells[BEGUN]
        at = RING + number % ENTRIES * 2
        cells[at], cells[at + 1] = lane, first
        cells[BEGUN] = number + 1
        self.noted = True

    def number(self) -> int:
        """Return the number of the running transaction, before the commit."""
        if not self.noted:
            self.note()
        return self._cells[BEGUN]

    def unsynced(self, lane: LaneId, stop: int) -> bool:
        """Return whether a message of a lane before `stop` may not be on disk yet."""
        cells = self._cells
        begun, synced = cells[BEGUN], cells[SYNCED]
        if begun == synced:
            return False
        if 0 < begun - synced <= ENTRIES:
            for number in range(synced, begun):
                at = RING + number % ENTRIES * 2
                if cells[at] == lane and cells[at + 1] < stop:
                    return True
            # A reader without the write lock may see an entry that is being replaced.
            return not 0 <= cells[BEGUN] - synced <= ENTRIES
        return True

    def reached(self, number: int) -> bool:
        """Return whether everything up to a number is on disk, with no failed fsync pending."""
        cells = self._cells
        return cells[SYNCED] >= number and cells[FAILED] == cells[CLEARED]

    def ask(self, number: int) -> bool:
        """Record that an fsync up to a number begins; False if a failed one is not repaired."""
        cells = self._cells
        cells[ASKED] = number
        return cells[FAILED] == cells[CLEARED]

    def confirm(self, number: int) -> bool:
        """Record that an fsync succeeded; False if an earlier failure makes it meaningless."""
        cells = self._cells
        if cells[FAILED] != cells[CLEARED]:
            return False
        if not number <= cells[SYNCED] <= cells[BEGUN]:
            cells[SYNCED] = number
        return True

    @property
    def unconfirmed(self) -> int:
        """The number of an fsync that is running, or whose process died; 0 for none."""
        cells = self._cells
        return cells[ASKED] if cells[ASKED] > cells[SYNCED] else 0

    @property
    def failures(self) -> int:
        return self._cells[FAILED]

    @property
    def in_doubt(self) -> bool:
        """Whether some pages of the WAL may be missing on disk even if a later fsync succeeds."""
        return self._cells[FAILED] != self._cells[CLEARED]

    def fail(self) -> None:
        """Record a failed fsync; the WAL is in doubt until all of it is rewritten."""
        self._cells[FAILED] += 1

    def clear(self, failures: int) -> None:
        """Record that the WAL is on disk, as it was after this number of failures."""
        self._cells[CLEARED] = failures

    def close(self) -> None:
        """Release the shared memory; no thread may use it any more."""
        self._cells = memoryview(bytearray(SIZE)).cast("q")


def boot_id() -> str:
    """Return an id that changes at each boot; empty where the system has none."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _shared(path: str, mode: int) -> mmap.mmap:
    """Map the shared file; it is created if it is missing, and kept as long as the database."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        if os.fstat(handle).st_size < SIZE:
            # A write to an unallocated page of the mapping would raise SIGBUS.
            os.posix_fallocate(handle, 0, SIZE)
            with contextlib.suppress(PermissionError):
                os.fchmod(handle, mode)  # the same permissions as the database, whatever the umask
        return mmap.mmap(handle, SIZE)
    finally:
        os.close(handle)
