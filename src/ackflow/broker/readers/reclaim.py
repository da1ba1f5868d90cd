"""Reclaim: lease again, under the same number, what a reader lost by expiry and no consumer took.

It counts neither as a delivery nor as a failure.
"""

from msgspec import Struct

from ... import ranges
from ...ranges import Ranges
from ...store.records import LEASED, RETURNED, Claim, Group, Lane, Lease, LeasedRanges
from ...store.tx import Tx
from ..core.leases import grant, split_for_claims
from ..core.upkeep.expiry import expire_if_over
from ..requests import SETTLE_VERBS
from .records import BatchPart, ReaderBatch, parts_of_batch, save_part


class PartState(Struct):
    """Which messages of a part are still leased, settled under its token, or neither."""

    part: BatchPart
    held: Ranges
    settled: Ranges
    missing: Ranges


def part_states(tx: Tx, group: Group, reader_batch: ReaderBatch) -> list[PartState]:
    """Return the state of each part of a batch; leases that are over are ended first."""
    leases: dict[int, tuple[Lease, list[Claim]] | None] = {}
    found = []
    for part in parts_of_batch(tx, reader_batch):
        if part.token not in leases:
            leases[part.token] = _lease(tx, group, part.token)
        found.append(_part_state(part, leases[part.token]))
    return found


def _lease(tx: Tx, group: Group, token: int) -> tuple[Lease, list[Claim]] | None:
    lease = tx.lease(token)
    if lease is None:
        return None
    if expire_if_over(tx, group, lease) or lease.ended_at is not None:
        return lease, []
    return lease, tx.claims_of_lease(lease)


def _part_state(part: BatchPart, found: tuple[Lease, list[Claim]] | None) -> PartState:
    held: Ranges = []
    settled: Ranges = []
    lease, claims = found or (None, [])
    for claim in claims:
        if claim.lane == part.lane:
            held = ranges.union(held, ranges.intersection(claim.ranges, part.ranges))
    for fate in lease.fates if lease else ():
        if fate.lane == part.lane and fate.verb in SETTLE_VERBS:
            settled = ranges.union(settled, ranges.intersection(fate.ranges, part.ranges))
    missing = ranges.difference(part.ranges, ranges.union(held, settled))
    return PartState(part, held, settled, missing)


def reclaim(
    tx: Tx, group: Group, reader_batch: ReaderBatch, seconds: float, *, whole: bool = False
) -> bool:
    """Lease again what of a batch expired and is free; returns whether nothing of it is lost.

    What another consumer has is left out of the batch from then on. `whole`: all or nothing, for a
    batch that tasks are reading and that must not change.
    """
    stands = part_states(tx, group, reader_batch)
    lost = [stand for stand in stands if stand.missing]
    if not lost:
        return True
    known: dict[int, Claim] = {}  # one record per row: parts of a lane may share a claim
    free = [(stand, _free_claims(tx, group, stand, known)) for stand in lost]
    complete = all(_union(some) == stand.missing for stand, some in free)
    if whole and not complete:
        return False
    token = _lease_again(tx, group, reader_batch, free, seconds)
    for stand, some in free:
        part = stand.part
        again, bad = _union(some), part.bad
        part.ranges = ranges.difference(part.ranges, stand.missing)
        part.bad = ranges.intersection(bad, part.ranges) if bad else []
        save_part(tx, reader_batch, part)
        if again:
            bad = ranges.intersection(bad, again) if bad else []
            save_part(tx, reader_batch, BatchPart(part.lane, token, again, bad))
    return complete


FreeClaims = list[tuple[Claim, Ranges]]


def _union(some: FreeClaims) -> Ranges:
    result: Ranges = []
    for _, part in some:
        result = ranges.union(result, part)
    return result


def _free_claims(tx: Tx, group: Group, stand: PartState, known: dict[int, Claim]) -> FreeClaims:
    """Return the unleased claims that have some of what is missing, as far as order allows."""
    lane = tx.lane(stand.part.lane)
    if lane is None or _taken_by_order(tx, group, lane):
        return []
    missing = stand.missing
    claims = [c for c in tx.claims_in(lane.id, group.id, 0, missing[-1]) if c.state != LEASED]
    if group.rules.ordering == "ordered":
        before = [ranges.difference(c.ranges, missing) for c in claims if c.returned]
        stop = min((some[0] for some in before if some), default=missing[-1])
        missing = ranges.clip(missing, 0, stop)
    found = [(c, ranges.intersection(c.ranges, missing)) for c in claims]
    return [(known.setdefault(claim.id, claim), part) for claim, part in found if part]


def _taken_by_order(tx: Tx, group: Group, lane: Lane) -> bool:
    """Return whether another live lease blocks an ordered or exclusive group here."""
    if group.rules.ordering == "exclusive":
        return (tx.lock_end(group.id) or 0) > tx.now
    if group.rules.ordering == "ordered":
        return tx.is_leased(group.id, lane.partition)
    return False


def _lease_again(
    tx: Tx,
    group: Group,
    reader_batch: ReaderBatch,
    free: list[tuple[PartState, FreeClaims]],
    seconds: float,
) -> int:
    """Grant a lease on what is free; returns its token, or 0 if there is nothing."""
    parts: dict[int, LeasedRanges] = {}
    for stand, some in free:
        if some:
            lane = stand.part.lane
            cursor = tx.cursor(lane, group.id)
            number = cursor.delivered if cursor else 0
            part = parts.setdefault(lane, LeasedRanges(lane, [], number))
            part.ranges = ranges.union(part.ranges, _union(some))
    if not parts:
        return 0
    claims = [
        new for _, some in free for claim, which in some for new in _cut_out(tx, claim, which)
    ]
    lease = grant(
        tx, group, consumer_of(reader_batch.reader), seconds, list(parts.values()), claims
    )
    return lease.token


def _cut_out(tx: Tx, claim: Claim, part: Ranges) -> list[Claim]:
    """Take part of a free claim out of it, as claims to be leased with its counters."""
    claim.ranges = ranges.difference(claim.ranges, part)
    tx.save_claim(claim) if claim.ranges else tx.drop_claim(claim)
    return [
        Claim.leased(
            claim.group_id, claim.lane, which, claim.since, max(1, claim.deliveries), claim.failures,
            RETURNED, claim.error,
        )
        for which in split_for_claims(part)
    ]  # fmt: skip


def consumer_of(reader: str) -> str:
    """Return the consumer name of a reader."""
    return f"spark:{reader}"
