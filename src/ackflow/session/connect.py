"""Open a session on a file, on PostgreSQL or on a server."""

import os
from types import ModuleType
from typing import TYPE_CHECKING

from .. import validate
from ..broker.broker import Broker
from ..broker.unclosed import close_when_dropped
from ..clock import Clock
from ..errors import InvalidArgument
from ..store.durability import MayLose
from ..store.protocol import Store
from ..store.sqlite import store as sqlite
from ..store.sqlite.store import SqliteStore
from .session import Session

if TYPE_CHECKING:
    from ..remote.retry import RetryPolicy


def connect(
    url: str | os.PathLike[str],
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

    For a server (`http://`, `https://`, several separated by commas): `token` is the bearer token,
    `ca_file` the certificates to trust, `retry` the policy when the server does not answer.
    """
    if consumer is not None:
        validate.name(consumer, "consumer")
    if isinstance(url, str) and url.startswith(("http://", "https://")):
        remote = load_client().remote(url, token, ca_file, retry, clock)
        return Session(remote, consumer, validate.redact_url(url))
    store: Store
    name = "PostgreSQL"  # not its URL, which may have a password
    if isinstance(url, str) and url.startswith(validate.POSTGRES):
        store = load_postgres().PostgresStore(url, clock, may_lose)
    else:
        name = validate.place(url)
        store = SqliteStore(name, clock, may_lose)
    session = Session(
        Broker(store, store.clock, upkeep), consumer, validate.redact_url(os.fspath(url))
    )
    session._watching = close_when_dropped(session, session._broker, name)
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
