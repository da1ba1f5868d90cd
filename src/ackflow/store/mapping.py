"""Conversion of table rows to records and back."""

from collections.abc import Callable
from typing import Any

from msgspec import Raw, json, msgpack, structs

from .. import ranges
from ..errors import PayloadSealed
from ..ids import GroupId, LaneId
from ..options import QueueOptions
from .encryption import (
    BOUND,
    LOOSE,
    STAGED,
    Place,
    seal,
    seal_text,
    unseal,
    unseal_text,
    unseal_text_or_keep,
)
from .records import (
    LEASED,
    Body,
    Carry,
    Claim,
    Cursor,
    DeadRow,
    Fate,
    Lease,
    LeasedRanges,
    Packed,
    Queue,
    Rest,
    Segment,
    StoredRest,
)

Row = tuple[Any, ...]

_carry = msgpack.Decoder(Carry).decode
_fates = msgpack.Decoder(list[tuple[str, int, LaneId, bytes]]).decode
_parts = msgpack.Decoder(list[tuple[LaneId, bytes, int]]).decode
_rest = msgpack.Decoder(StoredRest).decode
_NONE = memoryview(b"")
ONE_PAYLOAD = bytes(4)  # stands for the offsets of a single payload
ALL_ACKED = b""  # the fates of a lease whose messages were all acked when it ended

items_of = json.Decoder(list[Raw]).decode
_encode = msgpack.Encoder().encode
_queue_options = msgpack.Decoder(QueueOptions).decode


def make_body(ends: bytes, data: bytes, rest: Rest | None) -> Body:
    return Body(memoryview(ends).cast("i"), data, rest)


def segment_place(lane: LaneId, first: int) -> Place:
    return "segment", lane, first


def stage_place(stage: str, piece: int) -> Place:
    return "stage", stage, piece


def dead_place(group_id: GroupId, lane: LaneId, sequence: int) -> Place:
    return "dead", group_id, lane, sequence


def claim_place(lane: LaneId, group_id: GroupId) -> Place:
    """Claims of a lane are split, so that the text of an error is bound to the lane and group."""
    return "claim", group_id, lane


def trace_place(id: int, lane: LaneId, sequence: int) -> Place:
    return "trace", id, lane, sequence


def value_place(key: str) -> Place:
    return "value", key


def pack_body(ends: bytes, data: bytes, rest: Rest | None, place: Place | None) -> Packed:
    """Return the columns of a body, sealed for a place unless that is None."""
    if place is None:
        return ends, data, _encode(rest) if rest else None
    how = STAGED if place[0] == "stage" else BOUND
    packed = _encode(StoredRest.sealed_from(rest or Rest(), how))
    return ends, seal(data, (*place, ends, packed)), packed


def unpack_body(row: Packed, place: Callable[[int], Place]) -> Body:
    """Return a body; `place` returns the place for which a sealed one was sealed."""
    ends, data, packed = row
    rest = _rest(packed) if packed else None
    if rest is not None and rest.sealed:
        bound = None if rest.sealed == LOOSE else (*place(rest.sealed), ends, packed)
        data = unseal(data, bound)
        return _body(ends, data, rest.plain())
    return _body(ends, data, rest)


def _body(ends: bytes | None, data: bytes, rest: Rest | None) -> Body:
    return make_body(ends, data, rest) if ends else Body(_NONE, data, rest, items_of(data))


def make_note(stage: str, piece: int, lane: LaneId, first: int) -> Packed:
    """Return the columns of a published segment that name the stage of its sealed body."""
    note = seal(_encode((stage, piece)), ("note", *segment_place(lane, first)))
    return None, note, None


def read_note(note: bytes | None, lane: LaneId, first: int) -> Place:
    if note is None:
        raise PayloadSealed("the payload was moved since it was encrypted")
    opened = unseal(note, ("note", *segment_place(lane, first)))
    return stage_place(*msgpack.decode(opened, type=tuple[str, int]))


def pack_carry(segment: Segment, sealed: bool) -> bytes | None:
    carry = segment.carry
    if carry is None:
        return None
    if carry.error is not None:
        place = ("carry", segment.lane, segment.first) if sealed else None
        carry = structs.replace(carry, error=seal_text(carry.error, place))
    return _encode(carry)


def to_queue(row: Row) -> Queue:
    return Queue(row[0], row[1], row[2], bool(row[3]), _queue_options(row[4]))


