"""Settle messages named by partition and transaction id, with or without a lease.

Without one, a verb acts on the message as it is in the group, whichever lease holds it.
"""

from collections.abc import Iterable

from msgspec import Struct

from .... import ids, ranges
from ....broker.brief import brief
from ....broker.core.by_hand.settling import claim_over, message_not_found, settle_in_group
from ....broker.core.settle import (
    Outcome,
    Settlement,
    extend,
    open_settlement,
    settle,
)
from ....broker.core.transactions import Result, run_all, run_push
from ....broker.core.upkeep.expiry import refresh_range
from ....broker.requests import Mark, PushOperation, Verdict
from ....errors import (
    AckflowError,
    AlreadySettled,
    InvalidArgument,
    LeaseLost,
    RolledBack,
    TransactionFailed,
)
from ....ids import LaneId, PartitionId
from ....options import QUEUE_MODE
from ....store.records import Group, Lane, LeasedRanges
from ....store.tx import Tx
from ..errors import AlreadyCommitted

Position = tuple[LaneId, int]  # lane and sequence
FEW = 8  # listing this many messages of a lease takes as long as looking up one


class NamedMessage(Struct, gc=False):
    """A verdict on a message known by name; None extends its lease instead.

    `partition` is None when the client named an impossible one; `stale` is set when the lease it
    named never existed.
    """

    partition: PartitionId | None
    txid: str
    verdict: Verdict | None
    group: str = QUEUE_MODE
    token: int | None = None
    stale: bool = False


class NamedOutcome(Struct, gc=False):
    """What happened to one named message: an error, or settled, now or before."""

    error: AckflowError | None = None
    noop: bool = False
    dead: bool = False
    released: bool = False  # the lease ended with it
    queue: str | None = None
    partition: str | None = None
    until: int | None = None  # the new end of an extended lease


@brief
def settle_named(tx: Tx, items: list[NamedMessage], atomic: bool = False) -> list[NamedOutcome]:
    """Settle messages by name in one transaction; `atomic`: one refusal undoes everything."""
    if not atomic:
        return _settle_all(tx, items)
    results: list[NamedOutcome] = []
    try:
        with tx.savepoint():
            results = _settle_all(tx, items)
            if any(one.error for one in results):
                raise RolledBack()
    except RolledBack as undone:
        return [one if one.error else NamedOutcome(undone, queue=one.queue, partition=one.partition)
                for one in results]  # fmt: skip
    return results


def fenced(tx: Tx, items: Iterable[NamedMessage], tokens: list[int]) -> list[NamedMessage]:
    """Bind messages that name no lease to the one that delivered them, or mark them stale."""
    leases = []
    for token in tokens:
        lease = tx.lease(token)
        if lease is not None:
            leases.append((token, LeaseNames(tx, lease.parts, many=False)))
    bound = []
    for item in items:
        if item.token is None and not item.stale and tokens and item.partition is not None:
            held = [token for token, names in leases if names.position(item.partition, item.txid)]
            item.token, item.stale = (held[0], False) if held else (None, True)
        bound.append(item)
    return bound


class NamedSettles(Struct):
    """Messages settled by name in a transaction."""

    items: list[NamedMessage]


def transact_named(
    tx: Tx, operations: list[NamedSettles | PushOperation], required: list[int]
) -> list[Result]:
    """Run all operations or none.

    The required leases must be live, and a message that names no lease must have been delivered
    under one of them.
    """
    with tx.savepoint():
        for token in required:
            lease = tx.lease(token)
            if lease is None or lease.ended_at is not None or lease.expires_at <= tx.now:
                raise TransactionFailed(
                    "a required lease is no longer held, so nothing was done",
                    code=LeaseLost.code,
                ) from LeaseLost()
        return run_all(tx, operations, lambda tx, one: _run(tx, one, required))


def _run(tx: Tx, operation: NamedSettles | PushOperation, required: list[int]) -> Result:
    if isinstance(operation, PushOperation):
        return run_push(tx, operation)
    results = _settle_all(tx, fenced(tx, operation.items, required))
    for index, one in enumerate(results):
        if one.noop:
            one.error = AlreadySettled("the message was settled before this transaction")
        if one.error is not None:
            one.error.details["item"] = index
            raise one.error
    return Result(settled=len(results), dead=[i for i, one in enumerate(results) if one.dead])


