"""Retention: which segments are dropped, and when.

- `retention_seconds`: drops older segments, read or not (`drop_old`);
- `ttl_seconds`: drops older messages that some group has not read (`drop_unread`);
- `keep_seconds`: drops segments after that time once every group has settled them (`trim`).

A leased message stays until its lease ends.
"""

import time
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from .... import ranges
from ....clock import micros
from ....ids import LaneId, QueueId
from ....ranges import Ranges
from ....store.records import LEASED, Claim, Cursor, Lane, Queue, Segment
from ....store.tx import Tx
from ..cursors import hidden_copies_in, pass_for_all_groups, sequence_at
from ..history import record_history

SLICE_SECONDS = 0.010
SEGMENTS_AT_ONCE = 500


def drop_old(
    tx: Tx, queue: Queue, lane: Lane, limit: int, start: int | None = None
) -> tuple[int, int | None]:
    """Drop segments older than the queue's retention, of the first `limit` from a sequence on.

    Returns how many messages, and where to continue, if there may be more. Every group is moved past
    all messages that are too old, so that none is delivered. Without `start`, what lies behind a
    segment with a leased message is left to upkeep.
    """
    age = queue.options.retention_seconds
    if age is None or lane.base >= lane.head:
        return 0, None
    before = tx.now - micros(age)
    created = tx.created_at(lane.id, lane.base)
    if created is None or created > before:
        return 0, None
    pass_for_all_groups(tx, queue, lane, sequence_at(tx, lane, before + 1))
    some: list[Segment] = []
    for segment in tx.headers_from(lane.id, max(start or 0, lane.base)):
        if segment.created_at > before or len(some) >= limit:
            break
        if start is None and not some and tx.any_leased(lane.id, segment.first, segment.stop):
            break
        some.append(segment)
    if not some:
        return 0, None
    # A leased message stays until its lease ends.
    claims = claims_between(tx, lane, tx.cursors_of_lane(lane.id), some[0].first, some[-1].stop)
    held = ranges.union_all(claim.ranges for claim in claims if claim.state == LEASED)
    old = [one for one in some if not ranges.clip(held, one.first, one.stop)]
    gone = [ranges.count(tx.gone(lane, segment.first, segment.stop)) for segment in old]
    if old:
        drop_segments(tx, queue, lane, old)
    dropped = sum(segment.count for segment in old) - sum(gone)
    return dropped, some[-1].stop if len(some) == limit else None


OnDrop = Callable[[Ranges], None]


def drop_unread(tx: Tx, queue: Queue, lane: Lane, limit: int, on_drop: OnDrop | None = None) -> int:
    """Drop messages older than the queue's time to live that some group has not settled.

    Reads up to `limit` segments. Returns how many messages were dropped, or else passed by groups
    that do not hold them. Messages that every group has settled stay as long as the queue keeps
    them, and leased ones until their lease is over. `on_drop` is called before they are dropped.
    """
    age = queue.options.ttl_seconds
    if age is None or lane.base >= lane.head:
        return 0
    stop = start = _first_unread(tx, lane, tx.cursors_of_lane(lane.id))
    for segment in islice(tx.segments_from(lane.id, start), limit):
        if segment.created_at > tx.now - micros(age):
            break
        stop = segment.stop
    return drop_before(tx, queue, lane, stop, on_drop) if stop > start else 0


def drop_before(tx: Tx, queue: Queue, lane: Lane, stop: int, on_drop: OnDrop | None = None) -> int:
    """Drop the messages before a sequence that some group has not settled; see `drop_unread`."""
    cursors = tx.cursors_of_lane(lane.id)
    start = min(_first_unread(tx, lane, cursors), stop)
    claims = claims_between(tx, lane, cursors, start, stop)
    unread = _unread(tx, lane, cursors, claims, start, stop)
    if unread and on_drop is not None:
        on_drop(unread)
    passed = pass_for_all_groups(tx, queue, lane, stop)
    if unread:
        for lo, hi in ranges.pairs(unread):
            tx.add_gone(lane, lo, hi)
        _drop_gone(tx, queue, lane, start, stop)
        tx.touched.add(queue.name)
    return ranges.count(unread) or passed


def claims_between(tx: Tx, lane: Lane, cursors: list[Cursor], first: int, stop: int) -> list[Claim]:
    """Return what all groups have claimed between two sequences."""
    return [
        claim for cursor in cursors for claim in tx.claims_in(lane.id, cursor.group_id, first, stop)
    ]


