"""Take messages from one lane: due ones before new ones, then by sequence."""

from bisect import bisect_right
from collections.abc import Callable
from itertools import islice

from ... import ranges
from ...clock import SECOND, micros
from ...errors import StorageFailed
from ...ids import GroupId, LaneId, LeaseId, PartitionId
from ...options import MAX_PAYLOAD
from ...ranges import Ranges
from ...store.records import COPIED, LEASED, Claim, Cursor, Group, Lane, Queue, Segment
from ...store.tx import UNLIMITED, Tx
from ..requests import Mark, Verdict
from .dead_letters import add_dead_letters
from .handout import TakenMessages, carried_counters
from .routing.publish import EXPIRED_AT_ONCE, drop_expired, drop_too_old, has_expiring
from .settle import Settlement
from .topology import complete_cursors
from .upkeep.expiry import DELAYED_RUN
from .upkeep.retention import drop_old

AT_ONCE = 256
OLD_AT_ONCE, OLD_SLICES = 100, 4
PASSED_AT_ONCE = 10_000  # cost of the segments that one call passes
PASSED_ALONE = 25  # the cost of a segment that is passed alone


def take(
    tx: Tx, queue: Queue, group: Group, lane: Lane, cursor: Cursor, want: int, turn: bool = True
) -> list[TakenMessages]:
    """Take up to `want` messages for a group and move its cursor; the caller makes the claims.

    `turn`: other lanes wait to be served. If only one lane has messages, it keeps the time it was
    last served, which saves a write; a lane that joins it waits for at most one more delivery.
    After a second it gets a new time, so that a scan can skip the dead entries of its index.
    """
    if queue.options.retention_seconds is not None:
        complete_cursors(tx, queue, lane)
        drop_old(tx, queue, lane, 100)  # upkeep drops the rest
    if queue.options.ttl_seconds is not None:
        complete_cursors(tx, queue, lane)
        for _ in range(OLD_SLICES):
            if not drop_too_old(tx, queue, lane, OLD_AT_ONCE):
                break
        else:
            return []  # more messages are too old; the lane stays ready
    if has_expiring(tx, lane.id):
        complete_cursors(tx, queue, lane)
        for _ in range(OLD_SLICES):
            if drop_expired(tx, queue, lane) < EXPIRED_AT_ONCE:
                break
        else:
            return []
    held_at = None
    if group.rules.ordering == "ordered":
        held_at = tx.first_returned(lane.id, group.id)
    due = _due(tx, queue, group, lane, cursor, want)
    taken = _take_due(tx, lane, want, held_at, due) if due else []
    n = sum([ranges.count(t.ranges) for t in taken]) if taken else 0
    if n < want and held_at is None and cursor.next < lane.head:
        new = _take_new(tx, queue, group, lane, cursor, want - n)
        n += sum([ranges.count(t.ranges) for t in new])
        taken += new
    # A lane that had exactly the wanted messages stays ready, which saves the next push a write.
    fresh = held_at is None and cursor.next < lane.head
    ready = n == want or fresh or (bool(due) and _more_due(tx, lane, group, held_at))
    cursor.delivered += n
    for some in taken:
        if some.redelivered:
            tx.tally.add(group.id, "redelivered", ranges.count(some.ranges))
    turn = turn or cursor.served < tx.now - SECOND
    served = tx.tick() if n and turn else cursor.served  # a lane without messages keeps its turn
    if n and ready == cursor.ready and served == cursor.served:
        tx.counted(cursor)
    else:
        cursor.ready, cursor.served = ready, served
        tx.changed(cursor)
    return taken


def take_bytes(tx: Tx, segment: Segment, first: int, stop: int) -> int:
    """Return how many messages of [first, stop) have room in `tx.bytes_left`, and reduce it."""
    left, lo, hi = tx.bytes_left, first - segment.first, stop - segment.first
    if left >= UNLIMITED:
        return hi - lo
    whole = hi - lo == segment.count
    size = segment.bytes if whole else tx.body(segment).size(lo, hi)
    if size <= left:
        tx.bytes_left = left - size
        return hi - lo
    tx.bytes_left = 0
    ends = tx.body(segment).joined().ends
    return bisect_right(ends, left + (ends[lo - 1] if lo else 0), lo, hi) - lo


def _due(tx: Tx, queue: Queue, group: Group, lane: Lane, cursor: Cursor, want: int) -> list[Claim]:
    """Return the due claims, after dead-lettering those that waited too long."""
    while True:
        claims = tx.due_claims(lane.id, group.id, want)
        late = [c for c in claims if _waited_too_long(tx, queue, group, lane, cursor, c)]
        if not late:
            return claims


