"""Syncing SQLite's log by hand, after the commits that must be on disk when they are answered.

SQLite does so for all commits or for none: to choose, it would have to be told before each of them.
What is synced later brings all before it along.
"""

import os

from ..errors import OutcomeUnknown

_sync = getattr(os, "fdatasync", os.fsync)


class Log:
    """The log of a database that is open: as long as it is, the file stays the same one."""

    def __init__(self, path: str) -> None:
        self._handle = os.open(path, os.O_RDONLY)

    def sync(self) -> None:
        try:
            _sync(self._handle)
        except OSError as error:
            raise OutcomeUnknown(
                f"the disk did not confirm a commit ({error.strerror}): what was done is seen by "
                "all, and may be gone after a power cut"
            ) from error

    def close(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)