def _settle_all(tx: Tx, items: list[NamedMessage]) -> list[NamedOutcome]:
    results = [NamedOutcome() for _ in items]
    leases: dict[int, list[int]] = {}
    missing: AckflowError | None = None  # shared, as there may be 100,000 of them
    lost: AckflowError | None = None
    for index, item in enumerate(items):
        if item.partition is None:
            results[index].error = missing = missing or message_not_found()
        elif item.stale:
            results[index].error = lost = lost or LeaseLost()
        elif item.token is None:
            _settle_alone(tx, item, item.partition, results[index])
        else:
            leases.setdefault(item.token, []).append(index)
    for token, indexes in leases.items():
        _settle_lease(tx, token, [(items[i], results[i]) for i in indexes])
    return results


def _settle_lease(tx: Tx, token: int, some: list[tuple[NamedMessage, NamedOutcome]]) -> None:
    """Settle messages of one lease; those with one verdict and lane are settled together."""
    if len(some) == 1 and _settle_cached(tx, token, *some[0]):
        return
    settlement = open_settlement(tx, token)
    if settlement is None:
        lost = LeaseLost()
        for _, result in some:
            result.error = lost
        return
    many = len(some) * FEW > settlement.lease.n
    names = LeaseNames(tx, settlement.lease.parts, many=many)
    marks: dict[tuple[LaneId, Verdict], list[tuple[int, NamedOutcome]]] = {}
    kept: list[NamedOutcome] = []
    for item, result in some:
        assert item.partition is not None
        position = names.position(item.partition, item.txid)
        if position is None:
            known = locate(tx, item.partition, item.txid) is not None
            result.error = LeaseLost() if known else message_not_found()
            continue
        result.queue, result.partition = names.home(position[0])
        if item.verdict is None:
            kept.append(result)
        else:
            marks.setdefault((position[0], item.verdict), []).append((position[1], result))
    for (lane, verdict), members in marks.items():
        _settle_together(settlement, lane, verdict, members)
    settlement.finish()
    if settlement.lease.ended_at == tx.now and some:
        some[-1][1].released = True
    for result in kept:
        try:
            result.until = extend(tx, token, None)
        except AckflowError as refusal:
            result.error = refusal


def _settle_cached(tx: Tx, token: int, item: NamedMessage, result: NamedOutcome) -> bool:
    """Settle the only message of a request, named by its id, under a cached lease, in fewer steps.

    Most requests take this path. Returns False for any other; the general code gives the same.
    """
    known, position = tx.cache.leases.get(token), position_of_id(tx, item.txid)
    if known is None or position is None or item.verdict is None:
        return False
    lane = tx.lane(position[0])
    if (
        lane is None
        or lane.partition != item.partition
        or not any(
            part.lane == lane.id and ranges.contains(part.ranges, position[1])
            for part in known[0].parts
        )
    ):
        return False
    mark = Mark(item.verdict, lane.id, [position[1], position[1] + 1])
    (outcome,) = settle(tx, token, [mark])
    _set_outcome(outcome, result)
    result.queue, result.partition = _home(tx, lane)
    result.released = bool(outcome.settled) and token not in tx.cache.leases
    return True


def _settle_together(
    settlement: Settlement, lane: LaneId, verdict: Verdict, members: list[tuple[int, NamedOutcome]]
) -> None:
    if len(members) == 1:
        ((sequence, result),) = members
        outcome = settlement.apply(Mark(verdict, lane, [sequence, sequence + 1]))
        _set_outcome(outcome, result)
        return
    outcome = settlement.apply(Mark(verdict, lane, ranges.of([seq for seq, _ in members])))
    if not (outcome.refused or outcome.repeated or outcome.dead_lettered):
        return
    for sequence, result in members:
        for part in outcome.refused:
            if ranges.contains(part.ranges, sequence):
                result.error = part.error
        result.noop = any(ranges.contains(some, sequence) for _, some in outcome.repeated)
        result.dead = any(ranges.contains(some, sequence) for _, some in outcome.dead_lettered)


def _set_outcome(outcome: Outcome, result: NamedOutcome) -> None:
    if outcome.refused:
        result.error = outcome.refused[0].error
    result.noop, result.dead = bool(outcome.noop), bool(outcome.dead)


