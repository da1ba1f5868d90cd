"""The dashboard's queues, groups, leases and charts: `/v1/overview`, `/v1/queues` and others.

Other tools may use them as well. Every answer is bounded by a number of rows and by time; `next` is
where to continue. A token sees only the queues that it covers.
"""

import time
from collections.abc import Callable
from functools import partial
from heapq import nlargest
from typing import Any

import msgspec

from ... import __version__
from ...broker import presence
from ...broker.sampling.live_stats import QueueLine
from ...broker.sampling.series import HOUR, MINUTE, chart, sparks
from ...broker.views import board, stats
from ...broker.views.board import LanePage, PartitionPage, SeekPreview
from ...broker.views.metrics import GroupMetrics
from ...errors import InvalidArgument
from ...model import BrokerInfo, Value, when
from ..http import Call, Param, Response, json, name_matcher
from .responses import (
    AFTER,
    ANY,
    GROUP,
    LIMIT,
    MAX_SEQUENCE,
    MOST_GROUPS,
    NUMBER,
    QUEUE,
    SECONDS,
    SPARKS,
    GroupRows,
    LeaseRows,
    Overview,
    QueuePage,
    QueueRow,
    QueueRows,
    SeriesPage,
    Totals,
    derived,
    group_row,
    live,
    look,
    masked,
    optional,
    page_limit,
    read_route,
    row_of,
    seconds_of,
    sees_all,
    snapshot_of,
    storage_of,
    time_of,
    totals_of,
)


async def overview(call: Call) -> Response:
    """The totals, the queues in trouble, and the health of the database."""
    found, lines = await live(call)
    kept = call.server.dashboard.kept
    health = kept.known(found, "health")
    if health is None:
        health = kept.keep(found, "health", await look(call, board.health))
    known = kept.known(found, "brokers") if sees_all(call) else []
    if known is None:
        known = kept.keep(found, "brokers", await look(call, presence.brokers))
    totals, trouble, busiest = await derived(call, found, "overview", lambda: _summary(lines))
    page = Overview(
        when(found.at), __version__, time.monotonic() - call.server.started, totals,
        [row_of(line) for line in trouble], [row_of(line) for line in busiest], health,
        storage_of(call), call.server.waiting, found.seconds, known,
    )  # fmt: skip
    await _add_sparks(call, [*page.trouble, *page.busiest])
    return json(page)


async def brokers(call: Call) -> Response:
    """The processes that have the database open, the oldest first."""
    return json(await look(call, presence.brokers))


def _summary(lines: list[QueueLine]) -> tuple[Totals, list[QueueLine], list[QueueLine]]:
    """The totals, the queues in trouble and the busiest."""
    bad = [line for line in lines if line.trouble]
    return (
        totals_of(lines),
        nlargest(20, bad, key=lambda line: line.severity),
        nlargest(10, lines, key=lambda line: (_traffic(line), line.pushed)),
    )


def _traffic(line: QueueLine) -> float:
    return line.rates.pushed + line.rates.acked if line.rates else 0.0


SORTS: dict[str, Callable[[QueueLine], Any]] = {
    "name": lambda line: line.name,
    "ready": lambda line: line.ready,
    "leased": lambda line: line.leased,
    "waiting": lambda line: line.waiting,
    "dead": lambda line: line.dead,
    "lag": lambda line: line.lag,
    "failed": lambda line: line.failed,
    "stored": lambda line: line.stored,
    "oldest": lambda line: line.oldest_seconds,
    "in": lambda line: line.rates.pushed if line.rates else 0.0,
    "out": lambda line: line.rates.acked if line.rates else 0.0,
    "trouble": lambda line: line.severity,
}
SHOWN: dict[str, Callable[[QueueLine], Any]] = {
    "all": lambda line: True,
    "trouble": lambda line: line.trouble,
    "busy": lambda line: line.ready or line.leased or line.waiting or line.dead,
}


