"""A channel: runs its methods in order, and knows what its client holds.

Methods wait in a queue, so that each sees what those before it did. Publications that follow each
other are published in one commit, and so are acknowledgements.
"""

import asyncio
import secrets
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from pamqp.base import Frame
from pamqp.commands import Basic, Confirm, Exchange, Queue, Tx
from pamqp.commands import Channel as ChannelMethods

from ...broker.core.handout import Handout
from ...broker.core.routing.publish import Published
from ...broker.core.settle import settle_many
from ...broker.requests import PopRequest, Publication
from ...errors import AckflowError, NotFound
from ...options import QUEUE_MODE
from . import frames, topology
from .arguments import check_consumer
from .consumers import LEASE_SECONDS, Consumer, Delivery, message_of
from .errors import AmqpError, no_exchange, translated
from .frames import Ack, Method, Publish
from .properties import encode_properties
from .publishing import Arrivals, Posted, Publisher
from .settling import ACK, NACK, REJECT, RELEASE, Settled, marks_of, take_unacked
from .topology import REPLY_TO
from .verbs import DIALECT, commit, consume_queue, look_at_queue

if TYPE_CHECKING:
    from .protocol import AmqpConnection

MOST_AT_ONCE = 1_000  # publications in one commit
BYTES_AT_ONCE = 4 * 1024 * 1024
PUBLICATION_COST = 500  # bytes of memory that a publication of a transaction takes with its body


Settle = Ack | Basic.Nack | Basic.Reject
SETTLES = (Ack, Basic.Nack, Basic.Reject)
Work = Posted | Method | AmqpError


