"""Settle: every verb that ends a delivery, and extend, which keeps one alive.

    leased ── ack ───────────────► done
           ── requeue ───────────► done, and a copy at the end of the lane
           ── nack ──────────────► waiting or due, or dead letter at the retry limit
           ── release ───────────► due or waiting, the delivery is not counted
           ── reject, dead_letter ► dead letter
           ── expiry ────────────► waiting or due, or dead letter at the delivery limit

Every verb is fenced by the token of the lease. A refused verb changes nothing.
"""

from msgspec import Struct, field

from ... import ranges
from ...clock import micros
from ...errors import (
    AckflowError,
    AlreadySettled,
    LeaseExpired,
    LeaseLost,
    NotFound,
    RolledBack,
)
from ...ids import LaneId, LeaseId
from ...options import DeadLetterKind
from ...ranges import Ranges
from ...retry import Exhausted, after_nack, deliveries_exhausted
from ...store.records import LEASED, RETURNED, Carry, Claim, Cursor, Group, Lane, Lease, record_acks
from ...store.tx import Tx
from ..brief import brief
from ..reach.merging import BY_TOKEN, Several
from ..requests import SETTLE_VERBS, Mark, SettleVerb, Verdict
from ..verb import verb
from .copies import copy
from .cursors import make_ready, unblock_partitions
from .dead_letters import add_dead_letters
from .history import date_acks, record_fate, record_history
from .upkeep.expiry import expire_if_over, refresh_range


class Refusal(Struct):
    """Messages that a verdict did not apply to, and the error."""

    lane: LaneId
    ranges: Ranges
    error: AckflowError


class Outcome(Struct):
    """The outcome of one mark: how many messages it settled, repeated, refused or dead-lettered.

    `repeated` and `dead_lettered` list the messages that were settled the same way before, and
    those that became dead letters. `store`: its database, if the broker has several.
    """

    settled: int = 0
    noop: int = 0
    dead: int = 0
    refused: list[Refusal] = field(default_factory=list)
    repeated: list[tuple[int, Ranges]] = []
    dead_lettered: list[tuple[int, Ranges]] = []
    store: int | None = None


@brief
@verb("read-write", lease="token")
def settle(tx: Tx, token: int, marks: list[Mark]) -> list[Outcome]:
    """Apply marks to one lease, in order; returns an outcome for each."""
    held = _held(tx, token)
    if held is None:
        return [
            Outcome(refused=[Refusal(m.lane or LaneId(0), m.ranges or [], LeaseLost())])
            for m in marks
        ]
    group, lease, claims = held
    if len(marks) == 1 and claims:
        outcome = _fast_ack(tx, group, lease, claims, marks[0])
        if outcome is not None:
            return [outcome]
    settlement = Settlement(tx, group, lease, claims)
    outcomes = [settlement.apply(mark) for mark in marks]
    settlement.finish()
    return outcomes


def open_settlement(tx: Tx, token: int) -> "Settlement | None":
    """Return a lease to be settled, or None if it is unknown. The caller must `finish` it."""
    held = _held(tx, token)
    return None if held is None else Settlement(tx, *held)


def _held(tx: Tx, token: int) -> tuple[Group, Lease, list[Claim]] | None:
    """Return a lease with its group and its claims, or None if it is unknown."""
    held = tx.held(token)
    group = tx.group_by_id(held[0].group_id) if held else None
    if held is None or group is None:
        return None
    lease, claims = held
    return group, lease, [] if expire_if_over(tx, group, lease) else claims


def _fast_ack(
    tx: Tx, group: Group, lease: Lease, claims: list[Claim], mark: Mark
) -> Outcome | None:
    """Ack a whole lease of one claim, or a range of one claim, in fewer steps.

    Most calls take this path. Returns None for any other call; the general code gives the same
    result.
    """
    verdict, asked = mark.verdict, mark.ranges
    if verdict.verb != "ack" or verdict.rest or verdict.yields or group.rules.policy == "all":
        return None
    claim = claims[0] if len(claims) == 1 else _claim_with(claims, mark)
    if claim is None or mark.lane not in (None, claim.lane):
        return None
    held, cursor = claim.ranges, tx.cursor(claim.lane, claim.group_id)
    assert cursor is not None
    if asked is None or asked == held:
        if held != [held[0], held[0] + lease.n] or claim.acked_at is not None or lease.fates:
            return None
        n = lease.n
        count_done(tx, cursor, held)
        tx.end_acked(lease, claim, cursor)
        unblock_partitions(tx, group, {claim.lane})
    elif len(asked) != 2 or verdict.up_to or not ranges.covers(held, *asked):
        return None
    else:
        n = asked[1] - asked[0]
        _ack_part(tx, lease, claims, claim, cursor, asked, n)
    tx.tally.acked.append((group.id, tx.now - lease.acquired_at, n))
    if _wakes_waiters(group):
        _wake_waiters(tx, group)
    return Outcome(settled=n)


