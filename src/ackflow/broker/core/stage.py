"""Staged pushes: written early and invisible, published later in one commit.

Each attempt stages under its own random id. Publishing names the stages that count and drops every
other stage of that batch, so that a repeated attempt counts once.
"""

import secrets
from array import array
from collections.abc import Iterable

from msgspec import Struct, msgpack

from ...clock import SECOND
from ...errors import InvalidArgument, StageMissing, StorageFull
from ...options import STAGE_SECONDS
from ...store.encryption import STAGED
from ...store.mapping import make_note, pack_body, stage_place, unpack_body
from ...store.records import Segment, Stage, StoredRest
from ...store.tx import Tx
from ..requests import (
    STAGED_AT,
    Chunk,
    PushOperation,
    SettleOperation,
    TransactionRequest,
    check_batch,
)
from ..verb import verb
from .capacity import make_room
from .leases import queue_of_lease
from .push import Answer, Placed, announce, created_at, not_before, push_with_rest
from .topology import complete_cursors, lane_for, queue_for
from .transactions import transact


class Published(Struct):
    """What is kept of a producer: its highest batch, the answer to it, and its queues.

    A producer belongs to the queues that its batches have touched; others may not use its name.
    """

    batch: int
    places: Answer
    queues: list[str] = []


class _Stored(Struct):
    places: Answer
    queues: list[str]


_stored = msgpack.Decoder(_Stored | Answer).decode  # rows of older versions have only the answer


@verb("read-write", producer="producer", repeatable=False, synced=True)
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
        place = stage_place(name, piece) if home and home.options.encrypted else None
        body = tx.add_body(pack_body(chunk.ends.tobytes(), chunk.data, chunk.rest, place))
        delay = None if chunk.delay is None else round(chunk.delay * SECOND)
        tx.run("add_stage", name, piece, producer, batch, chunk.queue, chunk.partition,
               chunk.priority, delay, len(chunk.ends), len(chunk.data), body, tx.now)  # fmt: skip
    return name


@verb("read-write", producer="producer", stage="stages", synced=True)
def publish(
    tx: Tx, producer: str, batch: int, stages: list[str], also: TransactionRequest | None = None
) -> Answer:
    """Publish the named stages and drop the batch's others; `also` runs in the same commit.

    A batch that is not above the producer's highest publishes nothing and succeeds.
    """
    return publish_for(tx, producer, batch, stages, also, set())


def publish_for(
    tx: Tx, producer: str, batch: int, stages: list[str], also: TransactionRequest | None,
    queues: set[str | None],
) -> Answer:  # fmt: skip
    """Publish like `publish`; the producer belongs to these queues too.

    A first batch that touches no queue is not recorded, so that a name cannot be taken that way.
    """
    check_batch(producer, batch)
    known = published(tx, producer)
    if known is not None and batch <= known.batch:
        _drop_batch(tx, producer, batch)
        return known.places if batch == known.batch else []
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
        queues |= {piece.queue or None for found in pieces.values() for piece in found}
        queues |= _queues_of(tx, also)
        bound = sorted({*(known.queues if known else ()), *(name for name in queues if name)})
        if known is not None or bound:
            stored = msgpack.encode(_Stored(answer, bound))
            tx.run("put_producer", producer, batch, stored, tx.now)
        if also is not None:
            transact(tx, also)
    return answer


def published(tx: Tx, producer: str) -> Published | None:
    """Return what is kept of a producer, or None if it has published nothing."""
    row = tx.one("producer", producer)
    if row is None:
        return None
    found = _stored(row[1])
    if isinstance(found, _Stored):
        return Published(row[0], found.places, found.queues)
    lanes = [tx.lane(place.lane) for places in found for place in places]
    names = [tx.queue_by_id(lane.queue) for lane in lanes if lane is not None]
    return Published(row[0], found, sorted({queue.name for queue in names if queue is not None}))


def stage_queues(tx: Tx, name: str) -> set[str]:
    """Return the queues for which a stage has messages."""
    return {piece.queue for piece in tx.stage(name) if piece.queue}


def _queues_of(tx: Tx, also: TransactionRequest | None) -> set[str | None]:
    queues: set[str | None] = set()
    for operation in also.operations if also is not None else ():
        if isinstance(operation, PushOperation):
            queues.update(chunk.queue for chunk in operation.request.chunks)
        elif isinstance(operation, SettleOperation):
            queues.add(queue_of_lease(tx, operation.token))
    return queues


def _sizes(pieces: Iterable[Stage]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for piece in pieces:
        sizes[piece.queue] = sizes.get(piece.queue, 0) + piece.count
    return sizes


@verb("read-write", stage="name")
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

    Transaction ids are compared when they become visible: messages with any are pushed again. So
    are messages that were staged before their queue was encrypted.
    """
    delay = None if piece.delay is None else piece.delay / SECOND
    beside = tx.value("body_rest", piece.body)
    rest = StoredRest() if beside is None else msgpack.decode(beside, type=StoredRest)
    queue = queue_for(tx, piece.queue)
    if rest.txids or (queue.options.encrypted and rest.sealed != STAGED):
        body = unpack_body(
            tx.all("body", piece.body)[0], lambda _: stage_place(piece.stage, piece.piece)
        )
        tx.run("drop_body", piece.body)
        chunk = Chunk(
            piece.queue, piece.partition, piece.priority, delay, array("i", body.ends.tobytes()),
            body.data, body.rest,
        )  # fmt: skip
        return push_with_rest(tx, chunk)
    lane = lane_for(tx, queue, piece.partition, piece.priority)
    complete_cursors(tx, queue, lane)
    due = not_before(tx, queue, delay)
    created = created_at(tx, lane)
    segment = Segment(
        lane.id, lane.head, piece.count, created, due, None, None, piece.body, piece.bytes
    )
    if rest.sealed == STAGED:
        segment.small = make_note(piece.stage, piece.piece, lane.id, lane.head)
    tx.append(lane, segment)
    announce(tx, queue, lane, None)
    return [Placed(lane.id, segment.first, segment.stop)]
