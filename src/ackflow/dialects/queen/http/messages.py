"""Messages in the Queen dialect: list, look at, delete, retry."""

from typing import Literal

from msgspec import Raw, Struct

from .... import ids
from ....clock import SECOND
from ....errors import InvalidArgument, NotFound
from ....options import QUEUE_MODE, QueueOptions
from ....server.http import Answer, Call, Param, json
from ..verbs import single_message
from ..verbs.recent import Recent, RecentRequest, recent
from ..verbs.single_message import MessageDetails
from ..verbs.subscriptions import groups_of, names
from .common import iso, partition_of
from .configure import told
from .paging import PAGE, SPAN, TEXT, iso_of, iso_or_none, looked, paging, raw, route, span
from .resources import LABELS

STATUSES = ("pending", "processing", "completed", "dead_letter")
WORDS = {"leased": "processing", "settled": "completed", "dead": "dead_letter"}
HOUR = 3600 * SECOND
NOT_FOUND = "Message not found"


class Bus(Struct, rename="camel"):
    """How many of the named groups have settled a message."""

    consumed_by: int
    total_groups: int


class Line(Struct, rename="camel"):
    id: str
    transaction_id: str
    partition_id: str
    queue_path: str
    queue: str
    partition: str
    namespace: str
    task: str
    status: str
    queue_status: str
    bus_status: Bus
    trace_id: str | None
    producer_sub: str | None
    queue_priority: int
    created_at: str
    lease_expires_at: str | None


class Mode(Struct, rename="camel"):
    """How the queues are read: as one queue, by named groups, or both."""

    has_queue_mode: bool
    bus_groups_count: int
    type: Literal["queue", "bus", "hybrid", "none"]


class Messages(Struct):
    messages: list[Line]
    mode: Mode


class Config(Struct, rename="camel"):
    lease_time: int | float
    retry_limit: int
    retry_delay: int | float
    ttl: int | float
    priority: int


class Reader(Struct, rename="camel"):
    name: str
    consumed: bool
    lease_expires_at: str | None
    status: str


class Detail(Line, rename="camel"):
    payload: Raw
    data: Raw
    is_encrypted: bool
    error_message: str | None
    retry_count: int
    queue_config: Config
    consumer_groups: list[Reader]


class Gone(Struct, rename="camel", omit_defaults=True):
    success: bool
    partition_id: str
    transaction_id: str
    message: str
    error: str | None = None


class Retried(Struct, rename="camel"):
    success: bool
    partition_id: str
    transaction_id: str
    retried: int


async def messages(call: Call) -> Answer:
    """The newest messages first, of the last hour when no time is given."""
    name = call.query.get("queue")
    if name:
        call.server.allow(call, name)
        chosen = [name] if name in await looked(call, names) else []
    else:
        namespace = call.query.get("ns") or call.query.get("namespace") or None
        found = await looked(call, names, None, namespace, call.query.get("task") or None)
        chosen = [queue for queue in found if call.server.sees(call, queue)]
    return await _listed(call, chosen)


async def queue_messages(call: Call) -> Answer:
    """The newest messages of a queue first."""
    return await _listed(call, [call.params["queue"]])


async def _listed(call: Call, queues: list[str]) -> Answer:
    page, status = paging(call, 200), call.query.get("status") or None
    if status is not None and status not in STATUSES:
        raise InvalidArgument(f"status is one of {', '.join(STATUSES)}, not {status!r}")
    since, until = span(call)
    now = call.server.broker.clock.now()
    if since is None:
        since = now - HOUR if until is None else 0
    request = RecentRequest(
        queues, call.query.get("partition") or None, since, 1 << 62 if until is None else until,
        status, page.limit, page.offset,
    )  # fmt: skip
    found = await looked(call, recent, request)
    store = call.server.broker.store.id
    return json(Messages([_line(store, one) for one in found], await _mode(call, queues)))


async def _mode(call: Call, queues: list[str]) -> Mode:
    groups = await looked(call, groups_of, queues)
    named = len(groups - {QUEUE_MODE})
    plain = QUEUE_MODE in groups
    kind: Literal["queue", "bus", "hybrid", "none"] = "queue" if plain else "none"
    if named:
        kind = "hybrid" if plain else "bus"
    return Mode(plain, named, kind)


