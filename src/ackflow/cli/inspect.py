"""Looking without touching: queues, groups, leases, messages, and why."""

from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec
import typer

from ..errors import NotFound
from ..model import GroupStats, LeaseStats, Page, QueueStats, StoredMessage, Why
from ..options import QUEUE_MODE
from . import output
from .command import NOTHING, Link, command
from .output import Cell, Columns, ago, counted, group_name, many, short, size, span, times
from .params import Group, Limit, MaybeQueue, Partition, Queue, Since, StateFor, Until, duration
from .params import group as group_of

PANEL = "Looking"
QUEUES = Columns(
    (
        "queue", ">stored", ">size", ">partitions", ">groups", ">lag", ">leased", ">dead", ">oldest",
        "state",
    ),
    ("partitions", "size", "groups", "stored", "oldest", "leased", "dead", "state", "lag"),
)  # fmt: skip
_OF_GROUP = ("group", ">ready", ">leased", ">waiting", ">dead", ">done", ">oldest", "state")
_SPARE = ("done", "oldest", "waiting", "leased", "dead", "state", "ready")
GROUPS = Columns(_OF_GROUP, _SPARE)
ALL_GROUPS = Columns(("queue", *_OF_GROUP), _SPARE)
PROGRESS = Columns(
    ("partition", ">ready", ">leased", ">waiting", ">dead", ">done", "last settled"),
    ("last settled", "done", "waiting", "leased", "dead", "ready"),
)
LEASES = Columns(
    ("queue", "group", "consumer", ">held", ">of", "since", "ends", "token"),
    ("of", "since", "group", "consumer", "ends", "held"),
)


def register(app: typer.Typer) -> None:
    for function in (queues, groups, leases, why, peek, browse, search):
        command(app, panel=PANEL, needs_reader=True)(function)


def queues(link: Link, queue: MaybeQueue = None) -> None:
    """Show the queues and what is in them; with a name, all about that one."""
    if queue is not None:
        _one_queue(link, link.session.queue_stats(queue))
        return
    found = link.session.queues()
    if not found:
        link.out.say("there are no queues yet")
        link.out.hint("""ackflow push orders '{"id": 1}'""")
        return
    link.out.table(QUEUES, map(_queue_row, found), map(output.queue_record, found))


def _queue_row(queue: QueueStats) -> list[Cell]:
    oldest = [g.oldest_seconds for g in queue.groups if g.oldest_seconds is not None]
    lag = max((g.counts.lag for g in queue.groups), default=queue.messages)
    return [
        queue.name, f"{queue.messages:,}", size(queue.bytes), f"{queue.partitions:,}",
        f"{len(queue.groups):,}", f"{lag:,}", f"{sum(g.counts.leased for g in queue.groups):,}",
        counted(queue.dead_letters, "red"), span(max(oldest, default=None)), _state(queue),
    ]  # fmt: skip


def _state(what: QueueStats | GroupStats) -> Cell:
    return ("paused", "yellow") if what.paused else ""


def _one_queue(link: Link, queue: QueueStats) -> None:
    if link.out.as_json:
        output.line(output.queue_record(queue))
        return
    paused = ", paused" if queue.paused else ""
    link.out.say(
        f"{queue.name}: {many(queue.messages, 'message')} stored ({size(queue.bytes)}) in "
        f"{many(queue.partitions, 'partition')}, {many(queue.dead_letters, 'dead letter')}{paused}"
    )
    changed = msgspec.to_builtins(queue.options)
    if changed:
        link.out.say("options: " + ", ".join(f"{k}={v}" for k, v in changed.items()))
    if queue.groups:
        link.out.say()
        output.tabulate(GROUPS, map(_group_row, queue.groups))


def groups(
    link: Link,
    queue: MaybeQueue = None,
    group: Annotated[
        str | None,
        typer.Argument(
            parser=group_of, metavar="GROUP", help="Name of the group, to see its partitions."
        ),
    ] = None,
) -> None:
    """Show the groups that read a queue; with a group, how far it is in each partition."""
    if queue is not None and group is not None:
        _progress(link, queue, group)
        return
    of = link.session.queues() if queue is None else [link.session.queue_stats(queue)]
    found = [one for some in of for one in some.groups]
    if not found:
        link.out.say("there are no groups yet; the first pop of a group makes it")
        return
    rows = ([one.queue, *_group_row(one)] for one in found)
    link.out.table(ALL_GROUPS, rows, map(output.group_record, found))


def _group_row(group: GroupStats) -> list[Cell]:
    c = group.counts
    return [
        group_name(group.name), f"{c.ready:,}", f"{c.leased:,}", f"{c.waiting:,}",
        counted(group.dead_letters, "red"), f"{c.done:,}", span(group.oldest_seconds),
        _state(group),
    ]  # fmt: skip


def _progress(link: Link, queue: str, group: str) -> None:
    found = link.session.progress(queue, group)
    rows: Iterable[list[Cell]] = (
        [
            p.partition, f"{p.counts.ready:,}", f"{p.counts.leased:,}", f"{p.counts.waiting:,}",
            counted(p.counts.dead, "red"), f"{p.counts.done:,}", ago(p.last_at),
        ]
        for p in found
    )  # fmt: skip
    link.out.table(PROGRESS, rows, map(output.progress_record, found))


