"""The dashboard's jobs, schedules and pipelines: what the packages of workers and pipelines keep.

They are programs on sessions; here their own functions read and change what they have stored.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

from msgspec import Struct

from ...broker import audit
from ...broker.sampling.live_stats import LiveStats, QueueLine
from ...model import when, when_or_none
from ...pipeline import state
from ...pipeline.declaration import Pipeline
from ...worker.coordination import presence
from ...worker.coordination.job_records import STATUSES, Job
from ...worker.coordination.jobs import Jobs
from ...worker.coordination.presence import WorkerInfo
from ...worker.coordination.schedules import Schedules, ScheduleState
from ..http import Call, Param, Response, Route, json
from .actions import actor_of, check_change
from .responses import (
    ANY,
    LIMIT,
    QueueRow,
    masked,
    optional,
    page_limit,
    read_route,
    row_of,
    snapshot_of,
)
from .ui import TAG

T = TypeVar("T")
ALARM_SECONDS = 60.0


class JobRow(Struct):
    """A root job, or a child of one. `children` are counted by status."""

    id: str
    name: str
    status: str
    owner: str | None
    interrupted: bool
    progress: float
    created_at: datetime
    started_at: datetime | None
    last_active_at: datetime
    stopped_at: datetime | None
    children: dict[str, int]
    data: dict[str, Any]
    properties: dict[str, str]


class JobPage(Struct):
    """A root job with its first children."""

    job: JobRow
    children: list[JobRow]
    next: str | None


class JobRows(Struct):
    """Root jobs, the newest first; `next` is where to continue."""

    items: list[JobRow]
    next: str | None


class ScheduleRows(Struct):
    """Schedules by name."""

    items: list[ScheduleState]
    next: str | None


class PauseSchedule(Struct):
    """Whether a schedule pushes no ticks."""

    paused: bool


class PipelineRow(Struct):
    """A pipeline: its queues, what is folded of each table, and its last recoveries.

    `finished`: the answers of these clients are written; with a text, they failed.
    """

    name: str
    queues: list[QueueRow]
    tables: list[state.TableStatus]
    clients: int
    finished: dict[str, Any]
    recoveries: list[state.Recovery]
    working: list[str]
    ui: str


def _ask(call: Call, work: Callable[[], T]) -> Any:
    return call.server.in_read_lane(work)


def _job_row(call: Call, job: Job) -> JobRow:
    return JobRow(
        job.id, job.name, job.status, job.owner, job.interrupted, job.progress,
        when(job.created_at), when_or_none(job.started_at), when(job.last_active_at),
        when_or_none(job.stopped_at), {name: n for name, n in job.counts.items() if n},
        masked(call, job.data), call.server.dashboard.masking.headers(job.properties),
    )  # fmt: skip


def _more(rows: list[JobRow], limit: int) -> str | None:
    return rows[-1].id if len(rows) == limit else None


async def workers(call: Call) -> Response:
    """Running workers, the oldest first: what they serve, what they do, and what they have done."""
    return json(await _ask(call, lambda: presence.workers(call.server.session)))


async def jobs(call: Call) -> Response:
    """Root jobs, the newest first."""
    status, limit = optional(call, "status"), page_limit(call)
    found = Jobs(call.server.session)
    rows = await _ask(
        call,
        lambda: [
            _job_row(call, job)
            for job in found.roots(status=status, limit=limit, after=optional(call, "after"))  # type: ignore[arg-type]
        ],
    )
    return json(JobRows(rows, _more(rows, limit)))


async def job(call: Call) -> Response:
    """A root job and its children."""
    id, limit = call.params["id"], page_limit(call)
    found = Jobs(call.server.session)

    def read() -> JobPage:
        children = found.children(id, limit=limit, after=optional(call, "after"))
        rows = [_job_row(call, child) for child in children]
        return JobPage(_job_row(call, found.get(id)), rows, _more(rows, limit))

    return json(await _ask(call, read))


async def interrupt(call: Call) -> Response:
    """Cancel a root job: children that have not started are cancelled, running ones continue."""
    check_change(call)
    found, id = Jobs(call.server.session), call.params["id"]
    row = _job_row(call, await _ask(call, lambda: found.interrupt(id)))
    await _record(call, "interrupt job", {"job": row.id, "name": row.name})
    return json(row)


async def schedules(call: Call) -> Response:
    """Schedules with their last and next tick."""
    limit, found = page_limit(call), Schedules(call.server.session)
    rows = await _ask(call, lambda: found.known(limit=limit, after=optional(call, "after")))
    return json(ScheduleRows(rows, rows[-1].name if len(rows) == limit else None))


async def pause_schedule(call: Call) -> Response:
    """Pause or resume a schedule."""
    check_change(call)
    name, paused = call.params["name"], call.json_body(PauseSchedule).paused
    found = Schedules(call.server.session)
    row = await _ask(call, lambda: found.pause(name) if paused else found.resume(name))
    await _record(call, f"{'pause' if paused else 'resume'} schedule", {"schedule": name})
    return json(row)


async def _record(call: Call, action: str, details: dict[str, Any]) -> None:
    await call.server.do(audit.record_of_none, True, actor_of(call), action, details)


async def pipelines(call: Call) -> Response:
    """Pipelines with their queues, held end-of-file messages, alarms and recoveries."""
    alarm_after = call.seconds("alarm_after", ALARM_SECONDS, 1e9) or ALARM_SECONDS
    snapshot = await snapshot_of(call)
    session = call.server.session

    def read() -> list[PipelineRow]:
        return [_pipeline(call, one, snapshot, alarm_after) for one in state.pipelines(session)]

    return json(await _ask(call, read))


def _pipeline(
    call: Call, pipeline: Pipeline, snapshot: LiveStats, alarm_after: float
) -> PipelineRow:
    session = call.server.session
    names = (pipeline.inbox, pipeline.ends, pipeline.bad)
    ui = session.value(pipeline.state_key("ui"))
    return PipelineRow(
        pipeline.name,
        [
            row_of(snapshot.queues.get(name) or QueueLine(0, name, False, 0, 0, []))
            for name in names
        ],
        state.table_statuses(session, pipeline, alarm_after),
        len(state.known_clients(session, pipeline)),
        state.read_state(session, pipeline, "done"),
        state.recoveries(session, pipeline),
        sorted(state.read_state(session, pipeline, "working")),
        str(ui.data or "") if ui is not None else "",
    )


def _change(path: str, handler: Any, summary: str, body: Any, answer: Any) -> Route:
    return Route("POST", path, handler, "read-write", tag=TAG, summary=summary, body=body,
                 responses={200: answer}, cookies=True)  # fmt: skip


NEXT = Param("after", ANY, "The `next` of the previous page")
ROUTES = (
    read_route("/v1/workers", workers, "List workers", list[WorkerInfo]),
    read_route("/v1/jobs", jobs, "List root jobs", JobRows, LIMIT, NEXT,
               Param("status", {"enum": list(STATUSES)}, "Only with this status")),
    read_route("/v1/jobs/{id}", job, "Show a job", JobPage, LIMIT, NEXT),
    read_route("/v1/schedules", schedules, "List schedules", ScheduleRows, LIMIT, NEXT),
    read_route("/v1/pipelines", pipelines, "List pipelines", list[PipelineRow],
               Param("alarm_after", {"type": "number"}, "Seconds after which a held end-of-file message raises an alarm")),
    _change("/v1/jobs/{id}/interrupt", interrupt, "Cancel a root job", None, JobRow),
    _change("/v1/schedules/{name}/pause", pause_schedule, "Pause or resume a schedule",
            PauseSchedule, ScheduleState),
)  # fmt: skip
