"""Creation of databases: each process builds one image of an empty database and copies it.

Running the schema takes SQLite about 2 ms and, in a new file, several fsyncs; a copy takes one.
"""

import contextlib
import os
import secrets
from functools import cache

import apsw

from .. import migrate
from .backup import open_private, sync_path

WAL_VERSION = b"\2\2"  # bytes 18 and 19 of a database in WAL mode


def create_file(path: str) -> None:
    """Create an empty database in WAL mode, unless the file exists.

    Only its owner may read it. The file gets its final name once it is on disk. If this fails,
    SQLite creates the file when it is opened, or reports the error.
    """
    path = os.path.realpath(path)  # it may be a link to a file that does not exist yet
    part = f"{path}.{secrets.token_hex(4)}.part"
    try:
        # Closed before it is renamed: closing a file drops all locks of this process on it.
        handle = open_private(part)
    except OSError:
        return
    try:
        with open(handle, "wb") as file:
            file.write(_image())
            file.flush()
            os.fsync(file.fileno())
        os.link(part, path)
        sync_path(os.path.dirname(path), os.O_RDONLY)
    except OSError:
        # Another process created it, or the file system is full or has no links: then SQLite fills
        # an empty file.
        with contextlib.suppress(OSError):
            os.close(open_private(path))
    finally:
        with contextlib.suppress(OSError):
            os.unlink(part)


def fill_memory(db: apsw.Connection) -> None:
    """Copy the newest schema into an empty in-memory database."""
    with contextlib.closing(apsw.Connection(":memory:")) as source:
        source.deserialize("main", _image(wal=False))
        with db.backup("main", source, "main") as copy:
            copy.step()


@cache
def _image(wal: bool = True) -> bytes:
    with contextlib.closing(apsw.Connection(":memory:")) as db:
        migrate.migrate(db, migrate.shipped("sqlite"), migrate.schema("sqlite"))
        image = db.serialize("main")
    return image[:18] + WAL_VERSION + image[20:] if wal else image
