"""A transaction on its way to the server and back, which an event loop follows.

The loop sends it and does other work; whenever the connection is ready it takes a step, until the
transaction lands. After an error, another thread resolves what became of it.
"""

import select
from collections.abc import Callable
from typing import Generic, NoReturn, TypeVar

from psycopg.abc import PQGen
from psycopg.pq.abc import PGresult
from psycopg.waiting import Ready

T = TypeVar("T")
Results = PQGen[list[PGresult]]


_EVENTS = {1: select.POLLIN, 2: select.POLLOUT, 3: select.POLLIN | select.POLLOUT}


class NeedsAnswer(Exception):
    """The verbs of a transaction need an answer of the server before it is sent."""


def refuse_to_wait() -> NoReturn:
    raise NeedsAnswer


class Flight(Generic[T]):
    """A transaction on its way: `start` it, `step` until it wants nothing more, `land` it.

    `send` sends it and returns the results to come; `take` takes them; `recover` finds out, after an
    error, whether it was committed all the same, or raises.
    """

    def __init__(
        self,
        fileno: int,
        send: Callable[[], Results],
        take: Callable[[list[PGresult]], T],
        recover: Callable[[BaseException], T],
    ) -> None:
        self.fileno = fileno
        self._send, self._take, self._recover = send, take, recover
        self._coming: Results | None = None
        self._found: list[PGresult] = []
        self._error: BaseException | None = None
        self.wants = 0  # to read (1), to write (2), both, or nothing: it has ended

    def start(self) -> None:
        self.step(0)

    def step(self, ready: int) -> None:
        """Go on until it has to wait; `ready`: the connection can be read (1) or written (2).

        It looks at the connection itself before it waits: uvloop reports a lost connection once, and
        there may be data to read before the error.
        """
        try:
            if self._coming is None:
                self._coming = self._send()
                self.wants = int(next(self._coming))
            else:
                self.wants = int(self._coming.send(Ready(ready)))
            while ready := self._ready():
                self.wants = int(self._coming.send(Ready(ready)))
        except StopIteration as end:
            self.wants, self._found = 0, end.value
        except Exception as error:
            self.wants, self._error = 0, error

    def finish(self) -> None:
        """Wait until it has ended."""
        while self.wants:
            self.step(self._ready(None))

    def _ready(self, milliseconds: int | None = 0) -> int:
        """Return what it wants and can do, waiting so long for it (None: until it can)."""
        poll = select.poll()
        poll.register(self.fileno, _EVENTS[self.wants])
        found = 0
        for _, events in poll.poll(milliseconds):
            found |= Ready.R if events & ~select.POLLOUT else 0
            found |= Ready.W if events & select.POLLOUT else 0
        return found

    def land(self) -> T | None:
        """Return the committed transaction; None: `resolve` must find out what became of it."""
        if self._error is None:
            try:
                return self._take(self._found)
            except Exception as error:
                self._error = error
        return None

    def resolve(self) -> T:
        """Return the transaction if it was committed all the same, or raise; it may wait."""
        assert self._error is not None
        return self._recover(self._error)
