"""The verbs of a Spark reader: numbered batches that can be read again.

A reader is the identity of one query in a group; it is stored in the query's offsets. Every batch
gets the next number, and no number is given twice. Each start of the query raises the reader's
epoch; calls with an older epoch are refused.
"""

from functools import partial

from msgspec import Struct

from ... import ranges, validate
from ...clock import SECOND
from ...errors import Gone, InvalidArgument, LeaseLost
from ...ids import LaneId
from ...ranges import Ranges
from ...store.records import RETURNED, Claim, Cursor, Group, Lane, Queue
from ...store.tx import Tx
from ..core.cursors import sequence_at
from ..core.handout import Handout, LaneBatch, TakenMessages, message_runs
from ..core.leases import leased_messages
from ..core.pop import lease_batches, may_have_more, next_work, room_for, union_of
from ..core.settle import extend, settle
from ..core.take import take, take_with_takeover
from ..core.topology import group_for, queue_for
from ..core.upkeep.expiry import refresh
from ..requests import Mark, PopRequest, ReaderRequest, Verdict, check_ranges
from ..verb import verb
from ..views.stats import group_counts
from .reclaim import consumer_of, part_states, reclaim
from .records import (
    NO_END,
    BatchPart,
    Reader,
    ReaderBatch,
    batches_between,
    drop_batch,
    get_part,
    get_reader,
    parts_of_batch,
    save_batch,
    save_part,
    save_reader,
)

LANES_AT_MOST = 1_000
UNSETTLED = "the query neither settled nor held it"
UNREADABLE = "the payload does not fit the schema of the query"


class NumberedBatch(Struct):
    """The number of a batch, and how many messages this call leased for it."""

    number: int
    rows: int = 0


class ReaderLag(Struct):
    """What a reader's group still has to do at a time.

    `behind` are the undelivered messages of each lane: the fewest, the most, their sum.
    """

    at: int
    ready: int
    leased: int
    waiting: int
    done: int
    dead: int
    oldest_seconds: float | None
    lanes: int
    least_behind: int
    most_behind: int
    behind: int


class PlannedPart(Struct):
    """What a batch has of one lane under one lease, and its approximate size in bytes."""

    number: int
    lane: LaneId
    token: int
    ranges: Ranges
    bytes: int


@verb("read-write", queue="queue", reader="reader", synced=True)
def start_reader(
    tx: Tx, reader: str, queue: str, group: str, manual: bool, number: int,
) -> int:  # fmt: skip
    """Begin a new epoch of a reader whose offsets reach `number`; returns the epoch.

    The counter is never below what Spark has seen. In manual mode, what earlier epochs still hold
    of finished batches is released, uncounted, because its holder no longer runs.
    """
    validate.name(reader, "reader")
    home = group_for(
        tx, queue_for(tx, validate.name(queue, "queue")), validate.name(group, "group")
    )
    found = get_reader(tx, reader) or Reader(reader, home.id, manual, 0, 0, tx.now)
    if found.group_id != home.id:
        raise InvalidArgument(
            f"the checkpoint belongs to another queue or group than {queue!r}, {group!r}; "
            "start with a new checkpoint"
        )
    found.manual = manual
    found.epoch += 1
    found.number = max(found.number, number)
    save_reader(tx, found)
    for reader_batch in batches_between(tx, reader, -1, number) if manual else ():
        for token in _tokens(tx, reader_batch):
            settle(tx, token, [Mark(Verdict("release"))])
        drop_batch(tx, reader_batch)
    return found.epoch


@verb("read-write", name="reader_idle", reader="reader", read_only=True)
def is_idle(tx: Tx, reader: str, epoch: int, start: int) -> bool:
    """Return whether `lease_next` after `start` would change nothing; read-only."""
    found = get_reader(tx, reader)
    if found is None or found.epoch != epoch:
        return False
    if any(not reader_batch.done for reader_batch in batches_between(tx, reader, -1, NO_END)):
        return False
    group = tx.group_by_id(found.group_id)
    making = group is not None and may_have_more(group)
    return not making and not tx.value("group_has_work", found.group_id, tx.now)