def leases(link: Link, queue: MaybeQueue = None, group: Group = None) -> None:
    """Show who holds which messages until when."""
    names = [queue] if queue is not None else [one.name for one in link.session.queues()]
    found = [lease for name in names for lease in link.session.leases(name, group)]
    if not found:
        link.out.say("nothing is leased")
        return
    link.out.table(LEASES, map(_lease_row, found), found)


def _lease_row(lease: LeaseStats) -> list[Cell]:
    return [
        lease.queue, group_name(lease.group), lease.consumer, f"{lease.held:,}",
        f"{lease.batch:,}", ago(lease.acquired_at), ago(lease.expires_at), lease.token,
    ]  # fmt: skip


def why(
    link: Link,
    queue: Queue,
    id: Annotated[str, typer.Argument(metavar="ID", help="The id of the message.")],
    group: Group = None,
) -> None:
    """Tell what became of a message, and why it is or is not delivered now."""
    names = [group] if group is not None else _groups_of(link, queue)
    answers = [link.session.why(queue, id, group=name) for name in names]
    known = [answer for answer in answers if answer.state != "hidden"] or answers
    for answer in known:
        who = (
            ""
            if answer.group == QUEUE_MODE and len(known) == 1
            else f"{group_name(answer.group)}: "
        )
        link.out.record(answer, who + answer.sentence, *_counters(answer))
        if answer.dead_letter is not None:
            link.out.say(f"To send it back: ackflow dlq redrive {queue} {answer.dead_letter}")
    if all(answer.state == "unknown" for answer in known):
        raise typer.Exit(NOTHING)


def _groups_of(link: Link, queue: str) -> list[str]:
    """Whoever reads the queue; a queue that is not there is told by `why` itself."""
    try:
        return [one.name for one in link.session.queue_stats(queue).groups] or [QUEUE_MODE]
    except NotFound:
        return [QUEUE_MODE]


def _counters(answer: Why) -> Iterator[str]:
    if answer.deliveries:
        last = f", last by {answer.consumer}" if answer.consumer else ""
        failed = f", failed {times(answer.failures)}" if answer.failures else ""
        yield f"Handed out {times(answer.deliveries)}{failed}{last}."


def peek(
    link: Link,
    queue: Queue,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="Messages to show whole.")
    ] = None,
    group: Group = None,
    limit: Limit = 10,
) -> None:
    """Show what a group would be given next, or messages by id, without taking them."""
    if ids:
        for id in ids:
            show_whole(link, link.session.message(queue, id, group=group))
        return
    _list(link, link.session.peek(queue, group=group or QUEUE_MODE, limit=limit))


def browse(
    link: Link,
    queue: Queue,
    partition: Partition = None,
    group: StateFor = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 20,
    after: Annotated[str | None, typer.Option(help="Go on where an earlier page ended.")] = None,
) -> None:
    """List stored messages, settled ones too, without taking them."""
    _page(
        link,
        link.session.browse(
            queue, partition=partition, group=group, since=since, until=until, limit=limit,
            after=after,
        ),
    )  # fmt: skip


def search(
    link: Link,
    queue: Queue,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What the payload contains.")],
    partition: Partition = None,
    group: StateFor = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 20,
    seconds: Annotated[float, duration("Look for so long.", "--for")] = 10.0,
    after: Annotated[str | None, typer.Option(help="Go on where an earlier page ended.")] = None,
) -> None:
    """Find stored messages whose payload contains a text."""
    page = link.session.search(
        queue, text, partition=partition, group=group, since=since, until=until, limit=limit,
        seconds=seconds, after=after,
    )  # fmt: skip
    _page(link, page)


def _page(link: Link, page: Page[StoredMessage]) -> None:
    _list(link, page.items, more=page.next)


def _list(link: Link, messages: list[StoredMessage], more: str | None = None) -> None:
    if not messages and more is None:
        link.out.say("no messages")
        raise typer.Exit(NOTHING)
    states = any(message.state is not None for message in messages)
    columns = Columns(
        ("id", "partition", "pushed", *(["state"] if states else []), "data"),
        ("partition", "pushed", *(["state"] if states else []), "data"),
    )
    rows = (
        [m.id, m.partition, ago(m.created_at), *([m.state or ""] if states else []), short(m.raw)]
        for m in messages
    )
    link.out.table(columns, rows, map(output.stored, messages))
    if more is not None:
        if link.out.as_json:
            output.line({"next": more})
        link.out.note(f"there may be more: --after {more}")


def show_whole(link: Link, message: StoredMessage) -> None:
    state = f", {message.state}" if message.state else ""
    place = f"{message.queue}/{message.partition}, priority {message.priority}"
    link.out.record(
        output.stored(message),
        f"{message.id}  {place}, pushed {output.when(message.created_at)}{state}",
        *(f"{name}: {value}" for name, value in message.headers.items()),
        output.pretty(message.raw),
    )
