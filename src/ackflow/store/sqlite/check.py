"""Looking at a database file from outside, without changing it."""

import os
from contextlib import closing

import apsw
from msgspec import Struct

from .. import migrate
from .errors import translated


class Examined(Struct):
    """What a file is: its schema, the newest one known here, and what is broken in it."""

    schema: int
    newest: int
    broken: list[str]


def examine(path: str, deep: bool = True) -> Examined:
    """Check that a file is ours and can be read; `deep` reads all of it."""
    migrations = migrate.shipped("sqlite")
    with translated(path), closing(_open(path)) as db:
        migrate.check(db, migrations)
        schema, newest = int(db.pragma("user_version")), migrations[-1][0]
        found = db.execute("pragma integrity_check(10)").fetchall() if deep else []
        return Examined(schema, newest, [str(row[0]) for row in found if row[0] != "ok"])


def _open(path: str) -> apsw.Connection:
    # The log of a file that is not open may have to be read, for which SQLite makes a file beside.
    folder = os.path.dirname(os.path.abspath(path))
    read_only = not os.access(path, os.W_OK) or not os.access(folder, os.W_OK)
    flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE
    return apsw.Connection(path, flags=flags)