@verb("read-only", name="reader_lag", reader="reader", read_only=True)
def lag(tx: Tx, reader: str, epoch: int) -> ReaderLag:
    """Count what the group of a reader still has to do."""
    _, queue, group = current(tx, reader, epoch)
    counts, oldest = group_counts(tx, queue, group, tx.all("queue_totals", queue.id)[0][0])
    lanes, least, most, behind = tx.all("group_behind", group.id)[0]
    return ReaderLag(
        tx.now, counts.ready, counts.leased, counts.waiting, counts.done, counts.dead,
        None if oldest is None else max(0.0, (tx.now - oldest) / SECOND), lanes, least, most, behind,
    )  # fmt: skip


@verb("read-write", synced=True)
def lease_next(tx: Tx, request: ReaderRequest) -> NumberedBatch:
    """Settle the batches up to `start`, lease the next one, and return its number.

    Returns `start` if there are no messages. A batch above `start` that Spark has not recorded is
    returned again instead of a new one, so that a repeated call does not lease twice.
    """
    reader, queue, group = current(tx, request.reader, request.epoch)
    refresh(tx, group, request.rows)
    _settle_to(tx, reader, group, request.start, request.lease_seconds)
    again = _again(tx, reader, group, request)
    if again is not None:
        return NumberedBatch(again)
    parts = _gather(tx, queue, group, request)
    if not parts:
        return NumberedBatch(request.start)
    reader.number = max(reader.number, request.start) + 1
    save_reader(tx, reader)
    answer = Handout(queue.name, group.name, tx.store)
    asked = PopRequest(queue.name, group.name, consumer_of(reader.id),
                       lease_seconds=request.lease_seconds)  # fmt: skip
    lease_batches(tx, group, asked, parts, answer)
    assert answer.token is not None
    reader_batch = ReaderBatch(reader.id, reader.number, reader.epoch)
    save_batch(tx, reader_batch)
    for part in parts:
        save_part(tx, reader_batch, BatchPart(part.lane.id, answer.token, part.ranges))
    return NumberedBatch(reader.number, sum(ranges.count(part.ranges) for part in parts))


@verb("read-write", reader="reader", synced=True)
def settle_to(tx: Tx, reader: str, epoch: int, number: int, lease_seconds: float) -> int:
    """Settle every batch up to `number`; returns how many messages that settled."""
    validate.positive(lease_seconds, "lease_seconds")
    found, _, group = current(tx, reader, epoch)
    refresh(tx, group)
    return _settle_to(tx, found, group, number, lease_seconds)


@verb("read-write", reader="reader", synced=True)
def hand_over(
    tx: Tx, reader: str, epoch: int, start: int, end: int, lease_seconds: float
) -> list[PlannedPart]:
    """Fix the content of the batches above `start` up to `end`; reclaims what is free."""
    validate.positive(lease_seconds, "lease_seconds")
    found, _, group = current(tx, reader, epoch)
    refresh(tx, group)
    reader_batches = batches_between(tx, reader, start, end)
    if end > start and (not reader_batches or reader_batches[-1].number != end):
        raise Gone(
            f"the batch that ends at number {end} is no longer known: the group was deleted, or the "
            "query was away for too long; start with a new checkpoint"
        )
    found.number = max(found.number, end)
    save_reader(tx, found)
    lots = []
    for reader_batch in reader_batches:
        reclaim(tx, group, reader_batch, lease_seconds)
        if reader_batch.epoch != epoch:
            # A run of an earlier epoch can no longer publish what it made of this batch.
            reader_batch.epoch, reader_batch.run = epoch, None
            save_batch(tx, reader_batch)
            _renew(tx, reader_batch, lease_seconds)
        for part in parts_of_batch(tx, reader_batch):
            size = _size(tx, part.lane, part.ranges)
            lots.append(PlannedPart(reader_batch.number, part.lane, part.token, part.ranges, size))
    return lots


