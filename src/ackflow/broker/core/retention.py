"""Time to live: messages that somebody has still to read go when they are too old."""

from itertools import islice

from ... import ranges
from ...clock import micros
from ...ranges import Ranges
from ...store.records import LEASED, Claim, Cursor, Lane, Queue, Segment
from ...store.tx import Tx
from .expiry import drop_segments, hidden_in, pass_all


def drop_unread(tx: Tx, queue: Queue, lane: Lane, limit: int) -> int:
    """Remove what is older than the queue's time to live and not settled by every group.

    Looks through up to `limit` segments; answers with how many messages went, or were passed by
    those who do not hold them. What every group has settled stays as long as it is kept; what a
    consumer holds stays until its lease is over.
    """
    age = queue.options.ttl_seconds
    if age is None or lane.base >= lane.head:
        return 0
    cursors = tx.cursors_of_lane(lane.id)
    start = _first_unread(tx, lane, cursors)
    stop = start
    for segment in islice(tx.segments_from(lane.id, start), limit):
        if segment.created_at > tx.now - micros(age):
            break
        stop = segment.stop
    if stop <= start:
        return 0
    claims = tx.claims_of_lane(lane.id)
    unread = _unread(tx, lane, cursors, claims, start, stop)
    passed = pass_all(tx, queue, lane, claims, stop)
    if unread:
        for lo, hi in ranges.pairs(unread):
            tx.add_gone(lane, lo, hi)
        _drop_gone(tx, queue, lane, start, stop)
        tx.touched.add(queue.name)
    return ranges.count(unread) or passed


def old_lanes(tx: Tx, after: int, end: int) -> list[tuple[int, int]]:
    """The queues and lanes in which something is too old, for upkeep to go there only."""
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


def _old(tx: Tx, queue: Queue, id: int, oldest: int) -> bool:
    """Whether something is too old in a lane whose oldest message was pushed then."""
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
    """Before this, every group has settled or holds everything."""
    if not cursors:
        return lane.base
    low = min(cursor.next for cursor in cursors)
    waiting = tx.value("lowest_unheld", lane.id)
    return low if waiting is None else min(low, int(waiting))


def _unread(
    tx: Tx, lane: Lane, cursors: list[Cursor], claims: list[Claim], start: int, stop: int
) -> Ranges:
    """What some group has still to read below `stop`, and nobody holds."""
    unread: Ranges = [] if cursors else [start, stop]
    held: Ranges = []
    for cursor in cursors:
        if cursor.next < stop:
            copies = hidden_in(tx, lane, cursor.grp, cursor.next, stop)
            unread = ranges.union(unread, ranges.difference([cursor.next, stop], copies))
    for claim in claims:
        below = ranges.clip(claim.ranges, 0, stop)
        if claim.state == LEASED:
            held = ranges.union(held, below)
        else:
            unread = ranges.union(unread, below)
    return ranges.difference(ranges.difference(unread, held), tx.gone(lane, start, stop))


def _drop_gone(tx: Tx, queue: Queue, lane: Lane, start: int, stop: int) -> None:
    """Free the space of segments, which all cursors have passed, if nothing of them is left."""
    empty: list[Segment] = []
    for segment in tx.headers_from(lane.id, start):
        if segment.stop > stop:
            break
        if ranges.count(tx.gone(lane, segment.first, segment.stop)) == segment.count:
            empty.append(segment)
    drop_segments(tx, queue, lane, empty) if empty else tx.save_lane(lane)
