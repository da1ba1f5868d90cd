"""Records that the writer keeps between transactions.

The cache is cleared when another process has written to the database and when a transaction is
rolled back. Therefore a verb may change a cached record before its transaction has committed. A
store with a version for each queue clears only the records of the queue that was changed.
"""

from bisect import bisect_left
from collections import OrderedDict, deque

from msgspec import Struct

from ..ids import GroupId, LaneId, LeaseId, PartitionId, QueueId
from .records import (
    DUE,
    WAITING,
    Binding,
    Body,
    Claim,
    Cursor,
    Declaration,
    Exchange,
    Group,
    Lane,
    Lease,
    Partition,
    Queue,
    Segment,
    Sweep,
)

MAX_CURSORS = 50_000
MAX_LEASES = 1_000
MAX_SEEN = 10_000
MAX_SORTED_OUT = 5_000  # with more records, all of them are cleared instead of those of one queue
SEGMENTS_KEPT = 4
MAX_LANES_AHEAD = 1_000
MAX_AHEAD = 256
WHOLE_GROUP = PartitionId(0)  # the key of a count over all partitions
MAX_BODY_BYTES = 8 * 1024 * 1024
BODY_COST = 800  # bytes of memory that a body takes in addition to its payloads


class WorkAhead(Struct, array_like=True):
    """The next lanes of a group with work, as (priority, served, lane), in the order of service.

    Lanes after `end` are missing; without it none is. Entries of lanes that have changed since are
    outdated. `step` is how many were read at once.
    """

    lanes: list[tuple[int, int, LaneId]]
    end: tuple[int, int, LaneId] | None
    step: int

    def add(self, key: tuple[int, int, LaneId]) -> None:
        """Add a lane that has work now, if its place is among the known ones."""
        if self.end is not None and key > self.end:
            return
        at = bisect_left(self.lanes, key)
        if self.lanes[at : at + 1] != [key]:
            self.lanes.insert(at, key)
            if len(self.lanes) > MAX_AHEAD:
                del self.lanes[MAX_AHEAD // 2 :]
                self.end = self.lanes[-1]


class Cache:
    def __init__(self) -> None:
        self.tick = 0
        self.crowded = False  # it holds more records than its limits allow
        self.of_queues: set[QueueId] = set()  # queues of which something may be cached
        self.queues: dict[QueueId, Queue] = {}
        self.queue_ids: dict[str, QueueId] = {}
        self.partitions: dict[tuple[QueueId, str] | PartitionId, Partition] = {}
        self.lanes: dict[tuple[PartitionId, int] | LaneId, Lane] = {}
        self.groups: dict[tuple[QueueId, str] | GroupId, Group] = {}
        self.group_ids: dict[QueueId, list[GroupId]] = {}
        self.cursors: dict[tuple[LaneId, GroupId], Cursor] = {}
        self.segments: dict[LaneId, deque[Segment]] = {}  # by lane, the most recently used
        # By lane, the segments that were read together with one that was needed, in order.
        self.ahead: dict[LaneId, deque[Segment]] = {}
        self.leases: dict[int, tuple[Lease, list[Claim]]] = {}  # live ones, by token
        self.next_times: dict[GroupId, int] = {}  # by group, a lower bound of its claims' times
        # By group, a lower bound of (priority, served) of its lanes with work; the most recently
        # used group is last. Code that changes a cursor without `Cursors` must remove the entry.
        self.work_from: dict[GroupId, tuple[int, int]] = {}
        self.alone: dict[GroupId, LaneId] = {}  # by group, its lane with work, if there is just one
        self.work_ahead: dict[GroupId, WorkAhead] = {}
        self.lanes_in: dict[PartitionId, list[LaneId]] = {}
        self.nothing_due: set[tuple[LaneId, GroupId]] = set()  # (lane, group) without a due claim
        self.nothing_returned: set[tuple[LaneId, GroupId]] = set()  # without one that waits again
        # How many leased claims a group has in a partition, counted from when it had none.
        self.leased: dict[tuple[GroupId, PartitionId], int] = {}
        # By lane and group, a sequence and how many messages are removed from it on.
        self.gone_after: dict[LaneId, dict[GroupId, tuple[int, int]]] = {}
        # By queue, groups that do not yet have a cursor for every lane.
        self.making: dict[QueueId, list[GroupId]] = {}
        self.room: dict[QueueId, int] = {}  # by queue with max_size, at least so many may be pushed
        self.windowed: set[GroupId] = set()  # cached groups with max_ack_pending
        self.in_window: dict[GroupId, int] = {}  # of these, how many messages count against it
        self.room_known: set[GroupId] = set()  # groups for whose queue `room` is exact
        self.exchanges: dict[str, Exchange | None] = {}
        self.bindings: dict[str, list[Binding]] = {}  # by exchange, those from it
        self.routes: dict[tuple[str, str], tuple[str, ...]] = {}  # queues by exchange and key
        self.declarations: dict[QueueId, Declaration | None] = {}
        self.expiring: dict[LaneId, bool] = {}  # whether messages have a time to live of their own
        self.last_lease: LeaseId | None = None  # the highest id assigned; None: not read yet
        # By queue, sweeps to be applied to a lane before it is used, oldest first; None: not read yet.
        self.sweeps: dict[QueueId, list[Sweep]] | None = None
        self.halted: bool | None = None  # whether delivery is paused globally; None: not read yet
        # By group, consumers and the times of their first and last pop; `clear` keeps it.
        self.seen: dict[GroupId, dict[str, tuple[int, int]]] = {}
        self._tokens: dict[LeaseId, int] = {}
        self._bodies: OrderedDict[tuple[LaneId, int], tuple[Body, int]] = OrderedDict()
        self._bytes = 0

    def clear(self) -> None:
        self.of_queues.clear()
        self.queues.clear()
        self.queue_ids.clear()
        self.partitions.clear()
        self.lanes.clear()
        self.groups.clear()
        self.group_ids.clear()
        self.cursors.clear()
        self.segments.clear()
        self.ahead.clear()
        self.leases.clear()
        self.next_times.clear()
        self.work_from.clear()
        self.alone.clear()
        self.work_ahead.clear()
        self.lanes_in.clear()
        self.nothing_due.clear()
        self.nothing_returned.clear()
        self.leased.clear()
        self.gone_after.clear()
        self.making.clear()
        self.room.clear()
        self.windowed.clear()
        self.in_window.clear()
        self.room_known.clear()
        self.forget_exchanges()
        self.declarations.clear()
        self.expiring.clear()
        self.last_lease = None
        self.sweeps = None
        self.halted = None
        self._tokens.clear()
        self._bodies.clear()
        self._bytes = 0

    def clear_queue(self, queue: QueueId) -> None:
        """Clear what another process may have changed in a queue; the rest remains.

        Records of queues and groups remain, and names of partitions: a transaction that changes
        those changes the version of the whole schema.
        """
        if len(self.cursors) + len(self.lanes) + len(self.nothing_due) > MAX_SORTED_OUT:
            self.clear()
            return
        lanes, groups = self.lanes, self.groups
        ours = {lane.id for lane in lanes.values() if lane.queue != queue}
        our_groups = {group.id for group in groups.values() if group.queue != queue}
        for pair in [pair for pair in self.cursors if pair[0] not in ours]:
            del self.cursors[pair]
        self.nothing_due = {pair for pair in self.nothing_due if pair[0] in ours}
        self.nothing_returned = {pair for pair in self.nothing_returned if pair[0] in ours}
        our_partitions = {lane.partition for lane in lanes.values() if lane.queue != queue}
        for partition in [one for one in self.lanes_in if one not in our_partitions]:
            del self.lanes_in[partition]
        for key in [key for key in self.leased if key[0] not in our_groups]:
            del self.leased[key]
        for by_lane in (self.segments, self.ahead, self.gone_after, self.expiring):
            for lane in [lane for lane in by_lane if lane not in ours]:
                del by_lane[lane]
        for by_group in (
            self.next_times, self.work_from, self.alone, self.work_ahead, self.in_window,
        ):  # fmt: skip
            for group_id in [group_id for group_id in by_group if group_id not in our_groups]:
                del by_group[group_id]
        self.room_known &= our_groups
        for lease, _ in [
            kept for kept in self.leases.values() if kept[0].group_id not in our_groups
        ]:
            self.forget_lease(lease.id)
        for place in [place for place, lane in lanes.items() if lane.queue == queue]:
            del lanes[place]
        self.room.pop(queue, None)
        self.making.pop(queue, None)
        if self.sweeps and queue in self.sweeps:
            self.sweeps = None

    def undo_in_queue(self, queue: QueueId) -> None:
        """Clear a queue after a transaction that was dropped; it may have kept payloads."""
        lanes = self.lanes
        others = {lane.id for lane in lanes.values() if lane.queue != queue}
        for lane, first in [place for place in self._bodies if place[0] not in others]:
            self.forget_body(lane, first)
        self.clear_queue(queue)

    def forget_exchanges(self) -> None:
        self.exchanges.clear()
        self.bindings.clear()
        self.routes.clear()

    def keep_cursor(self, cursor: Cursor) -> None:
        self.cursors[cursor.lane, cursor.group_id] = cursor
        self.crowded = self.crowded or len(self.cursors) > MAX_CURSORS

    def keep_queue(self, queue: Queue) -> None:
        self.of_queues.add(queue.id)
        self.queues[queue.id] = queue
        self.queue_ids[queue.name] = queue.id

    def keep_lane(self, lane: Lane) -> None:
        self.of_queues.add(lane.queue)
        self.lanes[lane.id] = self.lanes[lane.partition, lane.priority] = lane
        known = self.lanes_in.get(lane.partition)
        if known is not None and lane.id not in known:
            known.append(lane.id)
        self.crowded = self.crowded or len(self.lanes) > 2 * MAX_CURSORS

    def shrink(self) -> None:
        """Evict the records of lanes; called between transactions when the cache is crowded."""
        self.crowded = False
        self.cursors.clear()
        self.segments.clear()
        self.ahead.clear()
        self.lanes_in.clear()
        self.nothing_due.clear()
        self.nothing_returned.clear()
        self.leased.clear()
        self.gone_after.clear()
        self.lanes.clear()
        self.partitions.clear()

    def record_seen(self, group_id: GroupId, consumer: str, now: int) -> None:
        """Record the time of a pop by a consumer; above a limit the oldest half is evicted."""
        seen = self.seen.get(group_id)
        if seen is None:
            seen = self.seen[group_id] = {}
        known = seen.get(consumer)
        seen[consumer] = (known[0] if known else now), now
        if len(seen) > MAX_SEEN:
            old = sorted(seen, key=lambda name: seen[name][1])[: MAX_SEEN // 2]
            for name in old:
                del seen[name]

    def keep_segment(self, segment: Segment, new: bool = False) -> None:
        kept = self.segments.get(segment.lane)
        if kept is None:
            kept = self.segments[segment.lane] = deque(maxlen=SEGMENTS_KEPT)
        if new or segment not in kept:
            kept.appendleft(segment)  # the newest segment is read most often

    def segment(self, lane: LaneId, sequence: int) -> Segment | None:
        """Return the segment that contains a sequence, if it is cached."""
        for segment in self.segments.get(lane, ()):
            if segment.first <= sequence < segment.first + segment.count:
                return segment
        ahead = self.ahead.get(lane)
        while ahead and sequence >= ahead[0].stop:
            ahead.popleft()
        return ahead[0] if ahead and sequence >= ahead[0].first else None

    def keep_ahead(self, lane: LaneId, segments: list[Segment]) -> None:
        if len(self.ahead) >= MAX_LANES_AHEAD:
            self.ahead.clear()
        self.ahead[lane] = deque(segments)

    def forget_segments(self, lane: LaneId) -> None:
        """Evict the segments of a lane when one of them is dropped."""
        self.segments.pop(lane, None)
        self.ahead.pop(lane, None)

    def note_claim(self, claim: Claim) -> None:
        """Update the cached times and due claims when a claim is written."""
        if claim.state == DUE:
            self.nothing_due.discard((claim.lane, claim.group_id))
        elif claim.at is not None:
            if claim.state == WAITING and claim.returned:
                self.nothing_returned.discard((claim.lane, claim.group_id))
            if claim.at < self.next_times.get(claim.group_id, 0):
                self.next_times[claim.group_id] = claim.at

    def keep_lease(self, lease: Lease, claims: list[Claim]) -> None:
        """Cache a live lease with its claims, exactly as they are stored."""
        if len(self.leases) >= MAX_LEASES:
            self.forget_leases()
        self.leases[lease.token] = lease, claims
        self._tokens[lease.id] = lease.token

    def forget_leases(self) -> None:
        self.leases.clear()
        self._tokens.clear()

    def forget_lease(self, id: LeaseId | None) -> None:
        """Evict a lease before it, or one of its claims, is changed."""
        if id is not None and (token := self._tokens.pop(id, None)) is not None:
            del self.leases[token]

    def body(self, lane: LaneId, first: int) -> Body | None:
        found = self._bodies.get((lane, first))
        if found is None:
            return None
        self._bodies.move_to_end((lane, first))
        return found[0]

    def keep_body(self, lane: LaneId, first: int, body: Body) -> None:
        """Cache the payloads of a segment; (lane, first) is never reused for another segment."""
        size = len(body.data) + BODY_COST
        if size > MAX_BODY_BYTES // 2 or (lane, first) in self._bodies:
            return
        self._bodies[lane, first] = body, size
        self._bytes += size
        while self._bytes > MAX_BODY_BYTES:
            self._bytes -= self._bodies.popitem(last=False)[1][1]

    def forget_body(self, lane: LaneId, first: int) -> None:
        found = self._bodies.pop((lane, first), None)
        if found is not None:
            self._bytes -= found[1]
