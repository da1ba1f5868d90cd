"""Publish: route messages by an exchange and append them to every queue they reach, in one commit.

Messages that a queue gives up (rejected, over a limit, too old, too many) are published again to
its dead-letter exchange, in the transaction that gives them up:

    publish ──► exchange ──► queue ── reject, delivery limit, expiry, max length ──► dead-letter exchange
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from msgspec import MsgspecError, json

from .... import ranges
from ....clock import SECOND, micros
from ....errors import AckflowError, Forbidden, NotFound, QueueFull, StorageFull
from ....ids import LaneId, QueueId
from ....model import when
from ....options import (
    DEFAULT_PARTITION,
    MAX_SEGMENT_BYTES,
    MAX_SEGMENT_COUNT,
    QUEUE_MODE,
    DeadLetterKind,
)
from ....ranges import Ranges
from ....store.records import DUE, Cursor, Declaration, Lane, Queue, Rest
from ....store.tx import Tx
from ...brief import brief
from ...requests import Publication
from ..capacity import make_room
from ..cursors import count_unread, hidden_copies_in
from ..handout import payload, rest_of
from ..push import append, not_before
from ..topology import lane_for
from ..upkeep.retention import drop_before, drop_messages, drop_unread, unread_and_held
from .exchanges import DEFAULT_EXCHANGE, find_exchange, route

EXCHANGE, ROUTING_KEY = "x-exchange", "x-routing-key"  # headers of a message that was routed
DEATHS, EXPIRATION, PRIORITY, COPIES = "x-death", "expiration", "priority", "CC"
FIRST_DEATH = "x-first-death-"
EXPIRED_AT_ONCE = 100
HELD_AGAIN = SECOND  # a leased message that is too old is looked at again after this time
REASONS: dict[DeadLetterKind, str] = {
    "rejected": "rejected",
    "failed": "delivery_limit",
    "max_deliver": "delivery_limit",
    "max_wait": "expired",
}
Published = int | AckflowError
M = TypeVar("M", "Routed", Publication)


class Routed(NamedTuple):
    """A message for one lane."""

    payload: bytes
    binary: bool
    headers: dict[str, str]
    expires_at: int | None


@brief
def publish(tx: Tx, publications: Sequence[Publication]) -> list[Published]:
    """Publish messages in order; returns for each how many queues it reached, or its error.

    A message that names an exchange that does not exist ends the list: those after it are not
    published. A message for a full queue reaches no queue.
    """
    return publish_all(tx, [publications])[0]


def publish_all(tx: Tx, lists: Sequence[Sequence[Publication]]) -> list[list[Published]]:
    """Publish several lists, each as `publish` does."""
    appender = Appender(tx)
    results = [_publish(tx, appender, some) for some in lists]
    appender.finish()
    return results


def _publish(tx: Tx, appender: "Appender", publications: Sequence[Publication]) -> list[Published]:
    results: list[Published] = []
    for one in publications:
        try:
            if tx.full:
                raise StorageFull()
            exchange = find_exchange(tx, one.exchange)
            if exchange is not None and exchange.internal:
                raise Forbidden(f"exchange {one.exchange!r} is internal")
            queues = appender.route(one)
            appender.reserve(queues)
        except (NotFound, Forbidden) as error:
            results.append(error)
            break
        except (QueueFull, StorageFull) as error:
            results.append(error)
            continue
        for name in queues:
            appender.add(name, one)
        results.append(len(queues))
    return results


class Appender:
    """Collects messages by lane, and appends those of one lane together."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._lanes: dict[tuple[str, int], list[Routed]] = {}
        self._declared: dict[str, tuple[Queue, Declaration | None] | None] = {}
        self._routes: dict[tuple[str, str], Sequence[str]] = {}
        self._limited: dict[QueueId, tuple[Queue, Declaration]] = {}

    def route(self, one: Publication) -> Sequence[str]:
        """The queues that a message reaches; those of equal keys are looked up once."""
        if one.table or len(one.keys) > 1:  # a table may decide it, and copies are rare
            return route(self._tx, one.exchange, one.keys, one.table)
        place = one.exchange, one.keys[0]
        found = self._routes.get(place)
        if found is None:
            found = self._routes[place] = route(self._tx, one.exchange, one.keys, one.table)
        return found

    def reserve(self, queues: Sequence[str]) -> None:
        """Raise QueueFull if one of these queues has no room for a message."""
        limited = {name: 1 for name in queues if self._has_max_size(name)}
        if limited:
            make_room(self._tx, limited, self._flush)

    def _has_max_size(self, name: str) -> bool:
        queue = self._tx.queue(name)
        return queue is not None and queue.options.max_size is not None

    def add(self, name: str, one: Publication) -> None:
        """Add a message for a queue; a queue that a stale binding names is left out."""
        if name not in self._declared:
            queue = self._tx.queue(name)
            known = None if queue is None else (queue, self._tx.declaration(queue.id))
            self._declared[name] = known
        found = self._declared[name]
        if found is None:
            return
        queue, declared = found
        if declared is not None and declared.max_length is not None:
            self._limited[queue.id] = queue, declared
        priority = 0 if declared is None else declared.lane_priority(one.priority)
        expires = None if one.ttl is None else self._tx.now + micros(one.ttl)
        routed = Routed(one.payload, one.binary, stored_headers(name, one), expires)
        self._lanes.setdefault((name, priority), []).append(routed)

    def finish(self) -> None:
        """Append all messages, and drop the oldest of queues that are longer than allowed.

        What is dropped may go to other queues, which may then be longer than allowed, and so on.
        """
        while self._lanes or self._limited:
            self._flush()
            limited, self._limited = self._limited, {}
            for queue, declared in limited.values():
                _drop_head(self._tx, queue, declared, self)

    def _flush(self) -> None:
        lanes, self._lanes = self._lanes, {}
        for (name, priority), messages in lanes.items():
            queue = self._tx.queue(name)
            assert queue is not None, "a queue is not deleted while messages are published"
            lane = lane_for(self._tx, queue, DEFAULT_PARTITION, priority)
            for part in in_segments(messages):
                _append(self._tx, queue, lane, part)


