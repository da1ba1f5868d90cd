"""Integrity check of a database file, without changing it."""

import os
from contextlib import closing

import apsw
from msgspec import Struct

from .. import migrate
from .errors import translated


class FileCheck(Struct):
    """The schema of a file, the newest schema of this version, and the errors found."""

    schema: int
    newest: int
    broken: list[str]


def check_file(path: str, deep: bool = True) -> FileCheck:
    """Check that a file is a readable Ackflow database; `deep` runs a full integrity check."""
    migrations = migrate.shipped("sqlite")
    with translated(path), closing(_open(path)) as db:
        migrate.check(db, migrations)
        schema, newest = int(db.pragma("user_version")), migrations[-1][0]
        found = db.execute("pragma integrity_check(10)").fetchall() if deep else []
        return FileCheck(schema, newest, [str(row[0]) for row in found if row[0] != "ok"])


def _open(path: str) -> apsw.Connection:
    # SQLite may have to read the WAL of a closed database, for which it creates a -shm file.
    folder = os.path.dirname(os.path.abspath(path))
    read_only = not os.access(path, os.W_OK) or not os.access(folder, os.W_OK)
    flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE
    return apsw.Connection(path, flags=flags)
