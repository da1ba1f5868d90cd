"""The newest messages of any number of queues, each with its state."""

import heapq
import time
from collections.abc import Iterator

from msgspec import Struct

from .... import ranges
from ....broker.views.browse import state_of, view
from ....ids import PartitionId
from ....model import StoredMessage
from ....store.records import LEASED, Group, Lane, Queue, Segment
from ....store.tx import Tx

SECONDS = 2.0
SEGMENTS_AT_ONCE = 32
Found = tuple[int, int, int, Lane, Segment, Queue]  # sorts by time, then by lane and sequence


class RecentRequest(Struct):
    """Messages of these queues, pushed in [since, until), with this status if one is given."""

    queues: list[str]
    partition: str | None = None
    since: int = 0
    until: int = 1 << 62
    status: str | None = None
    limit: int = 200
    offset: int = 0


class Recent(Struct):
    """A message and its state in every group of its queue."""

    message: StoredMessage
    partition_id: PartitionId
    queue: Queue
    states: dict[str, str]
    lease_until: int | None = None

    @property
    def status(self) -> str:
        """One word for all groups: the worst state in any of them."""
        found = set(self.states.values())
        for state, word in (("dead", "dead_letter"), ("leased", "processing")):
            if state in found:
                return word
        return "completed" if found == {"settled"} else "pending"


def recent(tx: Tx, request: RecentRequest) -> list[Recent]:
    """Return one page of messages; the search ends after two seconds."""
    deadline = time.monotonic() + SECONDS
    skipped, found = 0, []
    for *_, sequence, lane, segment, queue in heapq.merge(*_lanes(tx, request)):
        if time.monotonic() > deadline:
            break
        if request.status is None and skipped < request.offset:
            skipped += 1
            continue
        one = describe(tx, queue, lane, segment, -sequence)
        if request.status in (None, one.status):
            if skipped < request.offset:
                skipped += 1
                continue
            found.append(one)
        if len(found) >= request.limit:
            break
    return found


def describe(tx: Tx, queue: Queue, lane: Lane, segment: Segment, sequence: int) -> Recent:
    """Return a stored message with its state in every group."""
    states, until = {}, None
    for group in tx.groups(queue.id):
        state = state_of(tx, group, lane, segment, sequence)
        if state != "hidden":
            states[group.name] = state
        if state == "leased":
            until = _end(tx, group, lane, sequence)
    message = view(tx, queue, None, lane, segment, sequence)
    return Recent(message, lane.partition, queue, states, until)


def _end(tx: Tx, group: Group, lane: Lane, sequence: int) -> int | None:
    for claim in tx.claims_in(lane.id, group.id, sequence, sequence + 1):
        if claim.state == LEASED and ranges.contains(claim.ranges, sequence):
            return claim.at
    return None


def _lanes(tx: Tx, request: RecentRequest) -> Iterator[Iterator[Found]]:
    for name in request.queues:
        queue = tx.queue(name)
        for lane in tx.lanes(queue.id) if queue else ():
            home = tx.partition_by_id(lane.partition)
            if queue and home and request.partition in (None, home.name):
                yield _newest(tx, queue, lane, request)


def _newest(tx: Tx, queue: Queue, lane: Lane, request: RecentRequest) -> Iterator[Found]:
    top = lane.head
    while top > lane.base:
        segments = tx.segments_before(lane, top, SEGMENTS_AT_ONCE)
        if not segments:
            return
        for segment in segments:
            if segment.created_at < request.since:
                return
            if segment.created_at < request.until:
                gone = tx.gone(lane, segment.first, segment.stop)
                for sequence in range(segment.stop - 1, segment.first - 1, -1):
                    if not ranges.contains(gone, sequence):
                        yield -segment.created_at, -lane.id, -sequence, lane, segment, queue
        top = segments[-1].first
