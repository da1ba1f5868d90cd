"""What is to be done at its time while messages are worked on: leases are renewed, and handlers that
do not end are found.

The work may block its thread or its event loop for as long as it likes: this comes from threads of
their own.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from ..clock import Clock, Signal, micros
from ..errors import AckflowError, AlreadySettled, LeaseLost, SessionClosed

log = logging.getLogger("ackflow")
AGAIN_SECONDS = 1.0
IDLE_SECONDS = 3600.0


class RenewedLease(Struct):
    """A lease in use: when it is renewed next, and what to call when it is found lost."""

    due: int
    token: int
    every: int
    lost: Callable[[], None]


class TimedCall(Struct):
    """A call that may take until `due`, and what to call when it takes longer."""

    due: int
    over: Callable[[], None]


class Timeable(Protocol):
    """A call that may take too long."""

    timed_out: bool


E = TypeVar("E", RenewedLease, TimedCall)


class Schedule(Generic[E]):
    """Entries by key, each acted on when it is due, in a thread of its own."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[Hashable, E] = {}
        self._signal = Signal()
        self._closed = False
        self._thread: threading.Thread | None = None

    def close(self) -> None:
        self._closed = True
        self._signal.ring()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def drop(self, key: Hashable) -> bool:
        """Forget an entry; whether it was still there."""
        with self._lock:
            return self._kept.pop(key, None) is not None

    def _begin(self, key: Hashable, entry: E) -> None:
        with self._lock:
            first = min((other.due for other in self._kept.values()), default=None)
            self._kept[key] = entry
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        if first is None or entry.due < first:
            self._signal.ring()

    def _act(self, key: Hashable, entry: E) -> None:
        """Do what is due; an entry that is neither dropped nor put off is due again at once."""
        raise NotImplementedError

    def _run(self) -> None:
        self._clock.watch(self._signal)
        try:
            while not self._closed:
                self._signal.clear()
                for key, entry in self._due():
                    self._act(key, entry)
                self._signal.wait(self._seconds())
        finally:
            self._clock.unwatch(self._signal)

    def _due(self) -> list[tuple[Hashable, E]]:
        now = self._clock.steady()
        with self._lock:
            return [(key, entry) for key, entry in self._kept.items() if entry.due <= now]

    def _seconds(self) -> float:
        with self._lock:
            due = min((entry.due for entry in self._kept.values()), default=None)
        return IDLE_SECONDS if due is None else self._clock.seconds_left(due)


class LeaseRenewer(Schedule[RenewedLease]):
    """Renews the leases in use with `extend`, each in its own interval."""

    def __init__(self, extend: Callable[[int], object], clock: Clock) -> None:
        super().__init__("ackflow-renew", clock)
        self._extend = extend

    @contextlib.contextmanager
    def keep(self, token: int, every: float, lost: Callable[[], None]) -> Iterator[None]:
        """Within this a lease is renewed every so many seconds. `lost` is called, in the thread of
        the renewals, when it turns out that somebody else may have its messages."""
        step = micros(every)
        self._begin(token, RenewedLease(self._clock.steady() + step, token, step, lost))
        try:
            yield
        finally:
            self.drop(token)

    def _act(self, key: Hashable, entry: RenewedLease) -> None:
        asked = self._clock.steady()  # the lease begins anew at some time after this
        try:
            self._extend(entry.token)
            entry.due = asked + entry.every
        except (AlreadySettled, SessionClosed):
            self.drop(key)  # nothing is left to be kept
        except LeaseLost:
            if self.drop(key):
                entry.lost()
        except AckflowError as error:
            # The lease may still be alive when the server is back.
            log.warning("a lease could not be renewed and is tried again: %s", error)
            entry.due = self._clock.steady() + min(entry.every, micros(AGAIN_SECONDS))


class CallTimeouts(Schedule[TimedCall]):
    """Calls that must end within their time."""

    def __init__(self, clock: Clock) -> None:
        super().__init__("ackflow-timeout", clock)

    @contextlib.contextmanager
    def within(self, seconds: float, call: Timeable, over: Callable[[], None]) -> Iterator[None]:
        """What is done within this must end in time; else `call.timed_out` is set and `over` is
        called, once, in the thread of the limits. After the end it is not called any more."""
        key = object()
        self._begin(key, TimedCall(self._clock.steady() + micros(seconds), over))
        try:
            yield
        finally:
            if not self.drop(key):
                call.timed_out = True  # `over` may be about to say so

    def _act(self, key: Hashable, entry: TimedCall) -> None:
        if self.drop(key):
            entry.over()
