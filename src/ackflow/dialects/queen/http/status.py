"""Status, health and maintenance in the Queen dialect."""

from typing import Any, Literal

from msgspec import Struct

from .... import __version__, ids
from ....broker.core import global_pause
from ....broker.core.global_pause import GlobalPause
from ....broker.views import stats
from ....clock import SECOND
from ....errors import AckflowError, InvalidArgument
from ....server.http import Answer, Call, Param, json
from ..verbs.overview import MessageCounts, PartitionView, QueueView, pushed_by_time
from .common import body_of, iso
from .configure import Options, told
from .paging import PAGE, SPAN, Paging, iso_or_none, looked, paging, route, span
from .resources import LABELS, Overview, QueueLine, line, overall, view_of, views

INTERVALS = {"minute": 60, "hour": 3600, "day": 86_400}
SPAN_SECONDS = {"minute": 3600, "hour": 86_400, "day": 30 * 86_400}
MOST_POINTS = 10_000


class Healthy(Struct):
    status: Literal["healthy", "unhealthy"]
    database: Literal["connected", "disconnected"]
    server: str
    version: str


class StatusLine(QueueLine, rename="camel"):
    config: Options


class StatusPage(Struct):
    queues: list[StatusLine]
    pagination: Paging


class Reading(Struct, rename="camel"):
    total_consumed: int


class StatusPart(Struct, rename="camel"):
    id: str
    name: str
    created_at: str
    messages: MessageCounts
    stats: MessageCounts
    cursor: Reading
    last_activity: str | None


class Status(Struct):
    queue: StatusLine
    partitions: list[StatusPart]
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


class Refreshed(Struct):
    success: bool
    message: str


class Switch(Struct):
    enabled: bool | None = None


class Switched(Struct, rename="camel"):
    """Whether the switch is on, and how many messages are held back by it."""

    maintenance_mode: bool
    buffered_messages: int
    buffer_healthy: bool
    message: str


class PopSwitched(Struct, rename="camel"):
    pop_maintenance_mode: bool
    message: str


async def health(call: Call) -> Answer:
    """Healthy when the database answers."""
    try:
        await call.server.onloop.look(stats.ready)
    except AckflowError:
        return json(Healthy("unhealthy", "disconnected", "ackflow", __version__), 503)
    return json(Healthy("healthy", "connected", "ackflow", __version__))


async def status(call: Call) -> Answer:
    """Everything in one answer."""
    return json(await overall(call))


async def status_queues(call: Call) -> Answer:
    """Every queue with its counts and options."""
    page, store = paging(call, 100), call.server.broker.store.id
    found = (await views(call))[page.offset : page.offset + page.limit]
    return json(StatusPage([_line(store, view) for view in found], page))


def _line(store: int, view: QueueView) -> StatusLine:
    top = line(store, view)
    return StatusLine(
        top.id, top.name, top.namespace, top.task, top.created_at, top.partitions, top.messages,
        told(view.queue.options),
    )  # fmt: skip


async def status_queue(call: Call) -> Answer:
    """A queue with its options, partition by partition."""
    view, store = await view_of(call), call.server.broker.store.id
    parts = [_part(store, one) for one in view.partitions]
    return json(Status(_line(store, view), parts, view.figures))


def _part(store: int, view: PartitionView) -> StatusPart:
    home = view.partition
    times = [time for time in (view.newest_at, view.last_at) if time is not None]
    return StatusPart(
        ids.partition_uuid(store, home.id), home.name, iso(home.created_at), view.figures,
        view.figures, Reading(view.consumed), iso_or_none(max(times, default=None)),
    )  # fmt: skip


async def analytics(call: Call) -> Answer:
    """How many of the stored messages were pushed when."""
    interval = call.query.get("interval") or "hour"
    if interval not in INTERVALS:
        raise InvalidArgument(f"interval is one of {', '.join(INTERVALS)}, not {interval!r}")
    given, until = span(call)
    until = until or call.server.broker.clock.now() + 1
    since = until - SPAN_SECONDS[interval] * SECOND if given is None else given
    if (until - since) // SECOND > MOST_POINTS * INTERVALS[interval]:
        raise InvalidArgument(f"from {iso(since)} on there are too many points; ask for less")
    name = call.query.get("queue")
    names = [one.queue.name for one in await views(call) if name in (None, "", one.queue.name)]
    found = await looked(call, pushed_by_time, names, since, until, INTERVALS[interval])
    points = [Point(iso(at), n) for at, n in found.items()]
    return json(Analytics(points, interval, iso(since), iso(until)))


