"""Encrypting stored data again with the key that encrypts now, one row at a time.

Each table with sealed columns is walked in the order of its primary key. `pages` returns which keys
the next rows use; `reseal` opens one row and seals it with the first key. A row has no state between
the two: whoever reads it finds it under the old key or under the new one.
"""

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from msgspec import msgpack

from .encryption import (
    BOUND,
    ID,
    LOOSE,
    MARK,
    MARK_BYTE,
    STAGED,
    Place,
    seal,
    seal_bytes,
    seal_text,
    unseal,
    unseal_bytes,
    unseal_text,
)
from .mapping import (
    ONE_PAYLOAD,
    claim_place,
    dead_place,
    make_note,
    read_note,
    segment_place,
    stage_place,
    trace_place,
    value_place,
)
from .records import Carry, Packed, StoredRest
from .tx import Tx

UNBOUND = b""  # stands for the key of a body that an older version bound to no place
Position = tuple[Any, ...]
_rest = msgpack.Decoder(StoredRest).decode
_carry = msgpack.Decoder(Carry).decode
_encode = msgpack.Encoder().encode


class Sealed(NamedTuple):
    """A row: its primary key, and the ids of the keys that its columns are sealed with."""

    at: Position
    keys: set[bytes]


class Table(NamedTuple):
    """A table with sealed columns; `start` is a position before its first row."""

    name: str
    start: Position
    page: Callable[[Tx, Position, int], list[Sealed]]
    reseal: Callable[..., None]  # called with the transaction and the primary key


def _key_of_body(prefix: bytes | None, packed: bytes | None) -> set[bytes]:
    rest = _rest(packed) if packed else None
    if rest is None or not rest.sealed or prefix is None:
        return set()
    return {UNBOUND} if rest.sealed == LOOSE else {bytes(prefix)}


def _key_of_text(text: str | None) -> set[bytes]:
    if text is None or not text.startswith(MARK):
        return set()
    try:
        data = base64.b64decode(text[1:], validate=True)
    except (binascii.Error, ValueError):
        return set()  # not sealed: see `unseal_text`
    return {data[:ID]}


def _key_of_bytes(prefix: bytes) -> set[bytes]:
    prefix = bytes(prefix)
    return {prefix[1:]} if prefix[:1] == MARK_BYTE else set()


def _reseal_body(row: Packed, place: Place, how: int) -> tuple[bytes, bytes] | None:
    """Return the data and the optional fields of a body, sealed again; None if it is not sealed."""
    ends, data, packed = row
    rest = _rest(packed) if packed else None
    if rest is None or not rest.sealed:
        return None
    opened = unseal(data, None if rest.sealed == LOOSE else (*place, ends, packed))
    stored = _encode(StoredRest.sealed_from(rest, how))
    return seal(opened, (*place, ends, stored)), stored


def _reseal_text(text: str | None, place: Place) -> str | None:
    return seal_text(unseal_text(text, place), place) if _key_of_text(text) else text


# segments


def _segments(tx: Tx, after: Position, limit: int) -> list[Sealed]:
    found = []
    for lane, first, body, carry, prefix, rest in tx.all("sealed_segments", *after, limit):
        keys = _key_of_text(_carry(carry).error) if carry else set()
        if not body:
            keys |= _key_of_body(prefix, rest)
        else:
            keys |= {bytes(prefix)} if prefix is not None else set()  # of the note
            keys |= _key_of_row(tx, body)
        found.append(Sealed((lane, first), keys))
    return found


def _key_of_row(tx: Tx, body: int) -> set[bytes]:
    row = tx.one("sealed_body", body)
    return _key_of_body(*row) if row else set()


def _reseal_segment(tx: Tx, lane: Any, first: int) -> None:
    row = tx.one("sealed_segment", lane, first)
    if row is None:
        return
    body, packed_carry, *small = row
    place = segment_place(lane, first)
    carry = _carry(packed_carry) if packed_carry else None
    if carry is not None and _key_of_text(carry.error):
        carry.error = _reseal_text(carry.error, ("carry", lane, first))
        tx.run("set_carry", lane, first, _encode(carry))
    if not body:
        if made := _reseal_body((small[0], small[1], small[2]), place, BOUND):
            tx.run("set_small_body", lane, first, *made)
        return
    how = BOUND
    if small[1] is not None:
        how, place = STAGED, read_note(small[1], lane, first)
        note = make_note(str(place[1]), int(place[2] or 0), lane, first)
        tx.run("set_small_body", lane, first, note[1], note[2])
    _reseal_row(tx, body, place, how)


