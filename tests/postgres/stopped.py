"""A broker in a separate process that stops itself (SIGSTOP) at a chosen point of a verb.

    python -m tests.postgres.stopped URL POINT

It pushes message 1, stops while it pushes message 2, and prints `done` once that push has returned.
The push takes two round trips: in one there is no point at which a broker could stop with a lock.
"""

import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import ackflow
from ackflow.store.postgres import commits, store
from ackflow.store.postgres.connection import PipelinedConnection

# The statement of the push, and whether to stop before or after sending it.
POINTS = {
    "after the lock": (store.LOOK, "after"),
    "between begin and lock": (commits.BEGIN, "after"),
    "between lock and answer": (store.LOOK, "before"),
    "between two writes": (commits.WROTE, "before"),
    "before the commit": ("commit", "before"),
    "after the commit": ("commit", "after"),
}


def stop_at(point: str) -> None:
    """Stop once, at the next statement of that kind."""
    wanted, when = POINTS[point]
    armed = [True]

    def stop(sent: str | Sequence[tuple[str, Any]], moment: str) -> None:
        statements = [sent] if isinstance(sent, str) else [sql for sql, _ in sent]
        if armed[0] and wanted in statements and when == moment:
            armed[0] = False
            os.kill(os.getpid(), signal.SIGSTOP)

    for name in ("execute", "execute_all", "write"):
        real = getattr(PipelinedConnection, name)

        def patched(self: PipelinedConnection, sent: Any, *args: Any, real: Any = real) -> Any:
            stop(sent, "before")
            answer = real(self, sent, *args)
            stop(sent, "after")
            return answer

        setattr(PipelinedConnection, name, patched)


def main(url: str, point: str) -> None:
    with ackflow.connect(url, upkeep=False) as q:
        q.push("jobs", 1)
        stop_at(point)
        q.push("jobs", 2)
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
