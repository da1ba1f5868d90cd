"""The consume loop: pops messages, calls a handler, and settles messages after a failure.

| acknowledgement | settled by | if the handler raises |
|---|---|---|
| manual (default) | the handler | the loop nacks the unsettled messages with the error text |
| `auto_ack=True` | the delivery itself | the error is logged; the message stays done |
| `auto_ack="handled"` | the loop, in one commit with its next pop | as with manual |
| `on_success`, `on_error` | the callbacks; never the loop | calls `on_error(message, error)` |
"""

import atexit
import inspect
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, Literal, Protocol, Self, TypeVar

from msgspec import Struct, structs

from .. import validate
from ..broker.broker import Verbs
from ..broker.core.handout import Handout
from ..broker.core.settle import extend
from ..broker.requests import PopRequest
from ..errors import (
    PASSING,
    AckflowError,
    AlreadySettled,
    InvalidArgument,
    LeaseLost,
    SessionClosed,
    SessionForked,
    text_of,
)
from ..ids import new_token
from ..model import GroupStats
from ..options import QUEUE_MODE
from ..validate import Duration
from .lease_renewer import CallTimeouts, LeaseRenewer
from .messages import Batch, Delivery, Message, Settled, unsettled

log = logging.getLogger("ackflow")
M = TypeVar("M", bound=Delivery)
AutoAck = bool | Literal["handled"]
PAUSES = (0.1, 0.5, 1.0, 2.0)
LOCAL_WAIT = 0.25  # a local pop is cheap, so short waits let `stop` take effect soon
IDLE_SECONDS = 0.02
MOMENT = 0.001
STOPPING = "the consume loop is stopping: it finishes what is being handled"
OVERDUE = "the handler did not end in time"


class ConsumerCounts(Struct):
    """Counters of a consumer, in messages.

    `unsettled` counts the messages of `succeeded` that were still leased after their handler
    returned. `timed_out` counts the messages whose handler exceeded its timeout. `returned`
    counts the messages that the loop released.
    """

    received: int = 0
    succeeded: int = 0
    failed: int = 0
    lost: int = 0
    returned: int = 0
    unsettled: int = 0
    timed_out: int = 0


class Plan(Struct, Generic[M]):
    """The settings of a consumer: the validated arguments of `consume`."""

    handler: Callable[[Any], Any]
    request: PopRequest
    each: bool = False
    concurrency: int = 1
    on_success: Callable[[Any], Any] | None = None
    on_error: Callable[[Any, Exception], Any] | None = None
    renew: bool | float = True
    wait: float = 1.0
    timeout: float | None = None
    acks: bool = False  # what a handler leaves unsettled, unless it raises

    @classmethod
    def of(
        cls, handler: Any, request: PopRequest, each: bool, concurrency: int, on_success: Any,
        on_error: Any, renew: bool | Duration, wait: Duration, timeout: Duration | None,
        auto_ack: AutoAck,
    ) -> Self:  # fmt: skip
        """Build a plan from the arguments of `consume`; durations become seconds."""
        if not isinstance(auto_ack, bool) and auto_ack != "handled":
            raise InvalidArgument(f"auto_ack must be True, False or 'handled', got {auto_ack!r}")
        every = renew if isinstance(renew, bool) else validate.positive(renew, "renew")
        return cls(
            handler, request, each, concurrency, on_success, on_error, every,
            validate.seconds(wait, "wait"), validate.positive_or_none(timeout, "timeout"),
            auto_ack == "handled",
        )  # fmt: skip

    def check(self) -> Self:
        for what in ("handler", "on_success", "on_error"):
            given = getattr(self, what)
            if not callable(given) and (given is not None or what == "handler"):
                raise InvalidArgument(f"{what} must be a function, got {given!r}")
        validate.integer(self.concurrency, "concurrency", 1, 1_000)
        if self.called_back and (self.request.auto_ack or self.acks):
            raise InvalidArgument("with auto_ack there is nothing left for callbacks to settle")
        return self

    @property
    def called_back(self) -> bool:
        return self.on_success is not None or self.on_error is not None

    def parts(self, batch: Batch[M]) -> list[Sequence[M]]:
        """Split a batch into the units of one handler call: single messages, or the batch."""
        single = self.each or self.request.batch == 1
        return [[message] for message in batch] if single else [list(batch)]

    def argument(self, part: Sequence[M]) -> M | Sequence[M]:
        return part if self.request.batch > 1 and not self.each else part[0]


