"""JetStream's words for those who come from there: consumers with a configuration, and fetch.

A consumer is a shared group with the defaults of JetStream. Its messages are Ackflow's own, which
know `in_progress`, `term` and `metadata`; `ack(confirm=True)` is the DoubleAck.

consumer = jetstream.consumer(q, "orders", "workers", jetstream.ConsumerConfig(max_deliver=5))
for message in consumer.fetch(100, wait=5):
    message.ack()
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from ... import aio
from ...options import AckPolicy
from ...session import consumer as threads
from ...session import consumer_aio as tasks
from ...session.messages import Batch, Message
from ...session.session import Session
from ...validate import Duration

WAIT_SECONDS = 5.0


class ConsumerConfig(Struct, frozen=True, kw_only=True):
    """How a consumer is to behave.

    `ack_policy`: explicit, all (an ack settles what comes before it in its lane) or none.
    `ack_wait`: seconds until a message that is not acked comes again. `max_deliver`: after so many
    deliveries it becomes a dead letter; -1 is never. `backoff`: seconds between deliveries, the last
    one repeats. `max_ack_pending`: how many may be out at once; -1 is any number.
    """

    ack_policy: AckPolicy = "explicit"
    ack_wait: Duration = 30.0
    max_deliver: int = -1
    backoff: tuple[Duration, ...] | list[Duration] = ()
    max_ack_pending: int = 1000

    def options(self) -> dict[str, Any]:
        """The same in the words of `q.group`."""
        # Deliveries alone are limited: a limit on failures, of the queue or of the group as it was
        # made before, would end messages earlier than `max_deliver` says.
        return {
            "ordering": "shared",
            "policy": self.ack_policy,
            "lease_seconds": self.ack_wait,
            "max_deliver": self.max_deliver,
            "retry_limit": None,
            "backoff": tuple(self.backoff),
            "max_ack_pending": self.max_ack_pending,
        }


class Consumer:
    """A group of a queue, to fetch from."""

    def __init__(self, session: Session, queue: str, name: str) -> None:
        self._session = session
        self.queue = queue
        self.name = name

    def fetch(self, n: int = 1, wait: Duration = WAIT_SECONDS) -> Batch[Message]:
        """Up to n messages, as soon as there is one; empty when none came within `wait`."""
        return self._session.pop(
            self.queue, group=self.name, batch=n, wait=wait, dialect="jetstream"
        )

    def consume(self, handler: Callable[[Any], Any], **options: Any) -> threads.Consumer:
        """Start a consume loop; see `ackflow.Session.consume`."""
        return self._session.consume(
            self.queue, handler, group=self.name, dialect="jetstream", **options
        )


class AwaitedConsumer:
    """The same on an awaitable session."""

    def __init__(self, session: aio.Session, queue: str, name: str) -> None:
        self._session = session
        self.queue = queue
        self.name = name

    async def fetch(self, n: int = 1, wait: Duration = WAIT_SECONDS) -> Batch[aio.Message]:
        """Up to n messages, as soon as there is one; empty when none came within `wait`."""
        return await self._session.pop(
            self.queue, group=self.name, batch=n, wait=wait, dialect="jetstream"
        )

    def consume(self, handler: Callable[[Any], Any], **options: Any) -> tasks.Consumer:
        """Start a consume loop; see `ackflow.aio.Session.consume`."""
        return self._session.consume(
            self.queue, handler, group=self.name, dialect="jetstream", **options
        )


def consumer(
    session: Session, queue: str, name: str, config: ConsumerConfig | None = None
) -> Consumer:
    """Make a consumer, or change one that is there."""
    options = (config or ConsumerConfig()).options()
    session.group(queue, name, dialect="jetstream", **options)
    return Consumer(session, queue, name)


async def awaited_consumer(
    session: aio.Session, queue: str, name: str, config: ConsumerConfig | None = None
) -> AwaitedConsumer:
    """Make a consumer of an awaitable session, or change one that is there."""
    options = (config or ConsumerConfig()).options()
    await session.group(queue, name, dialect="jetstream", **options)
    return AwaitedConsumer(session, queue, name)
