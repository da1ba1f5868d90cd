"""Records that the writer keeps between transactions.

The cache is cleared when another process has written to the database and when a transaction is
rolled back. Therefore a verb may change a cached record before its transaction has committed.
"""

from collections import OrderedDict, deque

from ..ids import GroupId, LaneId, LeaseId, PartitionId, QueueId
from .records import (
    DUE,
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
SEGMENTS_KEPT = 4
MAX_BODY_BYTES = 8 * 1024 * 1024
BODY_COST = 800  # bytes of memory that a body takes in addition to its payloads


class Cache:
    def __init__(self) -> None:
        self.tick = 0
        self.crowded = False  # it holds more records than its limits allow
        self.queues: dict[QueueId, Queue] = {}
        self.queue_ids: dict[str, QueueId] = {}
        self.partitions: dict[tuple[QueueId, str] | PartitionId, Partition] = {}
        self.lanes: dict[tuple[PartitionId, int] | LaneId, Lane] = {}
        self.groups: dict[tuple[QueueId, str] | GroupId, Group] = {}
        self.group_ids: dict[QueueId, list[GroupId]] = {}
        self.cursors: dict[tuple[LaneId, GroupId], Cursor] = {}
        self.segments: dict[LaneId, deque[Segment]] = {}  # by lane, the most recently used
        self.leases: dict[int, tuple[Lease, list[Claim]]] = {}  # live ones, by token
        self.next_times: dict[GroupId, int] = {}  # by group, a lower bound of its claims' times
        # By group, a lower bound of (priority, served) of its lanes with work; the most recently
        # used group is last. Code that changes a cursor without `Cursors` must remove the entry.
        self.work_from: dict[GroupId, tuple[int, int]] = {}
        self.alone: dict[GroupId, LaneId] = {}  # by group, its lane with work, if there is just one
        self.nothing_due: set[tuple[LaneId, GroupId]] = set()  # (lane, group) without a due claim
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
        self.queues.clear()
        self.queue_ids.clear()
        self.partitions.clear()
        self.lanes.clear()
        self.groups.clear()
        self.group_ids.clear()
        self.cursors.clear()
        self.segments.clear()
        self.leases.clear()
        self.next_times.clear()
        self.work_from.clear()
        self.alone.clear()
        self.nothing_due.clear()
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

    def forget_exchanges(self) -> None:
        self.exchanges.clear()
        self.bindings.clear()
        self.routes.clear()

    def keep_cursor(self, cursor: Cursor) -> None:
        self.cursors[cursor.lane, cursor.group_id] = cursor
        self.crowded = self.crowded or len(self.cursors) > MAX_CURSORS

    def keep_lane(self, lane: Lane) -> None:
        self.lanes[lane.id] = self.lanes[lane.partition, lane.priority] = lane
        self.crowded = self.crowded or len(self.lanes) > 2 * MAX_CURSORS

    def shrink(self) -> None:
        """Evict the records of lanes; called between transactions when the cache is crowded."""
        self.crowded = False
        self.cursors.clear()
        self.segments.clear()
        self.nothing_due.clear()
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
        return None

    def note_claim(self, claim: Claim) -> None:
        """Update the cached times and due claims when a claim is written."""
        if claim.state == DUE:
            self.nothing_due.discard((claim.lane, claim.group_id))
        elif claim.at is not None and claim.at < self.next_times.get(claim.group_id, 0):
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
