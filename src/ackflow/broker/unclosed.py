"""Releases the files, locks and threads of a session that is dropped without being closed."""

import _thread
import contextlib
import logging
import os
import warnings
import weakref
from typing import Protocol

log = logging.getLogger("ackflow")


class Closable(Protocol):
    def close(self) -> None: ...


def close_when_dropped(session: object, broker: Closable, name: str) -> weakref.finalize:  # type: ignore[type-arg]
    """Close a broker when its session is garbage-collected; closing the session detaches this."""
    watching = weakref.finalize(session, _dropped, broker, name, os.getpid())
    watching.atexit = False  # the end of the process releases everything
    return watching


def _dropped(broker: Closable, name: str, pid: int) -> None:
    if os.getpid() != pid:
        return  # in a forked child: the broker belongs to the parent
    # The garbage collector may run in a thread that holds a lock of this broker.
    with contextlib.suppress(RuntimeError):  # the interpreter is shutting down
        _thread.start_new_thread(_close, (broker, name))
    warnings.warn(f"unclosed session on {name}", ResourceWarning, stacklevel=2)


def _close(broker: Closable, name: str) -> None:
    try:
        broker.close()
    except Exception:
        log.exception("an unclosed session on %s could not be closed", name)
