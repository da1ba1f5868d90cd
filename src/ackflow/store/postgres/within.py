"""Work inside a transaction of the user's own connection to PostgreSQL.

The user's transaction is one more broker. It takes the whole schema and keeps it until it ends, so
sequence numbers are visible in the order in which they were assigned, and no cursor passes a number
that is committed later. Its row in `writes` makes every broker clear its cache. The notification is
part of the transaction: it is sent if the transaction commits.
"""

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import RawCursor
from psycopg import errors as pg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg.types.numeric import Int8BinaryDumper

from ...clock import FAR, Clock, SystemClock
from ...errors import InvalidArgument, NotADatabase, StorageBusy, StorageFailed, StorageFull
from .. import migrate
from ..cache import Cache
from ..mapping import Row
from ..tx import Tx
from .connection import (
    LOCK_SECONDS,
    SET_LOCAL,
    SETTINGS,
    TextDumper,
    TotalLoader,
    check_schema,
    statements,
)
from .fences import OUTSIDE, ROWS, lock_key
from .notify import channel_of

T = TypeVar("T")
PLANNING = ("enable_seqscan", "enable_bitmapscan", "enable_sort", "plan_cache_mode", "jit")
CURRENT = """select name, current_setting(name) from unnest($1::text[]) as s (name)
    union all select '', coalesce(to_regclass($2)::text, '')"""
LOOK = """select (select n from writes where fence = 0 order by fence desc, n desc limit 1),
    (extract(epoch from clock_timestamp()) * 1000000)::bigint,
    (select value from meta where key = 'schema'), (select value from meta where key = 'store')"""
# How the brokers lock, and whether they count the ids of leases in `meta`.
AGREED = "select key, value from meta where key in ('locks', 'lease_ids')"
# Such a row is deleted by the next transaction that writes one for the schema, whoever it is.
WROTE = """with before as (delete from writes where fence = 0 and n = $3 and broker = $2)
    insert into writes (fence, n, broker) values (0, $1, $2)"""
NO_TRANSACTION = (
    "the connection is in autocommit mode and has no open transaction that a message could belong to; "
    "use `with connection.transaction():`"
)