def stored_headers(queue: str, one: Publication) -> dict[str, str]:
    """The headers of a message, with its exchange and routing key unless they follow from the queue."""
    if one.exchange == DEFAULT_EXCHANGE and one.keys[0] == queue:
        return one.headers
    return {**one.headers, EXCHANGE: one.exchange, ROUTING_KEY: one.keys[0]}


def in_segments(messages: Iterable[M]) -> Iterator[list[M]]:
    """Split messages into lists that fit into a segment."""
    part: list[M] = []
    room = MAX_SEGMENT_BYTES
    for one in messages:
        if part and (len(one.payload) > room or len(part) >= MAX_SEGMENT_COUNT):
            yield part
            part, room = [], MAX_SEGMENT_BYTES
        part.append(one)
        room -= len(one.payload)
    yield part


def _append(tx: Tx, queue: Queue, lane: Lane, part: list[Routed]) -> None:
    ends, total = array("i"), 0
    for one in part:
        total += len(one.payload)
        ends.append(total)
    rest = Rest(
        headers={index: one.headers for index, one in enumerate(part) if one.headers},
        binary=ranges.of(index for index, one in enumerate(part) if one.binary),
    )
    segment = append(
        tx, queue, lane, ends.tobytes(), b"".join([one.payload for one in part]),
        None if rest.empty else rest, not_before=not_before(tx, queue, None),
    )  # fmt: skip
    for index, one in enumerate(part):
        if one.expires_at is not None:
            add_expiring(tx, lane.id, segment.first + index, one.expires_at)


def add_expiring(tx: Tx, lane: LaneId, sequence: int, at: int) -> None:
    """Let a message expire at a time."""
    tx.run("add_expiring", lane, sequence, at)
    tx.cache.expiring[lane] = True


# giving up messages


def to_dead_letter_exchange(
    tx: Tx, queue: Queue, lane: Lane, which: Ranges, reason: str, appender: Appender | None = None
) -> None:
    """Publish messages to the dead-letter exchange of their queue, if it has one.

    With an `appender`, they are published when that one finishes.
    """
    declared = tx.declaration(queue.id)
    if declared is None or declared.dead_letter_exchange is None:
        return
    if find_exchange(tx, declared.dead_letter_exchange) is None:
        return
    own = appender or Appender(tx)
    for segment, first, stop in tx.segments_over(lane.id, which):
        body = tx.body(segment)
        for index in range(first - segment.first, stop - segment.first):
            rest = rest_of(body, index) or Rest()
            one = _dead(tx, queue, declared, rest.headers.get(0, {}), reason)
            one.payload, one.binary = payload(body, index), bool(rest.binary)
            deaths = json.decode(one.headers[DEATHS])
            for name in route(tx, one.exchange, one.keys, one.headers):
                if reason == "rejected" or not _is_cycle(deaths, name):
                    own.add(name, one)
    if appender is None:
        own.finish()


def _dead(
    tx: Tx, queue: Queue, declared: Declaration, headers: Mapping[str, str], reason: str
) -> Publication:
    """Return a message as it goes to the dead-letter exchange, with the reason in its headers."""
    exchange, key = headers.get(EXCHANGE, DEFAULT_EXCHANGE), headers.get(ROUTING_KEY, queue.name)
    deaths = _deaths_in(headers)
    death: dict[str, Any] = {"queue": queue.name, "reason": reason, "count": 1}
    for known in deaths:
        if (known.get("queue"), known.get("reason")) == (queue.name, reason):
            death["count"] = 1 + (before if type(before := known.get("count")) is int else 0)
    deaths = [
        one for one in deaths if (one.get("queue"), one.get("reason")) != (queue.name, reason)
    ]
    death |= {"exchange": exchange, "routing-keys": [key], "time": int(when(tx.now).timestamp())}
    if EXPIRATION in headers:
        death["original-expiration"] = headers[EXPIRATION]
    kept = {k: v for k, v in headers.items() if k not in (EXPIRATION, EXCHANGE, ROUTING_KEY)}
    kept[DEATHS] = json.encode([death, *deaths]).decode()
    for what, value in (("queue", queue.name), ("reason", reason), ("exchange", exchange)):
        kept.setdefault(FIRST_DEATH + what, value)
    priority = headers.get(PRIORITY, "")
    return Publication(
        exchange=declared.dead_letter_exchange or "",
        keys=[key if declared.dead_letter_key is None else declared.dead_letter_key],
        headers=kept,
        priority=int(priority) if priority.isdecimal() and len(priority) <= 3 else None,
    )


