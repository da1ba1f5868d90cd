"""The fate of a message: its state in every group, and its history."""

import contextlib
import time
from datetime import datetime

from msgspec import Struct, structs

from ... import ids, ranges
from ...errors import NotFound
from ...model import StoredMessage, Why, when
from ...store.records import DeadRow, Group, Lane, Queue
from ...store.tx import Tx
from ..core.dead_letters import letters
from ..core.topology import find_queue
from ..core.upkeep.expiry import SLICE_SECONDS, refresh
from ..reach.merging import Several
from ..verb import verb
from .browse import get
from .why import why

MOST_GROUPS = 50
MOST_EVENTS = 200
# How the history of a lease names an end that is not a verb.
WORDS = {
    "expired": "lease expired", "thrown away": "dead letter purged", "redriven": "redriven",
    "skipped": "skipped by a seek", "retention": "removed by retention", "dead_letter": "dead-lettered",
    "ack": "acknowledged", "nack": "failed", "release": "released", "requeue": "requeued",
    "reject": "rejected", "purged": "purged", "deleted": "deleted", "gone": "removed",
}  # fmt: skip


class Event(Struct, frozen=True, omit_defaults=True):
    """Something that happened to a message. `kind` is `pushed`, `delivered` or how it ended."""

    at: datetime
    kind: str
    text: str
    consumer: str | None = None
    token: str | None = None
    details: str | None = None


class GroupFate(Struct, frozen=True):
    """The state of a message in one group, as the sentence `why`, and its history."""

    group: str
    why: Why
    events: list[Event]


class Fate(Struct, frozen=True):
    """A message and its state and history in every group.

    If it is not `stored` any more, `message` is what its dead letter kept.
    """

    message: StoredMessage | None
    stored: bool
    groups: list[GroupFate]
    more_groups: bool


@verb(
    "read-only",
    name="refresh_groups",
    queue="queue_name",
    wire=False,
    several=Several(message="id"),
)
def refresh_groups(tx: Tx, queue_name: str, id: str, group_name: str | None = None) -> bool:
    """End some leases of a queue that are over, and make claims due, as upkeep does for all queues.

    Returns whether there may be more; call it until there are none, before `fate`.
    """
    queue = find_queue(tx, queue_name)
    until, changed = time.monotonic() + SLICE_SECONDS, False
    for group in tx.groups(queue.id)[:MOST_GROUPS]:
        if group_name not in (None, group.name):
            continue
        found = refresh(tx, group)
        if found.changed:
            changed = True
            tx.touched.add(queue.name)
        if found.more or (changed and time.monotonic() > until):
            return True
    return False


@verb("read-only", name="fate", queue="queue_name", read_only=True, wire=False,
      several=Several(message="id"))  # fmt: skip
def fate(tx: Tx, queue_name: str, id: str, group_name: str | None = None) -> Fate:
    """Return the fate of a message. The history covers the time that the queue keeps it."""
    queue = find_queue(tx, queue_name)
    place = ids.parse_message_id(id)
    groups = [
        group for group in tx.groups(queue.id) if group_name is None or group.name == group_name
    ]
    lane = tx.lane(place.lane) if place.store == tx.store else None
    fates = []
    for group in groups[:MOST_GROUPS]:
        reason = why(tx, queue_name, id, group.name)
        known = lane is not None and lane.queue == queue.id
        events = _events(tx, group, lane, place.sequence) if known and lane else []
        last = max((n for n, event in enumerate(events) if event.kind == "nack"), default=None)
        if (
            last is not None and reason.error and reason.state != "dead"
        ):  # the claim has the last one
            events[last] = structs.replace(events[last], details=reason.error)
        fates.append(GroupFate(group.name, reason, events))
    message, stored = _message(tx, queue, id, lane, place.sequence)
    return Fate(message, stored, fates, len(groups) > MOST_GROUPS)


@verb("read-only", name="kept_message", queue="queue_name", read_only=True, wire=False,
      several=Several(message="id"))  # fmt: skip
def kept_message(tx: Tx, queue_name: str, id: str) -> StoredMessage:
    """Return a message as it is stored, or as its dead letter keeps it."""
    queue = find_queue(tx, queue_name)
    place = ids.parse_message_id(id)
    lane = tx.lane(place.lane) if place.store == tx.store else None
    message, _ = _message(tx, queue, id, lane, place.sequence)
    if message is None:
        raise NotFound(f"queue {queue_name!r} does not store a message {id}")
    return message


@verb("read-only", name="queue_of_message", read_only=True, wire=False)
def queue_of_message(tx: Tx, id: str) -> str:
    """Return the queue of a message, stored or not; its id tells the lane."""
    place = ids.parse_message_id(id)
    lane = tx.lane(place.lane) if place.store == tx.store else None
    queue = tx.queue_by_id(lane.queue) if lane is not None else None
    if lane is None or queue is None or place.sequence >= lane.head:
        raise NotFound(f"there is no message {id}")
    return queue.name


def _message(
    tx: Tx, queue: Queue, id: str, lane: Lane | None, sequence: int
) -> tuple[StoredMessage | None, bool]:
    """Return a message and whether the queue stores it; if not, the copy of a dead letter of it."""
    with contextlib.suppress(NotFound):
        return get(tx, queue.name, id, None), True
    if lane is None or lane.queue != queue.id:
        return None, False
    for group in tx.groups(queue.id):
        for one in letters(tx, queue.name, tx.dead("dead_of", group.id, lane.id, sequence)):
            return StoredMessage(
                id, queue.name, one.partition, one.priority, sequence, one.created_at, one.created_at,
                one.raw, one.is_json, one.transaction_id, one.headers,
            ), False  # fmt: skip
    return None, False


def _events(tx: Tx, group: Group, lane: Lane, sequence: int) -> list[Event]:
    events: list[Event] = []
    for segment, _, _ in tx.segments_over(lane.id, [sequence, sequence + 1]):
        events.append(Event(when(segment.created_at), "pushed", "Pushed"))
        if segment.not_before is not None:
            at = when(segment.not_before)
            events.append(Event(at, "due", "Due: its delay ends", None))
    deliveries = []
    for lease in tx.leases_of(lane.id, group.id, sequence)[:MOST_EVENTS]:
        mine = [part for part in lease.parts if part.lane == lane.id]
        token = ids.token_text(lease.token)
        if lease.consumer and any(ranges.contains(part.ranges, sequence) for part in mine):
            deliveries.append(
                Event(when(lease.acquired_at), "delivered", "Delivered", lease.consumer, token)
            )
        for end in lease.fates:
            if end.lane == lane.id and ranges.contains(end.ranges, sequence):
                words = WORDS.get(end.verb, end.verb).capitalize()
                events.append(Event(when(end.at), end.verb, words, lease.consumer or None, token))
    events += deliveries
    for row in tx.dead("dead_of", group.id, lane.id, sequence):
        events.append(_died(row))
    order = {"pushed": 0, "due": 1, "delivered": 2}
    events.sort(key=lambda event: (event.at.replace(microsecond=0), order.get(event.kind, 3)))
    return events[-MOST_EVENTS:]


def _died(row: DeadRow) -> Event:
    text = f"Dead letter ({row.kind})"
    reason = row.reason or row.error
    return Event(when(row.died_at), "dead", text, row.consumer, None, reason)
