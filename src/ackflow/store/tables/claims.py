"""Claims and leases, as primitives over named SQL statements.

`records.Claim` has a diagram of the states of a claim. Settling some messages of a claim splits it.
A leased claim of new messages without gaps is stored in its cursor and has no id
(docs/decisions/claims-in-cursors.md); every other claim is a row of its own.
"""

from random import Random
from typing import Any

from msgspec import msgpack

from ... import ids, ranges
from ...ids import NO_LEASE, GroupId, LaneId, LeaseId, PartitionId
from ..cache import WHOLE_GROUP
from ..mapping import ALL_ACKED, Row, claim_columns, claim_key, lease_columns, to_claim, to_lease
from ..records import LEASED, Claim, Cursor, Group, Lease, record_acks
from .cursors import Cursors

# At most so many claims whose time has come are sorted into the order of service.
CLAIMS_COMPARED = 2_000
IN_WINDOW = "in_window"  # the counter of messages that count against max_ack_pending

_encode = msgpack.Encoder().encode


class Claims(Cursors):
    """The operations of a transaction on claims and leases."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._random = Random()  # not the module's generator, which a program may seed

    def is_encrypted(self, lane: LaneId) -> bool:
        """Return whether the queue of a lane is encrypted."""
        raise NotImplementedError

    # claims

    def add_claim(self, claim: Claim) -> None:
        cursor = self.cursor(claim.lane, claim.group_id) if _is_plain(claim) else None
        if cursor is not None:
            self.add_plain_claim(claim, cursor)
        else:
            self.cache.note_claim(claim)
            self._count_leased(claim, int(claim.state == LEASED))
            self._add_row(claim)

    def add_plain_claim(self, claim: Claim, cursor: Cursor) -> None:
        """Add a claim of new messages without gaps, and write the counters of its cursor."""
        self.cache.note_claim(claim)
        self._count_leased(claim, 1)
        if self.may_keep(cursor):
            self.keep(cursor, claim)
            claim.stored = cursor.kept
            self._count(claim, claim.ranges[1] - claim.ranges[0])
        else:
            self.counted(cursor)
            self._add_row(claim)

    def _add_row(self, claim: Claim) -> None:
        claim.id = self._random.getrandbits(62) | 1
        columns = claim_columns(claim, claim.error is not None and self.is_encrypted(claim.lane))
        self.later("add_claim", claim.lane, claim.group_id, claim.id, *columns)
        claim.stored = columns[-1]
        self._count(claim, columns[2] if claim.state == LEASED else 0)

    def _count(self, claim: Claim, n: int) -> None:
        """Update the number of leased messages of a group with `max_ack_pending`."""
        if claim.group_id in self.cache.windowed and n != claim.counted:
            self.tally.add(claim.group_id, IN_WINDOW, n - claim.counted)
            if claim.group_id in self.cache.in_window:
                self.cache.in_window[claim.group_id] += n - claim.counted
            claim.counted = n

    def in_window(self, group_id: GroupId) -> int:
        """Return how many leased messages of a group count against `max_ack_pending`."""
        found = self.cache.in_window.get(group_id)
        if found is None:
            self.flush()
            found = self.cache.in_window[group_id] = int(
                self.value("tally", group_id, IN_WINDOW) or 0
            )
        return found

    def note_window(self, group: Group) -> None:
        """Start or stop counting the leased messages of a group whose `max_ack_pending` changed."""
        group_id, had = group.id, group.id in self.cache.windowed
        if group.rules.max_ack_pending is None:
            self.cache.windowed.discard(group_id)
        if had or group.rules.max_ack_pending is None:
            return
        self.cache.windowed.add(group_id)
        self.flush()
        self.run("put_tally", group_id, IN_WINDOW, self.value("leased_count", group_id))
        self.cache.in_window.pop(group_id, None)
        self.cache.forget_leases()  # their claims were not counted

    def _count_leased(self, claim: Claim, change: int) -> None:
        """Update the known numbers of leased claims of a group."""
        leased = self.cache.leased
        if not change or not leased:
            return
        cursor = self.cursor(claim.lane, claim.group_id)
        home = WHOLE_GROUP if cursor is None else cursor.partition
        for key in ((claim.group_id, home), (claim.group_id, WHOLE_GROUP)):
            if key in leased:
                leased[key] += change

    def is_leased(self, group_id: GroupId, partition: PartitionId) -> bool:
        """Return whether a group holds a lease in a partition."""
        known = self.cache.leased.get((group_id, partition))
        if known is None:
            if self.value("partition_leased", group_id, partition) is not None:
                return True
            self.cache.leased[group_id, partition] = known = 0
        return known > 0

    def lock_end(self, group_id: GroupId) -> int | None:
        """Return when the last lease of a group ends; None if it holds none."""
        if self.cache.leased.get((group_id, WHOLE_GROUP)) == 0:
            return None
        end = self.value("lock_end", group_id)
        if end is None:
            self.cache.leased[group_id, WHOLE_GROUP] = 0
        return None if end is None else int(end)

    def first_returned(self, lane: LaneId, group_id: GroupId) -> int | None:
        """Return the first message of a lane that waits for another delivery to a group."""
        if (lane, group_id) in self.cache.nothing_returned:
            return None
        found = self.value("first_returned", lane, group_id)
        if found is None:
            self.cache.nothing_returned.add((lane, group_id))
        return None if found is None else int(found)

    def _take_out(self, claim: Claim) -> None:
        """Move a claim from its cursor to a row of its own."""
        self.keep(self._keeper(claim), None)
        self._add_row(claim)

    def _keeper(self, claim: Claim) -> Cursor:
        cursor = self.cursor(claim.lane, claim.group_id)
        assert cursor is not None
        assert cursor.kept == claim.stored, "a claim that does not lie in its cursor"
        return cursor

    def save_claim(self, claim: Claim) -> None:
        self.cache.forget_lease(claim.lease)
        self.cache.note_claim(claim)
        self._count_leased(claim, int(claim.state == LEASED) - int(claim.stored != NO_LEASE))
        if not claim.id:
            self._take_out(claim)
            return
        columns = claim_columns(claim, claim.error is not None and self.is_encrypted(claim.lane))
        self.run("save_claim", *claim_key(claim), *columns)
        claim.stored = columns[-1]
        if claim.counted:
            self._count(claim, columns[2] if claim.state == LEASED else 0)

    def shrink_claim(self, claim: Claim, lost: int) -> None:
        """Save a claim that has lost some messages and is otherwise unchanged."""
        if not claim.id:
            self._take_out(claim)
            lost = 0
        held = claim.ranges
        packed = None if len(held) == 2 else ranges.pack(held)
        self.cache.forget_lease(claim.lease)
        self.run("shrink_claim", *claim_key(claim), held[0], held[-1], lost, packed, claim.acked_at)
        if claim.counted:
            self._count(claim, ranges.count(held))

    def drop_claim(self, claim: Claim) -> None:
        self.cache.forget_lease(claim.lease)
        self._count(claim, 0)
        self._count_leased(claim, -int(claim.stored != NO_LEASE))
        if claim.id:
            self.later("drop_claim", *claim_key(claim))
        else:
            self.keep(self._keeper(claim), None)

    def hold_claim(self, claim: Claim) -> None:
        """Exclude a leased claim from `max_ack_pending` of its group."""
        self.cache.forget_lease(claim.lease)
        if not claim.id:
            self._take_out(claim)
        self.run("hold_claim", *claim_key(claim))
        self._count(claim, 0)

    def claims_of_lease(self, lease: Lease) -> list[Claim]:
        self.cache.forget_lease(lease.id)
        return [
            to_claim(row)
            for part in lease.parts
            for row in self.all("claims_of_lease", part.lane, lease.group_id, lease.id)
        ]

    def move_claims(self, lease: Lease) -> None:
        """Set the expiry time of the claims of a lease to that of the lease."""
        times = self.cache.next_times
        if lease.expires_at < times.get(lease.group_id, 0):
            times[lease.group_id] = lease.expires_at
        for part in lease.parts:
            moved = part.lane, lease.group_id, lease.id, lease.expires_at
            self.run("move_claims", *moved)
            cursor = self.cursor(part.lane, lease.group_id)
            if cursor is not None and cursor.kept == lease.id:
                self.run("move_kept", *moved)

    def due_claims(self, lane: LaneId, group_id: GroupId, limit: int) -> list[Claim]:
        if (lane, group_id) in self.cache.nothing_due:
            return []
        found = [to_claim(row) for row in self.all("due_claims", lane, group_id, limit)]
        if not found:
            self.cache.nothing_due.add((lane, group_id))
        return found

    def expired_leases(self, group_id: GroupId, limit: int) -> tuple[dict[LeaseId, int], bool]:
        """Return expired leases with how many messages they hold, and whether there may be more.

        They are in the order in which their messages are served. `limit` counts claims, of which a
        lease may have several.
        """
        among = -1 if limit < 0 else CLAIMS_COMPARED
        rows = self.all("expired_leases", group_id, self.now, among, limit, self._since(group_id))
        found: dict[LeaseId, int] = {}
        for lease, n in rows:
            found[lease] = found.get(lease, 0) + n
        return found, len(rows) == limit

    def wake_due(self, group_id: GroupId, limit: int) -> list[LaneId]:
        """Make returned claims due whose time has come, and return the lane of each.

        They are processed in the order of service.
        """
        among = -1 if limit < 0 else CLAIMS_COMPARED
        rows = self.all("wake_due", group_id, self.now, among, limit, self._since(group_id))
        lanes = [row[0] for row in rows]
        for lane in lanes:
            self.cache.nothing_due.discard((lane, group_id))
        return lanes

    def delayed_due(self, group_id: GroupId, limit: int) -> list[Claim]:
        """Return claims of delayed messages of which the first is due, in the order of service."""
        among = -1 if limit < 0 else CLAIMS_COMPARED
        given = group_id, self.now, among, limit, self._since(group_id)
        rows = self.all("delayed_due", *given)
        while self.sweep_first(*(row[2] for row in rows)):
            self.flush()
            rows = self.all("delayed_due", *given)
        return [to_claim(row) for row in rows]

    def over_or_due(self, group_id: GroupId) -> tuple[bool, bool]:
        """Return whether a lease of a group has expired, and whether a waiting message is due."""
        over, due = self.all("over_or_due", group_id, self.now, self._since(group_id))[0]
        return bool(over), bool(due)

    def _since(self, group_id: GroupId) -> int:
        """Return a lower bound of the times of a group's claims: a scan by time starts there."""
        return self.cache.next_times.get(group_id, 0)

    def next_time(self, group_id: GroupId) -> int | None:
        """Return when the next lease of a group ends or its next waiting message is due."""
        found = self.value("next_time", group_id, self._since(group_id))
        self.cache.next_times[group_id] = found if found is not None else 1 << 62
        return None if found is None else int(found)

    def claims_in(self, lane: LaneId, group_id: GroupId, first: int, stop: int) -> list[Claim]:
        """Return claims that may hold a sequence of [first, stop)."""
        return [to_claim(row) for row in self.all("claims_in", lane, group_id, first, stop)]

    def claims_of_lane(self, lane: LaneId) -> list[Claim]:
        return [to_claim(row) for row in self.all("claims_of_lane", lane)]

    def unleased_claims(self, lane: LaneId, group_id: GroupId, stop: int) -> list[Claim]:
        """Return the waiting and due claims of a group that begin below `stop`."""
        return [to_claim(row) for row in self.all("unleased_claims", lane, group_id, stop)]

    def any_leased(self, lane: LaneId, first: int, stop: int) -> bool:
        """Return whether a message of [first, stop) is leased, to any group."""
        if self.one("leased_without_gaps", lane, first, stop) is not None:
            return True
        with_gaps = self.all("leased_with_gaps", lane, first, stop)
        return any(ranges.clip(ranges.unpack(packed), first, stop) for (packed,) in with_gaps)

    # leases

    def next_lease(self) -> LeaseId:
        """Return the id that the next lease gets."""
        if self.cache.last_lease is None:
            self.cache.last_lease = self.value("last_lease") or NO_LEASE
        return LeaseId(self.cache.last_lease + 1)

    def new_token(self) -> int:
        """Return a token for the next lease."""
        return ids.new_token(self.next_lease())

    def lease_row(self, token: int) -> Row | None:
        """Return the row of a lease; tokens made by the broker contain the end of its id."""
        last = self.next_lease() - 1
        nearest = last - (last - token) % ids.TOKEN_SPAN
        first = 1 if nearest <= ids.TOKEN_SPAN else self.value("first_lease") or last
        for id in range(nearest, first - 1, -ids.TOKEN_SPAN):
            if row := self.one("lease_with_token", id, token):
                return row
        return self.one("lease_by_token", token)

    def group_of_lease(self, token: int) -> GroupId | None:
        """Return the group of a lease, or None if the lease is unknown."""
        known = self.cache.leases.get(token)
        if known is not None:
            return known[0].group_id
        row = self.lease_row(token)
        return GroupId(row[2]) if row else None

    def lease(self, token: int) -> Lease | None:
        row = self.lease_row(token)
        return self._complete(to_lease(row)) if row else None

    def _complete(self, lease: Lease) -> Lease:
        if lease.ended_at is None:
            if self.sweep_first(*(part.lane for part in lease.parts)):
                row = self.one("lease_by_id", lease.id)
                assert row is not None
                lease = to_lease(row)
            record_acks(lease, self.claims_of_lease(lease))
        return lease

    def held(self, token: int) -> tuple[Lease, list[Claim]] | None:
        """Return a lease and its remaining claims, and evict them from the cache.

        The caller owns both and may cache them again.
        """
        found = self.cache.leases.get(token)
        if found is not None:
            self.cache.forget_lease(found[0].id)
            return found
        lease = self.lease(token)
        if lease is None:
            return None
        return lease, self.claims_of_lease(lease) if lease.ended_at is None else []

    def lease_by_id(self, id: LeaseId) -> Lease | None:
        self.cache.forget_lease(id)
        row = self.one("lease_by_id", id)
        return self._complete(to_lease(row)) if row else None

    def leases_of(self, lane: LaneId, group_id: GroupId, sequence: int) -> list[Lease]:
        """Return the leases under which a message was delivered, the newest first."""
        rows = self.all("leases_of", group_id, lane, sequence)
        return [self._complete(to_lease(row)) for row in rows]

    def add_lease(self, lease: Lease) -> LeaseId:
        lease.id = self.next_lease()
        self.later("add_lease", *lease_columns(lease))
        self.cache.last_lease = lease.id
        return lease.id

    def end_acked(self, lease: Lease, claim: Claim, cursor: Cursor) -> None:
        """End a lease whose only claim was acked as a whole; `lease` comes from `held`."""
        self._count(claim, 0)
        self._count_leased(claim, -1)
        if claim.id:
            self.counted(cursor)
            self.later("drop_claim", *claim_key(claim))
        else:
            assert cursor.kept == lease.id, "a claim that does not lie in its cursor"
            self.keep(cursor, None)
        self.later("end_lease", lease.id, self.now, ALL_ACKED)

    def save_lease(self, lease: Lease) -> None:
        self.cache.forget_lease(lease.id)
        fates = [(f.verb, f.at, f.lane, ranges.pack(f.ranges)) for f in lease.fates]
        self.run("save_lease", lease.id, lease.expires_at, lease.ended_at,
                 _encode(fates) if fates else None)  # fmt: skip


def _is_plain(claim: Claim) -> bool:
    """Return whether a claim is of new messages without gaps, under a lease."""
    return (
        claim.state == LEASED
        and claim.deliveries == 1
        and not claim.failures
        and not claim.redelivered
        and claim.error is None
        and len(claim.ranges) == 2
    )
