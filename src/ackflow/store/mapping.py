"""Conversion of table rows to records and back."""

from typing import Any

from msgspec import Raw, json, msgpack

from .. import ranges
from ..ids import LaneId
from ..options import QueueOptions
from .encryption import decrypt, encrypt
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
ALL_ACKED = b""  # the fates of a lease whose messages were all acked when it ended

items_of = json.Decoder(list[Raw]).decode
_encode = msgpack.Encoder().encode
_queue_options = msgpack.Decoder(QueueOptions).decode


def make_body(ends: bytes, data: bytes, rest: Rest | None) -> Body:
    return Body(memoryview(ends).cast("i"), data, rest)


def pack_body(ends: bytes, data: bytes, rest: Rest | None, sealed: bool) -> Packed:
    if sealed:
        data, rest = encrypt(data, rest)
    return ends, data, _encode(rest) if rest else None


def unpack_body(row: Packed) -> Body:
    data, rest = decrypt(row[1], _rest(row[2]) if row[2] else None)
    return make_body(row[0], data, rest) if row[0] else Body(_NONE, data, rest, items_of(data))


def to_queue(row: Row) -> Queue:
    return Queue(row[0], row[1], row[2], bool(row[3]), _queue_options(row[4]))


def to_segment(row: Row) -> Segment:
    segment = Segment(*row[:9])
    if len(row) > 9 and not segment.body:
        segment.small = row[9], row[10], row[11]
    if segment.carry is not None:
        segment.carry = _carry(row[6])
    return segment


def to_claim(row: Row) -> Claim:
    id, group_id, lane, lo, hi, packed, *more, lease, acked_at, out = row
    held = [lo, hi] if packed is None else ranges.unpack(packed)
    leased = ranges.count(held) if lease and not out else 0
    return Claim(*[id, group_id, lane, held, *more, lease or None, acked_at, lease, leased])


def claim_key(claim: Claim) -> Row:
    return claim.lane, claim.group_id, claim.stored, claim.id


def cursor_columns(c: Cursor) -> Row:
    return (
        c.lane, c.group_id, c.next, c.delivered, c.consumed, c.failed, c.done, c.dead, c.skipped,
        c.purged, c.expired, c.hidden, c.copies, c.last_seq, c.last_created, c.last_at,
    )  # fmt: skip


def claim_columns(claim: Claim) -> Row:
    held = claim.ranges
    simple = len(held) == 2
    return (
        held[0], held[-1], held[1] - held[0] if simple else ranges.count(held),
        None if simple else ranges.pack(held), claim.state, claim.at, claim.since,
        claim.deliveries, claim.failures, claim.redelivered, claim.error,
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
    *columns, data, rest = row
    return DeadRow(*[*columns, *decrypt(data, _rest(rest) if rest else None)])


def dead_columns(d: DeadRow, sealed: bool) -> Row:
    data, rest = encrypt(d.payload, d.rest) if sealed else (d.payload, d.rest)
    return (
        d.queue, d.group_id, d.lane, d.seq, d.kind, d.reason, d.error, d.deliveries, d.failures,
        d.created_at, d.died_at, d.consumer, data, _encode(rest) if rest else None,
    )  # fmt: skip
