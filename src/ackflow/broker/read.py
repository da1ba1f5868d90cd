"""A lease can be read again by its token: the very same messages, settled meanwhile or not."""

from .. import ranges
from ..errors import Gone, LeaseLost
from ..ranges import Ranges
from ..store.rows import Claim, Lease
from ..store.tx import Tx
from .handout import Handout, Run, Taken, runs_of


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
    claims = tx.claims_of_lease(lease.id)
    for lane_id, which in lease.parts:
        lane = tx.lane(lane_id)
        home = tx.partition_by_id(lane.partition) if lane else None
        if lane is None or home is None:
            raise Gone("the queue of the lease was deleted")
        cursor = tx.cursor(lane_id, group.id)
        number = max(0, cursor.delivered - ranges.count(which)) if cursor else 0
        runs: list[Run] = []
        for taken in _shares(tx, lane_id, which, claims):
            runs += runs_of(tx, taken, home.name, lane.priority, lane.head, number)
        if sum(run.hi - run.lo for run in runs) != ranges.count(which):
            raise Gone("some messages of the lease are no longer stored")
        answer.runs += sorted(runs, key=lambda run: run.lo)
    return answer


def _shares(tx: Tx, lane: int, which: Ranges, claims: list[Claim]) -> list[Taken]:
    """What is still held, with its counters, and what is settled, whose counters are over."""
    shares = []
    for claim in claims:
        if claim.lane == lane and (part := ranges.intersection(which, claim.ranges)):
            which = ranges.difference(which, part)
            pieces = list(tx.segments_over(lane, part))
            shares.append(
                Taken(part, pieces, claim.since, claim.deliveries, claim.failures,
                      claim.redelivered, claim.error)
            )  # fmt: skip
    if which:
        shares.append(Taken(which, list(tx.segments_over(lane, which)), 0, 1, 0, True, None))
    return shares
