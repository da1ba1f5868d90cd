"""Read-only commands: queues, groups, leases, brokers, sweeps, messages, why."""

import sys
from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec
import typer

from ...errors import NotFound
from ...model import (
    BrokerInfo,
    GroupStats,
    LeaseStats,
    Page,
    QueueStats,
    StoredMessage,
    SweepStats,
    Why,
)
from ...options import QUEUE_MODE
from .. import output
from ..command import Target, command
from ..errors import NOTHING
from ..output import Cell, Columns, ago, colored, group_name, plural, short, size, span, times
from ..params import Group, Limit, OptionalQueue, Partition, Queue, Since, StateFor, Until, duration
from ..params import group as group_of

PANEL = "Inspection"
QUEUES = Columns(
    (
        "queue", ">stored", ">size", ">partitions", ">groups", ">lag", ">leased", ">dead", ">oldest",
        "state",
    ),
    ("partitions", "size", "groups", "stored", "oldest", "leased", "dead", "state", "lag"),
)  # fmt: skip
_OF_GROUP = ("group", ">ready", ">leased", ">waiting", ">dead", ">done", ">oldest", "state")
_OPTIONAL = ("done", "oldest", "waiting", "leased", "dead", "state", "ready")
GROUPS = Columns(_OF_GROUP, _OPTIONAL)
ALL_GROUPS = Columns(("queue", *_OF_GROUP), _OPTIONAL)
PROGRESS = Columns(
    ("partition", ">ready", ">leased", ">waiting", ">dead", ">done", "last settled"),
    ("last settled", "done", "waiting", "leased", "dead", "ready"),
)
LEASES = Columns(
    ("queue", "group", "consumer", ">held", ">of", "since", "ends", "token"),
    ("of", "since", "group", "consumer", "ends", "held"),
)
BROKERS = Columns(
    ("program", "host", ">process", "version", "since", "last seen", "upkeep"),
    ("last seen", "upkeep", "version", "since", "host"),
)
SWEEPS = Columns(
    ("kind", "queue", "group", "partition", ">done", ">lanes", ">purged", "started", "ended"),
    ("partition", "started", "group", "purged", "ended", "lanes"),
)


def register(app: typer.Typer) -> None:
    for function in (queues, groups, leases, brokers, sweeps, why, peek, browse, search):
        command(app, panel=PANEL, needs_reader=True)(function)


def queues(target: Target, queue: OptionalQueue = None) -> None:
    """List queues with their counts; with a name, show that queue in detail."""
    if queue is not None:
        _one_queue(target, target.session.queue_stats(queue))
        return
    found = target.session.queues()
    if not target.location.remote:
        for database in target.session.databases():
            if not database.up:
                print(f"ackflow: {database.error}; its queues are not shown", file=sys.stderr)
    if not found:
        target.out.say("no queues")
        target.out.hint("""ackflow push orders '{"id": 1}'""")
        return
    target.out.table(QUEUES, map(_queue_row, found), map(output.queue_record, found))


def _queue_row(queue: QueueStats) -> list[Cell]:
    oldest = [g.oldest_seconds for g in queue.groups if g.oldest_seconds is not None]
    lag = max((g.counts.lag for g in queue.groups), default=queue.messages)
    return [
        queue.name, f"{queue.messages:,}", size(queue.bytes), f"{queue.partitions:,}",
        f"{len(queue.groups):,}", f"{lag:,}", f"{sum(g.counts.leased for g in queue.groups):,}",
        colored(queue.dead_letters, "red"), span(max(oldest, default=None)), _state(queue),
    ]  # fmt: skip


def _state(what: QueueStats | GroupStats) -> Cell:
    return ("paused", "yellow") if what.paused else ""


