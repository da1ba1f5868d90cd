"""Statistics: every number is counted from rows when it is asked for."""

from collections.abc import Container

import msgspec

from ... import ids, ranges
from ...clock import SECOND
from ...ids import GroupId, PartitionId
from ...model import (
    Counts,
    DatabaseStats,
    GroupStats,
    LeaseStats,
    PartitionStats,
    Progress,
    QueueStats,
    Value,
    when,
    when_or_none,
)
from ...store.encryption import unseal_bytes
from ...store.mapping import Row, value_place
from ...store.records import DUE, LEASED, Cursor, Group, Lane, Lease, Queue
from ...store.tx import Tx
from ..core.cursors import hidden_copies_in
from ..core.topology import find_group, find_partition, find_queue
from ..core.values import find, find_all
from ..reach import merging
from ..reach.merging import Several
from ..verb import verb

LEASES_AT_MOST = 1_000


@verb("read-only", read_only=True, several=Several(merge=merging.queues))
def queues(tx: Tx) -> list[QueueStats]:
    return [queue_stats(tx, queue.name) for queue in tx.queues()]


@verb("read-only", queue="name", read_only=True, several=Several(merge=merging.queue_stats))
def queue_stats(tx: Tx, name: str) -> QueueStats:
    queue = find_queue(tx, name)
    dead = {row[0]: row[1] for row in tx.all("dead_per_group", queue.id)}
    head, messages = tx.all("queue_totals", queue.id)[0]
    return QueueStats(
        name=queue.name,
        created_at=when(queue.created_at),
        paused=queue.paused,
        options=queue.options,
        partitions=tx.value("count_partitions", queue.id),
        messages=messages,
        bytes=tx.value("queue_bytes", queue.id),
        dead_letters=sum(dead.values()),
        groups=[_group_stats(tx, queue, g, dead.get(g.id, 0), head) for g in tx.groups(queue.id)],
    )


@verb("read-only", queue="queue_name", read_only=True, several=Several(merge=merging.group_stats))
def group_stats(tx: Tx, queue_name: str, name: str) -> GroupStats:
    queue = find_queue(tx, queue_name)
    group = find_group(tx, queue, name)
    dead = {row[0]: row[1] for row in tx.all("dead_per_group", queue.id)}
    head = tx.all("queue_totals", queue.id)[0][0]
    return _group_stats(tx, queue, group, dead.get(group.id, 0), head)


def _group_stats(tx: Tx, queue: Queue, group: Group, dead: int, head: int) -> GroupStats:
    tx.flush()
    totals = tx.all("group_totals", group.id, queue.id)[0]
    counts, oldest = _counts(tx, queue, group, totals, head)
    _, delivered, consumed, failed, *_ = totals
    return GroupStats(
        queue=queue.name,
        name=group.name,
        created_at=when(group.created_at),
        dialect=group.dialect,
        paused=group.paused,
        settings=group.rules,
        options=group.options,
        counts=counts,
        dead_letters=dead,
        oldest_seconds=None if oldest is None else max(0.0, (tx.now - oldest) / SECOND),
        consumed=consumed,
        failed=failed,
        delivered=delivered,
    )


def group_counts(tx: Tx, queue: Queue, group: Group, head: int) -> tuple[Counts, int | None]:
    """Count the messages of a group by state, and return the time of the oldest unsettled one.

    The heads of the lanes of the queue add up to `head`.
    """
    tx.flush()
    return _counts(tx, queue, group, tx.all("group_totals", group.id, queue.id)[0], head)


def _counts(
    tx: Tx, queue: Queue, group: Group, totals: Row, head: int
) -> tuple[Counts, int | None]:
    next, _, _, _, *rest, oldest = totals
    counts = Counts(head - next, 0, 0, rest[1], rest[0], *rest[2:])
    oldest = _uneven(tx, queue, group, counts, oldest)
    for state, n, created in tx.all("group_claims", group.id, tx.now):
        if state == LEASED:
            counts.leased += n
        elif state == DUE:
            counts.ready += n
        else:
            counts.waiting += n
        if created is not None:
            oldest = min(created, oldest or created)
    return counts, oldest


