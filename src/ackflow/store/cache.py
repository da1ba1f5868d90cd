"""Records that the writer keeps between transactions.

The cache is dropped when another process has written to the database and when a transaction is rolled
back. Therefore a verb may change a cached record before its transaction has committed.
"""

from collections import OrderedDict, deque

from ..ids import GroupId, LaneId, LeaseId, PartitionId, QueueId
from .records import DUE, Body, Claim, Cursor, Group, Lane, Lease, Partition, Queue, Segment

MAX_CURSORS = 50_000
MAX_LEASES = 1_000
MAX_SEEN = 10_000
SEGMENTS_KEPT = 4
MAX_BODY_BYTES = 8 * 1024 * 1024
BODY_COST = 800  # bytes that a body takes beside its payloads


class Cache:
    def __init__(self) -> None:
        self.tick = 0
        self.crowded = False  # it has more records than it should
        self.queues: dict[QueueId, Queue] = {}
        self.queue_ids: dict[str, QueueId] = {}
        self.partitions: dict[tuple[QueueId, str] | PartitionId, Partition] = {}
        self.lanes: dict[tuple[PartitionId, int] | LaneId, Lane] = {}
        self.groups: dict[tuple[QueueId, str] | GroupId, Group] = {}
        self.group_ids: dict[QueueId, list[GroupId]] = {}
        self.cursors: dict[tuple[LaneId, GroupId], Cursor] = {}
        self.segments: dict[LaneId, deque[Segment]] = {}  # by lane, some last read or written
        self.leases: dict[int, tuple[Lease, list[Claim]]] = {}  # live ones, by token
        self.next_times: dict[GroupId, int] = {}  # by group, no claim of it has a time before this
        # By group, no lane with work comes before this (priority, served); those asked for last come
        # last. A change of a cursor that is not written through `Cursors` must drop it.
        self.work_from: dict[GroupId, tuple[int, int]] = {}
        self.alone: dict[
            GroupId, LaneId
        ] = {}  # by group, the one lane with work if there is just one
        self.nothing_due: set[tuple[LaneId, GroupId]] = set()  # (lane, group) without a due claim
        self.gone_after: dict[LaneId, dict[GroupId, tuple[int, int]]] = {}  # by lane and group
        self.making: dict[
            QueueId, list[GroupId]
        ] = {}  # by queue, groups without a cursor of every lane
        self.room: dict[QueueId, int] = {}  # by limited queue, how many messages it takes at least
        self.windowed: set[GroupId] = set()  # groups with a window, of those that were read
        self.in_window: dict[
            GroupId, int
        ] = {}  # by group with a window, how many messages are in it
        self.room_known: set[GroupId] = set()  # of these, by group, it is exactly as much
        self.last_lease: LeaseId | None = None  # the highest id given, once it was read
        self.halted: bool | None = None  # whether hand-outs are off everywhere, once it was read
        # By group, consumers and the times of their first and last pop; stays.
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
        self.last_lease = None
        self.halted = None
        self._tokens.clear()
        self._bodies.clear()
        self._bytes = 0

    def keep_cursor(self, cursor: Cursor) -> None:
        self.cursors[cursor.lane, cursor.group_id] = cursor
        self.crowded = self.crowded or len(self.cursors) > MAX_CURSORS

    def keep_lane(self, lane: Lane) -> None:
        self.lanes[lane.id] = self.lanes[lane.partition, lane.priority] = lane
        self.crowded = self.crowded or len(self.lanes) > 2 * MAX_CURSORS

    def shrink(self) -> None:
        """Forget the records of lanes; called between transactions when it is crowded."""
        self.crowded = False
        self.cursors.clear()
        self.segments.clear()
        self.nothing_due.clear()
        self.gone_after.clear()
        self.lanes.clear()
        self.partitions.clear()

    def record_seen(self, group_id: GroupId, consumer: str, now: int) -> None:
        """Remember when a consumer asked; what was long ago is forgotten now and then."""
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
            kept.appendleft(segment)  # most often asked for is the last one

    def segment(self, lane: LaneId, sequence: int) -> Segment | None:
        """The segment that holds a sequence, if it was read or written lately."""
        for segment in self.segments.get(lane, ()):
            if segment.first <= sequence < segment.first + segment.count:
                return segment
        return None

    def note_claim(self, claim: Claim) -> None:
        """Keep what is known of times and due claims true when a claim is written."""
        if claim.state == DUE:
            self.nothing_due.discard((claim.lane, claim.group_id))
        elif claim.at is not None and claim.at < self.next_times.get(claim.group_id, 0):
            self.next_times[claim.group_id] = claim.at

    def keep_lease(self, lease: Lease, claims: list[Claim]) -> None:
        """Keep a live lease with its claims, exactly as they are stored."""
        if len(self.leases) >= MAX_LEASES:
            self.forget_leases()
        self.leases[lease.token] = lease, claims
        self._tokens[lease.id] = lease.token

    def forget_leases(self) -> None:
        self.leases.clear()
        self._tokens.clear()

    def forget_lease(self, id: LeaseId | None) -> None:
        """Forget a lease before it, or a claim of it, is changed."""
        if id is not None and (token := self._tokens.pop(id, None)) is not None:
            del self.leases[token]

    def body(self, lane: LaneId, first: int) -> Body | None:
        found = self._bodies.get((lane, first))
        if found is None:
            return None
        self._bodies.move_to_end((lane, first))
        return found[0]

    def keep_body(self, lane: LaneId, first: int, body: Body) -> None:
        """Keep the payloads of a segment; (lane, first) is never given to another one."""
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
