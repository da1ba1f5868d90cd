"""Queues, groups, partitions and lanes: find them by name, and create them on first use."""

from collections.abc import Iterable

from ... import ranges, validate
from ...errors import GroupNotFound, NotFound, QueueNotFound
from ...ids import GroupId, LaneId, PartitionId
from ...options import QUEUE_MODE, UNDECIDED, Dialect, GroupOptions, initial_options
from ...store.records import Cursor, Group, Lane, Partition, Queue
from ...store.tx import Tx
from .cursors import hidden_copies_in, pass_over, sequence_at

LANES_AT_ONCE = 1_000
NO_LANE = -1, 0


def find_queue(tx: Tx, name: str) -> Queue:
    """Return an existing queue, or raise QueueNotFound."""
    found = tx.queue(validate.name(name, "queue"))
    if found is None:
        raise QueueNotFound(f"there is no queue {name!r}", queue=name)
    return found


def find_group(tx: Tx, queue: Queue, name: str) -> Group:
    """Return an existing group, or raise GroupNotFound."""
    found = tx.group(queue.id, validate.name(name, "group"))
    if found is None:
        raise GroupNotFound(no_group(queue.name, name))
    return found


def no_group(queue: str, name: str) -> str:
    """Return the error text for a group that does not exist."""
    if name == QUEUE_MODE:
        return f"queue {queue!r} was never popped without a group"
    return f"queue {queue!r} has no group {name!r}"


def find_partition(tx: Tx, queue: Queue, name: str) -> Partition:
    """Return an existing partition, or raise NotFound."""
    found = tx.partition(queue.id, validate.name(name, "partition"))
    if found is None:
        raise NotFound(f"queue {queue.name!r} has no partition {name!r}")
    return found


def queue_for(tx: Tx, name: str, dialect: Dialect = "native") -> Queue:
    """Return the queue with this name; a new one gets the initial options of its dialect."""
    return tx.queue(name) or tx.add_queue(name, initial_options(name, dialect))


def lane_for(tx: Tx, queue: Queue, partition: str, priority: int) -> Lane:
    """Return the lane of a partition at a priority; a new one gets a cursor for every group."""
    home = tx.partition(queue.id, partition) or tx.add_partition(queue.id, partition)
    lane = tx.lane_of(home.id, priority)
    if lane is None:
        lane = tx.add_lane(queue.id, home.id, priority)
        for group_id in tx.group_ids(queue.id):
            blocked = _is_blocked(tx, group_id, home.id)
            tx.add_cursor(Cursor(lane.id, group_id, home.id, priority, next=0, blocked=blocked))
    return lane


def _is_blocked(tx: Tx, group_id: GroupId, partition: PartitionId) -> bool:
    """Return whether the other lanes of a partition are blocked for a group.

    A partition whose lease yields is leased but not blocked.
    """
    cursors = (tx.cursor(lane.id, group_id) for lane in tx.lanes_in(partition))
    return next((cursor.blocked for cursor in cursors if cursor is not None), False)


def partitions_of_lanes(tx: Tx, lanes: Iterable[LaneId]) -> dict[LaneId, PartitionId]:
    """Return the partition of each lane; a lane that no longer exists is left out."""
    found = [tx.lane(lane) for lane in lanes]
    return {lane.id: lane.partition for lane in found if lane is not None}


def queues_of(tx: Tx, partitions: Iterable[PartitionId]) -> set[str]:
    """Return the names of the queues of these partitions."""
    homes = [tx.partition_by_id(partition) for partition in partitions]
    queues = [tx.queue_by_id(home.queue) for home in homes if home is not None]
    return {queue.name for queue in queues if queue is not None}


def group_for(
    tx: Tx, queue: Queue, name: str, dialect: str = "native", options: GroupOptions | None = None
) -> Group:
    """Return the group with this name; a new one starts as its options specify, in every lane.

    Its cursors are created in slices. A lane is changed only after every group has a cursor there
    (`complete_cursors`), so that each cursor starts at its position of when the group was created.
    """
    found = tx.group(queue.id, name)
    early = _undecided(tx, queue) if found is None else found if is_undecided(found) else None
    if early is not None and dialect != UNDECIDED:
        return _decide(tx, queue, early, name, dialect, options or GroupOptions())
    if found is None:
        found = tx.add_group(queue, name, dialect, options or GroupOptions())
        tx.cache.room.pop(queue.id, None)
        tx.save_made(found, NO_LANE)
        tx.make_cursors(found, LANES_AT_ONCE)
    return found


def is_undecided(group: Group) -> bool:
    return group.dialect == UNDECIDED


def _undecided(tx: Tx, queue: Queue) -> Group | None:
    """Return the group that upkeep created before the first consumer; it is the only group."""
    return next((group for group in tx.groups(queue.id) if is_undecided(group)), None)


def _decide(
    tx: Tx, queue: Queue, early: Group, name: str, dialect: str, options: GroupOptions
) -> Group:
    """Turn the undecided group into the first real one, which inherits its dead letters."""
    group = tx.decide_group(early, name, dialect, options)
    tx.cache.room.pop(queue.id, None)
    for cursor in tx.cursors_of_group(group.id) if options.start != "all" else ():
        lane = tx.lane(cursor.lane)
        assert lane is not None
        pass_over(tx, lane, cursor, first_for(tx, group, lane), "skipped")
    return group


def complete_cursors(tx: Tx, queue: Queue, lane: Lane) -> None:
    """Create the missing cursors of a lane before it changes."""
    for group_id in tx.in_the_making(queue.id):
        group = tx.group_by_id(group_id)
        assert group is not None
        cursor_for(tx, group, lane)


def cursor_for(tx: Tx, group: Group, lane: Lane) -> Cursor:
    """Return the cursor of a group in a lane of its queue; creates a missing one."""
    found = tx.cursor(lane.id, group.id)
    if found is None:
        start = first_for(tx, group, lane)
        hidden = ranges.count(hidden_copies_in(tx, lane, group.id, 0, start))
        ahead = ranges.count(hidden_copies_in(tx, lane, group.id, start, lane.head))
        found = Cursor(
            lane.id,
            group.id,
            lane.partition,
            lane.priority,
            next=start,
            ready=start < lane.head,
            blocked=_is_blocked(tx, group.id, lane.partition),
            skipped=start - hidden,
            hidden=hidden,
            copies=lane.copies - ahead,
        )
        tx.add_cursor(found)
    return found


def make_all_cursors(tx: Tx, group: Group) -> None:
    """Create all missing cursors of a group at once."""
    while group.made is not None:
        tx.make_cursors(group, LANES_AT_ONCE)


def make_more_cursors(tx: Tx, group_id: GroupId) -> bool:
    """Create some of the missing cursors of a group; returns whether more are missing."""
    group = tx.group_by_id(group_id)
    if group is not None and group.made is not None:
        tx.make_cursors(group, LANES_AT_ONCE)
        queue = tx.queue_by_id(group.queue)
        assert queue is not None
        tx.touched.add(queue.name)
    return group is not None and group.made is not None


def first_for(tx: Tx, group: Group, lane: Lane) -> int:
    """Return the first sequence of a lane that a new group reads."""
    start = group.options.start
    if start == "new":
        return lane.head
    if start == "all":
        return lane.base
    return sequence_at(tx, lane, start)
