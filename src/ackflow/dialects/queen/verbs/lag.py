"""Consumer lag: messages and time by queue and partition, and which consumers are active."""

from ipaddress import ip_address

from msgspec import Struct, field

from .... import ranges
from ....broker.views.stats import LEASES_AT_MOST, group_counts, visible_in
from ....clock import SECOND
from ....ids import PartitionId
from ....options import GroupOptions
from ....store.records import Cursor, Group, Queue
from ....store.tx import Tx

SEEN_SECONDS = 60
Spans = dict[str, tuple[int, int]]  # by consumer, its first and last pop


class Lag(Struct):
    """How many messages are unsettled, and when the oldest of them was pushed."""

    messages: int = 0
    oldest_at: int | None = None

    def add(self, messages: int, oldest_at: int | None) -> None:
        self.messages += messages
        if oldest_at is not None:
            self.oldest_at = min(oldest_at, self.oldest_at or oldest_at)

    def seconds(self, now: int) -> float:
        return 0.0 if self.oldest_at is None else max(0.0, (now - self.oldest_at) / SECOND)


class PartitionLag(Struct):
    """The lag of a group in one partition, and the token of a live lease it has there."""

    queue: str
    group: str
    partition: str
    partition_id: PartitionId
    lag: Lag = field(default_factory=Lag)
    consumed: int = 0
    last_at: int | None = None
    lease: int | None = None


class GroupLag(Struct):
    """The lag of a group in one queue; `seen` are the consumers that popped in the last minute."""

    queue: str
    group: str
    created_at: int
    options: GroupOptions
    seen: Spans
    consumed: int
    partitions: int  # those with lag
    lag: Lag


def seen(tx: Tx) -> dict[int, Spans]:
    """Return by group the consumers that popped from this process in the last minute.

    This is in memory, so it is asked of the writer, not of a snapshot.
    """
    since = tx.now - SEEN_SECONDS * SECOND
    return {
        group_id: {name: span for name, span in asked.items() if span[1] >= since}
        for group_id, asked in tx.cache.seen.items()
    }


def members(groups: list[GroupLag]) -> int:
    """Count the consumers seen in these groups.

    A client without a name is known by the address of its connection. Connections of one host count
    as one consumer, unless they were in use at the same time.
    """
    spans: Spans = {}
    for one in groups:
        for name, (first, last) in one.seen.items():
            known = spans.get(name, (first, last))
            spans[name] = min(first, known[0]), max(last, known[1])
    by_host: dict[str, list[tuple[int, int]]] = {}
    for name, span in spans.items():
        by_host.setdefault(_host(name), []).append(span)
    return sum(_most_at_once(some) for some in by_host.values())


def _host(name: str) -> str:
    """Return the host of a consumer named by its address, else its name."""
    host, _, port = name.rpartition(":")
    try:
        ip_address(host)
    except ValueError:
        return name
    return host if port.isdecimal() else name


def _most_at_once(spans: list[tuple[int, int]]) -> int:
    """Return how many of these overlap at most; one without a length overlaps with none."""
    steps = sorted(
        step for first, last in spans if first < last for step in ((first, 1), (last, -1))
    )
    now, most = 0, 1
    for _, step in steps:
        now += step
        most = max(most, now)
    return most


def group_lags(tx: Tx, queue: Queue) -> list[Lag]:
    """Return the lag of each group of a queue over all partitions, counted in SQL."""
    found = []
    head = tx.all("queue_totals", queue.id)[0][0]
    for group in tx.groups(queue.id):
        counts, oldest = group_counts(tx, queue, group, head)
        found.append(Lag(counts.ready + counts.leased + counts.waiting, oldest))
    return found


