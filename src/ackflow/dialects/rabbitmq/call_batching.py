"""Call batching: calls that arrive while earlier ones are running are combined into one verb."""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from ...broker.aio import LoopBroker
from ...store.job import Job
from ...store.tx import Tx

T = TypeVar("T")
R = TypeVar("R")
Answered = Callable[[R | BaseException], None]
log = logging.getLogger("ackflow.amqp")


class Batch(list[T]):
    """The items of a verb that waits to be run; more may join until it is."""

    def __init__(self, items: list[T]) -> None:
        super().__init__(items)
        self._taken = False
        self._lock = threading.Lock()

    def join(self, item: T) -> bool:
        """Add an item; False if the verb already runs without it."""
        with self._lock:
            if not self._taken:
                self.append(item)
            return not self._taken

    def take(self) -> list[T]:
        """Return the items; none joins from here on. A verb that is run again gets the same ones."""
        with self._lock:
            self._taken = True
        return self


def taken_batch() -> "Batch[T]":
    """A batch that nothing joins."""
    batch: Batch[T] = Batch([])
    batch.take()
    return batch


class CallBatcher(Generic[T, R]):
    """Runs a verb over all items that wait when the writer begins it; it answers each of them.

    The verb takes the items from their batch when it is run. `answered` is called after the callbacks of a verb.
    """

    def __init__(
        self,
        loop_broker: LoopBroker,
        verb: "Callable[[Tx, Batch[T]], Sequence[R]]",
        answered: Callable[[], None],
    ) -> None:
        self._call = loop_broker.call
        self._verb = verb
        self._answered = answered
        self._open: Batch[T] = taken_batch()
        self._callbacks: list[Answered[R]] = []  # of the open batch

    def add(self, item: T, on_answer: "Answered[R]") -> bool:
        """Run the verb over an item and others, and sync; returns whether it begins a new batch."""
        if self._open.join(item):
            self._callbacks.append(on_answer)
            return False
        batch = Batch([item])
        callbacks = [on_answer]
        self._call(self._verb, (batch,), True, lambda job: self._answer(callbacks, job), batch)
        self._open, self._callbacks = batch, callbacks
        return True

    def _answer(self, callbacks: "list[Answered[R]]", job: Job) -> None:
        answers: Sequence[R | BaseException] = (
            [job.error] * len(callbacks) if job.error is not None else job.answer
        )
        for on_answer, answer in zip(callbacks, answers, strict=True):
            try:
                on_answer(answer)
            except Exception:
                log.exception("an answer could not be reported")
        self._answered()


class DelayedCalls(Generic[T]):
    """Collects items for a verb without answers.

    It is begun after a delay, when there are `most` items, or when `flush` is called.
    """

    def __init__(self, run: Callable[[Batch[T]], object], delay: float, most: int) -> None:
        self._run = run
        self._delay, self._most = delay, most
        self._loop = asyncio.get_running_loop()
        self._open: Batch[T] = taken_batch()
        self._waiting: list[T] = []
        self._scheduled: asyncio.Handle | None = None

    def add(self, item: T) -> None:
        if not self._waiting and self._open.join(item):
            return
        self._waiting.append(item)
        if len(self._waiting) >= self._most:
            self.flush()
        elif self._scheduled is None:
            self._scheduled = self._loop.call_later(self._delay, self.flush)

    def flush(self) -> None:
        """Begin the verb for the waiting items now, before any item that is added later."""
        if self._scheduled is not None:
            self._scheduled.cancel()
            self._scheduled = None
        if self._waiting:
            self._open, self._waiting = Batch(self._waiting), []
            self._run(self._open)
