"""Queues, partitions, namespaces and tasks in the Queen dialect, with current counts."""

from collections.abc import Callable, Iterable
from statistics import median

from msgspec import Struct, field

from .... import ids, validate
from ....broker.core.admin import admin
from ....broker.core.admin.global_pause import pushed_since
from ....clock import SECOND
from ....errors import QueueNotFound
from ....server.http import Call, Param, Response, json
from ....store.records import Queue
from ....store.tx import Tx
from ..verbs.lag import Lag, group_lags
from ..verbs.overview import (
    MessageCounts,
    PartitionView,
    QueueView,
    partition_page,
    queue_view,
    queue_views,
)
from .common import iso
from .paging import MAX_LIMIT, PAGE, TEXT, iso_or_none, paging, read_current, route

MINUTE = 60


class QueueLine(Struct, rename="camel"):
    id: str
    name: str
    namespace: str
    task: str
    created_at: str
    partitions: int
    messages: MessageCounts


class Queues(Struct):
    queues: list[QueueLine]


class PartitionLine(Struct, rename="camel"):
    id: str
    name: str
    queue: str
    created_at: str
    stats: MessageCounts
    oldest_message: str | None
    newest_message: str | None


class Partitions(Struct):
    partitions: list[PartitionLine]


class QueueDetail(Struct, rename="camel"):
    id: str
    name: str
    namespace: str
    task: str
    created_at: str
    partitions: list[PartitionLine]
    totals: MessageCounts


class DeleteQueueResult(Struct):
    deleted: bool
    queue: str
    existed: bool


class ClearQueueResult(Struct, rename="camel"):
    success: bool
    queue: str
    count: int
    deleted_count: int


class NamespaceLine(Struct):
    namespace: str
    queues: int
    partitions: int
    messages: MessageCounts


class TaskLine(Struct):
    task: str
    queues: int
    partitions: int
    messages: MessageCounts


class Namespaces(Struct):
    namespaces: list[NamespaceLine]


class Tasks(Struct):
    tasks: list[TaskLine]


class Spread(Struct):
    """Statistics of a number over the groups of all queues."""

    avg: float = 0.0
    median: float = 0.0
    min: float = 0.0
    max: float = 0.0


class Lags(Struct):
    time: Spread = field(default_factory=Spread)
    offset: Spread = field(default_factory=Spread)


class Throughput(Struct, rename="camel"):
    """Rates over the last minute; processed messages have no time, so their rate is unknown."""

    ingested_per_second: float
    processed_per_second: float | None = None


class Overview(Struct, rename="camel"):
    queues: int
    partitions: int
    namespaces: int
    tasks: int
    messages: MessageCounts
    lag: Lags
    throughput: Throughput
    timestamp: str
    stats_age: int = 0


async def visible_queues(call: Call) -> list[QueueView]:
    """The queues that the caller's token covers, filtered by namespace and task."""
    wanted = _wanted(call)
    return [view for view in await read_current(call, queue_views) if wanted(view.queue)]


def _wanted(call: Call) -> Callable[[Queue], bool]:
    namespace = call.query.get("namespace") or call.query.get("ns")
    task = call.query.get("task")

    def wanted(queue: Queue) -> bool:
        return (
            call.server.may_see(call, queue.name)
            and (not namespace or queue.options.namespace == namespace)
            and (not task or queue.options.task == task)
        )

    return wanted


def queue_line(store: int, view: QueueView) -> QueueLine:
    queue = view.queue
    return QueueLine(
        ids.row_uuid("queue", store, queue.id), queue.name, queue.options.namespace,
        queue.options.task, iso(queue.created_at), view.partitions, view.figures,
    )  # fmt: skip


def partition_line(store: int, queue: str, view: PartitionView) -> PartitionLine:
    home = view.partition
    return PartitionLine(
        ids.partition_uuid(store, home.id), home.name, queue, iso(home.created_at), view.figures,
        iso_or_none(view.oldest_at), iso_or_none(view.newest_at),
    )  # fmt: skip


async def queue_of_path(call: Call) -> tuple[QueueView, list[PartitionView]]:
    """The queue in the path, and a page of its partitions."""
    page = paging(call, MAX_LIMIT)
    try:
        return await read_current(call, queue_view, call.params["queue"], page.limit, page.offset)
    except QueueNotFound:
        raise QueueNotFound("Queue not found") from None


async def queues(call: Call) -> Response:
    """List queues with counts."""
    page = paging(call, 1000)
    found = (await visible_queues(call))[page.offset : page.offset + page.limit]
    return json(Queues([queue_line(call.server.broker.store.id, view) for view in found]))


async def queue(call: Call) -> Response:
    """Show a queue by partition."""
    (view, partitions), store = await queue_of_path(call), call.server.broker.store.id
    top = queue_line(store, view)
    parts = [partition_line(store, top.name, one) for one in partitions]
    return json(
        QueueDetail(top.id, top.name, top.namespace, top.task, top.created_at, parts, top.messages)
    )