def _more_due(tx: Tx, lane: Lane, group: Group, held_at: int | None) -> bool:
    due = tx.due_claims(lane.id, group.id, 1)
    return bool(due) and (held_at is None or due[0].ranges[0] < held_at)


def _take_due(
    tx: Tx, lane: Lane, want: int, held_at: int | None, claims: list[Claim]
) -> list[TakenMessages]:
    stop = _stop_after(claims, want)
    if held_at is not None:
        stop = min(stop, held_at)
    if want > tx.bytes_left // MAX_PAYLOAD:  # fewer have room, however large they are
        stop = _stop_within_bytes(tx, lane, claims, stop)
    taken: list[TakenMessages] = []
    for claim in claims:
        part = ranges.clip(claim.ranges, 0, stop)
        if not part:
            continue
        claim.ranges = ranges.difference(claim.ranges, part)
        tx.save_claim(claim) if claim.ranges else tx.drop_claim(claim)
        _merge(taken, claim, part)
    for one in taken:
        one.spans = list(tx.segments_over(lane.id, one.ranges))
    return taken


def _stop_after(claims: list[Claim], want: int) -> int:
    """Return the sequence below which the `want` lowest messages of these claims lie."""
    everything: Ranges = []
    for claim in claims:
        everything = ranges.union(everything, claim.ranges)
    some = ranges.lowest(everything, want)
    return some[-1] if some else 0


def _stop_within_bytes(tx: Tx, lane: Lane, claims: list[Claim], stop: int) -> int:
    """Return the sequence before which the messages of these claims have room, but at least one."""
    wanted = ranges.clip(ranges.union_all(claim.ranges for claim in claims), 0, stop)
    for segment, first, last in tx.segments_over(lane.id, wanted):
        fits = take_bytes(tx, segment, first, last)
        if fits < last - first:
            return first + max(fits, int(first == wanted[0]))
    return stop


def _merge(taken: list[TakenMessages], claim: Claim, part: Ranges) -> None:
    """Add part of a claim to the taken messages; parts with equal counters are merged."""
    for one in taken:
        if (one.deliveries - 1, one.failures, one.redelivered, one.error) == (
            claim.deliveries, claim.failures, bool(claim.redelivered), claim.error
        ):  # fmt: skip
            one.ranges = ranges.union(one.ranges, part)
            one.since = min(one.since, claim.since)
            return
    taken.append(
        TakenMessages(
            part,
            [],
            claim.since,
            claim.deliveries + 1,
            claim.failures,
            bool(claim.redelivered),
            claim.error,
        )
    )


def _waited_too_long(
    tx: Tx, queue: Queue, group: Group, lane: Lane, cursor: Cursor, claim: Claim
) -> bool:
    limit = queue.options.max_wait_seconds
    if limit is None or claim.redelivered or claim.since + micros(limit) > tx.now:
        return False
    _dead_letter_waited(tx, group, lane, cursor, claim.ranges, claim.since + micros(limit), limit)
    tx.drop_claim(claim)
    return True


def _dead_letter_waited(
    tx: Tx, group: Group, lane: Lane, cursor: Cursor, which: Ranges, at: int, limit: float
) -> None:
    reason = f"waited longer than {limit:g} s for a first delivery"
    add_dead_letters(
        tx, group, lane, cursor, which, "max_wait", reason, deliveries=0, failures=0, at=at
    )


def _take_new(
    tx: Tx, queue: Queue, group: Group, lane: Lane, cursor: Cursor, want: int
) -> list[TakenMessages]:
    """Take messages that were never delivered; stops early when it passes too many segments."""
    taken: list[TakenMessages] = []
    passed = 0
    while want > 0 and cursor.next < lane.head and passed < PASSED_AT_ONCE and tx.bytes_left > 0:
        before = passed
        for segment in tx.segments_from(lane.id, cursor.next):
            _pass_gap(tx, lane, cursor, segment.first)
            # Deleted messages reduce the result, so the same segment may be read again.
            while (
                want > 0 and cursor.next < segment.stop and passed == before and tx.bytes_left > 0
            ):
                if _passed_now(tx, queue, group, segment):
                    passed += _pass_run(tx, queue, group, lane, cursor, segment)
                else:
                    want -= _take_segment(tx, lane, cursor, segment, want, taken)
            ended = want <= 0 or tx.bytes_left <= 0
            if ended or cursor.next >= lane.head or passed > before:
                break
        else:
            _pass_gap(tx, lane, cursor, lane.head)
    return taken


def _passed_now(tx: Tx, queue: Queue, group: Group, segment: Segment) -> bool:
    """Return whether a segment has no message to deliver now."""
    others = segment.for_group not in (None, group.id)
    return others or segment.delayed(tx.now) or _too_old(tx, queue, segment)


