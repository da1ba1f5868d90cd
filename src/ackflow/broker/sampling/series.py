"""Time series: counters of queues by the minute for a day, and by the hour for a month.

Once a minute the upkeep of one process compares the counters of all queues with those of the minute
before. A queue without a change costs nothing. The points of the others are packed into one row for
each queue and block of an hour (of points by the hour: a day).

    counters ── changed? ──► pending points ── all, or a tenth each minute ──► rows

With many busy queues the rows are written in turn, so that 10,000 busy queues cost about 1,000 small
rows a minute; a process that is killed then loses the last minutes of its charts. The number of rows
is limited as well: beyond `MAX_ROWS` the oldest go first.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from msgspec import Struct, msgpack

from ...clock import SECOND
from ...store.tx import Tx
from ..reach.merging import Arguments, Several
from ..verb import verb
from .live_stats import Counters, LiveStats, QueueLine, Rates, StatsBoard, rates

T = TypeVar("T")
Run = Callable[[Callable[[Tx], None]], None]
MINUTE, HOUR, DAY = 60, 3_600, 86_400
BLOCK = {MINUTE: HOUR, HOUR: DAY}  # seconds covered by a row
KEPT = {MINUTE: DAY, HOUR: 31 * DAY}
ALL_QUEUES, UNKNOWN = 0, -1
MAX_ROWS = 100_000
AT_ONCE = 500  # rows that are written without delay
LATEST = 10  # minutes until a point is written
ROWS = 100  # of a transaction
WIDTH = 11  # numbers of a point

_pack, _unpack = msgpack.encode, msgpack.decode
Values = tuple[int, ...]


class Point(Struct, frozen=True, array_like=True):
    """The counters and the state of a queue at one moment."""

    at: int  # seconds since 1970
    counters: Counters
    ready: int
    leased: int
    waiting: int
    dead: int
    oldest: int  # seconds


class Interval(Struct, frozen=True):
    """One step of a chart: the rates during it, and the state at its end."""

    at: int
    rates: Rates
    ready: int
    leased: int
    waiting: int
    dead: int
    oldest_seconds: int


class Sampler:
    """Takes the samples; one in each process, and one of them has the turn."""

    def __init__(
        self, board: StatsBoard, mine: Callable[[], bool], write: Run, now: Callable[[], int]
    ) -> None:
        """`mine`: whether no other process has the turn."""
        self._board, self._mine, self._write, self._now = board, mine, write, now
        self._minute = now() // (MINUTE * SECOND)
        self._last: dict[int, Point] = {}
        self._noted: dict[int, int] = {}  # by queue, the time of its newest point
        self._hourly: dict[int, Point] = {}  # the points of this hour's end, as far as they changed
        self._pending: dict[tuple[int, int], list[Point]] = {}  # by step and queue
        self._cleaned = 0

    def run_once(self) -> None:
        """Take a sample if a minute has begun since the last one."""
        minute = self._now() // (MINUTE * SECOND)
        if minute == self._minute:
            return
        previous, self._minute = self._minute, minute
        if not self._mine():
            self._last.clear()
            self._noted.clear()
            return
        if minute < previous:  # the clock went back, and these points are in the future
            for kept in (self._last, self._noted, self._hourly, self._pending):
                kept.clear()
        self.sample(self._board.take(), previous, minute)

    def sample(self, stats: LiveStats, previous: int, minute: int) -> None:
        """Note what has changed since the sample before, and write what is due."""
        points = {line.id: _point(line, minute * MINUTE) for line in stats.queues.values()}
        points[ALL_QUEUES] = _total(stats, minute * MINUTE)
        new = Point(self._last[ALL_QUEUES].at, (0,) * 5, 0, 0, 0, 0, 0) if self._last else None
        for id, point in points.items():
            last = self._last.get(id, new)  # what a queue has now came since the sample before
            if last is not None and _state(last) != _state(point):
                found = self._pending.setdefault((MINUTE, id), [])
                if self._noted.get(id) != last.at:
                    found.append(last)  # it has not changed until then
                found.append(point)
                self._noted[id] = point.at
                self._hourly[id] = point
        if self._last and minute // 60 != previous // 60:
            for id, point in self._hourly.items():
                at = point.at // HOUR * HOUR
                self._pending.setdefault((HOUR, id), []).append(_moved(point, at))
            self._hourly.clear()
        self._last = points
        self._write_due(minute * MINUTE)
        self._drop_old(minute)

    def flush(self) -> None:
        """Write every point that is pending."""
        self._write_blocks(list(self._pending))

    def _write_due(self, now: int) -> None:
        due = list(self._pending)
        if len(due) > AT_ONCE:
            minutes = min(LATEST, -(-len(due) // AT_ONCE))
            late = now - (minutes - 1) * MINUTE
            due = [key for key in due if key[1] == ALL_QUEUES or self._pending[key][0].at <= late]
        self._write_blocks(due)

    def _write_blocks(self, keys: Sequence[tuple[int, int]]) -> None:
        for at in range(0, len(keys), ROWS):
            some = {key: self._pending[key] for key in keys[at : at + ROWS]}

            def add(tx: Tx, some: dict[tuple[int, int], list[Point]] = some) -> None:
                for (step, queue), points in some.items():
                    append(tx, queue, step, points)

            self._write(add)
            for key in some:
                del self._pending[key]

    def _drop_old(self, minute: int) -> None:
        if minute // 60 == self._cleaned:
            return
        self._cleaned = minute // 60

        def drop(tx: Tx) -> None:
            for step, kept in KEPT.items():
                tx.all("drop_series", step, minute * MINUTE - kept - BLOCK[step], 0, 10 * ROWS)
            excess = int(tx.value("count_series")) - MAX_ROWS
            for step in (MINUTE, HOUR):
                if excess > 0:
                    most = min(excess, 10 * ROWS)
                    excess -= len(tx.all("drop_series", step, minute * MINUTE, 1, most))

        self._write(drop)


def append(tx: Tx, queue: int, step: int, points: Iterable[Point]) -> None:
    """Add points to their blocks; one that is not newer than the last is left out."""
    blocks: dict[int, list[Point]] = {}
    for point in points:
        blocks.setdefault(point.at // BLOCK[step] * BLOCK[step], []).append(point)
    for start, some in blocks.items():
        row = tx.one("series_block", queue, step, start)
        known = list(decode(row[0])) if row else []
        known += [point for point in some if not known or point.at > known[-1].at]
        tx.run("put_series_block", queue, step, start, encode(known))


def encode(points: Iterable[Point]) -> bytes:
    """Pack points as differences from one to the next, which are small numbers."""
    last: Values = (0,) * WIDTH
    rows = []
    for point in points:
        values = _values(point)
        rows.append([b - a for a, b in zip(last, values, strict=True)])
        last = values
    return _pack(rows)


def decode(packed: bytes) -> Iterator[Point]:
    last: list[int] = [0] * WIDTH
    for row in _unpack(bytes(packed)):
        last = [a + b for a, b in zip(last, row, strict=True)]
        at, pushed, delivered, acked, failed, died, *state = last
        yield Point(at, (pushed, delivered, acked, failed, died), *state)


def intervals(tx: Tx, queue: int, step: int, count: int, now: int) -> list[Interval]:
    """Return the last `count` steps of a queue; a step without a point had no change."""
    end = now // SECOND // step * step
    first = end - (count - 1) * step
    block = BLOCK[step]
    rows = tx.all("series_of", queue, step, (first - step) // block * block - block, end)
    points = [point for _, packed in rows for point in decode(packed)]
    found: list[Interval] = []
    before, at = None, 0
    for time in range(first - step, end + step, step):
        last = before
        while at < len(points) and points[at].at <= time:
            before = points[at]
            at += 1
        if time < first:
            continue
        if before is None:
            found.append(Interval(time, Rates(), 0, 0, 0, 0, 0))
            continue
        change = Rates()
        if last is not None and before.at > last.at:
            change = rates(last.counters, before.counters, max(step, before.at - last.at))
        oldest = before.oldest + (time - before.at) if before.oldest and before.ready else 0
        found.append(
            Interval(time, change, before.ready, before.leased, before.waiting, before.dead, oldest)
        )
    return found


def _merge_charts(answers: Sequence[list[Interval]], _: Arguments = ()) -> list[Interval]:
    return [_merge_intervals(some) for some in zip(*answers, strict=True)]


def _merge_intervals(some: Sequence[Interval]) -> Interval:
    if len(some) == 1:
        return some[0]
    added = [sum(getattr(one.rates, name) for one in some) for name in Rates.__struct_fields__]
    return Interval(
        some[0].at, Rates(*(round(rate, 3) for rate in added)), sum(one.ready for one in some),
        sum(one.leased for one in some), sum(one.waiting for one in some),
        sum(one.dead for one in some), max(one.oldest_seconds for one in some),
    )  # fmt: skip


@verb("read-only", name="chart", queue="queue_name", read_only=True, wire=False,
      several=Several(merge=_merge_charts))  # fmt: skip
def chart(tx: Tx, queue_name: str | None, step: int, count: int, now: int) -> list[Interval]:
    """The last steps of a queue by its name, or of all queues together."""
    if queue_name is None:
        return intervals(tx, ALL_QUEUES, step, count, now)
    queue = tx.queue(queue_name)
    return intervals(tx, UNKNOWN if queue is None else queue.id, step, count, now)


def _merge_sparks(
    answers: Sequence[dict[str, list[float]]], _: Arguments
) -> dict[str, list[float]]:
    return {
        name: [round(sum(some), 3) for some in zip(*(one[name] for one in answers), strict=True)]
        for name in answers[0]
    }


@verb("read-only", name="sparks", read_only=True, wire=False, several=Several(merge=_merge_sparks))
def sparks(tx: Tx, names: Sequence[str], count: int, now: int) -> dict[str, list[float]]:
    """Messages pushed to each queue in each of the last minutes."""
    return {
        name: [one.rates.pushed for one in chart(tx, name, MINUTE, count, now)] for name in names
    }


def _point(line: QueueLine, at: int) -> Point:
    return Point(at, line.counters, line.ready, line.leased, line.waiting, line.dead,
                 int(line.oldest_seconds))  # fmt: skip


def _total(stats: LiveStats, at: int) -> Point:
    lines = stats.queues.values()
    return Point(
        at, stats.total, sum(line.ready for line in lines), sum(line.leased for line in lines),
        sum(line.waiting for line in lines), sum(line.dead for line in lines),
        int(max((line.oldest_seconds for line in lines), default=0)),
    )  # fmt: skip


def _moved(point: Point, at: int) -> Point:
    return Point(at, point.counters, point.ready, point.leased, point.waiting, point.dead,
                 point.oldest)  # fmt: skip


def _state(point: Point) -> tuple[object, ...]:
    """What is compared: the age of the oldest message alone is no change."""
    return point.counters, point.ready, point.leased, point.waiting, point.dead


def _values(point: Point) -> Values:
    return (point.at, *point.counters, point.ready, point.leased, point.waiting, point.dead,
            point.oldest)  # fmt: skip