def _one_queue(target: Target, queue: QueueStats) -> None:
    if target.out.as_json:
        output.line(output.queue_record(queue))
        return
    paused = ", paused" if queue.paused else ""
    target.out.say(
        f"{queue.name}: {plural(queue.messages, 'message')} stored ({size(queue.bytes)}) in "
        f"{plural(queue.partitions, 'partition')}, {plural(queue.dead_letters, 'dead letter')}{paused}"
    )
    changed = msgspec.to_builtins(queue.options)
    if changed:
        target.out.say("options: " + ", ".join(f"{k}={v}" for k, v in changed.items()))
    if queue.groups:
        target.out.say()
        output.tabulate(GROUPS, map(_group_row, queue.groups))


def groups(
    target: Target,
    queue: OptionalQueue = None,
    group: Annotated[
        str | None,
        typer.Argument(
            parser=group_of, metavar="GROUP", help="Name of the group, to show its partitions."
        ),
    ] = None,
) -> None:
    """List the groups of a queue; with a group, show its progress in each partition."""
    if queue is not None and group is not None:
        _progress(target, queue, group)
        return
    of = target.session.queues() if queue is None else [target.session.queue_stats(queue)]
    found = [one for some in of for one in some.groups]
    if not found:
        target.out.say("no groups; the first pop creates one")
        return
    rows = ([one.queue, *_group_row(one)] for one in found)
    target.out.table(ALL_GROUPS, rows, map(output.group_record, found))


def _group_row(group: GroupStats) -> list[Cell]:
    c = group.counts
    return [
        group_name(group.name), f"{c.ready:,}", f"{c.leased:,}", f"{c.waiting:,}",
        colored(group.dead_letters, "red"), f"{c.done:,}", span(group.oldest_seconds),
        _state(group),
    ]  # fmt: skip


def _progress(target: Target, queue: str, group: str) -> None:
    found = target.session.progress(queue, group)
    rows: Iterable[list[Cell]] = (
        [
            p.partition, f"{p.counts.ready:,}", f"{p.counts.leased:,}", f"{p.counts.waiting:,}",
            colored(p.counts.dead, "red"), f"{p.counts.done:,}", ago(p.last_at),
        ]
        for p in found
    )  # fmt: skip
    target.out.table(PROGRESS, rows, map(output.progress_record, found))


def leases(target: Target, queue: OptionalQueue = None, group: Group = None) -> None:
    """List live leases: consumer, number of messages, expiry."""
    names = [queue] if queue is not None else [one.name for one in target.session.queues()]
    found = [lease for name in names for lease in target.session.leases(name, group)]
    if not found:
        target.out.say("no leases")
        return
    target.out.table(LEASES, map(_lease_row, found), found)


def _lease_row(lease: LeaseStats) -> list[Cell]:
    return [
        lease.queue, group_name(lease.group), lease.consumer, f"{lease.held:,}",
        f"{lease.batch:,}", ago(lease.acquired_at), ago(lease.expires_at), lease.token,
    ]  # fmt: skip


def brokers(target: Target) -> None:
    """List the processes that have the database open: servers, workers and programs."""
    found = target.session.brokers()
    if not found:
        target.out.say(
            "no brokers; a process is listed two seconds after it has opened the database"
        )
        return
    target.out.table(BROKERS, map(_broker_row, found), found)


def _broker_row(broker: BrokerInfo) -> list[Cell]:
    return [
        broker.program, broker.host, f"{broker.pid}", broker.version, ago(broker.started_at),
        ago(broker.seen_at), "runs it" if broker.upkeep else "",
    ]  # fmt: skip


def sweeps(target: Target) -> None:
    """List seeks, purges and deletes that take more than one transaction, and their progress."""
    found = target.session.sweeps()
    if not found:
        target.out.say("no sweeps")
        return
    target.out.table(SWEEPS, map(_sweep_row, found), found)


def _sweep_row(sweep: SweepStats) -> list[Cell]:
    return [
        sweep.kind, sweep.queue, "" if sweep.group is None else group_name(sweep.group),
        sweep.partition or "", f"{sweep.lanes_done:,}", f"{sweep.lanes:,}", f"{sweep.purged:,}",
        ago(sweep.started_at), "" if sweep.ended_at is None else ago(sweep.ended_at),
    ]  # fmt: skip


