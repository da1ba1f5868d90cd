"""Peek and follow: messages a group would get next, and messages as they are pushed."""

from ... import ranges, validate
from ...model import News, StoredMessage
from ...options import MAX_PAGE_BYTES
from ...ranges import Ranges
from ...store.records import Group, Lane, Queue
from ...store.tx import Tx
from ..core.topology import find_partition, find_queue
from ..reach import merging
from ..reach.merging import Several
from ..verb import verb
from .browse import add, is_full, view

SEGMENTS_AT_ONCE = 64


@verb("read-only", queue="queue_name", read_only=True, several=Several(merge=merging.limited))
def peek(tx: Tx, queue_name: str, group_name: str, limit: int) -> list[StoredMessage]:
    """Return the next messages of a group in the order of serving, even if they are held back.

    A group that does not exist would begin at the start.
    """
    validate.name(group_name, "group")
    validate.integer(limit, "limit", 1, 10_000)
    queue = find_queue(tx, queue_name)
    group = tx.group(queue.id, group_name)
    found: list[StoredMessage] = []
    tx.bytes_left = MAX_PAGE_BYTES
    for lane, start in _in_turn(tx, queue, group):
        found += _next_of(tx, queue, group, lane, start, limit - len(found))
        if is_full(tx, found, limit):
            break
    return found


def _in_turn(tx: Tx, queue: Queue, group: Group | None) -> list[tuple[Lane, int]]:
    """Return the lanes in the order of serving, and where the group continues in each."""
    if group is None:
        lanes = sorted(tx.lanes(queue.id), key=lambda lane: (lane.priority, lane.id))
        return [(lane, lane.base) for lane in lanes]
    cursors = tx.cursors_of_group(group.id)
    cursors.sort(key=lambda cursor: (cursor.priority, cursor.served, cursor.lane))
    return [(lane, cursor.next) for cursor in cursors if (lane := tx.lane(cursor.lane))]


def _next_of(
    tx: Tx, queue: Queue, group: Group | None, lane: Lane, start: int, want: int
) -> list[StoredMessage]:
    """Return the next messages of a lane: due ones before new ones."""
    due: Ranges = []
    for claim in tx.due_claims(lane.id, group.id, want) if group else ():
        due = ranges.union(due, claim.ranges)
    found: list[StoredMessage] = []
    for segment, first, stop in tx.segments_over(lane.id, ranges.lowest(due, want)):
        for sequence in range(first, stop):
            if is_full(tx, found, want):
                return found
            add(tx, found, view(tx, queue, group, lane, segment, sequence))
    mine = None if group is None else group.id
    for segment in tx.segments_from(lane.id, start):
        if is_full(tx, found, want):
            break
        if segment.for_group in (None, mine) and not segment.delayed(tx.now):
            first = max(start, segment.first)
            gone = tx.gone(lane, first, segment.stop)
            there = ranges.difference([first, segment.stop], gone)
            for sequence in ranges.numbers(ranges.lowest(there, want - len(found))):
                if is_full(tx, found, want):
                    break
                add(tx, found, view(tx, queue, group, lane, segment, sequence))
    return found


@verb("read-only", queue="queue_name", read_only=True, several=Several(run=merging.follow))
def follow(
    tx: Tx, queue_name: str, partition: str | None, after: dict[int, int] | None, last: int,
    limit: int,
) -> News:  # fmt: skip
    """Return what was pushed after the given positions, up to `limit`; at first the `last` few.

    It is read-only: it creates no group and holds nothing.
    """
    validate.integer(last, "last", 0, 10_000)
    validate.integer(limit, "limit", 1, 10_000)
    queue = find_queue(tx, queue_name)
    lanes = tx.lanes(queue.id)
    if partition is not None:
        home = find_partition(tx, queue, partition)
        lanes = [lane for lane in lanes if lane.partition == home.id]
    if after is None:
        return _last(tx, queue, lanes, last)
    found: list[StoredMessage] = []
    places: dict[int, int] = {}
    tx.bytes_left = MAX_PAGE_BYTES
    for lane in lanes:
        at, room = max(after.get(lane.id, 0), lane.base), limit - len(found)
        some = _from(tx, queue, lane, at, room)
        found += some
        reached = some[-1].sequence + 1 if some else at
        all_there = len(some) < room and tx.bytes_left > 0
        places[lane.id] = lane.head if all_there else reached
    return News(sorted(found, key=lambda message: message.created_at), places)


def _last(tx: Tx, queue: Queue, lanes: list[Lane], last: int) -> News:
    """Return the last few messages, which are in the lanes that were pushed to last."""
    found: list[StoredMessage] = []
    for lane in sorted(lanes, key=lambda lane: -lane.last_at)[:last]:
        start = _start_of_last(tx, lane, last)
        found += _from(tx, queue, lane, start, last)
        found.sort(key=lambda message: message.created_at)
        found = _within_bytes(found[-last:])
    return News(found, {lane.id: lane.head for lane in lanes})


def _start_of_last(tx: Tx, lane: Lane, last: int) -> int:
    """Return where the last few messages of a lane begin, of as many bytes as a page may have."""
    start, left = max(lane.base, lane.head - last), MAX_PAGE_BYTES
    at = lane.head
    while at > start:
        some = tx.segments_before(lane, at, SEGMENTS_AT_ONCE)
        for segment in some:
            left -= segment.bytes // segment.count * (at - max(start, segment.first))
            if left < 0:
                return min(at, lane.head - 1)
            at = segment.first
        if len(some) < SEGMENTS_AT_ONCE:
            break
    return start


def _within_bytes(found: list[StoredMessage]) -> list[StoredMessage]:
    """Return the last of these messages, of as many bytes as a page may have."""
    left = MAX_PAGE_BYTES
    for at in range(len(found) - 1, -1, -1):
        left -= len(found[at].raw)
        if left < 0:
            return found[min(at + 1, len(found) - 1) :]
    return found


def _from(tx: Tx, queue: Queue, lane: Lane, start: int, want: int) -> list[StoredMessage]:
    if start >= lane.head or want <= 0:
        return []
    gone = tx.gone(lane, start, lane.head)
    wanted = ranges.lowest(ranges.difference([start, lane.head], gone), want)
    found: list[StoredMessage] = []
    for segment, first, stop in tx.segments_over(lane.id, wanted):
        for sequence in range(first, stop):
            if is_full(tx, found, want):
                return found
            add(tx, found, view(tx, queue, None, lane, segment, sequence))
    return found
