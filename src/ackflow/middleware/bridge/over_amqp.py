"""An endpoint of a bridge that speaks AMQP 0-9-1, with pika's asyncio connection."""

import asyncio
import hashlib
import logging
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pika
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.exceptions import (
    AMQPError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)
from pika.spec import Basic

from ...broker.requests import Publication
from ...dialects.rabbitmq.errors import AmqpError
from ...dialects.rabbitmq.properties import decode_properties, encode_properties, is_json
from ...errors import (
    AckflowError,
    Forbidden,
    InvalidArgument,
    NotFound,
    Unauthenticated,
    Unavailable,
)
from ...validate import name, redact_url
from .endpoints import BATCH_BYTES, Batch, retried

CLOSE_SECONDS = 5.0
DURABLE = 2  # the delivery mode of a message that is kept on disk
COPIES = ("CC", "BCC")  # headers that would route a message to more queues
log = logging.getLogger("ackflow.bridge")


class Link:
    """A connection with one channel, awaitable; it is not used again once it is lost."""

    def __init__(self, url: str) -> None:
        self._shown = redact_url(url)
        try:
            self._parameters = pika.URLParameters(url)
        except (ValueError, TypeError) as error:
            raise InvalidArgument(f"not an AMQP address: {self._shown}: {error}") from None
        self._loop = asyncio.get_running_loop()
        self._waiting: set[asyncio.Future[Any]] = set()
        self._connection: Any = None
        self.channel: Any = None
        self.lost: AckflowError | None = None
        self.on_lost: list[Callable[[], None]] = []

    async def open(self) -> None:
        opened = self.future()
        AsyncioConnection(
            self._parameters, opened.set_result, lambda _, error: self._lose(error),
            lambda _, error: self._lose(error), custom_ioloop=self._loop,
        )  # fmt: skip
        self._connection = await opened
        self.channel = await self.call(self._connection.channel, "on_open_callback")
        self.channel.add_on_close_callback(lambda _, error: self._lose(error))
        self.channel.add_on_cancel_callback(lambda _: self._lose(NotFound("the queue was deleted")))

    def future(self) -> "asyncio.Future[Any]":
        """Create a future that fails when the link is lost."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self.lost is not None:
            future.set_exception(self.lost)
        else:
            self._waiting.add(future)
            future.add_done_callback(self._waiting.discard)
        return future

    async def call(self, method: Callable[..., Any], callback: str, *args: Any, **more: Any) -> Any:
        """Call a method of pika and wait for the answer of the broker."""
        answered = self.future()

        def answer(*given: Any) -> None:
            if not answered.done():
                answered.set_result(given[0] if given else None)

        if self.lost is None:
            try:
                method(*args, **more, **{callback: answer})
            except AMQPError as error:  # it is closed, and that was not noticed yet
                self._lose(error)
        return await answered

    def publish(self, queue: str, body: bytes, properties: Any) -> None:
        if self.lost is None:
            try:
                self.channel.basic_publish("", queue, body, properties, mandatory=True)
            except AMQPError as error:
                self._lose(error)

    def _lose(self, error: BaseException) -> None:
        if self.lost is None:
            self.lost = self._translated(error)
        for future in list(self._waiting):
            if not future.done():
                future.set_exception(self.lost)
        for call in self.on_lost:
            call()

    def _translated(self, error: BaseException) -> AckflowError:
        match error:
            case AckflowError():
                return error
            case ChannelClosedByBroker(reply_code=404):
                return NotFound(f"{self._shown}: {error.reply_text}")
            case ChannelClosedByBroker() | ConnectionClosedByBroker(reply_code=403 | 530):
                return Forbidden(f"{self._shown}: {error.reply_code} {error.reply_text}")
            case ProbableAuthenticationError() | ProbableAccessDeniedError():
                return Unauthenticated(f"{self._shown}: the user or the password was refused")
        return Unavailable(f"{self._shown}: {error!r}")

    async def close(self) -> None:
        """Close the connection, after what was written before."""
        if self._connection is None or self._connection.is_closed:
            return
        closed = asyncio.Event()
        self._connection.add_on_close_callback(lambda *_: closed.set())
        if not self._connection.is_closing:
            self._connection.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(closed.wait(), CLOSE_SECONDS)


class AmqpSource:
    """Consumes a queue; at most two batches of it are not acknowledged."""

    def __init__(self, url: str, queue: str, most: int) -> None:
        self._url = url
        self._queue = queue
        self._most = most
        self._link: Link | None = None
        self._arrived: list[tuple[Any, Any, bytes]] = []
        self._news = asyncio.Event()

    async def open(self) -> None:
        link = Link(self._url)
        await link.open()
        await _check_queue(link, self._queue)
        await link.call(link.channel.basic_qos, "callback", prefetch_count=2 * self._most)
        self._link, self._arrived = link, []
        link.on_lost.append(self._news.set)
        await link.call(
            link.channel.basic_consume, "callback", self._queue,
            lambda _, *message: self._arrive(link, message),
        )  # fmt: skip

    def _arrive(self, link: Link, message: tuple[Any, Any, bytes]) -> None:
        if link is self._link:
            self._arrived.append(message)
            self._news.set()

    async def fetch(self) -> Batch:
        assert self._link is not None
        while True:
            if self._link.lost is not None:
                await self._open_again(self._link.lost)
            if self._arrived:
                return self._batch()
            self._news.clear()
            await self._news.wait()

    async def _open_again(self, lost: AckflowError) -> None:
        if not isinstance(lost, Unavailable):
            raise lost
        log.warning("lost the connection to the source, reconnecting: %s", lost)
        await retried("connecting to the source", self.open)

    def _batch(self) -> Batch:
        count = size = 0
        for _, _, body in self._arrived[: self._most]:
            size += len(body)
            if count and size > BATCH_BYTES:
                break
            count += 1
        taken, self._arrived = self._arrived[:count], self._arrived[count:]
        last, _, _ = taken[-1]
        return Batch([_received(*one) for one in taken], (self._link, last.delivery_tag))

    async def ack(self, batch: Batch) -> None:
        """Acknowledge a batch and those before it. After a lost connection it is delivered again."""
        link, tag = batch.mark
        if link.lost is None:
            link.channel.basic_ack(tag, multiple=True)

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()


def _received(method: Any, properties: Any, body: bytes) -> Publication:
    """A delivery as a message that can be stored, or published again."""
    try:
        decoded = decode_properties(b"".join(properties.encode()))
    except AmqpError as error:
        raise InvalidArgument(f"a message cannot be read: {error}") from None
    id = decoded.headers.get("message-id")
    return Publication(
        method.exchange, [method.routing_key], body, not is_json(decoded, body), decoded.headers,
        priority=decoded.priority, ttl=decoded.ttl, txid=_transaction_id(id) if id else None,
    )  # fmt: skip


def _transaction_id(message_id: str) -> str:
    try:
        return name(message_id, "message id")
    except InvalidArgument:  # too long, or not printable
        return f"sha256:{hashlib.sha256(message_id.encode()).hexdigest()}"


class AmqpTarget:
    """Publishes to a queue and waits for the confirms; the queue is created if it is missing."""

    def __init__(self, url: str, queue: str) -> None:
        self._url = url
        self._queue = queue
        self._link: Link | None = None
        self._left: dict[int, tuple[Any, bytes]] = {}  # messages of a batch that are not confirmed
        self._tags: dict[int, int] = {}  # publications that wait for a confirm, and their messages
        self._last_tag = 0
        self._unrouted = False
        self._confirmed_all: asyncio.Future[Any] | None = None

    async def open(self) -> None:
        link = Link(self._url)
        await link.open()
        try:
            await _check_queue(link, self._queue)
        except NotFound:
            await link.close()
            link = Link(self._url)
            await link.open()
            await link.call(link.channel.queue_declare, "callback", queue=self._queue, durable=True)
            log.info("the queue %r was created as a durable queue", self._queue)
        link.channel.add_on_return_callback(self._on_return)
        await link.call(
            lambda callback: link.channel.confirm_delivery(self._on_confirm, callback), "callback"
        )
        self._link, self._tags, self._last_tag = link, {}, 0

    async def put(self, messages: list[Publication]) -> int:
        self._left = {index: (_properties(one), one.payload) for index, one in enumerate(messages)}
        try:
            await retried("writing", lambda: self._publish(list(self._left)))
        except Forbidden:  # of one of them, at which the broker closed the channel
            for index in list(self._left):
                await self._publish_alone(index, messages[index])
        return len(messages)

    async def _publish_alone(self, index: int, message: Publication) -> None:
        try:
            await retried("writing", lambda: self._publish([index]))
        except Forbidden as error:
            raise Forbidden(f"message {message.txid} cannot be published: {error}") from None

    async def _publish(self, indexes: list[int]) -> None:
        """Publish messages and wait for their confirms; raises if one has not been confirmed."""
        if self._link is None or self._link.lost is not None:
            await self.open()
        link = self._link
        assert link is not None
        self._unrouted = False
        wanted = [index for index in indexes if index in self._left]
        self._confirmed_all = confirmed = link.future()
        for index in wanted:
            properties, body = self._left[index]
            self._last_tag += 1
            self._tags[self._last_tag] = index
            link.publish(self._queue, body, properties)
        await confirmed
        if self._unrouted:
            await link.close()  # and declare the queue again
            raise Unavailable(f"queue {self._queue!r} was deleted at the target")
        if refused := sum(index in self._left for index in wanted):
            raise Unavailable(f"the target refused {refused} messages")

    def _on_return(self, *_: Any) -> None:
        self._unrouted = True

    def _on_confirm(self, frame: Any) -> None:
        """Take a confirm, of one publication or of all up to it."""
        method = frame.method
        tags = [method.delivery_tag]
        if method.multiple:
            tags = [tag for tag in self._tags if tag <= method.delivery_tag]
        for tag in tags:
            index = self._tags.pop(tag)
            if isinstance(method, Basic.Ack) and not self._unrouted:
                self._left.pop(index, None)
        if not self._tags and self._confirmed_all is not None and not self._confirmed_all.done():
            self._confirmed_all.set_result(None)

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()


def _properties(message: Publication) -> Any:
    """The properties of a message; it has an id, so that receivers can recognise a repeat."""
    raw = encode_properties(message.headers, message.binary, message.txid or str(uuid.uuid4()))
    properties = pika.BasicProperties()
    properties.decode(raw)
    properties.delivery_mode = DURABLE
    properties.user_id = None  # a broker accepts only that of the connection
    if message.ttl is None:
        properties.expiration = None  # it was not a number
    properties.headers = {
        key: value for key, value in (properties.headers or {}).items() if key not in COPIES
    } or None
    return properties


async def _check_queue(link: Link, queue: str) -> None:
    await link.call(link.channel.queue_declare, "callback", queue=queue, passive=True)
