"""What the AMQP connections of a server share: pumps, leases to extend, queues that end."""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ...broker.core.routing.publish import Published, publish
from ...broker.requests import Publication
from ...errors import AckflowError, Unauthenticated
from ...store.sqlite.store import SqliteStore
from .call_batching import Answered, Batch, CallBatcher, DelayedCalls
from .consumers import LEASE_SECONDS, Consumer, Held, Pump
from .errors import AmqpError
from .publishing import publish_batch
from .settling import ACK, Settled, settle_batch
from .topology import REPLY_TO
from .verbs import (
    OWNER_SECONDS,
    RUNNING,
    QueueFacts,
    extend_many,
    new_server_id,
    remove_abandoned,
    remove_queue,
    remove_unused,
    use_queues,
)

if TYPE_CHECKING:
    from ...server.app import Server
    from .protocol import AmqpConnection

TICK_SECONDS = 1.0
ACK_SECONDS, ACKS_AT_ONCE = 0.002, 50  # for more acknowledgements, which are segments here
TOKENS_AT_ONCE = 200
log = logging.getLogger("ackflow.amqp")


class AmqpServer:
    """Serves AMQP on the event loop and the broker of a server."""

    def __init__(self, app: "Server") -> None:
        self.app = app
        self.id = new_server_id()
        self.loop = asyncio.get_running_loop()
        RUNNING.add(self.id)
        self.connections: set[AmqpConnection] = set()
        self.pumps: dict[str, Pump] = {}
        self._held: dict[int, Held] = {}
        self._replies: dict[str, Consumer] = {}
        self._expiring: dict[str, tuple[int, float]] = {}  # queue: milliseconds, last use
        self._used: dict[str, float] = {}  # queues that were recorded as used, and when
        self._extended = time.monotonic()
        self._background: set[asyncio.Future[Any]] = set()
        self._begun = self.background(self._begin())
        self._task = asyncio.create_task(self._tick())
        self.acks = DelayedCalls(self._settle, ACK_SECONDS, ACKS_AT_ONCE)
        self._publications = CallBatcher(app.loop_broker, publish_batch, self.flush)
        self._unflushed: list[AmqpConnection] = []

    async def close(self) -> None:
        """Close every connection, as an operator would, and return the messages that they hold."""
        for connection in list(self.connections):
            connection.close_by_server(AmqpError(320, "CONNECTION_FORCED: the server stops"))
        while self._background:
            await asyncio.wait(self._background)

    async def finished(self) -> None:
        """Wait for what ended connections left to do, and stop."""
        self.acks.flush()
        while self._background:
            await asyncio.wait(self._background)
        self._task.cancel()
        RUNNING.discard(self.id)
        for pump in self.pumps.values():
            pump.stop()

    def background(self, work: "asyncio.Future[Any] | Any") -> "asyncio.Future[Any]":
        """Let something run to its end; its errors are logged."""
        future: asyncio.Future[Any] = asyncio.ensure_future(work)
        self._background.add(future)
        future.add_done_callback(self._done)
        return future

    def _done(self, future: "asyncio.Future[Any]") -> None:
        self._background.discard(future)
        if not future.cancelled() and (error := future.exception()) is not None:
            if isinstance(error, AckflowError | AmqpError):
                log.warning("%s", error)
            else:
                log.error("an operation failed", exc_info=error)

    @property
    def alone(self) -> bool:
        """Whether no other server delivers from the same database, as far as this one can know."""
        return isinstance(self.app.broker.store, SqliteStore)

    # publishing and settling, of all channels together

    def publish(
        self, publications: list[Publication], confirms: bool,
        on_answer: "Answered[list[Published]]",
    ) -> None:  # fmt: skip
        """Publish; without confirms, there is no answer that could wait for the disk."""
        if confirms:
            if self._publications.add(publications, on_answer):
                self.acks.flush()
        else:
            self.acks.flush()
            published = self.app.do(publish, False, publications)
            published.add_done_callback(lambda done: on_answer(done.exception() or done.result()))

    def settle(self, settled: Settled) -> None:
        """Settle in the background. What returns to its queue does so before the next delivery.

        Nothing is answered to an acknowledgement, so it waits a moment for others, or for a pop or
        a publication to share the transaction with.
        """
        self.acks.add(settled)
        if any(verdict is not ACK for _, verdict in settled):
            self.acks.flush()

    def _settle(self, batch: Batch[Settled]) -> None:
        self.background(self.app.do(settle_batch, False, batch))

    # writing

    def flush_later(self, connection: "AmqpConnection") -> None:
        """Write what a connection sends in this turn of the loop, or when `flush` is called."""
        if not self._unflushed:
            self.loop.call_soon(self.flush)
        self._unflushed.append(connection)

    def flush(self) -> None:
        connections, self._unflushed = self._unflushed, []
        for connection in connections:
            connection.flush()

    # leases

    def hold(self, token: int, messages: int) -> Held:
        """Extend a lease until its messages are settled."""
        held = self._held[token] = Held(token, messages)
        return held

    def let_go(self, held: Held) -> None:
        """Count a message of a lease as settled."""
        held.left -= 1
        if held.left <= 0:
            self._held.pop(held.token, None)

    # consumers

    def pump_for(self, queue: str, facts: QueueFacts) -> Pump:
        pump = self.pumps.get(queue)
        if pump is None:
            pump = self.pumps[queue] = Pump(self, queue)
        pump.single_active, pump.auto_delete = facts.single_active, facts.auto_delete
        return pump

    @contextlib.contextmanager
    def deleting(self, queue: str) -> Iterator[None]:
        """In the block, consumers are not cancelled: the client that deletes is answered first."""
        pump = self.pumps.get(queue)
        if pump is None:
            yield
            return
        pump.deletions += 1
        try:
            yield
        finally:
            pump.deletions -= 1
            pump.kick()

    def queue_deleted(self, queue: str) -> None:
        """Cancel the consumers of a queue, also if another one gets its name at once."""
        if (pump := self.pumps.get(queue)) is not None:
            pump.queue_is_gone()

    def drop_pump(self, pump: Pump) -> None:
        if self.pumps.get(pump.queue) is pump:
            del self.pumps[pump.queue]
        pump.stop()

    def remove_consumer(self, consumer: Consumer) -> None:
        """Remove a consumer; the last one takes a queue with auto_delete with it."""
        pump = self.pumps.get(consumer.queue)
        consumer.cancelled = True
        if pump is None:
            return
        pump.remove(consumer)
        if not pump.consumers:
            self.drop_pump(pump)
            self.used(consumer.queue)
            if pump.auto_delete:
                owner = consumer.channel.connection.id
                consumer.channel.connection.owned.discard(consumer.queue)
                self.background(self.app.do(remove_queue, True, consumer.queue, owner, False))

    def consumers_of(self, queue: str) -> list[Consumer]:
        pump = self.pumps.get(queue)
        return pump.consumers if pump is not None else []

    # direct replies

    def add_reply_consumer(self, consumer: Consumer) -> str:
        """Return an address at which a consumer gets replies, from clients of this server."""
        address = f"{REPLY_TO}.{self.id}.{secrets.token_urlsafe(16)}"
        self._replies[address] = consumer
        return address

    def remove_reply_consumer(self, address: str | None) -> None:
        self._replies.pop(address or "", None)

    def reply(self, publication: Publication) -> int:
        """Deliver a reply; returns how many consumers got it."""
        consumer = self._replies.get(publication.keys[0])
        if (
            consumer is None
            or consumer.channel.closed
            or consumer.channel.connection.unread.overdue
        ):
            return 0
        consumer.channel.deliver_reply(consumer, publication)
        return 1

    # queues that end by themselves

    def declared(self, queue: str, expires: int | None) -> None:
        if expires is not None:
            self._expiring[queue] = expires, time.monotonic()

    def used(self, queue: str) -> None:
        if (known := self._expiring.get(queue)) is not None:
            self._expiring[queue] = known[0], time.monotonic()

    # once in a while

    async def _check_tokens(self) -> None:
        """Close the connections whose tokens were revoked, or that need one by now."""
        auth = self.app.auth
        if not auth.fresh():
            await auth.refresh()
        for connection in list(self.connections):
            if connection.logged_in:
                try:
                    auth.check_again(connection.who)
                except Unauthenticated:
                    connection.close_by_server(
                        AmqpError(320, "the token was revoked or has expired")
                    )

    async def _begin(self) -> None:
        with contextlib.suppress(AckflowError):
            abandoned = self.app.do(remove_abandoned, False, self.id, self.alone)
            for queue, expires in await abandoned:
                self.declared(queue, expires)

    async def begun(self) -> None:
        """Wait until the queues of killed servers are gone; no client may see them."""
        await asyncio.shield(self._begun)

    async def _tick(self) -> None:
        swept = time.monotonic()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                now = time.monotonic()
                for connection in list(self.connections):
                    connection.tick(now)
                if self.connections:
                    await self._check_tokens()
                if now - self._extended >= LEASE_SECONDS / 3:
                    self._extended = now
                    await self._extend()
                await self._end_unused(now)
                if now - swept >= OWNER_SECONDS:
                    swept = now
                    await self.app.do(remove_abandoned, False, self.id)
            except AckflowError as error:
                log.warning("upkeep of AMQP failed and will be retried: %s", error)
            except Exception:
                log.exception("upkeep of AMQP failed")

    async def _extend(self) -> None:
        tokens = list(self._held)
        for at in range(0, len(tokens), TOKENS_AT_ONCE):
            some = tokens[at : at + TOKENS_AT_ONCE]
            for lost in await self.app.do(extend_many, False, some, LEASE_SECONDS):
                self._held.pop(lost, None)

    async def _end_unused(self, now: float) -> None:
        """Record the use of queues that would end without it, and delete the others."""
        used = [name for name in self._owned() if now - self._used.get(name, 0) > OWNER_SECONDS / 3]
        for queue, (expires, last) in list(self._expiring.items()):
            if self.consumers_of(queue):
                self._expiring[queue] = expires, now
                if now - self._used.get(queue, 0) > min(OWNER_SECONDS, expires / 1000) / 3:
                    used.append(queue)
            elif now - last >= expires / 1000 and await self.app.do(remove_unused, True, queue):
                self._expiring.pop(queue, None)
                self._used.pop(queue, None)
        if used:
            await self.app.do(use_queues, False, used)
            self._used.update((name, now) for name in used)
            old = now - OWNER_SECONDS
            self._used = {name: at for name, at in self._used.items() if at > old}

    def _owned(self) -> Iterable[str]:
        """The queues that other servers would delete, if they were not recorded as used."""
        found = {name for connection in self.connections for name in connection.owned}
        return found | {queue for queue, pump in self.pumps.items() if pump.auto_delete}
