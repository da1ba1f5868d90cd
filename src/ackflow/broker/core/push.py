"""Push: append messages to lanes. Pushes to one lane in one commit become one segment."""

from array import array
from collections.abc import Iterable, Sequence

from msgspec import Struct, json, msgpack, structs

from ...clock import AHEAD, SECOND, micros
from ...errors import AckflowError, KeyConflict, QueueFull, StorageFull
from ...ids import GroupId, LaneId
from ...options import KEY_SECONDS, MAX_SEGMENT_BYTES, MAX_SEGMENT_COUNT, SMALL_BYTES
from ...store.mapping import make_body, pack_body, segment_place
from ...store.records import NO_BODY, Carry, Lane, Queue, Rest, Segment
from ...store.tx import Tx
from ..requests import Chunk, PushRequest
from .capacity import make_room
from .topology import complete_cursors, lane_for, queue_for


class Placed(Struct, array_like=True):
    """The position of consecutive pushed messages; for a duplicate, that of the first one.

    `repeated`: an earlier request with the same key stored them. `store`: their database, if the
    broker has several.
    """

    lane: LaneId
    first: int
    stop: int
    duplicate: bool = False
    repeated: bool = False
    store: int | None = None


Answer = list[list[Placed]]
Joined = dict[tuple[str, str, int], list[tuple[Chunk, list[Placed]]]]
_answers = msgpack.Decoder(Answer).decode


def push(tx: Tx, requests: Sequence[PushRequest]) -> list[Answer | AckflowError]:
    """Append the messages of all requests; returns the positions or the error of each request."""
    if len(requests) == 1 and not tx.full and (only := _push_alone(tx, requests[0])):
        return [only]
    answers: list[Answer | AckflowError] = []
    joined: Joined = {}
    for request in requests:
        if tx.full:
            answers.append(StorageFull())
            continue
        try:
            known = recall_answer(tx, request.key, request.digest)
            if known is None:
                _make_room(tx, request.chunks, joined)
        except (KeyConflict, QueueFull) as refusal:
            answers.append(refusal)
            continue
        if known is not None:
            answers.append(_repeated(_answers(known)))
            continue
        answer: Answer = []
        for chunk in request.chunks:
            places: list[Placed] = []
            answer.append(places)
            lane = chunk.queue, chunk.partition, chunk.priority
            before = joined.get(lane, [])
            alone = chunk.rest is not None or chunk.whole
            if before and (alone or chunk.late != before[0][0].late):
                _flush(tx, joined.pop(lane))
            if chunk.rest is not None:
                places += push_with_rest(tx, chunk)
            elif chunk.whole:
                _write(tx, [(chunk, places)])
            else:
                joined.setdefault(lane, []).append((chunk, places))
        if request.key is not None:
            _flush_all(tx, joined)
            remember_answer(tx, request.key, request.digest, msgpack.encode(answer))
        answers.append(answer)
    _flush_all(tx, joined)
    for name in {chunk.queue for request in requests for chunk in request.chunks}:
        _drop_excess(tx, name)
    return answers


def _drop_excess(tx: Tx, name: str) -> None:
    """Drop the oldest messages of a queue that is longer than a client declared it may be."""
    queue = tx.queue(name)
    declared = tx.declaration(queue.id) if queue is not None else None
    if queue is not None and declared is not None and declared.max_length is not None:
        from .routing.publish import drop_excess  # it appends to dead-letter queues by this module

        drop_excess(tx, queue, declared)


def _repeated(answer: Answer) -> Answer:
    for places in answer:
        for place in places:
            place.repeated = True
    return answer


def _push_alone(tx: Tx, request: PushRequest) -> Answer | None:
    """Push the only chunk of the only request in fewer steps, or return None.

    Most pushes take this path: no key, no optional fields, no limited queue.
    """
    chunk = request.chunks[0] if len(request.chunks) == 1 else None
    if chunk is None or chunk.rest is not None or request.key is not None:
        return None
    queue = tx.queue(chunk.queue)
    if queue is None or queue.options.max_size is not None or tx.declaration(queue.id) is not None:
        return None
    lane = lane_for(tx, queue, chunk.partition, chunk.priority)
    due = not_before(tx, queue, *chunk.late)
    ends = chunk.ends.tobytes()
    segment = append(tx, queue, lane, ends, chunk.data, None, whole=chunk.whole, not_before=due)
    return [[Placed(lane.id, segment.first, lane.head)]]


