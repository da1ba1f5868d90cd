"""The window of a queue: a partition is handed out once nothing was pushed to it for a while."""

from ..clock import micros
from ..store.rows import Cursor, Group, Queue
from ..store.tx import Tx


def quiet_work(tx: Tx, queue: Queue, group: Group, partition: int | None) -> Cursor | None:
    """The lane to serve next among the partitions whose last message is old enough."""
    tx.flush()
    since = tx.now - micros(queue.options.window_seconds)
    lane = tx.value("quiet_work", group.id, partition, since)
    return None if lane is None else tx.cursor(lane, group.id)


def quiet_time(tx: Tx, queue: Queue, group: Group) -> int | None:
    """When the next partition with something to hand out will be old enough."""
    window = micros(queue.options.window_seconds)
    last = tx.value("quiet_time", group.id, tx.now - window)
    return None if last is None else int(last) + window
