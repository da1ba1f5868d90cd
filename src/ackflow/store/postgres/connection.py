"""Connections to PostgreSQL, and the execution of statements in pipeline mode.

A statement that returns no rows is sent without waiting for its result. Its error is raised by the
next statement that returns rows, or by the commit at the latest.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import count
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import RawCursor
from psycopg import errors as pg
from psycopg.abc import PQGen
from psycopg.adapt import PyFormat, Transformer
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import error_from_result
from psycopg.generators import fetch_many, send
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.types.numeric import Int8, Int8BinaryDumper, NumericBinaryLoader
from psycopg.types.string import StrBinaryDumper

from ...errors import AckflowError, InvalidArgument
from .. import migrate
from ..mapping import Row
from ..protocol import WiderReach
from .capabilities import without
from .flight import NeedsAnswer

CONNECT_SECONDS = 10
PREPARED_AFTER = 2  # a statement is prepared when it has run so often
MOST_PREPARED = 1_000
BINARY = Format.BINARY
# A broker that hangs in a transaction blocks others until its session is terminated: by the server
# (idle_in_transaction_session_timeout), or by a broker whose lock_timeout has expired (`end_hung`). Each broker tries twice to get the lock.
HUNG_SECONDS = 10
LOCK_SECONDS = 15
# Either side detects a dead peer within 25 seconds, even on an idle connection.
KEEPALIVES = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
# Each statement has an index made for it and is planned once. Sequential scans are disabled because
# the planner would choose them for a table whose statistics still say that it is empty.
SETTINGS = {
    "lock_timeout": f"{LOCK_SECONDS}s",
    "idle_in_transaction_session_timeout": f"{HUNG_SECONDS}s",
    "enable_seqscan": "off",
    # The newest version of a row is the last entry of its index; other plans visit all versions.
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
}
SERVER_KEEPALIVES = {f"tcp_{name}": str(value) for name, value in KEEPALIVES.items()}
SET = """select pg_backend_pid() = $1, (select count(set_config(name, value, false))
    from unnest($2::text[], $3::text[]) as s (name, value) where pg_backend_pid() = $1)"""
SET_LOCAL = (
    "select set_config(name, value, true) from unnest($1::text[], $2::text[]) as s (name, value)"
)
# A cursor is updated twice for each message, and its dead versions remain while another session
# holds an old snapshot. Each update sets `rev` to its time, and a lookup starts at the newest. The
# time is rounded to a quarter of a second: most updates change no indexed column.
BY_KEY = re.compile(r"\b((?:from|update) cursors (?:set .* )?)where lane = \?1 and grp = \?2\b")
NEWEST = r"""\1where ctid =
    (select ctid from cursors where lane = ?1 and grp = ?2
        order by lane desc, grp desc, rev desc limit 1)"""
# A claim is looked up in the one index that contains its whole key. Where most rows are dead, the
# planner expects no rows and may choose any index; a row comparison matches this index only.
OF_CLAIM = re.compile(
    r"\b(claim_rows (?:set .* )?where )lane = \?1 and grp = \?2 and lease = \?3( and id = \?4)?"
)
UPDATE = re.compile(r"\bupdate cursors set ")
REVISE = "update cursors set rev = (date_part('epoch', now()) * 4)::bigint, "


def bigints(values: Iterable[int]) -> list[Int8]:
    """Return a parameter of type bigint[]; of plain integers psycopg would choose a smaller type."""
    return [Int8(value) for value in values]


# SQLSTATE prefixes of a terminated connection: connection failure, shutdown, session timeouts.
LOST = ("08", "57P", "25P03", "25P04")
# Connection errors that are not retried. A server that starts or stops also reports FATAL.
REFUSED = re.compile(
    "FATAL:(?!.*(starting up|shutting down|recovery|not yet accepting|too many|slots are reserved"
    "|terminating|server login|server conn|timeout|cannot connect))"
    "|no password supplied|SSL|Name or service not known"
)


class Connection(psycopg.Connection[Row]):
    """A connection with the settings of its `DatabaseUrl`.

    Behind a pooler each transaction may run in another server process. There, the settings are made
    in every transaction, no statement is prepared, and LISTEN is not available.
    """

    pooled: bool = False
    settings: tuple[list[str], list[str]] = [], []

    @contextlib.contextmanager
    def begun(self) -> Iterator[None]:
        """Run a transaction in which the settings apply."""
        with self.transaction():
            if self.pooled:
                RawCursor(self).execute(SET_LOCAL, self.settings)
            yield


def check_schema(name: str) -> None:
    """Refuse what is no plain name of a schema: it becomes a part of statements."""
    if not re.fullmatch("[a-z_][a-z0-9_]{0,62}", name):
        raise InvalidArgument(
            f"schema={name} is no name of a schema: a to z, 0 to 9 and _, at most 63"
        )


class DatabaseUrl:
    """The location of a store: server, database and schema (by default `ackflow`)."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        self.schema = query.pop("schema", "ackflow")
        self.capabilities = without(query.pop("without", None))
        check_schema(self.schema)
        bare = urlunsplit(parts._replace(query=urlencode(query, quote_via=quote)))
        try:
            known = conninfo_to_dict(bare)
        except psycopg.ProgrammingError as error:
            raise InvalidArgument(f"this is no URL of PostgreSQL: {str(error).strip()}") from None
        # A pooler rejects or ignores `options`, so the settings are made after connecting.
        given = set(re.findall(r"([\w.]+)\s*=", str(known.get("options") or "")))
        settings = {"search_path": self.schema, **SETTINGS}
        self._settings = {name: value for name, value in settings.items() if name not in given}
        defaults: dict[str, Any] = {
            "application_name": "ackflow",
            "connect_timeout": CONNECT_SECONDS,
            "tcp_user_timeout": LOCK_SECONDS * 2_000,
            **KEEPALIVES,
        }
        self._conninfo = make_conninfo(**{**defaults, **known})
        # The timeout of the first connection attempt, if the URL has one.
        self.connect_seconds = float(known.get("connect_timeout") or "inf")
        host, name = known.get("host") or "localhost", known.get("dbname") or "its default database"
        self.name = f"{name} on {host}"

    def open(self) -> Connection:
        db = Connection.connect(self._conninfo, autocommit=True)
        try:
            db.settings = list(self._settings), list(self._settings.values())
            ours = {**SERVER_KEEPALIVES, **self._settings}
            # A pooler reports an invented backend PID to its clients.
            pid = db.info.backend_pid
            asked = RawCursor(db).execute(SET, (pid, list(ours), list(ours.values()))).fetchall()
            db.pooled = not asked[0][0]
        except BaseException:
            db.close()
            raise
        db.isolation_level = psycopg.IsolationLevel.READ_COMMITTED  # whatever is set for the role
        db.prepare_threshold, db.prepared_max = None if db.pooled else 2, 1_000
        # Each statement is planned once: all integers are sent as bigint, as in the tables.
        db.adapters.register_dumper(int, Int8BinaryDumper)
        db.adapters.register_dumper(bool, Int8BinaryDumper)
        db.adapters.register_dumper(str, TextDumper)
        db.adapters.register_loader("numeric", TotalLoader)
        return db

    def end_hung(self, hung: str, keys: list[int]) -> None:
        """Terminate the sessions of hung brokers that hold one of these locks."""
        with self.open() as db, db.begun():
            RawCursor(db).execute(hung, (bigints(keys),))


