"""A lease can be read again by its token: the very same messages, settled meanwhile or not."""

from ... import ranges
from ...errors import Gone, LeaseLost
from ...options import PENDING_OF_GROUP
from ...ranges import Ranges
from ...store.records import Claim, Lease
from ...store.tx import Tx
from .cursors import never_handed_out, to_come
from .handout import Handout, Taken, count_pending, runs_of
from .topology import make_all


def read(tx: Tx, token: int) -> Handout:
    """Hand over again what a lease handed out; never less than all of it."""
    lease = tx.lease(token)
    if lease is None:
        raise LeaseLost("the lease is not known; it ended too long ago, or never was")
    return read_lease(tx, lease)


def read_lease(tx: Tx, lease: Lease) -> Handout:
    group = tx.group_by_id(lease.grp)
    queue = tx.queue_by_id(group.queue) if group else None
    if group is None or queue is None:
        raise LeaseLost("the group of the lease was deleted")
    answer = Handout(queue.name, group.name, tx.store, lease.token, lease.expires_at)
    claims = tx.claims_of_lease(lease)
    for part in lease.parts:
        lane = tx.lane(part.lane)
        if lane is None:
            raise Gone("the queue of the lease was deleted")
        shares = shares_of(tx, lane.id, part.ranges, claims)
        left = to_come(tx, lane, group.id, part.ranges[-1])
        runs = runs_of(tx, lane, shares, part.number, left)
        if sum(run.hi - run.lo for run in runs) != ranges.count(part.ranges):
            raise Gone("some messages of the lease are no longer stored")
        answer.runs += runs
    if group.dialect in PENDING_OF_GROUP:
        make_all(tx, group)
        count_pending(answer.runs, never_handed_out(tx, group))
    return answer


def shares_of(tx: Tx, lane: int, which: Ranges, claims: list[Claim]) -> list[Taken]:
    """What is still held, with its counters, and what is settled, whose counters are over."""
    shares = []
    for claim in claims:
        if claim.lane == lane and (part := ranges.intersection(which, claim.ranges)):
            which = ranges.difference(which, part)
            pieces = list(tx.segments_over(lane, part))
            shares.append(
                Taken(part, pieces, claim.since, claim.deliveries, claim.failures,
                      bool(claim.redelivered), claim.error)
            )  # fmt: skip
    if which:
        shares.append(Taken(which, list(tx.segments_over(lane, which)), 0, 1, 0, True, None))
    return shares
