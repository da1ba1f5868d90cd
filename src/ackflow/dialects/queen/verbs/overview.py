"""Counts for all groups together, for lists with one line for each queue."""

from msgspec import Struct

from .... import ranges
from ....broker.core.cursors import hidden_copies_in
from ....broker.core.topology import find_queue
from ....clock import SECOND
from ....ranges import Ranges
from ....store.records import LEASED, Lane, Partition, Queue
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
    queue: Queue
    partitions: list[PartitionView]
    groups: list[str]

    @property
    def figures(self) -> MessageCounts:
        total = MessageCounts()
        for view in self.partitions:
            total.add(view.figures)
        return total


def queue_view(tx: Tx, name: str) -> QueueView:
    return _view(tx, find_queue(tx, name))


def queue_views(tx: Tx) -> list[QueueView]:
    return [_view(tx, queue) for queue in tx.queues()]


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
    groups = [group.name for group in tx.groups(queue.id)]
    open = _open(tx, queue)
    dead: dict[int, Ranges] = {}
    for id, first, stop in tx.all("dead_runs", queue.id):
        dead.setdefault(id, []).extend((first, stop))
    views = {home.id: PartitionView(home, MessageCounts()) for home in tx.partitions(queue.id)}
    for lane in tx.lanes(queue.id):
        view = views[lane.partition]
        died = dead.get(lane.id, [])
        figures = _figures(tx, lane, open.get(lane.id, _Open()), died, bool(groups))
        view.figures.add(figures)
        _date(tx, view, lane)
    return QueueView(queue, list(views.values()), groups)


def _open(tx: Tx, queue: Queue) -> dict[int, _Open]:
    found: dict[int, _Open] = {}
    for lane, lo, hi, packed, state, failures in tx.all("claims_of_queue", queue.id):
        which = [lo, hi] if packed is None else ranges.unpack(packed)
        one = found.setdefault(lane, _Open())
        one.left = ranges.union(one.left, which)
        if state == LEASED:
            one.held = ranges.union(one.held, which)
        elif failures:
            one.failed = ranges.union(one.failed, which)
    for id, group_id, next in tx.all("unread_of_queue", queue.id):
        lane = tx.lane(id)
        assert lane is not None
        copies = hidden_copies_in(tx, lane, group_id, next, lane.head)
        one = found.setdefault(id, _Open())
        one.left = ranges.union(one.left, ranges.difference([next, lane.head], copies))
    return found


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


def _date(tx: Tx, view: PartitionView, lane: Lane) -> None:
    first = tx.created_at(lane.id, lane.base) if lane.base < lane.head else None
    if first is not None:
        view.oldest_at = min(first, view.oldest_at or first)
        view.newest_at = max(lane.last_at, view.newest_at or 0)
    for cursor in tx.cursors_of_lane(lane.id):
        view.consumed += cursor.consumed
        view.last_at = max(view.last_at or 0, cursor.last_at or 0) or None
