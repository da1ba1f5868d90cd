"""`ackflow dlq`: list, show, redrive and purge dead letters."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any, Protocol

import typer

from ...errors import InvalidArgument, NotFound
from ...model import DeadLetter
from .. import output
from ..command import Target, Yes, command, confirm
from ..errors import NOTHING
from ..output import Cell, Columns, ago, group_name, plural, short
from ..params import Group, Limit, OptionalQueue, Partition, Queue, Since, Until

app = typer.Typer(
    no_args_is_help=True,
    help="List, show, redrive and purge dead letters.",
)
MAX_LETTERS = 10_000
NONE = "no dead letters"
LETTERS = Columns(
    (">number", "queue", "group", "died", "cause", "reason", "data"),
    ("cause", "data", "group", "died", "reason"),
)
SUMMARY = Columns(
    (">count", "queue", "group", "cause", "error", "first", "last"),
    ("first", "cause", "last", "group", "error"),
)

KindFilter = Annotated[
    str | None,
    typer.Option("--kind", help="Filter by kind: failed, max_deliver, rejected or max_wait."),
]
ErrorFilter = Annotated[
    str | None, typer.Option("--error", "-e", help="Filter by text in the reason.")
]
Numbers = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="Numbers as shown by `list`, or message ids."),
]
All = Annotated[bool, typer.Option("--all", help="All dead letters of the queue.")]
_CAUSES = {
    "failed": "failed",
    "max_deliver": "delivered too often",
    "rejected": "rejected",
    "max_wait": "waited too long",
    "expired": "expired",
}


def register(main: typer.Typer) -> None:
    main.add_typer(app, name="dlq", rich_help_panel="Dead letters")


@command(app, "list", needs_reader=True)
def entries(
    target: Target,
    queue: OptionalQueue = None,
    group: Group = None,
    partition: Partition = None,
    kind: KindFilter = None,
    error: ErrorFilter = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 20,
) -> None:
    """List dead letters, newest first."""
    which = Selection(group, partition, kind, error, since, until)
    shown, total = 0, 0
    found: list[DeadLetter] = []
    for name in _queues(target, queue):
        page = target.session.dead_letters(name, limit=limit, **which.given())
        found += page.items
        total += page.total or 0
    found = sorted(found, key=lambda letter: letter.died_at, reverse=True)[:limit]
    if not found:
        target.out.say(NONE)
        return
    target.out.table(
        LETTERS,
        map(_row, found),
        map(output.message_record, found),
    )
    shown = len(found)
    if shown < total:
        target.out.note(f"the newest {shown:,} of {total:,}; give --limit to see more")
    one = f"{found[0].queue} {found[0].id}"
    target.out.hint(f"details: ackflow dlq show {one}; deliver again: ackflow dlq redrive {one}")


def _row(letter: DeadLetter) -> list[Cell]:
    return [
        str(letter.id), letter.queue, group_name(letter.group), ago(letter.died_at),
        _CAUSES.get(letter.kind, letter.kind), letter.reason or "", short(letter.raw),
    ]  # fmt: skip


@command(app, needs_reader=True)
def summary(target: Target, queue: OptionalQueue = None, group: Group = None) -> None:
    """Count dead letters by cause, most frequent first."""
    found = [
        (name, line)
        for name in _queues(target, queue)
        for line in target.session.dead_summary(name, group)
    ]
    if not found:
        target.out.say(NONE)
        return
    found.sort(key=lambda one: -one[1].count)
    target.out.table(
        SUMMARY,
        (
            [
                f"{s.count:,}", name, group_name(s.group), _CAUSES.get(s.kind, s.kind), s.error,
                ago(s.first_at), ago(s.last_at),
            ]
            for name, s in found
        ),
        (
            {"queue": name, **{field: getattr(s, field) for field in s.__struct_fields__}}
            for name, s in found
        ),
    )  # fmt: skip


@command(app, needs_reader=True)
def show(target: Target, queue: Queue, ids: Numbers = None, group: Group = None) -> None:
    """Show dead letters in full: cause, time, deliveries, payload."""
    if not ids:
        raise InvalidArgument("give numbers as shown by `ackflow dlq list`, or message ids")
    for letter in _letters(target, queue, dead_letter_numbers(target, queue, ids, group)):
        target.out.record(output.message_record(letter), *_details(letter))


def _details(letter: DeadLetter) -> Iterator[str]:
    cause = _CAUSES.get(letter.kind, letter.kind)
    yield f"dead letter {letter.id} of {letter.queue}, group {group_name(letter.group)}"
    yield f"died        {output.when(letter.died_at)} ({ago(letter.died_at)}): {cause}"
    yield f"reason      {letter.reason or 'none given'}"
    last = f", last by {letter.consumer}" if letter.consumer else ""
    yield f"attempts    {letter.deliveries} delivered, {letter.failures} failed{last}"
    yield f"message     {letter.message_id}, partition {letter.partition}, priority {letter.priority}"
    yield f"pushed      {output.when(letter.created_at)}"
    for name, value in letter.headers.items():
        yield f"header      {name}: {value}"
    yield output.pretty(letter.raw)


@command(app)
def redrive(
    target: Target,
    queue: Queue,
    ids: Numbers = None,
    everything: All = False,
    to: Annotated[
        str | None, typer.Option(help="Push them to this queue instead, for all its groups.")
    ] = None,
    rate: Annotated[float | None, typer.Option(min=0.001, help="Maximum per second.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show how many would be redriven.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Maximum number, oldest first.")
    ] = None,
    group: Group = None,
    partition: Partition = None,
    kind: KindFilter = None,
    error: ErrorFilter = None,
    since: Since = None,
    until: Until = None,
) -> None:
    """Redrive dead letters to the group they died in, with counters reset: by id, by filter, or all."""
    which = Selection(group, partition, kind, error, since, until).chosen(
        target, queue, ids, everything
    )
    total = _count(target, queue, which, limit)
    where = f"to {to or queue}"
    if dry_run:
        target.out.record(
            {"would_redrive": total}, f"{plural(total, 'dead letter')} would be redriven {where}"
        )
        return
    sent = 0
    with _progress(total if rate else 0) as advance:
        for part in _paced(total, rate):
            done = target.session.redrive(queue, to=to, limit=part, **which)
            sent += done
            advance(done)
            if done < part:
                break
    target.out.record({"redriven": sent}, f"{plural(sent, 'dead letter')} redriven {where}")


def _paced(total: int, rate: float | None) -> Iterator[int]:
    """Batch sizes: all at once, or about ten batches per second at the given rate."""
    if rate is None:
        yield total
        return
    part = max(1, int(rate / 10))
    started, sent = time.monotonic(), 0
    while sent < total:
        pause = started + sent / rate - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        part = min(part, total - sent)
        yield part
        sent += part


class Advance(Protocol):
    def __call__(self, count: int) -> None: ...


@contextmanager
def _progress(total: int) -> Iterator[Advance]:
    if not total or not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    with Progress(
        BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console, transient=True
    ) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)


@command(app)
def purge(
    target: Target,
    queue: Queue,
    ids: Numbers = None,
    everything: All = False,
    group: Group = None,
    partition: Partition = None,
    kind: KindFilter = None,
    error: ErrorFilter = None,
    since: Since = None,
    until: Until = None,
    yes: Yes = False,
) -> None:
    """Delete dead letters: by id, by filter, or all. Asks for confirmation."""
    which = Selection(group, partition, kind, error, since, until).chosen(
        target, queue, ids, everything
    )
    total = _count(target, queue, which, None)
    confirm(f"Delete {plural(total, 'dead letter')} of {queue} permanently?", yes)
    gone = target.session.purge_dead(queue, **which)
    target.out.record({"purged": gone}, f"{plural(gone, 'dead letter')} deleted")


class Selection:
    """The dead letters that a command applies to, by filter or by id."""

    def __init__(
        self, group: str | None, partition: str | None, kind: str | None, error: str | None,
        since: datetime | None, until: datetime | None,
    ) -> None:  # fmt: skip
        self._group = group
        self._filters: dict[str, Any] = {
            "partition": partition, "kind": kind, "error": error, "since": since, "until": until,
        }  # fmt: skip

    def given(self) -> dict[str, Any]:
        all = {"group": self._group, **self._filters}
        return {name: value for name, value in all.items() if value is not None}

    def chosen(
        self, target: Target, queue: str, ids: list[str] | None, everything: bool
    ) -> dict[str, Any]:
        """The arguments for a command that changes data; it needs ids, a filter or --all."""
        filtered = any(value is not None for value in self._filters.values())
        if ids:
            if filtered or everything:
                raise InvalidArgument("give numbers or filters, not both")
            return {"ids": dead_letter_numbers(target, queue, ids, self._group)}
        if not (filtered or everything or self._group):
            raise InvalidArgument(
                "give numbers as shown by `ackflow dlq list`, a filter such as --error, or --all"
            )
        return self.given()


def dead_letter_numbers(
    target: Target, queue: str, ids: Iterable[str], group: str | None
) -> list[int]:
    """Dead letter numbers; a message id stands for its dead letters in all groups."""
    found: list[int] = []
    for id in ids:
        if id.isascii() and id.isdigit():
            found.append(int(id))
            continue
        names = [group] if group else [g.name for g in target.session.queue_stats(queue).groups]
        answers = [target.session.why(queue, id, group=name).dead_letter for name in names]
        mine = [number for number in answers if number is not None]
        if not mine:
            raise NotFound(f"message {id} is not a dead letter of {queue!r}")
        found += mine
    return found


def _letters(target: Target, queue: str, ids: list[int]) -> list[DeadLetter]:
    page = target.session.dead_letters(queue, ids=ids, limit=MAX_LETTERS)
    letters = page.items
    while page.next is not None:
        page = target.session.dead_letters(queue, ids=ids, limit=MAX_LETTERS, after=page.next)
        letters += page.items
    missing = set(ids) - {letter.id for letter in letters}
    if missing:
        some = ", ".join(map(str, sorted(missing)))
        raise NotFound(f"queue {queue!r} has no dead letter {some}; see `ackflow dlq list {queue}`")
    return letters


def _count(target: Target, queue: str, which: dict[str, Any], limit: int | None) -> int:
    """The number at this moment; later dead letters are not affected."""
    if "ids" in which:
        total = len(_letters(target, queue, which["ids"]))
    else:
        total = target.session.dead_letters(queue, limit=1, **which).total or 0
    if not total:
        _none(target)
    return total if limit is None else min(total, limit)


def _queues(target: Target, queue: str | None) -> list[str]:
    return [queue] if queue is not None else [one.name for one in target.session.queues()]


def _none(target: Target) -> None:
    target.out.say(NONE)
    raise typer.Exit(NOTHING)
