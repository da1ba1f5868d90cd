"""The data that each writing broker stores for the next one, in its row in `writes`.

*Hints* say where index scans may start. While another session holds an old snapshot, dead entries of
claims and cursors remain at the front of their indexes. A broker knows where the live entries begin
(`Cache.work_from`, `Cache.next_times`). A group that is not listed is scanned from the beginning.

The *baton* contains the cached records of the queue, if they are small and another broker has written
to the queue lately, so that the next broker need not read them again.

A broker that finds a row of another broker drops its cached records of the queue and starts with
these. Both hold until the schema's own version changes: such a transaction may have changed any queue.
"""

from itertools import islice

from msgspec import DecodeError, Struct, ValidationError, msgpack, structs

from ..ids import GroupId, LaneId, PartitionId, QueueId
from .cache import Cache, WorkAhead
from .records import Body, Claim, Cursor, Lane, Lease, Rest, Segment

MAX_GROUPS = 16  # the most recently used; every transaction that writes stores them again
MAX_LANES, MAX_LEASES, MAX_BODY_BYTES = 8, 8, 1_024
MAX_COUNTS = 64  # of leased claims, by group and partition


class PassedBody(Struct, array_like=True):
    lane: LaneId
    first: int
    ends: bytes
    data: bytes
    rest: Rest | None


class Baton(Struct, array_like=True):
    """The cached records of a queue."""

    lanes: list[Lane]
    cursors: list[Cursor]
    alone: list[tuple[GroupId, LaneId]]
    nothing_due: list[tuple[LaneId, GroupId]]
    expiring: list[tuple[LaneId, bool]]
    leases: list[tuple[Lease, list[Claim]]]
    segments: list[Segment]
    bodies: list[PassedBody]
    nothing_returned: list[tuple[LaneId, GroupId]]
    leased: list[tuple[GroupId, PartitionId, int]]
    lanes_in: list[tuple[PartitionId, list[LaneId]]]
    work_ahead: list[tuple[GroupId, WorkAhead]]
    making: list[GroupId] | None


class Passed(Struct, array_like=True):
    schema_version: int
    hints: list[tuple[GroupId, int, int, int]]
    baton: Baton | None = None


_encode = msgpack.Encoder().encode
# Rows give 0 and 1 for booleans.
_decode = msgpack.Decoder(Passed, strict=False).decode


def pack(cache: Cache, schema_version: int, queue: QueueId, baton: bool) -> bytes:
    """Return what the next writer of a queue starts with."""
    times, groups = cache.next_times, cache.groups
    known = [
        group_id
        for group_id in cache.work_from
        if (group := groups.get(group_id)) and group.queue == queue
    ]
    found = [
        (group_id, *cache.work_from[group_id], times.get(group_id, 0))
        for group_id in known[-MAX_GROUPS:]
    ]
    return _encode(Passed(schema_version, found, _baton(cache, queue) if baton else None))


def unpack(packed: bytes | None, cache: Cache, schema_version: int, queue: QueueId) -> None:
    try:
        passed = _decode(packed) if packed else None
    except (DecodeError, ValidationError):  # of another version
        return
    if passed is None or passed.schema_version != schema_version:
        return
    for group_id, priority, served, time in passed.hints:
        cache.work_from[group_id] = priority, served
        if time:
            cache.next_times[group_id] = time
    if passed.baton is not None:
        _take(passed.baton, cache, queue)


def _baton(cache: Cache, queue: QueueId) -> Baton | None:
    some = islice(cache.lanes.values(), 8 * MAX_LANES)
    lanes = {lane.id: lane for lane in some if lane.queue == queue}
    home = cache.queues.get(queue)
    if home is None or not lanes or len(lanes) > MAX_LANES:
        return None
    groups = {group.id for group in cache.groups.values() if group.queue == queue}
    cursors = [
        cursor
        for lane in lanes
        for group in groups
        if (cursor := cache.cursors.get((lane, group))) is not None
    ]
    segments = [segment for lane in lanes for segment in reversed(cache.segments.get(lane, ()))]
    leases = [
        (lease, [structs.replace(claim, redelivered=int(claim.redelivered)) for claim in claims])
        for lease, claims in list(cache.leases.values())[-MAX_LEASES:]
        if lease.group_id in groups
    ]
    leased = [(*key, n) for key, n in cache.leased.items() if key[0] in groups]
    lanes_in = [
        (partition, known)
        for partition in {lane.partition for lane in lanes.values()}
        if (known := cache.lanes_in.get(partition)) is not None and len(known) <= MAX_LANES
    ]
    ahead = [
        (group, _shortened(known)) for group, known in cache.work_ahead.items() if group in groups
    ]
    making = cache.making.get(queue)
    return Baton(
        list(lanes.values()),
        cursors,
        [(group, lane) for group, lane in cache.alone.items() if group in groups],
        [pair for pair in cache.nothing_due if pair[0] in lanes],
        [(lane, some) for lane, some in cache.expiring.items() if lane in lanes],
        leases,
        segments,
        [] if home.options.encrypted else _bodies(cache, segments),
        [pair for pair in cache.nothing_returned if pair[0] in lanes],
        leased[-MAX_COUNTS:],
        lanes_in,
        ahead[-MAX_GROUPS:],
        making if making is None or len(making) <= MAX_GROUPS else None,
    )


def _shortened(ahead: WorkAhead) -> WorkAhead:
    """Return the first lanes with work."""
    if len(ahead.lanes) <= MAX_LANES:
        return ahead
    lanes = ahead.lanes[:MAX_LANES]
    return WorkAhead(lanes, lanes[-1], ahead.step)


def _bodies(cache: Cache, segments: list[Segment]) -> list[PassedBody]:
    """Return the newest payloads, as far as they are small."""
    found, left = [], MAX_BODY_BYTES
    for segment in reversed(segments):
        body = cache.body(segment.lane, segment.first)
        if body is not None and body.items is None and len(body.data) <= left:
            left -= len(body.data)
            found.append(
                PassedBody(segment.lane, segment.first, bytes(body.ends), body.data, body.rest)
            )
    return found


def _take(baton: Baton, cache: Cache, queue: QueueId) -> None:
    for lane in baton.lanes:
        cache.keep_lane(lane)
    for cursor in baton.cursors:
        cursor.counted = cursor.settled
        cache.keep_cursor(cursor)
    cache.alone.update(baton.alone)
    cache.nothing_due.update(baton.nothing_due)
    cache.expiring.update(baton.expiring)
    for lease, claims in baton.leases:
        cache.keep_lease(lease, claims)
    for segment in baton.segments:
        cache.keep_segment(segment)
    for b in baton.bodies:
        cache.keep_body(b.lane, b.first, Body(memoryview(b.ends).cast("i"), b.data, b.rest))
    cache.nothing_returned.update(baton.nothing_returned)
    cache.leased.update(((group, partition), n) for group, partition, n in baton.leased)
    cache.lanes_in.update(baton.lanes_in)
    cache.work_ahead.update(baton.work_ahead)
    if baton.making is not None:
        cache.making[queue] = baton.making
