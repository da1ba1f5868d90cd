"""The consume loop: pop, call a handler, and see to what the handler leaves open.

| acknowledgement | who settles | the handler raised |
|---|---|---|
| manual (default) | the handler | the loop nacks with the error's text what it left unsettled |
| `auto_ack=True` | the hand-out itself | logged; the message is done all the same |
| `on_success`, `on_error` | the callbacks; the loop settles nothing | `on_error(message, error)` |
"""

import inspect
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, Protocol, Self, TypeVar

from msgspec import Struct

from . import checks
from .broker.broker import Broker, Verbs
from .broker.pop import PopRequest
from .broker.settle import extend
from .delivery import Batch, Delivery, Message, Settled
from .errors import (
    PASSING,
    AckflowError,
    AlreadySettled,
    InvalidArgument,
    LeaseLost,
    SessionClosed,
)
from .ids import new_token
from .model import GroupStats
from .renewal import Renewal

log = logging.getLogger("ackflow")
M = TypeVar("M", bound=Delivery)
PAUSES = (0.1, 0.5, 1.0, 2.0)
LOCAL_WAIT = 0.25  # a pop of a file is cheap, and a stop need not wait long for it
IDLE_SECONDS = 0.02


class Counted(Struct):
    """What a consumer did so far, in messages."""

    received: int = 0
    succeeded: int = 0
    failed: int = 0
    lost: int = 0
    returned: int = 0


class Plan(Struct, Generic[M]):
    """How a consumer works; the arguments of `consume`, checked."""

    handler: Callable[[Any], Any]
    request: PopRequest
    each: bool = False
    concurrency: int = 1
    on_success: Callable[[Any], Any] | None = None
    on_error: Callable[[Any, Exception], Any] | None = None
    renew: bool | float = True
    wait: float = 1.0

    def check(self) -> Self:
        for what in ("handler", "on_success", "on_error"):
            given = getattr(self, what)
            if not callable(given) and (given is not None or what == "handler"):
                raise InvalidArgument(f"{what} is a function, not {given!r}")
        checks.whole(self.concurrency, "concurrency", 1, 1_000)
        checks.seconds(self.wait, "wait")
        if not isinstance(self.renew, bool):
            checks.positive(self.renew, "renew")
        if self.called_back and self.request.auto_ack:
            raise InvalidArgument("with auto_ack there is nothing left for callbacks to settle")
        return self

    @property
    def called_back(self) -> bool:
        return self.on_success is not None or self.on_error is not None

    def parts(self, batch: Batch[M]) -> list[Sequence[M]]:
        """What is handled at once: single messages, or the batch."""
        single = self.each or self.request.batch == 1
        return [[message] for message in batch] if single else [list(batch)]

    def argument(self, part: Sequence[M]) -> M | Sequence[M]:
        return part if self.request.batch > 1 and not self.each else part[0]


class Lifeline:
    """Keeps the leases of one consumer alive. How long a lease is, is asked once."""

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
        self._renewal: Renewal | None = None
        self._lock = threading.Lock()

    @property
    def ready(self) -> bool:
        """Whether `keep` will not block."""
        return self._plan.renew is False or self._every is not None

    def keep(self, batch: Batch[Any], lost: Callable[[], None]) -> AbstractContextManager[None]:
        """Within this the lease of a batch is renewed. The first time it asks the broker."""
        token = batch.origin.token
        if token is None or self._plan.renew is False:
            return nullcontext()

        def tell() -> None:
            batch.origin.lost = True
            log.warning("the lease of %s is lost; others may get its messages", list(batch))
            lost()

        with self._lock:
            if self._renewal is None:
                self._renewal = Renewal(self._extend, self._broker().clock)
        return self._renewal.keep(token, self._interval(), tell)

    def close(self) -> None:
        if self._renewal is not None:
            self._renewal.close()

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
                # Not from the times of the batch: the clock of the server may be another.
                rules = self._stats(plan.request.queue, plan.request.group).settings
                self._every = rules.lease_seconds / 2
        return self._every


class Asking:
    """The requests of one worker. A pop that was not answered is repeated with its token, so that
    what it leased is not left lying until the lease ends."""

    def __init__(self, request: PopRequest) -> None:
        self._request = request
        self._token = new_token()
        self._failed = 0

    def request(self) -> PopRequest:
        return self._request.repeatable(self._token)

    def answered(self, batch: Batch[Any]) -> None:
        self._failed = 0
        self._token = new_token()

    def pause(self, error: AckflowError) -> float:
        """Seconds to wait after an error that passes; any other is raised again."""
        if error.code not in PASSING:
            raise error
        if not self._failed:
            log.warning("nothing can be popped now, and is tried again: %s", error)
        pause = PAUSES[min(self._failed, len(PAUSES) - 1)]
        self._failed += 1
        return pause


def text_of(error: BaseException) -> str:
    """What is kept of an error: its kind, then what it says."""
    said = str(error)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


