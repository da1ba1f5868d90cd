"""Calls of handlers that may be ended from outside: time limits, lost leases, awaited handlers.

                 soft limit               hard limit                      lease lost
    async def    cancelled                cancelled, then given up        cancelled
    def          exception in its thread  exception, then given up        `message.lost` is True

A thread cannot be killed. One that does not return by its hard limit is given up: its message is
settled, another thread takes its place, and the process does not wait for it when it ends.

CPython 3.11 hangs, and holds the GIL, if an exception is raised in a thread that a tracer follows, as
under coverage or a debugger. Nothing is raised there: only the hard limit has an effect.
"""

import asyncio
import ctypes
import inspect
import logging
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from ...clock import Clock
from ...session.lease_renewer import CallTimeouts
from ..context import Context
from ..errors import ProcessorExited, SoftTimeLimitExceeded, TimeLimitExceeded

log = logging.getLogger("ackflow.worker")
FORKED = 70  # the exit code of a child that returned from a handler
HANGS_IF_TRACED = sys.version_info < (3, 12)


class GivenUp(BaseException):
    """Raised in the thread of a handler after its hard time limit; its result is ignored."""


class LeaseGone(BaseException):
    """An awaited handler was cancelled because its lease was lost."""


class Attempt:
    """One call of a handler."""

    def __init__(self, context: Context, clock: Clock) -> None:
        self.context = context
        self.thread = threading.get_ident()
        self.started = clock.steady()
        self.timed_out = False  # the hard limit is over
        self.soft = False  # the soft limit is over
        self._lock = threading.Lock()
        self._done = False
        self._task: asyncio.Task[Any] | None = None
        self._raised = False

    def finish(self) -> None:
        """The call has returned: nothing may be raised in its thread any more."""
        with self._lock:
            self._done = True
            if self._raised:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread), None)

    def over_soft(self) -> None:
        """The soft limit is over: tell the handler."""
        with self._lock:
            if not self._done:
                self.soft = True
                self._interrupt(SoftTimeLimitExceeded)

    def over_hard(self) -> bool:
        """The hard limit is over; returns whether the call was still running."""
        with self._lock:
            if not self._done:
                self.timed_out = True
                self._interrupt(GivenUp)
            return self.timed_out

    def cancel(self) -> None:
        """The lease is lost: cancel an awaited handler. Others see `message.lost`."""
        with self._lock:
            if not self._done and self._task is not None:
                self._cancel_task()

    def _interrupt(self, error: type[BaseException]) -> None:
        if self._task is not None:
            self._cancel_task()
        elif HANGS_IF_TRACED and threading.gettrace() is not None:
            log.warning(
                "%s is over its limit and is not interrupted: on Python 3.11 that would hang under "
                "coverage or a debugger", self.context.message,
            )  # fmt: skip
        else:
            self._raised = True
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self.thread), ctypes.py_object(error)
            )

    def _cancel_task(self) -> None:
        task = self._task
        assert task is not None
        task.get_loop().call_soon_threadsafe(task.cancel)

    async def awaited(self, result: Awaitable[Any]) -> Any:
        """Await the result of a handler in the event loop."""
        with self._lock:
            self._task = asyncio.current_task()
        pid = os.getpid()
        try:
            return await result
        except (SystemExit, KeyboardInterrupt) as error:
            raise exited(self.context, error) from None
        finally:
            end_fork(self.context, pid)


def end_fork(context: Context, pid: int) -> None:
    """End a child process that returned from a handler: its parent settles the message."""
    if os.getpid() != pid:
        name = context.handler.name if context.handler is not None else "?"
        sys.stderr.write(
            f"ackflow: {name} forked, and the child returned from it. A child must end with "
            "os._exit, or be started with subprocess. This child is terminated; the worker continues\n"
        )
        sys.stderr.flush()
        os._exit(FORKED)


