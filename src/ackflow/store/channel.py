"""One connection to PostgreSQL: how it is opened, and how statements go over it.

Statements are sent in a pipeline: one that answers with no rows is not waited for, and its error
comes with the next answer, or with the commit at the latest.
"""

import contextlib
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import RawCursor
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.numeric import Int8BinaryDumper, NumericBinaryLoader
from psycopg.types.string import StrBinaryDumper

from ..errors import InvalidArgument
from . import migrate
from .forms import Row

CONNECT_SECONDS = 10
# A broker that hangs in the middle of a transaction keeps all others out until the server ends it.
BUSY_SECONDS = 30
HUNG_SECONDS = 60
# Nothing scans: each statement has an index made for it, whatever the server believes of a table
# that was empty a moment ago, and its plan is made once.
PLANS = "-c enable_seqscan=off -c plan_cache_mode=force_generic_plan -c jit=off"


class Place:
    """Where a database is: a server, a database there, and a schema in it (`ackflow` by default)."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        self.schema = query.pop("schema", "ackflow")
        if not re.fullmatch("[a-z_][a-z0-9_]{0,62}", self.schema):
            raise InvalidArgument(
                f"schema={self.schema} is no name of a schema: a to z, 0 to 9 and _, at most 63"
            )
        bare = urlunsplit(parts._replace(query=urlencode(query, quote_via=quote)))
        try:
            known = conninfo_to_dict(bare)
        except psycopg.ProgrammingError as error:
            raise InvalidArgument(f"this is no URL of PostgreSQL: {str(error).strip()}") from None
        options = (
            f"-c search_path={self.schema} -c lock_timeout={BUSY_SECONDS}s {PLANS} "
            f"-c idle_in_transaction_session_timeout={HUNG_SECONDS}s {known.get('options') or ''}"
        )
        defaults: dict[str, Any] = {
            "application_name": "ackflow",
            "connect_timeout": CONNECT_SECONDS,
        }
        self._conninfo = make_conninfo(**{**defaults, **known, "options": options.strip()})
        host, name = known.get("host") or "localhost", known.get("dbname") or "its default database"
        self.name = f"{name} on {host}"

    def open(self) -> "psycopg.Connection[Row]":
        db = psycopg.connect(self._conninfo, autocommit=True)
        db.prepare_threshold, db.prepared_max = 2, 1_000
        # Each statement is planned once: all whole numbers are of one type, as in the tables.
        db.adapters.register_dumper(int, Int8BinaryDumper)
        db.adapters.register_dumper(bool, Int8BinaryDumper)
        db.adapters.register_dumper(str, _TextDumper)
        db.adapters.register_loader("numeric", _SumLoader)
        return db


class Channel:
    """A connection whose statements are pipelined. Used by one thread at a time.

    `wrote`: whether any statement since it was last set to False may have changed something.
    """

    def __init__(self, db: "psycopg.Connection[Row]") -> None:
        self.db = db
        self.wrote = False
        self._asking, self._telling = RawCursor(db), RawCursor(db)
        self._stack = contextlib.ExitStack()
        self._pipeline = self._stack.enter_context(db.pipeline())

    def execute(self, sql: str, args: Sequence[Any] = ()) -> list[Row]:
        """Run a statement that answers with rows."""
        if not sql.startswith("select"):
            self.wrote = True
        return self._asking.execute(sql, args, binary=True).fetchall()

    def write(self, sql: str, args: Sequence[Any] = ()) -> None:
        """Send a statement that answers with no rows; what is wrong with it is heard later."""
        self.wrote = True
        self._telling.execute(sql, args, binary=True)

    def insert(self, sql: str, args: Sequence[Any]) -> int:
        return int(self.execute(f"{sql} returning id", args)[0][0])

    def sync(self) -> None:
        """Wait until everything sent is done; raises what was wrong with any of it."""
        self._pipeline.sync()

    def rollback(self) -> bool:
        """Undo what is not committed; False when the connection is of no more use."""
        try:
            self.write("rollback")
            self.sync()
        except psycopg.Error:
            self.close()
            return False
        return True

    def close(self) -> None:
        with contextlib.suppress(psycopg.Error):
            self._stack.close()
        self.db.close()


def statements() -> dict[str, str]:
    """The named statements as PostgreSQL reads them; a limit of -1 is none."""
    found = migrate.statements("postgres")
    unlimited = {
        name: re.sub(r"\blimit \?(\d+)", r"limit nullif(?\1, -1)", sql)
        for name, sql in found.items()
    }
    return {name: re.sub(r"\?(\d+)", r"$\1", sql) for name, sql in unlimited.items()}


class _TextDumper(StrBinaryDumper):
    """Text as it is, but for the one character that PostgreSQL has no room for.

    Names never have it; the text of an error may.
    """

    def dump(self, obj: str) -> Any:
        return super().dump(obj.replace("\0", "\ufffd") if "\0" in obj else obj)


class _SumLoader(NumericBinaryLoader):
    """Sums of whole numbers are whole numbers."""

    def load(self, data: Any) -> Any:
        return int(super().load(data))
