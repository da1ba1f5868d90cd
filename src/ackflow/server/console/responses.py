"""The responses of the dashboard's endpoints, and how they are made from the broker's views."""

import asyncio
import base64
import os
import shutil
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from ...broker.sampling.live_stats import LiveStats, QueueLine, Rates
from ...broker.sampling.series import Interval
from ...broker.sharded.broker import ShardedBroker
from ...broker.views.board import Health, QueueDetails
from ...broker.views.fate import GroupFate
from ...broker.views.metrics import GroupMetrics
from ...clock import micros
from ...errors import InvalidArgument
from ...model import BrokerInfo, DeadLetter, LeaseStats, StoredMessage
from ..http import Call, Param, Route
from .ui import TAG

T = TypeVar("T")
PAGE = 100
MOST_PAGE = 1_000
MOST_GROUPS = 200  # on the page of a queue
SHORT, LONG = 400, 256 * 1024  # bytes of payloads in lists and on the page of a message
MOST_SECONDS = 5.0
MAX_TIME = 4e12  # seconds since 1970
MAX_SEQUENCE = (1 << 48) - 1
TAIL_SECONDS, TAIL_PAUSE, TAIL_MESSAGES = 15.0, 0.25, 200
SPARKS = 60


class Totals(Struct):
    """All queues that the token covers, added up."""

    queues: int = 0
    paused: int = 0
    ready: int = 0
    leased: int = 0
    waiting: int = 0
    dead: int = 0
    oldest_seconds: float = 0.0
    rates: Rates | None = None


class QueueRow(Struct):
    """A queue in a list. `lag`: what the group furthest behind has not settled. `spark`: messages
    pushed per second, in each of the last 60 minutes."""

    name: str
    paused: bool
    groups: int
    paused_groups: int
    stored: int
    ready: int
    leased: int
    waiting: int
    dead: int
    lag: int
    failed: int
    oldest_seconds: float
    rates: Rates | None
    trouble: list[str]
    spark: list[float] | None = None


class DatabasePlace(Struct):
    """One of several databases, and whether it answers."""

    place: str
    up: bool


class Storage(Struct):
    """Where the messages are. Sizes are known for a file only; `places` of several databases."""

    kind: str
    bytes: int | None = None
    free_bytes: int | None = None
    places: list[DatabasePlace] = []


class Overview(Struct):
    """The state of the whole database, queues in trouble first.

    `brokers` are the processes that have it open; they are shown to a token for every queue.
    """

    at: Any
    version: str
    uptime_seconds: float
    totals: Totals
    trouble: list[QueueRow]
    busiest: list[QueueRow]
    health: Health
    storage: Storage
    waiting_pops: int
    snapshot_seconds: float
    brokers: list[BrokerInfo]


class QueueRows(Struct):
    """A page of queues; `total` is the number of those that fit the filter."""

    at: Any
    items: list[QueueRow]
    next: int | None
    total: int


class GroupRow(Struct):
    """A group in a list."""

    queue: str
    group: str
    paused: bool
    ready: int
    leased: int
    waiting: int
    dead: int
    lag: int
    delivered: int
    acked: int
    failed: int
    redelivered: int
    leases_expired: int
    oldest_seconds: float


class GroupRows(Struct):
    at: Any
    items: list[GroupRow]
    next: int | None
    total: int


class QueuePage(Struct):
    """A queue with its live counters, its first groups and its options."""

    line: QueueRow
    groups: list[GroupRow]
    details: QueueDetails
    more_groups: bool


class MessageRow(Struct):
    """A stored message. `payload` is JSON as text, or bytes in base64 if `json` is false."""

    id: str
    queue: str
    partition: str
    priority: int
    sequence: int
    created_at: Any
    due_at: Any
    transaction_id: str
    headers: dict[str, str]
    size: int
    json: bool
    payload: str
    truncated: bool
    state: str | None


class Location(Struct):
    """Where a message is, or was."""

    queue: str


class MessageRows(Struct):
    """A page of messages; `scanned` were looked at within the time limit."""

    items: list[MessageRow]
    next: str | None
    scanned: int