def exited(context: Context, error: BaseException) -> ProcessorExited:
    """The error of a handler that called sys.exit or raised KeyboardInterrupt."""
    name = context.handler.name if context.handler is not None else "?"
    said = (
        f"called sys.exit({error.code!r})" if isinstance(error, SystemExit) else f"raised {error!r}"
    )
    return ProcessorExited(
        f"{name} {said}; a handler must return or raise an exception. To stop the consumer, use "
        "context.interrupt(reason)"
    )


class Caller:
    """Calls handlers within their time limits."""

    def __init__(self, clock: Clock, given_up: Callable[[Attempt], None]) -> None:
        self._clock = clock
        self._given_up = given_up
        self._timeouts: CallTimeouts | None = None
        self._loop: EventLoop | None = None
        self._lock = threading.Lock()

    def call(self, attempt: Attempt) -> Any:
        """Call the handler of an attempt and return its result, awaited if it can be.

        Raises GivenUp, LeaseGone, TimeLimitExceeded, or what the handler raised.
        """
        try:
            result = self._call(attempt)
        except BaseException:
            if attempt.timed_out:
                raise GivenUp from None
            raise
        if attempt.timed_out:
            raise GivenUp
        return result

    def _call(self, attempt: Attempt) -> Any:
        context = attempt.context
        handler = context.handler
        assert handler is not None
        limited = handler.time_limit is not None or handler.soft_time_limit is not None
        pid = os.getpid()
        try:
            try:
                with self._limits(attempt) if limited else _NO_LIMITS:
                    result = handler.call(context)
                    return self._awaited(result, attempt) if inspect.isawaitable(result) else result
            finally:
                end_fork(context, pid)
                attempt.finish()
        except (SoftTimeLimitExceeded, CancelledError, asyncio.CancelledError) as error:
            attempt.finish()  # the exception may have arrived inside the `finally` above
            raise self._cause(attempt, error) from None
        except (SystemExit, KeyboardInterrupt) as error:
            raise exited(context, error) from None

    def close(self) -> None:
        if self._timeouts is not None:
            self._timeouts.close()
        if self._loop is not None:
            self._loop.close()

    def _cause(self, attempt: Attempt, error: BaseException) -> BaseException:
        handler = attempt.context.handler
        assert handler is not None
        if attempt.timed_out:
            return GivenUp()
        if attempt.soft and handler.soft_time_limit is not None:
            return TimeLimitExceeded(
                f"{handler.name} exceeded its soft time limit of {handler.soft_time_limit:g} s"
            )
        if attempt.context.message.lost:
            return LeaseGone()
        return TimeLimitExceeded(f"{handler.name} was cancelled from inside: {error!r}")

    def _limits(self, attempt: Attempt) -> ExitStack:
        handler = attempt.context.handler
        assert handler is not None
        with self._lock:
            if self._timeouts is None:
                self._timeouts = CallTimeouts(self._clock)
        stack = ExitStack()
        if handler.time_limit is not None:
            within = self._timeouts.within(
                handler.time_limit, _Ignored(), lambda: self._over_hard(attempt)
            )
            stack.enter_context(within)
        if handler.soft_time_limit is not None:
            within = self._timeouts.within(handler.soft_time_limit, _Ignored(), attempt.over_soft)
            stack.enter_context(within)
        return stack

    def _over_hard(self, attempt: Attempt) -> None:
        if attempt.over_hard():
            self._given_up(attempt)

    def _awaited(self, result: Awaitable[Any], attempt: Attempt) -> Any:
        with self._lock:
            if self._loop is None:
                self._loop = EventLoop()
        return self._loop.run(attempt.awaited(result))


_NO_LIMITS: AbstractContextManager[None] = nullcontext()


class _Ignored:
    timed_out = False


class EventLoop:
    """An event loop in a thread of its own, shared by the awaited handlers of one consumer."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="ackflow-worker-loop", daemon=True)
        self._thread.start()

    def run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
