"""Dead letters in the Queen dialect: pages, newest first, with the total."""

from msgspec import Raw, Struct

from .... import ids
from ....broker.requests import DeadFilter
from ....server.http import Call, Param, Response, json
from ..verbs.dead_letters import Labelled, letters
from ..verbs.subscriptions import names
from .paging import (
    PAGE,
    SPAN,
    TEXT,
    Paging,
    iso_of,
    paging,
    payload_json,
    read_current,
    route,
    span,
)


class DeadLetterLine(Struct, rename="camel"):
    """One dead letter; some fields appear under the names of several Queen versions."""

    id: str
    message_id: str
    partition_id: str
    transaction_id: str
    consumer_group: str
    error_message: str | None
    retry_count: int
    original_created_at: str
    moved_to_dlq_at: str
    queue_name: str
    data: Raw
    queue: str
    partition: str
    partition_name: str
    namespace: str
    task: str
    created_at: str
    failed_at: str
    kind: str
    deliveries: int
    trace_id: str | None = None
    producer_sub: str | None = None


class DeadLetterPage(Struct):
    messages: list[DeadLetterLine]
    total: int
    limit: int
    offset: int
    pagination: Paging


async def dlq(call: Call) -> Response:
    """List dead letters; the list is empty if no dead letter matches the filter."""
    page = paging(call, 100)
    since, until = span(call)
    which = DeadFilter(
        "", call.query.get("consumerGroup") or None, call.query.get("partition") or None, None,
        since, until,
    )  # fmt: skip
    name = call.query.get("queue") or None
    if name is not None:
        call.server.allow(call, name)
    queues = [
        queue for queue in ([name] if name else await read_current(call, names))
        if call.server.may_see(call, queue)
    ]  # fmt: skip
    found, total = await read_current(call, letters, queues, which, page.limit, page.offset)
    store = call.server.broker.store.id
    listed = [_line(store, one) for one in found]
    return json(DeadLetterPage(listed, total, page.limit, page.offset, page))


def _line(store: int, one: Labelled) -> DeadLetterLine:
    letter = one.letter
    created, died = iso_of(letter.created_at), iso_of(letter.died_at)
    return DeadLetterLine(
        id=ids.row_uuid("dead letter", store, letter.id),
        message_id=letter.message_id,
        partition_id=ids.partition_uuid(store, one.partition),
        transaction_id=letter.transaction_id,
        consumer_group=letter.group,
        error_message=letter.reason,
        retry_count=letter.failures,
        original_created_at=created,
        moved_to_dlq_at=died,
        queue_name=letter.queue,
        data=payload_json(letter.raw, letter.is_json),
        queue=letter.queue,
        partition=letter.partition,
        partition_name=letter.partition,
        namespace=one.namespace,
        task=one.task,
        created_at=created,
        failed_at=died,
        kind=letter.kind,
        deliveries=letter.deliveries,
        trace_id=letter.headers.get("traceId"),
    )


FILTERS = (
    Param("queue", TEXT, "Name of the queue; default: all queues"),
    Param("consumerGroup", TEXT, "Name of the consumer group"),
    Param("partition", TEXT, "Name of the partition"),
)
ROUTES = (
    route("GET", "dlq", dlq, "read-only", summary="List dead letters, newest first",
          query=(*FILTERS, *SPAN, *PAGE), responses={200: DeadLetterPage}, checks_queues=True),
)  # fmt: skip