def _claim_with(claims: list[Claim], mark: Mark) -> Claim | None:
    """Return the claim of a lease that holds all messages of a mark, and more."""
    asked = mark.ranges
    if asked is None or len(asked) != 2:
        return None
    first, stop = asked
    for claim in claims:
        if claim.lane == mark.lane and claim.ranges[0] <= first and stop <= claim.ranges[-1]:
            held = claim.ranges
            if held != asked and ranges.covers(held, first, stop):
                return claim
    return None


def _ack_part(
    tx: Tx, lease: Lease, claims: list[Claim], claim: Claim, cursor: Cursor, part: Ranges, n: int
) -> None:
    due = date_acks(tx, lease, claims, claim.lane)
    claim.ranges = ranges.remove(claim.ranges, *part)
    count_done(tx, cursor, part)
    tx.counted(cursor)
    tx.shrink_claim(claim, n)
    if due:
        record_acks(lease, claims)
        tx.save_lease(lease)
    tx.cache.keep_lease(lease, claims)


def _wakes_waiters(group: Group) -> bool:
    """Return whether settling may allow a waiting pop to get messages."""
    return group.rules.ordering != "shared" or group.rules.max_ack_pending is not None


def _wake_waiters(tx: Tx, group: Group) -> None:
    queue = tx.queue_by_id(group.queue)
    assert queue is not None
    tx.touched.add(queue.name)


@verb("read-write", lease="token")
def extend(tx: Tx, token: int, seconds: float | None) -> int:
    """Extend a live lease to end no earlier than `seconds` from now; returns its new end."""
    lease = tx.lease(token)
    group = tx.group_by_id(lease.group_id) if lease else None
    if lease is None or group is None:
        raise LeaseLost()
    if lease.ended_at is not None:
        verbs = {fate.verb for fate in lease.fates}
        others = sorted(verbs.difference(SETTLE_VERBS), key=lambda verb: verb != "expired")
        raise refusal_error(others[0] if others else lease.fates[-1].verb)
    if lease.expires_at <= tx.now:
        raise LeaseExpired()
    wanted = tx.now + micros(group.rules.lease_seconds if seconds is None else seconds)
    if wanted > lease.expires_at:
        lease.expires_at = wanted
        tx.save_lease(lease)
        tx.move_claims(lease)
    return lease.expires_at


