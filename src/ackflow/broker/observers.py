"""Commit observer: times from delivery to ack, and a log line for every dead letter."""

import contextlib
import logging
from bisect import bisect_left
from collections import deque

from .. import ids, ranges
from ..clock import SECOND
from ..options import QUEUE_MODE
from ..store.counters import Died, Tally

# Seconds from delivery to ack: upper bounds, the last one open.
BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)

_BOUNDS = tuple(int(bound * SECOND) for bound in BOUNDS)
_PLACES = len(BOUNDS) + 1

log = logging.getLogger("ackflow.dead")
# Without logging configuration, an embedded broker must not write to standard error.
log.addHandler(logging.NullHandler())


class DeliveryObserver:
    """Records under the writer lock, logs after it is released.

    A log handler may use the session, so nothing is logged while the lock is held.
    """

    def __init__(self) -> None:
        self._times: dict[int, list[int]] = {}
        self.pending: deque[Died] = deque()

    def record(self, tally: Tally) -> None:
        times = self._times
        for group_id, micros, n in tally.acked:
            counts = times.get(group_id)
            if counts is None:
                counts = times[group_id] = [0] * (_PLACES + 1)
            counts[bisect_left(_BOUNDS, micros)] += n
            counts[_PLACES] += max(0, micros) * n  # negative if the clock was set back
        self.pending += tally.died

    def log_pending(self) -> None:
        """Log the dead letters that were recorded and not logged yet."""
        while self.pending:
            with contextlib.suppress(IndexError):  # another thread has logged it
                log_died(self.pending.popleft())

    def times(self) -> dict[int, list[int]]:
        """Return by group how many messages were acked within each bound, then the sum in µs."""
        return {group_id: list(counts) for group_id, counts in list(self._times.items())}


def log_died(died: Died) -> None:
    """Log one line for each dead letter, with its reason."""
    if not log.isEnabledFor(logging.WARNING):
        return
    reader = "consumers without a group" if died.group == QUEUE_MODE else f"group {died.group}"
    for first, stop in ranges.pairs(died.ranges):
        for sequence in range(first, stop):
            id = ids.message_id(died.store, died.lane, sequence)
            log.warning(
                "%s of queue %s died for %s (%s): %s", id, died.queue, reader,
                died.kind, died.reason or "no reason was given",
                extra={
                    "message_id": id, "queue": died.queue, "group": died.group,
                    "kind": died.kind, "reason": died.reason, "deliveries": died.deliveries,
                    "failures": died.failures, "consumer": died.consumer,
                },
            )  # fmt: skip
