"""Transfer: read a queue in slices, and write it into another database unchanged.

    import_queue ─► import_lanes ─► import_segments ─► import_txids ─► import_states ─► import_settings
    paused, with    each lane from   as they were,      in slices       positions, in     options and
    a mark          its base on      in slices                          slices of lanes   counters, at once
                                                                    ─► import_dead ─► import_done

Every step may be repeated: what is there already is passed over, so that a copy that was killed goes
on where it was. Sequences are kept, and with them every position; ids of rows are given anew, so that
message ids differ. Until the end the queue is paused and keeps everything. All positions come from one
snapshot; those of a later one replace them.
Slices are msgpack inside bytes: their size is bounded by bytes, not by the number of rows.
"""

from collections.abc import Iterator
from typing import Any, TypeVar

from msgspec import MsgspecError, Struct, json, msgpack

from ...errors import InvalidArgument, NotFound
from ...ids import GroupId, LaneId
from ...options import GroupDialect, GroupOptions, QueueOptions
from ...store.encryption import check_key
from ...store.mapping import pack_body, segment_place
from ...store.records import (
    LEASED,
    NO_BODY,
    RETURNED,
    Carry,
    Claim,
    Cursor,
    DeadRow,
    Group,
    Lane,
    Queue,
    Rest,
    Segment,
)
from ...store.tx import Tx
from ..core.admin.admin import delete_queue
from ..core.topology import find_queue
from ..reach.merging import Several
from ..verb import verb

T = TypeVar("T")
ONE = Several(one=True)
SMALL_BYTES = 800
IN_WINDOW = "in_window"


class GroupCopy(Struct):
    """A group, without its positions."""

    name: str
    dialect: GroupDialect
    paused: bool
    options: GroupOptions
    tallies: dict[str, int]


class QueueCopy(Struct):
    """A queue, without what is in it. `store` is the database that it is copied from."""

    name: str
    store: int
    paused: bool
    options: QueueOptions
    groups: list[GroupCopy]
    copies: int
    messages: int
    dead_letters: int
    leased: int


class LaneCopy(Struct):
    """A lane: where it begins and ends. `id` is that in the database it is copied from."""

    id: LaneId
    partition: str
    priority: int
    base: int
    head: int


class SegmentCopy(Struct, array_like=True):
    """A segment with its payloads; `for_group` by name."""

    first: int
    created_at: int
    not_before: int | None
    for_group: str | None
    carry: Carry | None
    ends: bytes
    data: bytes
    rest: Rest | None


class CursorCopy(Struct):
    """The position of a group in a lane, and what it has claimed."""

    group: str
    cursor: Cursor
    claims: list[Claim]


class LaneState(Struct):
    """The state of a lane when everything before its head is copied."""

    partition: str
    priority: int
    base: int
    head: int
    odd: int
    copies: int
    last_at: int
    gone: list[tuple[int, int, str | None]]
    cursors: list[CursorCopy]


class Mark(Struct):
    """What a copy that is not finished keeps at its target."""

    store: int
    paused: bool
    states: bool = False
    pushed: int = 0  # to the source, when the positions were read


class Begun(Struct):
    """How far an earlier copy came; `states`: only dead letters are missing."""

    resumed: bool
    states: bool
    pushed: int = 0


_encode = msgpack.Encoder().encode


def _decode(kind: type[T], packed: bytes) -> T:
    try:
        return msgpack.decode(packed, type=kind, strict=False)  # SQLite has no booleans
    except MsgspecError as error:  # also of a newer version, whose rows differ
        raise InvalidArgument(f"this is not a slice of a copy: {error}") from None


# reading


@verb("admin", queue="name", read_only=True, several=ONE)
def export_queue(tx: Tx, name: str) -> bytes:
    """Return a queue and its groups: a `QueueCopy`."""
    queue = find_queue(tx, name)
    tallies: dict[int, dict[str, int]] = {}
    for group_id, tally, n in tx.all("tallies"):
        if tally != IN_WINDOW:
            tallies.setdefault(group_id, {})[tally] = n
    groups = tx.groups(queue.id)
    dead = sum(row[1] for row in tx.all("dead_per_group", queue.id))
    _, messages = tx.all("queue_totals", queue.id)[0]
    return _encode(
        QueueCopy(
            queue.name, tx.store, queue.paused, queue.options,
            [GroupCopy(g.name, g.dialect, g.paused, g.options, tallies.get(g.id, {}))
             for g in groups],
            tallies.get(-queue.id, {}).get("copies", 0), messages, dead,
            sum(int(tx.value("leased_count", group.id) or 0) for group in groups),
        )
    )  # fmt: skip