class Channel:
    def __init__(self, connection: "AmqpConnection", number: int) -> None:
        self.connection = connection
        self.number = number
        self.closed = False
        self.consumers: dict[str, Consumer] = {}
        self.unacked: dict[int, Delivery] = {}
        self.prefetch = 0  # of new consumers
        self.prefetch_of_all = 0
        self.reserved = 0
        self.last_queue = ""  # the queue that a method without a name means
        self._flowing = True
        self._last_tag = 0
        self._publisher = Publisher(self)
        self._arrivals = Arrivals()
        self._transaction: tuple[list[Posted], Settled] | None = None
        self._transaction_bytes = 0
        self._work: deque[Work] = deque()
        self._running: asyncio.Future[None] | None = None
        self._failing = False  # an error waits for its turn; what follows it is discarded

    @property
    def server(self) -> Any:
        return self.connection.server

    @property
    def takes_deliveries(self) -> bool:
        return not self.closed and self._flowing and self.connection.writable

    @property
    def has_work(self) -> bool:
        return bool(self._work) and self._running is None

    @property
    def held_or_reserved(self) -> int:
        return len(self.unacked) + self.reserved

    # receiving

    def fail_in_turn(self, error: AmqpError) -> None:
        """Close the channel because of an error, after the methods that came before it."""
        self._publisher.drop_content()
        self._failing = True
        self._enqueue(error, 0)

    def receive_method(self, method: Method) -> None:
        if self._failing:
            return
        if self._publisher.expects_content:
            raise AmqpError(505, "expected content, got a method")
        if type(method) is Publish:
            self._publisher.begin(method)
        else:
            self._enqueue(method, 0)

    @property
    def takes_publications(self) -> bool:
        """Whether basic.publish with its whole content may come next."""
        return not (self._failing or self.closed or self._publisher.expects_content)

    def receive_publication(self, method: Publish, content: frames.Content) -> None:
        """Take basic.publish and its content, which came in one read."""
        try:
            posted = self._publisher.accept(method, content.properties, content.body)
        except AmqpError as error:
            error.method = frames.PUBLISH
            raise
        self._enqueue(posted, len(content.body))

    def receive_content(self, data: bytes, header: bool) -> None:
        """Take a content header or a part of a body."""
        if self._failing:
            return
        take = self._publisher.receive_header if header else self._publisher.receive_body
        try:
            posted = take(data)
        except AmqpError as error:
            if error.code not in (501, 505):  # those are errors of frames
                error.method = frames.PUBLISH
            raise
        if posted is not None:
            self._enqueue(posted, len(posted.publication.payload))

    def _enqueue(self, work: Work, size: int) -> None:
        if not self._work and self._running is None:
            self.connection.ready(self)
        self._work.append(work)
        self.connection.count_queued(1, size)

    async def finish(self) -> None:
        """Wait until the work that was received is done; no more will arrive."""
        self._arrivals.end()
        self.work()
        while self._running is not None:
            await asyncio.wait([self._running])

    # working

    def work(self) -> None:
        """Do the work that waits, in order, until something has to be waited for."""
        while self._work and self._running is None and not self.closed:
            if not self.connection.takes_work or self._gathers():
                return
            work = self._work.popleft()
            try:
                if isinstance(work, SETTLES):
                    self._settle(work)
                elif isinstance(work, Posted):
                    self._publish(*self._following(work))
                else:
                    self.connection.count_queued(-1, 0)
                    self._running = self.server.background(self._run(work))
            except Exception as error:
                self._running = self.server.background(self._fail(work, error))

    def _gathers(self) -> bool:
        """Whether publications still arrive, which one commit takes together with the first."""
        if not isinstance(self._work[0], Posted) or not self._arrivals.more(len(self._work)):
            return False
        self.server.loop.call_soon(self.work)
        return True

    async def _run(self, work: Method | AmqpError) -> None:
        """Do work that may have to wait, and continue."""
        try:
            if isinstance(work, AmqpError):
                raise work
            await self._do(work)
        except Exception as error:
            await self._end_because(work, error)
        finally:
            self._running = None
            self.work()

    async def _fail(self, work: Work, error: Exception) -> None:
        try:
            await self._end_because(work, error)
        finally:
            self._running = None

    async def _end_because(self, work: Work, error: Exception) -> None:
        """End the channel or the connection because of the error of some work."""
        self._discard_work()
        if isinstance(error, AckflowError):
            error = translated(error)
        if not isinstance(error, AmqpError):
            return await self.connection.crash(self, error)
        error.method = error.method or _method_id(work)
        await self.connection.fail(self, error)

    def _discard_work(self) -> None:
        size = sum(len(one.publication.payload) for one in self._work if isinstance(one, Posted))
        self.connection.count_queued(-len(self._work), -size)
        self._work.clear()

    def _following(self, first: Posted) -> tuple[list[Posted], int]:
        """Take the publications that follow a first one, within limits; return their size, too."""
        posted, size = [first], len(first.publication.payload)
        while self._work and len(posted) < MOST_AT_ONCE and size < BYTES_AT_ONCE:
            if not isinstance(self._work[0], Posted):
                break
            one = self._work.popleft()
            assert isinstance(one, Posted)
            posted.append(one)
            size += len(one.publication.payload)
        self._arrivals.begin(len(posted))
        return posted, size

    async def _do(self, method: Method) -> None:
        handler = _HANDLERS.get(type(method))
        if handler is None:
            raise AmqpError(503, f"a client does not send {getattr(method, 'name', method)}")
        self.server.acks.flush()
        await handler(self, method)

    def send(self, method: Frame) -> None:
        self.connection.send(frames.encode(self.number, method))

    def _publish(self, posted: list[Posted], size: int) -> None:
        """Publish. The channel continues when the result is known; until then it counts as queued."""
        waits = False
        try:
            if self._transaction is not None:
                self._transaction[0].extend(posted)
                self._count_transaction(size + PUBLICATION_COST * len(posted))
            elif self._publisher.publish(posted, partial(self._published, posted, size)):
                self._running = self.server.loop.create_future()
                waits = True
            else:
                self._publisher.report(posted, ())
        finally:
            if not waits:
                self.connection.count_queued(-len(posted), -size)

    def _count_transaction(self, size: int) -> None:
        self._transaction_bytes += size
        self.connection.count_received(size)

    def _begin_transaction(self) -> None:
        self._transaction = [], []
        self._count_transaction(-self._transaction_bytes)

    def _published(
        self, posted: list[Posted], size: int, answer: list[Published] | BaseException
    ) -> None:
        """Report the result of publishing, and continue."""
        running, self._running = self._running, None
        self.connection.count_queued(-len(posted), -size)
        try:
            if isinstance(answer, BaseException):
                raise answer
            self._publisher.report(posted, answer)
        except Exception as error:
            self._running = self.server.background(self._fail(posted[0], error))
        self.work()
        if running is not None and not running.done():
            running.set_result(None)

    # delivering

    def deliver(self, consumer: Consumer, answer: Handout) -> int:
        """Write the messages that a consumer got; returns how many bytes they have."""
        size = 0
        count = sum(run.hi - run.lo for run in answer.runs)
        held = None if answer.token is None else self.server.hold(answer.token, count)
        frame_max, tag = self.connection.frame_max, self._last_tag
        written = frames.Deliveries(self.number, consumer.encoded_tag, frame_max)
        for run in answer.runs:
            for sequence in range(run.lo, run.hi):
                exchange, key, properties, body = message_of(
                    run, sequence, consumer.queue, frame_max, consumer.quorum
                )
                tag += 1
                if held is not None:
                    self.unacked[tag] = Delivery(tag, held, run.lane, sequence, consumer)
                size += len(body)
                written.add(tag, run.redelivered, exchange, key, properties, body)
        self._last_tag = tag
        if held is not None:
            consumer.unacked += count
        self.connection.send(written.encoded())
        return size

    def cancel_by_server(self, consumer: Consumer) -> None:
        """Tell a client that its queue is gone."""
        consumer.cancelled = True
        self.consumers.pop(consumer.tag, None)
        if not self.closed and self.connection.wants_cancel:
            self.send(Basic.Cancel(consumer.tag, True))

    def deliver_reply(self, consumer: Consumer, reply: Publication) -> None:
        """Write a reply that goes from one client to another without being stored."""
        self._last_tag += 1
        method = frames.deliver(
            consumer.encoded_tag, self._last_tag, False, b"\0", frames.short_bytes(reply.keys[0])
        )
        properties = encode_properties(reply.headers, True, None)
        self.connection.send(
            frames.with_content(
                self.number, method, properties, reply.payload, self.connection.frame_max
            )
        )

    def _consume_replies(self, method: Basic.Consume, tag: str) -> None:
        if not method.no_ack:
            raise AmqpError(406, "reply consumer cannot acknowledge")
        if self._publisher.reply_id is not None:
            raise AmqpError(406, "reply consumer already set")
        consumer = Consumer(self, REPLY_TO, tag, True, 0, 0, False)
        self.consumers[tag] = consumer
        self._publisher.reply_id = self.server.add_reply_consumer(consumer)
        if not method.nowait:
            self.send(Basic.ConsumeOk(tag))

    async def get(self, method: Basic.Get) -> None:
        queue = self.queue_named(method.queue)
        self.connection.allow("read-write", "queue", queue)
        facts = await self.server.app.do(look_at_queue, False, queue, self.connection.id, True)
        self.server.used(queue)
        request = PopRequest(
            queue, QUEUE_MODE, f"{self.connection.name}/{self.number}"[:200], 1, LEASE_SECONDS,
            bool(method.no_ack), dialect=DIALECT, create=False,
        )  # fmt: skip
        async with self.connection.getting:
            await self.connection.unread.until_read()
            answer: Handout = await self.server.app.loop_broker.try_pop(request)
        if self.closed:
            if answer.token is not None:
                await self.server.app.loop_broker.give_back(answer.token)
            return
        if not answer.runs:
            self.send(Basic.GetEmpty())
            return
        run = answer.runs[0]
        frame_max = self.connection.frame_max
        exchange, key, properties, body = message_of(run, run.lo, queue, frame_max, facts.quorum)
        self._last_tag += 1
        if answer.token is not None:
            held = self.server.hold(answer.token, 1)
            self.unacked[self._last_tag] = Delivery(self._last_tag, held, run.lane, run.lo, None)
        payload = frames.get_ok(self._last_tag, run.redelivered, exchange, key, run.pending)
        self.connection.send(frames.with_content(self.number, payload, properties, body, frame_max))

    # settling

    def _settle(self, first: Settle) -> None:
        """Settle what a method and those that follow it name, in one commit."""
        settled: Settled = []
        method: Settle | None = first
        n = 0
        try:
            while method is not None:
                n += 1
                if isinstance(method, Ack):
                    verdict, multiple = ACK, method.multiple
                else:
                    verdict = NACK if method.requeue else REJECT
                    multiple = bool(getattr(method, "multiple", False))
                found = take_unacked(self.unacked, method.delivery_tag or 0, multiple)
                settled.append((found, verdict))
                method = None
                if self._work and isinstance(self._work[0], SETTLES):
                    method = cast(Settle, self._work.popleft())
        finally:
            self.connection.count_queued(-n, 0)
            if self._transaction is not None:
                self._transaction[1].extend(settled)
            else:
                self._settle_all(settled)

    def _settle_all(self, settled: Settled) -> None:
        """Settle without waiting: nothing is answered, and what follows is in order behind it."""
        self.server.settle(settled)
        self._let_go(delivery for some, _ in settled for delivery in some)

    def _let_go(self, deliveries: Any) -> None:
        queues = set()
        for delivery in deliveries:
            self.server.let_go(delivery.held)
            if delivery.consumer is not None:
                delivery.consumer.unacked -= 1
                queues.add(delivery.consumer.queue)
        if self.prefetch_of_all:
            queues.update(consumer.queue for consumer in self.consumers.values())
        for queue in queues:
            if (pump := self.server.pumps.get(queue)) is not None:
                pump.kick()

    async def _release(self, found: list[Delivery]) -> None:
        """Return messages and forget all tags; they are delivered again, flagged as redelivered."""
        self.unacked = {}
        marks = marks_of([(found, RELEASE)])
        self._let_go(found)
        self.server.acks.flush()
        if marks:
            await self.server.app.do(settle_many, False, marks, False)

    async def close(self) -> None:
        """End the channel: cancel its consumers and return the messages that it holds."""
        if self.closed:
            return
        self.closed = True
        self._discard_work()
        self._publisher.drop_content()
        for consumer in list(self.consumers.values()):
            self.server.remove_consumer(consumer)
        self.consumers.clear()
        self._forget_replies()
        found = list(self.unacked.values())
        if self._transaction is not None:
            found += [one for some, _ in self._transaction[1] for one in some]
            self._begin_transaction()
        await self._release(found)

    def _forget_replies(self) -> None:
        self.server.remove_reply_consumer(self._publisher.reply_id)
        self._publisher.reply_id = None

    # methods

    def queue_named(self, name: str | None) -> str:
        """The queue that a method names; without a name, the last one declared on the channel."""
        if name:
            return name
        if not self.last_queue:
            raise AmqpError(404, "no previously declared queue")
        return self.last_queue

    async def qos(self, method: Basic.Qos) -> None:
        if method.prefetch_size:
            raise AmqpError(540, f"prefetch_size!=0 ({method.prefetch_size})")
        if method.global_:
            self.prefetch_of_all = method.prefetch_count or 0
            self._kick_all()
        else:
            self.prefetch = method.prefetch_count or 0
        self.send(Basic.QosOk())

    def freed(self, queue: str) -> None:
        """Let the other consumers use what one from a queue reserved of the prefetch of all."""
        if self.prefetch_of_all:
            for consumer in self.consumers.values():
                if consumer.queue != queue and (pump := self.server.pumps.get(consumer.queue)):
                    pump.kick()

    def _kick_all(self) -> None:
        for consumer in self.consumers.values():
            if (pump := self.server.pumps.get(consumer.queue)) is not None:
                pump.kick()

    async def consume(self, method: Basic.Consume) -> None:
        queue = self.queue_named(method.queue)
        tag = method.consumer_tag or f"amq.ctag-{secrets.token_urlsafe(16)}"
        if tag in self.consumers:
            raise AmqpError(530, f"attempt to reuse consumer tag '{tag}'")
        if queue == REPLY_TO:
            return self._consume_replies(method, tag)
        self.connection.allow("read-write", "queue", queue)
        priority = check_consumer(method.arguments)
        facts = await self.server.app.do(
            consume_queue, False, queue, self.connection.id, self.server.id
        )
        if self.closed:
            return
        others = self.server.consumers_of(queue)
        if any(one.exclusive for one in others) or (method.exclusive and others):
            raise AmqpError(403, f"queue '{queue}' in vhost '/' in exclusive use")
        if facts.single_active and not self.server.alone:
            raise AmqpError(
                540, "x-single-active-consumer needs a database that one server has to itself"
            )
        consumer = Consumer(
            self, queue, tag, bool(method.no_ack), self.prefetch, priority, bool(method.exclusive),
            facts.quorum,
        )  # fmt: skip
        self.consumers[tag] = consumer
        self.server.declared(queue, facts.expires)
        if not method.nowait:
            self.send(Basic.ConsumeOk(tag))
        self.server.pump_for(queue, facts).add(consumer)

    async def cancel(self, method: Basic.Cancel) -> None:
        consumer = self.consumers.pop(method.consumer_tag or "", None)
        if consumer is not None:
            pump = self.server.pumps.get(consumer.queue)
            consumer.cancelled = True
            if pump is not None:
                await pump.settled()
            self.server.remove_consumer(consumer)
            if consumer.queue == REPLY_TO:
                self._forget_replies()
        if not method.nowait and not self.closed:
            self.send(Basic.CancelOk(method.consumer_tag))

    async def recover(self, method: Basic.Recover | Basic.RecoverAsync) -> None:
        if not method.requeue:
            raise AmqpError(540, "requeue=false")
        await self._release(list(self.unacked.values()))
        if isinstance(method, Basic.Recover):
            self.send(Basic.RecoverOk())

    async def select_confirms(self, method: Confirm.Select) -> None:
        if self._transaction is not None:
            raise AmqpError(406, "cannot switch from tx to confirm mode")
        self._publisher.confirms = True
        if not method.nowait:
            self.send(Confirm.SelectOk())

    async def select_transactions(self, _: Tx.Select) -> None:
        if self._publisher.confirms:
            raise AmqpError(406, "cannot switch from confirm to tx mode")
        if self._transaction is None:
            self._begin_transaction()
        self.send(Tx.SelectOk())

    async def commit(self, _: Tx.Commit) -> None:
        if self._transaction is None:
            raise AmqpError(406, "channel is not transactional")
        posted, settled = self._transaction
        self._begin_transaction()
        publications = [one.publication for one in posted]
        try:
            results = await self.server.app.do(commit, True, publications, marks_of(settled))
        except BaseException as error:
            self._hold_again(settled)
            if isinstance(error, NotFound):
                raise no_exchange(str(error.details.get("exchange", ""))) from None
            raise
        self._let_go(one for some, _ in settled for one in some)
        for one, reached in zip(posted, results, strict=True):
            if reached == 0 and one.mandatory:
                self._publisher.return_unroutable(one)
        self.send(Tx.CommitOk())

    async def rollback(self, _: Tx.Rollback) -> None:
        if self._transaction is None:
            raise AmqpError(406, "channel is not transactional")
        settled = self._transaction[1]
        self._begin_transaction()
        self._hold_again(settled)
        self.send(Tx.RollbackOk())

    def _hold_again(self, settled: Settled) -> None:
        """Hold what a transaction that was not committed acknowledged, under the same tags."""
        for deliveries, _ in settled:
            self.unacked.update((delivery.tag, delivery) for delivery in deliveries)
        self.unacked = dict(sorted(self.unacked.items()))

    async def close_by_client(self, _: ChannelMethods.Close) -> None:
        await self.connection.close_channel(self)

    async def flow(self, method: ChannelMethods.Flow) -> None:
        self._flowing = bool(method.active)
        self.send(ChannelMethods.FlowOk(self._flowing))
        self._kick_all()


