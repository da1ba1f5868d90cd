"""JetStream's Python style: consumers with a configuration, and fetch.

A consumer is a shared group with JetStream's defaults. Its messages are Ackflow's own, which
support `in_progress`, `term` and `metadata`; `ack(confirm=True)` is JetStream's DoubleAck.

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
    """The configuration of a consumer.

    - `ack_policy`: explicit, all (an ack also settles the messages before it in its lane) or none.
    - `ack_wait`: seconds until an unacknowledged message is delivered again.
    - `max_deliver`: deliveries until the message becomes a dead letter; -1 is unlimited.
    - `backoff`: seconds between deliveries; the last value repeats.
    - `max_ack_pending`: maximum number of unacknowledged messages; -1 is unlimited.
    """

    ack_policy: AckPolicy = "explicit"
    ack_wait: Duration = 30.0
    max_deliver: int = -1
    backoff: tuple[Duration, ...] | list[Duration] = ()
    max_ack_pending: int = 1000

    def options(self) -> dict[str, Any]:
        """The configuration as options of `Session.group`."""
        # Only deliveries are limited: a limit on failures, inherited from the queue or set on the
        # group before, would dead-letter messages earlier than `max_deliver` allows.
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
    """A group of a queue that messages are fetched from."""

    def __init__(self, session: Session, queue: str, name: str) -> None:
        self._session = session
        self.queue = queue
        self.name = name

    def fetch(self, n: int = 1, wait: Duration = WAIT_SECONDS) -> Batch[Message]:
        """Fetch up to n messages; wait up to `wait` seconds for the first."""
        return self._session.pop(
            self.queue, group=self.name, batch=n, wait=wait, dialect="jetstream"
        )

    def consume(self, handler: Callable[[Any], Any], **options: Any) -> threads.Consumer:
        """Start a consume loop; see `ackflow.Session.consume`."""
        return self._session.consume(
            self.queue, handler, group=self.name, dialect="jetstream", **options
        )


class AwaitedConsumer:
    """A `Consumer` on an asyncio session."""

    def __init__(self, session: aio.Session, queue: str, name: str) -> None:
        self._session = session
        self.queue = queue
        self.name = name

    async def fetch(self, n: int = 1, wait: Duration = WAIT_SECONDS) -> Batch[aio.Message]:
        """Fetch up to n messages; wait up to `wait` seconds for the first."""
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
    """Create a consumer, or change the configuration of an existing one."""
    options = (config or ConsumerConfig()).options()
    session.group(queue, name, dialect="jetstream", **options)
    return Consumer(session, queue, name)


async def awaited_consumer(
    session: aio.Session, queue: str, name: str, config: ConsumerConfig | None = None
) -> AwaitedConsumer:
    """Create a consumer on an asyncio session, or change an existing one."""
    options = (config or ConsumerConfig()).options()
    await session.group(queue, name, dialect="jetstream", **options)
    return AwaitedConsumer(session, queue, name)
