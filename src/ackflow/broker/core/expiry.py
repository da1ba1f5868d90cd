"""Time passes: leases end, waiting messages become due, old messages go.

Pop and settle call this before they look, so that nothing depends on when upkeep ran.
"""

from collections.abc import Iterable
from time import monotonic
from typing import NamedTuple

from msgspec import structs

from ... import ranges
from ...clock import micros
from ...options import MAX_CLAIM, Dead, after_expiry
from ...store.records import (
    DUE,
    LEASED,
    WAITING,
    Claim,
    Cursor,
    Fate,
    Group,
    Lane,
    Lease,
    LeasePart,
    Queue,
    Segment,
    tell_acks,
)
from ...store.tx import Tx
from .bury import bury

SLICE_SECONDS = 0.010
LEASES_AT_ONCE = 200
CLAIMS_AT_ONCE = 256
DELAYED_RUN = 500  # delayed segments that are passed by a cursor as one claim


class Refreshed(NamedTuple):
    """How many leases ended, whether anything changed, and whether there is more to do."""

    ended: int = 0
    changed: bool = False
    more: bool = False


class Slice:
    """How much of what has come back is taken in one transaction: for a time, and then as long as
    fewer messages came back than are wanted. A slice that is the whole never ends."""

    def __init__(self, want: int, whole: bool) -> None:
        self.whole = whole
        self._want = want
        self._until = monotonic() + SLICE_SECONDS

    def at_most(self, limit: int) -> int:
        return -1 if self.whole else max(limit, self._want)

    def count(self, n: int) -> None:
        self._want -= n

    @property
    def over(self) -> bool:
        return not self.whole and self._want <= 0 and monotonic() > self._until


def refresh(tx: Tx, group: Group, want: int = 1, whole: bool = False) -> Refreshed:
    """End the leases of a group that are over, and wake what is due.

    It stops after a slice: what is left counts as leased or waiting until the next one. `whole`:
    all of it, for verbs that change the rules by which a lease ends.
    """
    if tx.now < tx.cache.next_times.get(group.id, 0):
        return Refreshed()
    over, due = tx.all("over_or_due", group.id, tx.now)[0]
    some = Slice(min(want, MAX_CLAIM), whole)
    ended, more = _end_over(tx, group, some) if over else (0, False)
    if due:
        more = _wake(tx, group, some) or more
    tx.next_time(group.id)
    return Refreshed(ended, bool(over or due), more)


def _end_over(tx: Tx, group: Group, some: Slice) -> tuple[int, bool]:
    """End leases that are over; answers with how many, and whether there may be more."""
    limit = some.at_most(LEASES_AT_ONCE)
    leases, more = tx.leases_over(group.id, limit)
    for ended, (id, n) in enumerate(leases.items()):
        if some.over:
            return ended, True
        lease = tx.lease_by_id(id)
        assert lease is not None, "a leased claim without its lease"
        expire(tx, group, lease)
        some.count(n)
    return len(leases), more


def _wake(tx: Tx, group: Group, some: Slice) -> bool:
    """Make due what waited until now; answers whether there may be more."""
    limit = some.at_most(CLAIMS_AT_ONCE)
    lanes = tx.wake_due(group.id, limit)
    for lane in set(lanes):
        make_ready(tx, lane, group.id)
    some.count(len(lanes))
    delayed = tx.delayed_due(group.id, limit)
    for claim in delayed:
        if some.over:
            return True
        some.count(1)
        _wake_delayed(tx, group, claim)
    return max(len(lanes), len(delayed)) >= limit > 0


