"""`ackflow copy` and `ackflow migrate`: queues from one database to another; the schema."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated

import typer

from ... import validate
from ...errors import InvalidArgument
from ...session.connect import connect
from ...session.queue_copy import copy_queue, delete_source, look_at, refuse_same
from ...session.schema import schema_version
from ...session.session import Session
from .. import contexts
from ..command import Target, Yes, command, confirm, require_file
from ..contexts import Location
from ..errors import FAILED
from ..output import Columns, Output, plural
from ..params import AsJson, duration, wants_json

PANEL = "Operation"
QUEUES = Columns(("queue", ">messages", ">dead", ">leased", "groups"), ())


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=PANEL)(copy)
    command(app, panel=PANEL, local=True)(migrate)


def copy(
    ctx: typer.Context,
    source: Annotated[
        str, typer.Argument(metavar="FROM", help="File, URL or context to copy from.")
    ],
    target: Annotated[str, typer.Argument(metavar="TO", help="File, URL or context to copy to.")],
    queues: Annotated[
        list[str] | None, typer.Argument(metavar="[QUEUE]...", help="Queues (default: all).")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be copied; change nothing.")
    ] = False,
    wait: Annotated[
        float,
        duration(
            "How long to wait for leases; messages that are still leased then are due in the copy."
        ),
    ] = 30,
    move: Annotated[
        bool, typer.Option("--move", help="Delete each queue at the source once it is copied.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Copy queues with messages, groups, positions and dead letters.

    After a crash, run the same command again to continue.
    """
    out = Output(wants_json(ctx, as_json))
    with ExitStack() as stack:
        one = stack.enter_context(_open(source, False))
        names = queues or [queue.name for queue in one.queues()]
        found = [look_at(one, name) for name in names]
        if dry_run:
            out.table(
                QUEUES,
                ([q.name, f"{q.messages:,}", f"{q.dead_letters:,}", f"{q.leased:,}",
                  ", ".join(group.name for group in q.groups)] for q in found),
                ({"queue": q.name, "messages": q.messages, "dead_letters": q.dead_letters,
                  "leased": q.leased, "groups": [group.name for group in q.groups]} for q in found),
            )  # fmt: skip
            return
        if move:
            confirm(f"Delete {plural(len(found), 'queue')} at the source after the copy?", yes)
        other = stack.enter_context(_open(target, True))
        refuse_same(one, other)
        for given in found:
            for lease in one.leases(given.name):
                out.note(f"{given.name}: {lease.held} leased by {lease.consumer} ({lease.token})")
            with _bar(given.name, given.messages) as advance:
                done = copy_queue(one, other, given.name, wait=wait, progress=advance)
            if move:
                delete_source(one, done)
            left = (
                f", {plural(done.leased, 'leased message')} due in the copy" if done.leased else ""
            )
            after = "deleted at the source" if move else "paused at the source"
            out.record(
                done,
                f"{done.queue}: {plural(done.messages, 'message')} and "
                f"{plural(done.dead_letters, 'dead letter')} copied{left}; {after}",
            )


def migrate(
    target: Target,
    check: Annotated[
        bool,
        typer.Option("--check", help="Only report whether a migration is needed (exit code 1)."),
    ] = False,
) -> None:
    """Migrate a database to the schema of this version. Opening a database does the same."""
    location = target.location
    if location.remote:
        raise InvalidArgument(
            "a server migrates its database when it starts; give the file or the URL of PostgreSQL"
        )
    require_file(location)
    for place in validate.databases(location.url):
        version, newest = schema_version(place)
        shown = validate.redact_url(place)
        if version == newest:
            target.out.record(
                {"database": shown, "schema": version, "newest": newest},
                f"{shown} has schema {version}, the newest that this version knows",
            )
            continue
        if not check:
            connect(place, upkeep=False).close()
        done = "would be migrated" if check else "is migrated"
        target.out.record(
            {"database": shown, "schema": version, "newest": newest},
            f"{shown} {done} from schema {version} to {newest}",
        )
        if check:
            raise typer.Exit(FAILED)


@contextmanager
def _open(place: str, creates: bool) -> Iterator[Session]:
    """Open a database or server by file, URL or the name of a context."""
    named = place in contexts.load().known
    location: Location = contexts.find(None, place) if named else contexts.find(place, None)
    if location.remote:
        session = connect(location.url, token=location.token, ca_file=location.ca_file)
    else:
        if not creates:
            require_file(location)
        session = connect(location.url, upkeep=False)
    with session:
        yield session


@contextmanager
def _bar(name: str, messages: int) -> Iterator[Callable[[int], object]]:
    """Show a progress bar on a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich import progress as bars
    from rich.console import Console

    columns = [bars.TextColumn("{task.description}"), bars.BarColumn(), bars.MofNCompleteColumn(),
               bars.TimeRemainingColumn()]  # fmt: skip
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=messages)
        yield lambda n: bar.advance(task, n)
