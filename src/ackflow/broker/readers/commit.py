"""The end of a Spark batch: what it produced is published and its input settled in one commit."""

from msgspec import Struct

from ... import ranges
from ...errors import LeaseExpired, LeaseLost
from ...ranges import Ranges
from ...store.records import Claim, record_acks
from ...store.tx import Tx
from ..core.leases import queue_of_lease
from ..core.settle import settle
from ..core.stage import publish, publish_for, published
from ..core.upkeep.expiry import expire_if_over
from ..requests import BatchCommit, Hold, SettleOperation, TransactionRequest
from ..verb import verb
from .reclaim import part_states
from .records import (
    ReaderBatch,
    batches_between,
    batches_of_query_batch,
    get_reader,
    reader_queue,
    save_batch,
)
from .verbs import current, marks_for


class BatchDone(Struct):
    """What a commit did. `repeated`: the batch was committed before, and nothing was done."""

    published: int = 0
    settled: int = 0
    repeated: bool = False


@verb("read-write", name="bind_batch", reader="reader", query_batch=("query", "batch"))
def bind(
    tx: Tx, reader: str, epoch: int, start: int, end: int, query: str, batch: int, run: str
) -> None:
    """Record which batch of which query reads these numbers, so that its commit can settle them."""
    current(tx, reader, epoch)
    for reader_batch in batches_between(tx, reader, start, end):
        if (reader_batch.query, reader_batch.batch, reader_batch.run) != (query, batch, run):
            reader_batch.query, reader_batch.batch, reader_batch.run = query, batch, run
            save_batch(tx, reader_batch)


@verb("read-write", synced=True)
def commit_batch(tx: Tx, request: BatchCommit) -> BatchDone:
    """Publish, settle and hold, all or nothing.

    A batch that is not above the producer's highest does nothing and succeeds.
    """
    known = published(tx, request.producer)
    if known is not None and request.batch <= known.batch:
        publish(tx, request.producer, request.batch, request.stages)
        return BatchDone(repeated=True)
    reader_batches = (
        batches_of_query_batch(tx, request.query, request.batch) if request.query else []
    )
    for reader_batch in reader_batches:
        if reader_batch.run != request.run:
            raise LeaseLost("the query was started again elsewhere; this run is over")
    done = BatchDone()
    with tx.savepoint():
        operations = [*request.settles, *request.also]
        also = TransactionRequest(operations) if operations else None
        queues = {reader_queue(tx, one.reader) for one in reader_batches}
        queues |= {queue_of_lease(tx, one.token) for one in request.holds}
        placed = publish_for(tx, request.producer, request.batch, request.stages, also, queues)
        done.published = sum(place.stop - place.first for run in placed for place in run)
        for some in request.holds:
            hold(tx, some)
        for reader_batch in reader_batches:
            done.settled += _ack(tx, reader_batch)
    return done


@verb("read-write", synced=True)
def judge(tx: Tx, settles: list[SettleOperation], holds: list[Hold]) -> int:
    """Settle and hold messages of any leases, each on its own; returns how many were refused.

    A repeat with the same tokens succeeds.
    """
    refused = 0
    for some in settles:
        for outcome in settle(tx, some.token, some.marks):
            refused += sum(max(1, ranges.count(part.ranges)) for part in outcome.refused)
    for one in holds:
        try:
            hold(tx, one)
        except LeaseLost:
            refused += ranges.count(one.ranges)
    return refused


def hold(tx: Tx, asked: Hold) -> None:
    """Keep messages leased, outside the window, for as long as their reader runs."""
    found = tx.held(asked.token)
    group = tx.group_by_id(found[0].group_id) if found else None
    if found is None or group is None:
        raise LeaseLost()
    lease, claims = found
    if expire_if_over(tx, group, lease):
        raise LeaseExpired()
    mine = [
        (c, ranges.intersection(c.ranges, asked.ranges)) for c in claims if c.lane == asked.lane
    ]
    held: Ranges = []
    for _, part in mine:
        held = ranges.union(held, part)
    if held != asked.ranges:
        raise LeaseLost("a message to hold is settled, or leased to another consumer")
    record_acks(lease, claims)
    tx.save_lease(lease)
    for claim, part in mine:
        if part:
            _split(tx, claim, part)


def _split(tx: Tx, claim: Claim, part: Ranges) -> None:
    """Take part of a claim out of the window of its group."""
    if part == claim.ranges:
        tx.hold_claim(claim)
        return
    claim.ranges = ranges.difference(claim.ranges, part)
    tx.shrink_claim(claim, ranges.count(part))
    held = Claim.leased(
        claim.group_id, claim.lane, part, claim.since, claim.deliveries, claim.failures,
        claim.redelivered, claim.error,
    )  # fmt: skip
    held.lease, held.at = claim.lease, claim.at
    tx.add_claim(held)
    tx.hold_claim(held)


def _ack(tx: Tx, reader_batch: ReaderBatch) -> int:
    """Ack what a batch read; refused when some of it is no longer held."""
    reader = get_reader(tx, reader_batch.reader)
    group = tx.group_by_id(reader.group_id) if reader else None
    if reader is None or group is None:
        raise LeaseLost("the group of the batch was deleted")
    if reader.manual:
        return 0
    stands = part_states(tx, group, reader_batch)
    lost = sum(ranges.count(stand.missing) for stand in stands)
    if lost:
        raise LeaseLost(
            f"{lost} messages of the batch are no longer held, as their lease ran out; nothing was "
            "published, start the query again"
        )
    open_parts = [stand.part for stand in stands if stand.held]
    settled = 0
    for token, marks in marks_for(open_parts).items():
        for outcome in settle(tx, token, marks):
            settled += outcome.settled
    return settled
