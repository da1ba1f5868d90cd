"""The window of a queue: a partition is handed out once nothing was pushed to it for a while."""

from ...clock import micros
from ...store.records import Cursor, Group, Queue
from ...store.tx import Tx
from .topology import cursor_for


def next_work(
    tx: Tx, queue: Queue, group: Group, partition: int | None
) -> tuple[Cursor | None, bool]:
    """The lane to serve next, and whether it is the only one of the group with work.

    In a queue with a window, of the partitions whose last message is old enough. While the group is
    in the making, lanes that would come first may have no cursor yet: then there is none.
    """
    if group.made is not None and partition is not None:
        for lane in tx.lanes_in(partition):
            cursor_for(tx, group, lane)
    found = _next_work(tx, queue, group, partition)
    cursor = found[0]
    if (
        group.made is not None
        and cursor is not None
        and partition is None
        and may_have_more(group)
        and (cursor.served or (cursor.priority, cursor.lane) > group.made)
    ):
        return None, False
    return found


def may_have_more(group: Group) -> bool:
    """Whether lanes of which a group has no cursor yet may have something for it."""
    return group.made is not None and group.options.start != "new"


def _next_work(
    tx: Tx, queue: Queue, group: Group, partition: int | None
) -> tuple[Cursor | None, bool]:
    if not queue.options.window_seconds:
        return tx.next_work(group.id, partition)
    tx.flush()
    since = tx.now - micros(queue.options.window_seconds)
    lane = tx.value("quiet_work", group.id, partition, since)
    return (None if lane is None else tx.cursor(lane, group.id)), False


def quiet_time(tx: Tx, queue: Queue, group: Group) -> int | None:
    """When the next partition with something to hand out will be old enough."""
    window = micros(queue.options.window_seconds)
    last = tx.value("quiet_time", group.id, tx.now - window)
    return None if last is None else int(last) + window
