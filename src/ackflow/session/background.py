"""What a session does for those who would write it by hand: consume loops, buffers, measures and
the care for dead letters."""

import contextlib
import threading
from abc import ABC
from collections.abc import Callable
from typing import Any, TypeVar

from ..broker.requests import PopRequest
from ..options import QUEUE_MODE, Dialect, QueueOptions
from ..validate import Duration
from . import dead_letters
from .ack_stats import AckMeter, AckStats
from .buffer import SECONDS, SIZE, Buffer
from .consumer import Consumer, Plan
from .dead_letters import ABOVE, EVERY_SECONDS, Alert
from .fluent import FluentQueue
from .messages import Batch, Message, Receipt
from .queries import Looking

P = TypeVar("P")


class Helping(Looking, ABC):
    """The part of a session that runs beside its caller, in threads; closing it ends them all."""

    def __init__(self) -> None:
        self._parts: list[Any] = []
        self._parts_lock = threading.Lock()
        self._acks = AckMeter()

    @property
    def _whole(self) -> Any:
        """The session this is a part of."""
        return self

    def consume(
        self,
        queue: str,
        handler: Callable[[Any], Any],
        *,
        group: str = QUEUE_MODE,
        batch: int = 1,
        each: bool = False,
        concurrency: int = 1,
        auto_ack: bool = False,
        on_success: Callable[[Any], Any] | None = None,
        on_error: Callable[[Any, Exception], Any] | None = None,
        renew: bool | Duration = True,
        wait: Duration = 1.0,
        stop: threading.Event | None = None,
        lease_seconds: Duration | None = None,
        partition: str | None = None,
        dialect: Dialect = "native",
        create: bool = True,
        timeout: Duration | None = None,
    ) -> Consumer:
        """Call `handler` with every message, from `concurrency` threads; returns at once.

        `q.consume("orders", handler).join()` runs until it is stopped; as a context manager it is
        stopped at the end of the block. The handler gets a message, or a list of them when `batch`
        is more than 1 and `each` is not set.

        The handler settles its messages. If it raises, what it left unsettled is nacked with the
        error's text. With `auto_ack` messages are done when handed out. With `on_success(message)`
        or `on_error(message, error)` the callbacks settle, and the loop settles nothing.

        While the handler runs its lease is renewed: at half of its time, or every `renew` seconds.
        If the lease is lost all the same, that is logged and `message.lost` is True. After `timeout`
        it is renewed no more and the message is nacked, though the handler cannot be ended. A server
        that goes away is waited for. `stop`, if set from outside, ends the loop as `stop()` does; a stop
        may take as long as a pop waits, which is `wait` seconds at most.
        """
        request: PopRequest = self._whole.pop_request(
            queue, group=group, batch=batch, lease_seconds=lease_seconds, auto_ack=auto_ack,
            partition=partition, dialect=dialect, create=create,
        )  # fmt: skip
        plan: Plan[Message] = Plan.of(
            handler, request, each, concurrency, on_success, on_error, renew, wait, timeout
        )
        return self._join(Consumer(self._whole, plan, stop))

    def queue(self, name: str) -> FluentQueue[Receipt, Batch[Message], Consumer, QueueOptions]:
        """A queue in the fluent style: `q.queue("orders").group("workers").batch(100).pop()`."""
        return FluentQueue(self, name)

    def buffer(self, size: int = SIZE, seconds: Duration = SECONDS) -> Buffer:
        """Gather pushes and settles and send them together; see `Buffer`. Closing the session
        sends what is left."""
        return self._join(Buffer(self._whole, size, seconds))

    def ack_stats(self) -> AckStats:
        """How the settles of this session went: counts, success rate, latencies."""
        return self._acks.stats()

    # dead letters

    def dead_distribution(self, queue: str, group: str | None = None) -> dict[str, int]:
        """How many died of what, most first; what counts is the error's text before the colon."""
        return dead_letters.distribution(self._whole, queue, group)

    def reprocess(self, queue: str, group: str | None = None) -> int:
        """Push dead letters again, for every group, with the transaction ids `reprocess-<id>`, and
        remove them; answers with how many. `redrive` sends them to the group they died in alone."""
        return dead_letters.reprocess(self._whole, queue, group)

    def alert_dead(
        self,
        queue: str,
        call: Callable[[str, int], Any],
        *,
        above: int = ABOVE,
        every: Duration = EVERY_SECONDS,
        group: str | None = None,
    ) -> Alert:
        """Call `call(queue, depth)` when the queue has more than `above` dead letters."""
        return self._join(Alert(self._whole, queue, call, above, every, group))

    # what is ended with the session

    def _join(self, part: P) -> P:
        with self._parts_lock:
            self._parts.append(part)
        return part

    def leave(self, part: object) -> None:
        """A part has ended by itself."""
        with self._parts_lock, contextlib.suppress(ValueError):
            self._parts.remove(part)

    def _end_parts(self) -> None:
        """End loops first, then what they may have filled; raises the first error at the end."""
        with self._parts_lock:
            parts = sorted(self._parts, key=lambda part: isinstance(part, Buffer))
        errors: list[BaseException] = []
        for part in parts:
            if isinstance(part, Consumer):
                part.stop()
        for part in parts:
            try:
                part.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