# The text of a statement, and the types of its parameters.
Statement = tuple[str, tuple[int, ...] | None]
Query = tuple[str, Sequence[Any]]


class PipelinedConnection:
    """A connection in pipeline mode. Used by one thread at a time.

    Statements are sent together when a result is waited for: psycopg's own pipeline sends and polls
    for each of them, which takes longer than the server needs for it. Each wait ends with a Sync
    message: without it the server would not report a hung broker as idle in transaction. `wrote` is
    True if any statement since it was last set to False may have changed data. `held` are statements
    that are not sent before `start`, `run_held` or the first one that returns rows.
    """

    def __init__(self, db: Connection) -> None:
        self.db = db
        self.wrote = False
        self._pg = db.pgconn
        self._pg.enter_pipeline_mode()
        self._transformer = Transformer(db)
        self._uses: dict[Statement, int] = {}
        self._prepared: dict[Statement, bytes] = {}
        self._preparing: list[Statement] = []  # since the last Sync
        self._names = count()
        self._syncs = 0  # sent, whose results are to come
        self._sent: list[bool] = []  # for each result to come, whether it is that of a statement
        self._results: list[PGresult] = []
        self.held: list[Query] | None = None
        self.behind = False  # whether a statement was sent behind what was held back
        self._begin: Callable[[], None] = _begin_nothing

    def hold_back(self, begin: Callable[[], None]) -> None:
        """Hold back what is written from now on; `begin` begins the transaction when it is sent."""
        self.held, self._begin = [], begin

    @property
    def fileno(self) -> int:
        return self._pg.socket

    def start(self) -> None:
        """Begin the transaction, and send what was held back."""
        if self.held is None:
            return
        held, self.held = self.held, None
        wrote = self.wrote
        self._begin()
        self.wrote = wrote
        for sql, args in held:
            self._send(sql, args)

    def send_held(self, first: Query, behind: str | None = None) -> None:
        """Send what was held back as one transaction, after a statement.

        `behind` runs after its commit. `sync` waits for all of it, or `coming` for who cannot wait.
        """
        held, self.held = self.held or [], None
        for sql, args in (first, *held):
            self._send(sql, args)
        self.behind = behind is not None
        if behind is not None:
            self._send_sync()
            self._send(behind, ())

    def rows_at(self, index: int) -> list[Row]:
        """Return the rows of one of the statements that ran last."""
        return self._rows(self._results[index])

    def execute(self, sql: str, args: Sequence[Any] = ()) -> list[Row]:
        """Run a statement that returns rows."""
        self.start()
        if not sql.startswith("select"):
            self.wrote = True
        self._send(sql, args)
        self.sync()
        return self._rows(self._results[-1])

    def execute_all(self, queries: Sequence[tuple[str, Sequence[Any]]]) -> list[list[Row]]:
        """Run statements that return rows, in one round trip."""
        self.start()
        for sql, args in queries:
            self._send(sql, args)
        self.sync()
        return [self._rows(result) for result in self._results[-len(queries) :]]

    def write(self, sql: str, args: Sequence[Any] = ()) -> None:
        """Send a statement that returns no rows; its error is raised later."""
        self.wrote = True
        if self.held is None:
            self._send(sql, args)
        else:
            self.held.append((sql, args))

    def begin(self, sql: str) -> None:
        """Begin a transaction in which the settings apply."""
        self.write(sql)
        if self.db.pooled:
            self.write(SET_LOCAL, self.db.settings)

    def commit(self, behind: str | None = None, clock: str | None = None) -> float:
        """Commit, and wait for the result.

        `behind` runs in a transaction of its own after that, in the same round trip. Returns the
        seconds that it took, if `clock` asks the server for its time.
        """
        self.write("commit")
        more = 0
        if behind is not None:
            for sql in (clock, behind) if clock else (behind,):
                self._send(sql, ())
                more += 1
            if clock:
                self._send_sync()
                self._send(clock, ())
                more += 1
        self.sync()
        committed = self._results[-1 - more]
        if committed.command_status != b"COMMIT":  # a commit after an error is a rollback
            raise pg.InFailedSqlTransaction("the transaction was rolled back")
        return self._seconds() if clock else 0.0

    def timed(self, sql: str, clock: str) -> float:
        """Run a statement, and return the seconds that it and its commit took, by the server's clock."""
        self._send(clock, ())
        self._send(sql, ())
        self._send_sync()
        self._send(clock, ())
        self.sync()
        return self._seconds()

    def _seconds(self) -> float:
        """Return the seconds from the third last statement to the last one."""
        ((began,),), ((ended,),) = self.rows_at(-3), self.rows_at(-1)
        return float(ended - began) / 1e6

    def insert(self, sql: str, args: Sequence[Any]) -> int:
        return int(self.execute(f"{sql} returning id", args)[0][0])

    def sync(self) -> None:
        """Wait for the results of everything sent; raises the first error of a statement."""
        self.take(self.db.wait(self.coming()))

    def coming(self) -> PQGen[list[PGresult]]:
        """Return the results to wait for, for `take`."""
        self._send_sync()
        syncs, self._syncs = self._syncs, 0
        return _results(self._pg, syncs)

    def take(self, found: list[PGresult]) -> None:
        """Take the results of everything sent; raises the first error of a statement."""
        sent, self._sent = self._sent, []
        for result in found:
            if result.status == ExecStatus.FATAL_ERROR:
                for statement in self._preparing:  # after an error the server skips the rest
                    self._prepared.pop(statement, None)
                self._preparing.clear()
                raise error_from_result(result, encoding=self.db.info.encoding)
        self._preparing.clear()
        self._results = [result for result, kept in zip(found, sent, strict=True) if kept]

    def _send_sync(self) -> None:
        self._pg.pipeline_sync()
        self._syncs += 1

    def rollback(self, error: BaseException) -> bool:
        """Roll back the open transaction; returns False if the connection is no longer usable.

        After an error of the server, or an interrupt during a statement, it is closed.
        """
        if self.held is not None or isinstance(error, NeedsAnswer):  # nothing was sent
            self.held = None
            return True
        idle = self._pg.transaction_status == TransactionStatus.IDLE
        if isinstance(error, pg.SerializationFailure) and idle:
            return True
        try:
            if isinstance(error, AckflowError | WiderReach):
                self.write("rollback")
                self.sync()
                return True
        except psycopg.Error:
            pass
        self.close()
        return False

    def close(self) -> None:
        self.db.close()

    def _send(self, sql: str, args: Sequence[Any]) -> None:
        params: Sequence[Any] | None = None
        types: tuple[int, ...] | None = None
        formats: Sequence[Any] | None = None
        if args:
            transformer = self._transformer
            params = transformer.dump_sequence(args, [PyFormat.AUTO] * len(args))
            types, formats = transformer.types, transformer.formats
        key = sql, types
        name = self._prepared.get(key) or self._prepare(key)
        if name is None:
            self._pg.send_query_params(sql.encode(), params, types, formats, BINARY)
        else:
            self._pg.send_query_prepared(name, params, formats, BINARY)
        self._sent.append(True)

    def _prepare(self, key: Statement) -> bytes | None:
        """Prepare a statement that is run often; returns its name."""
        uses = self._uses[key] = self._uses.get(key, 0) + 1
        if uses <= PREPARED_AFTER or self.db.pooled or len(self._prepared) == MOST_PREPARED:
            return None
        name = self._prepared[key] = b"ackflow%d" % next(self._names)
        self._preparing.append(key)
        self._pg.send_prepare(name, key[0].encode(), key[1])
        self._sent.append(False)
        return name

    def _rows(self, result: PGresult) -> list[Row]:
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)