@verb("read-write", name="keep_reader", reader="reader")
def keep(tx: Tx, reader: str, epoch: int, lease_seconds: float) -> int:
    """Extend every lease of a reader; returns how many batches are no longer complete.

    What expired meanwhile is reclaimed if all of it is free, because a task may be working on it.
    """
    validate.positive(lease_seconds, "lease_seconds")
    found, _, group = current(tx, reader, epoch)
    save_reader(tx, found)
    broken = 0
    for reader_batch in batches_between(tx, reader, -1, NO_END):
        alive = {s.part.token for s in part_states(tx, group, reader_batch) if s.held}
        for token in alive:
            extend(tx, token, lease_seconds)
        if reader_batch.done:
            if not alive:
                drop_batch(tx, reader_batch)
        elif not reclaim(tx, group, reader_batch, lease_seconds, whole=True):
            broken += 1
    return broken


def _check_part(
    _reader: str, _epoch: int, _number: int, _lane: int, _token: int, which: Ranges, *_: int
) -> None:
    check_ranges(which)
    if not which:
        raise InvalidArgument("a part of a batch must have at least one message")


@verb("read-write", name="reader_fetch", reader="reader", lease="token", read_only=True,
      check=_check_part)  # fmt: skip
def fetch(
    tx: Tx, reader: str, epoch: int, number: int, lane: LaneId, token: int, which: Ranges, size: int,
) -> Handout:  # fmt: skip
    """Return the first messages of a part of a batch, about `size` bytes, settled or not.

    Never fewer: if a message is no longer stored, the call fails.
    """
    _, queue, group = current(tx, reader, epoch)
    part, home = get_part(tx, reader, number, lane, token), tx.lane(lane)
    if part is None or home is None or ranges.difference(which, part.ranges):
        raise LeaseLost(f"the batch numbered {number} no longer has these messages")
    which = _first_bytes(tx, lane, which, size)
    row = tx.lease_row(token)
    claims = tx.claims_in(lane, group.id, which[0], which[-1])
    mine = _merged([c for c in claims if row and c.lease == row[0]])
    shares = leased_messages(tx, lane, which, mine)
    runs = message_runs(tx, home, shares, 0, 0)
    if sum(run.hi - run.lo for run in runs) != ranges.count(which):
        raise Gone("some messages of the batch are no longer stored")
    return Handout(queue.name, group.name, tx.store, token, None, runs)


@verb("read-write", name="reader_stored", reader="reader", lease="token", read_only=True,
      check=_check_part)  # fmt: skip
def stored(
    tx: Tx, reader: str, epoch: int, number: int, lane: LaneId, token: int, which: Ranges
) -> Ranges:
    """Return which messages of a part of a batch are still stored."""
    current(tx, reader, epoch)
    return ranges.of(n for _, lo, hi in tx.segments_over(lane, which) for n in range(lo, hi))


@verb("read-write", reader="reader", lease="token", check=_check_part)
def mark_bad(
    tx: Tx, reader: str, epoch: int, number: int, lane: LaneId, token: int, which: Ranges
) -> None:
    """Record messages that could not be parsed; they are dead-lettered when the batch is acked."""
    current(tx, reader, epoch)
    part = get_part(tx, reader, number, lane, token)
    if part is None or ranges.difference(which, part.ranges):
        raise LeaseLost(f"the batch numbered {number} no longer has these messages")
    if ranges.difference(which, part.bad):
        part.bad = ranges.union(part.bad, which)
        save_part(tx, ReaderBatch(reader, number, epoch), part)


def current(tx: Tx, reader: str, epoch: int) -> tuple[Reader, Queue, Group]:
    """Return the reader of this epoch with its queue and group; an older epoch is refused."""
    found = get_reader(tx, reader)
    group = tx.group_by_id(found.group_id) if found else None
    queue = tx.queue_by_id(group.queue) if group else None
    if found is None or group is None or queue is None:
        raise LeaseLost("the reader is not known: its group was deleted; start the query again")
    if found.epoch != epoch:
        raise LeaseLost(
            "the query was started again elsewhere, or its group was sought or purged; "
            "this run is over"
        )
    return found, queue, group


