"""Messages in the Queen dialect: list, show, delete, retry."""

from typing import Literal

from msgspec import Raw, Struct

from .... import ids
from ....clock import SECOND
from ....errors import InvalidArgument, NotFound
from ....ids import PartitionId
from ....options import QUEUE_MODE, QueueOptions
from ....server.http import Call, Param, Response, json
from ..verbs import single_message
from ..verbs.recent import Recent, RecentRequest, recent
from ..verbs.single_message import MessageDetails
from ..verbs.subscriptions import groups_of, names
from .common import iso
from .configure import queen_options
from .paging import (
    PAGE,
    SPAN,
    TEXT,
    iso_of,
    iso_or_none,
    paging,
    partition_for,
    payload_json,
    read_current,
    route,
    span,
)
from .resources import LABELS

STATUSES = ("pending", "processing", "completed", "dead_letter")
STATUS_OF_STATE = {"leased": "processing", "settled": "completed", "dead": "dead_letter"}
HOUR = 3600 * SECOND
NOT_FOUND = "Message not found"


class BusStatus(Struct, rename="camel"):
    """The number of named groups, and of those that have settled the message."""

    consumed_by: int
    total_groups: int


class MessageLine(Struct, rename="camel"):
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
    bus_status: BusStatus
    trace_id: str | None
    producer_sub: str | None
    queue_priority: int
    created_at: str
    lease_expires_at: str | None


class QueueMode(Struct, rename="camel"):
    """Whether the queues are consumed without a group, by named groups, or both."""

    has_queue_mode: bool
    bus_groups_count: int
    type: Literal["queue", "bus", "hybrid", "none"]


class Messages(Struct):
    messages: list[MessageLine]
    mode: QueueMode


class QueueConfig(Struct, rename="camel"):
    lease_time: int | float
    retry_limit: int
    retry_delay: int | float
    ttl: int | float
    priority: int


class GroupStatus(Struct, rename="camel"):
    name: str
    consumed: bool
    lease_expires_at: str | None
    status: str


class MessageDetail(MessageLine, rename="camel"):
    payload: Raw
    data: Raw
    is_encrypted: bool
    error_message: str | None
    retry_count: int
    queue_config: QueueConfig
    consumer_groups: list[GroupStatus]


class DeleteResult(Struct, rename="camel", omit_defaults=True):
    success: bool
    partition_id: str
    transaction_id: str
    message: str
    error: str | None = None


class RetryResult(Struct, rename="camel"):
    success: bool
    partition_id: str
    transaction_id: str
    retried: int


async def messages(call: Call) -> Response:
    """List messages, newest first; without a time, those of the last hour."""
    name = call.query.get("queue")
    if name:
        call.server.allow(call, name)
        chosen = [name] if name in await read_current(call, names) else []
    else:
        namespace = call.query.get("ns") or call.query.get("namespace") or None
        found = await read_current(call, names, None, namespace, call.query.get("task") or None)
        chosen = [queue for queue in found if call.server.may_see(call, queue)]
    return await _listed(call, chosen)


async def queue_messages(call: Call) -> Response:
    """List the messages of a queue, newest first."""
    return await _listed(call, [call.params["queue"]])


async def _listed(call: Call, queues: list[str]) -> Response:
    page, status = paging(call, 200), call.query.get("status") or None
    if status is not None and status not in STATUSES:
        raise InvalidArgument(f"status must be one of {', '.join(STATUSES)}, got {status!r}")
    since, until = span(call)
    now = call.server.broker.clock.now()
    if since is None:
        since = now - HOUR if until is None else 0
    request = RecentRequest(
        queues, call.query.get("partition") or None, since, 1 << 62 if until is None else until,
        status, page.limit, page.offset,
    )  # fmt: skip
    found = await read_current(call, recent, request)
    store = call.server.broker.store.id
    return json(Messages([_line(store, one) for one in found], await _mode(call, queues)))


async def _mode(call: Call, queues: list[str]) -> QueueMode:
    groups = await read_current(call, groups_of, queues)
    named = len(groups - {QUEUE_MODE})
    plain = QUEUE_MODE in groups
    kind: Literal["queue", "bus", "hybrid", "none"] = "queue" if plain else "none"
    if named:
        kind = "hybrid" if plain else "bus"
    return QueueMode(plain, named, kind)


