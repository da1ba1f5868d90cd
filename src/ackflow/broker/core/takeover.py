"""The rest of a batch after a failure in an ordered group: its holder may settle it until a hand-out
from the same partition takes it over."""

from collections.abc import Callable

from ... import ranges
from ...clock import micros
from ...store.records import LEASED, Claim, Group, Lane, Queue
from ...store.tx import Tx
from .handout import Taken
from .settle import Mark, Settlement, Verdict


def take_in_order(
    tx: Tx, queue: Queue, group: Group, lane: Lane, take: Callable[[], list[Taken]]
) -> list[Taken]:
    """Take from a lane, and take over what a yielding lease holds of its partition if that gives
    something; if not, the rest of the batch stays with its holder."""
    home = lane.partition
    if group.rules.ordering != "ordered" or tx.value("partition_leased", group.id, home) is None:
        return take()
    first = _rest_comes_next(tx, queue, group, lane)
    if first:
        _take_over(tx, group, home)
    taken = take()
    if taken and not first:
        _take_over(tx, group, home)
    return taken


def _rest_comes_next(tx: Tx, queue: Queue, group: Group, lane: Lane) -> bool:
    """Whether something that is held of this lane could be handed out once it is released."""
    options = queue.options
    held_at = tx.value("first_returned", lane.id, group.id)
    stop = lane.head if held_at is None else int(held_at)
    last = [
        below[-1] - 1
        for c in _leased_in(tx, group, lane)
        if (below := ranges.clip(c.ranges, 0, stop))
    ]
    created = tx.created_at(lane.id, max(last)) if last else None
    ages = [age for age in (options.retention_seconds, options.ttl_seconds) if age is not None]
    return created is not None and all(created > tx.now - micros(age) for age in ages)


def _take_over(tx: Tx, group: Group, partition: int) -> None:
    """Release what yielding leases still hold of a partition, as something of it is handed out."""
    held: dict[int, list[Mark]] = {}
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
    """What a group holds of a lane under leases."""
    return [c for c in tx.claims_in(lane.id, group.id, 0, lane.head) if c.state == LEASED]
