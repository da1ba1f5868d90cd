"""Settlement statistics of a session: totals, failures and latencies."""

import threading
import time
from collections import deque
from types import TracebackType

from msgspec import Struct

LAST = 1000


class AckStats(Struct, frozen=True):
    """Settlements of a session so far, in messages; latencies are in seconds per call.

    The success rate is None before the first settlement. Latencies are None before the first
    successful one. The 99th percentile covers the last thousand calls.
    """

    total: int
    successful: int
    failed: int
    success_rate: float | None
    average_latency: float | None
    p99_latency: float | None

    def __str__(self) -> str:
        rate = "-" if self.success_rate is None else f"{self.success_rate * 100:.2f}%"
        took = "-" if self.average_latency is None else f"{self.average_latency * 1000:.2f}ms"
        return (
            f"total {self.total}, successful {self.successful}, failed {self.failed}, "
            f"success rate {rate}, average latency {took}"
        )


class AckMeter:
    """Counts every settlement of a session, for all verbs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._successful = self._failed = self._calls = 0
        self._seconds = 0.0
        self._last: deque[float] = deque(maxlen=LAST)

    def measure(self, messages: int) -> "MeasuredCall":
        """Measure one call as a context manager; a call that raises settled no message."""
        return MeasuredCall(self, messages, messages, 0, time.perf_counter())

    def count(self, successful: int, failed: int, took: float) -> None:
        with self._lock:
            self._failed += failed
            self._successful += successful
            if successful:
                self._calls += 1
                self._seconds += took
                self._last.append(took)

    def stats(self) -> AckStats:
        with self._lock:
            total = self._successful + self._failed
            last = sorted(self._last)
            return AckStats(
                total,
                self._successful,
                self._failed,
                self._successful / total if total else None,
                self._seconds / self._calls if self._calls else None,
                last[len(last) * 99 // 100] if last else None,
            )


class MeasuredCall(Struct):
    """A call that is being measured, and the outcome of its messages."""

    _meter: AckMeter
    _messages: int
    successful: int
    refused: int
    _started: float

    def __enter__(self) -> "MeasuredCall":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        if kind is not None:
            self.successful, self.refused = 0, self._messages
        self._meter.count(self.successful, self.refused, time.perf_counter() - self._started)