def _line(store: int, one: Recent) -> Line:
    message = one.message
    named = {name: state for name, state in one.states.items() if name != QUEUE_MODE}
    return Line(
        message.id,
        message.transaction_id,
        ids.partition_uuid(store, one.partition_id),
        f"{message.queue}/{message.partition}",
        message.queue,
        message.partition,
        one.queue.options.namespace,
        one.queue.options.task,
        one.status,
        WORDS.get(one.states.get(QUEUE_MODE, ""), "pending"),
        Bus(sum(1 for state in named.values() if state == "settled"), len(named)),
        message.headers.get("traceId"),
        None,
        one.queue.options.priority,
        iso_of(message.created_at),
        iso_or_none(one.lease_until),
    )


async def message(call: Call) -> Answer:
    """All there is to know of one message."""
    partition, txid = await _named(call)
    found = await looked(call, single_message.message_details, partition, txid)
    return json(_detail(call.server.broker.store.id, found))


async def _named(call: Call) -> tuple[int, str]:
    """The message the path names, once the caller may see its queue."""
    partition = partition_of(call, call.params["partitionId"])
    queue = None if partition is None else await looked(call, single_message.queue_of, partition)
    if partition is None or queue is None:
        raise NotFound(NOT_FOUND)
    call.server.allow(call, queue)
    return partition, call.params["transactionId"]


def _detail(store: int, found: MessageDetails) -> Detail:
    place, options = found.place, found.place.queue.options
    states = found.found.states if found.found else {}
    dead = {row.group_id for row in found.letters}
    last = found.letters[-1] if found.letters else None
    named = {name: state for name, state in states.items() if name != QUEUE_MODE}
    data = raw(found.raw, found.is_json)
    return Detail(
        found.id,
        found.txid,
        ids.partition_uuid(store, place.partition.id),
        f"{place.queue.name}/{place.partition.name}",
        place.queue.name,
        place.partition.name,
        options.namespace,
        options.task,
        found.found.status if found.found else "dead_letter",
        WORDS.get(states.get(QUEUE_MODE, "dead" if dead else ""), "pending"),
        Bus(sum(1 for state in named.values() if state == "settled"), len(named)),
        found.headers.get("traceId"),
        None,
        options.priority,
        iso(found.created_at),
        iso_or_none(found.found.lease_until if found.found else None),
        data,
        data,
        options.encrypted,
        last.reason if last else None,
        last.failures if last else 0,
        _config(options),
        [_reader(name, states.get(name), found) for name in found.groups],
    )


def _config(options: QueueOptions) -> Config:
    said = told(options)
    return Config(said.lease_time, said.retry_limit, said.retry_delay, said.ttl, said.priority)


def _reader(name: str, state: str | None, found: MessageDetails) -> Reader:
    until = found.found.lease_until if found.found and state == "leased" else None
    word = WORDS.get(state or "settled", "pending")
    return Reader(name, word in ("completed", "dead_letter"), iso_or_none(until), word)


async def delete_message(call: Call) -> Answer:
    """Remove one message for every group."""
    try:
        partition, txid = await _named(call)
        gone = await call.server.do(single_message.remove, True, partition, txid)
    except NotFound:
        gone = False
    says = "Message deleted successfully" if gone else NOT_FOUND
    told = Gone(gone, call.params["partitionId"], call.params["transactionId"], says)
    if gone:
        return json(told)
    told.error = NOT_FOUND
    return json(told, 404)


async def retry_message(call: Call) -> Answer:
    """Send a dead letter back to the groups for which it died."""
    partition, txid = await _named(call)
    count = await call.server.do(single_message.retry, True, partition, txid)
    return json(Retried(True, call.params["partitionId"], txid, count))


_STATUS = Param("status", {"enum": [*STATUSES, ""]}, "Only those that stand so")
_FILTERS = (Param("partition", TEXT, "Of this partition"), _STATUS, *SPAN, *PAGE)
_ONE = "messages/{partitionId}/{transactionId}"
ROUTES = (
    route("GET", "messages", messages, "read-only", answers={200: Messages}, checks=True,
          query=(Param("queue", TEXT, "Of this queue"), Param("ns", TEXT, "Same as namespace"),
                 *LABELS, *_FILTERS),
          summary="The newest messages first; of the last hour, if no time is given"),
    route("GET", "status/queues/{queue}/messages", queue_messages, "read-only", query=_FILTERS,
          answers={200: Messages}, summary="The newest messages of a queue first"),
    route("GET", _ONE, message, "read-only", answers={200: Detail}, checks=True,
          summary="All there is to know of one message"),
    route("DELETE", _ONE, delete_message, "read-write", answers={200: Gone, 404: Gone},
          checks=True, summary="Remove one message for every group"),
    route("POST", _ONE + "/retry", retry_message, "read-write", answers={200: Retried},
          checks=True, summary="Send a dead letter back to its groups"),
)  # fmt: skip
