"""Staged pushes: written early and invisible, published later in one commit.

Each attempt stages under its own random id. Publishing names the stages that count and drops every
other stage of that batch, so that a repeated attempt counts once.
"""

import secrets
from array import array
from collections.abc import Iterable

from msgspec import msgpack

from ...clock import SECOND
from ...errors import InvalidArgument, StageMissing, StorageFull
from ...options import STAGE_SECONDS
from ...store.encryption import decrypt
from ...store.mapping import pack_body
from ...store.records import Rest, Segment, Stage, StoredRest
from ...store.tx import Tx
from ..requests import STAGED_AT, Chunk, TransactionRequest, check_batch
from ..verb import verb
from .capacity import make_room
from .push import Answer, Placed, announce, created_at, not_before, push_with_rest
from .topology import complete_cursors, lane_for, queue_for
from .transactions import transact

_answers = msgpack.Decoder(Answer).decode


@verb("read-write", repeatable=False, synced=True)
def stage(tx: Tx, producer: str, batch: int, chunks: list[Chunk]) -> str:
    """Write messages under a new stage id; they are invisible until they are published."""
    check_batch(producer, batch)
    if any(chunk.at is not None for chunk in chunks):
        raise InvalidArgument(STAGED_AT)
    if tx.full:
        raise StorageFull()
    name = secrets.token_urlsafe(12)
    if not chunks:
        tx.run("add_stage", name, 0, producer, batch, "", "", 0, None, 0, 0, 0, tx.now)
    for piece, chunk in enumerate(chunks):
        home = tx.queue(chunk.queue)
        sealed = home is not None and home.options.encrypted
        body = tx.add_body(pack_body(chunk.ends.tobytes(), chunk.data, chunk.rest, sealed))
        delay = None if chunk.delay is None else round(chunk.delay * SECOND)
        tx.run("add_stage", name, piece, producer, batch, chunk.queue, chunk.partition,
               chunk.priority, delay, len(chunk.ends), len(chunk.data), body, tx.now)  # fmt: skip
    return name


@verb("read-write", synced=True)
def publish(
    tx: Tx, producer: str, batch: int, stages: list[str], also: TransactionRequest | None = None
) -> Answer:
    """Publish the named stages and drop the batch's others; `also` runs in the same commit.

    A batch that is not above the producer's highest publishes nothing and succeeds.
    """
    check_batch(producer, batch)
    row = tx.one("producer", producer)
    if row is not None and batch <= row[0]:
        _drop_batch(tx, producer, batch)
        return _answers(row[1]) if batch == row[0] else []
    pieces = {name: tx.stage(name) for name in stages}
    for name, found in pieces.items():
        if not found or (found[0].producer, found[0].batch) != (producer, batch):
            raise StageMissing(f"there is no stage {name!r} of {producer!r} batch {batch}")
    with tx.savepoint():
        make_room(tx, _sizes(piece for found in pieces.values() for piece in found))
        answer = [
            _publish(tx, piece) for found in pieces.values() for piece in found if piece.count
        ]
        for name in pieces:
            tx.run("drop_stage", name)
        _drop_batch(tx, producer, batch)
        tx.run("put_producer", producer, batch, msgpack.encode(answer), tx.now)
        if also is not None:
            transact(tx, also)
    return answer


def _sizes(pieces: Iterable[Stage]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for piece in pieces:
        sizes[piece.queue] = sizes.get(piece.queue, 0) + piece.count
    return sizes


@verb("read-write")
def drop_stage(tx: Tx, name: str) -> None:
    """Drop a stage and its payloads."""
    for piece in tx.stage(name):
        tx.run("drop_body", piece.body)
    tx.run("drop_stage", name)


def drop_old_stages(tx: Tx, limit: int) -> int:
    """Drop stages that were not published for a day."""
    old = tx.all("old_stages", tx.now - STAGE_SECONDS * SECOND, limit)
    for (name,) in old:
        drop_stage(tx, name)
    return len(old)


def _drop_batch(tx: Tx, producer: str, batch: int) -> None:
    for (name,) in tx.all("stages_of_batch", producer, batch):
        drop_stage(tx, name)


def _publish(tx: Tx, piece: Stage) -> list[Placed]:
    """Append a staged body to its lane; only a header is written.

    Transaction ids are compared when they become visible: messages with any are pushed again.
    """
    delay = None if piece.delay is None else piece.delay / SECOND
    beside = tx.value("body_rest", piece.body)
    if beside is not None and msgpack.decode(beside, type=Rest).txids:
        row = tx.all("staged_rest", piece.body)[0]
        ends = row[0]
        data, rest = decrypt(row[1], msgpack.decode(row[2], type=StoredRest))
        tx.run("drop_body", piece.body)
        chunk = Chunk(
            piece.queue, piece.partition, piece.priority, delay, array("i", ends), data, rest
        )
        return push_with_rest(tx, chunk)
    queue = queue_for(tx, piece.queue)
    lane = lane_for(tx, queue, piece.partition, piece.priority)
    complete_cursors(tx, queue, lane)
    due = not_before(tx, queue, delay)
    created = created_at(tx, lane)
    segment = Segment(
        lane.id, lane.head, piece.count, created, due, None, None, piece.body, piece.bytes
    )
    tx.append(lane, segment)
    announce(tx, queue, lane, None)
    return [Placed(lane.id, segment.first, segment.stop)]
