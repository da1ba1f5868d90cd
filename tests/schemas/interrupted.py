"""Opens databases, each in a process of its own that kills itself before a later statement.

Usage: interrupted.py STEP URL... The first process dies before its first statement, the next one
STEP statements later, and so on; says how many died before one lived to the end.
"""

import itertools
import os
import signal
import sys
from typing import Any

import ackflow


def open_and_die(url: str, statement: int) -> None:
    numbers = itertools.count(1)

    def trace(*_: object) -> bool:
        if next(numbers) == statement:
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    if url.startswith("postgresql"):
        import psycopg

        execute = psycopg.Connection.execute

        def traced(*args: Any, **options: Any) -> Any:
            trace()
            return execute(*args, **options)

        psycopg.Connection.execute = traced  # type: ignore[method-assign]
    else:
        import apsw

        apsw.connection_hooks.append(lambda db: setattr(db, "exec_trace", trace))
    ackflow.connect(url, upkeep=False).close()


def main(step: str, *urls: str) -> None:
    for number, url in enumerate(urls):
        child = os.fork()
        if child == 0:
            open_and_die(url, 1 + number * int(step))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            assert status == 0
            print(number)
            return
    print(len(urls))


if __name__ == "__main__":
    main(*sys.argv[1:])
