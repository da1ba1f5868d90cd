"""Publishing on a channel: the content of messages, confirms and returns."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field

from ...broker.brief import brief
from ...broker.core.routing.publish import Published, publish_all
from ...broker.requests import Publication
from ...errors import AckflowError, Forbidden, NotFound, QueueFull, StorageFull
from ...options import MAX_PAYLOAD
from ...store.tx import Tx
from . import frames
from .call_batching import Answered, Batch
from .errors import AmqpError, no_exchange, translated
from .frames import Publish
from .properties import Decoded, decode_properties, is_json
from .topology import REPLY_TO

if TYPE_CHECKING:
    from .channel import Channel

GATHER_MOST = 500  # publications
GATHER_SECONDS = 0.002


@brief
def publish_batch(tx: Tx, batch: Batch[list[Publication]]) -> list[list[Published]]:
    """Publish what several channels have sent; see `publish_all`."""
    return publish_all(tx, batch.take())


class Content(Struct):
    """A publication whose content arrives."""

    method: Publish
    properties: bytes = b""
    size: int = -1  # of its body; not known before the content header
    parts: list[bytes] = field(default_factory=list)
    received: int = 0


class Posted(Struct):
    """A publication that waits for its turn; its raw properties are for a return."""

    publication: Publication
    mandatory: bool
    properties: bytes


class Arrivals:
    """Whether the publications of a channel still arrive, so that the commit waits for more.

    A client that sends a window is still sending when the loop has read its first messages. It is
    asked once per turn of the loop, and the answer is yes as long as each turn brings more, and not
    for a client that waits for each confirm: its last commit had one publication.
    """

    def __init__(self) -> None:
        self._pipelines = self._ended = False
        self._counts: list[int] = []  # of the turns since the last commit
        self._since = 0.0

    def begin(self, publications: int) -> None:
        """A commit takes the publications that have arrived."""
        self._pipelines = publications > 1 and not self._ended
        self._counts = []

    def end(self) -> None:
        """Nothing arrives any more."""
        self._pipelines, self._ended = False, True

    def more(self, queued: int) -> bool:
        if not self._pipelines:
            return False
        counts, now = self._counts, time.monotonic()
        if not counts:
            self._since = now
        # The first two turns after a read come before the next one.
        arrives = len(counts) < 2 or queued > counts[-1]
        counts.append(queued)
        return arrives and queued < GATHER_MOST and now - self._since < GATHER_SECONDS


class Publisher:
    """What a channel publishes: assembled from frames, published, confirmed."""

    def __init__(self, channel: "Channel") -> None:
        self._channel = channel
        self.confirms = False
        self.reply_id: str | None = None  # of the consumer of direct replies
        self._published = 0
        self._content: Content | None = None

    @property
    def expects_content(self) -> bool:
        return self._content is not None

    def begin(self, method: Publish) -> None:
        """Take basic.publish, whose content follows."""
        self._content = Content(method)

    def receive_header(self, data: bytes) -> Posted | None:
        """Take a content header; returns the publication, if it has no body."""
        content = self._content
        if content is None or content.size >= 0:
            raise AmqpError(505, "got a content header without basic.publish")
        content.size, content.properties = frames.decode_header(data)
        if content.size > MAX_PAYLOAD:
            self._content = None
            raise AmqpError(
                406,
                f"message size {content.size} is larger than configured max size {MAX_PAYLOAD}",
            )
        return self._complete(content) if content.size == 0 else None

    def receive_body(self, data: bytes) -> Posted | None:
        """Take a part of a body; returns the publication, if it was the last part."""
        content = self._content
        if content is None or content.size < 0:
            raise AmqpError(505, "got a content body without a content header")
        if not content.parts and len(data) == content.size:
            content.parts.append(data)
            return self._complete(content)
        content.parts.append(data)
        content.received += len(data)
        self._channel.connection.count_received(len(data))
        if content.received > content.size:
            raise AmqpError(501, "a message has more bytes than its content header says")
        return self._complete(content) if content.received == content.size else None

    def _complete(self, content: Content) -> Posted:
        self._content = None
        if content.received:
            self._channel.connection.count_received(-content.received)
        body = content.parts[0] if len(content.parts) == 1 else b"".join(content.parts)
        return self.accept(content.method, content.properties, body)

    def accept(self, method: Publish, properties: bytes, body: bytes) -> Posted:
        """Check a publication, and give it the form in which it is stored."""
        decoded = decode_properties(properties)
        if "\0" in method.routing_key:
            raise AmqpError(406, "a routing key must not contain NUL")
        if method.immediate:
            raise AmqpError(540, "immediate=true")
        if decoded.user is not None or self._channel.connection.who is not None:
            self._check_publication(method, decoded)
        headers = decoded.headers
        if headers.get("reply-to") == REPLY_TO:
            if self.reply_id is None:
                raise AmqpError(406, "fast reply consumer does not exist")
            headers = {**headers, "reply-to": self.reply_id}
        publication = Publication(
            method.exchange, [method.routing_key, *decoded.copies], body,
            not is_json(decoded, body), headers, decoded.table, decoded.priority,
            decoded.ttl,
        )  # fmt: skip
        return Posted(publication, method.mandatory, properties)

    def _check_publication(self, method: Publish, decoded: Decoded) -> None:
        connection = self._channel.connection
        if decoded.user is not None and decoded.user != connection.user:
            raise AmqpError(
                406,
                f"user_id property set to '{decoded.user}' but authenticated user was "
                f"'{connection.user}'",
            )
        if connection.who is None:
            return
        if method.exchange:
            connection.allow("read-write", "exchange", method.exchange)
        else:
            for key in (method.routing_key, *decoded.copies):
                if not key.startswith(REPLY_TO):  # whoever knows the address may reply
                    connection.allow("read-write", "queue", key)

    def drop_content(self) -> None:
        """Forget a publication whose content has not arrived completely."""
        if self._content is not None:
            self._channel.connection.count_received(-self._content.received)
            self._content = None

    def publish(self, posted: list[Posted], on_answer: "Answered[list[Published]]") -> bool:
        """Publish in one commit; returns whether there is an answer to wait for."""
        stored = [one.publication for one in posted if not _is_reply(one)]
        if stored:
            self._channel.server.publish(stored, self.confirms, on_answer)
        return bool(stored)

    def report(self, posted: list[Posted], results: Sequence[Published]) -> None:
        """Return what could not be routed, and confirm; the first error ends the channel.

        Replies, which are not stored and have no result, are delivered now.
        """
        if len(results) < len(posted) and any(map(_is_reply, posted)):
            left = iter(results)
            results = [
                self._channel.server.reply(one.publication) if _is_reply(one) else next(left, 0)
                for one in posted
            ]
        refused: list[int] = []
        first, failed = self._published + 1, None
        for one, result in zip(posted, results, strict=False):
            failed = self._failure(one, result)
            if failed is not None:
                break
            self._published += 1
            if result == 0 and one.mandatory:
                self.return_unroutable(one)
            elif isinstance(result, AckflowError):
                refused.append(self._published)
        if self.confirms:
            self._confirm(first, refused)
        if failed is not None:
            raise failed

    def _failure(self, one: Posted, result: Published) -> AmqpError | None:
        """The error that closes the channel; a full queue refuses a message and is none."""
        exchange = one.publication.exchange
        match result:
            case int() | QueueFull():
                return None
            case NotFound():
                return no_exchange(exchange)
            case Forbidden():
                return AmqpError(
                    403, f"cannot publish to internal exchange '{exchange}' in vhost '/'"
                )
            case StorageFull():
                return None if self.confirms else translated(result)
            case AckflowError():
                return translated(result)

    def _confirm(self, first: int, refused: list[int]) -> None:
        """Confirm publications from a number on, in order."""
        send, number = self._channel.connection.send, self._channel.number
        for tag in refused:
            if tag > first:
                send(frames.ack(number, tag - 1, tag - 1 > first))
            send(frames.nack(number, tag))
            first = tag + 1
        if first <= self._published:
            send(frames.ack(number, self._published, self._published > first))

    def return_unroutable(self, one: Posted) -> None:
        """Send a mandatory message back."""
        payload = frames.no_route(one.publication.exchange, one.publication.keys[0])
        self._channel.connection.send(
            frames.with_content(
                self._channel.number, payload, one.properties, one.publication.payload,
                self._channel.connection.frame_max,
            )
        )  # fmt: skip


def _is_reply(one: Posted) -> bool:
    return one.publication.exchange == "" and one.publication.keys[0].startswith(REPLY_TO + ".")
