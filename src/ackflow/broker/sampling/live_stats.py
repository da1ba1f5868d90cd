"""Live statistics: the counters of every queue, with rates, shared by all viewers.

A snapshot reads the rows of all lanes and claims, whatever the number of messages. However many
dashboards are open, one is taken at a time, and none before `REST` times the duration of the last
one has passed: on a database of 10,000 queues they would otherwise keep a core busy. Where one takes
long, a thread takes it, and callers get the last one in the meantime, unless that is old.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct, field

from ...clock import SECOND, STEADY
from ...options import QUEUE_MODE
from ..views.metrics import GroupMetrics, MetricsSnapshot

T = TypeVar("T")
LEAST_SECONDS = 1.0  # between snapshots
REST = 30.0
RATE_SECONDS = 10.0  # a rate is an average over about this time
KEPT_SECONDS = 150.0
LONG_SECONDS = 0.1  # a snapshot that takes longer is taken in a thread of its own
MOST_AGE = 20.0  # seconds of a snapshot that is shown while the next one is taken
OLD_SECONDS = 300.0  # a queue whose oldest ready message is older is in trouble
FAILING = 0.1  # so is one with this many nacks for each ack
SEVERITY = {
    "dying": 6, "failing": 5, "stalled": 4, "paused": 3, "behind": 3, "dead letters": 2,
    "group paused": 2, "no group": 1,
}  # fmt: skip

Counters = tuple[int, int, int, int, int]  # pushed, delivered, acked, failed, died


class Rates(Struct, frozen=True):
    """Messages per second."""

    pushed: float = 0.0
    delivered: float = 0.0
    acked: float = 0.0
    failed: float = 0.0
    dead: float = 0.0


NO_RATES = Rates()


class QueueLine(Struct):
    """One queue with all its groups added up.

    `ready` of a queue that no group reads are all messages it stores. `oldest_seconds` is the age of
    the oldest message that could be delivered. `lag` is that of the group that is furthest behind.
    `trouble`: why the queue needs attention.
    """

    id: int
    name: str
    paused: bool
    pushed: int
    stored: int
    groups: list[GroupMetrics]
    rates: Rates | None = None
    ready: int = 0
    leased: int = 0
    waiting: int = 0
    dead: int = 0
    lag: int = 0
    delivered: int = 0
    acked: int = 0
    failed: int = 0
    died: int = 0
    oldest_seconds: float = 0.0
    trouble: list[str] = []

    def add_up(self) -> None:
        """Add up the groups; of a queue with many, this is done once for all who look."""
        for group in self.groups:
            self.ready += group.ready
            self.leased += group.leased
            self.waiting += group.waiting
            self.dead += group.dead
            self.lag = max(self.lag, group.lag)
            self.delivered += group.delivered
            self.acked += group.acked
            self.failed += group.failed
            self.died += sum(group.dead_by_kind.values())
            self.oldest_seconds = max(self.oldest_seconds, group.oldest_ready_seconds)
        if not self.groups:
            self.ready = self.stored

    def judge(self) -> None:
        """Find out whether the queue needs attention."""
        found = []
        rates = self.rates or NO_RATES
        if self.paused:
            found.append("paused")
        elif any(group.paused for group in self.groups):
            found.append("group paused")
        if rates.dead:
            found.append("dying")
        elif self.dead:
            found.append("dead letters")
        if rates.failed and rates.failed >= FAILING * rates.acked:
            found.append("failing")
        if self.ready and self.oldest_seconds >= OLD_SECONDS:
            found.append("behind" if rates.acked else "stalled")
        if self.ready and not self.groups:
            found.append("no group")
        self.trouble = found

    @property
    def severity(self) -> tuple[int, float]:
        """A sort key: the queues that need attention most have the highest."""
        return sum(SEVERITY[one] for one in self.trouble), self.oldest_seconds + self.dead

    @property
    def counters(self) -> Counters:
        return self.pushed, self.delivered, self.acked, self.failed, self.died


class LiveStats(Struct):
    """All queues at one moment. `deleted` are the counters of queues that no longer exist."""

    at: int  # microseconds since 1970
    seconds: float  # the time it took to read
    queues: dict[str, QueueLine]
    deleted: Counters = (0, 0, 0, 0, 0)
    counters: dict[int, Counters] = field(default_factory=dict)
    steady: int = 0  # monotonic microseconds, for rates: the wall clock may be set

    @property
    def dead(self) -> int:
        return sum(line.dead for line in self.queues.values())

    @property
    def total(self) -> Counters:
        columns = zip(self.deleted, *self.counters.values(), strict=True)
        return tuple(map(sum, columns))  # type: ignore[return-value]


def _steady() -> int:
    return STEADY() // 1000


class StatsBoard:
    """Keeps the last snapshots of a broker; used from any thread."""

    def __init__(
        self, read: Callable[[], MetricsSnapshot], steady: Callable[[], int] = _steady
    ) -> None:
        self._read = read
        self._steady = steady
        self._lock = threading.Lock()
        self._taken_at = 0.0
        self._kept: deque[LiveStats] = deque()
        self._last: LiveStats | None = None
        self._taking = threading.Lock()  # held by the thread that takes a snapshot

    def get(self) -> LiveStats:
        """Return a snapshot that is as new as reading one allows."""
        last, age = self._last, time.monotonic() - self._taken_at
        if last is not None:
            rest = max(LEAST_SECONDS, REST * last.seconds)
            if age < rest:
                return last
            if last.seconds > LONG_SECONDS and age < rest + MOST_AGE:
                if self._taking.acquire(blocking=False):
                    threading.Thread(
                        target=self._take_beside, name="ackflow-stats", daemon=True
                    ).start()
                return last
        with self._lock:
            if self._last is not None and self._last is not last:
                return self._last  # another thread took it meanwhile
            return self._take()

    def _take_beside(self) -> None:
        try:
            # The database may be closed or away; the next caller gets the error.
            with contextlib.suppress(Exception):
                self.take()
        finally:
            self._taking.release()

    def take(self) -> LiveStats:
        """Return a new snapshot, whatever it costs."""
        with self._lock:
            return self._take()

    def _take(self) -> LiveStats:
        started, steady = time.monotonic(), self._steady()
        found = _live_stats(self._read())
        found.steady = steady
        self._taken_at = time.monotonic()
        found.seconds = self._taken_at - started
        found.counters = {line.id: line.counters for line in found.queues.values()}
        self._rate(found)
        for line in found.queues.values():
            line.judge()
        found.seconds = time.monotonic() - started
        self._kept.append(found)
        self._last = found
        while len(self._kept) > 2 and found.steady - self._kept[0].steady > KEPT_SECONDS * SECOND:
            self._kept.popleft()
        return found

    def _rate(self, found: LiveStats) -> None:
        """Set the rates since a snapshot about `RATE_SECONDS` ago."""
        before = None
        for one in self._kept:
            if before is None or found.steady - one.steady >= RATE_SECONDS * SECOND:
                before = one
        if before is None or found.steady <= before.steady:
            return
        seconds = (found.steady - before.steady) / SECOND
        for line in found.queues.values():
            earlier = before.counters.get(line.id)
            if earlier is not None:
                line.rates = rates(earlier, line.counters, seconds)


def rates(before: Counters, after: Counters, seconds: float) -> Rates:
    return Rates(*(round(max(0, b - a) / seconds, 3) for a, b in zip(before, after, strict=True)))


def _live_stats(taken: MetricsSnapshot) -> LiveStats:
    lines = {
        name: QueueLine(id, name, paused, taken.pushed[name], stored, [])
        for name, (id, stored, paused) in taken.queues.items()
    }
    deleted = [taken.pushed.get("", 0), 0, 0, 0, 0]
    for group in taken.groups:
        if group.queue in lines:
            lines[group.queue].groups.append(group)
        else:
            died = sum(group.dead_by_kind.values())
            for at, n in enumerate((group.delivered, group.acked, group.failed, died), 1):
                deleted[at] += n
    for line in lines.values():
        if len(line.groups) > 1:
            line.groups.sort(key=lambda group: (group.name != QUEUE_MODE, group.name))
        line.add_up()
    return LiveStats(taken.at, 0.0, lines, tuple(deleted))  # type: ignore[arg-type]
