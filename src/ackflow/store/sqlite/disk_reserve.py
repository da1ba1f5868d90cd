"""A few megabytes kept in reserve beside the database, so that a full disk stops pushes only.

Settling a message frees space in the end but needs a little first. When the disk is full the
reserve is given up for that; until it can be made again, pushes are refused.
"""

import contextlib
import os

SIZE = 8 * 1024 * 1024


class Ballast:
    def __init__(self, path: str | None, size: int = SIZE) -> None:
        self._path = path
        self._size = size

    def restore(self) -> bool:
        """Make the reserve if it is missing; False when there is no room for it."""
        if self._path is None or self.there():
            return True
        try:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                # Twice the size, so that the space just given up does not count as free again.
                os.posix_fallocate(handle, 0, 2 * self._size)
                os.ftruncate(handle, self._size)
            finally:
                os.close(handle)
        except OSError:
            self.give_up()
            return False
        return True

    def there(self) -> bool:
        if self._path is None:
            return True
        try:
            return os.stat(self._path).st_size >= self._size
        except OSError:
            return False

    def give_up(self) -> None:
        if self._path is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