async def queues(call: Call) -> Response:
    """A page of queues, sorted by any column."""
    found, lines = await live(call)
    wanted = (optional(call, "filter") or "").lower()
    fits = name_matcher(wanted if any(sign in wanted for sign in "*?[") else f"*{wanted}*")
    sort, show = call.query.get("sort", "name"), call.query.get("show", "all")
    if sort not in SORTS:
        raise InvalidArgument(f"sort must be one of {', '.join(SORTS)}, got {sort!r}")
    shown, descending = SHOWN.get(show, SHOWN["all"]), call.flag("descending")
    start, limit = call.integer("after", 0, 0, 1 << 40), page_limit(call)

    def chosen() -> list[QueueLine]:
        some = [line for line in lines if fits(line.name.lower()) and shown(line)]
        some.sort(key=lambda line: line.name)
        if sort != "name" or descending:
            some.sort(key=SORTS[sort], reverse=descending)
        return some

    lines = await call.server.compute(len(lines), chosen)
    page = [row_of(line) for line in lines[start : start + limit]]
    if call.flag("sparks"):
        await _add_sparks(call, page)
    next = start + limit if start + limit < len(lines) else None
    return json(QueueRows(when(found.at), page, next, len(lines)))


async def _add_sparks(call: Call, rows: list[QueueRow]) -> None:
    found = call.server.dashboard.kept.sparks()
    names = sorted({row.name for row in rows} - set(found))
    if names:
        found |= await look(call, sparks, names, SPARKS, call.server.broker.clock.now())
    for row in rows:
        row.spark = found[row.name]


async def queue(call: Call) -> Response:
    """One queue: counters, its first groups or the given one, options and their defaults."""
    name, only = call.params["queue"], optional(call, "group")
    details = await look(call, board.queue_details, name)
    found = await snapshot_of(call)
    line = found.queues.get(name)
    if line is None:  # it was created since the snapshot
        line = QueueLine(0, name, details.paused, 0, details.messages, [])
        line.add_up()
    line = msgspec.structs.replace(line, paused=details.paused)
    line.judge()
    row = row_of(line)
    if line.id:
        await _add_sparks(call, [row])
    lines = [group for group in line.groups if only in (None, group.name)]
    known = [group for group in details.groups if only in (None, group.name)]
    details = msgspec.structs.replace(details, groups=known[:MOST_GROUPS])
    rows = [group_row(group) for group in lines[:MOST_GROUPS]]
    return json(QueuePage(row, rows, details, len(known) > MOST_GROUPS))


async def groups(call: Call) -> Response:
    """A page of groups of one or all queues, largest lag first."""
    found, lines = await live(call)
    wanted, queue_name = (optional(call, "filter") or "").lower(), optional(call, "queue")
    rows = await derived(call, found, "groups", lambda: _by_lag(lines))

    def fit(all: list[GroupMetrics]) -> list[GroupMetrics]:
        if queue_name is not None:
            all = [group for group in all if group.queue == queue_name]
        if wanted:
            all = [one for one in all if wanted in one.name.lower() or wanted in one.queue.lower()]
        return all

    rows = await call.server.compute(len(rows), partial(fit, rows))
    start, limit = call.integer("after", 0, 0, 1 << 40), page_limit(call)
    next = start + limit if start + limit < len(rows) else None
    page = [group_row(group) for group in rows[start : start + limit]]
    return json(GroupRows(when(found.at), page, next, len(rows)))


def _by_lag(lines: list[QueueLine]) -> list[GroupMetrics]:
    """All groups, largest lag first."""
    found = [group for line in lines for group in line.groups]
    return sorted(found, key=lambda group: (-group.lag, group.queue, group.name))


async def lanes(call: Call) -> Response:
    """The partitions and priorities of a queue, in the order of their first push."""
    after, limit = call.integer("after", 0, 0, 1 << 60), page_limit(call)
    return json(await look(call, board.queue_lanes, call.params["queue"], after, limit))


async def partitions(call: Call) -> Response:
    """How far a group has read each partition."""
    after, limit = call.integer("after", 0, 0, 1 << 60), page_limit(call)
    group = call.params["group"]
    return json(await look(call, board.group_progress, call.params["queue"], group, after, limit))


async def series(call: Call) -> Response:
    """Rates and counts over time, of one queue or of all."""
    step = call.integer("step", MINUTE, MINUTE, HOUR)
    if step not in (MINUTE, HOUR):
        raise InvalidArgument(f"step must be {MINUTE} or {HOUR} seconds, got {step}")
    count = call.integer("count", 60, 1, 24 * 60)
    name = optional(call, "queue")
    if name is not None:
        call.server.allow(call, name)
    else:
        call.server.allow_all(call)
    now = call.server.broker.clock.now()
    return json(SeriesPage(step, await look(call, chart, name, step, count, now)))


