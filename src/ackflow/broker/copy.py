"""Copies of stored messages: requeue and redrive put them at the end of a lane."""

from array import array

from msgspec import Struct

from .. import ids, ranges
from ..ranges import Ranges
from ..store.rows import Carry, Group, Lane, Rest
from ..store.tx import Tx
from .handout import payload, rest_of
from .push import append, not_before


class Copies(Struct):
    """Messages being gathered into one new body."""

    ends: "array[int]"
    data: list[bytes]
    rest: Rest

    def add(self, payload: bytes, own: Rest | None, txid: str) -> None:
        """Add one message; it keeps the transaction id it was known by."""
        at = len(self.ends)
        self.data.append(payload)
        self.ends.append((self.ends[-1] if at else 0) + len(payload))
        self.rest.txids[at] = own.txids.get(0, txid) if own else txid
        if own and own.headers:
            self.rest.headers[at] = own.headers[0]
        if own and own.binary:
            self.rest.binary = ranges.add(self.rest.binary, at, at + 1)


def no_copies() -> Copies:
    return Copies(array("i"), [], Rest())


def copy(tx: Tx, group: Group, lane: Lane, which: Ranges, delay: float, carry: Carry) -> None:
    """Append copies of messages to their own lane, for one group alone."""
    copies = no_copies()
    for segment, first, stop in tx.segments_over(lane.id, which):
        body = tx.body(segment)
        for sequence in range(first, stop):
            index = sequence - segment.first
            txid = ids.message_id(tx.store, lane.id, sequence)
            copies.add(payload(body, index), rest_of(body, index), txid)
    append_copies(tx, lane, copies, delay, group.id, carry)


def append_copies(
    tx: Tx, lane: Lane, copies: Copies, delay: float, for_group: int | None, carry: Carry | None
) -> None:
    queue = tx.queue_by_id(lane.queue)
    assert queue is not None
    tx.cache.room.pop(queue.id, None)
    if for_group is not None:
        tx.tally.add(-queue.id, "copies", len(copies.ends))
    append(tx, queue, lane, copies.ends.tobytes(), b"".join(copies.data), copies.rest,
           not_before=not_before(tx, queue, delay), for_group=for_group, carry=carry)  # fmt: skip