def _line(store: int, one: Recent) -> MessageLine:
    message = one.message
    named = {name: state for name, state in one.states.items() if name != QUEUE_MODE}
    return MessageLine(
        message.id,
        message.transaction_id,
        ids.partition_uuid(store, one.partition_id),
        f"{message.queue}/{message.partition}",
        message.queue,
        message.partition,
        one.queue.options.namespace,
        one.queue.options.task,
        one.status,
        STATUS_OF_STATE.get(one.states.get(QUEUE_MODE, ""), "pending"),
        BusStatus(sum(1 for state in named.values() if state == "settled"), len(named)),
        message.headers.get("traceId"),
        None,
        one.queue.options.priority,
        iso_of(message.created_at),
        iso_or_none(one.lease_until),
    )


async def message(call: Call) -> Response:
    """Show one message with its state in every group."""
    partition, txid = await _message_of_path(call)
    found = await read_current(call, single_message.message_details, partition, txid)
    return json(_detail(call.server.broker.store.id, found))


async def _message_of_path(call: Call) -> tuple[PartitionId, str]:
    """Partition and transaction id of the path; checks the token against the queue."""
    partition = await partition_for(call, call.params["partitionId"], NOT_FOUND)
    return partition, call.params["transactionId"]


def _detail(store: int, found: MessageDetails) -> MessageDetail:
    place, options = found.place, found.place.queue.options
    states = found.found.states if found.found else {}
    dead = {row.group_id for row in found.letters}
    last = found.letters[-1] if found.letters else None
    named = {name: state for name, state in states.items() if name != QUEUE_MODE}
    data = payload_json(found.raw, found.is_json)
    return MessageDetail(
        found.id,
        found.txid,
        ids.partition_uuid(store, place.partition.id),
        f"{place.queue.name}/{place.partition.name}",
        place.queue.name,
        place.partition.name,
        options.namespace,
        options.task,
        found.found.status if found.found else "dead_letter",
        STATUS_OF_STATE.get(states.get(QUEUE_MODE, "dead" if dead else ""), "pending"),
        BusStatus(sum(1 for state in named.values() if state == "settled"), len(named)),
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


def _config(options: QueueOptions) -> QueueConfig:
    o = queen_options(options)
    return QueueConfig(o.lease_time, o.retry_limit, o.retry_delay, o.ttl, o.priority)


def _reader(name: str, state: str | None, found: MessageDetails) -> GroupStatus:
    until = found.found.lease_until if found.found and state == "leased" else None
    word = STATUS_OF_STATE.get(state or "settled", "pending")
    return GroupStatus(name, word in ("completed", "dead_letter"), iso_or_none(until), word)


async def delete_message(call: Call) -> Response:
    """Delete one message for every group."""
    try:
        partition, txid = await _message_of_path(call)
        gone = await call.server.do(single_message.remove, True, partition, txid)
    except NotFound:
        gone = False
    text = "Message deleted successfully" if gone else NOT_FOUND
    result = DeleteResult(gone, call.params["partitionId"], call.params["transactionId"], text)
    if gone:
        return json(result)
    result.error = NOT_FOUND
    return json(result, 404)


async def retry_message(call: Call) -> Response:
    """Redrive a dead letter to the groups in which it died."""
    partition, txid = await _message_of_path(call)
    count = await call.server.do(single_message.retry, True, partition, txid)
    return json(RetryResult(True, call.params["partitionId"], txid, count))


_STATUS = Param("status", {"enum": [*STATUSES, ""]}, "Only messages with this status")
_FILTERS = (Param("partition", TEXT, "Name of the partition"), _STATUS, *SPAN, *PAGE)
_ONE = "messages/{partitionId}/{transactionId}"
ROUTES = (
    route("GET", "messages", messages, "read-only", responses={200: Messages}, checks_queues=True,
          query=(Param("queue", TEXT, "Name of the queue"), Param("ns", TEXT, "Same as namespace"),
                 *LABELS, *_FILTERS),
          summary="List messages, newest first; by default those of the last hour"),
    route("GET", "status/queues/{queue}/messages", queue_messages, "read-only", query=_FILTERS,
          responses={200: Messages}, summary="List messages of a queue, newest first"),
    route("GET", _ONE, message, "read-only", responses={200: MessageDetail}, checks_queues=True,
          summary="Show one message"),
    route("DELETE", _ONE, delete_message, "read-write", responses={200: DeleteResult, 404: DeleteResult},
          checks_queues=True, summary="Delete one message for every group"),
    route("POST", _ONE + "/retry", retry_message, "read-write", responses={200: RetryResult},
          checks_queues=True, summary="Redrive a dead letter to its groups"),
)  # fmt: skip