def _uneven(tx: Tx, queue: Queue, group: Group, counts: Counts, oldest: int | None) -> int | None:
    """Correct the counts for delayed, hidden or deleted messages ahead of the cursors.

    Returns the time of the oldest unread message.
    """
    uneven = [row[0] for row in tx.all("uneven_lanes", queue.id, group.id)]
    if not uneven:
        return oldest
    firsts = [oldest] if oldest is not None else []
    for id in uneven:
        lane, cursor = tx.lane(id), tx.cursor(id, group.id)
        assert lane is not None
        assert cursor is not None
        there, delayed = visible_in(tx, group.id, lane, cursor.next, lane.head)
        fresh = ranges.difference(there, tx.gone(lane, cursor.next, lane.head))
        counts.ready += ranges.count(fresh) - delayed - (lane.head - cursor.next)
        counts.waiting += delayed
        counts.purged += ranges.count(there) - ranges.count(fresh)
        created = tx.created_at(lane.id, fresh[0]) if fresh else None
        firsts += [] if created is None else [created]
    return min(firsts, default=None)


def count(tx: Tx, group: Group, cursors: list[Cursor]) -> tuple[Counts, int | None]:
    """Count the messages of these lanes by state, and return the time of the oldest one."""
    total = Counts()
    oldest: list[int] = []
    claimed: dict[int, list[tuple[int, int, int]]] = {}
    for lane_id, state, n, lowest in tx.all("claim_counts", group.id, tx.now):
        claimed.setdefault(lane_id, []).append((state, n, lowest))
    for cursor in cursors:
        lane = tx.lane(cursor.lane)
        assert lane is not None
        there, delayed = visible_in(tx, group.id, lane, cursor.next, lane.head)
        fresh = ranges.difference(there, tx.gone(lane, cursor.next, lane.head))
        total.ready += ranges.count(fresh) - delayed
        total.waiting += delayed
        total.purged += cursor.purged + ranges.count(there) - ranges.count(fresh)
        total.done += cursor.done
        total.dead += cursor.dead
        total.skipped += cursor.skipped
        total.expired += cursor.expired
        for state, n, _ in claimed.get(lane.id, []):
            if state == LEASED:
                total.leased += n
            elif state == DUE:
                total.ready += n
            else:
                total.waiting += n
        firsts = [lowest for _, _, lowest in claimed.get(lane.id, [])] + fresh[:1]
        created = tx.created_at(lane.id, min(firsts)) if firsts else None
        oldest += [] if created is None else [created]
    return total, min(oldest, default=None)


def visible_in(
    tx: Tx, group_id: GroupId, lane: Lane, first: int, stop: int
) -> tuple[ranges.Ranges, int]:
    """Return what a group sees of [first, stop), deleted included, and how many are delayed."""
    if first >= stop:
        return [], 0
    there = ranges.difference([first, stop], hidden_copies_in(tx, lane, group_id, first, stop))
    delayed = 0
    for segment in tx.odd_segments(lane, first):
        if segment.delayed(tx.now):
            part = ranges.intersection(there, [segment.first, segment.stop])
            gone = tx.gone(lane, segment.first, segment.stop)
            delayed += ranges.count(ranges.difference(part, gone))
    return there, delayed


@verb("read-only", queue="queue_name", read_only=True)
def partitions(tx: Tx, queue_name: str, after: int, limit: int | None) -> list[PartitionStats]:
    queue = find_queue(tx, queue_name)
    result = []
    for home in tx.partitions(queue.id, after, -1 if limit is None else limit):
        lanes = tx.lanes_in(home.id)
        totals = [tx.all("lane_totals", lane.id, lane.base)[0] for lane in lanes]
        result.append(
            PartitionStats(queue.name, home.name, when(home.created_at),
                           [lane.priority for lane in lanes],
                           sum(lane.head - lane.base - lane.gone for lane in lanes),
                           sum(t[2] for t in totals))
        )  # fmt: skip
    return result


@verb("read-only", queue="queue_name", read_only=True)
def leases(tx: Tx, queue_name: str, name: str | None) -> list[LeaseStats]:
    """Return the live leases of a queue or of one group, at most 1,000 for each group."""
    queue = find_queue(tx, queue_name)
    groups = tx.groups(queue.id) if name is None else [find_group(tx, queue, name)]
    found = [lease_stats(tx, queue, g, lease) for g in groups for lease in _live(tx, g)]
    return sorted(found, key=lambda lease: lease.acquired_at)


