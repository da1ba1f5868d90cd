"""Copies of stored messages, which requeue and redrive append to a lane."""

from array import array
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple

from ... import ids
from ...ids import GroupId
from ...options import MAX_SEGMENT_BYTES, MAX_SEGMENT_COUNT
from ...ranges import Ranges
from ...store.records import Carry, Group, Lane, Rest
from ...store.tx import Tx
from .handout import payload, rest_of
from .push import append, not_before
from .topology import complete_cursors


class Copy(NamedTuple):
    """A message to append to a lane; it keeps its transaction id."""

    payload: bytes
    own: Rest | None
    txid: str


def copy(
    tx: Tx, group: Group, lane: Lane, which: Ranges, delay: float, carry: Carry,
    headers: dict[str, str],
) -> None:  # fmt: skip
    """Append copies of messages to their own lane, for one group only; `headers` are set on them."""
    copies = (
        Copy(
            payload(body, index), _with_headers(rest_of(body, index), headers),
            ids.message_id(tx.store, lane.id, segment.first + index),
        )
        for segment, first, stop in tx.segments_over(lane.id, which)
        for body in [tx.body(segment)]
        for index in range(first - segment.first, stop - segment.first)
    )  # fmt: skip
    append_copies(tx, lane, copies, delay, group.id, carry)


def _with_headers(own: Rest | None, headers: dict[str, str]) -> Rest | None:
    if not headers:
        return own
    own = own or Rest()
    own.headers = {0: {**own.headers.get(0, {}), **headers}}
    return own


def append_copies(
    tx: Tx,
    lane: Lane,
    copies: Iterable[Copy],
    delay: float,
    for_group: GroupId | None,
    carry: Carry | None,
) -> None:
    """Append copies in as many segments as they need."""
    queue = tx.queue_by_id(lane.queue)
    assert queue is not None
    tx.cache.room.pop(queue.id, None)
    complete_cursors(tx, queue, lane)
    due = not_before(tx, queue, delay)
    for part in _parts(copies):
        if for_group is not None:
            tx.tally.add(GroupId(-queue.id), "copies", len(part))
            cursor = tx.cursor(lane.id, for_group)
            if cursor is not None:
                cursor.copies += len(part)
                tx.changed(cursor)
        ends, data, rest = _body(part)
        append(tx, queue, lane, ends, data, rest, not_before=due, for_group=for_group, carry=carry)


def _parts(copies: Iterable[Copy]) -> Iterator[list[Copy]]:
    """Split copies into lists that fit into a segment."""
    part: list[Copy] = []
    room = MAX_SEGMENT_BYTES
    for one in copies:
        if part and (len(one.payload) > room or len(part) >= MAX_SEGMENT_COUNT):
            yield part
            part, room = [], MAX_SEGMENT_BYTES
        part.append(one)
        room -= len(one.payload)
    if part:
        yield part


def _body(part: list[Copy]) -> tuple[bytes, bytes, Rest]:
    ends = array("i", accumulate(len(one.payload) for one in part))
    rest = Rest.merge(one.own for one in part)
    for at, one in enumerate(part):
        rest.txids.setdefault(at, one.txid)
    return ends.tobytes(), b"".join([one.payload for one in part]), rest
