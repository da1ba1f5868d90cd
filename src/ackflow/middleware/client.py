"""MessageMiddlewareQueue and MessageMiddlewareExchange: one interface, three kinds of address.

`amqp://user:password@host:port/` is RabbitMQ or `ackflow serve --amqp-port`; a path of a file or
`postgresql://` needs no server. The queues are the same in each case.
"""

import logging
import threading
from collections.abc import Sequence
from typing import Any, Self

from .. import validate
from ..errors import InvalidArgument
from .transport import Callback, Channel, Delivery, Transport, adapted

PREFETCH = 10
LIMIT = 20  # deliveries of a message whose callback raises
POLL_SECONDS = 0.2
DEAD = ".dead"
log = logging.getLogger("ackflow.middleware")


def dead_letters_of(queue: str) -> str:
    """The name of the queue that gets the messages that failed too often."""
    return queue + DEAD


def _transport(address: str) -> Transport:
    if address.startswith(("amqp://", "amqps://")):
        from .over_amqp import AmqpTransport

        return AmqpTransport(address)
    if address.startswith(("http://", "https://")):
        raise InvalidArgument("the middleware needs amqp://, postgresql:// or the path of a file")
    from .over_broker import BrokerTransport

    return BrokerTransport(address)


class MessageMiddlewareQueue:
    """A durable queue: send to it, or consume it with a callback.

    A message whose callback has raised `limit` times goes to the dead letters and to the queue
    `<name>.dead`, which can be consumed like any other and has no limit. `prefetch` is the number of messages that the consumer holds at once, not counting
    those whose acknowledgement it delays.
    """

    def __init__(
        self, address: str, queue: str, *, prefetch: int = PREFETCH, limit: int = LIMIT
    ) -> None:
        self.queue = validate.name(queue, "queue")
        self._prefetch = validate.integer(prefetch, "prefetch", 1, 10_000)
        self._limit = validate.integer(limit, "limit", 1, 1_000_000)
        self._transport = _transport(address)
        self._stopping = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._held: set[tuple[Channel, int]] = set()
        self._consumer: int | None = None  # the thread that consumes
        self._closes = False
        self._declare()

    def _declare(self) -> None:
        if self.queue.endswith(DEAD):  # as the queue that it belongs to has declared it
            self._transport.declare_queue(self.queue, {})
            return
        dead = dead_letters_of(self.queue)
        self._transport.declare_queue(dead, {})
        arguments: dict[str, Any] = {
            "x-queue-type": "quorum",
            "x-delivery-limit": self._limit - 1,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": dead,
        }
        self._transport.declare_queue(self.queue, arguments)

    def send(self, body: bytes) -> None:
        """Send a message. When this returns, it is on the broker's disk."""
        self._transport.publish("", self.queue, body, mandatory=True)

    def start_consuming(self, callback: Callback) -> None:
        """Call `callback(body, channel=, delivery_tag=, redelivered=)` until `stop_consuming`.

        If the callback returns True or None, the message is acknowledged. If it returns False, it
        must call `channel.basic_ack(delivery_tag)` later, from any thread. If it raises, the message
        is delivered again. A callback may accept fewer arguments than these.
        """
        call = adapted(callback)
        self._stopping.clear()
        self._idle.clear()
        self._consumer = threading.get_ident()
        try:
            self._transport.start(self.queue, self._prefetch)
            while not self._stopping.is_set():
                found = self._transport.next(POLL_SECONDS)
                if found is not None:
                    self._handle(call, found)
        finally:
            self._consumer = None
            try:
                self._transport.stop()
            finally:
                self._idle.set()
                if self._closes:
                    self._transport.close()

    def _handle(self, call: Callback, found: Delivery) -> None:
        tag, channel = found.delivery_tag, _Counting(self, found)
        try:
            answer = call(
                found.body, channel=channel, delivery_tag=tag, redelivered=found.redelivered
            )
        except Exception:
            log.exception("the callback failed; message %d will be delivered again", tag)
            channel.basic_nack(tag, requeue=True)
            return
        if answer is False:
            self._held.add((found.channel, tag))
            if channel.settled:  # another thread may do that at any time
                self._release(found)
            else:
                self._transport.hold(self.held)
            log.info("ack of delivery_tag=%d is delayed", tag)
        else:
            channel.basic_ack(tag)
            log.debug("ack of delivery_tag=%d is immediate", tag)

    @property
    def held(self) -> int:
        """The number of messages whose acknowledgement is delayed."""
        for lost in [one for one in list(self._held) if not one[0].is_open]:
            self._held.discard(lost)
        return len(self._held)

    def _release(self, found: Delivery) -> None:
        self._held.discard((found.channel, found.delivery_tag))

    def stop_consuming(self) -> None:
        """Stop after the running callback, and return all other messages to the queue.

        It may be called from any thread or signal handler, and returns at once.
        """
        self._stopping.set()

    def delete(self) -> None:
        """Delete the queue and its messages."""
        self._transport.delete(self.queue)

    def close(self) -> None:
        """Stop consuming, wait for the running callback, and close the connection.

        Called by the callback itself, it takes effect when the callback returns.
        """
        self.stop_consuming()
        if self._consumer == threading.get_ident():
            self._closes = True
            return
        self._idle.wait(60)
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MessageMiddlewareExchange(MessageMiddlewareQueue):
    """An exchange: send with a routing key, or consume a queue that is bound to it with `keys`.

    Without a `queue`, it can only send.
    """

    def __init__(
        self, address: str, exchange: str, *, kind: str = "topic", queue: str | None = None,
        keys: Sequence[str] = ("#",), prefetch: int = PREFETCH, limit: int = LIMIT,
    ) -> None:  # fmt: skip
        self.exchange = validate.name(exchange, "exchange")
        self._kind = validate.one_of(kind, "kind", ("direct", "fanout", "topic"))
        self._keys = list(keys)
        self._consumes = queue is not None
        super().__init__(address, queue or exchange, prefetch=prefetch, limit=limit)

    def _declare(self) -> None:
        self._transport.declare_exchange(self.exchange, self._kind)
        if self._consumes:
            super()._declare()
            for key in self._keys:
                self._transport.bind(self.queue, self.exchange, key)

    def send(self, body: bytes, key: str = "", *, mandatory: bool = False) -> None:
        """Send a message. When this returns, it is on disk in every queue that it was routed to.

        `mandatory`: raise NotFound if it was routed to none.
        """
        self._transport.publish(self.exchange, key, body, mandatory=mandatory)

    def start_consuming(self, callback: Callback) -> None:
        """Consume the bound queue; see `MessageMiddlewareQueue.start_consuming`."""
        if not self._consumes:
            raise InvalidArgument("an exchange is consumed through a queue; give its name")
        super().start_consuming(callback)


