"""Schemas and named statements, read from the .sql files of a dialect.

A new database is created from `schema.sql`; an older database gets the missing numbered migrations,
all in one transaction. The files are read once per process.
"""

import re
from collections.abc import Sequence
from functools import cache
from importlib import resources

import apsw

from ..errors import NotADatabase, SchemaTooNew

APPLICATION_ID = 0x41434B46  # "ACKF"
Migration = tuple[int, str]


@cache
def shipped(dialect: str) -> Sequence[Migration]:
    """Return the migrations of this version, as (number, SQL), in order."""
    folder = resources.files(__package__) / "sql" / dialect
    names = sorted(f.name for f in folder.iterdir() if f.name[:4].isdigit())
    return tuple((int(name[:4]), (folder / name).read_text()) for name in names)


@cache
def schema(dialect: str) -> Migration:
    """Return the schema of a new database, and the number of the migration that it equals."""
    sql = (resources.files(__package__) / "sql" / dialect / "schema.sql").read_text()
    found = re.match(r"-- Schema (\d+):", sql)
    assert found is not None, "schema.sql begins with its number"
    return int(found[1]), re.sub(r"\s*--.*", "", sql)


@cache
def statements(dialect: str) -> dict[str, str]:
    """Return the named statements of a dialect: the common ones and its own.

    Each is one line, because the statement cache is keyed by the text, and short keys are faster.
    """
    folder = resources.files(__package__) / "sql"
    files = folder / "statements.sql", folder / dialect / "statements.sql"
    blocks = [block for file in files for block in file.read_text().split("-- name: ")[1:]]
    named = (block.partition("\n") for block in blocks)
    return {name.strip(): " ".join(sql.split()) for name, _, sql in named}


def check(db: apsw.Connection, migrations: Sequence[Migration]) -> None:
    """Raise if the file belongs to another program or a newer version; it is not changed."""
    version, newest = _version(db), migrations[-1][0]
    if not _is_ours(db):
        if version or _has_tables(db):
            raise NotADatabase("the file is an SQLite database of another program")
    else:
        refuse_newer(version, newest)


def refuse_newer(version: int, newest: int) -> None:
    if version > newest:
        raise SchemaTooNew(
            f"the database has schema {version}, this Ackflow knows schemas up to {newest}; "
            "upgrade Ackflow to open it"
        )


def migrate(
    db: apsw.Connection, migrations: Sequence[Migration], fresh: Migration | None = None
) -> None:
    """Migrate a database to the newest schema, in one transaction.

    For an empty database, `fresh` replaces the migrations up to its number.
    """
    newest = migrations[-1][0]
    if _version(db) == newest and _is_ours(db):
        return
    db.execute("begin immediate")
    try:
        check(db, migrations)
        for sql in missing(_version(db), migrations, fresh):
            db.execute(sql)
        db.pragma("application_id", APPLICATION_ID)
        db.pragma("user_version", newest)
        db.execute("commit")
    except BaseException:
        db.execute("rollback")
        raise


def missing(version: int, migrations: Sequence[Migration], fresh: Migration | None) -> list[str]:
    """Return the SQL of the migrations after a version; version 0 is an empty database."""
    steps = [fresh] if fresh is not None and not version else []
    version = fresh[0] if fresh is not None and not version else version
    return [sql for _, sql in (*steps, *(m for m in migrations if m[0] > version))]


def _version(db: apsw.Connection) -> int:
    return int(db.pragma("user_version"))


def _is_ours(db: apsw.Connection) -> bool:
    return bool(db.pragma("application_id") == APPLICATION_ID)


def _has_tables(db: apsw.Connection) -> bool:
    return bool(db.execute("select count(*) from sqlite_master").fetchall()[0][0])