def _pass_run(
    tx: Tx, queue: Queue, group: Group, lane: Lane, cursor: Cursor, segment: Segment
) -> int:
    """Pass a segment together with the following ones that are passed for the same reason.

    Returns the cost: a run costs little more than a single segment.
    """
    hides = segment.for_group not in (None, group.id)
    if not hides and (segment.for_group is not None or not segment.delayed(tx.now)):
        _pass_by(tx, queue, group, lane, cursor, segment)
        return PASSED_ALONE
    passed, stop, at = _run_from(tx, group, lane, segment, hides)
    first, cursor.next = max(cursor.next, segment.first), stop
    if hides:
        cursor.hide(stop - first)
    elif there := _present(tx, lane, cursor, first, stop):
        tx.add_claim(Claim.unleased(group.id, lane.id, there, at, since=at))
    return passed


def _run_from(
    tx: Tx, group: Group, lane: Lane, segment: Segment, hides: bool
) -> tuple[int, int, int]:
    """Find consecutive segments that are all copies for other groups, or all delayed.

    Returns how many there are, where they end, and when the first of them is due.
    """
    run = tx.one("odd_run", lane.id, segment.first, DELAYED_RUN, group.id)
    assert run is not None
    count, messages, stop, at, delayed, copies, own = run
    alike = copies - own == count if hides else copies == 0 and delayed == count and at > tx.now
    if alike and messages == stop - segment.first:
        return count, stop, at or 0
    passed, stop, at = 0, segment.first, segment.due_at
    for odd in tx.odd_segments(lane, segment.first, DELAYED_RUN):
        if hides:
            alike = odd.for_group not in (None, group.id)
        else:
            alike = odd.for_group is None and odd.delayed(tx.now)
        if odd.first != stop or not alike:
            break
        passed, stop, at = passed + 1, odd.stop, min(at, odd.not_before or at)
    return passed, stop, at


def _pass_gap(tx: Tx, lane: Lane, cursor: Cursor, stop: int) -> None:
    """Move a cursor over segments that were trimmed."""
    first = cursor.next
    if first >= stop:
        return
    gone = tx.gone(lane, first, stop)
    if gone != [first, stop]:
        raise StorageFailed("the file is damaged: messages are missing; restore a backup")
    hidden = ranges.count(tx.gone_copies(lane, cursor.group_id, first, stop))
    cursor.hide(hidden)
    cursor.purged += stop - first - hidden
    cursor.next = stop


def _take_segment(
    tx: Tx, lane: Lane, cursor: Cursor, segment: Segment, want: int, taken: list[TakenMessages]
) -> int:
    """Take from the next segment of a cursor, and move the cursor."""
    first = max(cursor.next, segment.first)
    stop = min(segment.stop, first + want)
    stop = first + max(1, take_bytes(tx, segment, first, stop))
    there = _present(tx, lane, cursor, first, stop)
    cursor.next = stop
    if there:
        _add(taken, segment, there)
    return ranges.count(there)


def _pass_by(
    tx: Tx, queue: Queue, group: Group, lane: Lane, cursor: Cursor, segment: Segment
) -> None:
    """Move a cursor past a segment that has no message to deliver now."""
    _pass_gap(tx, lane, cursor, segment.first)
    first = max(cursor.next, segment.first)
    cursor.next = segment.stop
    if segment.for_group not in (None, group.id):
        cursor.hide(segment.stop - first)
        return
    there = _present(tx, lane, cursor, first, segment.stop)
    if not there:
        return
    if _too_old(tx, queue, segment):
        limit = queue.options.max_wait_seconds or 0
        _dead_letter_waited(tx, group, lane, cursor, there, segment.due_at + micros(limit), limit)
    else:
        _set_aside(tx, group, segment, there)


def _too_old(tx: Tx, queue: Queue, segment: Segment) -> bool:
    limit = queue.options.max_wait_seconds
    return (
        limit is not None
        and segment.due_at + micros(limit) <= tx.now
        and not carried_counters(segment).redelivered
    )


def _present(tx: Tx, lane: Lane, cursor: Cursor, first: int, stop: int) -> Ranges:
    """Return the stored messages of [first, stop); deleted ones are counted as purged."""
    if first >= lane.gone_to:
        return [first, stop]
    there = ranges.difference([first, stop], tx.gone(lane, first, stop))
    cursor.purged += stop - first - ranges.count(there)
    return there


def _set_aside(tx: Tx, group: Group, segment: Segment, there: Ranges) -> None:
    """Claim messages that are not delivered now, so that the cursor can pass them."""
    start = carried_counters(segment)
    at = segment.not_before if segment.delayed(tx.now) else None
    redelivered = COPIED if start.redelivered else 0
    tx.add_claim(
        Claim.unleased(
            group.id, segment.lane, there, at, segment.due_at, start.deliveries, start.failures,
            redelivered, start.error,
        )
    )  # fmt: skip


