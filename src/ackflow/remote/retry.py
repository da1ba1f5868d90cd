"""Retries and the circuit breaker of the HTTP client."""

import threading
import time

from msgspec import Struct

from ..errors import CircuitOpen
from .protocol import Request


class RetryPolicy(Struct, frozen=True):
    """How a client behaves when the server does not answer.

    `pauses` are the seconds before each retry. The circuit breaker opens for `open_seconds` after
    `failures` consecutive calls that failed including their retries.
    """

    pauses: tuple[float, ...] = (1.0, 2.0, 4.0)
    connect_seconds: float = 5.0
    read_seconds: float = 30.0
    failures: int = 5
    open_seconds: float = 60.0

    def pause(self, request: Request, attempt: int, sent: bool) -> float | None:
        """Seconds to wait before the next retry; None: do not retry.

        A request that is not safe is retried only if it was certainly not `sent`.
        """
        if attempt >= len(self.pauses) or (sent and not request.safe):
            return None
        return self.pauses[attempt]


class Breaker:
    """A circuit breaker.

        closed ── `failures` failed calls in a row ──► open ── `open_seconds` ──► one call tries
           ▲                                                                          │
           └────────────────────────────── it succeeds ◄──────────────────────────────┘

    It counts calls, not their attempts, so that a server that restarts while many threads use it is
    not cut off.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._lock = threading.Lock()
        self._failures = 0
        self._until = 0.0

    def check(self) -> None:
        with self._lock:
            if self._failures < self._policy.failures:
                return
            now = time.monotonic()
            if now < self._until:
                raise CircuitOpen()
            self._until = now + self._policy.open_seconds

    def failed(self) -> None:
        with self._lock:
            self._failures += 1
            if self._failures == self._policy.failures:
                self._until = time.monotonic() + self._policy.open_seconds

    def worked(self) -> None:
        with self._lock:
            self._failures = 0