def _deaths_in(headers: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the deaths in a header that a client may have written itself."""
    try:
        return json.decode(headers.get(DEATHS, "[]"), type=list[dict[str, Any]])
    except (MsgspecError, RecursionError):
        return []


def _is_cycle(deaths: list[dict[str, Any]], queue: str) -> bool:
    """Return whether a message came through this queue before, and no consumer rejected it since."""
    for death in deaths:
        if death.get("reason") == "rejected":
            return False
        if death.get("queue") == queue:
            return True
    return False


def drop_too_old(tx: Tx, queue: Queue, lane: Lane, limit: int) -> int:
    """Drop messages older than the time to live of their queue; see `retention.drop_unread`."""
    return drop_unread(tx, queue, lane, limit, _on_drop(tx, queue, lane, "expired"))


def _on_drop(
    tx: Tx, queue: Queue, lane: Lane, reason: str, appender: Appender | None = None
) -> Any:
    return partial(to_dead_letter_exchange, tx, queue, lane, reason=reason, appender=appender)


def drop_expired(tx: Tx, queue: Queue, lane: Lane) -> int:
    """Drop messages whose own time to live is over; returns how many rows of it were read.

    A leased message stays until its lease ends.
    """
    due = tx.expiring_in(lane.id, EXPIRED_AT_ONCE)
    if not due:
        return 0
    unread, held = unread_and_held(tx, lane, due[0], due[-1] + 1)
    for sequence in due:
        if ranges.contains(held, sequence):
            tx.run("put_off_expiring", lane.id, sequence, tx.now + HELD_AGAIN)
        else:
            tx.run("drop_expiring", lane.id, sequence)
    there = ranges.intersection(ranges.of(due), unread)
    if there:
        to_dead_letter_exchange(tx, queue, lane, there, "expired")
        drop_messages(tx, queue, lane, there)
    return len(due)


def has_expiring(tx: Tx, lane: LaneId) -> bool:
    """Return whether messages of a lane have a time to live of their own."""
    known = tx.cache.expiring.get(lane)
    if known is None:
        known = tx.cache.expiring[lane] = tx.one("any_expiring", lane) is not None
    return known


def ready_count(tx: Tx, queue: Queue) -> int:
    """Count the messages of a queue that could be delivered now to consumers without a group."""
    return sum(ranges.count(ready_in(tx, queue, lane)) for lane in tx.lanes(queue.id))


def ready_in(tx: Tx, queue: Queue, lane: Lane) -> Ranges:
    """Return the messages of a lane that could be delivered now to consumers without a group."""
    group = tx.group(queue.id, QUEUE_MODE)
    cursor = tx.cursor(lane.id, group.id) if group is not None else None
    if group is None or cursor is None:
        cursor = Cursor(lane.id, group.id if group else 0, lane.partition, 0, next=lane.base)  # type: ignore[arg-type]
    waiting = tx.unleased_claims(lane.id, cursor.group_id, lane.head)
    due = ranges.union_all(claim.ranges for claim in waiting if claim.state == DUE)
    if cursor.next >= lane.head or not count_unread(tx, lane, cursor):
        return due
    new = [cursor.next, lane.head]
    delayed: Ranges = []
    for odd in tx.odd_segments(lane, cursor.next):
        delayed = ranges.union(delayed, [odd.first, odd.stop]) if odd.delayed(tx.now) else delayed
    for others in (
        hidden_copies_in(tx, lane, cursor.group_id, *new), tx.gone(lane, *new), delayed
    ):  # fmt: skip
        new = ranges.difference(new, others)
    return ranges.union(due, new)


def drop_excess(tx: Tx, queue: Queue, declared: Declaration) -> None:
    """Drop the oldest messages of a queue that is longer than its declaration allows."""
    appender = Appender(tx)
    _drop_head(tx, queue, declared, appender)
    appender.finish()


def _drop_head(tx: Tx, queue: Queue, declared: Declaration, appender: Appender) -> None:
    """Drop the oldest ready messages above the limit, of low priority first."""
    most = declared.max_length
    assert most is not None
    lanes = sorted(tx.lanes(queue.id), key=lambda lane: -lane.priority)
    ready = [(lane, ready_in(tx, queue, lane)) for lane in lanes]
    excess = sum(ranges.count(which) for _, which in ready) - most
    for lane, which in ready:
        n = min(excess, ranges.count(which))
        if n > 0:
            stop = ranges.lowest(which, n)[-1]
            drop_before(tx, queue, lane, stop, _on_drop(tx, queue, lane, "maxlen", appender))
            excess -= n
