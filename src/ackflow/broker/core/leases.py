"""Leases: granted to a consumer, and read again by their token, whether settled or not."""

from ... import ranges
from ...clock import micros
from ...errors import Gone, LeaseLost
from ...ids import NO_LEASE, LaneId
from ...options import MAX_CLAIM, PENDING_OF_GROUP
from ...ranges import Ranges
from ...store.records import Claim, Cursor, Group, Lease, LeasedRanges
from ...store.tx import Tx
from ..verb import verb
from .cursors import count_from, count_never_delivered
from .handout import Handout, TakenMessages, message_runs, set_pending
from .topology import make_all_cursors


def grant(
    tx: Tx,
    group: Group,
    consumer: str,
    seconds: float,
    parts: list[LeasedRanges],
    claims: list[Claim],
    *,
    token: int | None = None,
    keeper: Cursor | None = None,
    blocks: bool = True,
) -> Lease:
    """Hold claims under one new lease; in an ordered group it blocks their partitions.

    This is the only place that grants a lease. `keeper`: the cursor of the only claim, which is of
    new messages without holes. `blocks` is False for a lease that ends in the same transaction.
    """
    expires = tx.now + micros(seconds)
    n = ranges.count(parts[0].ranges)
    for part in parts[1:]:
        n += ranges.count(part.ranges)
    lease = Lease(
        NO_LEASE, tx.new_token() if token is None else token, group.id, consumer, tx.now, expires, None, n,
        parts,
    )  # fmt: skip
    id = tx.add_lease(lease)
    for claim in claims:
        claim.lease, claim.at = id, expires
        if keeper is None:
            tx.add_claim(claim)
        else:
            tx.add_plain_claim(claim, keeper)
    tx.cache.keep_lease(lease, claims)
    if blocks and group.rules.ordering == "ordered":
        lanes = [tx.lane(part.lane) for part in parts]
        for partition in {lane.partition for lane in lanes if lane is not None}:
            tx.block_partition(group.id, partition, True)
    return lease


def split_for_claims(which: Ranges) -> list[Ranges]:
    """Split a range set into sets of at most MAX_CLAIM messages, the limit of one claim."""
    if ranges.count(which) <= MAX_CLAIM:
        return [which]
    sets = []
    while which:
        lowest = ranges.lowest(which, MAX_CLAIM)
        sets.append(lowest)
        which = ranges.clip(which, lowest[-1], which[-1])
    return sets


@verb("read-only", name="queue_of_lease", lease="token", read_only=True, wire=False)
def queue_of_lease(tx: Tx, token: int) -> str | None:
    """Return the name of the queue of a lease, or None if the lease is unknown."""
    row = tx.lease_row(token)
    group = tx.group_by_id(row[2]) if row else None
    queue = tx.queue_by_id(group.queue) if group else None
    return queue.name if queue else None


@verb("read-only", lease="token", read_only=True)
def store_of_lease(tx: Tx, token: int) -> int:
    """Return the id of the database of a lease, even if the lease is unknown."""
    return tx.store


@verb("read-write", lease="token")
def read(tx: Tx, token: int) -> Handout:
    """Return all messages that a lease delivered; raise Gone if some no longer exist."""
    lease = tx.lease(token)
    if lease is None:
        raise LeaseLost("unknown lease: it ended too long ago, or never existed")
    return read_lease(tx, lease)


def read_lease(tx: Tx, lease: Lease) -> Handout:
    group = tx.group_by_id(lease.group_id)
    queue = tx.queue_by_id(group.queue) if group else None
    if group is None or queue is None:
        raise LeaseLost("the group of the lease was deleted")
    answer = Handout(queue.name, group.name, tx.store, lease.token, lease.expires_at)
    claims = tx.claims_of_lease(lease)
    for part in lease.parts:
        lane = tx.lane(part.lane)
        if lane is None:
            raise Gone("the queue of the lease was deleted")
        shares = leased_messages(tx, lane.id, part.ranges, claims)
        left = count_from(tx, lane, group.id, part.ranges[-1])
        runs = message_runs(tx, lane, shares, part.number, left)
        if sum(run.hi - run.lo for run in runs) != ranges.count(part.ranges):
            raise Gone("some messages of the lease are no longer stored")
        answer.runs += runs
    if group.dialect in PENDING_OF_GROUP:
        make_all_cursors(tx, group)
        set_pending(answer.runs, count_never_delivered(tx, group))
    return answer


def leased_messages(
    tx: Tx, lane: LaneId, which: Ranges, claims: list[Claim]
) -> list[TakenMessages]:
    """Split a lease's messages into those still held, with their counters, and those settled."""
    shares = []
    for claim in claims:
        if claim.lane == lane and (part := ranges.intersection(which, claim.ranges)):
            which = ranges.difference(which, part)
            spans = list(tx.segments_over(lane, part))
            shares.append(
                TakenMessages(part, spans, claim.since, claim.deliveries, claim.failures,
                      bool(claim.redelivered), claim.error)
            )  # fmt: skip
    if which:
        shares.append(
            TakenMessages(which, list(tx.segments_over(lane, which)), 0, 1, 0, True, None)
        )
    return shares