def _reseal_row(tx: Tx, body: int, place: Place, how: int) -> None:
    row = tx.one("body", body)
    if row is not None and (made := _reseal_body((row[0], row[1], row[2]), place, how)):
        tx.run("set_body", body, *made)


# the others


def _stages(tx: Tx, after: Position, limit: int) -> list[Sealed]:
    rows = tx.all("sealed_stages", *after, limit)
    return [Sealed((stage, piece), _key_of_row(tx, body)) for stage, piece, body in rows]


def _reseal_stage(tx: Tx, stage: str, piece: int) -> None:
    for one in tx.stage(stage):
        if one.piece == piece:
            _reseal_row(tx, one.body, stage_place(stage, piece), STAGED)


def _dead(tx: Tx, after: Position, limit: int) -> list[Sealed]:
    return [
        Sealed((id,), _key_of_body(prefix, rest) | _key_of_text(reason) | _key_of_text(error))
        for id, prefix, rest, reason, error in tx.all("sealed_dead", *after, limit)
    ]


def _reseal_dead(tx: Tx, id: int) -> None:
    row = tx.one("sealed_letter", id)
    if row is None:
        return
    group_id, lane, sequence, payload, rest, reason, error = row
    place = dead_place(group_id, lane, sequence)
    body = _reseal_body((ONE_PAYLOAD, payload, rest), place, BOUND) or (payload, rest)
    texts = _reseal_text(reason, ("reason", *place)), _reseal_text(error, ("error", *place))
    tx.run("set_letter", id, *body, *texts)


def _claims(tx: Tx, after: Position, limit: int) -> list[Sealed]:
    rows = tx.all("sealed_claims", *after, limit)
    return [Sealed(tuple(row[:4]), _key_of_text(row[4])) for row in rows]


def _reseal_claim(tx: Tx, lane: Any, group_id: Any, lease: int, id: int) -> None:
    row = tx.one("claim_error", lane, group_id, lease, id)
    if row is not None:
        text = _reseal_text(row[0], claim_place(lane, group_id))
        tx.run("set_claim_error", lane, group_id, lease, id, text)


def _traces(tx: Tx, after: Position, limit: int) -> list[Sealed]:
    rows = tx.all("sealed_traces", *after, limit)
    return [Sealed((id,), _key_of_bytes(prefix)) for id, prefix in rows]


def _reseal_trace(tx: Tx, id: int) -> None:
    row = tx.one("sealed_trace", id)
    if row is not None and row[2][:1] == MARK_BYTE:
        place = trace_place(id, row[0], row[1])
        tx.run("set_trace_data", id, seal_bytes(unseal_bytes(row[2], place), place))


def _values(tx: Tx, after: Position, limit: int) -> list[Sealed]:
    rows = tx.all("sealed_values", *after, limit)
    return [Sealed((key,), _key_of_bytes(prefix)) for key, prefix in rows]


def _reseal_value(tx: Tx, key: str) -> None:
    row = tx.one("get_value", key)
    if row is not None and row[0][:1] == MARK_BYTE:
        place = value_place(key)
        tx.run("set_value_data", key, seal_bytes(unseal_bytes(row[0], place), place))


# A stage is published by its segments, so that stages come before segments.
TABLES: Sequence[Table] = (
    Table("stages", ("", -1), _stages, _reseal_stage),
    Table("segments", (0, -1), _segments, _reseal_segment),
    Table("dead letters", (0,), _dead, _reseal_dead),
    Table("claims", (0, 0, 0, 0), _claims, _reseal_claim),
    Table("traces", (0,), _traces, _reseal_trace),
    Table("stream state", ("",), _values, _reseal_value),
)