def unread_and_held(tx: Tx, lane: Lane, first: int, stop: int) -> tuple[Ranges, Ranges]:
    """Return the messages that some group has not read and no lease holds, and those held."""
    cursors = tx.cursors_of_lane(lane.id)
    claims = claims_between(tx, lane, cursors, first, stop)
    held = ranges.union_all(claim.ranges for claim in claims if claim.state == LEASED)
    return ranges.clip(_unread(tx, lane, cursors, claims, first, stop), first, stop), held


def drop_messages(tx: Tx, queue: Queue, lane: Lane, which: Ranges) -> None:
    """Drop single messages that no lease holds, for all groups; they count as purged."""
    for cursor in tx.cursors_of_lane(lane.id):
        for claim in tx.claims_in(lane.id, cursor.group_id, which[0], which[-1]):
            part = ranges.intersection(claim.ranges, which) if claim.state != LEASED else []
            if part:
                claim.ranges = ranges.difference(claim.ranges, part)
                tx.save_claim(claim) if claim.ranges else tx.drop_claim(claim)
                cursor.purged += ranges.count(part)
                cursor.ready = True  # the messages may have blocked those after them
                record_history(tx, cursor.group_id, lane.id, part, "retention")
                tx.changed(cursor)
    for lo, hi in ranges.pairs(which):
        tx.add_gone(lane, lo, hi)
    tx.save_lane(lane)
    tx.cache.room.pop(queue.id, None)
    tx.touched.add(queue.name)


def old_lanes(tx: Tx, after: int, end: int) -> list[tuple[QueueId, LaneId]]:
    """Return the queues and lanes with messages that are too old, for upkeep."""
    queues = {
        queue.id: queue
        for queue in tx.queues()
        if (queue.options.retention_seconds, queue.options.ttl_seconds) != (None, None)
    }
    found = []
    for id, home, created in tx.all("oldest_of_lanes", after, end) if queues else ():
        queue = queues.get(home)
        if queue is not None and _old(tx, queue, id, created):
            found.append((home, id))
    return found


def _old(tx: Tx, queue: Queue, id: LaneId, oldest: int) -> bool:
    """Return whether a lane, whose oldest message has this time, has messages that are too old."""
    age, life = queue.options.retention_seconds, queue.options.ttl_seconds
    if age is not None and oldest + micros(age) <= tx.now:
        return True
    lane = tx.lane(id)
    if life is None or oldest + micros(life) > tx.now or lane is None:
        return False
    start = _first_unread(tx, lane, tx.cursors_of_lane(lane.id))
    created = tx.created_at(lane.id, start) if start < lane.head else None
    return created is not None and created + micros(life) <= tx.now


def _first_unread(tx: Tx, lane: Lane, cursors: list[Cursor]) -> int:
    """Return the sequence below which every group has settled or holds everything."""
    if not cursors:
        return lane.base
    low = min(cursor.next for cursor in cursors)
    waiting = tx.value("lowest_unheld", lane.id)
    return low if waiting is None else min(low, int(waiting))


def _unread(
    tx: Tx, lane: Lane, cursors: list[Cursor], claims: list[Claim], start: int, stop: int
) -> Ranges:
    """Return the messages below `stop` that some group has not read and no lease holds."""
    unread: Ranges = [] if cursors else [start, stop]
    held: Ranges = []
    for cursor in cursors:
        if cursor.next < stop:
            copies = hidden_copies_in(tx, lane, cursor.group_id, cursor.next, stop)
            unread = ranges.union(unread, ranges.difference([cursor.next, stop], copies))
    for claim in claims:
        below = ranges.clip(claim.ranges, 0, stop)
        if claim.state == LEASED:
            held = ranges.union(held, below)
        else:
            unread = ranges.union(unread, below)
    return ranges.difference(ranges.difference(unread, held), tx.gone(lane, start, stop))


def _drop_gone(tx: Tx, queue: Queue, lane: Lane, start: int, stop: int) -> None:
    """Drop segments that all cursors have passed and of which no message is left."""
    empty: list[Segment] = []
    for segment in tx.headers_from(lane.id, start):
        if segment.stop > stop:
            break
        if ranges.count(tx.gone(lane, segment.first, segment.stop)) == segment.count:
            empty.append(segment)
    drop_segments(tx, queue, lane, empty) if empty else tx.save_lane(lane)


class TrimCandidates(NamedTuple):
    """Segments that may be dropped, and where to continue, if there are more."""

    segments: list[Segment]
    next: int | None


