"""Expiry: leases end, and waiting claims become due.

    pop      ┌────────┐  nack, release, expiry   ┌─────────┐  its time comes  ┌─────┐
    ───────► │ LEASED │ ───────────────────────► │ WAITING │ ───────────────► │ DUE │
             └────────┘                          └─────────┘                  └─────┘
                 ▲  │  without a delay ─────────────────────────────────────────▲ │
                 │  └─► done or dead letter                                       │
                 └────────────────────────────── pop ─────────────────────────────┘

A delayed message that a cursor passes is WAITING from the start. Pop and settle call `refresh`
before they read, so that their result does not depend on the last round of upkeep.
"""

from time import monotonic
from typing import NamedTuple

from msgspec import structs

from .... import ranges
from ....ids import NO_LEASE, LaneId
from ....options import MAX_CLAIM
from ....retry import Exhausted, after_expiry
from ....store.records import DUE, LEASED, WAITING, Claim, Group, Lease, record_acks
from ....store.tx import Tx
from ..cursors import make_ready, unblock_partitions
from ..dead_letters import add_dead_letters
from ..history import record_fate

SLICE_SECONDS = 0.010
LEASES_AT_ONCE = 200
CLAIMS_AT_ONCE = 256
DELAYED_RUN = 500  # delayed segments that are passed by a cursor as one claim


class Refreshed(NamedTuple):
    """The number of ended leases, whether anything changed, and whether work remains."""

    ended: int = 0
    changed: bool = False
    more: bool = False


class WorkBudget:
    """Limits the work of one transaction.

    Work continues until a time limit, and after it while fewer messages were returned than are
    wanted. With `whole` there is no limit.
    """

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
    """End the expired leases of a group, and make due the claims whose delay is over.

    Stops when the budget is used up: the remaining claims count as leased or waiting until the next
    call. `whole` removes the limit, for verbs that change the options by which a lease ends.
    """
    if tx.now < tx.cache.next_times.get(group.id, 0):
        return Refreshed()
    over, due = tx.over_or_due(group.id)
    some = WorkBudget(min(want, MAX_CLAIM), whole)
    ended, more = _end_over(tx, group, some) if over else (0, False)
    if due:
        more = _wake(tx, group, some) or more
    tx.next_time(group.id)
    return Refreshed(ended, bool(over or due), more)


def _end_over(tx: Tx, group: Group, some: WorkBudget) -> tuple[int, bool]:
    """End expired leases; returns how many, and whether there may be more."""
    limit = some.at_most(LEASES_AT_ONCE)
    leases, more = tx.expired_leases(group.id, limit)
    for ended, (id, n) in enumerate(leases.items()):
        if some.over:
            return ended, True
        lease = tx.lease_by_id(id)
        assert lease is not None, "a leased claim without its lease"
        if lease.ended_at is None:  # a sweep that was applied meanwhile has ended it
            expire(tx, group, lease)
        some.count(n)
    return len(leases), more


def _wake(tx: Tx, group: Group, some: WorkBudget) -> bool:
    """Make waiting claims due; returns whether there may be more."""
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
    """Make due the messages of a delayed claim whose own due time has passed.

    `max_wait_seconds` counts from the due time of each message, so that a queue with that limit
    gets a claim for each due time.
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


def refresh_range(tx: Tx, group: Group, lane: LaneId, first: int, stop: int) -> None:
    """End the expired leases that hold messages of [first, stop) of a lane."""
    over = {
        claim.lease
        for claim in tx.claims_in(lane, group.id, first, stop)
        if claim.state == LEASED and claim.at is not None and claim.at <= tx.now
    }
    for id in over:
        lease = tx.lease_by_id(id or NO_LEASE)
        assert lease is not None, "a leased claim without its lease"
        expire(tx, group, lease)


def expire(tx: Tx, group: Group, lease: Lease) -> None:
    """Return the unsettled messages of an expired lease. Times are computed from its end."""
    ended = lease.expires_at
    lanes = set()
    claims = tx.claims_of_lease(lease)
    record_acks(lease, claims)
    if claims:
        tx.tally.add(group.id, "leases_expired", 1)
    for claim in claims:
        lanes.add(claim.lane)
        record_fate(lease, "expired", ended, claim.lane, claim.ranges)
        fate = after_expiry(group.rules, claim.deliveries, ended)
        if isinstance(fate, Exhausted):
            lane, cursor = tx.lane(claim.lane), tx.cursor(claim.lane, group.id)
            assert lane is not None
            assert cursor is not None
            reason = claim.error or f"not settled in {claim.deliveries} deliveries"
            add_dead_letters(tx, group, lane, cursor, claim.ranges, fate.kind, reason,
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
    unblock_partitions(tx, group, lanes)


def expire_if_over(tx: Tx, group: Group, lease: Lease) -> bool:
    """End a lease if it has expired; returns whether it had."""
    if lease.ended_at is None and lease.expires_at <= tx.now:
        expire(tx, group, lease)
        return True
    return False
