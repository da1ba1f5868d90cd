"""Readers and their numbered batches as rows: what Spark may read again, and under which lease."""

from msgspec import Struct

from ... import ranges
from ...ids import GroupId, LaneId
from ...ranges import Ranges
from ...store.mapping import Row
from ...store.tx import Tx

NO_END = 1 << 62


class Reader(Struct):
    """The identity of one Spark query in a group. Each start of the query raises `epoch`."""

    id: str
    group_id: GroupId
    manual: bool
    epoch: int
    number: int
    seen_at: int


class ReaderBatch(Struct):
    """A numbered batch, and the (query, batch, run) of Spark that reads it.

    `epoch` is the reader's when the batch was last handed over. `done`: Spark has finished it, and
    only held messages are left.
    """

    reader: str
    number: int
    epoch: int
    query: str | None = None
    batch: int | None = None
    run: str | None = None
    done: bool = False


class BatchPart(Struct):
    """What a batch has of one lane under one lease; `bad` could not be parsed."""

    lane: LaneId
    token: int
    ranges: Ranges
    bad: Ranges = []


def get_reader(tx: Tx, id: str) -> Reader | None:
    row = tx.one("reader", id)
    return Reader(*row) if row else None


def reader_queue(tx: Tx, id: str) -> str | None:
    """Return the name of the queue that a reader reads, or None if the reader is unknown."""
    reader = get_reader(tx, id)
    group = tx.group_by_id(reader.group_id) if reader else None
    queue = tx.queue_by_id(group.queue) if group else None
    return queue.name if queue else None


def save_reader(tx: Tx, reader: Reader) -> None:
    reader.seen_at = tx.now
    tx.run("put_reader", reader.id, reader.group_id, reader.manual, reader.epoch, reader.number,
           reader.seen_at)  # fmt: skip


def batches_between(tx: Tx, reader: str, start: int, end: int) -> list[ReaderBatch]:
    """Return the batches numbered above `start` up to and including `end`."""
    return [ReaderBatch(*row) for row in tx.all("hands_between", reader, start, end)]


def save_batch(tx: Tx, reader_batch: ReaderBatch) -> None:
    tx.run("put_hand", reader_batch.reader, reader_batch.number, reader_batch.epoch, reader_batch.query, reader_batch.batch, reader_batch.run,
           reader_batch.done)  # fmt: skip


def batches_of_query_batch(tx: Tx, query: str, batch: int) -> list[ReaderBatch]:
    return [ReaderBatch(*row) for row in tx.all("hands_of_batch", query, batch)]


def parts_of_batch(tx: Tx, reader_batch: ReaderBatch) -> list[BatchPart]:
    return [_to_part(row) for row in tx.all("hand_parts", reader_batch.reader, reader_batch.number)]


def get_part(tx: Tx, reader: str, number: int, lane: LaneId, token: int) -> BatchPart | None:
    row = tx.one("hand_part", reader, number, lane, token)
    return _to_part(row) if row else None


def save_part(tx: Tx, reader_batch: ReaderBatch, part: BatchPart) -> None:
    """Save a part; deletes one with nothing left."""
    if not part.ranges:
        tx.run("drop_hand_part", reader_batch.reader, reader_batch.number, part.lane, part.token)
        return
    packed = None if len(part.ranges) == 2 else ranges.pack(part.ranges)
    bad = ranges.pack(part.bad) if part.bad else None
    tx.run("put_hand_part", reader_batch.reader, reader_batch.number, part.lane, part.token, part.ranges[0],
           part.ranges[-1], packed, bad)  # fmt: skip


def drop_batch(tx: Tx, reader_batch: ReaderBatch) -> None:
    tx.run("drop_hand_parts", reader_batch.reader, reader_batch.number)
    tx.run("drop_hand", reader_batch.reader, reader_batch.number)


def forget_reader(tx: Tx, id: str) -> None:
    for reader_batch in batches_between(tx, id, -1, NO_END):
        drop_batch(tx, reader_batch)
    tx.run("drop_reader", id)


def forget_readers(tx: Tx, before: int, limit: int) -> int:
    """Delete readers not seen for long; their messages may then be trimmed."""
    old = tx.all("old_readers", before, limit)
    for (id,) in old:
        forget_reader(tx, id)
    return len(old)


def _to_part(row: Row) -> BatchPart:
    lane, token, lo, hi, packed, bad = row
    held = [lo, hi] if packed is None else ranges.unpack(packed)
    return BatchPart(lane, token, held, ranges.unpack(bad) if bad else [])
