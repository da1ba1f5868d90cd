"""Backup: a copy of the database in a new file, renamed to its final name once it is on disk."""

import contextlib
import os
import secrets

import apsw

from ...errors import StorageFailed

PRIVATE = 0o600
COPY_OF = "copy_of"  # key in `meta`; equals the store id until the copy is first opened


def backup(source: apsw.Connection, target: str, put_meta: str) -> None:
    """Copy a database to a file that must not exist; of concurrent calls, one succeeds."""
    taken = f"{target} exists already; a backup needs a new file"
    if os.path.lexists(target):
        raise StorageFailed(taken)
    part = f"{target}.{secrets.token_hex(4)}.part"
    try:
        with contextlib.suppress(OSError):  # SQLite reports it
            os.close(open_private(part))
        with contextlib.closing(apsw.Connection(part)) as copy:
            with copy.backup("main", source, "main") as steps:
                steps.step()
            # Without a WAL the copy is one file; opening it switches it back to WAL mode.
            copy.pragma("journal_mode", "delete")
            copy.execute(put_meta, (COPY_OF, copy.execute(STORE_ID).get))
        sync_path(part, os.O_RDWR)
        _rename(part, target, taken)
    finally:
        for left in (part, f"{part}-journal", f"{part}-wal", f"{part}-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.remove(left)
    sync_path(os.path.dirname(os.path.abspath(target)), os.O_RDONLY)


STORE_ID = "select value from meta where key = 'store'"


def _rename(part: str, target: str, taken: str) -> None:
    """Rename the copy to its final name, without replacing another file."""
    try:
        os.link(part, target)
    except FileExistsError:
        raise StorageFailed(taken) from None
    except OSError:  # the file system does not support links
        if os.path.lexists(target):
            raise StorageFailed(taken) from None
        os.replace(part, target)


def open_private(path: str) -> int:
    """Create a file that only its owner may read and write, whatever the umask."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
    try:
        os.fchmod(handle, PRIVATE)
    except PermissionError:  # the file system has no such permissions
        pass
    except BaseException:
        os.close(handle)
        raise
    return handle


def sync_path(path: str, flags: int) -> None:
    """Fsync a file or a directory."""
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    except OSError as error:
        raise StorageFailed(f"the disk did not confirm {path}: {error.strerror}") from error
    finally:
        os.close(handle)