def _settle_alone(tx: Tx, item: NamedMessage, partition: PartitionId, result: NamedOutcome) -> None:
    position = locate(tx, partition, item.txid)
    lane = tx.lane(position[0]) if position else None
    group = tx.group(lane.queue, item.group) if lane else None
    if position is None or lane is None or group is None or not _stored(tx, lane, position[1]):
        result.error = message_not_found()
        return
    result.queue, result.partition = _home(tx, lane)
    if item.verdict is None:
        _extend_alone(tx, group, lane, position[1], result)
    else:
        _set_outcome(
            settle_in_group(tx, group, lane, position[1], item.verdict, AlreadyCommitted), result
        )


def _extend_alone(tx: Tx, group: Group, lane: Lane, sequence: int, result: NamedOutcome) -> None:
    refresh_range(tx, group, lane.id, sequence, sequence + 1)
    claim = claim_over(tx, group, lane, sequence)
    lease = tx.lease_by_id(claim.lease) if claim and claim.lease else None
    if lease is None:
        result.error = LeaseLost()
    else:
        result.until = extend(tx, lease.token, None)


def _stored(tx: Tx, lane: Lane, sequence: int) -> bool:
    return lane.base <= sequence < lane.head and not tx.is_gone(lane, sequence)


def locate(tx: Tx, partition: PartitionId, txid: str) -> Position | None:
    """Return the position of a message known by its id or by an indexed transaction id."""
    position = position_of_id(tx, txid)
    if position is not None:
        lane = tx.lane(position[0])
        if lane is not None and lane.partition == partition and position[1] < lane.head:
            return position
    row = tx.one("get_txid", partition, txid)
    return None if row is None else (row[0], row[1])


def position_of_id(tx: Tx, text: str) -> Position | None:
    if len(text) != 36 or text[14] != "8":
        return None
    try:
        place = ids.parse_message_id(text)
    except InvalidArgument:
        return None
    return (place.lane, place.sequence) if place.store == tx.store else None


def _home(tx: Tx, lane: Lane) -> tuple[str, str]:
    queue, home = tx.queue_by_id(lane.queue), tx.partition_by_id(lane.partition)
    assert queue is not None
    assert home is not None
    return queue.name, home.name


class LeaseNames:
    """The messages of one lease by name.

    A lease also finds copies and messages whose transaction ids are no longer indexed. With `many`
    to find, it lists all of them at once instead of looking them up one by one.
    """

    def __init__(self, tx: Tx, parts: list[LeasedRanges], many: bool) -> None:
        self._tx = tx
        self._parts = parts
        self._many = many
        self._homes: dict[LaneId, tuple[str, str]] = {}
        self._all: dict[tuple[int, str], Position] | None = None

    def position(self, partition: PartitionId, txid: str) -> Position | None:
        if not self._many:
            position = locate(self._tx, partition, txid)
            if position is not None and self._has(position):
                return position
        if self._all is None:
            self._all = dict(self._listed())
        return self._all.get((partition, txid)) or self._by_id(partition, txid)

    def home(self, lane: LaneId) -> tuple[str, str]:
        """Return the names of the queue and the partition of a lane."""
        found = self._homes.get(lane)
        if found is None:
            row = self._tx.lane(lane)
            assert row is not None
            found = self._homes[lane] = _home(self._tx, row)
        return found

    def _by_id(self, partition: PartitionId, text: str) -> Position | None:
        position = position_of_id(self._tx, text)
        lane = self._tx.lane(position[0]) if position and self._has(position) else None
        return position if lane is not None and lane.partition == partition else None

    def _has(self, position: Position) -> bool:
        return any(
            p.lane == position[0] and ranges.contains(p.ranges, position[1]) for p in self._parts
        )

    def _listed(self) -> Iterable[tuple[tuple[int, str], Position]]:
        for part in self._parts:
            lane = self._tx.lane(part.lane)
            prefix = ids.id_prefix(self._tx.store, part.lane)
            for segment, first, stop in self._tx.segments_over(part.lane, part.ranges):
                assert lane is not None, "a segment without its lane"
                rest = self._tx.body(segment).rest
                txids = rest.txids if rest else {}
                for sequence in range(first, stop):
                    txid = txids.get(sequence - segment.first)
                    if txid is None:
                        txid = f"{prefix}{sequence:012x}"
                    yield (lane.partition, txid), (part.lane, sequence)
