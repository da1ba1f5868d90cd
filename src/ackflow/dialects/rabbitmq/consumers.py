"""Consumers: one pump per queue pops messages and deals them to the consumers that have room.

A consumer has room while it holds fewer messages than its prefetch, and its connection takes what is
written. Every delivery is a lease, which the server extends while the connection lives.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from msgspec import Struct

from ...broker.aio import LoopSignal
from ...broker.core.handout import Handout, MessageRun, payload
from ...broker.core.pop import BoundedPop
from ...broker.core.routing.publish import EXCHANGE, ROUTING_KEY
from ...broker.requests import PopRequest
from ...errors import AckflowError, QueueNotFound, SessionClosed
from ...ids import LaneId
from ...options import DEFAULTS, QUEUE_MODE
from . import frames
from .frames import HEADER_OVERHEAD
from .properties import encode_properties, without_table
from .verbs import DIALECT

if TYPE_CHECKING:
    from .channel import Channel
    from .server import AmqpServer

LEASE_SECONDS = DEFAULTS["rabbitmq"].lease_seconds  # extended while the connection is open
MOST_AT_ONCE = 128  # messages that one pop takes for one consumer
BYTES_AT_ONCE = 1024 * 1024  # a pop takes fewer if they are larger than this
SHARED_AT_ONCE = 32  # the same while others have room, too
WAIT_SECONDS = 60.0
GATHER_SECONDS = 0.005  # for more acknowledgements, while a client has half of its prefetch left
RETRY_SECONDS = 1.0  # after the store failed
_NO_HEADERS: dict[str, str] = {}
log = logging.getLogger("ackflow.amqp")


class NoRoom(Exception):
    """A consumer that had room when its pop began has none now."""


class Held(Struct, eq=False):
    """A lease, and how many of its messages the client has not settled."""

    token: int
    left: int


class Delivery(Struct, eq=False):
    """A message that a client holds."""

    tag: int
    held: Held
    lane: LaneId
    sequence: int
    consumer: "Consumer | None"  # None: it was fetched by basic.get


class Consumer:
    """One basic.consume of a channel."""

    def __init__(
        self, channel: "Channel", queue: str, tag: str, no_ack: bool, prefetch: int, priority: int,
        exclusive: bool, quorum: bool = False,
    ) -> None:  # fmt: skip
        self.channel = channel
        self.queue = queue
        self.tag = tag
        self.encoded_tag = frames.short_bytes(tag)
        self.no_ack = no_ack
        self.prefetch = prefetch
        self.priority = priority
        self.exclusive = exclusive
        self.quorum = quorum  # its messages say how often they were returned
        name = f"{channel.connection.name}/{channel.number}/{tag}"[:200]
        self.name = name if name.isprintable() else ascii(name)
        self.unacked = 0
        self.reserved = 0  # asked of the broker, and not delivered yet
        self.cancelled = False

    @property
    def room(self) -> int:
        """How many messages it may get now."""
        if self.cancelled or not self.channel.takes_deliveries:
            return 0
        room = MOST_AT_ONCE
        if self.no_ack:
            return room
        if self.prefetch:
            room = min(room, self.prefetch - self.unacked - self.reserved)
        if self.channel.prefetch_of_all:
            room = min(room, self.channel.prefetch_of_all - self.channel.held_or_reserved)
        return max(0, room)

    def admit(self) -> None:
        """Raise NoRoom if nothing may be popped for it now; called before each transaction."""
        channel = self.channel
        if not channel.takes_deliveries or channel.server.app.in_transit.is_full():
            raise NoRoom

    @property
    def may_wait(self) -> bool:
        """Whether it has enough messages to wait a moment, so that one pop brings it more."""
        return not self.no_ack and 0 < self.prefetch < 2 * (self.unacked + self.reserved)


class Pump:
    """Delivers the messages of one queue to its consumers, in turn."""

    def __init__(self, server: "AmqpServer", queue: str) -> None:
        self._server = server
        self.queue = queue
        self.consumers: list[Consumer] = []
        self.single_active = False
        self.auto_delete = False
        self.deletions = 0  # of the queue, which clients wait for
        self._leaving: list[Consumer] = []  # active ones that were cancelled and hold messages
        self._wanted = asyncio.Event()
        self._gathers = False
        self._waiting: LoopSignal | None = None
        self._attempting: asyncio.Future[None] | None = None
        self._share = 1
        self._most = 8  # messages of one pop; it follows their size
        self._task = asyncio.create_task(self._run())

    def add(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)
        self.kick()

    def remove(self, consumer: Consumer) -> None:
        if consumer in self.consumers:
            if self.single_active and consumer is self.consumers[0] and consumer.unacked:
                self._leaving.append(consumer)
            self.consumers.remove(consumer)
        if not self.consumers and self._waiting is not None:
            self._waiting.stop()
        self.kick()

    def kick(self) -> None:
        """Look again: a consumer has room, or is new."""
        if not (self._gathers and all(one.may_wait for one in self._takers())):
            self._wanted.set()

    async def settled(self) -> None:
        """Wait until the pops that run now are delivered."""
        if self._attempting is not None:
            await asyncio.shield(self._attempting)

    def stop(self) -> None:
        self._task.cancel()

    def _takers(self) -> list[Consumer]:
        """The consumers that get the next messages, the one served longest ago first."""
        found = [one for one in self.consumers if one.room > 0]
        if self.single_active:
            self._leaving = [one for one in self._leaving if one.unacked]
            if self._leaving:  # so that the next one gets everything in order
                return []
            return found[:1] if found and found[0] is self.consumers[0] else []
        if len({one.priority for one in found}) > 1:
            top = max(one.priority for one in found)
            found = [one for one in found if one.priority == top]
        return found

    async def _run(self) -> None:
        loop_broker = self._server.app.loop_broker
        while True:
            try:
                if not self._takers() or self._server.app.in_transit.is_full():
                    self._wanted.clear()
                    if not self._takers():
                        await self._wanted.wait()
                    else:
                        await asyncio.sleep(RETRY_SECONDS / 10)
                    continue
                if all(one.may_wait for one in self._takers()):
                    await self._gather()
                self._waiting = LoopSignal(asyncio.get_running_loop())
                request = self._request("", 1)
                await loop_broker.pop(
                    request, WAIT_SECONDS, attempt=self._attempt, signal=self._waiting
                )
            except QueueNotFound:
                if not self.deletions:
                    self.queue_is_gone()
                self._wanted.clear()
                await self._wanted.wait()
            except SessionClosed:
                return
            except AckflowError as error:
                log.warning("queue %r: %s; trying again", self.queue, error)
                await asyncio.sleep(RETRY_SECONDS)
            except Exception:
                log.exception("delivery from queue %r failed", self.queue)
                await asyncio.sleep(RETRY_SECONDS)
            finally:
                self._waiting = None

    async def _gather(self) -> None:
        """Wait a moment for more acknowledgements, until a consumer has half its prefetch left."""
        self._wanted.clear()
        self._gathers = True
        timer = asyncio.get_running_loop().call_later(GATHER_SECONDS, self._wanted.set)
        try:
            await self._wanted.wait()
        finally:
            timer.cancel()
            self._gathers = False

    def _request(self, consumer: str, batch: int, no_ack: bool = False) -> PopRequest:
        return BoundedPop(
            self.queue, QUEUE_MODE, consumer or "amqp", batch, LEASE_SECONDS, no_ack,
            dialect=DIALECT, create=False, most_bytes=BYTES_AT_ONCE,
        )  # fmt: skip

    async def _attempt(self, request: PopRequest) -> Handout:
        """Pop for every consumer with room; the answer is that of one that got messages."""
        takers = self._takers()
        if not takers:
            if self._waiting is not None:
                self._waiting.stop()  # `kick` ends the next wait, and messages end this one
            return Handout(self.queue, QUEUE_MODE, 0)
        self._attempting = done = asyncio.get_running_loop().create_future()
        try:
            most = self._most
            if len(takers) > 1:
                most = min(most, SHARED_AT_ONCE, self._share)
            first = takers[0]
            self._server.acks.flush()  # in the transaction of the pops
            if len(self.consumers) == 1:
                return await self._take(first, min(most, first.room))
            answers = await asyncio.gather(
                *(self._take(one, min(most, one.room)) for one in takers if one.room > 0),
                return_exceptions=True,
            )
            if len(self.consumers) > 1 and not self.single_active and first in self.consumers:
                self.consumers.remove(first)  # the others come first next time
                self.consumers.append(first)
        finally:
            self._attempting = None
            done.set_result(None)
        return self._outcome(answers, len(takers))

    def _outcome(self, answers: list[Handout | BaseException], takers: int) -> Handout:
        found = Handout(self.queue, QUEUE_MODE, 0)
        failed = [one for one in answers if isinstance(one, BaseException)]
        for one in answers:
            if isinstance(one, BaseException):
                continue
            if one.runs:
                self._share = max(1, one.runs[-1].pending // takers)
                found = one
            elif not found.runs and one.retry_at is not None:
                found.retry_at = min(one.retry_at, found.retry_at or one.retry_at)
        if failed and not found.runs:
            raise failed[0]
        if not found.runs:
            self._share = 1
        return found

    async def _take(self, consumer: Consumer, batch: int) -> Handout:
        """Pop for one consumer and deliver. Messages that it can no longer take are returned."""
        server = self._server
        consumer.reserved += batch
        consumer.channel.reserved += batch
        try:
            request = self._request(consumer.name, batch, consumer.no_ack)
            answer = await server.app.loop_broker.try_pop(request, admit=consumer.admit)
        except NoRoom:
            if self._waiting is not None:
                self._waiting.stop()  # `kick` ends the next wait
            return Handout(self.queue, QUEUE_MODE, 0)
        finally:
            consumer.reserved -= batch
            consumer.channel.reserved -= batch
            consumer.channel.freed(self.queue)
        if not answer.runs:
            return answer
        if consumer.channel.closed:
            if answer.token is not None:
                await server.app.loop_broker.give_back(answer.token)
        else:
            self._adapt(batch, consumer.channel.deliver(consumer, answer))
        return answer

    def _adapt(self, asked: int, size: int) -> None:
        """Choose how many messages the next pop takes, by the bytes of the last one."""
        if size > BYTES_AT_ONCE:
            self._most = max(1, asked * BYTES_AT_ONCE // size)
        elif size < BYTES_AT_ONCE // 4 and asked >= self._most:
            self._most = min(MOST_AT_ONCE, 2 * self._most)

    def queue_is_gone(self) -> None:
        for consumer in list(self.consumers):
            consumer.channel.cancel_by_server(consumer)
        self.consumers.clear()
        self._server.drop_pump(self)


def message_of(
    run: MessageRun, sequence: int, queue: str, frame_max: int, quorum: bool
) -> tuple[bytes, bytes, bytes, bytes]:
    """Return the encoded exchange, routing key and properties of a message, and its body."""
    failures = run.failures if quorum else None
    index, rest = sequence - run.first, run.body.rest
    headers, binary, txid = _NO_HEADERS, False, None
    if rest is not None:
        headers = rest.headers.get(index, _NO_HEADERS)
        binary = rest.is_binary(index)
        txid = rest.txids.get(index)
    exchange = frames.short_bytes(headers.get(EXCHANGE, ""))
    key = frames.short_bytes(headers.get(ROUTING_KEY, queue))
    properties = encode_properties(headers, binary, txid, failures)
    if len(properties) > frame_max - HEADER_OVERHEAD:  # those of a client of another protocol
        properties = encode_properties(without_table(headers), binary, txid, failures)
    return exchange, key, properties, payload(run.body, index)