class MessagePage(Struct):
    """A message, and its fate in every group. If it is not `stored`, it is what its dead letter kept."""

    message: MessageRow | None
    stored: bool
    groups: list[GroupFate]
    more_groups: bool


class DeadRow(Struct):
    """A dead letter."""

    id: int
    message_id: str
    queue: str
    group: str
    partition: str
    priority: int
    kind: str
    reason: str | None
    error: str | None
    deliveries: int
    failures: int
    created_at: Any
    died_at: Any
    consumer: str | None
    transaction_id: str
    headers: dict[str, str]
    size: int
    json: bool
    payload: str
    truncated: bool


class DeadRows(Struct):
    items: list[DeadRow]
    next: int | None


class LeaseRows(Struct):
    """Live leases; `more` if the limit or the time was reached."""

    items: list[LeaseStats]
    more: bool


class SeriesPage(Struct):
    """Steps of a chart, the oldest first."""

    step: int
    items: list[Interval]


class TokenRow(Struct):
    name: str
    grants: list[tuple[str, str]]
    created_at: Any
    expires_at: Any
    revoked_at: Any


def page_limit(call: Call, default: int = PAGE) -> int:
    return call.integer("limit", default, 1, MOST_PAGE)


def optional(call: Call, name: str) -> str | None:
    """A parameter of the query, or None if it is missing or empty."""
    return call.query.get(name) or None


def time_of(given: str, name: str) -> int:
    """A time in seconds since 1970, as microseconds."""
    try:
        seconds = float(given)
        if not 0 <= seconds <= MAX_TIME:
            raise ValueError
    except ValueError:
        raise InvalidArgument(f"{name} must be seconds since 1970, got {given!r}") from None
    return micros(seconds)


def seconds_of(call: Call) -> float:
    """The time limit of a search, at most `MOST_SECONDS`."""
    return call.seconds("seconds", 1.0, MOST_SECONDS) or 1.0


def look(call: Call, verb: Callable[..., T], *args: Any, **kwargs: Any) -> "asyncio.Future[T]":
    """Run a bounded read beside the writer; due leases count as over whether or not they were ended."""
    broker = call.server.broker
    return call.server.in_read_lane(lambda: broker.look(verb, *args, **kwargs))


def look_at_payloads(call: Call, verb: Callable[..., T], *args: Any) -> "asyncio.Future[T]":
    """The same for a read that returns payloads: refused while slow clients hold much memory."""
    broker = call.server.broker
    return call.server.in_read_lane_if_room(lambda: broker.look(verb, *args))


async def snapshot_of(call: Call) -> LiveStats:
    """The last snapshot of all queues, which all viewers share."""
    return await call.server.in_read_lane(call.server.broker.stats.get)


async def live(call: Call) -> tuple[LiveStats, list[QueueLine]]:
    """The last snapshot, and the queues in it that the caller may see."""
    found = await snapshot_of(call)

    def visible() -> list[QueueLine]:
        if sees_all(call):
            return list(found.queues.values())
        may_see = call.server.may_see
        return [line for name, line in found.queues.items() if may_see(call, name)]

    return found, await call.server.compute(len(found.queues), visible)


def sees_all(call: Call) -> bool:
    return call.who is None or call.who.may_everywhere(call.role)


async def derived(call: Call, found: LiveStats, name: str, make: Callable[[], T]) -> T:
    """What follows from a snapshot, computed once for all callers who may see every queue."""
    queues, kept = len(found.queues), call.server.dashboard.kept
    if not sees_all(call):
        return await call.server.compute(queues, make)
    known: T | None = kept.known(found, name)
    if known is None:
        known = kept.keep(found, name, await call.server.compute(queues, make))
    return known


def row_of(line: QueueLine) -> QueueRow:
    return QueueRow(
        line.name, line.paused, len(line.groups), sum(group.paused for group in line.groups),
        line.stored, line.ready, line.leased, line.waiting, line.dead, line.lag, line.failed,
        line.oldest_seconds, line.rates, line.trouble,
    )  # fmt: skip


