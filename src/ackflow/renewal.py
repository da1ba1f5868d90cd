"""Leases are kept alive here while their messages are worked on.

The work may block its thread or its event loop for as long as it likes: the renewals come from a
thread of their own.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

from msgspec import Struct

from .clock import Clock, Signal, micros
from .errors import AckflowError, AlreadySettled, LeaseLost, SessionClosed

log = logging.getLogger("ackflow")
AGAIN_SECONDS = 1.0
IDLE_SECONDS = 3600.0


class Kept(Struct):
    """A lease in use: when it is renewed next, and what to call when it is found lost."""

    token: int
    every: int
    due: int
    lost: Callable[[], None]


class Renewal:
    """Renews the leases in use with `extend`, each in its own interval."""

    def __init__(self, extend: Callable[[int], object], clock: Clock) -> None:
        self._extend = extend
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[int, Kept] = {}
        self._signal = Signal()
        self._closed = False
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def keep(self, token: int, every: float, lost: Callable[[], None]) -> Iterator[None]:
        """Within this a lease is renewed every so many seconds. `lost` is called, in the thread of
        the renewals, when it turns out that somebody else may have its messages."""
        step = micros(every)
        self._begin(Kept(token, step, self._clock.steady() + step, lost))
        try:
            yield
        finally:
            with self._lock:
                self._kept.pop(token, None)

    def close(self) -> None:
        self._closed = True
        self._signal.ring()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _begin(self, kept: Kept) -> None:
        with self._lock:
            first = min((other.due for other in self._kept.values()), default=None)
            self._kept[kept.token] = kept
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ackflow-renew", daemon=True)
                self._thread.start()
        if first is None or kept.due < first:
            self._signal.ring()

    def _run(self) -> None:
        self._clock.watch(self._signal)
        try:
            while not self._closed:
                self._signal.clear()
                for kept in self._due():
                    self._renew(kept)
                self._signal.wait(self._seconds())
        finally:
            self._clock.unwatch(self._signal)

    def _due(self) -> list[Kept]:
        now = self._clock.steady()
        with self._lock:
            return [kept for kept in self._kept.values() if kept.due <= now]

    def _seconds(self) -> float:
        with self._lock:
            due = min((kept.due for kept in self._kept.values()), default=None)
        return IDLE_SECONDS if due is None else self._clock.seconds_left(due)

    def _renew(self, kept: Kept) -> None:
        asked = self._clock.steady()  # the lease begins anew at some time after this
        try:
            self._extend(kept.token)
            kept.due = asked + kept.every
        except (AlreadySettled, SessionClosed):
            self._drop(kept)  # nothing is left to be kept
        except LeaseLost:
            if self._drop(kept):
                kept.lost()
        except AckflowError as error:
            # The lease may still be alive when the server is back.
            log.warning("a lease could not be renewed and is tried again: %s", error)
            kept.due = self._clock.steady() + min(kept.every, micros(AGAIN_SECONDS))

    def _drop(self, kept: Kept) -> bool:
        """Forget a lease; whether it was still in use."""
        with self._lock:
            return self._kept.pop(kept.token, None) is not None
