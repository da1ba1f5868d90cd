"""`ackflow dlq`: find dead letters, see why they died, send them back, throw them away."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any, Protocol

import typer

from ..errors import InvalidArgument, NotFound
from ..model import DeadLetter
from . import output
from .command import NOTHING, Link, Yes, command, confirm
from .output import Cell, Columns, ago, group_name, many, short
from .params import Group, Limit, MaybeQueue, Partition, Queue, Since, Until

app = typer.Typer(
    no_args_is_help=True,
    help="Dead letters: find them, see why they died, send them back, throw them away.",
)
MOST = 10_000
NONE = "no dead letters"
LETTERS = Columns(
    (">number", "queue", "group", "died", "of", "reason", "data"),
    ("of", "data", "group", "died", "reason"),
)
SUMMARY = Columns(
    (">count", "queue", "group", "of", "error", "first", "last"),
    ("first", "of", "last", "group", "error"),
)

Kind = Annotated[
    str | None,
    typer.Option(help="Only those that died of this: failed, max_deliver, rejected, max_wait."),
]
Error = Annotated[
    str | None, typer.Option("--error", "-e", help="Only those whose reason contains this.")
]
Numbers = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="Their numbers, as `list` shows them, or ids of messages."),
]
All = Annotated[bool, typer.Option("--all", help="All of the queue.")]
_CAUSES = {
    "failed": "failed",
    "max_deliver": "handed out too often",
    "rejected": "rejected",
    "max_wait": "waited too long",
    "expired": "expired",
}


def register(main: typer.Typer) -> None:
    main.add_typer(app, name="dlq", rich_help_panel="Dead letters")


@command(app, "list", needs_reader=True)
def entries(
    link: Link,
    queue: MaybeQueue = None,
    group: Group = None,
    partition: Partition = None,
    kind: Kind = None,
    error: Error = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 20,
) -> None:
    """List dead letters, newest first."""
    which = Which(group, partition, kind, error, since, until)
    shown, total = 0, 0
    found: list[DeadLetter] = []
    for name in _queues(link, queue):
        page = link.session.dead_letters(name, limit=limit, **which.given())
        found += page.items
        total += page.total or 0
    found = sorted(found, key=lambda letter: letter.died_at, reverse=True)[:limit]
    if not found:
        link.out.say(NONE)
        return
    link.out.table(
        LETTERS,
        map(_row, found),
        map(output.stored, found),
    )
    shown = len(found)
    if shown < total:
        link.out.note(f"the newest {shown:,} of {total:,}; see more with --limit")
    one = f"{found[0].queue} {found[0].id}"
    link.out.hint(f"more of one: ackflow dlq show {one}; send it back: ackflow dlq redrive {one}")


def _row(letter: DeadLetter) -> list[Cell]:
    return [
        str(letter.id), letter.queue, group_name(letter.group), ago(letter.died_at),
        _CAUSES.get(letter.kind, letter.kind), letter.reason or "", short(letter.raw),
    ]  # fmt: skip


@command(app, needs_reader=True)
def summary(link: Link, queue: MaybeQueue = None, group: Group = None) -> None:
    """Show how many died of what, most first."""
    found = [
        (name, line)
        for name in _queues(link, queue)
        for line in link.session.dead_summary(name, group)
    ]
    if not found:
        link.out.say(NONE)
        return
    found.sort(key=lambda one: -one[1].count)
    link.out.table(
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
def show(link: Link, queue: Queue, ids: Numbers = None, group: Group = None) -> None:
    """Show dead letters whole: why and when they died, how often they were tried, what they are."""
    if not ids:
        raise InvalidArgument("say which: numbers as `ackflow dlq list` shows them, or ids")
    for letter in _letters(link, queue, numbers(link, queue, ids, group)):
        link.out.record(output.stored(letter), *_story(letter))


def _story(letter: DeadLetter) -> Iterator[str]:
    cause = _CAUSES.get(letter.kind, letter.kind)
    yield f"dead letter {letter.id} of {letter.queue}, group {group_name(letter.group)}"
    yield f"died        {output.when(letter.died_at)} ({ago(letter.died_at)}): {cause}"
    yield f"reason      {letter.reason or 'none given'}"
    last = f", last by {letter.consumer}" if letter.consumer else ""
    yield f"tries       handed out {letter.deliveries}, failed {letter.failures}{last}"
    yield f"message     {letter.message_id}, partition {letter.partition}, priority {letter.priority}"
    yield f"pushed      {output.when(letter.created_at)}"
    for name, value in letter.headers.items():
        yield f"header      {name}: {value}"
    yield output.pretty(letter.raw)


@command(app)
def redrive(
    link: Link,
    queue: Queue,
    ids: Numbers = None,
    everything: All = False,
    to: Annotated[
        str | None, typer.Option(help="Push them to this queue, for all its groups.")
    ] = None,
    rate: Annotated[float | None, typer.Option(min=0.001, help="At most so many a second.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what would be sent.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="At most so many, oldest first.")
    ] = None,
    group: Group = None,
    partition: Partition = None,
    kind: Kind = None,
    error: Error = None,
    since: Since = None,
    until: Until = None,
) -> None:
    """Send dead letters back to the group they died in, with new tries: some, those that match, or all."""
    which = Which(group, partition, kind, error, since, until).chosen(link, queue, ids, everything)
    total = _count(link, queue, which, limit)
    where = f"to {to}" if to else f"back to {queue}"
    if dry_run:
        link.out.record(
            {"would_redrive": total}, f"{many(total, 'dead letter')} would be sent {where}"
        )
        return
    sent = 0
    with _progress(total if rate else 0) as advance:
        for part in _paced(total, rate):
            done = link.session.redrive(queue, to=to, limit=part, **which)
            sent += done
            advance(done)
            if done < part:
                break
    link.out.record({"redriven": sent}, f"{many(sent, 'dead letter')} sent {where}")


def _paced(total: int, rate: float | None) -> Iterator[int]:
    """How many to send at a time: all at once, or about ten times a second a part of the rate."""
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
    link: Link,
    queue: Queue,
    ids: Numbers = None,
    everything: All = False,
    group: Group = None,
    partition: Partition = None,
    kind: Kind = None,
    error: Error = None,
    since: Since = None,
    until: Until = None,
    yes: Yes = False,
) -> None:
    """Throw dead letters away: some, those that match, or all. Asks first."""
    which = Which(group, partition, kind, error, since, until).chosen(link, queue, ids, everything)
    total = _count(link, queue, which, None)
    confirm(f"Throw {many(total, 'dead letter')} of {queue} away for good?", yes)
    gone = link.session.purge_dead(queue, **which)
    link.out.record({"purged": gone}, f"{many(gone, 'dead letter')} thrown away")


class Which:
    """Which dead letters are meant: by what they have in common, or one by one."""

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
        self, link: Link, queue: str, ids: list[str] | None, everything: bool
    ) -> dict[str, Any]:
        """For commands that act: nothing chosen is not the same as all."""
        filtered = any(value is not None for value in self._filters.values())
        if ids:
            if filtered or everything:
                raise InvalidArgument("choose by number or by what they have in common, not both")
            return {"ids": numbers(link, queue, ids, self._group)}
        if not (filtered or everything or self._group):
            raise InvalidArgument(
                "say which: numbers as `ackflow dlq list` shows them, a filter such as --error, "
                "or --all"
            )
        return self.given()


def numbers(link: Link, queue: str, ids: Iterable[str], group: str | None) -> list[int]:
    """The numbers of dead letters; the id of a message means those it has in its groups."""
    found: list[int] = []
    for id in ids:
        if id.isascii() and id.isdigit():
            found.append(int(id))
            continue
        names = [group] if group else [g.name for g in link.session.queue_stats(queue).groups]
        answers = [link.session.why(queue, id, group=name).dead_letter for name in names]
        mine = [number for number in answers if number is not None]
        if not mine:
            raise NotFound(f"message {id} is no dead letter of {queue!r}")
        found += mine
    return found


def _letters(link: Link, queue: str, ids: list[int]) -> list[DeadLetter]:
    letters = link.session.dead_letters(queue, ids=ids, limit=MOST).items
    missing = set(ids) - {letter.id for letter in letters}
    if missing:
        some = ", ".join(map(str, sorted(missing)))
        raise NotFound(f"queue {queue!r} has no dead letter {some}; see `ackflow dlq list {queue}`")
    return letters


def _count(link: Link, queue: str, which: dict[str, Any], limit: int | None) -> int:
    """How many there are now; what dies later is left alone."""
    if "ids" in which:
        total = len(_letters(link, queue, which["ids"]))
    else:
        total = link.session.dead_letters(queue, limit=1, **which).total or 0
    if not total:
        _none(link)
    return total if limit is None else min(total, limit)


def _queues(link: Link, queue: str | None) -> list[str]:
    return [queue] if queue is not None else [one.name for one in link.session.queues()]


def _none(link: Link) -> None:
    link.out.say(NONE)
    raise typer.Exit(NOTHING)