def _method_id(work: Work | None) -> int:
    """The class and the method of some work, as error frames name them."""
    if isinstance(work, Posted):
        return frames.PUBLISH
    if isinstance(work, Ack):
        return frames.ACK
    return int(getattr(work, "index", 0))


_HANDLERS: dict[type, Any] = {
    Basic.Qos: Channel.qos,
    Basic.Consume: Channel.consume,
    Basic.Cancel: Channel.cancel,
    Basic.Get: Channel.get,
    Basic.Recover: Channel.recover,
    Basic.RecoverAsync: Channel.recover,
    Confirm.Select: Channel.select_confirms,
    Tx.Select: Channel.select_transactions,
    Tx.Commit: Channel.commit,
    Tx.Rollback: Channel.rollback,
    ChannelMethods.Flow: Channel.flow,
    ChannelMethods.Close: Channel.close_by_client,
    Queue.Declare: topology.declare_queue,
    Queue.Bind: topology.bind_queue,
    Queue.Unbind: topology.unbind_queue,
    Queue.Purge: topology.purge_queue,
    Queue.Delete: topology.delete_queue,
    Exchange.Declare: topology.declare_exchange,
    Exchange.Delete: topology.delete_exchange,
    Exchange.Bind: topology.bind_exchange,
    Exchange.Unbind: topology.unbind_exchange,
}
