"""A disk reserve: 8 MiB allocated beside the database, so that a full disk stops pushes only.

Settling messages frees space eventually, but first needs some. When the disk is full, the reserve
is released for this purpose; pushes are refused until it can be allocated again.
"""

import contextlib
import os

SIZE = 8 * 1024 * 1024
SUFFIX = "-reserve"
OLD_SUFFIX = "-ballast"  # used by older versions


class DiskReserve:
    """The reserve file of a database; a database without a path has none."""

    def __init__(self, database: str | None, size: int = SIZE) -> None:
        self._path = None if database is None else database + SUFFIX
        self._size = size
        if database is not None:
            _adopt(database + OLD_SUFFIX, database + SUFFIX)

    def allocate(self, *, again: bool = True) -> bool:
        """Allocate the reserve if it is missing; returns False if there is not enough free space.

        `again`: it may have been released before. Twice the size must then be free; otherwise the
        space that was just released would be allocated again at once.
        """
        if self._path is None or self.allocated():
            return True
        try:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                if again:
                    os.posix_fallocate(handle, 0, 2 * self._size)
                    os.ftruncate(handle, self._size)
                else:
                    os.posix_fallocate(handle, 0, self._size)
            finally:
                os.close(handle)
        except OSError:
            self.release()
            return False
        return True

    def allocated(self) -> bool:
        if self._path is None:
            return True
        try:
            return os.stat(self._path).st_size >= self._size
        except OSError:
            return False

    def release(self) -> None:
        if self._path is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._path)


def _adopt(old: str, new: str) -> None:
    """Rename a reserve file of an older version."""
    with contextlib.suppress(FileNotFoundError, PermissionError):
        os.rename(old, new)
