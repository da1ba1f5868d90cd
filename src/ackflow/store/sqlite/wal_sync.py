"""Syncing SQLite's log by hand, after the commits that must be on disk when they are answered.

SQLite does so for all commits or for none: to choose, it would have to be told before each of them.
What is synced later brings all before it along.
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


class Log:
    """The log of a database that is open: as long as it is, the file stays the same one."""

    def __init__(self, path: str) -> None:
        self._handle = os.open(path, os.O_RDWR)

    def sync(self) -> None:
        try:
            _sync(self._handle)
        except OSError as error:
            raise OutcomeUnknown(
                f"the disk did not confirm a commit ({error.strerror}): what was done is seen by "
                "all, and may be gone after a power cut"
            ) from error

    def write_again(self) -> None:
        """Write and sync what can be read of the log, though the system counts it as written: after
        a sync that failed it no longer tries. Whoever reads meanwhile finds the same."""
        at = 0
        try:
            while some := os.pread(self._handle, PIECE, at):
                at += os.pwrite(self._handle, some, at)
        except OSError as error:
            raise OutcomeUnknown(f"the log could not be written again: {error.strerror}") from error
        self.sync()

    def close(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


class SyncRecord:
    """What is known of the log's syncs to every process that has the database open.

    It lies in memory shared through a file beside the database, so it outlives each process, and is
    needed only while the machine runs: after a power cut all that can be read is on disk.

    Commits that must be on disk, and the segments in them, are numbered (`begun`) under SQLite's
    write lock, before they are visible. `synced` is the number up to which the log is on disk. A
    lost update by another process can only make it lower, which costs a sync and no promise.
    """

    def __init__(self, path: str | None, mode: int = 0o600) -> None:
        """Without a path it is of this process alone."""
        memory = bytearray(SIZE) if path is None else _shared(path, mode)
        self._cells = memoryview(memory).cast("q")
        self.noted = False  # whether the running transaction has a number

    def begin(self, boot: int) -> None:
        """Start anew on a machine that was started anew; called under SQLite's write lock."""
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
        """Number what the running write transaction appends to a lane, before it is committed."""
        cells = self._cells
        number = cells[BEGUN]
        at = RING + number % ENTRIES * 2
        cells[at], cells[at + 1] = lane, first
        cells[BEGUN] = number + 1
        self.noted = True

    def number(self) -> int:
        """The number of the running write transaction, before it is committed."""
        if not self.noted:
            self.note()
        return self._cells[BEGUN]

    def unsynced(self, lane: LaneId, stop: int) -> bool:
        """Whether something of a lane before `stop` may not be on disk yet."""
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
        """Whether everything up to a number is on disk, without doubt."""
        cells = self._cells
        return cells[SYNCED] >= number and cells[FAILED] == cells[CLEARED]

    def ask(self, number: int) -> bool:
        """A sync up to a number begins; False when it could not clear a doubt."""
        cells = self._cells
        cells[ASKED] = number
        return cells[FAILED] == cells[CLEARED]

    def confirm(self, number: int) -> bool:
        """A sync up to a number has succeeded; False when that means nothing, because of a doubt."""
        cells = self._cells
        if cells[FAILED] != cells[CLEARED]:
            return False
        if not number <= cells[SYNCED] <= cells[BEGUN]:
            cells[SYNCED] = number
        return True

    @property
    def unconfirmed(self) -> int:
        """The number of a sync that has not succeeded: it runs, or its process died; 0 for none."""
        cells = self._cells
        return cells[ASKED] if cells[ASKED] > cells[SYNCED] else 0

    @property
    def failures(self) -> int:
        return self._cells[FAILED]

    @property
    def doubtful(self) -> bool:
        """Whether some of the log may be missing on the disk though a later sync succeeds."""
        return self._cells[FAILED] != self._cells[CLEARED]

    def fail(self) -> None:
        """A sync of the log has failed; what it was for is in doubt until all is written again."""
        self._cells[FAILED] += 1

    def clear(self, failures: int) -> None:
        """Everything that was in the log after so many failures is on disk."""
        self._cells[CLEARED] = failures

    def close(self) -> None:
        """Let go of the shared memory, once no thread uses it any more."""
        self._cells = memoryview(bytearray(SIZE)).cast("q")


def boot_id() -> str:
    """What tells one run of the machine from the next; empty where the system does not say."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _shared(path: str, mode: int) -> mmap.mmap:
    """Map a small file, which is made if it is not there and stays as long as the database."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        if os.fstat(handle).st_size < SIZE:
            os.posix_fallocate(handle, 0, SIZE)  # a page without room would end the process
            with contextlib.suppress(PermissionError):
                os.fchmod(handle, mode)  # whoever may write the database, whatever the umask
        return mmap.mmap(handle, SIZE)
    finally:
        os.close(handle)