def _wake_delayed(tx: Tx, group: Group, claim: Claim) -> None:
    """Make due those of a claim of delayed messages whose own time has come; the others wait on.

    Waiting for a first delivery is counted from each one's own time, which matters only where it
    is limited.
    """
    lane = tx.lane(claim.lane)
    queue = tx.queue_by_id(group.queue)
    assert lane is not None
    assert queue is not None
    segments = [
        (odd, part)
        for odd in tx.odd_segments(lane, claim.ranges[0], DELAYED_RUN)
        if (part := ranges.clip(claim.ranges, odd.first, odd.stop))
    ]
    later = [(odd.not_before or 0, part) for odd, part in segments if odd.delayed(tx.now)]
    due = ranges.difference(claim.ranges, ranges.union_all(part for _, part in later))
    since: dict[int, list[ranges.Ranges]] = {claim.since: [due]}
    if queue.options.max_wait_seconds is not None:
        since = {}
        for odd, part in segments:
            if not odd.delayed(tx.now):
                since.setdefault(odd.not_before or claim.since, []).append(part)
    if later:
        claim.ranges = ranges.union_all(part for _, part in later)
        claim.at = claim.since = min(at for at, _ in later)
        tx.save_claim(claim)
    else:
        tx.drop_claim(claim)
    for began, parts in since.items():
        some = ranges.union_all(parts)
        if some:
            tx.add_claim(structs.replace(claim, ranges=some, state=DUE, at=None, since=began))
    make_ready(tx, claim.lane, group.id)


def refresh_stretch(tx: Tx, group: Group, lane: int, first: int, stop: int) -> None:
    """End the leases that are over and hold something of [first, stop) of a lane."""
    over = {
        claim.lease
        for claim in tx.claims_in(lane, group.id, first, stop)
        if claim.state == LEASED and claim.at is not None and claim.at <= tx.now
    }
    for id in over:
        lease = tx.lease_by_id(id or 0)
        assert lease is not None, "a leased claim without its lease"
        expire(tx, group, lease)


def expire(tx: Tx, group: Group, lease: Lease) -> None:
    """Take back what a lease past its end still held. All times follow from that end."""
    ended = lease.expires_at
    lanes = set()
    claims = tx.claims_of_lease(lease)
    tell_acks(lease, claims)
    if claims:
        tx.tally.add(group.id, "leases_expired", 1)
    for claim in claims:
        lanes.add(claim.lane)
        note(lease, "expired", ended, claim.lane, claim.ranges)
        fate = after_expiry(group.rules, claim.deliveries, ended)
        if isinstance(fate, Dead):
            lane, cursor = tx.lane(claim.lane), tx.cursor(claim.lane, group.id)
            assert lane is not None
            assert cursor is not None
            reason = claim.error or f"not settled in {claim.deliveries} deliveries"
            bury(tx, group, lane, cursor, claim.ranges, fate.kind, reason,
                 deliveries=claim.deliveries, failures=claim.failures, at=ended, error=claim.error,
                 consumer=lease.consumer)  # fmt: skip
            tx.drop_claim(claim)
            continue
        claim.redelivered, claim.lease = True, None
        claim.state, claim.at = (DUE, None) if fate.at <= tx.now else (WAITING, fate.at)
        tx.save_claim(claim)
        if claim.state == DUE:
            make_ready(tx, claim.lane, group.id)
    lease.ended_at = ended
    tx.save_lease(lease)
    unblock(tx, group, lanes)


def expire_if_over(tx: Tx, group: Group, lease: Lease) -> bool:
    if lease.ended_at is None and lease.expires_at <= tx.now:
        expire(tx, group, lease)
        return True
    return False


def make_ready(tx: Tx, lane: int, grp: int) -> None:
    cursor = tx.cursor(lane, grp)
    if cursor is not None and not cursor.ready:
        cursor.ready = True
        tx.changed(cursor)


def unblock(tx: Tx, group: Group, lanes: set[int]) -> None:
    """Let an ordered group be served again from partitions in which it holds nothing any more."""
    if group.rules.ordering != "ordered":
        return
    for partition in {cursor.partition for lane in lanes if (cursor := tx.cursor(lane, group.id))}:
        if tx.value("partition_leased", group.id, partition) is None:
            tx.block_partition(group.id, partition, False)


def note(lease: Lease, verb: str, at: int, lane: int, which: ranges.Ranges) -> None:
    """Write into a lease what became of some of its messages; times are kept to the second."""
    for fate in reversed(lease.fates):
        if fate.verb == verb and fate.lane == lane:
            if at - fate.at < micros(1):
                fate.ranges = ranges.union(fate.ranges, which)
                return
            break
    lease.fates.append(Fate(verb, at, lane, which))


def drop_segment(tx: Tx, queue: Queue, lane: Lane, segment: Segment) -> None:
    """Remove a segment, and the transaction ids that are known as long as it is there."""
    rest = tx.rest(segment) if queue.options.dedup_seconds is None else None
    for index, txid in rest.txids.items() if rest else ():
        tx.run("drop_txid", lane.partition, txid, lane.id, segment.first + index)
    tx.drop_segment(segment)