@verb("admin", queue="name", read_only=True, several=ONE)
def export_lanes(tx: Tx, name: str, after: int, limit: int) -> bytes:
    """Return the lanes of a queue after one, by id: a list of `LaneCopy`."""
    queue = find_queue(tx, name)
    found = []
    for lane in tx.lanes_after(queue.id, LaneId(after + 1), limit):
        home = tx.partition_by_id(lane.partition)
        assert home is not None
        found.append(LaneCopy(lane.id, home.name, lane.priority, lane.base, lane.head))
    return _encode(found)


@verb("admin", queue="name", read_only=True, several=ONE)
def export_segments(tx: Tx, name: str, lane: LaneId, start: int, size: int) -> bytes:
    """Return segments of a lane from a sequence on, about so many bytes: a list of `SegmentCopy`."""
    queue = find_queue(tx, name)
    home = tx.lane(lane)
    if home is None or home.queue != queue.id:
        raise NotFound(f"queue {name!r} has no lane {lane}")
    groups = {group.id: group.name for group in tx.groups(queue.id)}
    found: list[SegmentCopy] = []
    for segment in tx.segments_from(lane, start):
        body = tx.body(segment).joined()
        # A copy for a group that is deleted is visible to none: its name is one that no group has.
        only = None if segment.for_group is None else groups.get(segment.for_group, "")
        found.append(
            SegmentCopy(segment.first, segment.created_at, segment.not_before, only, segment.carry,
                        bytes(body.ends), body.data, body.rest)
        )  # fmt: skip
        size -= len(body.data) + 64
        if size <= 0:
            break
    return _encode(found)


@verb("admin", queue="name", read_only=True, several=ONE)
def export_txids(tx: Tx, name: str, partition: str, after: str, limit: int) -> bytes:
    """Return transaction ids of a partition after one: a list of [txid, priority, sequence, until]."""
    queue = find_queue(tx, name)
    home = tx.partition(queue.id, partition)
    if home is None:
        return _encode([])
    lanes = {lane.id: lane.priority for lane in tx.lanes_in(home.id)}
    rows = tx.all("txids_after", home.id, after, limit)
    return _encode([(txid, lanes.get(lane), seq, at) for txid, lane, seq, at in rows])


@verb("admin", queue="name", read_only=True, several=ONE)
def export_states(tx: Tx, name: str) -> bytes:
    """Return all lanes with their positions, in one snapshot: a list of `LaneState`.

    What is leased becomes due: the copy has no leases.
    """
    queue = find_queue(tx, name)
    tx.flush()
    groups = {group.id: group.name for group in tx.groups(queue.id)}
    found = []
    for lane in tx.lanes(queue.id):
        home = tx.partition_by_id(lane.partition)
        assert home is not None
        claims: dict[int, list[Claim]] = {}
        for claim in tx.claims_of_lane(lane.id):
            claims.setdefault(claim.group_id, []).append(_given_back(claim))
        cursors = [
            CursorCopy(groups[cursor.group_id], cursor, claims.get(cursor.group_id, []))
            for cursor in tx.cursors_of_lane(lane.id)
            if cursor.group_id in groups
        ]
        gone = [
            (lo, hi, None if only is None else groups.get(only, ""))
            for lo, hi, only in tx.all("gone_of_lane", lane.id)
        ]
        found.append(
            LaneState(home.name, lane.priority, lane.base, lane.head, lane.odd, lane.copies,
                      lane.last_at, gone, cursors)
        )  # fmt: skip
    return _encode(found)


def _given_back(claim: Claim) -> Claim:
    if claim.state != LEASED:
        return claim
    return Claim.unleased(
        claim.group_id, claim.lane, claim.ranges, None, claim.since, claim.deliveries,
        claim.failures, RETURNED, claim.error,
    )  # fmt: skip


