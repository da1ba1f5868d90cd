"""Search: messages of a queue by state, id, header, text and time, within a time limit.

    lanes ──► sequences in the wanted state ──► segments in the time range ──► messages that match

A search reads in the order of lanes and sequences and stops at its limits; `next` continues it. States
are found through cursors and claims, so that ten leased messages among millions are found at once.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct, structs

from ... import ids, ranges, validate
from ...errors import InvalidArgument
from ...ids import LaneId
from ...model import StoredMessage
from ...options import MAX_PAGE_BYTES
from ...ranges import Ranges
from ...store.records import DUE, LEASED, NO_REST, WAITING, Group, Lane, Queue, Segment
from ...store.tx import Tx
from ..core.handout import payload
from ..core.topology import find_group, find_queue
from ..reach import merging
from ..reach.merging import Several
from ..verb import QueueRequest, verb
from .browse import add, is_full, lanes_from, view

State = Literal["all", "ready", "leased", "waiting", "settled"]
STATES: tuple[State, ...] = ("all", "ready", "leased", "waiting", "settled")
WINDOW = 10_000  # sequences looked at between checks of the time
WORK_SECONDS, REST_SECONDS = 0.002, 0.004
MOST_SECONDS = 10.0
LARGEST = 1 << 62
BAD_AFTER = "after must be the `next` of the previous page"


class Search(QueueRequest, kw_only=True):
    """What to look for: messages that fit everything given.

    `id` is an id or a part of one, `header` is `name` or `name=text`, where the text is a part of the
    value; `text` is a part of the payload.
    """

    group: str | None = None
    state: State = "all"
    id: str | None = None
    transaction_id: str | None = None
    header: str | None = None
    text: str | None = None
    since: int | None = None
    until: int | None = None
    partition: str | None = None
    priority: int | None = None
    limit: int = 50
    seconds: float = 1.0
    after: str | None = None

    def check(self) -> None:
        validate.name(self.queue, "queue")
        validate.one_of(self.state, "state", STATES)
        validate.integer(self.limit, "limit", 1, 1_000)
        self.seconds = min(validate.positive(self.seconds, "seconds"), MOST_SECONDS)
        if self.state != "all" and self.group is None:
            raise InvalidArgument("a state is that of a group; give a group")


class Found(Struct, frozen=True):
    """A page of messages. `next` is set while there may be more; `scanned` were looked at."""

    items: list[StoredMessage]
    next: str | None
    scanned: int


class _Filter:
    """The part of a search that is checked message by message."""

    def __init__(self, tx: Tx, request: Search) -> None:
        self._tx = tx
        self._text = request.text.encode() if request.text else None
        self._txid = request.transaction_id
        name, equals, value = (request.header or "").partition("=")
        self._header = name.strip()
        self._value = value.strip() if equals else None
        part = (request.id or "").strip().lower()
        self._part = part.replace("-", "") if part else None

    def skips(self, segment: Segment) -> bool:
        """Whether no message of a segment can match."""
        if self._text is not None and self._text not in self._tx.body(segment).data:
            return True
        if self._header:
            rest = self._tx.body(segment).rest
            return rest is None or not rest.headers
        return False

    def matches(self, lane: Lane, segment: Segment, sequence: int) -> bool:
        index = sequence - segment.first
        id = ids.message_id(self._tx.store, lane.id, sequence)
        if self._part is not None and self._part not in id.replace("-", ""):
            return False
        if not (self._text or self._header or self._txid):
            return True
        body = self._tx.body(segment)
        rest = body.rest or NO_REST
        if self._txid and self._txid not in rest.transaction_id(index, id):
            return False
        if self._header:
            given = rest.headers.get(index, {}).get(self._header)
            if given is None or (self._value is not None and self._value not in given):
                return False
        return self._text is None or self._text in payload(body, index)


def _everywhere(ask: merging.Ask, tags: Sequence[int], arguments: merging.Arguments) -> Found:
    """Search one database after the other; a position begins with the place of its database."""
    (request,) = arguments
    place, colon, after = (request.after or "").partition(":")
    if request.after is not None and not (colon and place.isdecimal() and len(place) < 9):
        raise InvalidArgument(BAD_AFTER)
    first, ordered = int(place or 0), sorted(tags)
    items: list[StoredMessage] = []
    scanned, deadline = 0, time.monotonic() + request.seconds
    for number, tag in enumerate(ordered):
        if number < first:
            continue
        seconds = deadline - time.monotonic()
        if number > first and (seconds <= 0 or len(items) >= request.limit):
            return Found(items, f"{number}:0.0", scanned)
        asked = structs.replace(
            request, after=(after or None) if number == first else None,
            limit=request.limit - len(items), seconds=max(seconds, 0.001),
        )  # fmt: skip
        page = ask(tag, (asked,))
        items += page.items
        scanned += page.scanned
        if page.next is not None:
            return Found(items, f"{number}:{page.next}", scanned)
    return Found(items, None, scanned)


@verb("read-only", name="search", read_only=True, wire=False, several=Several(run=_everywhere))
def search(tx: Tx, request: Search) -> Found:
    """Return a page of the messages that match."""
    queue = find_queue(tx, request.queue)
    group = None if request.group is None else find_group(tx, queue, request.group)
    deadline = time.monotonic() + request.seconds
    if request.id is not None and (whole := _message_position(request.id)) is not None:
        return _by_id(tx, queue, group, whole)
    run = _Run(tx, request, queue, group, deadline)
    return run.find()


class _Run:
    def __init__(
        self, tx: Tx, request: Search, queue: Queue, group: Group | None, deadline: float
    ) -> None:
        self.tx, self.request, self.queue, self.group = tx, request, queue, group
        self.deadline = deadline
        self.filter = _Filter(tx, request)
        self.found: list[StoredMessage] = []
        self.scanned = 0
        self.rested = time.monotonic()

    def find(self) -> Found:
        at_lane, at = _position(self.request.after)
        looked, self.tx.bytes_left = False, MAX_PAGE_BYTES
        for lane in lanes_from(self.tx, self.queue, self.request.partition, LaneId(at_lane)):
            if self.request.priority not in (None, lane.priority):
                continue
            start = max(at, lane.base) if lane.id == at_lane else lane.base
            if looked and time.monotonic() > self.deadline:
                return self._page(lane, start)
            looked = True
            stopped = self._lane(lane, start)
            if stopped is not None:
                return self._page(lane, stopped)
        return Found(self.found, None, self.scanned)

    def _page(self, lane: Lane, at: int) -> Found:
        return Found(self.found, f"{lane.id}.{at}", self.scanned)

    def _lane(self, lane: Lane, start: int) -> int | None:
        """Search a lane; returns where to continue, or None at its end."""
        for some in _windows(self._wanted(lane, start)):
            gone = self.tx.gone(lane, some[0], some[-1])
            for segment, first, stop in self.tx.segments_over(
                lane.id, ranges.difference(some, gone)
            ):
                if time.monotonic() > self.deadline and first > start:
                    return first
                stopped = self._segment(lane, segment, first, stop)
                if stopped is not None:
                    return stopped
                self._rest()
        return None

    def _segment(self, lane: Lane, segment: Segment, first: int, stop: int) -> int | None:
        request = self.request
        late = request.until is not None and segment.created_at >= request.until
        early = request.since is not None and segment.created_at < request.since
        self.scanned += stop - first
        if late or early or self.filter.skips(segment):
            return None
        for sequence in range(first, stop):
            if is_full(self.tx, self.found, request.limit):
                return sequence
            if self.filter.matches(lane, segment, sequence):
                message = view(self.tx, self.queue, self.group, lane, segment, sequence)
                add(self.tx, self.found, message)
        return None

    def _rest(self) -> None:
        """Let other threads of the process have their turn."""
        if time.monotonic() > self.rested + WORK_SECONDS:
            time.sleep(REST_SECONDS)
            self.rested = time.monotonic()

    def _wanted(self, lane: Lane, start: int) -> Ranges:
        """The sequences of a lane from one on that may be in the wanted state."""
        everything = [start, lane.head] if start < lane.head else []
        state, group = self.request.state, self.group
        if state == "all" or group is None or not everything:
            return everything
        cursor = self.tx.cursor(lane.id, group.id)
        next = lane.base if cursor is None else cursor.next
        unread = ranges.clip(everything, next, lane.head)
        claimed: dict[str, Ranges] = {"ready": [], "leased": [], "waiting": []}
        for claim in self.tx.claims_in(lane.id, group.id, start, lane.head):
            claimed[_state(claim.state, claim.at, self.tx.now)] = ranges.union(
                claimed[_state(claim.state, claim.at, self.tx.now)], claim.ranges
            )
        delayed = ranges.of(
            sequence
            for segment in self.tx.odd_segments(lane, next)
            if segment.delayed(self.tx.now) and segment.for_group in (None, group.id)
            for sequence in range(max(next, segment.first), segment.stop)
        )
        match state:
            case "leased":
                wanted = claimed["leased"]
            case "waiting":
                wanted = ranges.union(claimed["waiting"], delayed)
            case "ready":
                wanted = ranges.union(claimed["ready"], ranges.difference(unread, delayed))
            case _:
                held = ranges.union_all(list(claimed.values()))
                wanted = ranges.difference(ranges.clip(everything, lane.base, next), held)
        return ranges.intersection(everything, wanted)


def _state(state: int, at: int | None, now: int) -> str:
    if state == DUE or (state == WAITING and at is not None and at <= now):
        return "ready"
    return "leased" if state == LEASED else "waiting"


def _windows(wanted: Ranges) -> Iterator[Ranges]:
    """Yield a range set in parts of limited span."""
    at = 0
    while at < len(wanted):
        first = wanted[at]
        stop = first + WINDOW
        some = ranges.clip(wanted[at:], first, stop)
        yield some
        wanted = ranges.clip(wanted[at:], stop, wanted[-1])
        at = 0


def _by_id(tx: Tx, queue: Queue, group: Group | None, place: ids.MessagePosition) -> Found:
    lane = tx.lane(place.lane) if place.store == tx.store else None
    found = []
    if lane is not None and lane.queue == queue.id and not tx.is_gone(lane, place.sequence):
        one = [place.sequence, place.sequence + 1]
        found = [view(tx, queue, group, lane, s, n) for s, n, _ in tx.segments_over(lane.id, one)]
    return Found(found, None, 1)


def _message_position(text: str) -> ids.MessagePosition | None:
    """The position of a whole id; None for a part of one."""
    try:
        return ids.parse_message_id(text.strip())
    except InvalidArgument:
        return None


def _position(after: str | None) -> tuple[int, int]:
    if after is None:
        return 0, 0
    lane, dot, sequence = after.partition(".")
    if (
        not (dot and lane.isdecimal() and sequence.isdecimal() and len(after) < 32)
        or max(int(lane), int(sequence)) > LARGEST
    ):
        raise InvalidArgument(BAD_AFTER)
    return int(lane), int(sequence)
