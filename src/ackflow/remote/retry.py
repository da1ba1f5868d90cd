"""When to try again, how long to wait before, and when to stop asking."""

import threading
import time

from msgspec import Struct

from ..errors import CircuitOpen
from .protocol import Request


class RetryPolicy(Struct, frozen=True):
    """How a client behaves when the server does not answer.

    `pauses` are the seconds before each repeat. The breaker opens after `failures` calls in a row
    that failed with all their repeats, for `open_seconds`.
    """

    pauses: tuple[float, ...] = (1.0, 2.0, 4.0)
    connect_seconds: float = 5.0
    read_seconds: float = 30.0
    failures: int = 5
    open_seconds: float = 60.0

    def pause(self, request: Request, attempt: int, sent: bool) -> float | None:
        """Seconds to wait before a repeat, None when there is to be none.

        What is not safe is repeated only when it surely was not `sent`.
        """
        if attempt >= len(self.pauses) or (sent and not request.safe):
            return None
        return self.pauses[attempt]


class Breaker:
    """Lets nothing through for a while after too many failures in a row; then one call tries.

    What fails is a call, not each of its attempts: a server that restarts while many threads use it
    is not shut out.
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