def _live(tx: Tx, group: Group) -> list[Lease]:
    live = tx.all("live_leases", group.id, tx.now, LEASES_AT_MOST)
    return [lease for (id,) in live if (lease := tx.lease_by_id(id)) is not None]


def lease_stats(
    tx: Tx, queue: Queue, group: Group, lease: Lease, lanes: Container[int] | None = None
) -> LeaseStats:
    """Return the statistics of a lease, or of its part in some lanes."""
    parts = [part for part in lease.parts if lanes is None or part.lane in lanes]
    mine = {part.lane for part in parts}
    homes = {lane.partition for part in parts if (lane := tx.lane(part.lane))}
    names = sorted(home.name for id in homes if (home := tx.partition_by_id(id)))
    return LeaseStats(
        token=ids.token_text(lease.token),
        queue=queue.name,
        group=group.name,
        consumer=lease.consumer,
        acquired_at=when(lease.acquired_at),
        expires_at=when(lease.expires_at),
        batch=sum(ranges.count(part.ranges) for part in parts),
        acked=sum(
            ranges.count(f.ranges) for f in lease.fates if f.verb == "ack" and f.lane in mine
        ),
        held=sum(ranges.count(c.ranges) for c in tx.claims_of_lease(lease) if c.lane in mine),
        partitions=names,
    )


@verb("read-only", queue="queue_name", read_only=True)
def progress(tx: Tx, queue_name: str, name: str, partition: str | None) -> list[Progress]:
    """Return how far a group has read each partition."""
    queue = find_queue(tx, queue_name)
    group = find_group(tx, queue, name)
    live = sorted(_live(tx, group), key=lambda lease: lease.acquired_at)
    wanted = None if partition is None else find_partition(tx, queue, partition).id
    by_home: dict[PartitionId, list[Cursor]] = {}
    for cursor in tx.cursors_of_group(group.id):
        by_home.setdefault(cursor.partition, []).append(cursor)
    result = []
    for id, cursors in sorted(by_home.items()):
        home = tx.partition_by_id(id)
        assert home is not None
        if wanted not in (None, id):
            continue
        lanes = {cursor.lane for cursor in cursors}
        held = [lease_stats(tx, queue, group, lease, lanes) for lease in live
                if any(part.lane in lanes for part in lease.parts)]  # fmt: skip
        counts, _ = count(tx, group, cursors)
        last = max(cursors, key=lambda c: c.last_at or 0)
        last_id = (
            None if last.last_seq is None else ids.message_id(tx.store, last.lane, last.last_seq)
        )
        result.append(
            Progress(queue.name, home.name, group.name, last_id, when_or_none(last.last_created),
                     when_or_none(last.last_at), sum(c.consumed for c in cursors),
                     sum(c.failed for c in cursors), counts,
                     [lease for lease in held if lease.held])
        )  # fmt: skip
    return result


@verb("read-only", values=True, read_only=True, several=Several(merge=merging.some))
def value(tx: Tx, key: str) -> Value | None:
    """Return a small keyed value."""
    row = find(tx, key)
    return None if row is None else _value(*row)


@verb("read-only", values=True, read_only=True, several=Several(merge=merging.values))
def values(
    tx: Tx, prefix: str, limit: int, after: str | None = None, reverse: bool = False
) -> list[Value]:
    """Return the values whose keys begin with a prefix, by key, in pages."""
    return [_value(*row) for row in find_all(tx, prefix, limit, after, reverse)]


def _value(key: str, stored: bytes, version: int, at: int, end: int | None) -> Value:
    data = msgspec.json.decode(unseal_bytes(stored, value_place(key)))
    return Value(key, data, version, when(at), None if end is None else when(end))


@verb("admin", read_only=True, several=Several(away=True))
def databases(tx: Tx) -> list[DatabaseStats]:
    """Return this database; the broker of several adds those that are away."""
    return [DatabaseStats("", True, tx.store, len(tx.queues()))]


@verb("read-only", read_only=True, several=Several(merge=merging.largest))
def overdue(tx: Tx) -> int:
    """Return how long the oldest expired lease or due message has waited for upkeep."""
    groups = tx.all("groups_with_expired", tx.now)
    return max((tx.now - tx.value("next_time", id, 0) for (id,) in groups), default=0)


@verb("read-only", name="ready", read_only=True, wire=False)
def ready(tx: Tx) -> bool:
    """Read one small value, to check that the database answers."""
    return tx.value("get_meta", "store") is not None