class Settlement:
    """A lease that is being settled: `finish` writes its claims once."""

    def __init__(self, tx: Tx, group: Group, lease: Lease, claims: list[Claim]) -> None:
        self._tx = tx
        self._group = group
        self.lease = lease
        self._claims = claims
        self._changed: dict[int, Claim] = {}
        self._lost: dict[int, int] = {}
        self._writes_lease = False  # whether `finish` writes the lease, not only its claims
        self._freed: set[LaneId] = set()
        self._acked = 0
        self._yielding: dict[LaneId, int] = {}  # by lane, the end of the last message that yields
        self._wakes_waiters = _wakes_waiters(group)

    def apply(self, mark: Mark) -> Outcome:
        """Apply one mark."""
        outcome = Outcome()
        self._passed: list[Refusal] = []
        for part in self.lease.parts:
            if mark.lane is None:
                self._apply(mark.verdict, part.lane, part.ranges, outcome, whole=True)
            elif mark.lane == part.lane:
                asked = part.ranges if mark.ranges is None else mark.ranges
                self._apply(mark.verdict, part.lane, asked, outcome)
        if not outcome.settled and not outcome.noop:
            outcome.refused += self._passed
        if mark.lane is not None and all(part.lane != mark.lane for part in self.lease.parts):
            outcome.refused.append(Refusal(mark.lane, mark.ranges or [], NotFound(_NOT_HERE)))
        return outcome

    def finish(self) -> None:
        """Write the changes; a lease without messages ends and unblocks its partitions."""
        tx, lease = self._tx, self.lease
        if self._changed:
            if len(self._claims) == 1 and self._acked == lease.n and not lease.fates:
                self._end_acked(self._claims[0])
            else:
                self._write()
            unblock_partitions(tx, self._group, self._freed)
            if self._yielding and self._group.rules.ordering == "ordered":
                self._yield()
            if self._acked:
                waited = tx.now - lease.acquired_at
                tx.tally.acked.append((self._group.id, waited, self._acked))
        if lease.ended_at is None:
            tx.cache.keep_lease(lease, self._claims)
        if self._changed and self._wakes_waiters:
            _wake_waiters(tx, self._group)

    def _end_acked(self, claim: Claim) -> None:
        """End a lease of one claim of which all messages were acked now."""
        tx, lease = self._tx, self.lease
        cursor = tx.cursor(claim.lane, self._group.id)
        assert cursor is not None
        record_acks(lease, self._claims)
        tx.cache.forget_lease(lease.id)
        tx.end_acked(lease, claim, cursor)
        lease.ended_at, self._claims = tx.now, []

    def _write(self) -> None:
        tx, lease = self._tx, self.lease
        for claim in self._changed.values():
            if claim.ranges:
                tx.shrink_claim(claim, self._lost[claim.id])
            else:
                tx.drop_claim(claim)
                self._writes_lease = True
        if self._writes_lease:
            record_acks(lease, self._claims)
            self._claims = [claim for claim in self._claims if claim.ranges]
            if not self._claims:
                lease.ended_at = tx.now
            tx.save_lease(lease)

    def _apply(
        self, verdict: Verdict, lane: LaneId, asked: Ranges, outcome: Outcome, whole: bool = False
    ) -> None:
        """Apply a verdict to some messages of one lane; `whole` means those still held."""
        for_all = verdict.verb == "ack" and self._group.rules.policy == "all"
        held = self._held(lane, asked, verdict.up_to or for_all)
        mine = ranges.intersection(held, asked)
        if len(mine) != len(asked) or mine != asked:
            self._explain_missing(
                verdict.verb, lane, ranges.difference(asked, mine), outcome, whole
            )
        if verdict.up_to and asked and not any(part.lane == lane for part in outcome.refused):
            mine = ranges.clip(held, 0, asked[-1])
        elif for_all and mine:
            mine = ranges.clip(held, 0, mine[-1])
        if mine:
            self._end(verdict, lane, mine, outcome)
            if for_all:
                outcome.settled += self._ack_for_all(lane, mine[-1])
            if verdict.rest:
                self._release_after(lane, mine[-1])

    def _held(self, lane: LaneId, asked: Ranges, before: bool) -> Ranges:
        """Return the messages of claims that overlap `asked`; `before`: and of claims below it."""
        if not asked:
            return []
        low, high = 0 if before else asked[0], asked[-1]
        mine = [claim.ranges for claim in self._claims if claim.lane == lane and claim.ranges]
        return ranges.union_all(held for held in mine if held[0] < high and held[-1] > low)

    def _explain_missing(
        self, verb: SettleVerb, lane: LaneId, missing: Ranges, outcome: Outcome, whole: bool
    ) -> None:
        """Split messages that are no longer held into repeats of this verb and refusals."""
        if missing:
            record_acks(self.lease, self._claims)
        for fate in self.lease.fates if missing else ():
            part = ranges.intersection(missing, fate.ranges) if fate.lane == lane else []
            if part:
                missing = ranges.difference(missing, part)
                if fate.verb == verb:
                    outcome.noop += ranges.count(part)
                    outcome.repeated.append((lane, part))
                else:
                    refused = (
                        self._passed if whole and fate.verb in SETTLE_VERBS else outcome.refused
                    )
                    refused.append(Refusal(lane, part, refusal_error(fate.verb)))
        if missing:
            outcome.refused.append(Refusal(lane, missing, NotFound(_NOT_HERE)))

    def _end(self, verdict: Verdict, lane: LaneId, which: Ranges, outcome: Outcome) -> None:
        """End the delivery of messages that are held."""
        row, cursor = self._tx.lane(lane), self._tx.cursor(lane, self._group.id)
        assert row is not None
        assert cursor is not None
        acks = verdict.verb == "ack"
        if acks:
            self._writes_lease = (
                date_acks(self._tx, self.lease, self._claims, lane) or self._writes_lease
            )
        else:
            record_fate(self.lease, verdict.verb, self._tx.now, lane, which)
            self._writes_lease = True
        taken: list[tuple[Claim, Ranges]] = []
        for claim in self._claims:
            part = ranges.intersection(claim.ranges, which) if claim.lane == lane else []
            if part:
                n = ranges.count(part)
                claim.ranges = ranges.difference(claim.ranges, part)
                outcome.settled += n
                if acks:
                    self._acked += n
                self._changed[claim.id] = claim
                self._lost[claim.id] = self._lost.get(claim.id, 0) + n
                self._freed.add(lane)
                taken.append((claim, part))
        for claim, part in _in_order(taken):
            if dead := self._dispatch(verdict, row, cursor, claim, part):
                outcome.dead += dead
                outcome.dead_lettered.append((lane, part))
            elif verdict.yields:
                self._yielding[lane] = max(part[-1], self._yielding.get(lane, 0))
        self._tx.counted(cursor)

    def _dispatch(
        self, verdict: Verdict, lane: Lane, cursor: Cursor, claim: Claim, part: Ranges
    ) -> int:
        """Apply one verb to part of one claim; returns how many became dead letters."""
        match verdict.verb:
            case "ack":
                count_done(self._tx, cursor, part)
            case "release":
                at = self._tx.now + micros(verdict.delay or 0.0)
                self._return(claim, part, at, claim.deliveries - 1, claim.failures, claim.error)
            case "nack":
                return self._nack(verdict, lane, cursor, claim, part)
            case "requeue":
                return self._requeue(verdict, lane, cursor, claim, part)
            case "reject":
                return self._dead_letter(
                    lane, cursor, claim, part, "rejected", verdict.reason, claim.failures
                )
            case "dead_letter":
                return self._dead_letter(
                    lane, cursor, claim, part, "failed", verdict.reason, claim.failures
                )
        return 0

    def _nack(
        self, verdict: Verdict, lane: Lane, cursor: Cursor, claim: Claim, part: Ranges
    ) -> int:
        failures, reason = claim.failures + 1, verdict.reason or claim.error
        cursor.failed += ranges.count(part)
        fate = after_nack(
            self._group.rules, claim.deliveries, failures, self._tx.now, verdict.delay,
            verdict.counting,
        )  # fmt: skip
        if isinstance(fate, Exhausted):
            return self._dead_letter(lane, cursor, claim, part, fate.kind, reason, failures, reason)
        self._return(claim, part, fate.at, claim.deliveries, failures, reason)
        return 0

    def _return(
        self, claim: Claim, part: Ranges, at: int, deliveries: int, failures: int, error: str | None
    ) -> None:
        """Make part of a claim due again, now or at a time."""
        due = at <= self._tx.now
        self._tx.add_claim(
            Claim.unleased(
                claim.group_id, claim.lane, part, None if due else at, claim.since, deliveries, failures,
                RETURNED, error,
            )
        )  # fmt: skip
        if due:
            make_ready(self._tx, claim.lane, claim.group_id)
        self._wakes_waiters = True

    def _dead_letter(
        self, lane: Lane, cursor: Cursor, claim: Claim, part: Ranges, kind: DeadLetterKind,
        reason: str | None, failures: int, error: str | None = None,
    ) -> int:  # fmt: skip
        return add_dead_letters(self._tx, self._group, lane, cursor, part, kind, reason or claim.error,
                    deliveries=claim.deliveries, failures=failures, at=self._tx.now,
                    consumer=self.lease.consumer, error=error or claim.error)  # fmt: skip

    def _requeue(
        self, verdict: Verdict, lane: Lane, cursor: Cursor, claim: Claim, part: Ranges
    ) -> int:
        """Append a copy for this group only; the original is done."""
        deliveries = claim.deliveries - verdict.uncounted
        if deliveries_exhausted(self._group.rules, deliveries):
            return self._dead_letter(
                lane, cursor, claim, part, "max_deliver", verdict.reason, claim.failures
            )
        reason = verdict.reason or claim.error
        copy(self._tx, self._group, lane, part, verdict.delay or 0.0,
             Carry(deliveries, claim.failures, True, reason), dict(verdict.headers))  # fmt: skip
        cursor.done += ranges.count(part)
        return 0

    def _release_after(self, lane: LaneId, stop: int) -> None:
        """Release the messages that follow a failed message in the batch."""
        release, after = Verdict("release"), False
        for part in self.lease.parts:
            which = part.ranges
            if part.lane == lane:
                after, which = True, ranges.clip(which, stop, which[-1])
            held: Ranges = []
            for claim in self._claims if after else ():
                if claim.lane == part.lane:
                    held = ranges.union(held, ranges.intersection(claim.ranges, which))
            if held:
                self._end(release, part.lane, held, Outcome())

    def _yield(self) -> None:
        """Let the next delivery to an ordered group take over the messages after a failed one.

        Until then the holder may settle them. A consumer that drops the rest of its batch after a
        failure need not wait for the lease to end, and one that continues loses no work. Messages
        before the failed one are not taken over, so the partition stays blocked while any is held.
        A failure that became a dead letter does not yield, because it is not delivered again.
        """
        tx, group_id = self._tx, self._group.id
        for lane, stop in self._yielding.items():
            cursor = tx.cursor(lane, group_id)
            assert cursor is not None
            left = [
                (other.priority, claim.ranges[0], claim.lane)
                for claim in self._claims
                if (other := tx.cursor(claim.lane, group_id))
                and other.partition == cursor.partition
            ]
            if left and min(left) >= (cursor.priority, stop):
                tx.block_partition(group_id, cursor.partition, False)
                for _, _, rest in left:
                    make_ready(tx, rest, group_id)

    def _ack_for_all(self, lane: LaneId, stop: int) -> int:
        """Policy `all`: ack the earlier messages of the lane, under any lease."""
        tx, settled = self._tx, 0
        # Expired leases are ended first: their messages can no longer be settled.
        refresh_range(tx, self._group, lane, 0, stop)
        cursor = tx.cursor(lane, self._group.id)
        assert cursor is not None
        others: dict[LeaseId, Ranges] = {}
        for claim in tx.claims_in(lane, self._group.id, 0, stop):
            part = ranges.clip(claim.ranges, 0, stop)
            if claim.lease == self.lease.id or not part:
                continue
            if claim.state == LEASED and claim.lease is not None:
                others[claim.lease] = ranges.union(others.get(claim.lease, []), part)
            elif claim.returned:
                claim.ranges = ranges.difference(claim.ranges, part)
                tx.save_claim(claim) if claim.ranges else tx.drop_claim(claim)
                count_done(tx, cursor, part)
                cursor.ready = True  # the claim may have blocked the messages after it
                tx.changed(cursor)
                record_history(tx, self._group.id, lane, part, "ack")
                settled += ranges.count(part)
        for id, part in others.items():
            other = tx.lease_by_id(id)
            assert other is not None
            theirs = Settlement(tx, self._group, other, tx.claims_of_lease(other))
            outcome = Outcome()
            theirs._end(Verdict("ack"), lane, part, outcome)
            theirs.finish()
            settled += outcome.settled
        return settled