@verb("admin", queue="name", read_only=True, several=ONE)
def export_dead(tx: Tx, name: str, after: int, size: int) -> tuple[bytes, int]:
    """Return dead letters after one, by id: a list of [group, partition, priority, `DeadRow`], and
    the id of the last."""
    queue = find_queue(tx, name)
    groups = {group.id: group.name for group in tx.groups(queue.id)}
    found = []
    for (id,) in tx.all("dead_ids_after", queue.id, after, 500):
        (row,) = tx.dead("dead_by_id", id)
        lane = tx.lane(row.lane)
        home = None if lane is None else tx.partition_by_id(lane.partition)
        if lane is not None and home is not None and row.group_id in groups:
            found.append((groups[row.group_id], home.name, lane.priority, row))
        size -= len(row.payload) + 64
        after = id
        if size <= 0:
            break
    return _encode(found), after


# writing


@verb("admin", queue="name", synced=True, several=ONE)
def import_queue(tx: Tx, name: str, packed: bytes) -> Begun:
    """Create a queue for a copy, paused, or go on with a copy of the same queue.

    A queue that exists otherwise is left alone: the call is refused.
    """
    given = _decode(QueueCopy, packed)
    mark = _mark(tx, name)
    queue = tx.queue(name)
    if queue is not None:
        if mark is None or mark.store != given.store:
            raise InvalidArgument(
                f"queue {name!r} exists at the target; delete it there or copy to another database"
            )
        return Begun(True, mark.states, mark.pushed)
    if given.options.encrypted:
        check_key()
    # Nothing is trimmed before every position is the last one.
    options = QueueOptions(encrypted=given.options.encrypted, keep_seconds=None)
    queue = tx.add_queue(name, options)
    queue.paused = True
    tx.save_queue(queue)
    for group in given.groups:
        tx.add_group(queue, group.name, group.dialect, group.options)
    _put_mark(tx, name, Mark(given.store, given.paused))
    return Begun(False, False)


@verb("admin", queue="name", synced=True, several=ONE)
def import_lanes(tx: Tx, name: str, packed: bytes) -> list[int]:
    """Create lanes where they are missing; return the sequence that each goes on with."""
    queue, _ = _copied(tx, name)
    heads = []
    for given in _decode(list[LaneCopy], packed):
        home = tx.partition(queue.id, given.partition)
        home = home or tx.add_partition(queue.id, given.partition)
        lane = tx.lane_of(home.id, given.priority)
        if lane is None:
            lane = tx.add_lane(queue.id, home.id, given.priority)
            lane.base = lane.head = given.base
            tx.save_lane(lane)
            for group_id in tx.group_ids(queue.id):
                tx.add_cursor(
                    Cursor(lane.id, group_id, home.id, given.priority, given.base,
                           skipped=given.base)
                )  # fmt: skip
        heads.append(lane.head)
    return heads


@verb("admin", queue="name", synced=True, several=ONE)
def import_segments(tx: Tx, name: str, partition: str, priority: int, packed: bytes) -> int:
    """Append segments to a lane, without those that are there; return where it goes on."""
    queue, mark = _copied(tx, name)
    lane = _lane(tx, queue, partition, priority)
    groups = {group.name: group.id for group in tx.groups(queue.id)}
    for given in _decode(list[SegmentCopy], packed):
        count = len(given.ends) // 4
        if given.first + count <= lane.head or mark.states:
            continue
        if given.first < lane.head:
            raise InvalidArgument(
                f"queue {name!r} was written at the target during the copy; delete it there and "
                "copy again"
            )
        if given.first > lane.head:  # what is between is gone, see `import_states`
            lane.head = given.first
            tx.save_lane(lane)
        place = segment_place(lane.id, given.first) if queue.options.encrypted else None
        columns = pack_body(given.ends, given.data, given.rest, place)
        stored = len(given.ends) + len(columns[1]) + len(columns[2] or b"")
        small = columns if stored <= SMALL_BYTES else None
        only = None
        if given.for_group is not None:
            only = groups.get(given.for_group, GroupId(-1))
        tx.append(
            lane,
            Segment(lane.id, given.first, count, given.created_at, given.not_before, only,
                    given.carry, NO_BODY if small else tx.add_body(columns), len(given.data), small),
        )  # fmt: skip
    return lane.head


