"""The session for asyncio: every method of `ackflow.Session`, awaitable.

On a database, verbs run on a few threads beside the event loop, and the writer commits all that
wait at once; a waiting pop occupies no thread. Over HTTP they run on the loop.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from . import validate
from .broker.aio import LoopBroker
from .broker.broker import Broker
from .broker.core.handout import Handout
from .broker.requests import PopRequest, Verdict
from .broker.sharded.aio import on_loop
from .broker.sharded.broker import ShardedBroker
from .clock import Clock
from .errors import PASSING, AckflowError, LeaseLost, SessionClosed, SessionForked
from .options import QUEUE_MODE, Dialect, QueueOptions
from .session import buffer, session
from .session.ack_stats import AckStats
from .session.buffer import SECONDS, SIZE
from .session.connect import connect as plain_connect
from .session.connect import load_client
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
    from .remote.retry import RetryPolicy

THREADS = 8
RELEASE_SECONDS = 2.0  # how long a cancelled pop waits for its release, which continues after that
log = logging.getLogger("ackflow")


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
    if isinstance(url, str) and url.startswith(("http://", "https://")):
        remote = load_client().remote_on_loop(url, token, ca_file, retry, clock)
        beside = partial(
            plain_connect, url, consumer=consumer, clock=clock, token=token, ca_file=ca_file,
            retry=retry,
        )  # fmt: skip
        return Session(session.Session(remote, consumer, validate.redact_url(url)), beside)
    opened = partial(
        plain_connect, url, consumer=consumer, may_lose=may_lose, clock=clock, upkeep=upkeep
    )
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
        return await self._session.extend_one(self, seconds)

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


def _awaitable(
    method: Callable[Concatenate[session.Session, P], R],
) -> Callable[Concatenate["Session", P], Coroutine[Any, Any, R]]:
    """The awaitable form of a method, with the same arguments."""

    @wraps(method)
    async def run(self: "Session", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run(partial(method, self.sync, *args, **kwargs))

    return run


def _settling(
    method: Callable[Concatenate[session.Session, P], R],
) -> Callable[Concatenate["Session", P], Coroutine[Any, Any, R]]:
    """The awaitable form of a verb; what comes from a consume loop waits for a server that is
    away."""
    settle = _awaitable(method)

    @wraps(method)
    async def run(self: "Session", /, *args: P.args, **kwargs: P.kwargs) -> R:
        while True:
            try:
                return await settle(self, *args, **kwargs)
            except AckflowError as error:
                first = args[0] if args else None
                some = [first] if isinstance(first, Delivery) else first
                given = isinstance(some, list | tuple) and some and isinstance(some[0], Delivery)
                pause = waits(self, some) if given else None  # type: ignore[arg-type]
                if pause is None or error.code not in PASSING or await pause(session.AGAIN_SECONDS):
                    raise

    return run


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
        self._owner = owner
        self._lease = lease

    async def read(self) -> Batch[Message]:
        """Read all messages of the lease again, settled or not."""
        return await self._owner.read(self._lease.token)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._lease, name)

        async def run(*args: Any, **kwargs: Any) -> Any:
            return await self._owner._run(partial(method, *args, **kwargs))

        return run


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
    """The methods of `ackflow.Session`, awaitable; `sync` is the session underneath."""

    def __init__(
        self, sync: session.Session, beside: Callable[[], session.Session] | None = None
    ) -> None:
        self.sync = sync
        self._beside = beside
        self._besides: session.Session | None = None
        self._lock = threading.Lock()
        self._parts: list[Any] = []
        self.consumer = sync.consumer
        self._closed = False
        self._remote = not sync.broker.local
        self._waits: LoopBroker | None = None
        self._releasing: set[asyncio.Future[None]] = set()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="ackflow-aio")

    push = _awaitable(session.Session.push)
    stage = _awaitable(session.Session.stage)
    publish = _awaitable(session.Session.publish)
    ack = _settling(session.Session.ack)
    nack = _settling(session.Session.nack)
    release = _settling(session.Session.release)
    requeue = _settling(session.Session.requeue)
    reject = _settling(session.Session.reject)
    dead_letter = _settling(session.Session.dead_letter)
    settle = _awaitable(session.Session.settle)
    settle_one = _settling(session.Session.settle_one)
    extend = _awaitable(session.Session.extend)
    extend_one = _awaitable(session.Session.extend_one)
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

    async def pop(
        self,
        queue: str,
        *,
        group: str = QUEUE_MODE,
        batch: int | None = None,
        wait: Duration = 0.0,
        lease_seconds: Duration | None = None,
        auto_ack: bool = False,
        partition: str | None = None,
        partitions: int | None = None,
        consumer: str | None = None,
        token: str | None = None,
        dialect: Dialect = "native",
        create: bool = True,
    ) -> Batch[Message]:
        """Lease messages as `ackflow.Session.pop` does.

        A pop that is cancelled while it waits leaves nothing leased; one that is cancelled while it
        is being answered releases what it was given.
        """
        request = self.sync.pop_request(
            queue, group=group, batch=batch, lease_seconds=lease_seconds, auto_ack=auto_ack,
            partition=partition, partitions=partitions, consumer=consumer, token=token,
            dialect=dialect, create=create,
        )  # fmt: skip
        return await self.take(request, validate.seconds(wait, "wait"))

    async def ack_and_pop(
        self,
        messages: session.Messages,
        queue: str,
        *,
        group: str = QUEUE_MODE,
        batch: int | None = None,
        wait: Duration = 0.0,
        lease_seconds: Duration | None = None,
        partition: str | None = None,
        partitions: int | None = None,
        consumer: str | None = None,
        dialect: Dialect = "native",
        create: bool = True,
    ) -> tuple[Settled, Batch[Message]]:
        """Ack messages and pop the next ones in one commit, as `ackflow.Session.ack_and_pop` does."""
        request = self.sync.pop_request(
            queue, group=group, batch=batch, lease_seconds=lease_seconds, partition=partition,
            partitions=partitions, consumer=consumer, dialect=dialect, create=create,
        )  # fmt: skip
        left = validate.seconds(wait, "wait")
        settled, handout = await self.exchange(messages, request)
        if not handout.runs and (left > 0 or handout.again):
            handout = await self.handout(request, left)
        return settled, self.batch_of(handout)

    async def exchange(
        self, messages: session.Messages, request: PopRequest
    ) -> tuple[Settled, Handout]:
        """Ack messages and pop with a validated request, once; cancelled, it leaves nothing leased."""
        request = request.repeatable()
        return await self._or_give_back(request, partial(self.sync.exchange, messages, request))

    async def take(self, request: PopRequest, wait: float) -> Batch[Message]:
        """Pop with a validated request."""
        return self.batch_of(await self.handout(request, wait))

    def batch_of(self, handout: Handout) -> Batch[Message]:
        """Return the messages of a hand-out."""
        return Batch.of(self, handout, Message)

    async def handout(self, request: PopRequest, wait: float = 0.0) -> Handout:
        """Pop, and return the broker's answer. If it is cancelled, nothing stays leased."""
        if not self._remote:
            return await self._broker_on_loop().pop(request, wait)
        request = request.repeatable()
        return await self._or_give_back(request, partial(self.sync.broker.pop, request, wait))

    async def _or_give_back(self, request: PopRequest, call: Callable[[], R]) -> R:
        """Run a call that leases messages; if it is cancelled, release them."""
        try:
            return await self._run(call)
        except asyncio.CancelledError:
            # A second cancellation ends this wait, not the release.
            if request.token is not None:
                await asyncio.wait([self._give_back(request)], timeout=RELEASE_SECONDS)
            raise

    def _give_back(self, request: PopRequest) -> "asyncio.Future[None]":
        """Release what a pop leased, or may still lease, from a thread of its own: the task, or the
        event loop, may end now. The pop is repeated first, so that it cannot come after its
        release: under the same token it then finds a lease that has ended."""
        released: Future[None] = Future()

        def release() -> None:
            try:
                session = self.beside()
                token = session.broker.pop(request).token
                if token is not None:
                    session.release_all(token)
            except (LeaseLost, SessionClosed):
                pass  # it is over already
            except AckflowError as error:
                log.warning(
                    "the lease of a cancelled pop could not be released and will expire: %s", error
                )
            finally:
                released.set_result(None)

        threading.Thread(target=release, name="ackflow-release", daemon=True).start()
        waits = asyncio.wrap_future(released)
        self._releasing.add(waits)
        waits.add_done_callback(self._releasing.discard)
        return waits

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
        request = self.sync.pop_request(
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
        buffered = Buffer(self.beside().buffer(size, seconds))
        self._parts.append(buffered)
        return buffered

    def alert_dead(self, queue: str, call: Callable[[str, int], Any], **options: Any) -> Alert:
        """Call `call(queue, depth)`, from a thread, when the queue has many dead letters."""
        return self.beside().alert_dead(queue, call, **options)

    def ack_stats(self) -> AckStats:
        """Return statistics of the settles of this session: counts, success rate, latencies."""
        return self.sync.ack_stats()

    @property
    def cancels(self) -> bool:
        """Whether a cancelled pop leaves nothing leased, not even for a short time."""
        return not self._remote

    def beside(self) -> session.Session:
        """Return a blocking session on the same database or server, for other threads."""
        self.sync.broker  # noqa: B018 - says so when this is another process
        if self._beside is None:
            return self.sync
        with self._lock:
            if self._closed:
                raise SessionClosed()
            if self._besides is None:
                self._besides = self._beside()
            return self._besides

    def leave(self, part: object) -> None:
        """Forget a consumer, buffer or alert that has ended."""
        if part in self._parts:
            self._parts.remove(part)

    async def read(self, token: str) -> Batch[Message]:
        """Read all messages of a lease again, settled or not."""
        handout = await self._run(partial(self.sync.read_again, token))
        return Batch.of(self, handout, Message)

    def lease(self, token: str) -> Lease:
        """Return a lease by its token, to settle its messages from any process."""
        return Lease(self, self.sync.lease(token))

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
            if self._releasing:
                await asyncio.wait(self._releasing, timeout=RELEASE_SECONDS)
            if self._besides is not None:
                await asyncio.to_thread(self._besides.close)
            if self._waits is not None:
                await self._waits.returned()
            closing = self._run(self.sync.close)
            self._closed = True
            await closing
            self._threads.shutdown()
            if self._waits is not None:
                self._waits.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if interrupted(kind):
            for part in self._parts:
                if isinstance(part, Consumer):
                    part.abandon()
        await self.close()

    def _run(self, call: Callable[[], R]) -> Awaitable[R]:
        if self._closed:
            raise SessionClosed()
        if self.sync.forked:
            raise SessionForked()  # the threads are not here, the connections not ours
        if self._remote:
            from .remote.transport_asyncio import spawn

            return spawn(call)
        return asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _broker_on_loop(self) -> LoopBroker:
        """The broker on the running loop."""
        if self._closed:
            raise SessionClosed()
        broker = self.sync.broker  # refused in a forked process, which has no writer thread
        if self._waits is None:
            assert isinstance(broker, Broker | ShardedBroker)
            self._waits = on_loop(broker)
        return self._waits
