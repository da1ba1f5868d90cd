"""The middleware over AMQP 0-9-1, by pika. A thread of its own reads, so that slow callbacks do not
miss heartbeats; it connects again by itself, and declares and consumes again."""

import contextlib
import copy
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import pika
from pika.exceptions import (
    AMQPError,
    ChannelClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
    UnroutableError,
)

from ..errors import NotFound, Unauthenticated, Unavailable
from .transport import Delivery

RETRY_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0)
SEND_SECONDS = 60.0
# So that a broker that has vanished is noticed, also while nothing is sent.
TCP = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}
log = logging.getLogger("ackflow.middleware")
Declaration = Callable[[Any], object]


class AmqpChannel:
    """A channel of one connection; it is not used again after the connection was lost."""

    def __init__(self, connection: Any, channel: Any) -> None:
        self._connection = connection
        self._channel = channel
        self.is_open = True

    def basic_ack(self, delivery_tag: int) -> None:
        self._in_its_thread(lambda: self._channel.basic_ack(delivery_tag))

    def ack_all(self, delivery_tags: Sequence[int]) -> None:
        """Acknowledge messages, with nothing in between."""

        def ack() -> None:
            for tag in delivery_tags:
                self._channel.basic_ack(tag)

        self._in_its_thread(ack)

    def basic_nack(self, delivery_tag: int, requeue: bool = True) -> None:
        self._in_its_thread(lambda: self._channel.basic_nack(delivery_tag, requeue=requeue))

    def grow(self, queue: str, prefetch: int, deliver: Callable[..., None]) -> None:
        """Add a consumer, which raises the number of messages that may be unacknowledged."""

        def consume() -> None:
            self._channel.basic_qos(prefetch_count=prefetch)
            self._channel.basic_consume(queue, deliver)

        self._in_its_thread(consume)

    def _in_its_thread(self, act: Callable[[], object]) -> None:
        if not self.is_open:
            log.warning("the connection was lost: the message will be delivered again")
            return
        with contextlib.suppress(AMQPError):  # it was lost just now
            self._connection.add_callback_threadsafe(act)


