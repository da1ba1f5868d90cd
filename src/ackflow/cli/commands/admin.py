"""Administration commands: options, pause, seek, purge, delete, backup."""

import os
from typing import Annotated, Any

import msgspec
import typer
from msgspec import UNSET

from ...errors import InvalidArgument, NotFound
from ...model import GroupStats
from ...options import GroupOptions, QueueOptions
from .. import output, params
from ..command import Target, Yes, command, confirm
from ..output import Columns, group_name, plural
from ..params import Group, GroupName, Partition, Queue, group_option

PANEL = "Administration"


def register(app: typer.Typer) -> None:
    for function in (seek, pause, resume, purge, delete, backup):
        command(app, panel=PANEL)(function)
    names = sorted({*QueueOptions.__struct_fields__, *GroupOptions.__struct_fields__})
    command(
        app, panel=PANEL, creates=True, epilog=f"Options: {', '.join(names)}; see docs/options.md."
    )(configure)


def configure(
    target: Target,
    queue: Queue,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME=VALUE",
            help="Options to set, such as retry_limit=5 lease_seconds=10m backoff=1s,5s,1m "
            "keep_seconds=none (default: show all options).",
        ),
    ] = None,
    group: Annotated[str | None, group_option("Set or show the options of this group.")] = None,
) -> None:
    """Set or show the options of a queue or group. Setting one creates a queue or group if needed."""
    given = dict(map(_setting, settings or []))
    if group is not None:
        if "start" in given and given["start"] not in ("all", "new"):
            given["start"] = params.time(str(given["start"]))
        show = target.session.group if given else target.session.group_stats
        _show(target, _of_group(show(queue, group, **given)))
        return
    if not given:
        _show(target, _plain(target.session.queue_stats(queue).options))
        return
    new = not _exists(target, queue)
    options = target.session.configure(queue, **given)
    if new:
        target.out.note(f"queue {queue} created")
    _show(target, _plain(options))


def _setting(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign:
        raise InvalidArgument(f"an option must be NAME=VALUE, got {text!r}")
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


def _exists(target: Target, queue: str) -> bool:
    try:
        target.session.queue_stats(queue)
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


def _show(target: Target, options: dict[str, Any]) -> None:
    if target.out.as_json:
        output.line(options)
        return
    rows = [[name, "none" if value is None else _text(value)] for name, value in options.items()]
    output.tabulate(Columns(("option", "value")), rows)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def pause(target: Target, queue: Queue, group: Group = None) -> None:
    """Stop deliveries of a queue, or to one group, until resumed; settling continues."""
    target.session.pause(queue, group)
    _paused(target, queue, group, True)


def resume(target: Target, queue: Queue, group: Group = None) -> None:
    """Resume deliveries of a paused queue or group."""
    target.session.resume(queue, group)
    _paused(target, queue, group, False)


def _paused(target: Target, queue: str, group: str | None, paused: bool) -> None:
    named = None if group is None else group_name(group)  # null means the whole queue here
    what = queue if group is None else f"group {named} of {queue}"
    record = {"queue": queue, "group": named, "paused": paused}
    target.out.record(record, f"{what} is {'paused' if paused else 'resumed'}")


def seek(
    target: Target,
    queue: Queue,
    group: GroupName,
    to: Annotated[
        str | None,
        typer.Argument(
            metavar="TO", help="start, end, or a time such as 2h (ago) or 2026-11-15T21:24Z."
        ),
    ] = None,
    sequence: Annotated[
        int | None, typer.Option(min=0, help="Sequence number in each lane.")
    ] = None,
    partition: Partition = None,
    yes: Yes = False,
) -> None:
    """Move a group back to read messages again, or forward to skip them. Asks for confirmation."""
    if (to is None) == (sequence is None):
        raise InvalidArgument("give a position: start, end, a time, or --sequence")
    target.session.group_stats(queue, group)
    position = (
        f"sequence {sequence}" if to is None else to if to in ("start", "end") else f"time {to}"
    )
    confirm(
        f"Move group {group_name(group)} of {queue} to {position}? Its leases there end, and messages "
        "that it passes count as skipped.",
        yes,
    )
    named = to if to in ("start", "end") else None
    time = None if named or to is None else params.time(to)
    moved = target.session.seek(
        queue, group, to=named, time=time, sequence=sequence, partition=partition
    )
    target.out.record(
        {"lanes": moved},
        f"group {group_name(group)} of {queue} moved to {position} in {plural(moved, 'lane')}",
    )


def purge(target: Target, queue: Queue, partition: Partition = None, yes: Yes = False) -> None:
    """Remove all messages of a queue or partition, including leased ones. Asks for confirmation."""
    there = target.session.queue_stats(queue).messages
    what = (
        f"{queue}, partition {partition}" if partition else f"{queue} ({plural(there, 'message')})"
    )
    confirm(f"Remove all messages of {what}, for every group?", yes)
    gone = target.session.purge(queue, partition)
    target.out.record({"purged": gone}, f"{plural(gone, 'message')} removed from {queue}")


def delete(
    target: Target,
    queue: Queue,
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="Messages to delete (default: the queue)."),
    ] = None,
    group: Annotated[str | None, group_option("Delete this group of the queue.")] = None,
    yes: Yes = False,
) -> None:
    """Delete a queue with all its data, one of its groups, or single messages. Asks for confirmation."""
    if ids and group is not None:
        raise InvalidArgument("give message ids or --group, not both")
    stats = target.session.queue_stats(queue)
    if ids:
        _delete_messages(target, queue, ids, yes)
    elif group is not None:
        target.session.group_stats(queue, group)
        confirm(
            f"Delete group {group_name(group)} of {queue}, with its leases and dead letters?", yes
        )
        target.session.delete_group(queue, group)
        target.out.record(
            {"deleted": group_name(group)}, f"group {group_name(group)} of {queue} is deleted"
        )
    else:
        dead = plural(stats.dead_letters, "dead letter")
        confirm(
            f"Delete the queue {queue} with {plural(stats.messages, 'message')} and {dead}?", yes
        )
        target.session.delete_queue(queue)
        target.out.record({"deleted": queue}, f"queue {queue} is deleted")


def _delete_messages(target: Target, queue: str, ids: list[str], yes: bool) -> None:
    confirm(f"Delete {plural(len(ids), 'message')} of {queue}, for every group?", yes)
    missing = [id for id in ids if not target.session.delete_message(queue, id)]
    gone = len(ids) - len(missing)
    target.out.record({"deleted": gone}, f"{plural(gone, 'message')} of {queue} deleted")
    if missing:
        raise NotFound(f"not found in queue {queue!r}: {', '.join(missing)}")


def backup(
    target: Target,
    file: Annotated[str, typer.Argument(metavar="FILE", help="File to create; it must not exist.")],
) -> None:
    """Copy a consistent snapshot of the database to a new file, even while it is in use."""
    target.session.backup(file)
    bytes = os.path.getsize(file)
    target.out.record({"file": file, "bytes": bytes}, f"copied to {file} ({output.size(bytes)})")