def _make_room(tx: Tx, chunks: list[Chunk], joined: Joined) -> None:
    """Raise QueueFull for a full queue; messages with a known transaction id need no capacity."""
    wanted: dict[str, int] = {}
    for chunk in chunks:
        queue = tx.queue(chunk.queue)
        if queue is not None and queue.options.max_size is not None:
            wanted[queue.name] = wanted.get(queue.name, 0) + chunk.count
    if not wanted:
        return
    try:
        make_room(tx, wanted, lambda: _flush_all(tx, joined))
    except QueueFull:
        known, here = 0, set[tuple[str, str, str]]()
        for chunk in chunks:
            if chunk.queue in wanted and chunk.rest is not None:
                names = {i: (chunk.queue, chunk.partition, t) for i, t in chunk.rest.txids.items()}
                again = {i for i, name in names.items() if name in here}
                again.update(_duplicates(tx, chunk, chunk.rest))
                here.update(names.values())
                wanted[chunk.queue] -= len(again)
                known += len(again)
        if not known:
            raise
        make_room(tx, wanted)


def recall_answer(tx: Tx, key: str | None, digest: bytes) -> bytes | None:
    """Return the stored answer of a key; raise if the key was used with a different body."""
    if key is None:
        return None
    row = tx.one("get_key", key, tx.now - KEY_SECONDS * SECOND)
    if row is None:
        return None
    if row[0] != digest:
        raise KeyConflict()
    return bytes(row[1])


def remember_answer(tx: Tx, key: str, digest: bytes, answer: bytes) -> None:
    """Store the answer of a key."""
    tx.run("add_key", key, digest, answer, tx.now)


def append(
    tx: Tx,
    queue: Queue,
    lane: Lane,
    ends: bytes,
    data: bytes,
    rest: Rest | None,
    *,
    whole: int = 0,
    not_before: int | None = None,
    for_group: GroupId | None = None,
    carry: Carry | None = None,
) -> Segment:
    """Write one segment at the head of a lane and mark the lane ready for its groups."""
    if tx.in_the_making(queue.id):
        complete_cursors(tx, queue, lane)
    count = whole or len(ends) // 4
    size = len(data) - whole - 1 if whole else len(data)
    place = segment_place(lane.id, lane.head) if queue.options.encrypted else None
    packed = pack_body(ends, data, rest, place)
    stored = len(ends) + len(packed[1]) + len(packed[2] or b"")
    small = packed if stored <= SMALL_BYTES else None
    body = NO_BODY if small else tx.add_body(packed)
    segment = Segment(
        lane.id,
        lane.head,
        count,
        created_at(tx, lane),
        not_before,
        for_group,
        carry,
        body,
        size,
        small,
    )
    tx.append(lane, segment)
    if not whole:
        tx.cache.keep_body(lane.id, segment.first, make_body(ends, data, rest))
    announce(tx, queue, lane, for_group)
    return segment


def created_at(tx: Tx, lane: Lane) -> int:
    """Return the time of a message pushed now, which never decreases within a lane.

    A last time far in the future was written under a wrong clock and is ignored.
    """
    return lane.last_at if tx.now < lane.last_at <= tx.now + AHEAD else tx.now


def announce(tx: Tx, queue: Queue, lane: Lane, for_group: GroupId | None) -> None:
    """Mark a lane ready for the groups that read it, and wake waiting pops."""
    for group_id in tx.group_ids(queue.id) if for_group is None else [for_group]:
        cursor = tx.cursor(lane.id, group_id)
        if cursor is not None and not cursor.ready:
            cursor.ready = True
            tx.changed(cursor)
    tx.touched.add(queue.name)


def not_before(tx: Tx, queue: Queue, delay: float | None, at: int | None = None) -> int | None:
    """Return the due time of a message by its time, its delay or the queue's; None: now."""
    if at is not None:
        return at if at > tx.now else None
    seconds = queue.options.delay_seconds if delay is None else delay
    return tx.now + micros(seconds) if seconds > 0 else None


def _flush_all(tx: Tx, joined: Joined) -> None:
    for group in joined.values():
        _flush(tx, group)
    joined.clear()


def _flush(tx: Tx, group: list[tuple[Chunk, list[Placed]]]) -> None:
    """Write chunks of one lane in as few segments as possible."""
    while group:
        size = count = taken = 0
        for chunk, _ in group:
            size += len(chunk.data)
            count += chunk.count
            if taken and (size > MAX_SEGMENT_BYTES or count > MAX_SEGMENT_COUNT):
                break
            taken += 1
        _write(tx, group[:taken])
        group = group[taken:]


