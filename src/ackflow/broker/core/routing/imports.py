"""Import messages from another broker: each once, with its headers, priority and time to live."""

from array import array
from collections.abc import Sequence

import msgspec

from .... import ranges, validate
from ....clock import micros
from ....errors import InvalidArgument
from ....options import DEFAULT_PARTITION, MAX_PAYLOAD
from ....store.records import Rest
from ....store.tx import Tx
from ...requests import Chunk, Publication, PushRequest, digest_of
from ...verb import verb
from ..push import Placed, push
from ..topology import queue_for
from .publish import EXCHANGE, ROUTING_KEY, add_expiring, in_segments, stored_headers

_skip_json = msgspec.json.Decoder(msgspec.Raw).decode


def _check(queue: str, publications: list[Publication], key: str | None) -> None:
    validate.name(queue, "queue")
    if key is not None:
        validate.name(key, "key")
    for one in publications:
        _check_one(one)


def _check_one(one: Publication) -> None:
    if len(one.payload) > MAX_PAYLOAD:
        raise InvalidArgument(f"a message must have at most {MAX_PAYLOAD:,} bytes")
    if len(one.keys) != 1 or one.table:
        raise InvalidArgument("an imported message must have one routing key and no table")
    validate.headers({**one.headers, EXCHANGE: one.exchange, ROUTING_KEY: one.keys[0]})
    if one.priority is not None:
        validate.integer(one.priority, "priority", 0, 255)
    if one.ttl is not None:
        validate.seconds(one.ttl, "ttl")
    if one.txid is not None:
        validate.name(one.txid, "transaction_id")
    if not one.binary:
        try:
            one.payload.decode()
            _skip_json(one.payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidArgument(f"an imported message must be JSON: {error}") from None


@verb("read-write", queue="queue", repeatable=False, synced=True, check=_check)
def import_messages(
    tx: Tx, queue: str, publications: list[Publication], key: str | None = None
) -> int:
    """Append messages that another broker had; returns how many the queue did not know.

    A message whose transaction id the queue knows is not stored again. A call with the key of an
    earlier one adds nothing and returns the same number. Exchanges are not asked: `exchange` and
    `keys` only say where a message came from.
    """
    target = queue_for(tx, queue, "native")
    declared = tx.declaration(target.id)
    levels: dict[int, list[Publication]] = {}
    for one in publications:
        level = 0 if declared is None else declared.lane_priority(one.priority)
        levels.setdefault(level, []).append(one)
    parts = [(level, part) for level, some in levels.items() for part in in_segments(some)]
    chunks = [_chunk(queue, level, part) for level, part in parts]
    request = PushRequest(chunks, key, digest_of(chunks) if key is not None else b"")
    (answer,) = push(tx, [request])
    if isinstance(answer, Exception):
        raise answer
    new = 0
    for (_, part), places in zip(parts, answer, strict=True):
        new += _add_times_to_live(tx, part, places)
    return new


def _chunk(queue: str, level: int, some: Sequence[Publication]) -> Chunk:
    ends, total = array("i"), 0
    for one in some:
        total += len(one.payload)
        ends.append(total)
    headers = [stored_headers(queue, one) for one in some]
    rest = Rest(
        headers={index: given for index, given in enumerate(headers) if given},
        binary=ranges.of(index for index, one in enumerate(some) if one.binary),
        txids={index: one.txid for index, one in enumerate(some) if one.txid is not None},
    )
    data = b"".join([one.payload for one in some])
    return Chunk(queue, DEFAULT_PARTITION, level, None, ends, data, None if rest.empty else rest)


def _add_times_to_live(tx: Tx, some: Sequence[Publication], places: Sequence[Placed]) -> int:
    """Record when messages expire; returns how many are new."""
    left, new = iter(some), 0
    for place in places:
        for sequence in range(place.first, place.stop):
            one = next(left)
            if place.duplicate:
                continue
            new += 1
            if one.ttl is not None and not place.repeated:
                add_expiring(tx, place.lane, sequence, tx.now + micros(one.ttl))
    return new
