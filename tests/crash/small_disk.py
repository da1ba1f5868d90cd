"""A disk of a few megabytes: a real file system where mounting is allowed, otherwise a limit.

The limit is below SQLite's default VFS: its system calls that write are replaced by calls that
return "no space left on device" when the files of the folder together would exceed it. Thus SQLite
and the disk reserve get the same errors as on a real disk.
"""

import contextlib
import ctypes
import errno
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import apsw

MEBIBYTE = 1024 * 1024
SIZE = 24 * MEBIBYTE


class SmallDisk(Protocol):
    folder: Path

    def resize(self, size: int) -> None: ...
    def free(self) -> int: ...


class MountedDisk:
    """An in-memory file system; only root may mount one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mount(f"size={SIZE}")

    def _mount(self, options: str) -> None:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.folder)]
        subprocess.run(command, check=True, capture_output=True)

    def resize(self, size: int) -> None:
        self._mount(f"remount,size={size}")

    def free(self) -> int:
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def close(self) -> None:
        subprocess.run(["umount", str(self.folder)], check=True)


class LimitedDisk:
    """A folder with a limit on the total size of its files, in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._size = SIZE
        self._calls: list[tuple[str, Any]] = []
        self._vfs = apsw.VFS(f"ackflow-limit-{id(self)}", "unix")
        self._fallocate = os.posix_fallocate
        self._limit("pwrite", "pwrite64")
        os.posix_fallocate = self._allocate

    def resize(self, size: int) -> None:
        self._size = size

    def free(self) -> int:
        return max(0, self._size - sum(entry.st_size for entry in self._entries()))

    def close(self) -> None:
        os.posix_fallocate = self._fallocate
        for name, _ in self._calls:
            self._vfs.xSetSystemCall(name, 0)
        self._vfs.unregister()

    def _limit(self, *names: str) -> None:
        """Limit SQLite's own `pwrite`, under each of its names on this system."""
        libc = ctypes.CDLL(None, use_errno=True)
        for name in names:
            real = getattr(libc, name, None)
            if real is None:
                continue
            shape = (
                ctypes.c_ssize_t,
                ctypes.c_int,
                ctypes.c_void_p,
                ctypes.c_size_t,
                ctypes.c_int64,
            )
            real.restype, real.argtypes = shape[0], shape[1:]
            call = ctypes.CFUNCTYPE(*shape, use_errno=True)(self._limited(real))
            pointer = ctypes.cast(call, ctypes.c_void_p).value
            assert pointer is not None
            if self._vfs.xSetSystemCall(name, pointer):
                self._calls.append((name, call))
        assert self._calls

    def _limited(self, real: Callable[..., int]) -> Callable[[int, int, int, int], int]:
        def pwrite(file: int, data: int, count: int, offset: int) -> int:
            if not self._fits(file, offset + count):
                ctypes.set_errno(errno.ENOSPC)
                return -1
            return real(file, data, count, offset)

        return pwrite

    def _allocate(self, file: int, offset: int, count: int) -> None:
        if not self._fits(file, offset + count):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._fallocate(file, offset, count)

    def _fits(self, file: int, end: int) -> bool:
        found = os.fstat(file)
        if end <= found.st_size:
            return True
        ours = {(entry.st_dev, entry.st_ino) for entry in self._entries()}
        return (found.st_dev, found.st_ino) not in ours or end - found.st_size <= self.free()

    def _entries(self) -> list[os.stat_result]:
        found = []
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                found.append(path.stat())
        return found


KINDS: dict[str, type[MountedDisk] | type[LimitedDisk]] = {
    "mounted": MountedDisk,
    "limited": LimitedDisk,
}


def kinds() -> list[str]:
    """Return the kinds of small disk that this system supports."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            MountedDisk(Path(folder)).close()
        except (OSError, subprocess.CalledProcessError):
            return ["limited"]
    return list(KINDS)


@contextlib.contextmanager
def small_disk(kind: str, folder: Path) -> Iterator[SmallDisk]:
    made = KINDS[kind](folder)
    try:
        yield made
    finally:
        made.close()
