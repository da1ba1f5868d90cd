"""Traces in the Queen dialect: events that consumers record about messages."""

from typing import Any

from msgspec import Raw, Struct, field

from .... import ids, validate
from ....errors import InvalidArgument
from ....server.http import Call, Response, json
from ..verbs import traces
from ..verbs.traces import NewTrace, Trace
from .common import iso, large_body_of
from .paging import PAGE, Paging, no_value, paging, partition_for, payload_json, read_current, route

MAX_NAMES = 100
NOT_FOUND = "Message not found"


class TraceBody(Struct, rename="camel"):
    """An event about a message; `traceNames` is one name or a list."""

    transaction_id: str | None = None
    partition_id: str | None = None
    consumer_group: str | None = None
    trace_names: list[str] | str | None = None
    event_type: str | None = None
    data: Raw = field(default_factory=no_value)


class TraceResult(Struct, rename="camel"):
    success: bool
    trace_id: str


class TraceEntry(Struct):
    id: str
    event_type: str
    data: Raw
    consumer_group: str | None
    worker_id: str | None
    created_at: str
    trace_names: list[str]


class NamedTraceEntry(TraceEntry):
    transaction_id: str
    partition_id: str
    queue_name: str | None
    partition_name: str | None
    message_payload: Raw


class TraceEntries(Struct):
    traces: list[TraceEntry]


class NamedTraceEntries(Struct):
    traces: list[NamedTraceEntry]
    total: int
    pagination: Paging


class TraceNameLine(Struct):
    trace_name: str
    trace_count: int
    message_count: int
    last_seen: str


class TraceNameLines(Struct):
    trace_names: list[TraceNameLine]
    total: int
    pagination: Paging


async def record(call: Call) -> Response:
    """Record an event about a message."""
    given = await large_body_of(call, TraceBody)
    if not given.transaction_id or not given.partition_id:
        raise InvalidArgument("transactionId and partitionId are required")
    if bytes(given.data) == b"null":
        raise InvalidArgument("data is required")
    partition = await partition_for(call, given.partition_id, NOT_FOUND)
    host, port = call.client
    event = validate.name(given.event_type or "info", "eventType")
    group = None if given.consumer_group is None else validate.text(given.consumer_group, "group")
    trace = NewTrace(
        partition, given.transaction_id, event, bytes(given.data), _names(given), group,
        f"{host}:{port}",
    )  # fmt: skip
    id = await call.server.do(traces.record, False, trace)
    return json(TraceResult(True, ids.row_uuid("trace", call.server.broker.store.id, id)), 201)


def _names(given: TraceBody) -> list[str]:
    names = given.trace_names or []
    found = [names] if isinstance(names, str) else names
    if len(found) > MAX_NAMES:
        raise InvalidArgument(f"a trace must have at most {MAX_NAMES} names, got {len(found)}")
    return [validate.name(name, "traceNames") for name in found if name]


async def of_message(call: Call) -> Response:
    """List the traces of one message, oldest first."""
    partition = await partition_for(call, call.params["partitionId"], NOT_FOUND)
    found = await read_current(call, traces.of_message, partition, call.params["transactionId"])
    store = call.server.broker.store.id
    return json(TraceEntries([TraceEntry(**_entry(store, one)) for one in found]))


def _entry(store: int, one: Trace) -> dict[str, Any]:
    return {
        "id": ids.row_uuid("trace", store, one.id),
        "event_type": one.event,
        "data": Raw(one.data),
        "consumer_group": one.group,
        "worker_id": one.consumer,
        "created_at": iso(one.at),
        "trace_names": one.names,
    }


async def by_name(call: Call) -> Response:
    """List the traces of a name, oldest first."""
    page, store = paging(call, 100), call.server.broker.store.id
    found, total = await read_current(
        call, traces.by_name, call.params["name"], page.limit, page.offset
    )
    return json(NamedTraceEntries([_named(store, one) for one in found], total, page))


def _named(store: int, one: traces.TracedMessage) -> NamedTraceEntry:
    place = one.place
    return NamedTraceEntry(
        **_entry(store, one.trace),
        transaction_id=one.trace.txid,
        partition_id=ids.partition_uuid(store, one.trace.partition),
        queue_name=place.queue.name if place else None,
        partition_name=place.partition.name if place else None,
        message_payload=no_value() if one.raw is None else payload_json(one.raw, one.is_json),
    )


async def names(call: Call) -> Response:
    """List all trace names, the most recently used first."""
    page = paging(call, 100)
    found, total = await read_current(call, traces.names, page.limit, page.offset)
    listed = [TraceNameLine(one.name, one.traces, one.messages, iso(one.last_at)) for one in found]
    return json(TraceNameLines(listed, total, page))


ROUTES = (
    route("POST", "traces", record, "read-write", body=TraceBody, responses={201: TraceResult}, checks_queues=True,
          summary="Record a trace of a message"),
    route("GET", "traces/names", names, "read-only", query=PAGE, responses={200: TraceNameLines},
          summary="List trace names"),
    route("GET", "traces/by-name/{name}", by_name, "read-only", query=PAGE,
          responses={200: NamedTraceEntries}, summary="List the traces of a name"),
    route("GET", "traces/{partitionId}/{transactionId}", of_message, "read-only", checks_queues=True,
          responses={200: TraceEntries}, summary="List the traces of a message"),
)  # fmt: skip
