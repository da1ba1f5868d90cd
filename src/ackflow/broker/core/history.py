"""The history of ended leases: how it is recorded, and when it is deleted.

`LeasePruner` finds the leases whose history has expired without reading the others again. It reads
leases in the order in which they were granted, in one scan for each value of `history_seconds`. A
scan stops at the first lease that is too young, and continues there in the next round. Leases that
it passes and may not remove yet (still live, live for long, or needed by a reader) are put on a
heap with the time to check them again.
"""

import heapq

from msgspec import Struct, structs

from ... import ranges
from ...clock import SECOND, micros
from ...ids import NO_LEASE, GroupId, LaneId
from ...store.mapping import Row
from ...store.records import Claim, Fate, Lease, LeasedRanges, record_acks
from ...store.tx import Tx

SOON = micros(30)  # a scan waits for a lease whose history expires within this time
FIRST_STEP, LAST_STEP = 16, 1_024
MOST = 20_000


def record_fate(lease: Lease, verb: str, at: int, lane: LaneId, which: ranges.Ranges) -> None:
    """Record in a lease how some of its messages ended; times are exact to a second."""
    for fate in reversed(lease.fates):
        if fate.verb == verb and fate.lane == lane:
            if at - fate.at < micros(1):
                fate.ranges = ranges.union(fate.ranges, which)
                return
            break
    lease.fates.append(Fate(verb, at, lane, which))


def date_acks(tx: Tx, lease: Lease, claims: list[Claim], lane: LaneId) -> bool:
    """Record the time of acks in a lane, which are stored as messages missing from its claims.

    Returns True once a second, when the lease must be written as well.
    """
    first = tx.now
    for claim in claims:
        if claim.lane == lane and claim.acked_at is not None and claim.acked_at < first:
            first = claim.acked_at
    due = tx.now - first >= SECOND
    if due:
        record_acks(lease, claims)
        first = tx.now
    for claim in claims:
        if claim.lane == lane:
            claim.acked_at = first
    return due


def record_history(tx: Tx, group_id: GroupId, lane: LaneId, over: ranges.Ranges, verb: str) -> None:
    """Record how messages ended without a lease, as an ended lease that `why` can read."""
    ended = Lease(NO_LEASE, tx.new_token(), group_id, "", tx.now, tx.now, None, ranges.count(over),
                 [LeasedRanges(lane, over, 0)], [Fate(verb, tx.now, lane, over)])  # fmt: skip
    tx.add_lease(ended)
    ended.ended_at = tx.now
    tx.save_lease(ended)


class LeaseScan(Struct):
    """The position of a scan over the leases of some groups, and the time of its next step."""

    groups: set[GroupId]
    after: int = 0
    next_at: int = 0


class LeasePruner:
    """Keeps the positions of its scans in memory; a new pruner reads all leases once."""

    def __init__(self) -> None:
        self._walks: dict[int, LeaseScan] = {}
        self._later: list[tuple[int, int]] = []  # a heap of (when, lease)
        self._noted: set[int] = set()

    def over(self, tx: Tx) -> list[int]:
        """Return some of the leases whose history has expired."""
        kept = {queue.id: micros(queue.options.history_seconds) for queue in tx.queues()}
        lengths: dict[GroupId, int] = {
            id: kept[home] for id, home in tx.all("group_homes") if home in kept
        }
        old = self._noted_before(tx, lengths)
        groups: dict[int, set[GroupId]] = {}
        for group_id, length in lengths.items():
            groups.setdefault(length, set()).add(group_id)
        self._walks = {length: self._walk(length, some) for length, some in groups.items()}
        for length, walk in self._walks.items():
            if walk.next_at <= tx.now:
                self._follow(tx, length, walk, old)
        return old

    def mark(self) -> dict[int, LeaseScan]:
        return {length: structs.replace(walk) for length, walk in self._walks.items()}

    def back_to(self, mark: dict[int, LeaseScan], old: list[int]) -> None:
        """Return to a saved position, because these leases were not deleted."""
        self._walks = mark
        for id in old:
            self._note(id, 0)

    def _walk(self, length: int, groups: set[GroupId]) -> LeaseScan:
        known = self._walks.get(length)
        if known is None or not groups <= known.groups:
            return LeaseScan(groups)  # leases of the new group may come before `after`
        return LeaseScan(groups, known.after, known.next_at)

    def _noted_before(self, tx: Tx, lengths: dict[GroupId, int]) -> list[int]:
        old: list[int] = []
        for _ in range(MOST):
            if not self._later or self._later[0][0] > tx.now:
                break
            id = heapq.heappop(self._later)[1]
            self._noted.discard(id)
            for row in tx.all("lease_times", id):
                due = _due(tx.now, row, lengths.get(row[1], 0))
                old.append(id) if due <= tx.now else self._note(id, due)
        return old

    def _follow(self, tx: Tx, length: int, walk: LeaseScan, old: list[int]) -> None:
        step = FIRST_STEP
        while len(old) < MOST:
            rows = tx.all("leases_after", walk.after, step)
            for row in rows:
                id, group_id, acquired, ended, _ = row
                if acquired + length > tx.now:
                    walk.next_at = acquired + length
                    return
                if group_id in walk.groups:
                    due = _due(tx.now, row, length)
                    if tx.now < due <= tx.now + SOON and ended is not None:
                        walk.next_at = due
                        return
                    old.append(id) if due <= tx.now else self._note(id, due)
                walk.after = id
            if len(rows) < step:
                walk.next_at = tx.now + length  # leases granted from now on expire no earlier
                return
            step = min(4 * step, LAST_STEP)

    def _note(self, id: int, due: int) -> None:
        if id not in self._noted:
            self._noted.add(id)
            heapq.heappush(self._later, (due, id))


def _due(now: int, row: Row, length: int) -> int:
    """Return the end of a lease's history, or the earliest possible one while it is live."""
    _, _, _, ended, needed = row
    return int(now if needed or ended is None else ended) + length
