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
    partitions: list[PartitionLag]
    lag: Lag = field(default_factory=Lag)


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


def lags(tx: Tx, asked: dict[int, Spans], name: str | None = None) -> list[GroupLag]:
    """Return the lag of every group, or of those of one name, in every queue that has it."""
    return [
        _group_lag(tx, queue, group, asked.get(group.id, {}))
        for queue in tx.queues()
        for group in tx.groups(queue.id)
        if name in (None, group.name)
    ]


def _group_lag(tx: Tx, queue: Queue, group: Group, asked: Spans) -> GroupLag:
    since = tx.now - SEEN_SECONDS * SECOND
    holders = {row[0]: (tx.now, tx.now) for row in tx.all("holders", group.id, tx.now, since)}
    cursors = tx.cursors_of_group(group.id)
    found = GroupLag(
        queue.name,
        group.name,
        group.created_at,
        group.options,
        holders | asked,
        sum(cursor.consumed for cursor in cursors),
        _partitions(tx, queue, group, cursors),
    )
    for part in found.partitions:
        found.lag.add(part.lag.messages, part.lag.oldest_at)
    return found


def _partitions(tx: Tx, queue: Queue, group: Group, cursors: list[Cursor]) -> list[PartitionLag]:
    claimed: dict[int, list[tuple[int, int]]] = {}
    for lane, _, n, lowest in tx.all("claim_counts", group.id, tx.now):
        claimed.setdefault(lane, []).append((n, lowest))
    held = _held(tx, group)
    found: dict[int, PartitionLag] = {}
    for cursor in cursors:
        part = found.get(cursor.partition)
        if part is None:
            home = tx.partition_by_id(cursor.partition)
            assert home is not None
            part = found[home.id] = PartitionLag(queue.name, group.name, home.name, home.id)
            part.lease = held.get(home.id)
        part.lag.add(*_lane_lag(tx, group, cursor, claimed.get(cursor.lane, [])))
        part.consumed += cursor.consumed
        part.last_at = max(part.last_at or 0, cursor.last_at or 0) or None
    return [found[id] for id in sorted(found)]


def _lane_lag(
    tx: Tx, group: Group, cursor: Cursor, claimed: list[tuple[int, int]]
) -> tuple[int, int | None]:
    lane = tx.lane(cursor.lane)
    assert lane is not None
    there, _ = visible_in(tx, group.id, lane, cursor.next, lane.head)
    fresh = ranges.difference(there, tx.gone(lane, cursor.next, lane.head))
    firsts = [lowest for _, lowest in claimed] + fresh[:1]
    oldest = tx.created_at(lane.id, min(firsts)) if firsts else None
    return ranges.count(fresh) + sum(n for n, _ in claimed), oldest


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
