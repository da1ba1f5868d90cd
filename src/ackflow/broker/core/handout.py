"""The result of a pop: runs of stored messages, and the lease that holds them."""

from msgspec import Struct

from ...ids import LaneId, PartitionId
from ...ranges import Ranges
from ...store.records import Body, Carry, Cursor, Lane, Rest, Segment
from ...store.tx import Tx

SegmentSpan = tuple[Segment, int, int]
_NOTHING = Carry(0, 0, False)


class MessageRun(Struct):
    """Consecutive messages of one segment with equal counters: sequences [lo, hi) of `body`.

    `number` is the number of deliveries in the lane before the first of them. `pending` is the
    number of messages after the last one that were never delivered: in the lane, or in the group
    for the dialects in `PENDING_OF_GROUP`.
    """

    lane: LaneId
    partition: str
    priority: int
    first: int
    lo: int
    hi: int
    created_at: int
    body: Body
    deliveries: int
    failures: int
    redelivered: bool
    number: int
    pending: int
    home: PartitionId = PartitionId(0)  # the id of its partition; not sent to clients

    @property
    def payload_bytes(self) -> int:
        """The size of its payloads; of a body without offsets, by their share of it."""
        body, lo, hi = self.body, self.lo - self.first, self.hi - self.first
        items = body.items  # another thread may set it to None
        if items is not None:
            return len(body.data) * (hi - lo) // max(1, len(items))
        return int(body.ends[hi - 1] - (body.ends[lo - 1] if lo else 0))


class Handout(Struct):
    """The answer of a pop. Without runs, `why` and `retry_at` explain why there are none.

    `again`: the transaction stopped before all work was done; a pop that got no messages must run
    again.
    """

    queue: str
    group: str
    store: int
    token: int | None = None
    expires_at: int | None = None
    runs: list[MessageRun] = []
    why: str | None = None
    retry_at: int | None = None
    again: bool = False

    @property
    def payload_bytes(self) -> int:
        size = 0
        for run in self.runs:
            size += run.payload_bytes
        return size


class TakenMessages(Struct):
    """Messages taken from a lane with equal counters, which include this delivery."""

    ranges: Ranges
    spans: list[SegmentSpan]
    since: int
    deliveries: int
    failures: int
    redelivered: bool
    error: str | None


class LaneBatch(Struct):
    """The messages that one pop takes from one lane."""

    lane: Lane
    cursor: Cursor
    taken: list[TakenMessages]
    ranges: Ranges
    number: int
    runs: list[MessageRun]


def payload(body: Body, index: int) -> bytes:
    """Return the payload of one message of a body."""
    if (items := body.items) is not None:
        return bytes(items[index])
    start = body.ends[index - 1] if index else 0
    return body.data[start : body.ends[index]]


def rest_of(body: Body, index: int) -> Rest | None:
    """Return the optional fields of one message."""
    return None if body.rest is None else body.rest.pick(index)


def is_binary(body: Body, index: int) -> bool:
    return body.rest is not None and body.rest.is_binary(index)


def message_runs(
    tx: Tx, lane: Lane, taken: list[TakenMessages], number: int, pending: int
) -> list[MessageRun]:
    """Return the runs of the messages that were taken from one lane, by sequence.

    `number` is the number of earlier deliveries in the lane; `pending` the number of its messages
    that follow.
    """
    home = tx.partition_by_id(lane.partition)
    assert home is not None
    runs = [
        MessageRun(
            lane.id, home.name, lane.priority, segment.first, lo, hi, segment.created_at,
            tx.body(segment), some.deliveries, some.failures, bool(some.redelivered), number,
            pending, lane.partition,
        )
        for some in taken
        for segment, lo, hi in some.spans
    ]  # fmt: skip
    if runs:
        tx.show(lane.id, max([run.hi for run in runs]))
    if len(runs) <= 1:
        return runs
    runs.sort(key=lambda run: run.lo)
    for run in runs:
        run.number = number
        number += run.hi - run.lo
    set_pending(runs, pending)
    return runs


def set_pending(runs: list[MessageRun], left: int) -> None:
    """Set `pending` of each run, given the number of undelivered messages after the last."""
    for run in reversed(runs):
        run.pending = left
        if not run.redelivered:
            left += run.hi - run.lo


def carried_counters(segment: Segment) -> Carry:
    """Return the counters with which the messages of a segment start."""
    return segment.carry or _NOTHING
