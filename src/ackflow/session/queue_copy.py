"""Copy queues from one database or server to another, in slices. A killed copy can be continued."""

import time
from collections.abc import Callable, Iterator

import msgspec
from msgspec import Struct

from .. import validate
from ..broker.sharded import transfer
from ..broker.sharded.transfer import LaneCopy, QueueCopy
from ..errors import InvalidArgument
from .session import Session

SLICE_BYTES = 4 * 1024 * 1024
LANES = 500
TXIDS = 5_000
POLL_SECONDS = 0.2


class Copied(Struct, frozen=True):
    """The result of copying a queue. `leased`: messages that were leased and are due in the copy.

    `pushed`: how many were ever pushed to the source when the copy was complete.
    """

    queue: str
    messages: int
    dead_letters: int
    leased: int
    resumed: bool
    pushed: int


def look_at(source: Session, queue: str) -> QueueCopy:
    """Return what a copy of a queue would copy."""
    validate.name(queue, "queue")
    packed = source.broker.query(transfer.export_queue, queue)
    return msgspec.msgpack.decode(packed, type=QueueCopy)


def copy_queue(
    source: Session,
    target: Session,
    queue: str,
    *,
    wait: float = 0.0,
    progress: Callable[[int], object] = lambda messages: None,
) -> Copied:
    """Copy a queue with its groups, positions, waiting messages, dead letters and options.

    The queue is paused at the source and stays paused. Leases are waited for up to `wait` seconds;
    what is leased then is due in the copy. `progress` is called with the number of messages copied.
    A queue that exists at the target is refused, unless an earlier copy from the same source was
    interrupted: then it continues.
    """
    given = look_at(source, queue)
    begun = target.broker.do(transfer.import_queue, True, queue, msgspec.msgpack.encode(given))
    resumed = begun.resumed
    leased, pushed = 0, begun.pushed
    if not begun.states:
        source.pause(queue)
        _wait_for_leases(source, queue, wait)
        leased, pushed = _copy_messages(source, target, queue, progress)
    _copy_dead_letters(source, target, queue)
    target.broker.do(transfer.import_done, True, queue)
    return Copied(queue, given.messages, given.dead_letters, leased, resumed, pushed)


def delete_source(source: Session, copied: Copied) -> None:
    """Delete a copied queue; raises if messages were pushed to it after the copy."""
    source.broker.do(transfer.delete_copied, True, copied.queue, copied.pushed)


def _wait_for_leases(source: Session, queue: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while source.leases(queue) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def _copy_messages(
    source: Session, target: Session, queue: str, progress: Callable[[int], object]
) -> tuple[int, int]:
    """Copy lanes and messages, then all positions of a snapshot. Repeat for messages pushed meanwhile.

    Returns how many messages were leased, and how many were ever pushed.
    """
    partitions: set[str] = set()
    while True:
        for lanes, heads in _lanes(source, target, queue):
            for lane, head in zip(lanes, heads, strict=True):
                _copy_lane(source, target, queue, lane, head, progress)
                if lane.partition not in partitions:
                    partitions.add(lane.partition)
                    _copy_txids(source, target, queue, lane.partition)
        now = look_at(source, queue)
        states = source.broker.look(transfer.export_states, queue)
        slices = transfer.in_slices(states, LANES)
        if all(target.broker.do(transfer.import_states, True, queue, some) for some in slices):
            pushed = transfer.pushed_of(states)
            packed = msgspec.msgpack.encode(now)
            target.broker.do(transfer.import_settings, True, queue, packed, pushed)
            return now.leased, pushed


def _lanes(
    source: Session, target: Session, queue: str
) -> Iterator[tuple[list[LaneCopy], list[int]]]:
    after = 0
    while True:
        packed = source.broker.look(transfer.export_lanes, queue, after, LANES)
        lanes = msgspec.msgpack.decode(packed, type=list[LaneCopy])
        if not lanes:
            return
        yield lanes, target.broker.do(transfer.import_lanes, True, queue, packed)
        after = lanes[-1].id


def _copy_lane(
    source: Session, target: Session, queue: str, lane: LaneCopy, head: int,
    progress: Callable[[int], object],
) -> None:  # fmt: skip
    while head < lane.head:
        packed = source.broker.look(transfer.export_segments, queue, lane.id, head, SLICE_BYTES)
        reached = target.broker.do(
            transfer.import_segments, True, queue, lane.partition, lane.priority, packed
        )
        if reached == head:
            return  # what is left at the end of the lane is gone
        progress(reached - head)
        head = reached


def _copy_txids(source: Session, target: Session, queue: str, partition: str) -> None:
    after = ""
    while True:
        packed = source.broker.look(transfer.export_txids, queue, partition, after, TXIDS)
        rows = msgspec.msgpack.decode(packed)
        if not rows:
            return
        target.broker.do(transfer.import_txids, True, queue, partition, packed)
        after = rows[-1][0]


def _copy_dead_letters(source: Session, target: Session, queue: str) -> None:
    after = 0
    while True:
        packed, last = source.broker.look(transfer.export_dead, queue, after, SLICE_BYTES)
        if last == after:
            return
        target.broker.do(transfer.import_dead, True, queue, packed)
        after = last


def refuse_same(source: Session, target: Session) -> None:
    """Raise if both sessions are on one database."""
    if source.broker.store.id == target.broker.store.id != 0:
        raise InvalidArgument("source and target are the same database")
