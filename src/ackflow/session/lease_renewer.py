"""Background threads that renew leases and detect handlers that exceed their timeout.

A handler may block its thread or its event loop for any time, so both run in separate threads.
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
    """A lease in use: the time of its next renewal, and a callback for the loss of the lease."""

    due: int
    token: int
    every: int
    lost: Callable[[], None]


class TimedCall(Struct):
    """A call that must end by `due`, and a callback for when it does not."""

    due: int
    over: Callable[[], None]


class Timeable(Protocol):
    """A call that records whether it timed out."""

    timed_out: bool


E = TypeVar("E", RenewedLease, TimedCall)


class Schedule(Generic[E]):
    """Entries by key; a background thread processes each entry when it is due."""

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
        """Remove an entry; return whether it was present."""
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
        """Process a due entry. Drop or postpone it, otherwise it is due again immediately."""
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
    """Renews leases with `extend`, each at its own interval."""

    def __init__(self, extend: Callable[[int], object], clock: Clock) -> None:
        super().__init__("ackflow-renew", clock)
        self._extend = extend

    @contextlib.contextmanager
    def keep(self, token: int, every: float, lost: Callable[[], None]) -> Iterator[None]:
        """Renew a lease every `every` seconds inside the context.

        If the lease is lost, so that another consumer may hold its messages, `lost` is called from
        the renewer thread.
        """
        step = micros(every)
        self._begin(token, RenewedLease(self._clock.steady() + step, token, step, lost))
        try:
            yield
        finally:
            self.drop(token)

    def _act(self, key: Hashable, entry: RenewedLease) -> None:
        asked = self._clock.steady()  # the renewed lease starts no earlier than this
        try:
            self._extend(entry.token)
            entry.due = asked + entry.every
        except (AlreadySettled, SessionClosed):
            self.drop(key)  # nothing is left to renew
        except LeaseLost:
            if self.drop(key):
                entry.lost()
        except AckflowError as error:
            # The lease may still be live when the server is reachable again.
            log.warning("a lease could not be renewed and is tried again: %s", error)
            entry.due = self._clock.steady() + min(entry.every, micros(AGAIN_SECONDS))


class CallTimeouts(Schedule[TimedCall]):
    """Detects calls that exceed their timeout."""

    def __init__(self, clock: Clock) -> None:
        super().__init__("ackflow-timeout", clock)

    @contextlib.contextmanager
    def within(self, seconds: float, call: Timeable, over: Callable[[], None]) -> Iterator[None]:
        """Limit the duration of the context to `seconds`.

        On timeout `call.timed_out` is set and `over` is called once, from the timeout thread. If
        the context ends in time, `over` is never called.
        """
        key = object()
        self._begin(key, TimedCall(self._clock.steady() + micros(seconds), over))
        try:
            yield
        finally:
            if not self.drop(key):
                call.timed_out = True  # `over` may not have set it yet

    def _act(self, key: Hashable, entry: TimedCall) -> None:
        if self.drop(key):
            entry.over()
