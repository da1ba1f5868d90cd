"""Cursors: the position of a group in a lane, and the messages that it passes when it moves."""

from collections.abc import Iterable
from typing import NamedTuple

from ... import ranges
from ...ids import NO_LEASE, GroupId, LaneId
from ...store.records import LEASED, Claim, Cursor, Group, Lane, Lease, Queue
from ...store.tx import Tx
from .history import record_fate, record_history


def make_ready(tx: Tx, lane: LaneId, group_id: GroupId) -> None:
    """Mark a lane ready: it may have messages for a group."""
    cursor = tx.cursor(lane, group_id)
    if cursor is not None and not cursor.ready:
        cursor.ready = True
        tx.changed(cursor)


def unblock_partitions(tx: Tx, group: Group, lanes: set[LaneId]) -> None:
    """Unblock the partitions of an ordered group in which it no longer holds a lease."""
    if group.rules.ordering != "ordered":
        return
    for partition in {cursor.partition for lane in lanes if (cursor := tx.cursor(lane, group.id))}:
        if not tx.is_leased(group.id, partition):
            tx.block_partition(group.id, partition, False)


def sequence_at(tx: Tx, lane: Lane, time: int) -> int:
    """Return the first sequence pushed at or after a time."""
    found = tx.value("segment_since", lane.id, time, lane.base)
    return lane.head if found is None else int(found)


def hidden_copies_in(tx: Tx, lane: Lane, group_id: GroupId, first: int, stop: int) -> ranges.Ranges:
    """Return the part of [first, stop) that consists of copies for other groups."""
    hidden: ranges.Ranges = []
    for odd in tx.odd_segments(lane, first):
        if odd.first >= stop:
            break
        if odd.for_group not in (None, group_id):
            part = ranges.clip([odd.first, odd.stop], first, stop)
            hidden = ranges.union(hidden, part) if part else hidden
    copies = tx.gone_copies(lane, group_id, first, stop)
    return ranges.union(hidden, copies) if copies else hidden


def count_from(tx: Tx, lane: Lane, group_id: GroupId, start: int) -> int:
    """Count the messages of a lane that are visible to a group, starting at a sequence."""
    if start >= lane.head:
        return 0
    if start >= lane.odd:
        return lane.head - start - tx.gone_after(lane, group_id, start)
    there = ranges.difference(
        [start, lane.head], hidden_copies_in(tx, lane, group_id, start, lane.head)
    )
    return ranges.count(ranges.difference(there, tx.gone(lane, start, lane.head)))


def count_unread(tx: Tx, lane: Lane, cursor: Cursor) -> int:
    """Count the messages of a lane that are visible to a group, starting at its cursor."""
    if lane.gone_to > cursor.next:
        return count_from(tx, lane, cursor.group_id, cursor.next)
    return lane.head - cursor.next - (lane.copies - cursor.copies)


def count_never_delivered(tx: Tx, group: Group) -> int:
    """Count the messages that were never delivered to a group, over all its lanes."""
    tx.flush()
    total = 0
    for (id,) in tx.all("ready_lanes", group.id):  # every lane with new messages is ready
        lane, cursor = tx.lane(id), tx.cursor(id, group.id)
        if lane is not None and cursor is not None:
            total += count_unread(tx, lane, cursor)
    return total


def pass_for_all_groups(tx: Tx, queue: Queue, lane: Lane, stop: int) -> int:
    """Move every group past messages that are too old, except those that are leased.

    Returns how many messages were passed, summed over the groups.
    """
    low = tx.value("lowest_unheld", lane.id)
    waiting = low is not None and int(low) < stop
    passed = 0
    for cursor in tx.cursors_of_lane(lane.id):
        if cursor.next < stop or waiting:
            passed += pass_over(tx, lane, cursor, stop, "expired", leased=False)
    if passed:
        tx.touched.add(queue.name)
    return passed


def pass_over(
    tx: Tx, lane: Lane, cursor: Cursor, stop: int, counter: str, leased: bool = True
) -> int:
    """Move a cursor to `stop`, end its claims below that, and add both to one of its counters.

    The counter is skipped, purged or expired. Leases lose the passed messages, and their tokens
    raise LeaseLost for them; with `leased` False, leased messages are left alone. Returns how many
    messages were passed.
    """
    tx.group_by_id(cursor.group_id)  # claims of a group with max_ack_pending are counted
    ended: dict[int, LostRanges] = {}
    over: ranges.Ranges = []
    passed = 0
    if leased:
        claims = tx.claims_in(lane.id, cursor.group_id, 0, stop)
    else:
        claims = tx.unleased_claims(lane.id, cursor.group_id, stop)
    for claim in claims:
        below = ranges.clip(claim.ranges, 0, stop)
        if not below:
            continue
        passed += ranges.count(below)
        if claim.state == LEASED and claim.lease is not None:
            held = ended.get(claim.lease) or LostRanges(lease_of(tx, claim), [])
            ended[claim.lease] = LostRanges(held.lease, ranges.union(held.ranges, below))
        else:
            over = ranges.union(over, below)
        claim.ranges = ranges.difference(claim.ranges, below)
        tx.save_claim(claim) if claim.ranges else tx.drop_claim(claim)
        cursor.ready = True  # an ended claim may have blocked the messages after it
    if cursor.next < stop:
        hidden = hidden_copies_in(tx, lane, cursor.group_id, cursor.next, stop)
        there = ranges.difference([cursor.next, stop], hidden)
        left = ranges.difference(there, tx.gone(lane, cursor.next, stop))
        cursor.hide(ranges.count(hidden))
        cursor.purged += ranges.count(there) - ranges.count(left)
        passed += ranges.count(left)
        over = ranges.union(over, left)
        cursor.next = stop
    setattr(cursor, counter, getattr(cursor, counter) + passed)
    tx.changed(cursor)
    take_from_leases(tx, lane.id, ended.values(), counter)
    if over:
        record_history(
            tx, cursor.group_id, lane.id, over, "retention" if counter == "expired" else counter
        )
    return passed


class LostRanges(NamedTuple):
    """The messages that were taken from a lease, and the lease as it was before."""

    lease: Lease
    ranges: ranges.Ranges


def lease_of(tx: Tx, claim: Claim) -> Lease:
    """Return the lease of a claim; call this before any change of the claim except an ack."""
    lease = tx.lease_by_id(claim.lease or NO_LEASE)
    assert lease is not None, "a leased claim without its lease"
    return lease


def take_from_leases(tx: Tx, lane: LaneId, ended: Iterable[LostRanges], verb: str) -> None:
    """Record in leases that some of their messages were taken from them."""
    for lease, which in ended:
        record_fate(lease, verb, tx.now, lane, which)
        if not tx.claims_of_lease(lease):
            lease.ended_at = tx.now
        tx.save_lease(lease)
        group = tx.group_by_id(lease.group_id)
        if group is not None:
            unblock_partitions(tx, group, {lane})