class AmqpTransport:
    def __init__(self, address: str) -> None:
        self._parameters = pika.URLParameters(address)
        self._parameters.tcp_options = self._parameters.tcp_options or dict(TCP)
        self._declared: dict[str, Declaration] = {}
        self._sending = threading.Lock()
        self._sender: Any = None
        self._queue, self._prefetch, self._grown = "", 0, 0
        self._arrived: SimpleQueue[Delivery] = SimpleQueue()
        self._channel: AmqpChannel | None = None
        self._reader: threading.Thread | None = None
        self._stopped = threading.Event()

    # declaring and sending, from any thread, on a connection of its own

    def declare_queue(self, name: str, arguments: Mapping[str, Any]) -> None:
        self._declare(
            f"queue {name}",
            lambda channel: channel.queue_declare(name, durable=True, arguments=dict(arguments)),
        )

    def declare_exchange(self, name: str, kind: str) -> None:
        self._declare(
            f"exchange {name}", lambda channel: channel.exchange_declare(name, kind, durable=True)
        )

    def bind(self, queue: str, exchange: str, key: str) -> None:
        self._declare(
            f"binding {queue} {exchange} {key}",
            lambda channel: channel.queue_bind(queue, exchange, key),
        )

    def _declare(self, what: str, act: Declaration) -> None:
        self._declared[what] = act
        self._send(act)

    def publish(self, exchange: str, key: str, body: bytes, *, mandatory: bool) -> None:
        # The same id if it is sent again, so that receivers can recognise a repeat.
        properties = pika.BasicProperties(delivery_mode=2, message_id=str(uuid.uuid4()))
        try:
            self._send(
                lambda channel: channel.basic_publish(
                    exchange, key, body, properties, mandatory=mandatory
                )
            )
        except UnroutableError:
            raise NotFound(f"no queue for {key!r}") from None

    def _send(self, act: Declaration) -> None:
        """Run something on the channel with confirms; after a lost connection, on another one."""
        deadline = time.monotonic() + SEND_SECONDS
        with self._sending:
            for pause in _pauses():
                try:
                    if self._sender is None:
                        self._sender = self._open_sender()
                    act(self._sender)
                    return
                except (UnroutableError, ChannelClosedByBroker):
                    self._drop_sender()
                    raise
                except (ProbableAuthenticationError, ProbableAccessDeniedError):
                    raise Unauthenticated("the broker refused the user or the password") from None
                except (AMQPError, OSError) as error:
                    self._drop_sender()
                    if time.monotonic() > deadline:
                        raise Unavailable(f"the broker cannot be reached: {error!r}") from None
                    time.sleep(pause)

    def _open_sender(self) -> Any:
        parameters = copy.copy(self._parameters)
        parameters.heartbeat = 0  # nothing reads this connection between two messages
        channel = pika.BlockingConnection(parameters).channel()
        channel.confirm_delivery()
        return channel

    def _drop_sender(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            with contextlib.suppress(AMQPError, OSError):
                sender.connection.close()

    # consuming

    def start(self, queue: str, prefetch: int) -> None:
        self._queue, self._prefetch, self._grown = queue, prefetch, 0
        self._stopped.clear()
        self._reader = threading.Thread(target=self._read, name="ackflow-amqp", daemon=True)
        self._reader.start()

    def next(self, seconds: float) -> Delivery | None:
        try:
            found = self._arrived.get(timeout=seconds)
        except Empty:
            return None
        return found if found.channel.is_open else None  # otherwise it is delivered again

    def hold(self, held: int) -> None:
        """Add a consumer with the same prefetch whenever the held messages fill the last one."""
        channel = self._channel
        while channel is not None and channel.is_open and held >= self._prefetch * self._grown + 1:
            self._grown += 1
            channel.grow(self._queue, self._prefetch, partial(self._deliver, channel))

    def _read(self) -> None:
        pauses = _pauses()
        while not self._stopped.is_set():
            connection = None
            try:
                connection = pika.BlockingConnection(self._parameters)
                mine = self._consume(connection)
                pauses = _pauses()
                while not self._stopped.is_set() and mine.is_open:
                    connection.process_data_events(0.2)
                connection.process_data_events(0)  # what was acknowledged last
            except Exception as error:
                if not self._stopped.is_set():
                    expected = isinstance(error, AMQPError | OSError)
                    log.warning(
                        "the connection was lost, reconnecting: %r",
                        error,
                        exc_info=not expected,
                    )
                    self._stopped.wait(next(pauses))
            finally:
                if self._channel is not None:
                    self._channel.is_open = False
                if connection is not None:
                    with contextlib.suppress(AMQPError, OSError):
                        connection.close()

    def _consume(self, connection: Any) -> AmqpChannel:
        """Declare everything and consume; the channel ends when the broker cancels a consumer."""
        channel = connection.channel()
        for declare in list(self._declared.values()):
            declare(channel)
        self._channel = mine = AmqpChannel(connection, channel)
        self._grown = 0

        def cancelled(_: Any) -> None:
            log.warning("the broker cancelled the consumer of %s: consuming again", self._queue)
            mine.is_open = False

        channel.add_on_cancel_callback(cancelled)
        channel.basic_qos(prefetch_count=self._prefetch)
        channel.basic_consume(self._queue, partial(self._deliver, mine))
        return mine

    def _deliver(self, mine: AmqpChannel, _: Any, method: Any, __: Any, body: bytes) -> None:
        self._arrived.put(Delivery(body, mine, method.delivery_tag, method.redelivered))

    def stop(self) -> None:
        self._stopped.set()
        if self._reader is not None:
            self._reader.join()
        self._arrived = SimpleQueue()

    def delete(self, queue: str) -> None:
        self._declared.pop(f"queue {queue}", None)
        self._send(lambda channel: channel.queue_delete(queue))

    def close(self) -> None:
        self.stop()
        with self._sending:
            self._drop_sender()


def _pauses() -> Any:
    yield from RETRY_SECONDS
    while True:
        yield RETRY_SECONDS[-1]