def marks_for(parts: list[BatchPart]) -> dict[int, list[Mark]]:
    """Return how a finished batch is settled, by token: unreadable messages, then the rest."""
    marks: dict[int, list[Mark]] = {}
    for part in parts:
        some = marks.setdefault(part.token, [])
        if part.bad:
            some.append(Mark(Verdict("dead_letter", UNREADABLE), part.lane, part.bad))
    for some in marks.values():
        some.append(Mark(Verdict("ack")))
    return marks


def _settle_to(tx: Tx, reader: Reader, group: Group, number: int, seconds: float) -> int:
    settled = 0
    for reader_batch in batches_between(tx, reader.id, -1, number):
        if reader_batch.done:
            continue
        if reader.manual:
            settled += _let_go(tx, group, reader_batch)
            continue
        # Spark has finished this batch: what no other consumer was given is done.
        reclaim(tx, group, reader_batch, seconds)
        for token, marks in marks_for(parts_of_batch(tx, reader_batch)).items():
            settled += sum(outcome.settled for outcome in settle(tx, token, marks))
        drop_batch(tx, reader_batch)
    return settled


def _let_go(tx: Tx, group: Group, reader_batch: ReaderBatch) -> int:
    """Manual mode: nack what a finished batch neither settled nor held."""
    settled, left = 0, False
    for stand in part_states(tx, group, reader_batch):
        part = stand.part
        left = left or bool(stand.held)
        if not stand.held:
            continue
        marks = [Mark(Verdict("dead_letter", UNREADABLE), part.lane, part.bad)] if part.bad else []
        loose = ranges.difference(_unheld(tx, group, part), part.bad)
        if loose:
            marks.append(Mark(Verdict("nack", UNSETTLED), part.lane, loose))
        if marks:
            settled += sum(outcome.settled for outcome in settle(tx, part.token, marks))
    if left and any(stand.held for stand in part_states(tx, group, reader_batch)):
        reader_batch.done = True
        save_batch(tx, reader_batch)
    else:
        drop_batch(tx, reader_batch)
    return settled


def _unheld(tx: Tx, group: Group, part: BatchPart) -> Ranges:
    row = tx.lease_row(part.token)
    found: Ranges = []
    for _, lo, hi, packed in tx.all("unheld_claims", part.lane, group.id, row[0]) if row else ():
        found = ranges.union(found, [lo, hi] if packed is None else ranges.unpack(packed))
    return ranges.intersection(found, part.ranges)


def _again(tx: Tx, reader: Reader, group: Group, request: ReaderRequest) -> int | None:
    """Return the highest batch that Spark has not recorded; drops batches with nothing left."""
    found = None
    for reader_batch in batches_between(tx, reader.id, request.start, NO_END):
        reclaim(tx, group, reader_batch, request.lease_seconds)
        if parts_of_batch(tx, reader_batch):
            found = reader_batch.number
        else:
            drop_batch(tx, reader_batch)
    return found


def _renew(tx: Tx, reader_batch: ReaderBatch, seconds: float) -> None:
    """Restart the leases of an earlier epoch and flag their messages as redelivered.

    A lease that is about to end would be reclaimed under another token than tasks were given.
    """
    for token in _tokens(tx, reader_batch):
        found = tx.held(token)
        for claim in found[1] if found else ():
            if not claim.redelivered:
                claim.redelivered = RETURNED
                tx.save_claim(claim)
        if found and found[1]:
            extend(tx, token, seconds)


def _tokens(tx: Tx, reader_batch: ReaderBatch) -> list[int]:
    return list(dict.fromkeys(part.token for part in parts_of_batch(tx, reader_batch)))