async def leases(call: Call) -> Response:
    """Live leases of one queue or of all: consumer, messages, start and end."""
    name, group_name = optional(call, "queue"), optional(call, "group")
    if name is not None:
        call.server.allow(call, name)
        wanted: list[tuple[str, str | None]] = [(name, group_name)]
    else:
        found, lines = await live(call)
        held = await derived(call, found, "held", lambda: _most_held(lines))
        wanted = [(one.queue, one.name) for one in held if group_name in (None, one.name)]
    limit, seconds = page_limit(call), seconds_of(call)
    rows, more = await look(call, board.leases, wanted, optional(call, "consumer"), limit, seconds)
    return json(LeaseRows(sorted(rows, key=lambda one: one.acquired_at), more))


def _most_held(lines: list[QueueLine]) -> list[GroupMetrics]:
    """The groups with leases, those with most leased messages first."""
    held = [group for line in lines for group in line.groups if group.leased]
    return sorted(held, key=lambda group: -group.leased)


async def preview(call: Call) -> Response:
    """Preview of a seek: what it would do now."""
    queue, group, to, is_time, partition = seek_target(call)
    found = await look(call, board.seek_preview, queue, group, to, is_time, partition)
    return json(found)


def seek_target(call: Call) -> tuple[str, str, str | int, bool, str | None]:
    """Where to seek: `to` is start, end, a sequence, or with `time` seconds since 1970."""
    to = call.query.get("to", "end")
    is_time = call.flag("time")
    target: str | int = to
    if to not in ("start", "end"):
        target = time_of(to, "to") if is_time else call.integer("to", 0, 0, MAX_SEQUENCE)
    return call.params["queue"], call.params["group"], target, is_time, optional(call, "partition")


async def values(call: Call) -> Response:
    """Keyed values by the beginning of their keys; jobs, schedules and limits are kept as such."""
    found: list[Value] = await look(
        call, stats.values, call.query.get("prefix", ""), page_limit(call), optional(call, "after"),
        call.flag("descending"),
    )  # fmt: skip
    return json([msgspec.structs.replace(one, data=masked(call, one.data)) for one in found])


SEEK = (Param("to", ANY, "start, end, a sequence, or a time"),
        Param("time", {"type": "boolean"}, "`to` is in seconds since 1970"),
        Param("partition", ANY, "Only this partition"))  # fmt: skip

ROUTES = (
    read_route("/v1/overview", overview, "The state of all queues", Overview, checks_queues=True),
    read_route("/v1/brokers", brokers, "List brokers", list[BrokerInfo]),
    read_route("/v1/series", series, "Rates and counts over time", SeriesPage, QUEUE,
         Param("step", {"enum": [MINUTE, HOUR]}, "Seconds between points"),
         Param("count", NUMBER, "Points"), checks_queues=True),
    read_route("/v1/queues", queues, "List queues", QueueRows,
         Param("filter", ANY, "A part of the name, or a pattern"),
         Param("sort", {"enum": list(SORTS)}, "Column"), Param("descending", {"type": "boolean"}),
         Param("show", {"enum": list(SHOWN)}), Param("sparks", {"type": "boolean"}),
         LIMIT, AFTER, checks_queues=True),
    read_route("/v1/queues/{queue}", queue, "Show a queue", QueuePage, GROUP),
    read_route("/v1/queues/{queue}/partitions", lanes, "Partitions and priorities of a queue", LanePage,
         LIMIT, AFTER),
    read_route("/v1/groups", groups, "List groups", GroupRows, QUEUE,
         Param("filter", ANY, "A part of the name"), LIMIT, AFTER, checks_queues=True),
    read_route("/v1/queues/{queue}/groups/{group}/partitions", partitions,
         "How far a group has read each partition", PartitionPage, LIMIT, AFTER),
    read_route("/v1/queues/{queue}/groups/{group}/seek", preview, "What a seek would do", SeekPreview,
         *SEEK),
    read_route("/v1/leases", leases, "List live leases", LeaseRows, QUEUE, GROUP,
         Param("consumer", ANY, "A part of the name"), LIMIT, SECONDS, checks_queues=True),
    read_route("/v1/values", values, "List keyed values", list[Value], Param("prefix", ANY), LIMIT,
         Param("after", ANY, "The last key of the previous page"),
         Param("descending", {"type": "boolean"})),
)  # fmt: skip
