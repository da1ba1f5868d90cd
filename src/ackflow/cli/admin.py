"""Changing queues and groups, and keeping their data."""

import os
from typing import Annotated, Any

import msgspec
import typer
from msgspec import UNSET

from ..errors import InvalidArgument, NotFound
from ..model import GroupStats
from ..options import GroupOptions, QueueOptions
from . import output, params
from .command import Link, Yes, command, confirm
from .output import Columns, group_name, many
from .params import Group, GroupName, Partition, Queue, group_option

PANEL = "Administration"


def register(app: typer.Typer) -> None:
    for function in (seek, pause, resume, purge, delete, backup):
        command(app, panel=PANEL)(function)
    names = sorted({*QueueOptions.__struct_fields__, *GroupOptions.__struct_fields__})
    command(
        app, panel=PANEL, makes=True, epilog=f"Options: {', '.join(names)}; see docs/options.md."
    )(configure)


def configure(
    link: Link,
    queue: Queue,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME=VALUE",
            help="Options to set, such as retry_limit=5 lease_seconds=10m backoff=1s,5s,1m keep_seconds=none "
            "(default: show them).",
        ),
    ] = None,
    group: Annotated[str | None, group_option("Options of this group of the queue.")] = None,
) -> None:
    """Set options of a queue or of a group, made if they are not there; without any, show them."""
    given = dict(map(_setting, settings or []))
    if group is not None:
        if "start" in given and given["start"] not in ("all", "new"):
            given["start"] = params.time(str(given["start"]))
        show = link.session.group if given else link.session.group_stats
        _show(link, _of_group(show(queue, group, **given)))
        return
    if not given:
        _show(link, _plain(link.session.queue_stats(queue).options))
        return
    new = not _exists(link, queue)
    options = link.session.configure(queue, **given)
    if new:
        link.out.note(f"the queue {queue} is made")
    _show(link, _plain(options))


