"""Push and settle inside a transaction of the user's own database connection."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from .. import validate
from ..broker.core.push import push
from ..broker.core.transactions import transact
from ..clock import Clock
from ..errors import AckflowError, InvalidArgument
from ..options import DEFAULT_PARTITION
from ..store.tx import Tx
from ..validate import Duration, Time
from . import encoding
from .messages import Receipt
from .transaction import Committed, Operations

T = TypeVar("T")
ASYNC = (
    "an asynchronous connection cannot be used here; use a connection of psycopg or a session of "
    "SQLAlchemy that is not asynchronous"
)


class Outer(Protocol):
    """The user's open transaction."""

    def run(self, body: Callable[[Tx], T]) -> T: ...


class Within:
    """The queue as a part of the user's transaction: what is done here is committed with it.

    A rollback takes the messages along; a commit makes them visible and wakes waiting consumers.
    From the first call until its end, the transaction keeps other writers of the queue waiting, so
    the calls are best the last statements in it.
    """

    def __init__(self, outer: Outer) -> None:
        self._outer = outer

    def push(
        self,
        queue: str,
        data: Any,
        *,
        partition: str = DEFAULT_PARTITION,
        priority: int = 0,
        delay: Duration | None = None,
        key: str | None = None,
        at: Time | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Receipt:
        """Append messages, as `Session.push` does, when the transaction commits.

        A refused push changes nothing, and the transaction can continue.
        """
        request, places = encoding.request(
            queue, data, partition=partition, priority=priority, delay=delay, key=key, whole=True,
            at=at, headers=headers,
        )  # fmt: skip

        def body(tx: Tx) -> Receipt:
            (answer,) = push(tx, [request])
            if isinstance(answer, AckflowError):
                raise answer
            return Receipt(tx.store, answer, places, key is not None)

        return self._outer.run(body)

    def commit(self, operations: Operations) -> Committed:
        """Run the operations of `q.transaction()`, acks included, when the transaction commits.

        So a message can be acked in the transaction that stores what it caused.
        """
        request = operations.request()

        def body(tx: Tx) -> Committed:
            results = transact(tx, request)
            receipts = [
                Receipt(tx.store, results[i].places, p) for i, p in operations.places.items()
            ]
            return Committed(results, receipts)

        operations.committed = self._outer.run(body)
        return operations.committed


def within(connection: Any, *, schema: str = "ackflow", clock: Clock | None = None) -> Within:
    """Use a queue inside the open transaction of a connection to the same database.

    `connection` is a connection of psycopg, apsw or sqlite3, or a session or connection of SQLAlchemy
    on one of them. On PostgreSQL, `schema` is the one that the URL of `ackflow.connect` names.
    """
    validate.name(schema, "schema")
    driver = _unwrapped(connection)
    kind = type(driver)
    modules = {base.__module__.partition(".")[0] for base in kind.__mro__}
    if modules & {"apsw", "sqlite3", "_sqlite3"}:
        from ..store.sqlite import within as sqlite

        return Within(sqlite.OuterTransaction(driver, clock))
    if "psycopg" in modules:
        import psycopg

        from ..store.postgres import within as postgres

        if isinstance(driver, psycopg.AsyncConnection):
            raise InvalidArgument(ASYNC)
        if isinstance(driver, psycopg.Connection):
            return Within(postgres.OuterTransaction(driver, schema, clock))
    raise InvalidArgument(
        "within takes a connection of psycopg, apsw or sqlite3, or a session or connection of "
        f"SQLAlchemy on one of them, got {kind.__module__}.{kind.__qualname__}"
    )


def _unwrapped(connection: Any) -> Any:
    """Return the driver's connection that a session or connection of SQLAlchemy uses."""
    if not type(connection).__module__.startswith("sqlalchemy."):
        return connection
    if hasattr(connection, "sync_session") or hasattr(connection, "sync_connection"):
        raise InvalidArgument(ASYNC)
    if callable(getattr(connection, "connection", None)):
        connection = connection.connection()  # of a session; it begins its transaction
    pooled: Any = getattr(connection, "connection", None)
    if not hasattr(pooled, "driver_connection"):
        raise InvalidArgument("within takes a session or a connection of SQLAlchemy, not an engine")
    return pooled.driver_connection
