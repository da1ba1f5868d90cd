"""Status, health and maintenance in the Queen dialect."""

from typing import Any, Literal

from msgspec import Struct

from .... import __version__, ids
from ....broker.core.admin import global_pause
from ....broker.core.admin.global_pause import GlobalPause
from ....broker.views import stats
from ....clock import SECOND
from ....errors import AckflowError, InvalidArgument
from ....server.http import Call, Param, Response, json
from ..verbs.overview import MessageCounts, PartitionView, QueueView, pushed_by_time
from .common import body_of, iso
from .configure import QueenOptions, queen_options
from .paging import PAGE, SPAN, Paging, iso_or_none, paging, read_current, route, span
from .resources import (
    LABELS,
    Overview,
    QueueLine,
    overview_of,
    queue_line,
    queue_of_path,
    visible_queues,
)

INTERVALS = {"minute": 60, "hour": 3600, "day": 86_400}
SPAN_SECONDS = {"minute": 3600, "hour": 86_400, "day": 30 * 86_400}
MAX_POINTS = 10_000


class Health(Struct):
    status: Literal["healthy", "unhealthy"]
    database: Literal["connected", "disconnected"]
    server: str
    version: str


class QueueStatusLine(QueueLine, rename="camel"):
    config: QueenOptions


class QueueStatusPage(Struct):
    queues: list[QueueStatusLine]
    pagination: Paging


class CursorStatus(Struct, rename="camel"):
    total_consumed: int


class PartitionStatus(Struct, rename="camel"):
    id: str
    name: str
    created_at: str
    messages: MessageCounts
    stats: MessageCounts
    cursor: CursorStatus
    last_activity: str | None


class QueueStatus(Struct):
    queue: QueueStatusLine
    partitions: list[PartitionStatus]
    totals: MessageCounts


class Point(Struct):
    timestamp: str
    messages: int


class Analytics(Struct, rename={"points": "dataPoints", "since": "from", "until": "to"}):
    points: list[Point]
    interval: str
    since: str
    until: str


class Buffers(Struct, rename="camel"):
    buffered_messages: int
    buffer_healthy: bool


class RefreshResult(Struct):
    success: bool
    message: str


class MaintenanceBody(Struct):
    enabled: bool | None = None


class MaintenanceResult(Struct, rename="camel"):
    """Whether maintenance mode is on, and the number of messages it holds back."""

    maintenance_mode: bool
    buffered_messages: int
    buffer_healthy: bool
    message: str


class PopMaintenanceResult(Struct, rename="camel"):
    pop_maintenance_mode: bool
    message: str


async def health(call: Call) -> Response:
    """Healthy if the database can be read."""
    try:
        await call.server.probe(stats.ready)
    except AckflowError:
        return json(Health("unhealthy", "disconnected", "ackflow", __version__), 503)
    return json(Health("healthy", "connected", "ackflow", __version__))


async def status(call: Call) -> Response:
    """Return totals over all queues."""
    return json(await overview_of(call))


async def status_queues(call: Call) -> Response:
    """List queues with counts and options."""
    page, store = paging(call, 100), call.server.broker.store.id
    found = (await visible_queues(call))[page.offset : page.offset + page.limit]
    return json(QueueStatusPage([_line(store, view) for view in found], page))


def _line(store: int, view: QueueView) -> QueueStatusLine:
    top = queue_line(store, view)
    return QueueStatusLine(
        top.id, top.name, top.namespace, top.task, top.created_at, top.partitions, top.messages,
        queen_options(view.queue.options),
    )  # fmt: skip


async def status_queue(call: Call) -> Response:
    """Show a queue with options, by partition."""
    (view, partitions), store = await queue_of_path(call), call.server.broker.store.id
    parts = [_part(store, one) for one in partitions]
    return json(QueueStatus(_line(store, view), parts, view.figures))


def _part(store: int, view: PartitionView) -> PartitionStatus:
    home = view.partition
    times = [time for time in (view.newest_at, view.last_at) if time is not None]
    return PartitionStatus(
        ids.partition_uuid(store, home.id), home.name, iso(home.created_at), view.figures,
        view.figures, CursorStatus(view.consumed), iso_or_none(max(times, default=None)),
    )  # fmt: skip


