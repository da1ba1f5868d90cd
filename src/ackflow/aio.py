"""The same session for asyncio: every method of `ackflow.Session`, awaitable.

Verbs run on a few threads beside the event loop, where the writer takes all that wait at that
moment into one commit. A waiting pop holds no thread.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from . import checks, session
from .broker.broker import Broker
from .broker.settle import Verdict
from .clock import Clock
from .delivery import Batch, Delivery
from .errors import SessionClosed
from .onloop import OnLoop
from .policy import QUEUE_MODE, Dialect
from .store.sqlite import MayLose
from .transaction import Committed, Operations

P = ParamSpec("P")
R = TypeVar("R")
if TYPE_CHECKING:
    from .client.patience import Patience

THREADS = 8


async def connect(
    url: str | os.PathLike[str],
    *,
    consumer: str | None = None,
    may_lose: MayLose = "acks",
    clock: Clock | None = None,
    upkeep: bool = True,
    token: str | None = None,
    ca_file: str | os.PathLike[str] | None = None,
    patience: "Patience | None" = None,
) -> "Session":
    """Open a database or a server as `ackflow.connect` does."""
    if isinstance(url, str) and url.startswith(("http://", "https://")):
        remote = session.client().remote_on_loop(url, token, ca_file, patience, clock)
        return Session(session.Session(remote, consumer))
    opened = partial(
        session.connect, url, consumer=consumer, may_lose=may_lose, clock=clock, upkeep=upkeep
    )
    return Session(await asyncio.get_running_loop().run_in_executor(None, opened))


class Message(Delivery, gc=False, eq=False):
    """One delivery; the verbs of `ackflow.Message`, awaitable."""

    @property
    def _session(self) -> "Session":
        return self._share.origin.session  # type: ignore[no-any-return]

    async def ack(self, *, confirm: bool = False, up_to: bool = False) -> None:
        """Done. `confirm`: only when that is on disk. `up_to`: with all before it in its lane."""
        await self._session.settle_one(self, Verdict("ack", confirm=confirm, up_to=up_to))

    async def nack(
        self, reason: str | None = None, *, delay: float | None = None, rest: bool = False
    ) -> None:
        """Failed: comes again after `delay`, else after the back-off, else now."""
        await self._session.settle_one(self, Verdict("nack", reason, delay, rest))

    async def release(self) -> None:
        """Give it back at once, in its old place, uncounted."""
        await self._session.settle_one(self, Verdict("release"))

    async def requeue(self, *, delay: float | None = None) -> None:
        """Put a copy at the end of its lane for this group; this one is done."""
        await self._session.settle_one(self, Verdict("requeue", delay=delay))

    async def reject(self, reason: str | None = None) -> None:
        """Never again: kept in the dead letters with the reason."""
        await self._session.settle_one(self, Verdict("reject", reason))

    async def dead_letter(self, reason: str | None = None) -> None:
        """To the dead letters now, as a failure."""
        await self._session.settle_one(self, Verdict("dead_letter", reason))

    async def extend(self, seconds: float | None = None) -> datetime | None:
        """Keep the lease alive for `seconds` from now (None: the group's lease time)."""
        return await self._session.extend_one(self, seconds)


def _awaitable(
    method: Callable[Concatenate[session.Session, P], R],
) -> Callable[Concatenate["Session", P], Coroutine[Any, Any, R]]:
    """The awaitable form of a method, with the same arguments."""

    @wraps(method)
    async def run(self: "Session", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run(partial(method, self.sync, *args, **kwargs))

    return run


class Transaction(Operations):
    """`async with q.transaction() as t:` commits at the end of the block, unless it raises."""

    def __init__(self, owner: "Session", key: str | None) -> None:
        super().__init__(key)
        self._owner = owner
        self.committed: Committed | None = None

    async def commit(self) -> Committed:
        """Do everything gathered, in one database transaction."""
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
    """A lease known by its token alone; the verbs of `ackflow.session.Lease`, awaitable."""

    def __init__(self, owner: "Session", lease: session.Lease) -> None:
        self._owner = owner
        self._lease = lease

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._lease, name)

        async def run(*args: Any, **kwargs: Any) -> Any:
            return await self._owner._run(partial(method, *args, **kwargs))

        return run


class Session:
    """The methods of `ackflow.Session`, awaitable; `sync` is the session underneath."""

    def __init__(self, sync: session.Session) -> None:
        self.sync = sync
        self.consumer = sync.consumer
        self._closed = False
        self._remote = not isinstance(sync.broker, Broker)
        self._waits: OnLoop | None = None
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="ackflow-aio")

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
    queue_stats = _awaitable(session.Session.queue_stats)
    group_stats = _awaitable(session.Session.group_stats)
    partitions = _awaitable(session.Session.partitions)
    leases = _awaitable(session.Session.leases)
    progress = _awaitable(session.Session.progress)
    message = _awaitable(session.Session.message)
    browse = _awaitable(session.Session.browse)
    kept_until = _awaitable(session.Session.kept_until)
    peek = _awaitable(session.Session.peek)
    follow = _awaitable(session.Session.follow)
    search = _awaitable(session.Session.search)
    upkeep = _awaitable(session.Session.upkeep)
    backup = _awaitable(session.Session.backup)

    async def pop(
        self,
        queue: str,
        *,
        group: str = QUEUE_MODE,
        batch: int | None = None,
        wait: float = 0.0,
        lease_seconds: float | None = None,
        auto_ack: bool = False,
        partition: str | None = None,
        partitions: int | None = None,
        consumer: str | None = None,
        token: str | None = None,
        dialect: Dialect = "native",
    ) -> Batch[Message]:
        """Lease up to `batch` messages, waiting up to `wait` seconds for the first.

        A pop that is cancelled while it waits leaves nothing leased; one that is cancelled while it
        is being answered releases what it was given.
        """
        request = self.sync.pop_request(
            queue,
            group=group,
            batch=batch,
            lease_seconds=lease_seconds,
            auto_ack=auto_ack,
            partition=partition,
            partitions=partitions,
            consumer=consumer,
            token=token,
            dialect=dialect,
        )
        wait = checks.seconds(wait, "wait")
        if self._remote:
            handout = await self._run(partial(self.sync.broker.pop, request, wait))
        else:
            handout = await self._onloop().pop(request, wait)
        return Batch.of(self, handout, Message)

    async def read(self, token: str) -> Batch[Message]:
        """The messages of a lease again, all of them, settled meanwhile or not."""
        handout = await self._run(partial(self.sync.read_again, token))
        return Batch.of(self, handout, Message)

    def lease(self, token: str) -> Lease:
        """A lease by its token alone, to settle messages of it from anywhere."""
        return Lease(self, self.sync.lease(token))

    def transaction(self, key: str | None = None) -> Transaction:
        """Settles and pushes over any queues, and small values: all or nothing."""
        return Transaction(self, key)

    async def close(self) -> None:
        """End the session; what was answered stays."""
        if not self._closed:
            closing = self._run(self.sync.close)
            self._closed = True
            await closing
            self._threads.shutdown()
            if self._waits is not None:
                self._waits.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _run(self, call: Callable[[], R]) -> Awaitable[R]:
        if self._closed:
            raise SessionClosed()
        if self._remote:
            from .client.green import spawn

            return spawn(call)
        return asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _onloop(self) -> OnLoop:
        """The broker on the running loop."""
        if self._closed:
            raise SessionClosed()
        if self._waits is None:
            assert isinstance(self.sync.broker, Broker)
            self._waits = OnLoop(self.sync.broker)
        return self._waits
