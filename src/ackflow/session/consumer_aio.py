"""The consume loop for asyncio; it follows the rules of the threaded consume loop."""

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Protocol, Self

from ..broker.core.handout import Handout
from ..broker.requests import PopRequest
from ..errors import (
    PASSING,
    AckflowError,
    AlreadySettled,
    InvalidArgument,
    LeaseLost,
    SessionClosed,
    text_of,
)
from .consumer import (
    IDLE_SECONDS,
    OVERDUE,
    PAUSES,
    STOPPING,
    ConsumerCounts,
    HandlerCall,
    LeaseKeeper,
    Plan,
    RepeatablePop,
    described,
    log_end,
)
from .messages import Batch, Delivery, Settled, unsettled
from .session import Session

log = logging.getLogger("ackflow")


class ConsumerSession(Protocol):
    """The methods of a session that a consumer uses."""

    @property
    def cancels(self) -> bool: ...

    sync: Session

    def leave(self, part: Any) -> None: ...
    async def take(self, request: PopRequest, wait: float) -> Batch[Any]: ...
    async def exchange(
        self, messages: Sequence[Any], request: PopRequest
    ) -> tuple[Settled, Handout]: ...
    def batch_of(self, handout: Handout) -> Batch[Any]: ...
    async def ack(self, messages: Sequence[Any]) -> Settled: ...
    async def nack(self, messages: Sequence[Delivery], reason: str | None = None) -> Settled: ...
    async def release(self, messages: Sequence[Delivery]) -> Settled: ...


