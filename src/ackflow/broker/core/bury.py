"""Dead letters are made here: a copy of the message, with why, in the same transaction."""

from ...errors import StorageFailed
from ...options import Kind
from ...ranges import Ranges, count
from ...store.counters import Died
from ...store.records import Cursor, DeadRow, Group, Lane
from ...store.tx import Tx
from .handout import payload, rest_of


def bury(
    tx: Tx,
    group: Group,
    lane: Lane,
    cursor: Cursor,
    which: Ranges,
    kind: Kind,
    reason: str | None,
    *,
    deliveries: int,
    failures: int,
    at: int,
    error: str | None = None,
    consumer: str | None = None,
) -> int:
    """Copy messages to the dead letters of a group and count them; the caller drops the claim."""
    rows = []
    for segment, first, stop in tx.segments_over(lane.id, which):
        body = tx.body(segment)
        for sequence in range(first, stop):
            index = sequence - segment.first
            rows.append(
                DeadRow(
                    0, lane.queue, group.id, lane.id, sequence, kind, reason, error, deliveries, failures,
                    segment.created_at, at, consumer, True, payload(body, index),
                    rest_of(body, index),
                )
            )  # fmt: skip
    if len(rows) != count(which):
        raise StorageFailed("the file is damaged: a message to be dead-lettered is missing")
    queue = tx.queue_by_id(lane.queue)
    tx.add_dead(rows, queue is not None and queue.options.encrypted)
    _tell(tx, group, lane, which, kind, reason, deliveries, failures, consumer)
    cursor.dead += len(rows)
    tx.counted(cursor)
    return len(rows)


def _tell(
    tx: Tx, group: Group, lane: Lane, which: Ranges, kind: Kind, reason: str | None,
    deliveries: int, failures: int, consumer: str | None,
) -> None:  # fmt: skip
    queue = tx.queue_by_id(lane.queue)
    assert queue is not None
    tx.tally.add(group.id, f"dead_{kind}", count(which))
    tx.tally.died.append(
        Died(queue.name, group.name, tx.store, lane.id, which, kind, reason, deliveries, failures,
             consumer)
    )  # fmt: skip
