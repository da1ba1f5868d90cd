"""Queues in the fluent style of Queen: chained calls set options, the last call executes.

q.queue("orders").group("workers").batch(100).each().consume(handler)
"""

from collections.abc import Callable, Mapping
from typing import Any, Generic, Self, TypeVar, Unpack

from ..options import QueueOptionsDict
from ..validate import Duration, Time

Receipt = TypeVar("Receipt")
Batch = TypeVar("Batch")
Consumer = TypeVar("Consumer")
Options = TypeVar("Options")


class QueueBuilder:
    """The options chosen for a queue. Each method returns a new builder; none changes this one."""

    def __init__(self, session: Any, queue: str, chosen: dict[str, Any] | None = None) -> None:
        self._session = session
        self._queue = queue
        self._chosen = chosen or {}

    def group(self, name: str) -> Self:
        """Read as this group; without a group, all consumers share the messages of the queue."""
        return self._with(group=name)

    def partition(self, name: str) -> Self:
        """Push to this partition, or pop only from it."""
        return self._with(partition=name)

    def priority(self, level: int) -> Self:
        """Push with this priority; 0 is delivered first."""
        return self._with(priority=level)

    def delay(self, seconds: Duration) -> Self:
        """Deliver pushed messages after this delay."""
        return self._with(delay=seconds)

    def at(self, time: Time) -> Self:
        """Deliver pushed messages at this time or later."""
        return self._with(at=time)

    def headers(self, headers: Mapping[str, str]) -> Self:
        """Push with these headers."""
        return self._with(headers=headers)

    def batch(self, size: int) -> Self:
        """Pop up to `size` messages at once; the handler gets a list, unless `each` is set."""
        return self._with(batch=size)

    def each(self) -> Self:
        """Call the handler with one message at a time."""
        return self._with(each=True)

    def auto_ack(self, on: bool = True) -> Self:
        """Acknowledge messages on delivery."""
        return self._with(auto_ack=on)

    def renew_lease(self, on: bool = True, seconds: Duration | None = None) -> Self:
        """Renew leases while messages are handled: every `seconds`, or at half the lease time."""
        return self._with(renew=seconds if on and seconds is not None else on)

    def lease(self, seconds: Duration) -> Self:
        """Lease popped messages for this time."""
        return self._with(lease_seconds=seconds)

    def concurrency(self, workers: int) -> Self:
        """Pop and handle messages in this many workers at once."""
        return self._with(concurrency=workers)

    def wait(self, seconds: Duration) -> Self:
        """Wait up to this time for a first message."""
        return self._with(wait=seconds)

    def on_success(self, call: Callable[[Any], Any]) -> Self:
        """Set a callback for handled messages; the loop then settles no message itself."""
        return self._with(on_success=call)

    def on_error(self, call: Callable[[Any, Exception], Any]) -> Self:
        """Set a callback for handler errors; the loop then settles no message itself."""
        return self._with(on_error=call)

    def config(self, **options: Unpack[QueueOptionsDict]) -> Self:
        """Set options of the queue for `create`."""
        return self._with(config={**self._chosen.get("config", {}), **options})

    def _with(self, **more: Any) -> Self:
        return type(self)(self._session, self._queue, {**self._chosen, **more})

    def _only(self, *names: str) -> dict[str, Any]:
        """Return the chosen options with these names; the last call ignores all others."""
        return {name: self._chosen[name] for name in names if name in self._chosen}


_POP = ("group", "partition", "batch", "auto_ack", "lease_seconds", "wait")
_LOOP = ("each", "renew", "concurrency", "on_success", "on_error")


class FluentQueue(QueueBuilder, Generic[Receipt, Batch, Consumer, Options]):
    """The calls that end a chain, for both kinds of session; with asyncio, await the results."""

    def push(self, data: Any, *, key: str | None = None) -> Receipt:
        """Push one message, or a list of them."""
        chosen = self._only("partition", "priority", "delay", "at", "headers")
        answer: Receipt = self._session.push(self._queue, data, key=key, **chosen)
        return answer

    def pop(self) -> Batch:
        """Pop a batch of messages."""
        answer: Batch = self._session.pop(self._queue, **self._only(*_POP))
        return answer

    def consume(self, handler: Callable[[Any], Any], stop: Any = None) -> Consumer:
        """Start a consume loop; see `consume` of the session."""
        chosen = self._only(*_POP, *_LOOP)
        answer: Consumer = self._session.consume(self._queue, handler, stop=stop, **chosen)
        return answer

    def create(self) -> Options:
        """Create or change the queue with the options given to `config`."""
        answer: Options = self._session.configure(self._queue, **self._chosen.get("config", {}))
        return answer