class HandlerCall(Struct, eq=False):
    """One call of the handler with a part of a batch; `rest` is the part that is not started.

    `timed_out`: the handler exceeded its timeout, and its result is ignored.
    """

    part: Sequence[Any]
    rest: Sequence[Any]
    timed_out: bool = False


class LeaseKeeper:
    """Renews the leases of one consumer and enforces the timeout of its handlers.

    The lease time of the group is queried once.
    """

    def __init__(
        self,
        plan: Plan[Any],
        broker: Callable[[], Verbs],
        stats: Callable[[str, str], GroupStats],
    ) -> None:
        self._plan = plan
        self._broker = broker
        self._stats = stats
        self._every: float | None = None
        self._renewal: LeaseRenewer | None = None
        self._limits: CallTimeouts | None = None
        self._forgot = False
        self._lock = threading.Lock()

    @property
    def ready(self) -> bool:
        """Whether `keep` will not block."""
        return self._plan.renew is False or self._every is not None

    def keep(self, batch: Batch[Any], lost: Callable[[], None]) -> AbstractContextManager[None]:
        """Renew the lease of a batch inside the context. The first call queries the broker."""
        token = batch.origin.token
        if token is None or self._plan.renew is False:
            return nullcontext()

        def report_loss() -> None:
            batch.origin.lost = True
            log.warning("the lease of %s is lost; others may get its messages", list(batch))
            lost()

        with self._lock:
            if self._renewal is None:
                self._renewal = LeaseRenewer(self._extend, self._broker().clock)
        return self._renewal.keep(token, self._interval(), report_loss)

    def limit(
        self, attempt: HandlerCall, over: Callable[[HandlerCall], None]
    ) -> AbstractContextManager[None]:
        """Limit the time of a handler inside the context.

        On timeout the lease is no longer renewed and `over` is called from the timeout thread.
        """
        timeout = self._plan.timeout
        if timeout is None:
            return nullcontext()

        def end() -> None:
            attempt.timed_out = True
            origin = attempt.part[0]._share.origin
            origin.lost = True
            if self._renewal is not None:
                self._renewal.drop(origin.token)
            log.error("the handler did not end within %g s on %s", timeout, list(attempt.part))
            try:
                over(attempt)
            except Exception:
                log.exception(
                    "messages that a handler held too long are delivered again when their lease ends"
                )

        with self._lock:
            if self._limits is None:
                self._limits = CallTimeouts(self._broker().clock)
        return self._limits.within(timeout, attempt, end)

    def holds(self, token: int) -> bool:
        """Ask the broker whether a lease is live and has unsettled messages."""
        try:
            self._broker().do(extend, False, token, MOMENT)  # a lease never becomes shorter
        except AckflowError:
            return False
        return True

    def warn(self, left: Sequence[Any]) -> None:
        """Warn once that a handler returned without settling its messages."""
        if not self._forgot:
            self._forgot = True
            log.warning(
                "the handler returned and did not settle %s: it is delivered again when its lease ends. "
                "Ack, nack or reject every message, or use auto_ack or on_success; from now on "
                "such messages are only counted, as `unsettled`", left[0],
            )  # fmt: skip

    def close(self) -> None:
        for schedule in (self._renewal, self._limits):
            if schedule is not None:
                schedule.close()

    def _extend(self, token: int) -> int:
        return self._broker().do(extend, False, token, self._plan.request.lease_seconds)

    def _interval(self) -> float:
        if self._every is None:
            plan = self._plan
            lease = plan.request.lease_seconds
            if not isinstance(plan.renew, bool):
                self._every = plan.renew
            elif lease is not None:
                self._every = lease / 2
            else:
                # The times of the batch are no basis: the server may have a different clock.
                rules = self._stats(plan.request.queue, plan.request.group).settings
                self._every = rules.lease_seconds / 2
        return self._every


