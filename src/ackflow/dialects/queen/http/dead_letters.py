"""Dead letters in the Queen dialect: the newest first, in pages, with how many there are."""

from msgspec import Raw, Struct

from .... import ids
from ....broker.requests import DeadFilter
from ....server.http import Answer, Call, Param, json
from ..verbs.dead_letters import Labelled, letters
from ..verbs.subscriptions import names
from .paging import PAGE, SPAN, TEXT, Paging, iso_of, looked, paging, raw, route, span


class Letter(Struct, rename="camel"):
    """One dead letter, with the names every version of Queen has for its fields."""

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


class Letters(Struct):
    messages: list[Letter]
    total: int
    limit: int
    offset: int
    pagination: Paging


async def dlq(call: Call) -> Answer:
    """List dead letters; a filter that fits none answers with an empty list."""
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
        queue for queue in ([name] if name else await looked(call, names))
        if call.server.sees(call, queue)
    ]  # fmt: skip
    found, total = await looked(call, letters, queues, which, page.limit, page.offset)
    store = call.server.broker.store.id
    listed = [_written(store, one) for one in found]
    return json(Letters(listed, total, page.limit, page.offset, page))


def _written(store: int, one: Labelled) -> Letter:
    letter = one.letter
    created, died = iso_of(letter.created_at), iso_of(letter.died_at)
    return Letter(
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
        data=raw(letter.raw, letter.is_json),
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
    Param("queue", TEXT, "Of this queue; without it of all"),
    Param("consumerGroup", TEXT, "Of this group"),
    Param("partition", TEXT, "Of this partition"),
)
ROUTES = (
    route("GET", "dlq", dlq, "read-only", summary="Dead letters, the newest first",
          query=(*FILTERS, *SPAN, *PAGE), answers={200: Letters}, checks=True),
)  # fmt: skip
