"""The broker of several databases for asyncio: a call runs on the loop broker of its database."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Concatenate, ParamSpec, TypeVar

from ...errors import AckflowError
from ...store.tx import Tx
from ..aio import H, LoopBroker, PopVerb
from ..broker import Broker
from ..core.handout import Handout
from ..core.pop import pop as pop_now
from ..core.push import Answer
from ..requests import PopRequest, PushRequest
from .broker import ShardedBroker, after_others, part_of, stamped
from .database import Database
from .directory import NotKnown

P = ParamSpec("P")
T = TypeVar("T")
THREADS = 16


def on_loop(broker: Broker | ShardedBroker) -> LoopBroker:
    """The broker for the running event loop."""
    return LoopBroker(broker) if isinstance(broker, Broker) else ShardedLoop(broker)


class ShardedLoop(LoopBroker):
    """Runs verbs for one event loop. A call that must look up its database, or that merges answers,
    occupies a thread; all other calls only wait for their commit."""

    def __init__(self, broker: ShardedBroker) -> None:
        self.router = broker
        self._loop = asyncio.get_running_loop()
        self._returning = set()
        self._readers = ThreadPoolExecutor(THREADS, thread_name_prefix="ackflow-read")
        self._loops: dict[Database, LoopBroker] = {}
        self.broker = broker  # type: ignore[assignment]  # for `pop`: its clock and `wait_for`

    def do(
        self, verb: Callable[Concatenate[Tx, P], T], synced: bool, *args: P.args, **kwargs: P.kwargs
    ) -> "asyncio.Future[T]":
        return asyncio.ensure_future(self._do(verb, synced, args, kwargs))

    async def hand_out(self, verb: Callable[..., H], *args: Any) -> H:
        return await self._do(verb, False, args, {}, hands_out=True)

    async def _do(
        self, verb: Callable[..., T], synced: bool, args: tuple[Any, ...], kwargs: dict[str, Any],
        hands_out: bool = False,
    ) -> T:  # fmt: skip
        plan = await self._asking(lambda ask: self.router.plan(verb, args, kwargs, ask))
        if not plan.direct:
            return await self.thread(
                lambda: self.router.run(plan, lambda broker, given: broker.do(verb, synced, *given))
            )
        (database,) = plan.databases
        with database.broker():
            on_loop = self._of(database)
            if hands_out:
                answer: Any = await on_loop.hand_out(verb, *args)
            else:
                answer = await on_loop.do(verb, synced, *args, **kwargs)
        return stamped(answer, database)  # type: ignore[no-any-return]

    def push(self, request: PushRequest) -> "asyncio.Future[Answer]":
        return asyncio.ensure_future(self._push(request))

    async def _push(self, request: PushRequest) -> Answer:
        parts = await self._asking(lambda ask: self.router.parts(request, ask))
        answer: Answer = [[] for _ in request.chunks]
        done = 0
        for database, indexes in parts.items():
            part = part_of(request, indexes)
            try:
                with database.broker():
                    places = await self._of(database).push(part)
            except AckflowError as error:
                raise after_others(done, error) from error
            for index, run in zip(indexes, stamped(places, database), strict=True):
                answer[index] = run
            done += sum(chunk.count for chunk in part.chunks)
        return answer

    async def look(
        self, verb: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self.thread(lambda: self.router.look(verb, *args, **kwargs))

    async def try_pop(
        self,
        request: PopRequest,
        verb: PopVerb = pop_now,
        admit: Callable[[], None] | None = None,
    ) -> Handout:
        last: Handout | None = None
        for database in await self._asking(lambda ask: self.router.in_turn(request, ask)):
            with database.broker():
                handout = await self._of(database).try_pop(request, verb, admit)
            last = self.router.better(last, handout, database)
            if last.runs:
                break
        assert last is not None
        return last

    def close(self) -> None:
        for loop_broker in self._loops.values():
            loop_broker.close()
        super().close()

    async def returned(self) -> None:
        for loop_broker in self._loops.values():
            await loop_broker.returned()

    async def _asking(self, call: Callable[[bool], T]) -> T:
        """Run a call that asks databases only if it must; then in a thread."""
        try:
            return call(False)
        except NotKnown:
            return await self.thread(lambda: call(True))

    def _of(self, database: Database) -> LoopBroker:
        found = self._loops.get(database)
        if found is None:
            opened = database.opened
            assert opened is not None  # it is up
            found = self._loops[database] = LoopBroker(opened)
        return found
