"""Gather calls: those that come while earlier ones are under way run together, in one verb."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")
MOST_RUNNING = 2  # one is executed while the one before it is written to disk


class Gatherer(Generic[T, R]):
    """Runs a verb over several items; `run` answers for each of them."""

    def __init__(self, run: "Callable[[list[T]], asyncio.Future[list[R]]]") -> None:
        self._run = run
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._running = 0
        self._scheduled = False

    def add(self, item: T) -> "asyncio.Future[R]":
        """Run the verb over an item, with all others of this turn of the loop."""
        future: asyncio.Future[R] = self._loop.create_future()
        self._waiting.append((item, future))
        if not self._scheduled and self._running < MOST_RUNNING:
            self._scheduled = True
            self._loop.call_soon(self._begin)
        return future

    def flush(self) -> None:
        """Run what waits now, before anything that is submitted after this."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        self._running += 1
        answered = self._run([item for item, _ in waiting])
        answered.add_done_callback(partial(self._answer, [future for _, future in waiting]))

    def _begin(self) -> None:
        self._scheduled = False
        self.flush()

    def _answer(
        self, futures: "list[asyncio.Future[R]]", answered: "asyncio.Future[list[R]]"
    ) -> None:
        self._running -= 1
        if not self._scheduled:
            self.flush()
        if (error := answered.exception()) is not None:
            for future in futures:
                if not future.done():
                    future.set_exception(error)
            return
        for future, result in zip(futures, answered.result(), strict=True):
            if not future.done():
                future.set_result(result)