class RepeatablePop:
    """The pop requests of one worker, and what it acks with the next one.

    A pop without an answer is repeated with the same token. The repeat returns the messages that
    the first attempt leased, so they do not wait for the lease to expire. Its acks are repeated too.
    """

    def __init__(self, request: PopRequest) -> None:
        self._request = request
        self._token = new_token()
        self.failed = 0
        self.handled: list[Any] = []

    def request(self) -> PopRequest:
        return self._request.repeatable(self._token)

    def answered(self, batch: Batch[Any]) -> None:
        self.failed = 0
        self.handled = []
        self._token = new_token()

    def pause(self, error: AckflowError) -> float:
        """Return the seconds to wait after a transient error; raise any other error again."""
        if error.code not in PASSING:
            raise error
        if not self.failed:
            log.warning("a pop failed and is tried again: %s", error)
        pause = PAUSES[min(self.failed, len(PAUSES) - 1)]
        self.failed += 1
        return pause


class ConsumerSession(Protocol):
    """The methods of a session that a consumer uses."""

    @property
    def broker(self) -> Verbs: ...
    def take(self, request: PopRequest, wait: float) -> Batch[Message]: ...
    def exchange(
        self, messages: Sequence[Message], request: PopRequest
    ) -> tuple[Settled, Handout]: ...
    def ack(self, messages: Sequence[Message]) -> Settled: ...
    def nack(self, messages: Sequence[Delivery], reason: str | None = None) -> Settled: ...
    def release(self, messages: Sequence[Delivery]) -> Settled: ...
    def group_stats(self, queue: str, group: str) -> GroupStats: ...
    def leave(self, part: Any) -> None: ...