async def delete_queue(call: Call) -> Response:
    """Delete a queue with all its data; succeeds if it does not exist."""
    name = validate.name(call.params["queue"], "queue")
    existed = await call.server.do_in_slices(admin.delete_queue, name)
    return json(DeleteQueueResult(True, name, existed))


async def clear_queue(call: Call) -> Response:
    """Purge all messages of a queue or of one partition."""
    name, partition = call.params["queue"], call.query.get("partition") or None
    count = await call.server.do_in_slices(admin.purge, name, partition)
    return json(ClearQueueResult(True, name, count, count))


async def partitions(call: Call) -> Response:
    """List the partitions of one queue or of all queues."""
    name, page, store = call.query.get("queue"), paging(call, 1000), call.server.broker.store.id
    visible = _wanted(call)

    def wanted(queue: Queue) -> bool:
        return name in (None, "", queue.name) and visible(queue)

    found = await read_current(call, partition_page, wanted, page.limit, page.offset)
    return json(Partitions([partition_line(store, queue, one) for queue, one in found]))


async def namespaces(call: Call) -> Response:
    """List namespaces with the counts of their queues."""
    found = _labels(await visible_queues(call), lambda view: view.queue.options.namespace)
    return json(Namespaces([NamespaceLine(*one) for one in found]))


async def tasks(call: Call) -> Response:
    """List tasks with the counts of their queues."""
    found = _labels(await visible_queues(call), lambda view: view.queue.options.task)
    return json(Tasks([TaskLine(*one) for one in found]))


def _labels(
    found: Iterable[QueueView], label: Callable[[QueueView], str]
) -> list[tuple[str, int, int, MessageCounts]]:
    by_label: dict[str, list[QueueView]] = {}
    for view in found:
        if label(view):
            by_label.setdefault(label(view), []).append(view)
    return [
        (name, len(some), sum(one.partitions for one in some), sum_figures(some))
        for name, some in sorted(by_label.items())
    ]


def sum_figures(found: Iterable[QueueView]) -> MessageCounts:
    figures = MessageCounts()
    for view in found:
        figures.add(view.figures)
    return figures


async def overview(call: Call) -> Response:
    """Return totals over all queues."""
    return json(await overview_of(call))


async def overview_of(call: Call) -> Overview:
    now, wanted = call.server.broker.clock.now(), _wanted(call)

    def read(tx: Tx) -> tuple[list[QueueView], list[Lag], int]:
        found = [view for view in queue_views(tx) if wanted(view.queue)]
        behind = [lag for view in found for lag in group_lags(tx, view.queue)]
        names = [view.queue.name for view in found]
        return found, behind, pushed_since(tx, names, now - MINUTE * SECOND)

    found, behind, pushed = await read_current(call, read)
    return Overview(
        len(found),
        sum(view.partitions for view in found),
        len({view.queue.options.namespace for view in found} - {""}),
        len({view.queue.options.task for view in found} - {""}),
        sum_figures(found),
        _lags(behind, now),
        Throughput(round(pushed / MINUTE, 3)),
        iso(now),
    )


def _lags(behind: list[Lag], now: int) -> Lags:
    return Lags(
        _spread([lag.seconds(now) for lag in behind]),
        _spread([float(lag.messages) for lag in behind]),
    )


def _spread(values: list[float]) -> Spread:
    if not values:
        return Spread()
    return Spread(round(sum(values) / len(values), 3), median(values), min(values), max(values))


LABELS = (
    Param("namespace", TEXT, "Queues of this namespace"),
    Param("task", TEXT, "Queues with this task"),
)
_QUEUE = Param("queue", TEXT, "Name of the queue")
_PARTITION = Param("partition", TEXT, "Name of the partition")
ROUTES = (
    route("GET", "resources/queues", queues, "read-only", query=(*LABELS, *PAGE), checks_queues=True,
          responses={200: Queues}, summary="List queues with counts"),
    route("GET", "resources/queues/{queue}", queue, "read-only", query=PAGE, responses={200: QueueDetail},
          summary="Show a queue by partition"),
    route("DELETE", "resources/queues/{queue}", delete_queue, "admin", responses={200: DeleteQueueResult},
          summary="Delete a queue with all its data"),
    route("DELETE", "queues/{queue}/clear", clear_queue, "admin", query=(_PARTITION,),
          responses={200: ClearQueueResult}, summary="Purge a queue or partition"),
    route("GET", "resources/partitions", partitions, "read-only", query=(_QUEUE, *LABELS, *PAGE),
          responses={200: Partitions}, checks_queues=True, summary="List partitions with counts"),
    route("GET", "resources/namespaces", namespaces, "read-only", responses={200: Namespaces},
          checks_queues=True, summary="List namespaces with counts"),
    route("GET", "resources/tasks", tasks, "read-only", responses={200: Tasks}, checks_queues=True,
          summary="List tasks with counts"),
    route("GET", "resources/overview", overview, "read-only", responses={200: Overview}, checks_queues=True,
          query=LABELS, summary="Totals over all queues"),
)  # fmt: skip