def _write(tx: Tx, group: list[tuple[Chunk, list[Placed]]]) -> None:
    head = group[0][0]
    if len(group) == 1:
        ends, data = head.ends, head.data
    else:
        data = b"".join([chunk.data for chunk, _ in group])
        offset, flat = 0, []
        for chunk, _ in group:
            flat += [end + offset for end in chunk.ends]
            offset = flat[-1]
        ends = array("i", flat)
    segment = _append_chunk(tx, head, ends, data, None)
    at = segment.first
    for chunk, places in group:
        places.append(Placed(segment.lane, at, at + chunk.count))
        at += chunk.count


def _append_chunk(
    tx: Tx, chunk: Chunk, ends: "array[int]", data: bytes, rest: Rest | None
) -> Segment:
    queue = queue_for(tx, chunk.queue, chunk.dialect)
    lane = lane_for(tx, queue, chunk.partition, chunk.priority)
    due = not_before(tx, queue, *chunk.late)
    return append(tx, queue, lane, ends.tobytes(), data, rest, whole=chunk.whole, not_before=due)


def push_with_rest(tx: Tx, chunk: Chunk) -> list[Placed]:
    """Push messages with optional fields; one with a known transaction id is not stored again."""
    rest = chunk.rest or Rest()
    known = _duplicates(tx, chunk, rest)
    fresh = [i for i in range(len(chunk.ends)) if i not in known]
    if known:
        tx.cache.room_known.clear()  # capacity was reserved for duplicates, which need none
    places: list[Placed | None] = [None] * len(chunk.ends)
    if fresh:
        kept = chunk if not known else _only(chunk, fresh)
        segment = _append_chunk(tx, kept, kept.ends, kept.data, kept.rest)
        for offset, index in enumerate(fresh):
            at = segment.first + offset
            places[index] = Placed(segment.lane, at, at + 1)
        new = {i: t for i, t in rest.txids.items() if i not in known}
        _remember_txids(tx, chunk, segment, new, fresh)
    for index, first in known.items():
        place = places[first] if isinstance(first, int) else first
        assert place is not None
        places[index] = Placed(place.lane, place.first, place.stop, True)
    return _joined(place for place in places if place is not None)


def _duplicates(tx: Tx, chunk: Chunk, rest: Rest) -> dict[int, Placed | int]:
    """Return messages whose transaction id is known, with the position (or index) of the first."""
    queue = tx.queue(chunk.queue)
    home = tx.partition(queue.id, chunk.partition) if queue else None
    known: dict[int, Placed | int] = {}
    here: dict[str, int] = {}
    given = json.encode(list(rest.txids.values())).decode()
    rows = tx.all("get_txids", home.id, given) if home else []
    before = {
        txid: (lane, seq)
        for txid, lane, seq, at in rows
        if (_is_stored(tx, lane, seq) if at is None else at > tx.now)
    }
    for index, txid in sorted(rest.txids.items()):
        if txid in here:
            known[index] = here[txid]
        elif place := before.get(txid):
            known[index] = Placed(place[0], place[1], place[1] + 1)
        else:
            here[txid] = index
    return known


def _is_stored(tx: Tx, id: LaneId, sequence: int) -> bool:
    """Return whether a message is stored; the transaction ids of purged ones are removed later."""
    lane = tx.lane(id)
    return lane is not None and sequence >= lane.base


def _remember_txids(
    tx: Tx, chunk: Chunk, segment: Segment, txids: dict[int, str], fresh: list[int]
) -> None:
    queue = queue_for(tx, chunk.queue, chunk.dialect)
    lane = lane_for(tx, queue, chunk.partition, chunk.priority)
    window = queue.options.dedup_seconds
    until = None if window is None else tx.now + micros(window)
    place = {index: offset for offset, index in enumerate(fresh)}
    if txids:
        pairs = [(txid, segment.first + place[index]) for index, txid in txids.items()]
        tx.run("put_txids", lane.partition, lane.id, until, json.encode(pairs).decode())


def _only(chunk: Chunk, kept: list[int]) -> Chunk:
    """Return the chunk with only the messages to keep."""
    rest = chunk.rest or Rest()
    starts = [0, *chunk.ends]
    data = b"".join(chunk.data[starts[i] : starts[i + 1]] for i in kept)
    ends, total = array("i"), 0
    for i in kept:
        total += starts[i + 1] - starts[i]
        ends.append(total)
    return structs.replace(chunk, ends=ends, data=data, rest=rest.select(kept))


def _joined(places: Iterable[Placed]) -> list[Placed]:
    """Merge adjacent positions."""
    result: list[Placed] = []
    for place in places:
        last = result[-1] if result else None
        if (
            last is not None
            and (last.lane, last.stop, last.duplicate) == (place.lane, place.first, False)
            and not place.duplicate
        ):
            last.stop = place.stop
        else:
            result.append(place)
    return result
