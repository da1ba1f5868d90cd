"""The session for asyncio: every method of `ackflow.Session`, awaitable.

The methods are those of the plain session. They run in greenlets on the event loop, over a broker
whose answers are awaited: the writer of a database, or a server over HTTP.
"""

import asyncio
import os
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, overload

from .broker.aio import AwaitedBroker, awaited, spawn
from .broker.broker import Broker
from .broker.core.handout import Handout
from .broker.requests import Verdict
from .broker.sharded.aio import on_loop
from .broker.sharded.broker import ShardedBroker
from .clock import Clock
from .errors import SessionClosed, SessionForked
from .options import QUEUE_MODE, Dialect, QueueOptions
from .session import buffer, encoding, messages, session
from .session.ack_stats import AckStats
from .session.buffer import SECONDS, SIZE
from .session.connect import connect as plain_connect
from .session.consumer import AutoAck, Plan
from .session.consumer_aio import Consumer, interrupted
from .session.dead_letters import Alert
from .session.fluent import FluentQueue
from .session.lease import Lease as PlainLease
from .session.messages import Batch, Delivery, Receipt, Settled, to_verdict, waits
from .session.results import put_progress
from .session.transaction import Committed, Operations
from .store.durability import MayLose
from .validate import Duration, Reason

P = ParamSpec("P")
R = TypeVar("R")
if TYPE_CHECKING:
    from .remote.aio import AwaitedRemoteBroker
    from .remote.retry import RetryPolicy

MANY = 1000  # messages: a thread encodes more, as that may take 2 ms per 1,000


async def connect(
    url: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    consumer: str | None = None,
    may_lose: MayLose | None = None,
    clock: Clock | None = None,
    upkeep: bool = True,
    token: str | None = None,
    ca_file: str | os.PathLike[str] | None = None,
    retry: "RetryPolicy | None" = None,
) -> "Session":
    """Open a database or a server as `ackflow.connect` does."""
    opened = partial(
        plain_connect, url, consumer=consumer, may_lose=may_lose, clock=clock, upkeep=upkeep,
        token=token, ca_file=ca_file, retry=retry,
    )  # fmt: skip
    return Session(await asyncio.get_running_loop().run_in_executor(None, opened))


class Message(Delivery, gc=False, eq=False):
    """One delivery, with the verbs of `ackflow.Message` as awaitable methods."""

    @property
    def _session(self) -> "Session":
        return self._share.origin.session  # type: ignore[no-any-return]

    async def ack(self, *, confirm: bool = False, up_to: bool = False) -> None:
        """Mark it as done. `confirm`: return when that is on disk. `up_to`: with all before it in its
        lane."""
        await self._session.settle_one(self, Verdict("ack", confirm=confirm, up_to=up_to))

    async def nack(
        self, reason: Reason | None = None, *, delay: Duration | None = None, rest: bool = False
    ) -> None:
        """Report a failure: redeliver after `delay`, otherwise after the back-off, otherwise now."""
        await self._session.settle_one(self, to_verdict("nack", reason, delay, rest))

    async def release(self, *, delay: Duration | None = None) -> None:
        """Return the message to its place, immediately or after `delay`, uncounted."""
        await self._session.settle_one(self, to_verdict("release", delay=delay))

    async def requeue(self, *, delay: Duration | None = None) -> None:
        """Append a copy to the end of its lane for this group; the original is done."""
        await self._session.settle_one(self, to_verdict("requeue", delay=delay))

    async def reject(self, reason: Reason | None = None) -> None:
        """Never deliver the message again; keep it as a dead letter with the reason."""
        await self._session.settle_one(self, to_verdict("reject", reason))

    async def dead_letter(self, reason: Reason | None = None) -> None:
        """Move the message to the dead letters now, as a failure."""
        await self._session.settle_one(self, to_verdict("dead_letter", reason))

    async def extend(self, seconds: Duration | None = None) -> datetime | None:
        """Keep the lease alive for `seconds` from now (None: the group's lease time)."""
        return await self._session.extend(self, seconds)

    async def in_progress(self) -> None:
        """Restart the lease time. JetStream's name for `extend`."""
        await self.extend()

    async def progress(self, part: float, data: Mapping[str, Any] | None = None) -> None:
        """Record the progress, from 0 to 1; only for messages that request a result."""
        t = self._session.transaction()
        put_progress(t, self, part, data)
        await t.commit()

    async def term(self, reason: Reason | None = None) -> None:
        """JetStream's name for `reject`."""
        await self.reject(reason)


