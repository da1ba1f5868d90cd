"""One session per process and database: Spark reuses its Python workers for many tasks."""

import atexit
import os
import threading
from typing import Protocol

import ackflow

from .. import validate
from ..errors import NotFound
from ..session.session import Session

_lock = threading.Lock()
_sessions: dict[tuple[int, str, str | None], Session] = {}

_FIRST_PAUSES = (0.1, 0.2, 0.5, 1.0)
_PAUSE = 2.0


class Place(Protocol):
    """Where to connect to; the options of sources and sinks say so."""

    @property
    def url(self) -> str: ...
    @property
    def token(self) -> str | None: ...
    @property
    def retry_seconds(self) -> float: ...


def session(place: Place, *, upkeep: bool = False) -> Session:
    """The session of this process on a database. Workers leave upkeep to the planner."""
    key = (os.getpid(), place.url, place.token)
    with _lock:
        found = _sessions.get(key)
        if found is None:
            found = _sessions[key] = _connect(place, upkeep)
        return found


def reading(place: Place, *, upkeep: bool = False) -> Session:
    """The session of what reads: a file that is not there is a mistake, and is not made."""
    if not validate.is_url(place.url) and not os.path.exists(place.url):
        raise NotFound(
            f"there is no database {place.url}; push something first, or correct the url"
        )
    return session(place, upkeep=upkeep)


def _connect(place: Place, upkeep: bool) -> Session:
    if place.url.startswith(("http://", "https://")):
        from ..remote.retry import RetryPolicy

        patience = RetryPolicy(pauses=_pauses(place.retry_seconds), failures=1 << 30)
        return ackflow.connect(place.url, token=place.token, retry=patience)
    return ackflow.connect(place.url, upkeep=upkeep)


def _pauses(seconds: float) -> tuple[float, ...]:
    """A server that restarts is ridden out so long; every verb used here may be repeated."""
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