class Consumer:
    """A running consume loop: one or more tasks that pop and handle messages.

    `await q.consume(...)` runs until the loop is stopped; `async with q.consume(...) as consumer:`
    stops it at the end of the block. A stop is graceful: running handlers finish, and messages
    that were not started are released without counting a delivery. If a lease is lost, its
    handler is cancelled.
    """

    def __init__(
        self, session: ConsumerSession, plan: Plan[Any], stop: asyncio.Event | None = None
    ) -> None:
        self._session = session
        self._plan = plan.check()
        if stop is not None and not isinstance(stop, asyncio.Event):
            raise InvalidArgument(f"stop must be an asyncio.Event, got {stop!r}")
        self._stop = asyncio.Event() if stop is None else stop
        self._loop = asyncio.get_running_loop()
        self._lease_keeper = LeaseKeeper(
            plan,
            lambda: session.sync.broker,
            lambda queue, group: session.sync.group_stats(queue, group),
        )
        self._popping: set[asyncio.Future[Any]] = set()
        self._handlers: set[asyncio.Future[Any]] = set()
        self._error: BaseException | None = None
        self.counts = ConsumerCounts()
        self._running = self._loop.create_task(self._run())

    # Callbacks may be set in the same expression, because no task runs before the next await.

    def on_success(self, call: Callable[[Any], Any]) -> Self:
        """Set a callback for handled messages; the loop then settles no message itself."""
        self._plan.on_success = call
        self._plan.check()
        return self

    def on_error(self, call: Callable[[Any, Exception], Any]) -> Self:
        """Set a callback for handler errors; the loop then settles no message itself."""
        self._plan.on_error = call
        self._plan.check()
        return self

    @property
    def running(self) -> bool:
        """Whether the loop is running. It ends by `stop` or by an error, which `join` raises."""
        return not self._running.done()

    def stop(self) -> None:
        """Stop popping. Returns immediately; `join` waits for the running handlers."""
        self._stop.set()
        self._end_pops()

    async def join(self) -> ConsumerCounts:
        """Wait until the loop has ended; if an error ended it, raise that error.

        Cancelling this call, as Ctrl-C does, stops the loop gracefully. A second cancellation
        during the stop cancels the handlers and releases the messages they did not settle.
        """
        try:
            await asyncio.shield(self._running)
        except asyncio.CancelledError:
            if not self._running.done():
                await self._stop_gracefully()
            raise
        if self._error is not None:
            raise self._error
        return self.counts

    async def _stop_gracefully(self) -> None:
        try:
            if not self._stop.is_set():
                log.info(STOPPING)
            self.stop()
            await self._running
        except KeyboardInterrupt:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Stop now: cancel the handlers and release the messages they did not settle."""
        self._running.cancel()

    async def close(self) -> None:
        """Stop the loop and wait for it to end; a handler may close its own consumer."""
        self.stop()
        if asyncio.current_task() not in {*self._handlers, *self._workers}:
            await self.join()

    def __await__(self) -> Generator[Any, None, ConsumerCounts]:
        return self.join().__await__()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if interrupted(kind):
            self.abandon()
        await self.close()

    def __repr__(self) -> str:
        return described(self._plan, self.running, self.counts)

    # The methods below run in the consumer's tasks.

    _workers: Sequence[asyncio.Task[None]] = ()

    async def _run(self) -> None:
        self._workers = [
            self._loop.create_task(self._work()) for _ in range(self._plan.concurrency)
        ]
        watch = self._loop.create_task(self._watch())
        try:
            await asyncio.wait(self._workers)
        finally:
            watch.cancel()
            for task in self._workers:
                task.cancel()
            await asyncio.wait(self._workers)
            self._session.leave(self)
            await asyncio.to_thread(self._lease_keeper.close)

    async def _watch(self) -> None:
        """Cancel waiting pops when the caller sets its own stop event."""
        await self._stop.wait()
        self._end_pops()

    def _end_pops(self) -> None:
        if self._session.cancels:
            for popping in self._popping:
                popping.cancel()

    async def _work(self) -> None:
        repeatable = RepeatablePop(self._plan.request)
        try:
            while not self._stop.is_set():
                batch = await self._pop(repeatable)
                if batch:
                    await self._handle(batch, repeatable)
                elif self._plan.wait <= 0:
                    await self._pause(IDLE_SECONDS)
            await self._ack_last(repeatable.handled)
        except SessionClosed:
            self.stop()
        except (Exception, SystemExit) as error:
            self._error = error
            log_end(self._plan, error)
            self.stop()
            await self._ack_last(repeatable.handled)

    async def _ack_last(self, handled: Sequence[Any]) -> None:
        """Ack the messages that were handled before the loop ended, as there is no next pop."""
        try:
            if handled:
                await self._settle(lambda: self._session.ack(handled))
        except AckflowError as error:
            log.warning(
                "%s; the messages handled last are delivered again when their lease ends", error
            )

    async def _take(self, repeatable: RepeatablePop) -> Batch[Any]:
        if not repeatable.handled:
            return await self._session.take(repeatable.request(), self._plan.wait)
        if repeatable.failed:  # pops may be refused for longer than the leases last
            self.counts.lost += len((await self._session.ack(repeatable.handled)).refused)
            repeatable.handled = []
            return await self._session.take(repeatable.request(), self._plan.wait)
        settled, handout = await self._session.exchange(repeatable.handled, repeatable.request())
        self.counts.lost += len(settled.refused)
        return self._session.batch_of(handout)

    async def _pop(self, repeatable: RepeatablePop) -> Batch[Any] | None:
        popping = asyncio.ensure_future(self._take(repeatable))
        self._popping.add(popping)
        try:
            batch = await popping
        except asyncio.CancelledError:
            if self._stop.is_set() and popping.cancelled():
                return None
            if popping.done() and not popping.cancelled() and popping.exception() is None:
                found = popping.result()  # the pop completed along with the cancellation
                await self._settle(lambda: self._session.release(found))
            raise
        except AckflowError as error:
            await self._pause(repeatable.pause(error))
            return None
        finally:
            self._popping.discard(popping)
        repeatable.answered(batch)
        batch.origin.pause = self._pause
        batch.origin.settled = set()
        self.counts.received += len(batch)
        return batch

    async def _pause(self, seconds: float) -> bool:
        """Wait; return whether the loop was stopped meanwhile."""
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            return False
        return True

    async def _handle(self, batch: Batch[Any], repeatable: RepeatablePop) -> None:
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
                rest = [message for part in parts[number + 1 :] for message in part]
                if batch.origin.lost:
                    self.counts.lost += len(part) + len(rest)
                    return
                if self._stop.is_set() and batch.origin.token is not None:
                    await self._give_back([*part, *rest])
                    return
                attempt = HandlerCall(part, rest)
                await self._handle_part(attempt, handling, repeatable)
                if attempt.timed_out:
                    await self._timed_out(attempt)
                    return

    async def _keep(
        self, batch: Batch[Any], lost: Callable[[], None]
    ) -> AbstractContextManager[None]:
        if self._lease_keeper.ready:
            return self._lease_keeper.keep(batch, lost)
        while True:
            try:
                return await asyncio.to_thread(self._lease_keeper.keep, batch, lost)
            except AckflowError as error:
                if error.code not in PASSING:
                    raise
                if await self._pause(PAUSES[-1]):
                    return nullcontext()

    async def _handle_part(
        self, attempt: HandlerCall, handling: list[asyncio.Future[Any]], repeatable: RepeatablePop
    ) -> None:
        part, given = attempt.part, self._plan.argument(attempt.part)
        task = asyncio.ensure_future(_handled(self._plan.handler, given))
        handling[:] = [task]
        self._handlers.add(task)
        try:
            with self._lease_keeper.limit(attempt, partial(self._cancel, task)):
                await task
        except asyncio.CancelledError:
            if attempt.timed_out:
                return
            if part[0].lost and task.cancelled():
                self.counts.lost += len(part)
                return
            if part[0].token is not None:
                await self._give_back([*unsettled(part), *attempt.rest])
            raise
        except Exception as error:
            if attempt.timed_out:
                return
            cause = error.exit if isinstance(error, HandlerExited) else error
            await self._failed(part, given, cause)
            if isinstance(error, HandlerExited):
                raise error.exit from None
        else:
            if not attempt.timed_out:
                await self._succeeded(part, given, repeatable)
        finally:
            handling.clear()
            self._handlers.discard(task)

    def _cancel(self, task: "asyncio.Future[Any]", _: HandlerCall) -> None:
        """Cancel a handler that timed out; called from the timeout thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(task.cancel)

    async def _timed_out(self, attempt: HandlerCall) -> None:
        part = attempt.part
        self.counts.timed_out += len(part)
        await self._settle_failed(part, self._plan.argument(part), TimeoutError(OVERDUE))
        if attempt.rest and part[0].token is not None:
            await self._give_back(attempt.rest)

    async def _succeeded(self, part: Sequence[Any], given: Any, repeatable: RepeatablePop) -> None:
        self.counts.succeeded += len(part)
        if self._plan.on_success is not None:
            await self._call_back(self._plan.on_success, given)
        left = unsettled(part)
        if self._plan.acks:
            repeatable.handled += left
            return
        token = part[0]._share.origin.token
        if left and token is not None and await asyncio.to_thread(self._lease_keeper.holds, token):
            self.counts.unsettled += len(left)
            self._lease_keeper.warn(left)

    async def _failed(self, part: Sequence[Any], given: Any, error: BaseException) -> None:
        if isinstance(error, LeaseLost) and not isinstance(error, AlreadySettled):
            self.counts.lost += len(part)
        else:
            self.counts.failed += len(part)
        await self._settle_failed(part, given, error)

    async def _settle_failed(self, part: Sequence[Any], given: Any, error: BaseException) -> None:
        plan = self._plan
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
            log.exception("%r failed; the message is delivered again when its lease ends", call)

    async def _give_back(self, left: Sequence[Any]) -> None:
        await self._settle(lambda: self._session.release(left))
        self.counts.returned += len(left)

    async def _settle(self, call: Callable[[], Any]) -> None:
        """Settle, and retry while the server is unreachable; a stop ends the retries."""
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
                    log.warning(
                        "%s; held messages are delivered again when their lease ends", error
                    )
                    return


def interrupted(kind: type[BaseException] | None) -> bool:
    """Return whether an exception is a second Ctrl-C; asyncio turns the first into a cancel."""
    return kind is not None and issubclass(kind, KeyboardInterrupt)


class HandlerExited(Exception):
    """A handler called `sys.exit`; SystemExit in a task would end the event loop immediately."""

    def __init__(self, exit: SystemExit) -> None:
        self.exit = exit


async def _handled(handler: Callable[..., Any], given: Any) -> Any:
    try:
        return await _awaited(handler, given)
    except SystemExit as exit:
        raise HandlerExited(exit) from None


async def _awaited(call: Callable[..., Any], *given: Any) -> Any:
    """Call a function, and await its result if it is awaitable."""
    answer = call(*given)
    return await answer if inspect.isawaitable(answer) else answer