def totals_of(lines: Iterable[QueueLine]) -> Totals:
    found = Totals()
    sums = [0.0] * 5
    known = False
    for line in lines:
        found.queues += 1
        found.paused += line.paused
        found.ready += line.ready
        found.leased += line.leased
        found.waiting += line.waiting
        found.dead += line.dead
        found.oldest_seconds = max(found.oldest_seconds, line.oldest_seconds)
        if line.rates is not None:
            known = True
            rates = line.rates
            for at, n in enumerate(
                (rates.pushed, rates.delivered, rates.acked, rates.failed, rates.dead)
            ):
                sums[at] += n
    found.rates = Rates(*(round(n, 3) for n in sums)) if known or not found.queues else None
    return found


def group_row(group: GroupMetrics) -> GroupRow:
    return GroupRow(
        group.queue, group.name, group.paused, group.ready, group.leased, group.waiting, group.dead,
        group.lag, group.delivered, group.acked, group.failed, group.redelivered,
        group.leases_expired, group.oldest_ready_seconds,
    )  # fmt: skip


def storage_of(call: Call) -> Storage:
    broker = call.server.broker
    if isinstance(broker, ShardedBroker):
        places = [DatabasePlace(one.place, one.up) for one in broker.databases]
        return Storage(f"{len(places)} databases", places=places)
    path = getattr(broker.store, "path", None)
    if not isinstance(path, str) or not os.path.exists(path):
        return Storage("memory" if path == ":memory:" else "PostgreSQL")
    size = sum(os.path.getsize(path + end) for end in ("", "-wal") if os.path.exists(path + end))
    return Storage("SQLite", size, shutil.disk_usage(os.path.dirname(path) or ".").free)


def message_row(call: Call, message: StoredMessage, most: int = SHORT) -> MessageRow:
    """A message for display: masked, and truncated to a size."""
    masking = call.server.dashboard.masking
    is_json, size, text, cut = body_for_page(call, message.raw, message.is_json, most)
    return MessageRow(
        message.id, message.queue, message.partition, message.priority, message.sequence,
        message.created_at, message.due_at, message.transaction_id,
        masking.headers(message.headers), size, is_json, text, cut, message.state,
    )  # fmt: skip


def body_for_page(call: Call, raw: bytes, is_json: bool, most: int) -> tuple[bool, int, str, bool]:
    """A payload as text: whether it is JSON, its size, the text, and whether it was cut."""
    masking = call.server.dashboard.masking
    size = len(raw)
    if not is_json:
        if masking:
            return False, size, "", True  # its fields are not known
        return False, size, base64.b64encode(raw[: most // 4 * 3]).decode(), size > most // 4 * 3
    masked = masking.payload(raw)
    text = masked[:most].decode("utf-8", "ignore")
    return True, size, text, len(masked) > most


def masked(call: Call, data: Any) -> Any:
    """A keyed value for display."""
    masking = call.server.dashboard.masking
    if not masking:
        return data
    return msgspec.json.decode(masking.payload(msgspec.json.encode(data)))


def dead_row(call: Call, letter: DeadLetter) -> DeadRow:
    is_json, size, text, cut = body_for_page(call, letter.raw, letter.is_json, SHORT)
    return DeadRow(
        letter.id, letter.message_id, letter.queue, letter.group, letter.partition, letter.priority,
        letter.kind, letter.reason, letter.error, letter.deliveries, letter.failures,
        letter.created_at, letter.died_at, letter.consumer, letter.transaction_id,
        call.server.dashboard.masking.headers(letter.headers), size, is_json, text, cut,
    )  # fmt: skip


ANY = {"type": "string"}
NUMBER = {"type": "integer", "minimum": 0}
LIMIT = Param("limit", {"type": "integer", "minimum": 1, "maximum": MOST_PAGE}, "Rows at most")
AFTER = Param("after", NUMBER, "The `next` of the previous page")
SECONDS = Param("seconds", {"type": "number", "minimum": 0, "maximum": MOST_SECONDS},
                "Time limit of the search")  # fmt: skip
QUEUE = Param("queue", ANY, "Only this queue")
GROUP = Param("group", ANY, "Only this group")


def read_route(
    path: str, handler: Any, summary: str, answer: Any, *query: Param, **more: Any
) -> Route:
    return Route(
        "GET", path, handler, more.pop("role", "read-only"), tag=TAG, summary=summary, query=query,
        responses={200: answer}, cookies=True, **more,
    )  # fmt: skip
