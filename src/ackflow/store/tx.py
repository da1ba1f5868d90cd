"""One database transaction, as small typed primitives over named SQL statements.

The primitives load and save records; they hold no rule of the broker. A store supplies `execute`
and its own file of statements.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from msgspec import msgpack

from .. import ranges
from ..clock import AHEAD
from ..ids import BodyId, GroupId, LaneId, PartitionId, QueueId
from ..options import GroupOptions, QueueOptions, is_plain, settings
from ..ranges import Ranges
from .cache import Cache
from .encryption import STAGED, Place
from .mapping import (
    Row,
    dead_columns,
    pack_carry,
    read_note,
    segment_place,
    to_dead,
    to_queue,
    to_segment,
    unpack_body,
)
from .protocol import Reach, UnsyncedMessages
from .records import (
    Body,
    DeadRow,
    Group,
    Lane,
    Odd,
    Packed,
    Partition,
    Queue,
    Rest,
    Segment,
    Stage,
    Sweep,
)
from .statements import Execute, WriteMany
from .tables.claims import Claims
from .tables.exchanges import ExchangeRows
from .tables.gone import GoneRows

NO_BODY = (None, None, None)
FIRST_STEP, LAST_STEP = 4, 256  # segments read at once
UNLIMITED = 1 << 62
CLOCK_BACK = "clock_back"  # the key in `meta` of the mark that the clock went back

_rest = msgpack.Decoder(Rest).decode
_group_options = msgpack.Decoder(GroupOptions).decode
_encode = msgpack.Encoder().encode


class LaneNotSwept(Exception):
    """A read-only transaction needs a lane to which a sweep must be applied first."""

    def __init__(self, lane: LaneId) -> None:
        super().__init__(lane)
        self.lane = lane


def _no_sweeper(_tx: "Tx", _lane: Lane, _sweep: Sweep) -> None:
    raise AssertionError("no module has set Tx.sweeper")


class Tx(Claims, GoneRows, ExchangeRows):
    """A transaction in progress; `now` decides every expiry in it.

    `sweeper` applies a sweep to a lane; the broker sets it.
    """

    sweeper: "Callable[[Tx, Lane, Sweep], None]" = staticmethod(_no_sweeper)
    first_step = FIRST_STEP
    number = 0  # of the commit, in a store that numbers all of them
    on_disk = False  # whether its commit was synced, in a store with `sync`

    def __init__(
        self,
        execute: Execute,
        write: Callable[[str, Sequence[Any]], object],
        statements: dict[str, str],
        cache: Cache,
        savepoint: Callable[[], AbstractContextManager[object]],
        insert: Callable[[str, Sequence[Any]], int],
        *,
        store: int,
        now: int,
        writes: bool,
        full: bool = False,
        record: UnsyncedMessages | None = None,
        write_many: WriteMany | None = None,
    ) -> None:
        super().__init__(execute, write, statements, insert, cache, write_many)
        self._savepoint = savepoint
        self._writes = writes
        self._sweeping = False
        self._next_swept: tuple[int, LaneId] | None = None
        self._record = record
        self.store = store
        self.touched: set[str] = set()
        self.latest = now  # the time of the last commit
        self.begin(now, full)

    def begin(self, now: int, full: bool) -> None:
        """Reset for the next transaction: a store may use one Tx for all of them."""
        self.now = now
        self.full = full
        self.collects = True
        self.loaded = 0  # bytes of payloads that were read
        self.bytes_left = UNLIMITED  # of payloads that may be taken
        self.sync_number = 0  # the WAL must be on disk up to this number before the answer
        if now + AHEAD < self.latest:
            self._went_back()
        if self.touched:
            self.touched = set()
        if self.unwritten:
            self.forget()
        tally = self.tally
        if tally.acked or tally.died or tally.counts:
            tally.clear()

    def admits(self, reach: Reach | None) -> bool:
        """Return whether a verb with this reach may run in the transaction."""
        return True

    def enter(self, reach: Reach | None) -> None:
        """Begin a verb with this reach, which the transaction admits."""

    def _went_back(self) -> None:
        """Store a mark: rows written while the clock was ahead have times in the future."""
        self.cache.tick = 0
        self.cache.seen.clear()
        self.run("put_meta", CLOCK_BACK, f"{self.now} {self.latest}")

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Roll back everything done inside the context if it raises."""
        self.flush()
        mark = self.tally.mark()
        try:
            with self._savepoint():
                yield
                self.flush()
        except BaseException:
            self.forget()
            self.tally.back_to(mark)
            raise

    def tick(self) -> int:
        """Return a time that increases with every call, for serving lanes round-robin."""
        self.cache.tick = max(self.cache.tick + 1, self.now)
        return self.cache.tick

    # queues, partitions, lanes

    def queue(self, name: str) -> Queue | None:
        id = self.cache.queue_ids.get(name)
        if id is None and (row := self.one("queue_named", name)):
            return self._cached_queue(row)
        return None if id is None else self.cache.queues[id]

    def queue_by_id(self, id: QueueId) -> Queue | None:
        found = self.cache.queues.get(id)
        if found is None and (row := self.one("queue_by_id", id)):
            found = self._cached_queue(row)
        return found

    def _cached_queue(self, row: Row) -> Queue:
        queue = to_queue(row)
        self.cache.keep_queue(queue)
        return queue

    def queues(self) -> list[Queue]:
        return [to_queue(row) for row in self.all("all_queues")]

    def add_queue(self, name: str, options: QueueOptions) -> Queue:
        id = self.insert("add_queue", name, self.now, _encode(options))
        queue = Queue(id, name, self.now, False, options)
        self.cache.keep_queue(queue)
        return queue

    def save_queue(self, queue: Queue) -> None:
        self.run("save_queue", queue.id, queue.paused, _encode(queue.options))

    def partition(self, queue: QueueId, name: str) -> Partition | None:
        found = self.cache.partitions.get((queue, name))
        return self._read_partition("partition_named", queue, name) if found is None else found

    def partition_by_id(self, id: PartitionId) -> Partition | None:
        found = self.cache.partitions.get(id)
        return self._read_partition("partition_by_id", id) if found is None else found

    def _read_partition(self, statement: str, *args: Any) -> Partition | None:
        row = self.one(statement, *args)
        if row is None or self.queue_by_id(row[1]) is None:
            return None  # its queue is deleted
        found = Partition(*row)
        self._keep_partition(found)
        return found

    def add_partition(self, queue: QueueId, name: str) -> Partition:
        id = self.insert("add_partition", queue, name, self.now)
        partition = Partition(id, queue, name, self.now)
        self._keep_partition(partition)
        return partition

    def _keep_partition(self, partition: Partition) -> None:
        self.cache.partitions[partition.id] = partition
        self.cache.partitions[partition.queue, partition.name] = partition

    def partitions(self, queue: QueueId, after: int = 0, limit: int = -1) -> list[Partition]:
        return [Partition(*row) for row in self.all("partitions_of", queue, after, limit)]

    def lane(self, id: LaneId) -> Lane | None:
        found = self.cache.lanes.get(id)
        return self._read_lane("lane_by_id", id) if found is None else found

    def lane_of(self, partition: PartitionId, priority: int) -> Lane | None:
        found = self.cache.lanes.get((partition, priority))
        return self._read_lane("lane_of", partition, priority) if found is None else found

    def _read_lane(self, statement: str, *args: Any) -> Lane | None:
        row = self.one(statement, *args)
        if row is None or self.queue_by_id(row[1]) is None:
            return None  # its queue is deleted
        return self._cached_lane(row)

    def _cached_lane(self, row: Row) -> Lane:
        lane = self.cache.lanes.get(row[0])
        if lane is None:
            lane = Lane(*row)
            due = self._due_sweeps(lane) if self._pending_sweeps() else []
            if due and self._sweeping:
                return lane
            if due and not self._writes:
                raise LaneNotSwept(lane.id)
            self.cache.keep_lane(lane)
            for sweep in due:
                self._sweep(lane, sweep)
        return lane

    # sweeps

    def sweeps(self) -> list[Sweep]:
        """Return all sweeps, those that ended lately included."""
        return [Sweep(*row) for row in self.all("sweeps")]

    def sweep(self, id: int) -> Sweep | None:
        """Return a sweep; changes of it are saved by the caller."""
        for some in self._pending_sweeps().values():
            for sweep in some:
                if sweep.id == id:
                    return sweep
        row = self.one("sweep", id)
        return Sweep(*row) if row else None

    def add_sweep(self, sweep: Sweep) -> None:
        """Add a sweep; from now on it is applied to each lane that it covers before it is used."""
        s = sweep
        self.flush()
        s.id = self.insert("add_sweep", s.kind, s.queue, s.group_id, s.partition, s.target, s.queue_name,
                           s.group_name, s.upto, s.lanes, s.started_at)  # fmt: skip
        self.cache.clear()

    def save_sweep(self, sweep: Sweep) -> None:
        s = sweep
        self.run("save_sweep", s.id, s.after, s.phase, s.done, s.n, s.ended_at)

    def end_sweep(self, sweep: Sweep) -> None:
        sweep.ended_at = self.now
        self.save_sweep(sweep)
        self.run("drop_swept", sweep.id, sweep.upto)
        self.cache.sweeps = None

    def sweep_first(self, *lanes: LaneId) -> bool:
        if not self._pending_sweeps() or self._sweeping:
            return False
        new = [lane for lane in lanes if lane not in self.cache.lanes]
        return any([self.lane(lane) is not None for lane in new])  # noqa: C419 (all are loaded)

    def _pending_sweeps(self) -> dict[QueueId, list[Sweep]]:
        found = self.cache.sweeps
        if found is None:
            found = self.cache.sweeps = {}
            for sweep in self.sweeps():
                if sweep.changes_lanes and sweep.ended_at is None:
                    found.setdefault(sweep.queue, []).append(sweep)
        return found

    def _due_sweeps(self, lane: Lane) -> list[Sweep]:
        return [
            sweep
            for sweep in self._pending_sweeps().get(lane.queue, ())
            if sweep.covers(lane) and self.one("is_swept", sweep.id, lane.id) is None
        ]

    def _sweep(self, lane: Lane, sweep: Sweep) -> None:
        """Apply a sweep to a lane; meanwhile no other lane is swept."""
        self._sweeping = True
        try:
            self.sweeper(self, lane, sweep)
        finally:
            self._sweeping = False
        if (sweep.id, lane.id) != self._next_swept:  # else its position tells
            self.run("add_swept", sweep.id, lane.id)
            self.save_sweep(sweep)

    def sweep_next(self, sweep: Sweep, lane: LaneId) -> None:
        """Apply a sweep to the lane after its position, and move it; the caller saves it."""
        self._next_swept = sweep.id, lane
        try:
            self.lane(lane)
        finally:
            self._next_swept = None
        sweep.after = lane

    def is_encrypted(self, lane: LaneId) -> bool:
        home = self.lane(lane)
        queue = self.queue_by_id(home.queue) if home else None
        return queue is not None and queue.options.encrypted

    def add_lane(self, queue: QueueId, partition: PartitionId, priority: int) -> Lane:
        id = self.insert("add_lane", queue, partition, priority)
        lane = Lane(id, queue, partition, priority)
        self.cache.keep_lane(lane)
        return lane

    def lanes(self, queue: QueueId) -> list[Lane]:
        return [self._cached_lane(row) for row in self.all("lanes_of_queue", queue)]

    def lanes_after(self, queue: QueueId, lane: LaneId, limit: int) -> list[Lane]:
        return [self._cached_lane(row) for row in self.all("lanes_after", queue, lane, limit)]

    def lanes_in(self, partition: PartitionId) -> list[Lane]:
        return [self._cached_lane(row) for row in self.all("lanes_of_partition", partition)]

    def save_lane(self, lane: Lane) -> None:
        """Save a lane. Required when segments are dropped, as the last one determines its head."""
        self.run("save_lane", lane.id, lane.base, lane.head, lane.last_at, lane.gone, lane.gone_to)

    # segments and bodies

    def add_body(self, packed: Packed) -> BodyId:
        return BodyId(self.insert("add_body", *packed))

    def append(self, lane: Lane, segment: Segment) -> None:
        """Write a segment at the head of its lane, and advance the head."""
        s = segment
        carry = pack_carry(s, self.is_encrypted(s.lane)) if s.carry else None
        self.run(
            "add_segment", s.lane, s.first, s.count, s.created_at, s.not_before, s.for_group,
            carry, s.body, s.bytes, *(s.small or NO_BODY),
        )  # fmt: skip
        if self._record is not None:
            self._record.note(s.lane, s.first)
        s.small = None  # payloads are cached separately, within a limit
        lane.head = s.first + s.count
        lane.last_at = s.created_at
        if s.not_before is not None or s.for_group is not None:
            lane.odd = lane.head
            lane.copies += s.count if s.for_group is not None else 0
            self.run("note_odd", lane.id, lane.odd, lane.copies)
        self.cache.keep_segment(segment, new=True)

    def show(self, lane: LaneId, stop: int) -> None:
        """Record that messages of a lane before `stop` are delivered or shown.

        An id that a client has seen must never be assigned to another message, so the answer waits
        until these messages are on disk.
        """
        record = self._record
        if record is not None and record.unsynced(lane, stop):
            self.sync_number = record.begun

    def segments_from(self, lane: LaneId, sequence: int) -> Iterator[Segment]:
        """Yield segments from the one that contains a sequence on; the first may begin after it.

        They are read in steps of growing size. The caller may drop a segment that was yielded.
        """
        home = self.lane(lane)
        if home is not None and sequence < home.base:
            sequence = home.base  # segments below it may not be removed yet
        first = self.cache.segment(lane, sequence)
        if first is not None:
            yield first
            sequence = first.stop
        yield from self._in_steps("segments_from", lane, sequence)

    def headers_from(self, lane: LaneId, sequence: int) -> Iterator[Segment]:
        """Yield segments like `segments_from`, without payloads in their rows."""
        return self._in_steps("headers_from", lane, sequence)

    def _in_steps(self, statement: str, lane: LaneId, sequence: int) -> Iterator[Segment]:
        step = self.first_step
        while True:
            rows = self.all(statement, lane, sequence, step)
            segments = [to_segment(row) for row in rows]
            if statement == "segments_from":
                self.cache.keep_ahead(lane, segments[1:])
            for segment in segments:
                if segment.stop > sequence:
                    sequence = segment.stop
                    yield segment
            if len(rows) < step:
                return
            step = min(4 * step, LAST_STEP)

    def segments_before(self, lane: Lane, sequence: int, limit: int) -> list[Segment]:
        rows = self.all("segments_before", lane.id, sequence, limit, lane.base)
        return [to_segment(row) for row in rows]

    def segments_over(self, lane: LaneId, wanted: Ranges) -> Iterator[tuple[Segment, int, int]]:
        """Yield each stored part of the wanted ranges as (segment, first, stop), in order."""
        for header in self.segments_from(lane, wanted[0]) if wanted else ():
            for first, stop in ranges.pairs(ranges.clip(wanted, header.first, header.stop)):
                yield header, first, stop
            if header.stop >= wanted[-1]:
                return

    def created_at(self, lane: LaneId, sequence: int) -> int | None:
        segment = self.cache.segment(lane, sequence)
        if segment is not None:
            return segment.created_at
        found = self.value("created_at", lane, sequence)
        return None if found is None else int(found)

    def odd_segments(self, lane: Lane, sequence: int, limit: int = -1) -> list[Odd]:
        """Return delayed and group-only segments from the one that contains a sequence on."""
        if sequence >= lane.odd:
            return []
        return [Odd._make(row) for row in self.all("odd_segments", lane.id, sequence, limit)]

    def body(self, segment: Segment) -> Body:
        found = self.cache.body(segment.lane, segment.first)
        if found is None:
            found = unpack_body(self._packed(segment), partial(self._place, segment))
            self.loaded += len(found.data)
            self.cache.keep_body(segment.lane, segment.first, found)
        segment.small = None  # payloads are cached separately, within a limit
        self.cache.keep_segment(segment)
        return found

    def _place(self, segment: Segment, how: int) -> Place:
        """Return the place for which the body of a segment was sealed."""
        if how != STAGED:
            return segment_place(segment.lane, segment.first)
        row = self.one("small_body", segment.lane, segment.first)
        return read_note(row[1] if row else None, segment.lane, segment.first)

    def rest(self, segment: Segment) -> Rest | None:
        """Return the optional fields of the messages of a segment; large payloads are not read."""
        body = self.cache.body(segment.lane, segment.first)
        if body is not None:
            return body.rest
        packed = self.value("body_rest", segment.body) if segment.body else self._packed(segment)[2]
        return _rest(packed) if packed else None

    def _packed(self, segment: Segment) -> Packed:
        if segment.small is not None:
            return segment.small
        if segment.body:
            row = self.one("body", segment.body)
        else:
            row = self.one("small_body", segment.lane, segment.first)
        assert row is not None, "a header without its body"
        return row[0], row[1], row[2]

    def drop_segment(self, segment: Segment) -> None:
        self.run("drop_segment", segment.lane, segment.first)
        if segment.body:
            self.run("drop_body", segment.body)
        self.cache.forget_body(segment.lane, segment.first)
        self.cache.forget_segments(segment.lane)

    def drop_segments_below(self, lane: LaneId, stop: int, limit: int, most_bytes: int) -> bool:
        """Delete segments below a sequence, up to a limit; returns whether none is left."""
        rows = self.all("segments_below", lane, stop, limit)
        end, size, n = stop, 0, 0
        for first, count, body, length in rows:
            if n and size >= most_bytes:
                break
            n, size, end = n + 1, size + length, first + count
            if body:
                self.run("drop_body", body)
        self.run("drop_segments_below", lane, end)
        self.cache.forget_segments(lane)
        return n == len(rows) < limit

    # groups

    def group(self, queue: QueueId, name: str) -> Group | None:
        found = self.cache.groups.get((queue, name))
        return self._read_group("group_named", queue, name) if found is None else found

    def group_by_id(self, id: GroupId) -> Group | None:
        found = self.cache.groups.get(id)
        return self._read_group("group_by_id", id) if found is None else found

    def _read_group(self, statement: str, *args: Any) -> Group | None:
        row = self.one(statement, *args)
        return self._cached_group(row) if row else None

    def _cached_group(self, row: Row) -> Group:
        found = self.cache.groups.get(row[0])
        if found is None:
            id, home, name, created_at, dialect, paused, packed, *made = row
            options = _group_options(packed)
            queue = self.queue_by_id(home)
            assert queue is not None, "a group without its queue"
            rules = settings(dialect, queue.options, options)
            plain = is_plain(queue.options, options, rules)
            found = Group(id, home, name, created_at, dialect, bool(paused), options, rules, plain)
            found.made = None if made[1] is None else (made[0], made[1])
            self.cache.groups[found.id] = self.cache.groups[found.queue, found.name] = found
            if rules.max_ack_pending is not None:
                self.cache.windowed.add(id)
        return found

    def groups(self, queue: QueueId) -> list[Group]:
        return [self._cached_group(row) for row in self.all("groups_of", queue)]

    def add_group(self, queue: Queue, name: str, dialect: str, options: GroupOptions) -> Group:
        self.insert("add_group", queue.id, name, self.now, dialect, _encode(options))
        self.cache.group_ids.pop(queue.id, None)
        group = self.group(queue.id, name)
        assert group is not None
        return group

    def decide_group(self, group: Group, name: str, dialect: str, options: GroupOptions) -> Group:
        """Set the name, dialect, options and creation time of a group that begins now."""
        self.run("decide_group", group.id, name, self.now, dialect, _encode(options))
        for key in (group.id, (group.queue, group.name)):
            self.cache.groups.pop(key, None)
        found = self.group(group.queue, name)
        assert found is not None
        return found

    def save_group(self, group: Group) -> None:
        self.run("save_group", group.id, group.paused, _encode(group.options), group.dialect)

    def group_ids(self, queue: QueueId) -> list[GroupId]:
        found = self.cache.group_ids.get(queue)
        if found is None:
            found = self.cache.group_ids[queue] = [row[0] for row in self.all("groups_of", queue)]
        return found

    def in_the_making(self, queue: QueueId) -> list[GroupId]:
        """Return the groups of a queue that do not yet have a cursor for every lane."""
        found = self.cache.making.get(queue)
        if found is None:
            rows = self.all("making_of_queue", queue)
            found = self.cache.making[queue] = [row[0] for row in rows]
        return found

    def make_cursors(self, group: Group, limit: int) -> None:
        """Create the missing cursors of a group for the next lanes, up to a limit."""
        assert group.made is not None
        start = group.options.start
        kind, time = (start, 0) if isinstance(start, str) else ("time", start)
        ordered = int(group.rules.ordering == "ordered")
        self.flush()
        self.run("make_cursors", group.id, group.queue, *group.made, limit, kind, time, ordered)
        end = self.one("slice_end", group.queue, *group.made, limit - 1)
        self.save_made(group, None if end is None else (end[0], end[1]))
        self.cache.alone.pop(group.id, None)
        self.cache.work_from.pop(group.id, None)
        self.cache.work_ahead.pop(group.id, None)

    def save_made(self, group: Group, made: tuple[int, int] | None) -> None:
        group.made = made
        self.run("save_making", group.id, *(made or (None, None)))
        self.cache.making.pop(group.queue, None)

    # dead letters and stages

    def add_dead(self, rows: Iterable[DeadRow], sealed: bool = False) -> None:
        for row in rows:
            self.run("add_dead", *dead_columns(row, sealed))

    def dead(self, statement: str, *args: Any) -> list[DeadRow]:
        return [to_dead(row) for row in self.all(statement, *args)]

    def stage(self, stage: str) -> list[Stage]:
        return [Stage(*row) for row in self.all("stage", stage)]
