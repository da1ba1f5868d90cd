"""Counts for all groups together, for lists with one line for each queue."""

from collections.abc import Callable

from msgspec import Struct

from .... import ranges
from ....broker.core.cursors import hidden_copies_in
from ....broker.core.topology import find_queue
from ....clock import SECOND
from ....ids import LaneId
from ....ranges import Ranges
from ....store.records import LEASED, Cursor, Lane, Partition, Queue
from ....store.tx import Tx


class MessageCounts(Struct, rename="camel"):
    """Stored messages by status.

    Processing: some group holds it; pending: some group has not settled it; failed: pending ones
    that failed before; completed: every group has settled it, and it is a dead letter in none.
    """

    total: int = 0
    pending: int = 0
    processing: int = 0
    completed: int = 0
    failed: int = 0
    dead_letter: int = 0

    def add(self, other: "MessageCounts") -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class PartitionView(Struct):
    """One partition; `oldest_at` and `newest_at` are those of its stored messages."""

    partition: Partition
    figures: MessageCounts
    oldest_at: int | None = None
    newest_at: int | None = None
    consumed: int = 0
    last_at: int | None = None


class QueueView(Struct):
    """A queue with the number of its partitions and the counts of all of them."""

    queue: Queue
    partitions: int
    figures: MessageCounts


def queue_view(tx: Tx, name: str, limit: int, offset: int) -> tuple[QueueView, list[PartitionView]]:
    """Return a queue, and one page of its partitions."""
    queue = find_queue(tx, name)
    return _view(tx, queue), partition_views(tx, queue, limit, offset)


def queue_views(tx: Tx) -> list[QueueView]:
    return [_view(tx, queue) for queue in tx.queues()]


def partition_page(
    tx: Tx, wanted: Callable[[Queue], bool], limit: int, offset: int
) -> list[tuple[str, PartitionView]]:
    """Return one page of the partitions of several queues, each with the name of its queue."""
    found: list[tuple[str, PartitionView]] = []
    for queue in filter(wanted, tx.queues()):
        n = tx.value("count_partitions", queue.id)
        if offset < n and len(found) < limit:
            views = partition_views(tx, queue, limit - len(found), offset)
            found += [(queue.name, view) for view in views]
        offset = max(0, offset - n)
    return found


def pushed_by_time(
    tx: Tx, queues: list[str], since: int, until: int, seconds: int
) -> dict[int, int]:
    """Count stored messages by the interval in which they were pushed."""
    width, found = seconds * SECOND, dict[int, int]()
    for name in queues:
        for slot, n in tx.all("pushed_by_time", find_queue(tx, name).id, since, until, width):
            found[slot * width] = found.get(slot * width, 0) + n
    return dict(sorted(found.items()))


class _Open(Struct):
    """What is unsettled in one lane in any group, and what of it is leased or failed."""

    left: Ranges = []
    held: Ranges = []
    failed: Ranges = []


def _view(tx: Tx, queue: Queue) -> QueueView:
    """Count over all lanes in SQL, and correct the lanes of which positions do not tell all."""
    groups = tx.group_ids(queue.id)
    open, dead = _claimed(tx, queue), _dead(tx, queue)
    total, left = tx.all("queue_left", queue.id)[0]
    if not groups:
        left = total
    figures = MessageCounts(total, left, completed=total - left)
    odd = {row[0] for row in tx.all("odd_lanes", queue.id)}
    for id in sorted(odd | open.keys() | dead.keys()):
        lane = tx.lane(id)
        if lane is None:
            continue
        cursors = tx.cursors_of_lane(id)
        counted = lane.head - min((cursor.next for cursor in cursors), default=lane.head)
        stored = lane.head - lane.base - lane.gone
        if not groups:
            counted = stored
        figures.add(MessageCounts(-stored, -counted, completed=counted - stored))
        one = _with_unread(tx, lane, cursors, open.get(id, _Open()))
        figures.add(_figures(tx, lane, one, dead.get(id, []), bool(groups)))
        tx.cache.shrink()  # a read-only transaction keeps what it has read
    return QueueView(queue, tx.value("count_partitions", queue.id), figures)


def partition_views(tx: Tx, queue: Queue, limit: int, offset: int) -> list[PartitionView]:
    """Return one page of the partitions of a queue, in the order of their creation."""
    groups = bool(tx.group_ids(queue.id))
    open, dead = _claimed(tx, queue), _dead(tx, queue)
    found = []
    for row in tx.all("partition_page", queue.id, limit, offset):
        view = PartitionView(Partition(*row), MessageCounts())
        for lane in tx.lanes_in(view.partition.id):
            cursors = tx.cursors_of_lane(lane.id)
            one = _with_unread(tx, lane, cursors, open.get(lane.id, _Open()))
            view.figures.add(_figures(tx, lane, one, dead.get(lane.id, []), groups))
            _date(tx, view, lane, cursors)
        found.append(view)
        tx.cache.shrink()
    return found


def _dead(tx: Tx, queue: Queue) -> dict[LaneId, Ranges]:
    dead: dict[LaneId, Ranges] = {}
    for id, first, stop in tx.all("dead_runs", queue.id):
        dead.setdefault(id, []).extend((first, stop))
    return dead


def _claimed(tx: Tx, queue: Queue) -> dict[LaneId, _Open]:
    found: dict[LaneId, _Open] = {}
    for lane, lo, hi, packed, state, failures in tx.all("claims_of_queue", queue.id):
        which = [lo, hi] if packed is None else ranges.unpack(packed)
        one = found.setdefault(lane, _Open())
        one.left = ranges.union(one.left, which)
        if state == LEASED:
            one.held = ranges.union(one.held, which)
        elif failures:
            one.failed = ranges.union(one.failed, which)
    return found


def _with_unread(tx: Tx, lane: Lane, cursors: list[Cursor], claimed: _Open) -> _Open:
    """Add to what is claimed in a lane what some group has not read."""
    left = claimed.left
    for cursor in cursors:
        if cursor.next < lane.head:
            copies = hidden_copies_in(tx, lane, cursor.group_id, cursor.next, lane.head)
            left = ranges.union(left, ranges.difference([cursor.next, lane.head], copies))
    return _Open(left, claimed.held, claimed.failed)


def _figures(tx: Tx, lane: Lane, open: _Open, dead: Ranges, groups: bool) -> MessageCounts:
    total = lane.head - lane.base - lane.gone
    if not groups:
        return MessageCounts(total, total, dead_letter=ranges.count(dead))
    held = ranges.count(open.held)
    gone = tx.gone(lane, lane.base, lane.head)
    left = ranges.count(ranges.difference(open.left, gone))
    failed = ranges.count(ranges.difference(open.failed, open.held))
    # A dead letter may outlive its message, and another group may still have to read it.
    stored = ranges.difference(ranges.clip(dead, lane.base, lane.head), gone)
    died = ranges.count(ranges.difference(stored, open.left))
    completed = max(0, total - left - died)
    return MessageCounts(total, left - held, held, completed, failed, ranges.count(dead))


def _date(tx: Tx, view: PartitionView, lane: Lane, cursors: list[Cursor]) -> None:
    first = tx.created_at(lane.id, lane.base) if lane.base < lane.head else None
    if first is not None:
        view.oldest_at = min(first, view.oldest_at or first)
        view.newest_at = max(lane.last_at, view.newest_at or 0)
    for cursor in cursors:
        view.consumed += cursor.consumed
        view.last_at = max(view.last_at or 0, cursor.last_at or 0) or None