def _add(taken: list[TakenMessages], segment: Segment, there: Ranges) -> None:
    start = carried_counters(segment)
    counters = (start.deliveries + 1, start.failures, start.redelivered, start.error)
    if len(there) == 2:
        spans = [(segment, there[0], there[1])]
    else:
        spans = [(segment, first, stop) for first, stop in ranges.pairs(there)]
    last = taken[-1] if taken else None
    if last and (last.deliveries, last.failures, last.redelivered, last.error) == counters:
        last.ranges = ranges.union(last.ranges, there)
        last.spans += spans
    else:
        taken.append(TakenMessages(there, spans, segment.due_at, *counters))


def dead_letter_overdue(tx: Tx, lane_id: LaneId, group_id: GroupId) -> tuple[int, bool]:
    """Dead-letter messages that waited too long; returns how many, and whether there are more.

    All segments pushed that long ago are read, because a segment pushed later may be older than a
    delayed one or a copy; those are claimed.
    """
    group, lane, cursor = tx.group_by_id(group_id), tx.lane(lane_id), tx.cursor(lane_id, group_id)
    queue = tx.queue_by_id(lane.queue) if lane else None
    if not (group and lane and cursor and queue) or queue.options.max_wait_seconds is None:
        return 0, False
    dead, looked = cursor.dead, 0
    for claim in tx.due_claims(lane.id, group.id, AT_ONCE):
        looked += _waited_too_long(tx, queue, group, lane, cursor, claim)
    before = tx.now - micros(queue.options.max_wait_seconds)
    for segment in islice(tx.segments_from(lane.id, cursor.next), AT_ONCE - looked):
        if segment.created_at > before:
            break
        looked += 1
        _pass_by(tx, queue, group, lane, cursor, segment)
    if looked:
        cursor.ready = True  # some messages may have been claimed as due
        tx.changed(cursor)
    return cursor.dead - dead, looked >= AT_ONCE


def may_be_overdue(tx: Tx, limit: int, lane: LaneId, group_id: GroupId) -> bool:
    """Return whether a due message waited too long, so that a write is worthwhile."""
    due = tx.due_claims(lane, group_id, AT_ONCE)
    return any(not claim.redelivered and claim.since + limit <= tx.now for claim in due)


def take_with_takeover(
    tx: Tx, queue: Queue, group: Group, lane: Lane, take: Callable[[], list[TakenMessages]]
) -> list[TakenMessages]:
    """Take from a lane, and take over the messages that a yielding lease holds of its partition.

    After a failure in an ordered group, the holder may settle the rest of its batch until a
    delivery from the same partition takes it over. If no message can be delivered, the rest stays
    with its holder.
    """
    home = lane.partition
    if group.rules.ordering != "ordered" or not tx.is_leased(group.id, home):
        return take()
    first = _rest_comes_next(tx, queue, group, lane)
    if first:
        _take_over(tx, group, home)
    taken = take()
    if taken and not first:
        _take_over(tx, group, home)
    return taken


def _rest_comes_next(tx: Tx, queue: Queue, group: Group, lane: Lane) -> bool:
    """Return whether a leased message of this lane could be delivered after its release."""
    options = queue.options
    held_at = tx.first_returned(lane.id, group.id)
    stop = lane.head if held_at is None else int(held_at)
    last = [
        below[-1] - 1
        for c in _leased_in(tx, group, lane)
        if (below := ranges.clip(c.ranges, 0, stop))
    ]
    created = tx.created_at(lane.id, max(last)) if last else None
    ages = [age for age in (options.retention_seconds, options.ttl_seconds) if age is not None]
    return created is not None and all(created > tx.now - micros(age) for age in ages)


def _take_over(tx: Tx, group: Group, partition: PartitionId) -> None:
    """Release the messages of a partition that yielding leases still hold."""
    held: dict[LeaseId, list[Mark]] = {}
    for lane in tx.lanes_in(partition):
        for claim in _leased_in(tx, group, lane):
            assert claim.lease is not None, "a leased claim without its lease"
            mark = Mark(Verdict("release"), lane.id, claim.ranges)
            held.setdefault(claim.lease, []).append(mark)
    for id, marks in held.items():
        lease = tx.lease_by_id(id)
        assert lease is not None, "a leased claim without its lease"
        settlement = Settlement(tx, group, lease, tx.claims_of_lease(lease))
        for mark in marks:
            settlement.apply(mark)
        settlement.finish()


def _leased_in(tx: Tx, group: Group, lane: Lane) -> list[Claim]:
    """Return the leased claims of a group in a lane."""
    return [c for c in tx.claims_in(lane.id, group.id, 0, lane.head) if c.state == LEASED]
