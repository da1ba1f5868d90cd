"""`ackflow jobs`: list, show, interrupt and clean up jobs."""

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
import typer

from ...broker import audit
from ...errors import InvalidArgument
from ...model import when
from ...worker.coordination.job_records import STATUSES, Job
from ...worker.coordination.jobs import KEEP_FAILED, KEEP_SUCCESS, Jobs
from .. import params
from ..command import Target, Yes, command, confirm
from ..output import Columns, ago, plural, span

app = typer.Typer(no_args_is_help=True, help="Show, interrupt and clean up the jobs of workers.")

Id = Annotated[str, typer.Argument(help="Id of a root job, as `jobs list` shows it.")]
Limit = Annotated[
    int, typer.Option("--limit", "-n", min=1, max=10_000, help="Maximum number of jobs.")
]
STYLES = {"failed": "red", "stale": "red", "running": "green", "cancelled": "yellow"}
CHILDREN = Columns(("id", "name", "status", ">progress", "started", "took"), ("took", "started"))


@command(app, "list")
def show_all(
    target: Target,
    status: Annotated[
        str | None, typer.Option(help=f"Only with this status: {', '.join(STATUSES)}.")
    ] = None,
    limit: Limit = 50,
) -> None:
    """List root jobs, the newest first."""
    jobs = Jobs(target.session)
    if status is not None and status not in STATUSES:
        raise InvalidArgument(f"--status must be one of {', '.join(STATUSES)}, got {status!r}")
    found = jobs.roots(status=status, limit=limit)
    if not found:
        target.out.say("no jobs" if status is None else f"no {status} jobs")
        return
    columns = Columns(
        ("id", "name", "status", ">progress", ">children", "created", "took"),
        ("took", "children", "created"),
    )
    target.out.table(columns, map(_row, found), map(_record, found))
    if len(found) == limit:
        target.out.note(f"the newest {plural(limit, 'job')}; more with --limit")


@command(app)
def show(target: Target, id: Id, limit: Limit = 50) -> None:
    """Show a root job and its children."""
    jobs = Jobs(target.session)
    job = jobs.get(id)
    children = jobs.children(job.id, limit=limit) if job.is_root else []
    counts = ", ".join(f"{count} {name}" for name, count in job.counts.items() if count)
    target.out.record(
        {**_record(job), "children": [_record(child) for child in children]},
        f"{job.name}  {job.id}",
        f"status      {job.status}{', interrupted' if job.interrupted else ''}",
        f"progress    {job.progress:.0%}",
        *([f"owner       {job.owner}"] if job.owner else []),
        *([f"children    {counts}"] if counts else []),
        f"created     {ago(when(job.created_at))}",
        *([f"stopped     {ago(when(job.stopped_at))}"] if job.stopped_at else []),
        *(f"property    {name}={value}" for name, value in sorted(job.properties.items())),
        *([f"data        {msgspec.json.encode(job.data).decode()}"] if job.data else []),
    )
    if children and not target.out.as_json:
        target.out.say()
        rows = ([*_row(child)[:4], _time(child.started_at), _took(child)] for child in children)
        target.out.table(CHILDREN, rows, [])


@command(app)
def interrupt(target: Target, id: Id, yes: Yes = False) -> None:
    """Cancel a root job and its children that have not started. Asks for confirmation."""
    jobs = Jobs(target.session)
    job = jobs.get(id)
    if job.stopped_at is not None:
        target.out.record(_record(job), f"job {job.id} has stopped already: {job.status}")
        return
    confirm(f"Cancel job {job.name} ({job.id})?", yes)
    job = jobs.interrupt(job.id)
    if not target.location.remote:
        actor, details = audit.Actor.local_user(), {"job": job.id, "name": job.name}
        broker = target.session.broker
        broker.do(audit.record_of_none, True, actor, "interrupt job", details)
    running = job.counts.get("running", 0)
    more = f"; {plural(running, 'child job')} still running" if running else ""
    target.out.record(_record(job), f"job {job.name} is cancelled{more}")


@command(app)
def cleanup(
    target: Target,
    success: Annotated[
        float, params.duration("Keep jobs that succeeded for this time.", "--success")
    ] = KEEP_SUCCESS,
    failed: Annotated[
        float, params.duration("Keep all other jobs for this time.", "--failed")
    ] = KEEP_FAILED,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-d", help="Only count the jobs.")] = False,
) -> None:
    """Remove jobs that stopped long ago."""
    done = Jobs(target.session).cleanup(success=success, failed=failed, dry_run=dry_run)
    verb = "would be removed" if dry_run else "removed"
    target.out.record(
        {"roots": done.roots, "children": done.children, "dry_run": dry_run},
        f"{plural(done.roots, 'job')} with {plural(done.children, 'child job')} {verb}",
    )


@command(app)
def count(target: Target) -> None:
    """Count root jobs by status."""
    counts = Jobs(target.session).counts()
    target.out.table(
        Columns(("status", ">jobs")),
        ([status, str(number)] for status, number in counts.items()),
        [counts],
    )


def _row(job: Job) -> list[Any]:
    style = STYLES.get(job.status)
    status = job.status if style is None else (job.status, style)
    children = str(sum(job.counts.values()))
    return [job.id, job.name, status, f"{job.progress:.0%}", children, _time(job.created_at),
            _took(job)]  # fmt: skip


def _time(at: int | None) -> str:
    return "" if at is None else ago(when(at))


def _took(job: Job) -> str:
    if job.started_at is None or job.stopped_at is None:
        return ""
    return span((job.stopped_at - job.started_at) / 1e6)


def _record(job: Job) -> dict[str, Any]:
    times: Iterable[str] = ("created_at", "started_at", "last_active_at", "stopped_at")
    found: dict[str, Any] = msgspec.to_builtins(job)
    for name in times:
        found[name] = None if found[name] is None else when(found[name])
    for name in ("run", "leased"):
        del found[name]
    return found