async def analytics(call: Call) -> Response:
    """Count the stored messages by the time of their push."""
    interval = call.query.get("interval") or "hour"
    if interval not in INTERVALS:
        raise InvalidArgument(f"interval must be one of {', '.join(INTERVALS)}, got {interval!r}")
    given, until = span(call)
    until = until or call.server.broker.clock.now() + 1
    since = until - SPAN_SECONDS[interval] * SECOND if given is None else given
    if (until - since) // SECOND > MAX_POINTS * INTERVALS[interval]:
        raise InvalidArgument(
            f"the range from {iso(since)} has more than {MAX_POINTS:,} points; "
            "give a later `from` or a longer interval"
        )
    name = call.query.get("queue")
    names = [
        one.queue.name for one in await visible_queues(call) if name in (None, "", one.queue.name)
    ]
    found = await read_current(call, pushed_by_time, names, since, until, INTERVALS[interval])
    points = [Point(iso(at), n) for at, n in found.items()]
    return json(Analytics(points, interval, iso(since), iso(until)))


async def buffers(call: Call) -> Response:
    """Return the number of messages that maintenance mode holds back."""
    return json(Buffers(await read_current(call, global_pause.count_held_back), True))


async def refresh(_: Call) -> Response:
    """Do nothing: counts are computed by each request."""
    return json(RefreshResult(True, "counts are computed by each request"))


async def maintained(call: Call) -> Response:
    """Return whether maintenance mode is on."""
    return await _switched(call, await read_current(call, global_pause.get))


async def maintain(call: Call) -> Response:
    """Switch maintenance mode: while on, pushed messages are stored but not delivered."""
    state = await call.server.do(global_pause.switch, True, pushes=_enabled(call))
    return await _switched(call, state)


async def _switched(call: Call, state: GlobalPause) -> Response:
    on = state.pushes is not None
    text = "messages are stored and delivered later" if on else "messages are delivered"
    held_back = await read_current(call, global_pause.count_held_back)
    return json(MaintenanceResult(on, held_back, True, text))


async def pops_maintained(call: Call) -> Response:
    """Return whether all pops are paused."""
    return _paused(await read_current(call, global_pause.get))


async def maintain_pops(call: Call) -> Response:
    """Pause or resume all pops; settling continues meanwhile."""
    return _paused(await call.server.do(global_pause.switch, True, pops=_enabled(call)))


def _paused(state: GlobalPause) -> Response:
    text = "no messages are delivered" if state.on else "messages are delivered"
    return json(PopMaintenanceResult(state.pops, text))


def _enabled(call: Call) -> bool:
    enabled = body_of(call, MaintenanceBody).enabled
    if enabled is None:
        raise InvalidArgument("enabled (boolean) is required")
    return enabled


_INTERVAL = Param("interval", {"enum": list(INTERVALS)}, "Length of one point [hour]")
_QUEUE = Param("queue", {"type": "string"}, "Name of the queue")
_HEALTH: dict[int, Any] = {200: Health, 503: Health}
ROUTES = (
    route("GET", "/health", health, "open", responses=_HEALTH, summary="Health check"),
    route("GET", "status", status, "read-only", query=(*LABELS, *SPAN), responses={200: Overview},
          checks_queues=True, summary="Totals over all queues"),
    route("GET", "status/queues", status_queues, "read-only", query=(*LABELS, *PAGE),
          responses={200: QueueStatusPage}, checks_queues=True, summary="List queues with counts and options"),
    route("GET", "status/queues/{queue}", status_queue, "read-only", query=PAGE, responses={200: QueueStatus},
          summary="Show a queue with options, by partition"),
    route("GET", "status/analytics", analytics, "read-only", checks_queues=True,
          query=(_INTERVAL, _QUEUE, *LABELS, *SPAN), responses={200: Analytics},
          summary="Count stored messages by the time of their push"),
    route("GET", "status/buffers", buffers, "read-only", responses={200: Buffers},
          summary="Number of messages held back by maintenance mode"),
    route("POST", "stats/refresh", refresh, "admin", responses={200: RefreshResult},
          summary="No operation: counts are always current"),
    route("GET", "system/maintenance", maintained, "admin", responses={200: MaintenanceResult},
          summary="Show maintenance mode"),
    route("POST", "system/maintenance", maintain, "admin", body=MaintenanceBody, responses={200: MaintenanceResult},
          summary="Switch maintenance mode"),
    route("GET", "system/maintenance/pop", pops_maintained, "admin", responses={200: PopMaintenanceResult},
          summary="Show whether all pops are paused"),
    route("POST", "system/maintenance/pop", maintain_pops, "admin", body=MaintenanceBody,
          responses={200: PopMaintenanceResult}, summary="Pause or resume all pops"),
)  # fmt: skip
