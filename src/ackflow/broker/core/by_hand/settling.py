"""Settling a message without its lease: an operator, or a client that names a message, decides."""

from .... import ids, ranges
from ....errors import AckflowError, AlreadySettled, LeaseLost, NotFound
from ....ids import NO_LEASE
from ....options import QUEUE_MODE
from ....store.records import LEASED, RETURNED, Claim, Cursor, Group, Lane, LeasedRanges
from ....store.tx import Tx
from ...requests import Mark, Verdict
from ...verb import verb
from ..cursors import hidden_copies_in, make_ready
from ..leases import grant
from ..settle import Outcome, Refusal, Settlement, extend, open_settlement
from ..topology import find_group, find_queue
from ..upkeep.expiry import refresh_range


@verb("read-write", queue="queue_name", synced=True)
def settle_message(
    tx: Tx, queue_name: str, group_name: str, id: str, verdict: Verdict, deliveries: int | None
) -> bool:
    """Settle one message that was delivered, even if a consumer holds it. Returns False for a repeat.

    `deliveries`: how many the caller has seen. If it was delivered again since, nothing is done.
    """
    queue = find_queue(tx, queue_name)
    group = find_group(tx, queue, group_name)
    place = ids.parse_message_id(id)
    lane = tx.lane(place.lane) if place.store == tx.store else None
    if lane is None or lane.queue != queue.id or tx.is_gone(lane, place.sequence):
        raise NotFound(f"queue {queue_name!r} does not store a message {id}")
    refresh_range(tx, group, lane.id, place.sequence, place.sequence + 1)
    claim = claim_over(tx, group, lane, place.sequence)
    if claim is not None and deliveries is not None and claim.deliveries != deliveries:
        raise AlreadySettled(
            "the message was delivered again in the meantime; look at its new state first"
        )
    outcome = settle_in_group(tx, group, lane, place.sequence, verdict)
    if outcome.refused:
        error = outcome.refused[0].error
        if isinstance(error, NotFound):
            raise NotFound(
                f"group {group_name or QUEUE_MODE!r} was never given this message; it can be deleted"
            )
        raise error
    tx.touched.add(queue.name)
    return not outcome.noop


@verb("read-write", queue="queue_name", lease="token", synced=True)
def release_lease(tx: Tx, queue_name: str, token: int) -> int:
    """Return everything that a lease holds to its group; returns how many messages."""
    settlement = open_settlement(tx, token)
    if settlement is None or settlement.lease.ended_at is not None:
        raise LeaseLost("the lease has ended already")
    outcome = settlement.apply(Mark(Verdict("release")))
    settlement.finish()
    tx.touched.add(queue_name)
    return outcome.settled


@verb("read-write", queue="queue_name", lease="token", synced=True)
def extend_lease(tx: Tx, queue_name: str, token: int, seconds: float | None) -> int:
    """Extend a lease by the lease time of its group, or by `seconds`; returns the new end."""
    return extend(tx, token, seconds)


def settle_in_group(
    tx: Tx, group: Group, lane: Lane, sequence: int, verdict: Verdict,
    settled: type[AckflowError] = AlreadySettled,
) -> Outcome:  # fmt: skip
    """Settle a message as it is in a group.

    A leased or returned message is settled. One never delivered is not found. For a settled one, an
    ack is a repeat and any other verb is refused, with the error `settled`.
    """
    refresh_range(tx, group, lane.id, sequence, sequence + 1)
    claim = claim_over(tx, group, lane, sequence)
    if claim is None:
        return _settled_before(tx, group, lane, sequence, verdict, settled)
    if claim.state == LEASED:
        lease = tx.lease_by_id(claim.lease or NO_LEASE)
        assert lease is not None, "a leased claim without its lease"
        settlement = Settlement(tx, group, lease, tx.claims_of_lease(lease))
    elif claim.returned:
        settlement = _lease_briefly(tx, group, lane, claim, sequence, verdict)
    else:
        return _refused(lane, sequence, message_not_found())
    outcome = settlement.apply(Mark(verdict, lane.id, [sequence, sequence + 1]))
    settlement.finish()
    make_ready(tx, lane.id, group.id)  # it may have blocked later messages of an ordered group
    return outcome


def _lease_briefly(
    tx: Tx, group: Group, lane: Lane, claim: Claim, sequence: int, verdict: Verdict
) -> Settlement:
    """Grant a lease on a returned message, which settling it ends."""
    one = [sequence, sequence + 1]
    claim.ranges = ranges.difference(claim.ranges, one)
    tx.save_claim(claim) if claim.ranges else tx.drop_claim(claim)
    cursor = tx.cursor(lane.id, group.id)
    number = cursor.delivered if cursor else 0
    # A release subtracts a delivery, and this lease was none.
    deliveries = claim.deliveries + (verdict.verb == "release")
    held = Claim.leased(
        group.id, lane.id, one, claim.since, deliveries, claim.failures, RETURNED, claim.error
    )
    parts = [LeasedRanges(lane.id, one, number)]
    lease = grant(tx, group, "", 1, parts, [held], blocks=False)
    return Settlement(tx, group, lease, [held])


def _settled_before(
    tx: Tx, group: Group, lane: Lane, sequence: int, verdict: Verdict, settled: type[AckflowError]
) -> Outcome:
    cursor: Cursor | None = tx.cursor(lane.id, group.id)
    if (
        cursor is None
        or sequence >= cursor.next
        or hidden_copies_in(tx, lane, group.id, sequence, sequence + 1)
    ):
        return _refused(lane, sequence, message_not_found())
    dead = any(row.counted for row in tx.dead("dead_of", group.id, lane.id, sequence))
    if dead == (verdict.verb in ("nack", "reject", "dead_letter")) and verdict.verb != "release":
        return Outcome(noop=1, repeated=[(lane.id, [sequence, sequence + 1])])
    error = AlreadySettled("the message is a dead letter in this group") if dead else settled()
    return _refused(lane, sequence, error)


def _refused(lane: Lane, sequence: int, error: AckflowError) -> Outcome:
    return Outcome(refused=[Refusal(lane.id, [sequence, sequence + 1], error)])


def claim_over(tx: Tx, group: Group, lane: Lane, sequence: int) -> Claim | None:
    """Return the claim that holds a message, if any does."""
    for claim in tx.claims_in(lane.id, group.id, sequence, sequence + 1):
        if ranges.contains(claim.ranges, sequence):
            return claim
    return None


def message_not_found() -> NotFound:
    return NotFound("message not found in this partition")
