"""Open a session on a file, on PostgreSQL or on a server."""

import os
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from .. import validate
from ..broker.broker import Broker
from ..broker.sharded.broker import ShardedBroker
from ..broker.sharded.database import Database
from ..broker.unclosed import close_when_dropped
from ..clock import Clock, SystemClock
from ..errors import InvalidArgument
from ..store.durability import MayLose
from ..store.protocol import Store
from ..store.sqlite import store as sqlite
from ..store.sqlite.store import SqliteStore
from .session import Session

if TYPE_CHECKING:
    from ..remote.retry import RetryPolicy


def connect(
    url: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    consumer: str | None = None,
    may_lose: MayLose | None = None,
    clock: Clock | None = None,
    upkeep: bool = True,
    token: str | None = None,
    ca_file: str | os.PathLike[str] | None = None,
    retry: "RetryPolicy | None" = None,
) -> Session:
    """Open a database: a file, created if needed, or PostgreSQL or a server by URL.

    `:memory:` is private. In PostgreSQL (`postgresql://user@host/database`) everything lies in the
    schema `ackflow`, or the one that `?schema=` names.

    `may_lose` names what a power cut may cost: nothing; acks (the default: a message acked without
    confirm may come again); recent (pushes of the last moments too); everything (the whole file).
    A killed process loses nothing of what was confirmed, whatever the mode. The mode belongs to the
    file: it is chosen when the file is made, a session that may lose more is refused, and without
    `may_lose` the file's mode holds; `set_may_lose` changes it.

    Several databases, as URLs of PostgreSQL separated by commas or as a list of files and URLs, are
    used as one: each queue lives in one of them, see `docs/scale.md`. One that is away takes down
    its own queues only.

    For a server (`http://`, `https://`, several separated by commas): `token` is the bearer token,
    `ca_file` the certificates to trust, `retry` the policy when the server does not answer.
    """
    if consumer is not None:
        validate.name(consumer, "consumer")
    if isinstance(url, str) and url.startswith(("http://", "https://")):
        remote = load_client().remote(url, token, ca_file, retry, clock)
        return Session(remote, consumer, validate.redact_url(url))
    parts = validate.databases(url)
    if len(parts) > 1:
        return _connect_several(parts, consumer, may_lose, clock, upkeep)
    (url,) = parts
    store: Store
    name = "PostgreSQL"  # not its URL, which may have a password
    if url.startswith(validate.POSTGRES):
        store = load_postgres().PostgresStore(url, clock, may_lose)
    else:
        name = url
        store = SqliteStore(name, clock, may_lose)
    session = Session(Broker(store, store.clock, upkeep), consumer, validate.redact_url(url))
    session._watching = close_when_dropped(session, session._broker, name)
    return session


def _connect_several(
    parts: Sequence[str],
    consumer: str | None,
    may_lose: MayLose | None,
    clock: Clock | None,
    upkeep: bool,
) -> Session:
    """Open several databases as one."""
    shown = [validate.redact_url(part) for part in parts]

    def opener(part: str) -> Callable[[], Broker]:
        postgres = load_postgres() if part.startswith(validate.POSTGRES) else None

        def open() -> Broker:
            store: Store
            if postgres is not None:
                store = postgres.PostgresStore(part, clock, may_lose)
            else:
                store = SqliteStore(part, clock, may_lose)
            return Broker(store, store.clock, upkeep)

        return open

    databases = [Database(place, opener(part)) for place, part in zip(shown, parts, strict=True)]
    broker = ShardedBroker(databases, clock or SystemClock())
    session = Session(broker, consumer, ",".join(shown))
    session._watching = close_when_dropped(session, broker, f"{len(parts)} databases")
    return session


def set_may_lose(path: str | os.PathLike[str], may_lose: MayLose) -> None:
    """Change the durability mode of a file, which no session may have open."""
    sqlite.set_may_lose(validate.place(path), may_lose)


def load_postgres() -> ModuleType:
    """Import the PostgreSQL store, whose driver is an optional dependency."""
    try:
        from ..store.postgres import store as module
    except ImportError as missing:
        raise InvalidArgument(
            f"PostgreSQL needs its driver: pip install ackflow[postgres] ({missing.name} is missing)"
        ) from None
    return module


def load_client() -> ModuleType:
    """Import the HTTP client, whose libraries are optional dependencies."""
    try:
        from ..remote import connect as module
    except ImportError as missing:
        raise InvalidArgument(
            f"a server needs the client: pip install ackflow[client] ({missing.name} is missing)"
        ) from None
    return module