def _begin_nothing() -> None:
    raise AssertionError("nothing is held back")


def _results(pgconn: PGconn, syncs: int) -> PQGen[list[PGresult]]:
    """Send what is waiting, and return the results up to the last of the next Syncs."""
    yield from send(pgconn)
    found: list[PGresult] = []
    while True:
        results = yield from fetch_many(pgconn)
        if results and results[-1].status == ExecStatus.PIPELINE_SYNC:
            syncs -= 1
            if not syncs:
                return found
        else:
            found += results[-1:]


# The highest id in the blocks of leases that brokers have taken.
TOP_OF_SEQUENCE = "(select last_value + 63 from lease_ids)"
TOP_OF_META = "(select coalesce(max(value), '0')::bigint from meta where key = 'lease_ids')"


@cache
def statements(sequences: bool = True) -> dict[str, str]:
    """Return the named statements in PostgreSQL's syntax; a limit of -1 means no limit."""
    top = TOP_OF_SEQUENCE if sequences else TOP_OF_META
    found = {
        name: UPDATE.sub(REVISE, BY_KEY.sub(NEWEST, OF_CLAIM.sub(_by_whole_key, sql)))
        for name, sql in migrate.statements("postgres").items()
    }
    unlimited = {
        name: re.sub(r"\blimit \?(\d+)", r"limit nullif(?\1, -1)", sql)
        for name, sql in found.items()
    }
    return {
        name: re.sub(r"\?(\d+)", r"$\1", sql).replace("{top}", top)
        for name, sql in unlimited.items()
    }