async def buffers(call: Call) -> Answer:
    """What maintenance holds back."""
    return json(Buffers(await looked(call, global_pause.count_held_back), True))


async def refresh(_: Call) -> Answer:
    """Counts are made when they are asked for: there is nothing to refresh."""
    return json(Refreshed(True, "every count is made when it is asked for"))


async def maintained(call: Call) -> Answer:
    """Whether what is pushed is held back."""
    return await _switched(call, await looked(call, global_pause.get))


async def maintain(call: Call) -> Answer:
    """Hold back what is pushed, until this is turned off: it is stored, and nothing is handed out."""
    state = await call.server.do(global_pause.switch, True, pushes=_enabled(call))
    return await _switched(call, state)


async def _switched(call: Call, state: GlobalPause) -> Answer:
    on = state.pushes is not None
    says = "messages are stored and handed out later" if on else "messages are handed out"
    return json(Switched(on, await looked(call, global_pause.count_held_back), True, says))


async def pops_maintained(call: Call) -> Answer:
    """Whether pops are paused everywhere."""
    return _paused(await looked(call, global_pause.get))


async def maintain_pops(call: Call) -> Answer:
    """Pause all pops, or let them go on; settling goes on meanwhile."""
    return _paused(await call.server.do(global_pause.switch, True, pops=_enabled(call)))


def _paused(state: GlobalPause) -> Answer:
    says = "nothing is handed out" if state.on else "messages are handed out"
    return json(PopSwitched(state.pops, says))


def _enabled(call: Call) -> bool:
    enabled = body_of(call, Switch).enabled
    if enabled is None:
        raise InvalidArgument("enabled (boolean) is required")
    return enabled


_INTERVAL = Param("interval", {"enum": list(INTERVALS)}, "How long a point is [hour]")
_QUEUE = Param("queue", {"type": "string"}, "Of this queue")
_UNHEALTHY: dict[int, Any] = {200: Healthy, 503: Healthy}
ROUTES = (
    route("GET", "/health", health, "open", answers=_UNHEALTHY, summary="The database answers"),
    route("GET", "status", status, "read-only", query=(*LABELS, *SPAN), answers={200: Overview},
          checks=True, summary="Everything in one answer"),
    route("GET", "status/queues", status_queues, "read-only", query=(*LABELS, *PAGE),
          answers={200: StatusPage}, checks=True, summary="Every queue with counts and options"),
    route("GET", "status/queues/{queue}", status_queue, "read-only", answers={200: Status},
          summary="A queue with its options, partition by partition"),
    route("GET", "status/analytics", analytics, "read-only", checks=True,
          query=(_INTERVAL, _QUEUE, *LABELS, *SPAN), answers={200: Analytics},
          summary="How many of the stored messages were pushed when"),
    route("GET", "status/buffers", buffers, "read-only", answers={200: Buffers},
          summary="What maintenance holds back"),
    route("POST", "stats/refresh", refresh, "admin", answers={200: Refreshed},
          summary="Nothing to do: counts are always fresh"),
    route("GET", "system/maintenance", maintained, "admin", answers={200: Switched},
          summary="Whether what is pushed is held back"),
    route("POST", "system/maintenance", maintain, "admin", body=Switch, answers={200: Switched},
          summary="Hold back what is pushed, or hand it out"),
    route("GET", "system/maintenance/pop", pops_maintained, "admin", answers={200: PopSwitched},
          summary="Whether pops are paused everywhere"),
    route("POST", "system/maintenance/pop", maintain_pops, "admin", body=Switch,
          answers={200: PopSwitched}, summary="Pause all pops, or let them go on"),
)  # fmt: skip
