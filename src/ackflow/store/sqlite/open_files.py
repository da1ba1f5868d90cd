"""The database files that this process has open.

Two copies of SQLite in one process, or one that was inherited by a fork, do not see each other's
locks: the operating system grants them to the process.
"""

import os
from typing import Protocol
from weakref import WeakSet

from ...errors import SessionForked


class OpenFile(Protocol):
    """A store: the process that opened it, and device and inode of its file."""

    _pid: int
    _file: tuple[int, int]


# The stores that this process has open, and those it inherited when it was forked.
opened: WeakSet[OpenFile] = WeakSet()


def file_at(path: str) -> tuple[int, int]:
    """Return device and inode of the file at a path; (0, 0) for none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return 0, 0
    return found.st_dev, found.st_ino


def is_open_here(path: str) -> bool:
    """Return whether a store of this process has a file open."""
    return file_at(path) in [store._file for store in list(opened)]


def refuse_inherited(path: str) -> None:
    """Refuse a file that the parent process had open when it forked.

    SQLite in the child would count the parent's locks as its own and take none. Another process
    could then remove the WAL while the child writes to it, and confirmed messages would be lost.
    """
    inherited = [store._file for store in list(opened) if store._pid != os.getpid()]
    if inherited and os.path.exists(path) and file_at(path) in inherited:
        raise SessionForked(
            f"{path} was open when this process was forked and cannot be opened here; "
            "connect only after the fork, or start the process by spawn"
        )