def to_segment(row: Row) -> Segment:
    segment = Segment(*row[:9])
    if len(row) > 9 and not segment.body:
        segment.small = row[9], row[10], row[11]
    if segment.carry is not None:
        carry = segment.carry = _carry(row[6])
        if carry.error is not None:
            place = "carry", segment.lane, segment.first
            carry.error = unseal_text_or_keep(carry.error, place)
    return segment


def to_claim(row: Row) -> Claim:
    id, group_id, lane, lo, hi, packed, *more, lease, acked_at, out = row
    held = [lo, hi] if packed is None else ranges.unpack(packed)
    leased = ranges.count(held) if lease and not out else 0
    if more[-1] is not None:
        more[-1] = unseal_text_or_keep(more[-1], claim_place(lane, group_id))
    return Claim(*[id, group_id, lane, held, *more, lease or None, acked_at, lease, leased])


def claim_key(claim: Claim) -> Row:
    return claim.lane, claim.group_id, claim.stored, claim.id


def cursor_columns(c: Cursor) -> Row:
    return (
        c.lane, c.group_id, c.next, c.delivered, c.consumed, c.failed, c.done, c.dead, c.skipped,
        c.purged, c.expired, c.hidden, c.copies, c.last_seq, c.last_created, c.last_at,
    )  # fmt: skip


def claim_columns(claim: Claim, sealed: bool) -> Row:
    held = claim.ranges
    simple = len(held) == 2
    error = claim.error
    if error is not None:
        error = seal_text(error, claim_place(claim.lane, claim.group_id) if sealed else None)
    return (
        held[0], held[-1], held[1] - held[0] if simple else ranges.count(held),
        None if simple else ranges.pack(held), claim.state, claim.at, claim.since,
        claim.deliveries, claim.failures, claim.redelivered, error,
        (claim.lease or 0) if claim.state == LEASED else 0,
    )  # fmt: skip


def to_lease(row: Row) -> Lease:
    *columns, lane, lo, hi, number, packed, fates = row
    if packed is None:
        parts = [LeasedRanges(lane, [lo, hi], number)]
    else:
        parts = [LeasedRanges(on, ranges.unpack(raw), number) for on, raw, number in _parts(packed)]
    lease = Lease(*[*columns, parts])
    if fates == ALL_ACKED:
        at = lease.ended_at
        assert at is not None
        lease.fates = [Fate("ack", at, part.lane, part.ranges) for part in parts]
    elif fates is not None:
        lease.fates = [
            Fate(verb, at, on, ranges.unpack(raw)) for verb, at, on, raw in _fates(fates)
        ]
    return lease


def lease_columns(lease: Lease) -> Row:
    """Return the columns of a new lease; its fates are written later."""
    lane = lo = hi = number = packed = None
    part = lease.parts[0]
    if len(lease.parts) == 1 and len(part.ranges) == 2:
        lane, (lo, hi), number = part.lane, part.ranges, part.number
    else:
        packed = _encode([(p.lane, ranges.pack(p.ranges), p.number) for p in lease.parts])
    return (
        lease.id, lease.token, lease.group_id, lease.consumer, lease.acquired_at, lease.expires_at,
        lease.n, lane, lo, hi, number, packed,
    )  # fmt: skip


def to_dead(row: Row) -> DeadRow:
    dead = DeadRow(*[*row[:-1], None])
    place = dead_place(dead.group_id, dead.lane, dead.seq)
    body = unpack_body((ONE_PAYLOAD, dead.payload, row[-1]), lambda _: place)
    dead.payload, dead.rest = body.data, body.rest
    texts = open_texts(dead.group_id, dead.lane, dead.seq, dead.reason, dead.error)
    dead.reason, dead.error = texts
    return dead


def open_texts(
    group_id: GroupId, lane: LaneId, sequence: int, reason: str | None, error: str | None
) -> tuple[str | None, str | None]:
    """Return the reason and error of a dead letter from their columns."""
    place = dead_place(group_id, lane, sequence)
    return unseal_text(reason, ("reason", *place)), unseal_text(error, ("error", *place))


def dead_columns(d: DeadRow, sealed: bool) -> Row:
    place = dead_place(d.group_id, d.lane, d.seq) if sealed else None
    _, data, rest = pack_body(ONE_PAYLOAD, d.payload, d.rest, place)
    reason = seal_text(d.reason, ("reason", *place) if place else None)
    error = seal_text(d.error, ("error", *place) if place else None)
    return (
        d.queue, d.group_id, d.lane, d.seq, d.kind, reason, error, d.deliveries, d.failures,
        d.created_at, d.died_at, d.consumer, data, rest,
    )  # fmt: skip
