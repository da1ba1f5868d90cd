"""Find a message by partition and transaction id, stored or only a dead letter."""

import time

from msgspec import Struct, msgpack

from ....ids import PartitionId
from ....store.records import DeadRow, Lane, Partition, Queue, Rest, Segment
from ....store.tx import Tx
from . import settle_by_name

SECONDS = 1.0
SEGMENTS_AT_ONCE = 64
_rest = msgpack.Decoder(Rest).decode


class Located(Struct):
    """Where a message is; `segment` is None when only dead letters are left of it."""

    queue: Queue
    partition: Partition
    lane: Lane
    sequence: int
    segment: Segment | None = None


def locate(tx: Tx, partition: PartitionId, txid: str) -> Located | None:
    """Return the message of a partition with this transaction id, stored or dead, or None."""
    home = tx.partition_by_id(partition)
    queue = tx.queue_by_id(home.queue) if home else None
    if home is None or queue is None:
        return None
    position = settle_by_name.locate(tx, home.id, txid) or _search(tx, home, txid)
    lane = tx.lane(position[0]) if position else None
    if position is None or lane is None:
        return _dead(tx, queue, home, txid)
    found = Located(queue, home, lane, position[1], _segment(tx, lane, position[1]))
    return found if found.segment is not None or letters(tx, found) else None


def letters(tx: Tx, message: Located) -> list[DeadRow]:
    """Return the dead letters of a message in all groups."""
    return [
        row
        for group in tx.groups(message.queue.id)
        for row in tx.dead("dead_of", group.id, message.lane.id, message.sequence)
    ]


def _segment(tx: Tx, lane: Lane, sequence: int) -> Segment | None:
    if tx.is_gone(lane, sequence):
        return None
    for segment, _, _ in tx.segments_over(lane.id, [sequence, sequence + 1]):
        return segment
    return None


def _search(tx: Tx, home: Partition, txid: str) -> settle_by_name.Position | None:
    """Search the newest messages, for transaction ids that are no longer indexed."""
    deadline = time.monotonic() + SECONDS
    for lane in tx.lanes_in(home.id):
        top = lane.head
        while top > lane.base and time.monotonic() < deadline:
            segments = tx.segments_before(lane, top, SEGMENTS_AT_ONCE)
            for segment in segments:
                rest = tx.rest(segment)
                for index, known in rest.txids.items() if rest else ():
                    if known == txid:
                        return lane.id, segment.first + index
            if not segments:
                break
            top = segments[-1].first
    return None


def _dead(tx: Tx, queue: Queue, home: Partition, txid: str) -> Located | None:
    deadline = time.monotonic() + SECONDS
    for lane_id, sequence, packed in tx.all("dead_of_partition", queue.id, home.id):
        if packed and _rest(packed).txids.get(0) == txid:
            lane = tx.lane(lane_id)
            return None if lane is None else Located(queue, home, lane, sequence)
        if time.monotonic() > deadline:
            break
    return None
