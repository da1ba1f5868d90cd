"""The version of the schema of a database, read without migrating it."""

import contextlib

from .. import validate
from ..errors import NotADatabase
from ..store import migrate
from ..store.sqlite.check import check_file
from .connect import load_postgres


def schema_version(place: str) -> tuple[int, int]:
    """Return the schema of a database and the newest one; 0 for a database without a schema."""
    if validate.is_postgres(place):
        return _of_postgres(place), migrate.shipped("postgres")[-1][0]
    found = check_file(place, deep=False)
    return found.schema, found.newest


def _of_postgres(url: str) -> int:
    place = load_postgres().DatabaseUrl(url)
    with contextlib.closing(place.open()) as db:
        rows = db.execute("select tablename from pg_tables where schemaname = %s", (place.schema,))
        names = {row[0] for row in rows.fetchall()}
        if not names:
            return 0
        if "meta" not in names:
            raise NotADatabase(f"the schema {place.schema} holds tables of another program")
        row = db.execute("select value from meta where key = 'schema'").fetchone()
        version = int(str(row[0])) if row else 0
    migrate.refuse_newer(version, migrate.shipped("postgres")[-1][0])
    return version