class OuterTransaction:
    """The open transaction of a connection; `run` adds to it, or changes nothing and raises."""

    def __init__(
        self, connection: "psycopg.Connection[Any]", schema: str, clock: Clock | None = None
    ) -> None:
        check_schema(schema)
        self._db = connection
        self._schema = schema
        self._clock = clock
        self._sequences = True
        # The results of a statement that is not waited for must not replace those of another.
        self._asking, self._telling = _cursor(connection), _cursor(connection)

    def run(self, body: Callable[[Tx], T]) -> T:
        """Run a body in a savepoint of the user's transaction, under the lock of the brokers."""
        status = self._db.info.transaction_status
        if status == TransactionStatus.INERROR:
            raise InvalidArgument(
                "the transaction of the connection has failed; roll it back first"
            )
        if status == TransactionStatus.IDLE and self._db.autocommit:
            raise InvalidArgument(NO_TRANSACTION)
        with _translated():
            self._write("savepoint ackflow_within")
            try:
                with self._pipeline():
                    before = self._begin()
                    answer = self._run(body)
                    self._write(SET_LOCAL, (list(before), list(before.values())))
            except BaseException:
                # It also gives the lock back, and the settings.
                with contextlib.suppress(psycopg.Error):
                    self._write("rollback to savepoint ackflow_within")
                    self._write("release savepoint ackflow_within")
                raise
            self._write("release savepoint ackflow_within")
            return answer

    def _pipeline(self) -> contextlib.AbstractContextManager[object]:
        """Statements that return no rows are not waited for, where libpq can do that."""
        supported = psycopg.Pipeline.is_supported()
        return self._db.pipeline() if supported else contextlib.nullcontext()

    def _begin(self) -> dict[str, str]:
        """Make the settings of a broker and take its lock; return the user's settings."""
        names = [
            *PLANNING,
            "search_path",
            "lock_timeout",
            "synchronous_commit",
            "transaction_isolation",
        ]
        current: dict[str, str] = dict(self._execute(CURRENT, (names, f'"{self._schema}".writes')))
        if not current.pop(""):
            raise NotADatabase(
                f"the database of the connection has no queue in the schema {self._schema}; "
                "ackflow.connect creates one"
            )
        isolation = current.pop("transaction_isolation")
        if isolation != "read committed":
            raise InvalidArgument(
                f"the transaction is {isolation}: it sees an old state of the queue; use read committed"
            )
        ours = {name: SETTINGS[name] for name in PLANNING} | {"search_path": self._schema}
        if current.pop("lock_timeout") == "0":
            ours["lock_timeout"] = f"{LOCK_SECONDS}s"
            current["lock_timeout"] = "0"
        if current.pop("synchronous_commit") == "off":
            ours["synchronous_commit"] = "on"  # up to the commit: an id must not be given twice
        self._write(SET_LOCAL, (list(ours), list(ours.values())))
        agreed: dict[str, str] = dict(self._execute(AGREED))
        self._sequences = "lease_ids" not in agreed
        if agreed.get("locks") == ROWS:
            self._write("select from fences where id = 0 for update")
        else:
            self._write("select pg_advisory_xact_lock($1)", (lock_key(self._schema),))
        return current

    def _run(self, body: Callable[[Tx], T]) -> T:
        version, now, schema, store = self._execute(LOOK)[0]
        newest = migrate.shipped("postgres")[-1][0]
        migrate.refuse_newer(int(schema), newest)
        if int(schema) < newest:
            raise StorageFailed(
                f"the database has schema {schema}; open it once with ackflow.connect"
            )
        tx = Tx(
            self._execute,
            self._write,
            statements(self._sequences),
            Cache(),
            self._savepoint,
            lambda sql, args: int(self._execute(f"{sql} returning id", args)[0][0]),
            store=int(store),
            now=self._now(now),
            writes=True,
        )
        answer = body(tx)
        tx.flush()
        self._write(WROTE, (version + 1 + random.getrandbits(20), OUTSIDE, version))
        self._write("select pg_notify($1, '')", (channel_of(self._schema),))
        return answer

    def _now(self, server: int) -> int:
        """The server's time, unless it differs by days from that of this machine."""
        if self._clock is not None:
            return self._clock.now()
        here = SystemClock().now()
        return server if abs(server - here) * 1000 < FAR else here

    def _execute(self, sql: str, args: Sequence[Any] = ()) -> list[Row]:
        return self._asking.execute(sql, args, binary=True, prepare=False).fetchall()

    def _write(self, sql: str, args: Sequence[Any] = ()) -> None:
        self._telling.execute(sql, args, binary=True, prepare=False)

    @contextlib.contextmanager
    def _savepoint(self) -> Iterator[None]:
        self._write("savepoint verb")
        try:
            yield
        except BaseException:
            self._write("rollback to verb")
            self._write("release verb")
            raise
        self._write("release verb")


def _cursor(connection: "psycopg.Connection[Any]") -> RawCursor[Row]:
    """A cursor with the types of a broker, whatever the connection is set to."""
    cursor: RawCursor[Row] = RawCursor(connection, row_factory=tuple_row)
    cursor.adapters.register_dumper(int, Int8BinaryDumper)
    cursor.adapters.register_dumper(bool, Int8BinaryDumper)
    cursor.adapters.register_dumper(str, TextDumper)
    cursor.adapters.register_loader("numeric", TotalLoader)
    return cursor


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except pg.DiskFull:
        raise StorageFull() from None
    except (pg.LockNotAvailable, pg.DeadlockDetected) as error:
        raise StorageBusy(
            f"the queue is locked by another transaction ({error.diag.message_primary}); roll back and "
            "try again. A push is best the last statement of a transaction"
        ) from error
    except psycopg.Error as error:
        first = str(error).strip().partition("\n")[0]
        raise StorageFailed(f"your connection failed: {first}") from error