def _gather(tx: Tx, queue: Queue, group: Group, request: ReaderRequest) -> list[LaneBatch]:
    """Take from one lane after another up to the limits; reads headers only, no payload."""
    rows = min(request.rows, room_for(tx, queue, group, Handout(queue.name, group.name, tx.store)))
    size = request.bytes
    parts: dict[int, LaneBatch] = {}
    later: list[Cursor] = []  # lanes that only have messages pushed after the time limit
    while rows > 0 and size > 0 and len(parts) < LANES_AT_MOST:
        cursor, _ = next_work(tx, queue, group, None)
        if cursor is None:
            break
        lane = tx.lane(cursor.lane)
        assert lane is not None
        if lane.id in parts:
            if cursor.next < lane.head or tx.due_claims(lane.id, group.id, 1):
                break
            # Emptied by exactly what was wanted: other lanes may have work.
            cursor.ready = False
            tx.changed(cursor)
            continue
        number = cursor.delivered
        want = _fitting(tx, lane, group, cursor, rows, size)
        if request.until is not None:
            want = min(want, _pushed_until(tx, lane, group, cursor, request.until, want))
            if not want:
                cursor.ready = False  # so that the next lane is found, until the end of this call
                tx.changed(cursor)
                later.append(cursor)
                continue
        some = partial(take, tx, queue, group, lane, cursor, want)
        taken = take_with_takeover(tx, queue, group, lane, some)
        if taken:
            parts[lane.id] = LaneBatch(lane, cursor, taken, union_of(taken), number, [])
            rows -= ranges.count(parts[lane.id].ranges)
            size -= _size_of(taken)
        elif cursor.ready:  # it stopped before all work was done; Spark calls again
            break
    for cursor in later:
        cursor.ready = True
        tx.changed(cursor)
    return list(parts.values())


def _pushed_until(tx: Tx, lane: Lane, group: Group, cursor: Cursor, until: int, want: int) -> int:
    """Count messages of a lane, at most `want`, that were pushed up to a time."""
    due = sum(ranges.count(claim.ranges) for claim in tx.due_claims(lane.id, group.id, want))
    return due + max(0, sequence_at(tx, lane, until + 1) - cursor.next)


def _fitting(tx: Tx, lane: Lane, group: Group, cursor: Cursor, rows: int, size: int) -> int:
    """Estimate how many messages of a lane fit into `size` bytes, from 1 to `rows`."""
    due = tx.due_claims(lane.id, group.id, 1)
    at, fit = (due[0].ranges[0] if due else cursor.next), 0
    for segment in tx.segments_from(lane.id, at):
        if size <= 0 or fit >= rows:
            break
        there = segment.stop - max(at, segment.first)
        each = max(1.0, segment.bytes / segment.count)
        fit += min(there, int(size // each))
        size -= int(there * each)
    return max(1, min(rows, fit))


def _size_of(taken: list[TakenMessages]) -> int:
    return sum(
        (hi - lo) * segment.bytes // segment.count
        for some in taken
        for segment, lo, hi in some.spans
    )


def _size(tx: Tx, lane: LaneId, which: Ranges) -> int:
    spans = tx.segments_over(lane, which)
    return sum((hi - lo) * segment.bytes // segment.count for segment, lo, hi in spans)


def _merged(claims: list[Claim]) -> list[Claim]:
    """Merge claims with equal counters, so that messages pushed together are read together."""
    merged: dict[tuple[int, int, bool], Claim] = {}
    for claim in claims:
        known = merged.setdefault(
            (claim.deliveries, claim.failures, bool(claim.redelivered)), claim
        )
        known.ranges = ranges.union(known.ranges, claim.ranges)
    return list(merged.values())


def _first_bytes(tx: Tx, lane: LaneId, which: Ranges, size: int) -> Ranges:
    """Return the beginning of a range set, in whole segments, of about `size` bytes."""
    for segment, lo, hi in tx.segments_over(lane, which):
        size -= (hi - lo) * segment.bytes // segment.count
        if size <= 0:
            return ranges.clip(which, 0, hi)
    return which
