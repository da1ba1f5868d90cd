"""Capacity: how many messages of a queue are unsettled, and whether `max_size` allows more."""

from collections.abc import Callable, Mapping

from ... import ranges
from ...errors import QueueFull
from ...ids import LaneId
from ...ranges import Ranges
from ...store.records import Queue
from ...store.tx import Tx
from .cursors import hidden_copies_in
from .topology import make_all_cursors


def make_room(tx: Tx, wanted: Mapping[str, int], write: Callable[[], None] = lambda: None) -> None:
    """Reserve capacity for messages in queues with a limit, or raise QueueFull for all of them.

    The free capacity is cached between transactions (`tx.cache.room`). A push reduces it; any other
    change that may reduce it drops the cached value. In a queue with one group, settling increases
    it, so that it is exact; otherwise the queue is counted again when it seems full. `write` is
    called before the count, to write messages that were already accepted.
    """
    limited = [(queue, n) for name, n in wanted.items() if (queue := _limited(tx, name))]
    for queue, n in limited:
        if n > tx.cache.room.get(queue.id, -1):
            most = queue.options.max_size or 0
            write()
            tx.flush()
            if n > tx.cache.room.get(queue.id, -1) and not _is_known(tx, queue):
                _count_again(tx, queue, most)
            if n > tx.cache.room[queue.id]:
                raise QueueFull(
                    f"queue {queue.name!r} may hold {most:,} messages and has "
                    f"{most - tx.cache.room[queue.id]:,}; nothing was pushed",
                    queue=queue.name,
                )
    for queue, n in limited:
        tx.cache.room[queue.id] -= n


def _is_known(tx: Tx, queue: Queue) -> bool:
    groups = tx.group_ids(queue.id)
    return queue.id in tx.cache.room and len(groups) == 1 and groups[0] in tx.cache.room_known


def _count_again(tx: Tx, queue: Queue, most: int) -> None:
    tx.cache.room[queue.id] = most - backlog(tx, queue)
    groups = tx.group_ids(queue.id)
    tx.cache.room_known.difference_update(groups)
    if len(groups) == 1:
        tx.cache.room_known.add(groups[0])
        for cursor in tx.cache.cursors.values():
            if cursor.group_id == groups[0]:
                cursor.counted = cursor.settled


def backlog(tx: Tx, queue: Queue) -> int:
    """Count the messages that some group has not settled; without groups, all stored ones."""
    for group_id in tx.in_the_making(queue.id):
        if (group := tx.group_by_id(group_id)) is not None:
            make_all_cursors(tx, group)
    tx.flush()
    left: dict[LaneId, list[tuple[int, int]]] = {}
    if not tx.group_ids(queue.id):
        return sum(lane.head - lane.base - lane.gone for lane in tx.lanes(queue.id))
    for lane, lo, hi, packed, *_ in tx.all("claims_of_queue", queue.id):
        _add(left, lane, [lo, hi] if packed is None else ranges.unpack(packed))
    for id, group_id, next in tx.all("unread_of_queue", queue.id):
        found = tx.lane(id)
        assert found is not None
        copies = hidden_copies_in(tx, found, group_id, next, found.head)
        _add(left, id, ranges.difference([next, found.head], copies))
    return sum(_count(tx, lane, _merged(pairs)) for lane, pairs in left.items())


def _limited(tx: Tx, name: str) -> Queue | None:
    queue = tx.queue(name)
    return queue if queue is not None and queue.options.max_size is not None else None


def _add(left: dict[LaneId, list[tuple[int, int]]], lane: LaneId, which: Ranges) -> None:
    left.setdefault(lane, []).extend(ranges.pairs(which))


def _merged(pairs: list[tuple[int, int]]) -> Ranges:
    """Merge ranges in any order into a range set."""
    found: Ranges = []
    for lo, hi in sorted(pairs):
        if found and lo <= found[-1]:
            found[-1] = max(found[-1], hi)
        else:
            found += (lo, hi)
    return found


def _count(tx: Tx, lane: LaneId, which: Ranges) -> int:
    found = tx.lane(lane)
    gone = tx.gone(found, which[0], which[-1]) if found and which else []
    return ranges.count(ranges.difference(which, gone) if gone else which)
