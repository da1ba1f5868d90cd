"""A broker for one event loop: verbs are awaited, and no thread is held while they wait.

The writer's own thread runs all that wait at that moment in one commit; the loop is woken once for
all of their answers.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from .broker.broker import Broker, patience
from .broker.handout import Handout
from .broker.pop import PopRequest, pop
from .broker.push import Answer, PushRequest
from .broker.settle import Mark, Verdict, settle
from .clock import Signal, micros
from .store.tx import Tx
from .store.writer import Job

P = ParamSpec("P")
T = TypeVar("T")
READERS = 4


class OnLoop:
    """Made inside the loop it serves; used only from there."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._loop = asyncio.get_running_loop()
        self._answered: deque[tuple[asyncio.Future[Any], Job]] = deque()
        self._woken = False
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="ackflow-read")

    def do(
        self, verb: Callable[Concatenate[Tx, P], T], synced: bool, *args: P.args, **kwargs: P.kwargs
    ) -> "asyncio.Future[T]":
        """Run one verb in a group transaction; `synced`: it is on disk when this is done."""
        return self._submit(partial(verb, **kwargs) if kwargs else verb, args, synced, None)

    def push(self, request: PushRequest) -> "asyncio.Future[Answer]":
        return self._submit(None, (), True, request)

    async def look(
        self, verb: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a verb that only reads, on a snapshot, in a thread beside the loop."""
        return await self.thread(partial(self.broker.look, verb, *args, **kwargs))

    def thread(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        """Run a blocking call in a thread beside the loop."""
        return self._loop.run_in_executor(self._readers, call)

    async def pop(self, request: PopRequest, wait: float = 0.0) -> Handout:
        """Pop, waiting up to `wait` seconds. Cancelled while it waits, it leaves nothing leased;
        cancelled while it is being answered, it gives back what it was given."""
        answer = await self._try(request)
        if answer.runs or wait <= 0:
            return answer
        clock = self.broker.clock
        deadline = clock.steady() + micros(wait)
        signal = LoopSignal(self._loop)
        with self.broker.wait_for(request, signal):
            while True:
                signal.clear()
                answer = await self._try(request)
                if answer.runs or clock.steady() >= deadline:
                    return answer
                await signal.until(patience(clock, deadline, answer.retry_at))

    async def give_back(self, token: int) -> None:
        """Release everything a lease still holds."""
        await self.do(settle, False, token, [Mark(Verdict("release"))])

    def close(self) -> None:
        self._readers.shutdown(wait=False)

    async def _try(self, request: PopRequest) -> Handout:
        answer = await self._try_once(request)
        while answer.again and not answer.runs:
            answer = await self._try_once(request)
        return answer

    async def _try_once(self, request: PopRequest) -> Handout:
        running = self.do(pop, False, request)
        try:
            answer = await asyncio.shield(running)
        except asyncio.CancelledError:
            answer = await running
            if answer.token is not None:
                await self.give_back(answer.token)
            raise
        if answer.runs:
            self.broker.waiting.pass_on(request.kind)
        return answer

    def _submit(
        self, verb: Any, args: tuple[Any, ...], synced: bool, merge: Any
    ) -> "asyncio.Future[Any]":
        self.broker.check_open()
        future = self._loop.create_future()
        self.broker.writer.submit(
            verb, args, synced=synced, merge=merge, answered=partial(self._take, future)
        )
        return future

    def _take(self, future: "asyncio.Future[Any]", job: Job) -> None:
        """Called by the writer's thread."""
        self._answered.append((future, job))
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed, nobody waits
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._woken = False
        while self._answered:
            future, job = self._answered.popleft()
            if future.done():
                continue
            if job.error is not None:
                future.set_exception(job.error)
            else:
                future.set_result(job.answer)


class LoopSignal(Signal):
    """A signal that wakes a task; it may be rung from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._woken = asyncio.Event()

    def ring(self) -> None:
        super().ring()
        with contextlib.suppress(RuntimeError):  # the loop is closed, nobody waits
            self._loop.call_soon_threadsafe(self._woken.set)

    def clear(self) -> None:
        super().clear()
        self._woken.clear()

    async def until(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), seconds)