def drop_segments(tx: Tx, queue: Queue, lane: Lane, segments: list[Segment]) -> None:
    """Remove segments from anywhere in a lane."""
    for segment in segments:
        drop_segment(tx, queue, lane, segment)
    close_gaps(tx, lane, segments)


def close_gaps(tx: Tx, lane: Lane, dropped: list[Segment]) -> None:
    """Move the base of a lane to what is left; what is missing behind it is noted as gone."""
    first = tx.value("first_segment", lane.id)
    base = lane.head if first is None else int(first)
    note_deleted(tx, lane, dropped)
    for segment in dropped:
        if segment.first > base:
            tx.add_gone(lane, segment.first, segment.stop, segment.for_group)
    move_base(tx, lane, base)


def note_deleted(tx: Tx, lane: Lane, dropped: list[Segment]) -> None:
    """Leave a note for `why` of what was deleted from segments before they were dropped: then it is
    no longer told from what was trimmed."""
    deleted = ranges.union_all(tx.gone(lane, segment.first, segment.stop) for segment in dropped)
    for cursor in tx.cursors_of_lane(lane.id) if deleted else ():
        remember(tx, cursor.grp, lane.id, deleted, "gone")


def move_base(tx: Tx, lane: Lane, base: int) -> None:
    if base > lane.base:
        lane.base = base
        tx.cut_gone(lane, base)
    tx.save_lane(lane)


def hidden_in(tx: Tx, lane: Lane, grp: int, first: int, stop: int) -> ranges.Ranges:
    """The part of [first, stop) that is made of copies for other groups."""
    hidden: ranges.Ranges = []
    for odd in tx.odd_segments(lane, first):
        if odd.first >= stop:
            break
        if odd.for_group not in (None, grp):
            part = ranges.clip([odd.first, odd.stop], first, stop)
            hidden = ranges.union(hidden, part) if part else hidden
    copies = tx.gone_copies(lane, grp, first, stop)
    return ranges.union(hidden, copies) if copies else hidden


def to_come(tx: Tx, lane: Lane, grp: int, start: int) -> int:
    """How many messages of a lane there are for a group from a sequence on."""
    if start >= lane.head:
        return 0
    if start >= lane.odd:
        return lane.head - start - tx.gone_after(lane, grp, start)
    there = ranges.difference([start, lane.head], hidden_in(tx, lane, grp, start, lane.head))
    return ranges.count(ranges.difference(there, tx.gone(lane, start, lane.head)))


def unread(tx: Tx, lane: Lane, cursor: Cursor) -> int:
    """How many messages of a lane there are for a group from its cursor on."""
    if lane.gone_to > cursor.next:
        return to_come(tx, lane, cursor.grp, cursor.next)
    return lane.head - cursor.next - (lane.copies - cursor.copies)


def never_handed_out(tx: Tx, group: Group) -> int:
    """How many messages a group has still to be given for the first time, over all its lanes."""
    tx.flush()
    total = 0
    for (id,) in tx.all("ready_lanes", group.id):  # a lane with something new is marked
        lane, cursor = tx.lane(id), tx.cursor(id, group.id)
        if lane is not None and cursor is not None:
            total += unread(tx, lane, cursor)
    return total


def drop_old(tx: Tx, queue: Queue, lane: Lane, limit: int) -> int:
    """Remove up to `limit` segments older than the queue's retention, read or not; answers with the
    number of messages."""
    age = queue.options.retention_seconds
    if age is None or lane.base >= lane.head:
        return 0
    before = tx.now - micros(age)
    created = tx.created_at(lane.id, lane.base)
    if created is None or created > before:
        return 0
    claims = tx.claims_of_lane(lane.id)
    pass_all(tx, queue, lane, claims, sequence_at(tx, lane, before + 1))
    held: ranges.Ranges = []
    for claim in claims:
        held = ranges.union(held, claim.ranges) if claim.state == LEASED else held
    old: list[Segment] = []
    for segment in tx.headers_from(lane.id, lane.base):
        if segment.created_at > before or len(old) >= limit:
            break
        # What a consumer holds goes only when its lease is over.
        if not ranges.clip(held, segment.first, segment.stop):
            old.append(segment)
    gone = [ranges.count(tx.gone(lane, segment.first, segment.stop)) for segment in old]
    if old:
        drop_segments(tx, queue, lane, old)
    return sum(segment.count for segment in old) - sum(gone)