@overload
def _awaitable(
    method: Callable[Concatenate[Any, P], Batch[messages.Message]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, Batch[Message]]]: ...
@overload
def _awaitable(
    method: Callable[Concatenate[Any, P], tuple[Settled, Batch[messages.Message]]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, tuple[Settled, Batch[Message]]]]: ...
@overload
def _awaitable(
    method: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]: ...
def _awaitable(
    method: Callable[Concatenate[Any, P], Any],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, Any]]:
    """The awaitable form of a method, with the same arguments."""

    @wraps(method)
    async def run(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        return await self._run(partial(method, self._plain, *args, **kwargs))

    return run


class _PlainSession(session.Session):
    """The session whose methods run in greenlets; its messages belong to the awaitable one."""

    def __init__(self, owner: "Session", broker: Any) -> None:
        super().__init__(broker, owner.sync.consumer)
        self._acks = owner.sync._acks
        self._owner = weakref.ref(owner)

    def batch_of(self, handout: Handout) -> Batch[Any]:
        return Batch.of(self._owner(), handout, Message)

    def backup(self, target: str | os.PathLike[str]) -> None:
        awaited(asyncio.to_thread(super().backup, target))

    def _encode(self, queue: str, data: object, **settings: Any) -> Any:
        if isinstance(data, list | tuple) and len(data) > MANY:
            return awaited(asyncio.to_thread(encoding.request, queue, data, **settings))
        return encoding.request(queue, data, **settings)

    def _pause(self, messages: Sequence[Delivery]) -> Callable[[float], Any] | None:
        pause = waits(self._owner(), messages)
        return None if pause is None else lambda seconds: awaited(pause(seconds))


class Transaction(Operations):
    """`async with q.transaction() as t:` commits at the end of the block, unless it raises."""

    def __init__(self, owner: "Session", key: str | None) -> None:
        super().__init__(key)
        self._owner = owner

    async def commit(self) -> Committed:
        """Run all operations in one database transaction; a second commit raises."""
        self.committed = await self._owner.commit(self)
        return self.committed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and self.committed is None:
            await self.commit()


class Lease:
    """A lease known by its token, with awaitable methods; see `ackflow.session.lease.Lease`."""

    def __init__(self, owner: "Session", lease: PlainLease) -> None:
        self._run = owner._run
        self._plain = lease

    def __repr__(self) -> str:
        return repr(self._plain)

    @property
    def token(self) -> str:
        """The token of the lease."""
        return self._plain.token

    ack = _awaitable(PlainLease.ack)
    nack = _awaitable(PlainLease.nack)
    release = _awaitable(PlainLease.release)
    requeue = _awaitable(PlainLease.requeue)
    reject = _awaitable(PlainLease.reject)
    dead_letter = _awaitable(PlainLease.dead_letter)
    extend = _awaitable(PlainLease.extend)
    read = _awaitable(PlainLease.read)


class Buffer:
    """An awaitable `ackflow.session.buffer.Buffer`. A thread sends its operations."""

    def __init__(self, blocking: buffer.Buffer) -> None:
        self._blocking = blocking

    @property
    def pending(self) -> int:
        """The number of pushes and settles that are not sent yet."""
        return self._blocking.pending

    @property
    def refused(self) -> int:
        """Settles that came too late: those messages are delivered again."""
        return self._blocking.refused

    async def push(self, queue: str, data: Any, **options: Any) -> None:
        """Buffer messages to push. Invalid messages are rejected immediately."""
        await self._do(self._blocking.push, queue, data, **options)

    async def ack(self, messages: Delivery | list[Delivery]) -> None:
        """Buffer an ack of messages."""
        await self._do(self._blocking.ack, messages)

    async def nack(
        self, messages: Delivery | list[Delivery], *reason: str, **delay: Duration
    ) -> None:
        """Buffer a nack of messages."""
        await self._do(self._blocking.nack, messages, *reason, **delay)

    async def flush(self) -> None:
        """Send all buffered operations now. If that fails, it raises, and they stay buffered."""
        await asyncio.to_thread(self._blocking.flush)

    async def close(self) -> None:
        """Send the buffered operations, and end."""
        await asyncio.to_thread(self._blocking.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _do(self, take: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Buffer an operation. If the buffer is full, wait in a thread, not on the event loop."""
        if self._blocking.full:
            await asyncio.to_thread(take, *args, **kwargs)
        else:
            take(*args, **kwargs)


AwaitedQueue = FluentQueue[
    Coroutine[Any, Any, Receipt], Coroutine[Any, Any, Batch[Message]], Consumer,
    Coroutine[Any, Any, QueueOptions],
]  # fmt: skip


class Session:
    """The methods of `ackflow.Session`, awaitable.

    A pop that is cancelled leaves nothing leased. `sync` is a blocking session on the same database
    or server, for other threads.
    """

    def __init__(self, sync: session.Session) -> None:
        self.sync = sync
        self.consumer = sync.consumer
        self._broker = _awaited_broker(sync)
        self._plain = _PlainSession(self, self._broker)
        self._parts: list[Any] = []
        self._closed = False

    pop = _awaitable(session.Session.pop)
    take = _awaitable(session.Session.take)
    ack_and_pop = _awaitable(session.Session.ack_and_pop)
    exchange = _awaitable(session.Session.exchange)
    read = _awaitable(session.Session.read)
    push = _awaitable(session.Session.push)
    stage = _awaitable(session.Session.stage)
    publish = _awaitable(session.Session.publish)
    ack = _awaitable(session.Session.ack)
    nack = _awaitable(session.Session.nack)
    release = _awaitable(session.Session.release)
    requeue = _awaitable(session.Session.requeue)
    reject = _awaitable(session.Session.reject)
    dead_letter = _awaitable(session.Session.dead_letter)
    settle = _awaitable(session.Session.settle)
    settle_one = _awaitable(session.Session.settle_one)
    extend = _awaitable(session.Session.extend)
    commit = _awaitable(session.Session.commit)
    value = _awaitable(session.Session.value)
    values = _awaitable(session.Session.values)
    configure = _awaitable(session.Session.configure)
    group = _awaitable(session.Session.group)
    pause = _awaitable(session.Session.pause)
    resume = _awaitable(session.Session.resume)
    seek = _awaitable(session.Session.seek)
    purge = _awaitable(session.Session.purge)
    delete_queue = _awaitable(session.Session.delete_queue)
    delete_group = _awaitable(session.Session.delete_group)
    delete_message = _awaitable(session.Session.delete_message)
    dead_letters = _awaitable(session.Session.dead_letters)
    dead_summary = _awaitable(session.Session.dead_summary)
    redrive = _awaitable(session.Session.redrive)
    purge_dead = _awaitable(session.Session.purge_dead)
    why = _awaitable(session.Session.why)
    queues = _awaitable(session.Session.queues)
    databases = _awaitable(session.Session.databases)
    queue_stats = _awaitable(session.Session.queue_stats)
    group_stats = _awaitable(session.Session.group_stats)
    partitions = _awaitable(session.Session.partitions)
    leases = _awaitable(session.Session.leases)
    brokers = _awaitable(session.Session.brokers)
    sweeps = _awaitable(session.Session.sweeps)
    progress = _awaitable(session.Session.progress)
    message = _awaitable(session.Session.message)
    browse = _awaitable(session.Session.browse)
    overdue_seconds = _awaitable(session.Session.overdue_seconds)
    peek = _awaitable(session.Session.peek)
    follow = _awaitable(session.Session.follow)
    search = _awaitable(session.Session.search)
    dead_distribution = _awaitable(session.Session.dead_distribution)
    reprocess = _awaitable(session.Session.reprocess)
    upkeep = _awaitable(session.Session.upkeep)
    backup = _awaitable(session.Session.backup)

    def batch_of(self, handout: Handout) -> Batch[Message]:
        """Return the messages of a hand-out."""
        return Batch.of(self, handout, Message)

    def consume(
        self,
        queue: str,
        handler: Callable[[Any], Any],
        *,
        group: str = QUEUE_MODE,
        batch: int = 1,
        each: bool = False,
        concurrency: int = 1,
        auto_ack: AutoAck = False,
        on_success: Callable[[Any], Any] | None = None,
        on_error: Callable[[Any, Exception], Any] | None = None,
        renew: bool | Duration = True,
        wait: Duration = 1.0,
        stop: asyncio.Event | None = None,
        lease_seconds: Duration | None = None,
        partition: str | None = None,
        dialect: Dialect = "native",
        create: bool = True,
        timeout: Duration | None = None,
    ) -> Consumer:
        """Call `handler` with every message, from `concurrency` tasks; the rules are those of
        `ackflow.Session.consume`.

        It runs at once. `await q.consume(...)` waits until it is stopped, `async with` stops it at
        the end of the block. Handler and callbacks may be coroutine functions. Leases are renewed
        from a thread, also while a handler blocks the event loop; when one is lost all the same,
        or after `timeout`, its handler is cancelled.
        """
        request = self._plain.pop_request(
            queue, group=group, batch=batch, lease_seconds=lease_seconds, auto_ack=auto_ack is True,
            partition=partition, dialect=dialect, create=create,
        )  # fmt: skip
        plan: Plan[Message] = Plan.of(
            handler, request, each, concurrency, on_success, on_error, renew, wait, timeout,
            auto_ack,
        )  # fmt: skip
        consumer = Consumer(self, plan, stop)
        self._parts.append(consumer)
        return consumer

    def queue(self, name: str) -> AwaitedQueue:
        """A queue in the fluent style: `await q.queue("orders").group("workers").pop()`."""
        return FluentQueue(self, name)

    def buffer(self, size: int = SIZE, seconds: Duration = SECONDS) -> Buffer:
        """Buffer pushes and settles, and send them together. Closing the session sends the rest."""
        buffered = Buffer(self.sync.buffer(size, seconds))
        self._parts.append(buffered)
        return buffered

    def alert_dead(self, queue: str, call: Callable[[str, int], Any], **options: Any) -> Alert:
        """Call `call(queue, depth)`, from a thread, when the queue has many dead letters."""
        return self.sync.alert_dead(queue, call, **options)

    def ack_stats(self) -> AckStats:
        """Return statistics of the settles of this session: counts, success rate, latencies."""
        return self.sync.ack_stats()

    @property
    def cancels(self) -> bool:
        """Whether a cancelled pop leaves nothing leased, not even for a short time."""
        return self._broker.local

    def leave(self, part: object) -> None:
        """Forget a consumer, buffer or alert that has ended."""
        if part in self._parts:
            self._parts.remove(part)

    def lease(self, token: str) -> Lease:
        """Return a lease by its token, to settle its messages from any process."""
        return Lease(self, self._plain.lease(token))

    def transaction(self, key: str | None = None) -> Transaction:
        """Return a transaction: settles, pushes and keyed values on any queues, all or nothing."""
        return Transaction(self, key)

    def __repr__(self) -> str:
        return f"<Awaitable {repr(self.sync)[1:]}"

    async def close(self) -> None:
        """End the session: stop consume loops and send buffers. Completed operations stay."""
        if self._closed or self.sync.forked:
            return
        try:
            for part in sorted(self._parts, key=lambda part: isinstance(part, Buffer)):
                await part.close()
        finally:
            try:
                await self._broker.returned()
            finally:
                self._closed = True
                closing = asyncio.get_running_loop().run_in_executor(None, self.sync.close)
                try:
                    await asyncio.shield(closing)  # a cancelled one might never begin
                finally:
                    await spawn(self._broker.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if interrupted(kind):
            for part in self._parts:
                if isinstance(part, Consumer):
                    part.abandon()
        await self.close()

    def _run(self, call: Callable[[], R]) -> Coroutine[Any, Any, R]:
        """Run a call of the plain session."""
        if self._closed:
            raise SessionClosed()
        if self.sync.forked:
            raise SessionForked()  # the threads are not here, the connections not ours
        return spawn(call)


def _awaited_broker(sync: session.Session) -> "AwaitedBroker | AwaitedRemoteBroker":
    """The broker of a session, for calls that `spawn` runs."""
    broker = sync.broker
    if isinstance(broker, Broker | ShardedBroker):
        return AwaitedBroker(broker, partial(on_loop, broker))
    from .remote.aio import AwaitedRemoteBroker
    from .remote.broker import RemoteBroker

    assert isinstance(broker, RemoteBroker)
    return AwaitedRemoteBroker(broker)
