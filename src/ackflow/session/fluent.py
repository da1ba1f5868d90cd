"""Queues in the fluent style of Queen: what is chosen is chained, the last word does it.

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
    """What was chosen for a queue so far. Every choice answers with a new one."""

    def __init__(self, session: Any, queue: str, chosen: dict[str, Any] | None = None) -> None:
        self._session = session
        self._queue = queue
        self._chosen = chosen or {}

    def group(self, name: str) -> Self:
        """Read as this group; without one, everybody shares the queue."""
        return self._with(group=name)

    def partition(self, name: str) -> Self:
        """Push to this partition, or pop from it alone."""
        return self._with(partition=name)

    def priority(self, level: int) -> Self:
        """Push with this priority: 0 is served first."""
        return self._with(priority=level)

    def delay(self, seconds: Duration) -> Self:
        """Push what is to be delivered later."""
        return self._with(delay=seconds)

    def at(self, time: Time) -> Self:
        """Push what is to be delivered from this time on."""
        return self._with(at=time)

    def headers(self, headers: Mapping[str, str]) -> Self:
        """Push with these headers."""
        return self._with(headers=headers)

    def batch(self, size: int) -> Self:
        """Take so many at once; the handler gets them as a list, unless `each` is said."""
        return self._with(batch=size)

    def each(self) -> Self:
        """Give the handler one message at a time."""
        return self._with(each=True)

    def auto_ack(self, on: bool = True) -> Self:
        """What is handed out is done."""
        return self._with(auto_ack=on)

    def renew_lease(self, on: bool = True, seconds: Duration | None = None) -> Self:
        """Renew leases while their messages are handled: at half of their time, or every so many
        seconds."""
        return self._with(renew=seconds if on and seconds is not None else on)

    def lease(self, seconds: Duration) -> Self:
        """Hold what is taken for so long."""
        return self._with(lease_seconds=seconds)

    def concurrency(self, workers: int) -> Self:
        """Let so many workers pop and handle at once."""
        return self._with(concurrency=workers)

    def wait(self, seconds: Duration) -> Self:
        """Let a pop wait so long for a first message."""
        return self._with(wait=seconds)

    def on_success(self, call: Callable[[Any], Any]) -> Self:
        """Call this after the handler; the loop itself then settles nothing."""
        return self._with(on_success=call)

    def on_error(self, call: Callable[[Any, Exception], Any]) -> Self:
        """Call this when the handler raised; the loop itself then settles nothing."""
        return self._with(on_error=call)

    def config(self, **options: Unpack[QueueOptionsDict]) -> Self:
        """Options of the queue, for `create`."""
        return self._with(config={**self._chosen.get("config", {}), **options})

    def _with(self, **more: Any) -> Self:
        return type(self)(self._session, self._queue, {**self._chosen, **more})

    def _only(self, *names: str) -> dict[str, Any]:
        """What was chosen of these; what does not fit the last word is left out."""
        return {name: self._chosen[name] for name in names if name in self._chosen}


_POP = ("group", "partition", "batch", "auto_ack", "lease_seconds", "wait")
_LOOP = ("each", "renew", "concurrency", "on_success", "on_error")


class FluentQueue(QueueBuilder, Generic[Receipt, Batch, Consumer, Options]):
    """Ends a chain, on a session of either kind; the answers of an awaitable one are awaited."""

    def push(self, data: Any, *, key: str | None = None) -> Receipt:
        """Push one message, or a list of them."""
        chosen = self._only("partition", "priority", "delay", "at", "headers")
        answer: Receipt = self._session.push(self._queue, data, key=key, **chosen)
        return answer

    def pop(self) -> Batch:
        """Pop a batch."""
        answer: Batch = self._session.pop(self._queue, **self._only(*_POP))
        return answer

    def consume(self, handler: Callable[[Any], Any], stop: Any = None) -> Consumer:
        """Start a consume loop; see `consume` of the session."""
        chosen = self._only(*_POP, *_LOOP)
        answer: Consumer = self._session.consume(self._queue, handler, stop=stop, **chosen)
        return answer

    def create(self) -> Options:
        """Make the queue, or change it, with the options given to `config`."""
        answer: Options = self._session.configure(self._queue, **self._chosen.get("config", {}))
        return answer