def sequence_at(tx: Tx, lane: Lane, time: int) -> int:
    """The first sequence pushed at or after a time."""
    found = tx.value("segment_since", lane.id, time)
    return lane.head if found is None else int(found)


def pass_all(tx: Tx, queue: Queue, lane: Lane, claims: list[Claim], stop: int) -> int:
    """Let every group pass what is too old, but for what is held; answers with how many it was for
    all of them together."""
    waiting = {c.grp for c in claims if c.state != LEASED and c.ranges[0] < stop}
    passed = 0
    for cursor in tx.cursors_of_lane(lane.id):
        if cursor.next < stop or cursor.grp in waiting:
            passed += pass_over(tx, lane, cursor, stop, "expired", leased=False)
    if passed:
        tx.touched.add(queue.name)
    return passed


def pass_over(
    tx: Tx, lane: Lane, cursor: Cursor, stop: int, counter: str, leased: bool = True
) -> int:
    """Move a cursor to `stop` and end its claims below that, counted as skipped, purged, expired.

    The tokens of leases that held some of it answer LeaseLost from then on, unless `leased` is
    False: then what is leased is left alone. Answers with how many messages were passed.
    """
    ended: dict[int, Ended] = {}
    over: ranges.Ranges = []
    passed = 0
    for claim in tx.claims_in(lane.id, cursor.grp, 0, stop):
        below = ranges.clip(claim.ranges, 0, stop)
        if not below or (claim.state == LEASED and not leased):
            continue
        passed += ranges.count(below)
        if claim.state == LEASED and claim.lease is not None:
            held = ended.get(claim.lease) or Ended(held_by(tx, claim), [])
            ended[claim.lease] = Ended(held.lease, ranges.union(held.ranges, below))
        else:
            over = ranges.union(over, below)
        claim.ranges = ranges.difference(claim.ranges, below)
        tx.save_claim(claim) if claim.ranges else tx.drop_claim(claim)
        cursor.ready = True  # it may have held back what follows it
    if cursor.next < stop:
        hidden = hidden_in(tx, lane, cursor.grp, cursor.next, stop)
        there = ranges.difference([cursor.next, stop], hidden)
        left = ranges.difference(there, tx.gone(lane, cursor.next, stop))
        cursor.hide(ranges.count(hidden))
        cursor.purged += ranges.count(there) - ranges.count(left)
        passed += ranges.count(left)
        over = ranges.union(over, left)
        cursor.next = stop
    setattr(cursor, counter, getattr(cursor, counter) + passed)
    tx.changed(cursor)
    end_leases(tx, lane.id, ended.values(), counter)
    if over:
        remember(tx, cursor.grp, lane.id, over, "retention" if counter == "expired" else counter)
    return passed


def remember(tx: Tx, grp: int, lane: int, over: ranges.Ranges, verb: str) -> None:
    """Leave a note for `why` in the form of a lease that nobody held."""
    note = Lease(0, tx.new_token(), grp, "", tx.now, tx.now, None, ranges.count(over),
                 [LeasePart(lane, over, 0)], [Fate(verb, tx.now, lane, over)])  # fmt: skip
    tx.add_lease(note)
    note.ended_at = tx.now
    tx.save_lease(note)


class Ended(NamedTuple):
    """What was taken from a lease, and the lease as it was before that."""

    lease: Lease
    ranges: ranges.Ranges


def held_by(tx: Tx, claim: Claim) -> Lease:
    """The lease of a claim; to be read before the claim is changed by anything but an ack."""
    lease = tx.lease_by_id(claim.lease or 0)
    assert lease is not None, "a leased claim without its lease"
    return lease


def end_leases(tx: Tx, lane: int, ended: Iterable[Ended], verb: str) -> None:
    """Write into leases that part of what they held was taken from them."""
    for lease, which in ended:
        note(lease, verb, tx.now, lane, which)
        if not tx.claims_of_lease(lease):
            lease.ended_at = tx.now
        tx.save_lease(lease)
        group = tx.group_by_id(lease.grp)
        if group is not None:
            unblock(tx, group, {lane})