@verb("admin", queue="name", synced=True, several=ONE)
def import_txids(tx: Tx, name: str, partition: str, packed: bytes) -> None:
    """Add transaction ids, by which repeats are recognized."""
    queue, _ = _copied(tx, name)
    home = tx.partition(queue.id, partition)
    assert home is not None
    by_end: dict[tuple[int, int | None], list[tuple[str, int]]] = {}
    for txid, priority, sequence, until in _decode(
        list[tuple[str, int | None, int, int | None]], packed
    ):
        if priority is not None:
            by_end.setdefault((priority, until), []).append((txid, sequence))
    for (priority, until), pairs in by_end.items():
        lane = _lane(tx, queue, partition, priority)
        tx.run("put_txids", home.id, lane.id, until, json.encode(pairs).decode())


@verb("admin", queue="name", synced=True, several=ONE)
def import_states(tx: Tx, name: str, packed: bytes) -> bool:
    """Set the positions and claims of some lanes, in place of what an earlier call has set.

    Returns False, and changes nothing, if messages before the heads are missing.
    """
    queue, mark = _copied(tx, name)
    if mark.states:
        return True
    states = _decode(list[LaneState], packed)
    groups = {group.name: group for group in tx.groups(queue.id)}
    lanes = [_find_lane(tx, queue, state.partition, state.priority) for state in states]
    for lane, state in zip(lanes, states, strict=True):
        if lane is None or lane.head < _end(state):
            return False
    if any(cursor.group not in groups for state in states for cursor in state.cursors):
        raise InvalidArgument(
            f"a group of queue {name!r} was created during the copy; delete the queue at the target and copy again"
        )
    for lane, state in zip(lanes, states, strict=True):
        assert lane is not None
        _set_lane(tx, lane, state, {name: group.id for name, group in groups.items()})
        for one in state.cursors:
            _set_cursor(tx, lane, groups[one.group], one)
    tx.flush()
    tx.cache.clear()
    return True


@verb("admin", queue="name", synced=True, several=ONE)
def import_settings(tx: Tx, name: str, queue_copy: bytes, pushed: int) -> None:
    """Set the options of the queue and its groups, and their counters, after all positions."""
    queue, mark = _copied(tx, name)
    if mark.states:
        return
    given = _decode(QueueCopy, queue_copy)
    groups = {group.name: group for group in tx.groups(queue.id)}
    queue.options = given.options
    tx.save_queue(queue)
    for group_copy in given.groups:
        group = groups[group_copy.name]
        group.paused = group_copy.paused
        tx.save_group(group)
        for tally, n in group_copy.tallies.items():
            tx.tally.add(group.id, tally, n)
        group.set_rules(queue.options)
        tx.reblock(group)
    tx.tally.add(GroupId(-queue.id), "copies", given.copies)
    mark.states, mark.pushed = True, pushed
    _put_mark(tx, name, mark)
    tx.flush()
    tx.cache.clear()


def in_slices(states: bytes, lanes: int) -> Iterator[bytes]:
    """Divide the state of a queue into slices of so many lanes."""
    found = _decode(list[LaneState], states)
    for at in range(0, len(found), lanes):
        yield _encode(found[at : at + lanes])


def pushed_of(states: list[LaneState] | bytes) -> int:
    """Return how many messages were ever pushed to a queue with these lanes."""
    lanes = _decode(list[LaneState], states) if isinstance(states, bytes) else states
    return sum(lane.head for lane in lanes)


def _end(state: LaneState) -> int:
    """The end of what a copy must have: what is gone at the end of a lane is not copied."""
    stop = state.head
    for lo, hi, _ in reversed(state.gone):
        if hi != stop:
            break
        stop = lo
    return max(stop, state.base)