def _in_order(taken: list[tuple[Claim, Ranges]]) -> list[tuple[Claim, Ranges]]:
    """Split interleaved parts of claims, so that they are settled by sequence."""
    if len(taken) <= 1:
        return taken
    pieces = sorted((pair, i) for i, (_, part) in enumerate(taken) for pair in ranges.pairs(part))
    result: list[tuple[Claim, Ranges]] = []
    for pair, i in pieces:
        claim = taken[i][0]
        if result and result[-1][0] is claim:
            result[-1][1].extend(pair)
        else:
            result.append((claim, list(pair)))
    return result


def count_done(tx: Tx, cursor: Cursor, part: Ranges) -> None:
    """Count messages as done and record the last one; the caller writes the cursor."""
    n = ranges.count(part)
    cursor.done += n
    cursor.consumed += n
    cursor.last_seq = part[-1] - 1
    cursor.last_created = tx.created_at(cursor.lane, cursor.last_seq)
    cursor.last_at = tx.now


_NOT_HERE = "the message is not part of this lease"


def refusal_error(fate: str) -> AckflowError:
    """Return the error for a verb on a message that has already ended in this way."""
    if fate == "expired":
        return LeaseExpired()
    if fate in SETTLE_VERBS:
        return AlreadySettled(f"the delivery was already settled: {fate}")
    return LeaseLost(f"the lease was ended: the message was {fate}")


@verb("read-write", lease="marks", several=Several(divide=BY_TOKEN))
def settle_many(tx: Tx, marks: dict[int, list[Mark]], atomic: bool) -> list[Outcome]:
    """Settle several leases in one transaction; `atomic`: one refusal undoes everything."""
    if not atomic:
        return [outcome for token, some in marks.items() for outcome in settle(tx, token, some)]
    outcomes: list[Outcome] = []
    try:
        with tx.savepoint():
            outcomes = settle_many(tx, marks, False)
            if any(outcome.refused for outcome in outcomes):
                raise RolledBack()
    except RolledBack:
        _roll_back(outcomes, [mark for some in marks.values() for mark in some])
    return outcomes


def _roll_back(outcomes: list[Outcome], marks: list[Mark]) -> None:
    for outcome, mark in zip(outcomes, marks, strict=True):
        others = mark.ranges or []
        for part in outcome.refused:
            others = ranges.difference(others, part.ranges)
        if others:
            outcome.refused.append(Refusal(mark.lane or LaneId(0), others, RolledBack()))
        outcome.settled = outcome.noop = outcome.dead = 0
