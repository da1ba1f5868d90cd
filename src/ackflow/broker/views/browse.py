"""Browse: read messages without changing them, bounded by a limit and a time, resumable."""

import time
from collections.abc import Iterator

from ... import ids, ranges
from ...errors import NotFound
from ...ids import LaneId
from ...model import Page, StoredMessage, when
from ...options import MAX_PAGE_BYTES
from ...store.records import DUE, LEASED, NO_REST, WAITING, Group, Lane, Queue, Segment
from ...store.tx import Tx
from ..core.handout import is_binary, payload
from ..core.topology import find_group, find_partition, find_queue
from ..reach import merging
from ..reach.merging import Several
from ..requests import BrowseRequest
from ..verb import verb

WORK_SECONDS, REST_SECONDS = 0.002, 0.002  # of a search, in turns
LANES_AT_ONCE = 200
SECONDS_OVER_HTTP = 10.0


def _limit_seconds(request: BrowseRequest) -> None:
    """Bound a search over HTTP: it occupies one of the server's few reader threads."""
    request.seconds = min(request.seconds, SECONDS_OVER_HTTP)


@verb("read-only", read_only=True, check=_limit_seconds, several=Several(run=merging.browse))
def browse(tx: Tx, request: BrowseRequest) -> Page[StoredMessage]:
    """Return messages by lane and sequence. `next` is set while there may be more."""
    queue = find_queue(tx, request.queue)
    group = None if request.group is None else find_group(tx, queue, request.group)
    rested = time.monotonic()
    deadline = rested + request.seconds
    at_lane, at = request.after or (0, 0)
    found: list[StoredMessage] = []
    looked, tx.bytes_left = False, MAX_PAGE_BYTES
    for lane in lanes_from(tx, queue, request.partition, LaneId(at_lane)):
        at = at if lane.id == at_lane else lane.base
        if looked and time.monotonic() > deadline:
            return Page(found, f"{lane.id}.{at}")
        looked, start = True, at
        for segment in tx.segments_from(lane.id, at):
            late = at > start and time.monotonic() > deadline
            if late or is_full(tx, found, request.limit):
                return Page(found, f"{lane.id}.{at}")
            at = _look(tx, request, queue, group, lane, segment, max(at, segment.first), found)
            if request.text is not None and time.monotonic() > rested + WORK_SECONDS:
                time.sleep(REST_SECONDS)  # other threads of the process get the GIL at once
                rested = time.monotonic()
        if at < lane.head and is_full(tx, found, request.limit):
            return Page(found, f"{lane.id}.{at}")
    return Page(found)


@verb(
    "read-only", name="message", queue="queue_name", read_only=True, several=Several(message="id")
)
def get(tx: Tx, queue_name: str, id: str, group_name: str | None) -> StoredMessage:
    """Return one stored message by its id."""
    queue = find_queue(tx, queue_name)
    group = None if group_name is None else find_group(tx, queue, group_name)
    place = ids.parse_message_id(id)
    lane = tx.lane(place.lane) if place.store == tx.store else None
    if lane is not None and lane.queue == queue.id and not tx.is_gone(lane, place.sequence):
        one = [place.sequence, place.sequence + 1]
        for segment, sequence, _ in tx.segments_over(lane.id, one):
            return view(tx, queue, group, lane, segment, sequence)
    raise NotFound(f"queue {queue_name!r} does not store a message {id}")


def state_of(tx: Tx, group: Group, lane: Lane, segment: Segment, sequence: int) -> str:
    """Return the state of one message in a group."""
    if segment.for_group not in (None, group.id):
        return "hidden"
    cursor = tx.cursor(lane.id, group.id)
    if cursor is None or sequence >= cursor.next:
        return "waiting" if segment.delayed(tx.now) else "ready"
    for claim in tx.claims_in(lane.id, group.id, sequence, sequence + 1):
        if ranges.contains(claim.ranges, sequence):
            over = claim.state == DUE or (claim.at is not None and claim.at <= tx.now)
            if claim.state == WAITING and not claim.returned:  # the claim may have several delays
                over = not segment.delayed(tx.now)
            return "ready" if over else "leased" if claim.state == LEASED else "waiting"
    letters = tx.dead("dead_of", group.id, lane.id, sequence)
    return "dead" if letters and letters[0].counted else "settled"


def _look(
    tx: Tx, request: BrowseRequest, queue: Queue, group: Group | None, lane: Lane,
    segment: Segment, first: int, found: list[StoredMessage],
) -> int:  # fmt: skip
    """Read one segment from a sequence on; returns where to continue."""
    late = request.until is not None and segment.created_at >= request.until
    if late or (request.since is not None and segment.created_at < request.since):
        return segment.stop
    if request.text is not None and request.text not in tx.body(segment).data:
        return segment.stop
    gone = tx.gone(lane, first, segment.stop)
    for sequence in range(first, segment.stop):
        if is_full(tx, found, request.limit):
            return sequence
        if ranges.contains(gone, sequence):
            continue
        if request.text is None or request.text in payload(
            tx.body(segment), sequence - segment.first
        ):
            add(tx, found, view(tx, queue, group, lane, segment, sequence))
    return segment.stop


def is_full(tx: Tx, found: list[StoredMessage], limit: int) -> bool:
    """Return whether a page has as many messages, or bytes of payloads, as it may have."""
    return len(found) >= limit or tx.bytes_left <= 0


def add(tx: Tx, found: list[StoredMessage], message: StoredMessage) -> None:
    """Add a message to a page; its payload counts."""
    found.append(message)
    tx.bytes_left -= len(message.raw)


def view(
    tx: Tx, queue: Queue, group: Group | None, lane: Lane, segment: Segment, sequence: int
) -> StoredMessage:
    """Return a stored message as users see it; with a group, including its state there."""
    home = tx.partition_by_id(lane.partition)
    assert home is not None
    tx.show(lane.id, sequence + 1)
    body, index = tx.body(segment), sequence - segment.first
    id = ids.message_id(tx.store, lane.id, sequence)
    rest = body.rest or NO_REST
    return StoredMessage(
        id=id,
        queue=queue.name,
        partition=home.name,
        priority=lane.priority,
        sequence=sequence,
        created_at=when(segment.created_at),
        due_at=when(segment.due_at),
        raw=payload(body, index),
        is_json=not is_binary(body, index),
        transaction_id=rest.transaction_id(index, id),
        headers=rest.headers.get(index, {}),
        state=state_of(tx, group, lane, segment, sequence) if group else None,
    )


def lanes_from(tx: Tx, queue: Queue, partition: str | None, start: LaneId) -> Iterator[Lane]:
    """Yield the lanes from one on, in order, reading few more than needed."""
    if partition is not None:
        home = find_partition(tx, queue, partition)
        some = sorted(tx.lanes_in(home.id), key=lambda lane: lane.id)
        yield from (lane for lane in some if lane.id >= start)
        return
    while some := tx.lanes_after(queue.id, start, LANES_AT_ONCE):
        yield from some
        start = LaneId(some[-1].id + 1)