def _set_lane(tx: Tx, lane: Lane, state: LaneState, groups: dict[str, GroupId]) -> None:
    for lo, hi, only in state.gone:
        if hi > lane.base:
            for_group = None if only is None else groups.get(only, GroupId(-1))
            lane.gone_to = max(lane.gone_to, lo)
            tx.add_gone(lane, max(lo, lane.base), hi, for_group)
    lane.head, lane.odd, lane.copies = max(lane.head, state.head), state.odd, state.copies
    lane.last_at = state.last_at
    tx.save_lane(lane)
    tx.run("note_odd", lane.id, lane.odd, lane.copies)


def _set_cursor(tx: Tx, lane: Lane, group: Group, one: CursorCopy) -> None:
    for claim in tx.claims_in(lane.id, group.id, 0, lane.head):
        tx.drop_claim(claim)
    cursor, given = tx.cursor(lane.id, group.id), one.cursor
    assert cursor is not None
    for field in _COPIED:
        setattr(cursor, field, getattr(given, field))
    cursor.ready = True
    tx.changed(cursor)
    tx.flush()
    for claim in one.claims:
        claim.group_id, claim.lane, claim.lease, claim.stored = group.id, lane.id, None, 0  # type: ignore[assignment]
        claim.counted = 0
        tx.add_claim(claim)


_COPIED = ("next", "served", "delivered", "consumed", "failed", "done", "dead", "skipped", "purged",
           "expired", "hidden", "copies", "last_seq", "last_created", "last_at")  # fmt: skip


@verb("admin", queue="name", synced=True, several=ONE)
def import_dead(tx: Tx, name: str, packed: bytes) -> None:
    """Add dead letters, without those that are there. Their counters are set with the positions."""
    queue, _ = _copied(tx, name)
    groups = {group.name: group.id for group in tx.groups(queue.id)}
    rows = []
    for group, partition, priority, row in _decode(list[tuple[str, str, int, DeadRow]], packed):
        lane = _lane(tx, queue, partition, priority)
        row.queue, row.group_id, row.lane = queue.id, groups[group], lane.id
        if not tx.dead("dead_of", row.group_id, lane.id, row.seq):
            rows.append(row)
    tx.add_dead(rows, queue.options.encrypted)
    for row in rows:
        if not row.counted:
            tx.run("uncount_letter", row.group_id, row.lane, row.seq)


@verb("admin", queue="name", synced=True, several=ONE)
def import_done(tx: Tx, name: str) -> None:
    """End a copy: the queue delivers, unless it was paused where it came from."""
    queue, mark = _copied(tx, name)
    queue.paused = mark.paused
    tx.save_queue(queue)
    tx.run("drop_meta", _key(name))
    tx.touched.add(name)


@verb("admin", queue="name", repeatable=False, synced=True, in_slices=True, several=ONE)
def delete_copied(tx: Tx, name: str, pushed: int) -> bool:
    """Delete a queue at the source, unless it has messages that were not copied."""
    queue = find_queue(tx, name)
    tx.flush()
    more = tx.all("queue_totals", queue.id)[0][0] - pushed
    if more:
        raise InvalidArgument(
            f"{more:,} messages were pushed to queue {name!r} after it was copied: it is not deleted "
            "and stays paused at the source"
        )
    return delete_queue(tx, name)


def _copied(tx: Tx, name: str) -> tuple[Queue, Mark]:
    """Return a queue that is being copied."""
    queue, mark = find_queue(tx, name), _mark(tx, name)
    if mark is None:
        raise InvalidArgument(f"queue {name!r} is not being copied")
    return queue, mark


def _key(name: str) -> str:
    return f"copy {name}"


def _mark(tx: Tx, name: str) -> Mark | None:
    found: Any = tx.value("get_meta", _key(name))
    return None if not found else json.decode(found, type=Mark)


def _put_mark(tx: Tx, name: str, mark: Mark) -> None:
    tx.run("put_meta", _key(name), json.encode(mark).decode())


def _find_lane(tx: Tx, queue: Queue, partition: str, priority: int) -> Lane | None:
    home = tx.partition(queue.id, partition)
    return None if home is None else tx.lane_of(home.id, priority)


def _lane(tx: Tx, queue: Queue, partition: str, priority: int) -> Lane:
    lane = _find_lane(tx, queue, partition, priority)
    if lane is None:
        raise InvalidArgument(f"the copy has no lane {priority} of partition {partition!r} yet")
    return lane