def lags(tx: Tx, asked: dict[int, Spans]) -> list[GroupLag]:
    """Return the lag of every group in every queue that has it, counted in SQL."""
    found = []
    since = tx.now - SEEN_SECONDS * SECOND
    for queue in tx.queues():
        head, _ = tx.all("queue_totals", queue.id)[0]
        for group in tx.groups(queue.id):
            holders = {
                row[0]: (tx.now, tx.now) for row in tx.all("holders", group.id, tx.now, since)
            }
            counts, oldest = group_counts(tx, queue, group, head)
            lag = Lag(counts.ready + counts.leased + counts.waiting, oldest)
            found.append(
                GroupLag(
                    queue.name, group.name, group.created_at, group.options,
                    holders | asked.get(group.id, {}), tx.value("group_consumed", group.id),
                    _lagging_partitions(tx, queue, group), lag,
                )
            )  # fmt: skip
    return found


def partition_lags(tx: Tx, name: str) -> dict[str, list[PartitionLag]]:
    """Return the lag of the groups of one name in every partition, by queue."""
    return {
        queue.name: _partitions(tx, queue, group, tx.cursors_of_group(group.id))
        for queue in tx.queues()
        if (group := tx.group(queue.id, name)) is not None
    }


def late_partitions(tx: Tx, before: int, limit: int) -> list[PartitionLag]:
    """Return partitions with unsettled messages pushed before a time, of every group.

    Of each group they are those that lag most, up to a limit, and no others are looked at.
    """
    found = []
    for queue in tx.queues():
        for group in tx.groups(queue.id):
            rows = tx.all("late_partitions", group.id, before, limit)
            cursors = [c for (id, _) in rows for c in _cursors_in(tx, group, PartitionId(id))]
            found += _partitions(tx, queue, group, cursors)
    return [
        part for part in found if part.lag.oldest_at is not None and part.lag.oldest_at <= before
    ]


def _cursors_in(tx: Tx, group: Group, partition: PartitionId) -> list[Cursor]:
    found = [tx.cursor(lane.id, group.id) for lane in tx.lanes_in(partition)]
    return [cursor for cursor in found if cursor is not None]


def _lagging_partitions(tx: Tx, queue: Queue, group: Group) -> int:
    """Count the partitions with unsettled messages."""
    uneven = {
        lane.partition
        for (id,) in tx.all("uneven_lanes", queue.id, group.id)
        if (lane := tx.lane(id)) is not None
    }
    return int(tx.value("unsettled_partitions", group.id, queue.id)) + sum(
        any(_lane_lag(tx, group, cursor)[0] for cursor in _cursors_in(tx, group, partition))
        for partition in uneven
    )


def _partitions(tx: Tx, queue: Queue, group: Group, cursors: list[Cursor]) -> list[PartitionLag]:
    held = _held(tx, group) if cursors else {}
    found: dict[int, PartitionLag] = {}
    for cursor in cursors:
        part = found.get(cursor.partition)
        if part is None:
            home = tx.partition_by_id(cursor.partition)
            assert home is not None
            part = found[home.id] = PartitionLag(queue.name, group.name, home.name, home.id)
            part.lease = held.get(home.id)
        part.lag.add(*_lane_lag(tx, group, cursor))
        part.consumed += cursor.consumed
        part.last_at = max(part.last_at or 0, cursor.last_at or 0) or None
    return [found[id] for id in sorted(found)]


def _lane_lag(tx: Tx, group: Group, cursor: Cursor) -> tuple[int, int | None]:
    lane = tx.lane(cursor.lane)
    assert lane is not None
    there, _ = visible_in(tx, group.id, lane, cursor.next, lane.head)
    fresh = ranges.difference(there, tx.gone(lane, cursor.next, lane.head))
    claims = tx.claims_in(lane.id, group.id, 0, lane.head)
    firsts = [claim.ranges[0] for claim in claims] + fresh[:1]
    oldest = tx.created_at(lane.id, min(firsts)) if firsts else None
    return ranges.count(fresh) + sum(ranges.count(claim.ranges) for claim in claims), oldest


def _held(tx: Tx, group: Group) -> dict[int, int]:
    """Return a token of a live lease, by partition."""
    held: dict[int, int] = {}
    for (id,) in tx.all("live_leases", group.id, tx.now, LEASES_AT_MOST):
        lease = tx.lease_by_id(id)
        for part in lease.parts if lease else ():
            lane = tx.lane(part.lane)
            if lane is not None and lease is not None:
                held[lane.partition] = lease.token
    return held