def _setting(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign:
        raise InvalidArgument(f"an option is NAME=VALUE, not {text!r}")
    if value.lower() == "none":
        return name, [] if name == "backoff" else None
    try:
        found = msgspec.json.decode(value)
    except msgspec.MsgspecError:
        found = value
    try:
        if name == "backoff":
            steps = found if isinstance(found, list) else value.split(",")
            return name, [params.seconds(step) for step in steps]
        return name, params.seconds(value) if name.endswith("_seconds") else found
    except typer.BadParameter as error:
        raise InvalidArgument(f"{name}: {error.message}") from None


def _exists(link: Link, queue: str) -> bool:
    try:
        link.session.queue_stats(queue)
    except NotFound:
        return False
    return True


def _plain(options: QueueOptions) -> dict[str, Any]:
    known = msgspec.structs.asdict(options)
    return {name: value for name, value in known.items() if value is not UNSET}


def _of_group(group: GroupStats) -> dict[str, Any]:
    known = msgspec.structs.asdict(group.settings)
    known.pop("batch")
    return known


def _show(link: Link, options: dict[str, Any]) -> None:
    if link.out.as_json:
        output.line(options)
        return
    rows = [[name, "none" if value is None else _text(value)] for name, value in options.items()]
    output.tabulate(Columns(("option", "value")), rows)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def pause(link: Link, queue: Queue, group: Group = None) -> None:
    """Hand out nothing of a queue, or to a group, until resumed; settling goes on."""
    link.session.pause(queue, group)
    _paused(link, queue, group, True)


def resume(link: Link, queue: Queue, group: Group = None) -> None:
    """Hand out again what was paused."""
    link.session.resume(queue, group)
    _paused(link, queue, group, False)


def _paused(link: Link, queue: str, group: str | None, paused: bool) -> None:
    named = None if group is None else group_name(group)  # null stands for the whole queue here
    what = queue if group is None else f"group {named} of {queue}"
    record = {"queue": queue, "group": named, "paused": paused}
    link.out.record(record, f"{what} is {'paused' if paused else 'resumed'}")


def seek(
    link: Link,
    queue: Queue,
    group: GroupName,
    to: Annotated[
        str | None,
        typer.Argument(
            metavar="TO", help="start, end, or a time such as 2h (ago) or 2026-11-15T21:24Z."
        ),
    ] = None,
    sequence: Annotated[int | None, typer.Option(min=0, help="A place in each lane.")] = None,
    partition: Partition = None,
    yes: Yes = False,
) -> None:
    """Move a group back to read again, or ahead to skip. Asks first: its leases end."""
    if (to is None) == (sequence is None):
        raise InvalidArgument("say where to: start, end, a time, or --sequence")
    link.session.group_stats(queue, group)
    place = f"sequence {sequence}" if to is None else to if to in ("start", "end") else f"time {to}"
    confirm(
        f"Move group {group_name(group)} of {queue} to {place}? Its leases there end, and what it passes counts "
        "as skipped.",
        yes,
    )
    named = to if to in ("start", "end") else None
    time = None if named or to is None else params.time(to)
    moved = link.session.seek(
        queue, group, to=named, time=time, sequence=sequence, partition=partition
    )
    link.out.record(
        {"lanes": moved},
        f"group {group_name(group)} of {queue} moved to {place} in {many(moved, 'lane')}",
    )


def purge(link: Link, queue: Queue, partition: Partition = None, yes: Yes = False) -> None:
    """Remove all messages of a queue or partition, leased ones too. Asks first."""
    there = link.session.queue_stats(queue).messages
    what = f"{queue}, partition {partition}" if partition else f"{queue} ({many(there, 'message')})"
    confirm(f"Remove all messages of {what}, for every group?", yes)
    gone = link.session.purge(queue, partition)
    link.out.record({"purged": gone}, f"{many(gone, 'message')} removed from {queue}")


def delete(
    link: Link,
    queue: Queue,
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="Messages to delete (default: the queue)."),
    ] = None,
    group: Annotated[str | None, group_option("Delete this group of the queue.")] = None,
    yes: Yes = False,
) -> None:
    """Delete a queue with everything in it, a group of it, or single messages. Asks first."""
    if ids and group is not None:
        raise InvalidArgument("delete messages or a group, not both")
    stats = link.session.queue_stats(queue)
    if ids:
        _delete_messages(link, queue, ids, yes)
    elif group is not None:
        link.session.group_stats(queue, group)
        confirm(
            f"Delete group {group_name(group)} of {queue}, with its leases and dead letters?", yes
        )
        link.session.delete_group(queue, group)
        link.out.record(
            {"deleted": group_name(group)}, f"group {group_name(group)} of {queue} is deleted"
        )
    else:
        dead = many(stats.dead_letters, "dead letter")
        confirm(f"Delete the queue {queue} with {many(stats.messages, 'message')} and {dead}?", yes)
        link.session.delete_queue(queue)
        link.out.record({"deleted": queue}, f"queue {queue} is deleted")


def _delete_messages(link: Link, queue: str, ids: list[str], yes: bool) -> None:
    confirm(f"Delete {many(len(ids), 'message')} of {queue}, for every group?", yes)
    missing = [id for id in ids if not link.session.delete_message(queue, id)]
    gone = len(ids) - len(missing)
    link.out.record({"deleted": gone}, f"{many(gone, 'message')} of {queue} deleted")
    if missing:
        raise NotFound(f"queue {queue!r} does not store {', '.join(missing)}")


def backup(
    link: Link,
    target: Annotated[
        str, typer.Argument(metavar="FILE", help="File to make; it must not be there.")
    ],
) -> None:
    """Copy the database as it is at this moment to a new file, also while it is in use."""
    link.session.backup(target)
    bytes = os.path.getsize(target)
    link.out.record({"file": target, "bytes": bytes}, f"copied to {target} ({output.size(bytes)})")
