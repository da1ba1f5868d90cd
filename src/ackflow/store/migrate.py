"""Numbered migrations: plain .sql files; all that are missing are applied in one transaction."""

from collections.abc import Sequence
from importlib import resources

import apsw

from ..errors import NotADatabase, SchemaTooNew

APPLICATION_ID = 0x41434B46  # "ACKF"
Migration = tuple[int, str]


def shipped(dialect: str) -> list[Migration]:
    """The migrations of this version, as (number, SQL), in order."""
    folder = resources.files(__package__) / "sql" / dialect
    names = sorted(f.name for f in folder.iterdir() if f.name[:4].isdigit())
    return [(int(name[:4]), (folder / name).read_text()) for name in names]


def statements(dialect: str) -> dict[str, str]:
    """The named statements of a dialect: those of all, and those it words in its own way.

    Each is one line: they are found by their text at every call, the faster the shorter it is.
    """
    folder = resources.files(__package__) / "sql"
    files = folder / "statements.sql", folder / dialect / "statements.sql"
    blocks = [block for file in files for block in file.read_text().split("-- name: ")[1:]]
    named = (block.partition("\n") for block in blocks)
    return {name.strip(): " ".join(sql.split()) for name, _, sql in named}


def check(db: apsw.Connection, migrations: Sequence[Migration]) -> None:
    """Refuse a file of another program and one of a newer version; changes nothing."""
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


def migrate(db: apsw.Connection, migrations: Sequence[Migration]) -> None:
    """Bring a database to the newest schema, in one transaction."""
    newest = migrations[-1][0]
    if _version(db) == newest and _is_ours(db):
        return
    db.execute("begin immediate")
    try:
        check(db, migrations)
        version = _version(db)
        for number, sql in migrations:
            if number > version:
                db.execute(sql)
        db.pragma("application_id", APPLICATION_ID)
        db.pragma("user_version", newest)
        db.execute("commit")
    except BaseException:
        db.execute("rollback")
        raise


def _version(db: apsw.Connection) -> int:
    return int(db.pragma("user_version"))


def _is_ours(db: apsw.Connection) -> bool:
    return bool(db.pragma("application_id") == APPLICATION_ID)


def _has_tables(db: apsw.Connection) -> bool:
    return bool(db.execute("select count(*) from sqlite_master").fetchall()[0][0])