def free_segments(tx: Tx, lane_id: LaneId, start: int) -> TrimCandidates:
    """Find segments that every group has settled and that are no longer kept.

    Reads a limited number of segments. A segment that is needed stays; those around it are found.
    """
    lane = tx.lane(lane_id)
    queue = tx.queue_by_id(lane.queue) if lane else None
    if lane is None or queue is None or queue.options.keep_seconds is None:
        return TrimCandidates([], None)
    if tx.in_the_making(queue.id):
        return TrimCandidates(
            [], None
        )  # a new group may have to read messages that the others have settled
    tx.flush()
    low = tx.value("lowest_cursor", lane.id)
    limit = tx.now - micros(queue.options.keep_seconds)
    settled: list[Segment] = []
    for segment in tx.headers_from(lane.id, max(start, lane.base)) if low is not None else ():
        if segment.stop > low or segment.created_at > limit or len(settled) == SEGMENTS_AT_ONCE:
            break
        settled.append(segment)
    if not settled:
        return TrimCandidates([], None)
    used = _used(tx, lane.id, settled[0].first, settled[-1].stop)
    free = [s for s in settled if not ranges.clip(used, s.first, s.stop)]
    return TrimCandidates(free, settled[-1].stop if len(settled) == SEGMENTS_AT_ONCE else None)


def _used(tx: Tx, lane: LaneId, first: int, stop: int) -> Ranges:
    """Return the messages of [first, stop) that a group has claimed or a reader may read again."""
    found: Ranges = []
    for lo, hi, packed in sorted(tx.all("used_in", lane, first, stop), key=lambda row: row[0]):
        some = [lo, hi] if packed is None else ranges.unpack(packed)
        found = ranges.union(found, ranges.clip(some, first, stop))
    return found


def trim(tx: Tx, lane_id: LaneId, start: int) -> tuple[int, int | None]:
    """Drop some segments that `free_segments` finds; returns how many, and where to continue."""
    found = free_segments(tx, lane_id, start)
    lane = tx.lane(lane_id)
    queue = tx.queue_by_id(lane.queue) if lane else None
    if lane is None or queue is None or not found.segments:
        return 0, found.next
    deadline = time.monotonic() + SLICE_SECONDS
    dropped: list[Segment] = []
    for segment in found.segments:
        if dropped and time.monotonic() > deadline:
            break  # after at least one segment, so that a slow machine makes progress
        drop_segment(tx, queue, lane, segment)
        dropped.append(segment)
    close_gaps(tx, lane, dropped)
    whole = len(dropped) == len(found.segments)
    return len(dropped), found.next if whole else dropped[-1].stop


def drop_segments(tx: Tx, queue: Queue, lane: Lane, segments: list[Segment]) -> None:
    """Drop segments from anywhere in a lane."""
    for segment in segments:
        drop_segment(tx, queue, lane, segment)
    close_gaps(tx, lane, segments)


def drop_segment(tx: Tx, queue: Queue, lane: Lane, segment: Segment) -> None:
    """Drop a segment, and the transaction ids that are kept as long as it is."""
    rest = tx.rest(segment) if queue.options.dedup_seconds is None else None
    for index, txid in rest.txids.items() if rest else ():
        tx.run("drop_txid", lane.partition, txid, lane.id, segment.first + index)
    tx.drop_segment(segment)


def close_gaps(tx: Tx, lane: Lane, dropped: list[Segment]) -> None:
    """Move the base of a lane to its first remaining segment, and record the gaps above it."""
    first = tx.value("first_segment", lane.id, lane.base)
    base = lane.head if first is None else int(first)
    note_deleted(tx, lane, dropped)
    for segment in dropped:
        if segment.first > base:
            tx.add_gone(lane, segment.first, segment.stop, segment.for_group)
    move_base(tx, lane, base)


def note_deleted(tx: Tx, lane: Lane, dropped: list[Segment]) -> None:
    """Record which messages of segments about to be dropped were deleted before.

    Afterwards they look like messages that were trimmed, and `why` must distinguish them.
    """
    deleted = ranges.union_all(tx.gone(lane, segment.first, segment.stop) for segment in dropped)
    for cursor in tx.cursors_of_lane(lane.id) if deleted else ():
        record_history(tx, cursor.group_id, lane.id, deleted, "gone")


def move_base(tx: Tx, lane: Lane, base: int) -> None:
    if base > lane.base:
        lane.base = base
        tx.cut_gone(lane, base)
    tx.save_lane(lane)
