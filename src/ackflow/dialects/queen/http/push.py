"""Push in the Queen dialect: items for any queues in one transaction, with results in order."""

from functools import partial
from typing import Literal

from msgspec import Raw, Struct, field

from .... import ids
from ....broker.core.push import Answer as Places
from ....broker.requests import PushRequest
from ....errors import InvalidArgument
from ....ids import LaneId
from ....server.http import FEW_ITEMS, Call, Counted, Response, json, json_list
from ....session import encoding
from ....session.encoding import Item
from .common import large_body_of, partition_ids

NULL = Raw(b"null")
TRACE_HEADER = "traceId"  # message header that holds the trace id


def _null() -> Raw:
    return NULL


class PushItem(Counted, rename="camel", gc=False):
    """One message. `data` is used if there is no `payload`."""

    queue: str
    partition: str | None = None
    payload: Raw = field(default_factory=_null)
    data: Raw = field(default_factory=_null)
    transaction_id: str | None = None
    trace_id: str | None = None
    delay_seconds: float | None = None
    priority: int | None = None
    headers: dict[str, str] | None = None


class PushBody(Struct):
    items: list[PushItem] | None = None


class PushResult(Struct, gc=False):
    """The result of one item; a duplicate has the id of the first message."""

    index: int
    transaction_id: str
    status: Literal["queued", "duplicate"]
    message_id: str
    partition_id: str
    trace_id: str | None
    queue: str = field(name="queueName")


async def push(call: Call) -> Response:
    """Append messages; they are on disk when the response is sent."""
    items = (await large_body_of(call, PushBody)).items
    if items is None:
        raise InvalidArgument("items array is required")
    if not items:
        return json([], 201)
    call.server.check_batch(len(items))
    server = call.server
    if len(items) <= FEW_ITEMS:
        request, places = push_request(call, items)
    else:
        request, places = await server.thread(partial(push_request, call, items))
    results = await push_results(call, items, await server.loop_broker.push(request), places)
    if len(items) <= FEW_ITEMS:
        return json(results, 201)
    return await server.thread(partial(json_list, results, 201))


def push_request(call: Call, items: list[PushItem]) -> tuple[PushRequest, list[list[int]]]:
    """Check the token against the queues of the items and build the push request."""
    if call.who is not None:
        for queue in {item.queue for item in items}:
            call.server.allow(call, queue)
    return encoding.push_request_for_items([(item.queue, _item(item)) for item in items], "queen")


def _item(item: PushItem) -> Item:
    headers = item.headers
    if item.trace_id:
        headers = {**(headers or {}), TRACE_HEADER: item.trace_id}
    return Item(
        data=item.data if item.payload is NULL else item.payload,
        partition=item.partition or None,
        priority=item.priority,
        delay=item.delay_seconds,
        transaction_id=item.transaction_id or None,
        headers=headers,
    )


async def push_results(
    call: Call, items: list[PushItem], answer: Places, places: list[list[int]]
) -> list[PushResult]:
    """The result of every item, in the order of the request."""
    lanes = {place.lane for runs in answer for place in runs}
    homes = await partition_ids(call, lanes)
    prefixes = {lane: ids.id_prefix(call.server.broker.store.id, lane) for lane in lanes}
    if len(items) <= FEW_ITEMS:
        return _results(items, answer, places, homes, prefixes)
    return await call.server.thread(partial(_results, items, answer, places, homes, prefixes))


def _results(
    items: list[PushItem], answer: Places, places: list[list[int]], homes: dict[LaneId, str],
    prefixes: dict[LaneId, str],
) -> list[PushResult]:  # fmt: skip
    spots = [(LaneId(0), 0, False)] * len(items)
    for indexes, runs in zip(places, answer, strict=True):
        flat = ((p.lane, s, p.duplicate) for p in runs for s in range(p.first, p.stop))
        for index, spot in zip(indexes, flat, strict=True):
            spots[index] = spot
    result = []
    for index, (item, (lane, sequence, duplicate)) in enumerate(zip(items, spots, strict=True)):
        id = f"{prefixes[lane]}{sequence:012x}"
        result.append(
            PushResult(
                index, item.transaction_id or id, "duplicate" if duplicate else "queued", id,
                homes[lane], item.trace_id, item.queue,
            )
        )  # fmt: skip
    return result