class Consumer:
    """A running consume loop: one or more threads that pop and handle messages.

    `with q.consume(...) as consumer:` stops the loop at the end of the block; `consumer.join()`
    waits until the loop is stopped elsewhere. A stop is graceful: running handlers finish, and
    messages that were not started are released without counting a delivery. When the process
    exits, the loop is stopped in the same way.
    """

    def __init__(
        self, session: ConsumerSession, plan: Plan[Message], stop: threading.Event | None = None
    ) -> None:
        self._session = session
        self._plan = plan.check()
        for what in ("handler", "on_success", "on_error"):
            if inspect.iscoroutinefunction(getattr(plan, what)):
                raise InvalidArgument(f"{what} is asynchronous; use it with ackflow.aio.connect")
        if stop is not None and not isinstance(stop, threading.Event):
            raise InvalidArgument(f"stop must be a threading.Event, got {stop!r}")
        self._stop = threading.Event() if stop is None else stop
        self._wait = min(plan.wait, LOCAL_WAIT) if session.broker.local else plan.wait
        self._lease_keeper = LeaseKeeper(plan, lambda: session.broker, session.group_stats)
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._pid = os.getpid()
        self._alive = plan.concurrency
        self._stuck = 0  # threads whose handler timed out; `join` does not wait for them
        self._abandoned = False
        self.counts = ConsumerCounts()
        self._threads = [
            threading.Thread(target=self._work, name=f"ackflow-consume-{n}", daemon=True)
            for n in range(plan.concurrency)
        ]
        for thread in self._threads:
            thread.start()
        atexit.register(self._end)  # let running handlers finish before the process exits

    @property
    def running(self) -> bool:
        """Whether the loop is running. It ends by `stop` or by an error, which `join` raises."""
        if os.getpid() != self._pid:
            return False  # a forked child does not have the threads
        return self._alive > self._stuck or not self._stop.is_set()

    def stop(self) -> None:
        """Stop popping. Returns immediately; `join` waits for the running handlers."""
        self._stop.set()

    def join(self, timeout: float | None = None) -> ConsumerCounts:
        """Wait until the loop has ended; if an error ended it, raise that error.

        A KeyboardInterrupt stops the loop gracefully and is then raised again. A second one during
        the stop ends the wait immediately; messages that are being handled stay leased until the
        lease expires.
        """
        try:
            self._wait_for_end(timeout)
        except KeyboardInterrupt:
            try:
                self._abandoned = self._stop.is_set()
                if not self._abandoned:
                    self.stop()
                    log.info(STOPPING)
                    self.join(timeout)
            except KeyboardInterrupt:
                self._abandoned = True  # it may also arrive while the line above is logged
                raise
            raise
        if not self.running:
            atexit.unregister(self._end)
            self._lease_keeper.close()
            self._session.leave(self)
            if self._error is not None:
                raise self._error
        return self.counts

    def close(self) -> None:
        """Stop the loop and wait for it to end; a handler may close its own consumer."""
        self.stop()
        if threading.current_thread() not in self._threads:
            self.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return described(self._plan, self.running, self.counts)

    def _wait_for_end(self, timeout: float | None) -> None:
        # Not Thread.join: on Python 3.11 and 3.12 an interrupted join marks a live thread as ended.
        until = None if timeout is None else time.monotonic() + timeout
        if self._abandoned or os.getpid() != self._pid:
            return
        if self._stop.wait(timeout):
            left = None if until is None else max(0.0, until - time.monotonic())
            with self._changed:
                self._changed.wait_for(lambda: not self.running, left)

    def _end(self) -> None:
        """Close at exit of the process; a forked child has no handlers to wait for."""
        if os.getpid() == self._pid:
            self.close()

    def _count(self, **more: int) -> None:
        with self._changed:
            for name, n in more.items():
                setattr(self.counts, name, getattr(self.counts, name) + n)

    def _move(self, *, alive: int = 0, stuck: int = 0) -> None:
        with self._changed:
            self._alive += alive
            self._stuck += stuck
            self._changed.notify_all()

    # The methods below run in the consumer's threads.

    def _work(self) -> None:
        repeatable = RepeatablePop(self._plan.request)
        try:
            while not self._stop.is_set():
                batch = self._pop(repeatable)
                if batch:
                    self._handle(batch, repeatable)
                elif self._wait <= 0:
                    self._stop.wait(IDLE_SECONDS)
        except SessionClosed:
            pass
        except BaseException as error:
            self._error = error
            log_end(self._plan, error)
        finally:
            self._stop.set()
            self._ack_last(repeatable.handled)
            self._move(alive=-1)

    def _ack_last(self, handled: list[Message]) -> None:
        """Ack the messages that were handled before the loop ended, as there is no next pop."""
        try:
            if handled:
                self._settle(lambda: self._session.ack(handled))
        except AckflowError as error:
            log.warning(
                "%s; the messages handled last are delivered again when their lease ends", error
            )

    def _take(self, repeatable: RepeatablePop) -> Batch[Message]:
        if not repeatable.handled:
            return self._session.take(repeatable.request(), self._wait)
        if repeatable.failed:  # pops may be refused for longer than the leases last
            self._count(lost=len(self._session.ack(repeatable.handled).refused))
            repeatable.handled = []
            return self._session.take(repeatable.request(), self._wait)
        settled, handout = self._session.exchange(repeatable.handled, repeatable.request())
        self._count(lost=len(settled.refused))
        return Batch.of(self._session, handout, Message)

    def _pop(self, repeatable: RepeatablePop) -> Batch[Message] | None:
        try:
            batch = self._take(repeatable)
        except AckflowError as error:
            self._stop.wait(repeatable.pause(error))
            return None
        repeatable.answered(batch)
        batch.origin.pause = self._stop.wait
        batch.origin.settled = set()
        self._count(received=len(batch))
        return batch

    def _handle(self, batch: Batch[Message], repeatable: RepeatablePop) -> None:
        parts = self._plan.parts(batch)
        with self._keep(batch):
            for number, part in enumerate(parts):
                rest = [message for part in parts[number + 1 :] for message in part]
                if batch.origin.lost:
                    return self._count(lost=len(part) + len(rest))
                if self._stop.is_set() and batch.origin.token is not None:
                    return self._give_back([*part, *rest])
                attempt = HandlerCall(part, rest)
                try:
                    self._handle_part(attempt, repeatable)
                finally:
                    if attempt.timed_out:
                        self._move(stuck=-1)
                if attempt.timed_out:
                    return None

    def _keep(self, batch: Batch[Message]) -> AbstractContextManager[None]:
        while True:
            try:
                return self._lease_keeper.keep(batch, lambda: None)
            except AckflowError as error:
                if error.code not in PASSING:
                    raise
                self._stop.wait(PAUSES[-1])
                if self._stop.is_set():
                    return nullcontext()

    def _handle_part(self, attempt: HandlerCall, repeatable: RepeatablePop) -> None:
        plan, part = self._plan, attempt.part
        given = plan.argument(part)
        try:
            with self._lease_keeper.limit(attempt, self._time_out):
                _ended(plan.handler(given))
        except BaseException as error:
            if not attempt.timed_out:
                self._failed(part, given, error)
            if not isinstance(error, Exception):
                raise
            return
        if attempt.timed_out:
            return
        self._count(succeeded=len(part))
        if plan.on_success is not None:
            self._call_back(plan.on_success, given)
        left = unsettled(part)
        if plan.acks:
            repeatable.handled += left
            return
        token = part[0]._share.origin.token
        if left and token is not None and self._lease_keeper.holds(token):
            self._count(unsettled=len(left))
            self._lease_keeper.warn(left)

    def _time_out(self, attempt: HandlerCall) -> None:
        """Nack the messages of a handler that timed out; its thread cannot be killed."""
        part = attempt.part
        self._count(timed_out=len(part))
        self._move(stuck=1)
        self._settle_failed(part, self._plan.argument(part), TimeoutError(OVERDUE))
        if attempt.rest and part[0].token is not None:
            self._give_back(attempt.rest)

    def _failed(self, part: Sequence[Message], given: Any, error: BaseException) -> None:
        if isinstance(error, LeaseLost) and not isinstance(error, AlreadySettled):
            self._count(lost=len(part))
        else:
            self._count(failed=len(part))
        self._settle_failed(part, given, error)

    def _settle_failed(self, part: Sequence[Message], given: Any, error: BaseException) -> None:
        plan = self._plan
        if plan.on_error is not None:
            self._call_back(plan.on_error, given, error)
        elif plan.called_back or part[0].token is None:
            log.error("the handler failed on %s", given, exc_info=error)
        else:
            log.info("the handler failed on %s: %s", given, text_of(error))
            self._settle(lambda: self._session.nack(part, text_of(error)))

    def _call_back(self, call: Callable[..., Any], *given: Any) -> None:
        try:
            _ended(call(*given))
        except Exception:
            log.exception("%r failed; the message is delivered again when its lease ends", call)

    def _give_back(self, left: Sequence[Message]) -> None:
        self._settle(lambda: self._session.release(left))
        self._count(returned=len(left))

    def _settle(self, call: Callable[[], Settled]) -> None:
        """Settle, and retry while the server is unreachable; a stop ends the retries."""
        while True:
            try:
                call()
                return
            except LeaseLost:
                return
            except AckflowError as error:
                if error.code not in PASSING:
                    raise
                if self._stop.wait(PAUSES[-1]):
                    log.warning(
                        "%s; held messages are delivered again when their lease ends", error
                    )
                    return


def log_end(plan: Plan[Any], error: BaseException) -> None:
    """Log the error that ended a loop, because `join` may never be called."""
    if not isinstance(error, SessionForked):
        queue = plan.request.queue
        log.error("the consume loop of %s has ended: %s", queue, text_of(error), exc_info=error)


def described(plan: Plan[Any], running: bool, counts: ConsumerCounts) -> str:
    """Describe a consume loop in one line."""
    request = plan.request
    group = "" if request.group == QUEUE_MODE else f" as {request.group}"
    done = {name: n for name, n in structs.asdict(counts).items() if n}
    state = "running" if running else "ended"
    return f"<Consumer of {request.queue}{group}, {state}: {done or 'nothing received'}>"


def _ended(answer: Any) -> None:
    """Reject an awaitable result: it would never be awaited, and the message would be lost."""
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise InvalidArgument("the function is asynchronous; use it with ackflow.aio.connect")
