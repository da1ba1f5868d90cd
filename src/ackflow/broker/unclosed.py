"""A session that is dropped without being closed: its files, locks and threads are released."""

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
    """Close a broker once its session is garbage; a session that is closed detaches this."""
    watching = weakref.finalize(session, _dropped, broker, name, os.getpid())
    watching.atexit = False  # a process that ends releases everything by itself
    return watching


def _dropped(broker: Closable, name: str, pid: int) -> None:
    if os.getpid() != pid:
        return  # in a forked child it is the parent's
    # The garbage collector may run in a thread that holds a lock of this very broker.
    with contextlib.suppress(RuntimeError):  # the interpreter ends
        _thread.start_new_thread(_close, (broker, name))
    warnings.warn(f"unclosed session on {name}", ResourceWarning, stacklevel=2)


def _close(broker: Closable, name: str) -> None:
    try:
        broker.close()
    except Exception:
        log.exception("an unclosed session on %s could not be closed", name)
