"""Traces in the Queen dialect: what consumers tell of a message, by message and by name."""

from typing import Any

from msgspec import Raw, Struct, field

from .... import ids, validate
from ....errors import InvalidArgument, NotFound
from ....server.http import Answer, Call, json
from ..verbs import traces
from ..verbs.single_message import queue_of
from ..verbs.traces import NewTrace, Trace
from .common import body_of, iso, partition_of
from .paging import PAGE, Paging, looked, no_value, paging, raw, route

MOST_NAMES = 100


class Tell(Struct, rename="camel"):
    """What a consumer tells of a message; `traceNames` is a text or a list of them."""

    transaction_id: str | None = None
    partition_id: str | None = None
    consumer_group: str | None = None
    trace_names: list[str] | str | None = None
    event_type: str | None = None
    data: Raw = field(default_factory=no_value)


class Told(Struct, rename="camel"):
    success: bool
    trace_id: str


class Entry(Struct):
    id: str
    event_type: str
    data: Raw
    consumer_group: str | None
    worker_id: str | None
    created_at: str
    trace_names: list[str]


class NamedEntry(Entry):
    transaction_id: str
    partition_id: str
    queue_name: str | None
    partition_name: str | None
    message_payload: Raw


class Entries(Struct):
    traces: list[Entry]


class NamedEntries(Struct):
    traces: list[NamedEntry]
    total: int
    pagination: Paging


class Name(Struct):
    trace_name: str
    trace_count: int
    message_count: int
    last_seen: str


class Names(Struct):
    trace_names: list[Name]
    total: int
    pagination: Paging


async def tell(call: Call) -> Answer:
    """Keep what a consumer tells of a message."""
    given = body_of(call, Tell)
    if not given.transaction_id or not given.partition_id:
        raise InvalidArgument("transactionId and partitionId are required")
    if bytes(given.data) == b"null":
        raise InvalidArgument("data is required")
    partition = await _partition(call, given.partition_id)
    host, port = call.scope.get("client") or ("unknown", 0)
    event = validate.name(given.event_type or "info", "eventType")
    group = None if given.consumer_group is None else validate.text(given.consumer_group, "group")
    trace = NewTrace(
        partition, given.transaction_id, event, bytes(given.data), _names(given), group,
        f"{host}:{port}",
    )  # fmt: skip
    id = await call.server.do(traces.record, False, trace)
    return json(Told(True, ids.row_uuid("trace", call.server.broker.store.id, id)), 201)


def _names(given: Tell) -> list[str]:
    names = given.trace_names or []
    found = [names] if isinstance(names, str) else names
    if len(found) > MOST_NAMES:
        raise InvalidArgument(f"a trace has at most {MOST_NAMES} names")
    return [validate.name(name, "traceNames") for name in found if name]


async def _partition(call: Call, text: str) -> int:
    partition = partition_of(call, text)
    queue = None if partition is None else await looked(call, queue_of, partition)
    if partition is None or queue is None:
        raise NotFound("Message not found")
    call.server.allow(call, queue)
    return partition


async def of_message(call: Call) -> Answer:
    """Everything told of one message, oldest first."""
    partition = await _partition(call, call.params["partitionId"])
    found = await looked(call, traces.of_message, partition, call.params["transactionId"])
    store = call.server.broker.store.id
    return json(Entries([Entry(**_entry(store, one)) for one in found]))


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


async def by_name(call: Call) -> Answer:
    """The traces of a name, in the order they were told."""
    page, store = paging(call, 100), call.server.broker.store.id
    found, total = await looked(call, traces.by_name, call.params["name"], page.limit, page.offset)
    return json(NamedEntries([_named(store, one) for one in found], total, page))


def _named(store: int, one: traces.TracedMessage) -> NamedEntry:
    place = one.place
    return NamedEntry(
        **_entry(store, one.trace),
        transaction_id=one.trace.txid,
        partition_id=ids.partition_uuid(store, one.trace.partition),
        queue_name=place.queue.name if place else None,
        partition_name=place.partition.name if place else None,
        message_payload=no_value() if one.raw is None else raw(one.raw, one.is_json),
    )


async def names(call: Call) -> Answer:
    """Every name, the one told of last first."""
    page = paging(call, 100)
    found, total = await looked(call, traces.names, page.limit, page.offset)
    listed = [Name(one.name, one.traces, one.messages, iso(one.last_at)) for one in found]
    return json(Names(listed, total, page))


ROUTES = (
    route("POST", "traces", tell, "read-write", body=Tell, answers={201: Told}, checks=True,
          summary="Tell something of a message"),
    route("GET", "traces/names", names, "read-only", query=PAGE, answers={200: Names},
          summary="Every name of traces"),
    route("GET", "traces/by-name/{name}", by_name, "read-only", query=PAGE,
          answers={200: NamedEntries}, summary="The traces of a name"),
    route("GET", "traces/{partitionId}/{transactionId}", of_message, "read-only", checks=True,
          answers={200: Entries}, summary="What was told of a message"),
)  # fmt: skip