def _by_whole_key(found: re.Match[str]) -> str:
    key, values = (
        ("lane, grp, lease, id", "?1, ?2, ?3, ?4")
        if found[2]
        else ("lane, grp, lease", "?1, ?2, ?3")
    )
    return f"{found[1]}({key}) >= ({values}) and ({key}) <= ({values})"


class TextDumper(StrBinaryDumper):
    """Replaces the NUL character, which PostgreSQL cannot store in text.

    Names never contain it; the text of an error may.
    """

    def dump(self, obj: str) -> Any:
        return super().dump(obj.replace("\0", "\ufffd") if "\0" in obj else obj)


class TotalLoader(NumericBinaryLoader):
    """Loads `numeric` as int: the sum of bigint values is numeric."""

    def load(self, data: Any) -> Any:
        return int(super().load(data))


def is_lost(error: psycopg.Error) -> bool:
    """Return whether an error means a lost or unavailable connection, not a failed statement."""
    if error.sqlstate is None:  # connection errors have no SQLSTATE, and one line for each server
        tried = re.findall("^- host: .*", str(error), re.MULTILINE) or [first_line(error)]
        return isinstance(error, psycopg.OperationalError) and any(
            not REFUSED.search(attempt) for attempt in tried
        )
    return error.sqlstate.startswith(LOST)


def first_line(error: psycopg.Error) -> str:
    return str(error).strip().partition("\n")[0]
