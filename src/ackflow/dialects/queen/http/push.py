"""Push in the Queen dialect: items for any queues, in one transaction, answered in their order."""

from typing import Literal

from msgspec import Raw, Struct, field

from .... import ids
from ....broker.core.push import Answer as Places
from ....broker.requests import PushRequest
from ....errors import InvalidArgument
from ....server.http import Answer, Call, json
from ....session import encoding
from ....session.encoding import Item
from .common import body_of, partition_ids

NULL = Raw(b"null")
TRACE = "traceId"  # the header in which the trace id of a message is kept


def _null() -> Raw:
    return NULL


class PushItem(Struct, rename="camel"):
    """One message. `data` is taken for `payload` when there is none."""

    queue: str
    partition: str | None = None
    payload: Raw = field(default_factory=_null)
    data: Raw = field(default_factory=_null)
    transaction_id: str | None = None
    trace_id: str | None = None
    delay_seconds: float | None = None
    priority: int | None = None
    headers: dict[str, str] | None = None


class Push(Struct):
    items: list[PushItem] | None = None


class Pushed(Struct):
    """What became of one item; a duplicate has the id of the first message."""

    index: int
    transaction_id: str
    status: Literal["queued", "duplicate"]
    message_id: str
    partition_id: str
    trace_id: str | None
    queue: str = field(name="queueName")


async def push(call: Call) -> Answer:
    """Append messages; they are on disk when this is answered."""
    items = body_of(call, Push).items
    if items is None:
        raise InvalidArgument("items array is required")
    if not items:
        return json([], 201)
    call.server.check_batch(len(items))
    request, places = requested(call, items)
    answer = await call.server.onloop.push(request)
    return json(await pushed(call, items, answer, places), 201)


def requested(call: Call, items: list[PushItem]) -> tuple[PushRequest, list[list[int]]]:
    """The request of items, once the caller may push to all their queues."""
    for queue in {item.queue for item in items}:
        call.server.allow(call, queue)
    return encoding.push_request_for_items([(item.queue, _item(item)) for item in items], "queen")


def _item(item: PushItem) -> Item:
    headers = item.headers
    if item.trace_id:
        headers = {**(headers or {}), TRACE: item.trace_id}
    return Item(
        data=item.data if item.payload is NULL else item.payload,
        partition=item.partition or None,
        priority=item.priority,
        delay=item.delay_seconds,
        transaction_id=item.transaction_id or None,
        headers=headers,
    )


async def pushed(
    call: Call, items: list[PushItem], answer: Places, places: list[list[int]]
) -> list[Pushed]:
    """What became of every item, in the order of the request."""
    store = call.server.broker.store.id
    spots = [(0, 0, False)] * len(items)
    for indexes, runs in zip(places, answer, strict=True):
        flat = ((p.lane, s, p.duplicate) for p in runs for s in range(p.first, p.stop))
        for index, spot in zip(indexes, flat, strict=True):
            spots[index] = spot
    lanes = {lane for lane, _, _ in spots}
    homes = await partition_ids(call, lanes)
    prefixes = {lane: ids.id_prefix(store, lane) for lane in lanes}
    result = []
    for index, (item, (lane, sequence, duplicate)) in enumerate(zip(items, spots, strict=True)):
        id = f"{prefixes[lane]}{sequence:012x}"
        result.append(
            Pushed(
                index, item.transaction_id or id, "duplicate" if duplicate else "queued", id,
                homes[lane], item.trace_id, item.queue,
            )
        )  # fmt: skip
    return result
