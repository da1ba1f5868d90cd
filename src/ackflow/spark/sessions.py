"""One Ackflow session per process and database: Spark reuses its Python workers for many tasks."""

import atexit
import contextlib
import os
import threading
from contextlib import closing
from typing import Protocol

import ackflow

from .. import validate
from ..errors import NotFound
from ..session.session import Session

_lock = threading.Lock()
_sessions: dict[tuple[int, str, str | None], Session] = {}

_FIRST_PAUSES = (0.1, 0.2, 0.5, 1.0)
_PAUSE = 2.0


class ConnectionOptions(Protocol):
    """Where to connect; part of the options of sources and sinks."""

    @property
    def url(self) -> str: ...
    @property
    def token(self) -> str | None: ...
    @property
    def retry_seconds(self) -> float: ...


def session(options: ConnectionOptions, *, upkeep: bool = False) -> Session:
    """Return this process's session on a database. Only the planner runs upkeep."""
    key = (os.getpid(), options.url, options.token)
    with _lock:
        found = _sessions.get(key)
        if found is None:
            found = _sessions[key] = _connect(options, upkeep)
        return found


def existing_session(options: ConnectionOptions, *, upkeep: bool = False) -> Session:
    """Return the session of a reader: a database file must exist and is not created."""
    if not validate.is_url(options.url) and not os.path.exists(options.url):
        raise _absent(options.url)
    return session(options, upkeep=upkeep)


class SourceConnection(ConnectionOptions, Protocol):
    """Where to connect, and the queue to read."""

    @property
    def queue(self) -> str: ...


def check(options: SourceConnection) -> None:
    """Fail if a database or a server is not there; a queue that is not there may come later."""
    if not validate.is_url(options.url) and not os.path.exists(options.url):
        raise _absent(options.url)
    with contextlib.suppress(NotFound), closing(_connect(options, upkeep=False)) as session:
        session.group_stats(options.queue)


def _absent(url: str) -> NotFound:
    return NotFound(f"database not found: {url}; push a message first, or correct the url")


def _connect(options: ConnectionOptions, upkeep: bool) -> Session:
    if options.url.startswith(("http://", "https://")):
        from ..remote.retry import RetryPolicy

        patience = RetryPolicy(pauses=_pauses(options.retry_seconds), failures=1 << 30)
        return ackflow.connect(options.url, token=options.token, retry=patience)
    return ackflow.connect(options.url, upkeep=upkeep)


def _pauses(seconds: float) -> tuple[float, ...]:
    """Return the pauses between retries, `seconds` in total; all verbs used are idempotent."""
    pauses: list[float] = []
    while sum(pauses) < seconds:
        pauses.append(_FIRST_PAUSES[len(pauses)] if len(pauses) < len(_FIRST_PAUSES) else _PAUSE)
    return tuple(pauses)


@atexit.register
def close() -> None:
    """Close every session that this process opened."""
    with _lock:
        for (pid, *_), found in list(_sessions.items()):
            if pid == os.getpid():
                found.close()
        _sessions.clear()
