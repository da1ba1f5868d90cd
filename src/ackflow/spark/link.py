"""One session per process and database: Spark reuses its Python workers for many tasks."""

import atexit
import os
import threading

import ackflow

from ..session import Session

_lock = threading.Lock()
_sessions: dict[tuple[int, str, str | None], Session] = {}

# A server that restarts is ridden out for about a minute; every verb used here may be repeated.
_PAUSES = (0.1, 0.2, 0.5, 1.0, 2.0, *[4.0] * 14)


def session(url: str, token: str | None = None, *, upkeep: bool = False) -> Session:
    """The session of this process on a database. Workers leave upkeep to the planner."""
    key = (os.getpid(), url, token)
    with _lock:
        found = _sessions.get(key)
        if found is None:
            found = _sessions[key] = _connect(url, token, upkeep)
        return found


def _connect(url: str, token: str | None, upkeep: bool) -> Session:
    if url.startswith(("http://", "https://")):
        from ..client.patience import Patience

        patience = Patience(pauses=_PAUSES, failures=1 << 30)
        return ackflow.connect(url, token=token, patience=patience)
    return ackflow.connect(url, upkeep=upkeep)


@atexit.register
def close() -> None:
    """Close every session that this process opened."""
    with _lock:
        for (pid, *_), found in list(_sessions.items()):
            if pid == os.getpid():
                found.close()
        _sessions.clear()