def why(
    target: Target,
    queue: Queue,
    id: Annotated[str, typer.Argument(metavar="ID", help="Message id.")],
    group: Group = None,
) -> None:
    """Explain the state of a message, and why it is or is not delivered now."""
    names = [group] if group is not None else _groups_of(target, queue)
    answers = [target.session.why(queue, id, group=name) for name in names]
    known = [answer for answer in answers if answer.state != "hidden"] or answers
    for answer in known:
        who = (
            ""
            if answer.group == QUEUE_MODE and len(known) == 1
            else f"{group_name(answer.group)}: "
        )
        target.out.record(answer, who + answer.sentence, *_counters(answer))
        if answer.dead_letter is not None:
            target.out.say(f"To deliver it again: ackflow dlq redrive {queue} {answer.dead_letter}")
    if all(answer.state == "unknown" for answer in known):
        raise typer.Exit(NOTHING)


def _groups_of(target: Target, queue: str) -> list[str]:
    """The groups of the queue; `why` itself reports a queue that does not exist."""
    try:
        return [one.name for one in target.session.queue_stats(queue).groups] or [QUEUE_MODE]
    except NotFound:
        return [QUEUE_MODE]


def _counters(answer: Why) -> Iterator[str]:
    if answer.deliveries:
        last = f", last by {answer.consumer}" if answer.consumer else ""
        failed = f", failed {times(answer.failures)}" if answer.failures else ""
        yield f"Delivered {times(answer.deliveries)}{failed}{last}."


def peek(
    target: Target,
    queue: Queue,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="Messages to show in full.")
    ] = None,
    group: Group = None,
    limit: Limit = 10,
) -> None:
    """Show the next messages for a group, or messages by id, without leasing them."""
    if ids:
        for id in ids:
            show_whole(target, target.session.message(queue, id, group=group))
        return
    _list(target, target.session.peek(queue, group=group or QUEUE_MODE, limit=limit))


def browse(
    target: Target,
    queue: Queue,
    partition: Partition = None,
    group: StateFor = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 20,
    after: Annotated[str | None, typer.Option(help="Continue after an earlier page.")] = None,
) -> None:
    """List stored messages, including settled ones, without leasing them."""
    _page(
        target,
        target.session.browse(
            queue, partition=partition, group=group, since=since, until=until, limit=limit,
            after=after,
        ),
    )  # fmt: skip


def search(
    target: Target,
    queue: Queue,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Text to find in the payload.")],
    partition: Partition = None,
    group: StateFor = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 20,
    seconds: Annotated[float, duration("Maximum search time.", "--for")] = 10.0,
    after: Annotated[str | None, typer.Option(help="Continue after an earlier page.")] = None,
) -> None:
    """Find stored messages whose payload contains a text."""
    page = target.session.search(
        queue, text, partition=partition, group=group, since=since, until=until, limit=limit,
        seconds=seconds, after=after,
    )  # fmt: skip
    _page(target, page)


def _page(target: Target, page: Page[StoredMessage]) -> None:
    _list(target, page.items, more=page.next)


def _list(target: Target, messages: list[StoredMessage], more: str | None = None) -> None:
    if not messages and more is None:
        target.out.say("no messages")
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
    target.out.table(columns, rows, map(output.message_record, messages))
    if more is not None:
        if target.out.as_json:
            output.line({"next": more})
        target.out.note(f"for the next page: --after {more}")


def show_whole(target: Target, message: StoredMessage) -> None:
    state = f", {message.state}" if message.state else ""
    place = f"{message.queue}/{message.partition}, priority {message.priority}"
    target.out.record(
        output.message_record(message),
        f"{message.id}  {place}, pushed {output.when(message.created_at)}{state}",
        *(f"{name}: {value}" for name, value in message.headers.items()),
        output.pretty(message.raw),
    )
