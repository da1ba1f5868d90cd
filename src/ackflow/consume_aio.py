"""The consume loop for asyncio; the rules are those of `consume`."""

import asyncio
import inspect
import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, Self

from .broker.pop import PopRequest
from .consume import IDLE_SECONDS, PAUSES, Asking, Counted, Lifeline, Plan, text_of
from .delivery import Batch, Delivery, Settled
from .errors import (
    PASSING,
    AckflowError,
    AlreadySettled,
    InvalidArgument,
    LeaseLost,
    SessionClosed,
)
from .session import Session

log = logging.getLogger("ackflow")


class Consumes(Protocol):
    """What a consumer needs of its session."""

    @property
    def cancels(self) -> bool: ...
    def beside(self) -> Session: ...
    def leave(self, part: Any) -> None: ...
    async def take(self, request: PopRequest, wait: float) -> Batch[Any]: ...
    async def nack(self, messages: Sequence[Delivery], reason: str | None = None) -> Settled: ...
    async def release(self, messages: Sequence[Delivery]) -> Settled: ...


class Consumer:
    """A running consume loop: some tasks that pop and handle.

    `await q.consume(...)` runs until somebody stops it; `async with q.consume(...) as consumer:`
    stops it at the end of the block. A stop is graceful: what is being handled is finished, what
    was not started goes back uncounted. When a lease is lost, its handler is cancelled.
    """

    def __init__(
        self, session: Consumes, plan: Plan[Any], stop: asyncio.Event | None = None
    ) -> None:
        self._session = session
        self._plan = plan.check()
        if stop is not None and not isinstance(stop, asyncio.Event):
            raise InvalidArgument(f"stop is an asyncio.Event, not {stop!r}")
        self._stop = asyncio.Event() if stop is None else stop
        self._loop = asyncio.get_running_loop()
        self._lifeline = Lifeline(
            plan,
            lambda: session.beside().broker,
            lambda queue, group: session.beside().group_stats(queue, group),
        )
        self._popping: set[asyncio.Future[Any]] = set()
        self.counts = Counted()
        self._running = self._loop.create_task(self._run())

    # Callbacks may follow in the same expression: no task runs before the next await.

    def on_success(self, call: Callable[[Any], Any]) -> Self:
        """Call this after the handler; the loop itself settles nothing any more."""
        self._plan.on_success = call
        self._plan.check()
        return self

    def on_error(self, call: Callable[[Any, Exception], Any]) -> Self:
        """Call this when the handler raised; the loop itself settles nothing any more."""
        self._plan.on_error = call
        self._plan.check()
        return self

    def stop(self) -> None:
        """Take nothing new. Returns at once; `join` waits for what is being handled."""
        self._stop.set()
        self._end_pops()

    async def join(self) -> Counted:
        """Wait until the loop has ended; raises what ended it. Cancelled, it stops it gracefully."""
        try:
            return await asyncio.shield(self._running)
        except asyncio.CancelledError:
            if not self._running.done():
                self.stop()
                await self._running
            raise

    async def close(self) -> None:
        """Stop and wait; a handler may close its own consumer."""
        self.stop()
        if asyncio.current_task() not in self._workers:
            await self.join()

    def __await__(self) -> Generator[Any, None, Counted]:
        return self.join().__await__()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # the tasks

    _workers: Sequence[asyncio.Task[None]] = ()

    async def _run(self) -> Counted:
        self._workers = [
            self._loop.create_task(self._work()) for _ in range(self._plan.concurrency)
        ]
        watch = self._loop.create_task(self._watch())
        try:
            _, rest = await asyncio.wait(self._workers, return_when=asyncio.FIRST_EXCEPTION)
            self.stop()
            if rest:
                await asyncio.wait(rest)
            for task in self._workers:
                task.result()
        finally:
            watch.cancel()
            for task in self._workers:
                task.cancel()
            self._session.leave(self)
            await asyncio.to_thread(self._lifeline.close)
        return self.counts

    async def _watch(self) -> None:
        """End the pops also when the stop comes from the caller's event."""
        await self._stop.wait()
        self._end_pops()

    def _end_pops(self) -> None:
        if self._session.cancels:
            for popping in self._popping:
                popping.cancel()

    async def _work(self) -> None:
        asking = Asking(self._plan.request)
        try:
            while not self._stop.is_set():
                batch = await self._pop(asking)
                if batch:
                    await self._handle(batch)
                elif self._plan.wait <= 0:
                    await self._pause(IDLE_SECONDS)
        except SessionClosed:
            self._stop.set()

    async def _pop(self, asking: Asking) -> Batch[Any] | None:
        popping = asyncio.ensure_future(self._session.take(asking.request(), self._plan.wait))
        self._popping.add(popping)
        try:
            batch = await popping
        except asyncio.CancelledError:
            if not self._stop.is_set() or not popping.cancelled():
                raise
            return None
        except AckflowError as error:
            await self._pause(asking.pause(error))
            return None
        finally:
            self._popping.discard(popping)
        asking.answered(batch)
        batch.origin.pause = self._pause
        self.counts.received += len(batch)
        return batch

    async def _pause(self, seconds: float) -> bool:
        """Wait; whether the loop is to end."""
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def _handle(self, batch: Batch[Any]) -> None:
        parts = self._plan.parts(batch)
        handling: list[asyncio.Future[Any]] = []

        def cancel() -> None:
            for task in handling:
                task.cancel()

        def lost() -> None:
            self._loop.call_soon_threadsafe(cancel)

        keeping = await self._keep(batch, lost)
        with keeping:
            for number, part in enumerate(parts):
                left = [message for part in parts[number:] for message in part]
                if batch.origin.lost:
                    self.counts.lost += len(left)
                    return
                if self._stop.is_set() and batch.origin.token is not None:
                    await self._give_back(left)
                    return
                await self._handle_part(batch, part, handling)

    async def _keep(
        self, batch: Batch[Any], lost: Callable[[], None]
    ) -> AbstractContextManager[None]:
        if self._lifeline.ready:
            return self._lifeline.keep(batch, lost)
        while True:
            try:
                return await asyncio.to_thread(self._lifeline.keep, batch, lost)
            except AckflowError as error:
                if error.code not in PASSING:
                    raise
                if await self._pause(PAUSES[-1]):
                    return nullcontext()

    async def _handle_part(
        self, batch: Batch[Any], part: Sequence[Any], handling: list[asyncio.Future[Any]]
    ) -> None:
        given = self._plan.argument(part)
        task = asyncio.ensure_future(_awaited(self._plan.handler, given))
        handling[:] = [task]
        try:
            await task
        except asyncio.CancelledError:
            if not (batch.origin.lost and task.cancelled()):
                raise
            self.counts.lost += len(part)
        except Exception as error:
            await self._failed(part, given, error)
        else:
            self.counts.succeeded += len(part)
            if self._plan.on_success is not None:
                await self._call_back(self._plan.on_success, given)
        finally:
            handling.clear()

    async def _failed(self, part: Sequence[Any], given: Any, error: Exception) -> None:
        plan = self._plan
        if isinstance(error, LeaseLost) and not isinstance(error, AlreadySettled):
            self.counts.lost += len(part)
        else:
            self.counts.failed += len(part)
        if plan.on_error is not None:
            await self._call_back(plan.on_error, given, error)
        elif plan.called_back or part[0].token is None:
            log.error("the handler failed on %s", given, exc_info=error)
        else:
            log.info("the handler failed on %s: %s", given, text_of(error))
            await self._settle(lambda: self._session.nack(part, text_of(error)))

    async def _call_back(self, call: Callable[..., Any], *given: Any) -> None:
        try:
            await _awaited(call, *given)
        except Exception:
            log.exception("%r failed; the message comes again when its lease ends", call)

    async def _give_back(self, left: Sequence[Any]) -> None:
        await self._settle(lambda: self._session.release(left))
        self.counts.returned += len(left)

    async def _settle(self, call: Callable[[], Any]) -> None:
        """Settle as soon as the server can be reached; once stopped it is tried no more."""
        while True:
            try:
                await call()
                return
            except LeaseLost:
                return
            except AckflowError as error:
                if error.code not in PASSING:
                    raise
                if await self._pause(PAUSES[-1]):
                    log.warning("%s; what is held comes again when its lease ends", error)
                    return


async def _awaited(call: Callable[..., Any], *given: Any) -> Any:
    """Call what may or may not be a coroutine function."""
    answer = call(*given)
    return await answer if inspect.isawaitable(answer) else answer
