"""Call batching: calls that arrive while earlier ones are running are combined into one verb."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")
MOST_RUNNING = 2  # one is executed while the one before it is written to disk
Answered = Callable[[R | BaseException], None]


class CallBatcher(Generic[T, R]):
    """Runs a verb over several items at once; `run` returns a result for each of them.

    Without a `delay`, the items of one turn of the event loop run together. With a delay, they run
    after that many seconds, when there are `most` of them, or when `flush` is called.
    """

    def __init__(
        self, run: "Callable[[list[T]], asyncio.Future[list[R]]]", delay: float = 0.0, most: int = 0
    ) -> None:
        self._run = run
        self._delay, self._most = delay, most
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[T, Answered[R] | None]] = []
        self._running = 0
        self._scheduled: asyncio.Handle | None = None

    def add(self, item: T, on_answer: "Answered[R] | None" = None) -> None:
        """Run the verb over an item, together with others; `on_answer` gets the result or error."""
        self._waiting.append((item, on_answer))
        if self._running >= MOST_RUNNING:
            return
        if self._delay and len(self._waiting) < self._most:
            if self._scheduled is None:
                self._scheduled = self._loop.call_later(self._delay, self._begin)
        elif self._scheduled is None or self._delay:
            self._unschedule()
            self._scheduled = self._loop.call_soon(self._begin)

    def flush(self) -> None:
        """Run the waiting items now, before any item that is added later."""
        self._unschedule()
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        self._running += 1
        answered = self._run([item for item, _ in waiting])
        answered.add_done_callback(partial(self._answer, [one for _, one in waiting]))

    def _unschedule(self) -> None:
        if self._scheduled is not None:
            self._scheduled.cancel()
            self._scheduled = None

    def _begin(self) -> None:
        self._scheduled = None
        if self._running < MOST_RUNNING:
            self.flush()

    def _answer(
        self, callbacks: "list[Answered[R] | None]", answered: "asyncio.Future[list[R]]"
    ) -> None:
        self._running -= 1
        if self._scheduled is None and self._waiting:
            self.flush()
        error = answered.exception()
        results: list[R | BaseException] = (
            [error] * len(callbacks) if error else [*answered.result()]
        )
        for on_answer, result in zip(callbacks, results, strict=True):
            if on_answer is not None:
                on_answer(result)