class _Counting:
    """The channel of one delivery; it counts the delivery as held until it is settled."""

    def __init__(self, owner: MessageMiddlewareQueue, found: Delivery) -> None:
        self._owner = owner
        self._found = found
        self._once = threading.Lock()  # held from the first settlement on, by whichever thread

    @property
    def settled(self) -> bool:
        return self._once.locked()

    @property
    def is_open(self) -> bool:
        """Whether the delivery can be settled: a broker closes a channel that settles it twice."""
        return self._found.channel.is_open and not self.settled

    @property
    def behind(self) -> Channel:
        return self._found.channel

    def basic_ack(self, delivery_tag: int) -> None:
        if self.begin_to_settle(delivery_tag):
            self._found.channel.basic_ack(delivery_tag)

    def basic_nack(self, delivery_tag: int, requeue: bool = True) -> None:
        if self.begin_to_settle(delivery_tag):
            self._found.channel.basic_nack(delivery_tag, requeue)

    def begin_to_settle(self, delivery_tag: int) -> bool:
        """Record that a delivery is settled; False if it was settled before."""
        if delivery_tag != self._found.delivery_tag:
            return True  # of another callback
        if not self._once.acquire(blocking=False):
            log.warning("delivery_tag=%d was settled before", delivery_tag)
            return False
        self._owner._release(self._found)
        return True