class Consumes(Protocol):
    """What a consumer needs of its session."""

    @property
    def broker(self) -> Verbs: ...
    def take(self, request: PopRequest, wait: float) -> Batch[Message]: ...
    def nack(self, messages: Sequence[Delivery], reason: str | None = None) -> Settled: ...
    def release(self, messages: Sequence[Delivery]) -> Settled: ...
    def group_stats(self, queue: str, group: str) -> GroupStats: ...
    def leave(self, part: Any) -> None: ...


class Consumer:
    """A running consume loop: some threads that pop and handle.

    `with q.consume(...) as consumer:` stops it at the end of the block; `consumer.join()` waits
    until somebody else does. A stop is graceful: what is being handled is finished, what was not
    started goes back uncounted.
    """

    def __init__(
        self, session: Consumes, plan: Plan[Message], stop: threading.Event | None = None
    ) -> None:
        self._session = session
        self._plan = plan.check()
        for what in ("handler", "on_success", "on_error"):
            if inspect.iscoroutinefunction(getattr(plan, what)):
                raise InvalidArgument(f"{what} is awaited; use ackflow.aio.connect for that")
        if stop is not None and not isinstance(stop, threading.Event):
            raise InvalidArgument(f"stop is a threading.Event, not {stop!r}")
        self._stop = threading.Event() if stop is None else stop
        self._wait = min(plan.wait, LOCAL_WAIT) if isinstance(session.broker, Broker) else plan.wait
        self._lifeline = Lifeline(plan, lambda: session.broker, session.group_stats)
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self.counts = Counted()
        self._threads = [
            threading.Thread(target=self._work, name=f"ackflow-consume-{n}", daemon=True)
            for n in range(plan.concurrency)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """Take nothing new. Returns at once; `join` waits for what is being handled."""
        self._stop.set()

    def join(self, timeout: float | None = None) -> Counted:
        """Wait until the loop has ended; raises what ended it, if it was an error.

        An interrupt from the keyboard stops it gracefully.
        """
        try:
            self._join(timeout)
        except KeyboardInterrupt:
            self.stop()
            self._join(timeout)
            raise
        if not self.running:
            self._lifeline.close()
            self._session.leave(self)
            if self._error is not None:
                raise self._error
        return self.counts

    def close(self) -> None:
        """Stop and wait; a handler may close its own consumer."""
        self.stop()
        if threading.current_thread() not in self._threads:
            self.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _join(self, timeout: float | None) -> None:
        for thread in self._threads:
            thread.join(timeout)

    def _count(self, **more: int) -> None:
        with self._lock:
            for name, n in more.items():
                setattr(self.counts, name, getattr(self.counts, name) + n)

    # in the threads

    def _work(self) -> None:
        asking = Asking(self._plan.request)
        try:
            while not self._stop.is_set():
                batch = self._pop(asking)
                if batch:
                    self._handle(batch)
                elif self._wait <= 0:
                    self._stop.wait(IDLE_SECONDS)
        except SessionClosed:
            self._stop.set()
        except BaseException as error:
            self._error = error
            self._stop.set()

    def _pop(self, asking: Asking) -> Batch[Message] | None:
        try:
            batch = self._session.take(asking.request(), self._wait)
        except AckflowError as error:
            self._stop.wait(asking.pause(error))
            return None
        asking.answered(batch)
        batch.origin.pause = self._stop.wait
        self._count(received=len(batch))
        return batch

    def _handle(self, batch: Batch[Message]) -> None:
        parts = self._plan.parts(batch)
        with self._keep(batch):
            for number, part in enumerate(parts):
                left = [message for part in parts[number:] for message in part]
                if batch.origin.lost:
                    return self._count(lost=len(left))
                if self._stop.is_set() and batch.origin.token is not None:
                    return self._give_back(left)
                self._handle_part(part)

    def _keep(self, batch: Batch[Message]) -> AbstractContextManager[None]:
        while True:
            try:
                return self._lifeline.keep(batch, lambda: None)
            except AckflowError as error:
                if error.code not in PASSING:
                    raise
                self._stop.wait(PAUSES[-1])
                if self._stop.is_set():
                    return nullcontext()

    def _handle_part(self, part: Sequence[Message]) -> None:
        plan, given = self._plan, self._plan.argument(part)
        try:
            _ended(plan.handler(given))
        except Exception as error:
            self._failed(part, given, error)
            return
        self._count(succeeded=len(part))
        if plan.on_success is not None:
            self._call_back(plan.on_success, given)

    def _failed(self, part: Sequence[Message], given: Any, error: Exception) -> None:
        plan = self._plan
        if isinstance(error, LeaseLost) and not isinstance(error, AlreadySettled):
            self._count(lost=len(part))
        else:
            self._count(failed=len(part))
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
            log.exception("%r failed; the message comes again when its lease ends", call)

    def _give_back(self, left: Sequence[Message]) -> None:
        self._settle(lambda: self._session.release(left))
        self._count(returned=len(left))

    def _settle(self, call: Callable[[], Settled]) -> None:
        """Settle as soon as the server can be reached; once stopped it is tried no more."""
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
                    log.warning("%s; what is held comes again when its lease ends", error)
                    return


def _ended(answer: Any) -> None:
    """Refuse what is still to be awaited: nobody here would do it, and the message would be lost."""
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise InvalidArgument("the function is awaited; use ackflow.aio.connect for that")
