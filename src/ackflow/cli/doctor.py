"""`ackflow doctor`: look at a file or server from all sides, and say what to do about each finding."""

import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Literal

import typer
from msgspec import Struct

from .. import __version__, validate
from ..clock import SECOND
from ..errors import AckflowError, NotADatabase, SchemaTooNew, StorageFull
from ..model import LeaseStats, QueueStats
from ..session.session import Session
from . import output
from .command import FAILED, Link, command, there, unreachable
from .output import ago, group_name, many, safe, size, span
from .places import Place

PANEL = "Operation"
LITTLE_DISK, NO_DISK = 1 << 30, 64 << 20
LONG_LEASE, LONG_WAIT = 3_600.0, 86_400.0
CLOCKS_APART = 2.0
LATE_UPKEEP = 60.0
NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "glusterfs", "ceph"}
Level = Literal["ok", "look", "bad"]
STYLES = {"ok": "green", "look": "yellow", "bad": "bold red"}


class Finding(Struct):
    """What was looked at, how it is, and what to do about it."""

    level: Level
    what: str
    sentence: str
    advice: str = ""


def register(app: typer.Typer) -> None:
    command(app, panel=PANEL)(doctor)


def doctor(
    link: Link,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 also when something wants a look.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out the integrity check, which reads the file.")
    ] = False,
) -> None:
    """Check a database or a server, and say what to do about what is found."""
    place = link.place
    link.out.say(f"{place.shown} (from {place.said_by})")
    findings = []
    for finding in _server(link) if place.remote else _database(link, not quick):
        findings.append(finding)
        _show(link, finding)
    bad = sum(finding.level == "bad" for finding in findings)
    looks = sum(finding.level == "look" for finding in findings)
    link.out.say(_verdict(bad, looks))
    if bad or (strict and looks):
        raise typer.Exit(FAILED)


def _verdict(bad: int, looks: int) -> str:
    if not bad and not looks:
        return "all is well"
    broken = f"{many(bad, 'thing')} must be mended" if bad else ""
    return " and ".join(
        filter(None, [broken, f"{many(looks, 'thing')} to look at" if looks else ""])
    )


def _show(link: Link, finding: Finding) -> None:
    if link.out.as_json:
        output.line(finding)
        return
    sign = f"{finding.level:<5}"
    if sys.stdout.isatty():
        sign = typer.style(sign, fg=STYLES[finding.level].split()[-1], bold=True)
    print(f"{sign} {finding.what}: {safe(finding.sentence)}")
    if finding.advice:
        print(f"      {safe(finding.advice)}")


# a file or PostgreSQL


def _database(link: Link, deep: bool) -> Iterator[Finding]:
    place = link.place
    there(place)
    whole = True
    for finding in [] if validate.is_url(place.url) else _of_file(place.url, deep):
        whole = whole and (finding.what == "disk" or finding.level != "bad")
        yield finding
    if not whole:
        return
    try:
        session = link.session
    except AckflowError as error:
        yield Finding("bad", "open", error.message, _mend(error, place))
        return
    yield Finding("ok", "open", "it can be opened for reading and writing")
    yield from _time(session, validate.is_url(place.url))
    yield _upkeep(session)
    queues = session.queues()
    yield from _contents(session, queues)


def _time(session: Session, server: bool) -> Iterator[Finding]:
    """Whether the time of the database is that of this machine's clock."""
    apart = session.broker.clock.now() / SECOND - time.time()
    if server:
        yield _clocks(apart, 0.0)
    elif abs(apart) > CLOCKS_APART:
        ahead = "ahead of" if apart > 0 else "behind"
        advice = "the clock was set; it is corrected by 6 s a minute, so that no lease ends early"
        yield Finding("look", "clock", f"its time is {span(abs(apart))} {ahead} the clock", advice)


def _of_file(path: str, deep: bool) -> Iterator[Finding]:
    yield _schema(path, deep)
    yield _disk(path)
    yield _local(path)


def _schema(path: str, deep: bool) -> Finding:
    from ..store.sqlite.check import check_file

    try:
        found = check_file(path, deep)
    except AckflowError as error:
        return Finding("bad", "file", error.message, _mend(error, Place(path, None, None, "")))
    if found.broken:
        some = "; ".join(found.broken[:3])
        advice = "stop what uses it and restore a backup; keep this file, most of it can be read"
        return Finding("bad", "integrity", f"the file is damaged: {some}", advice)
    old = "" if found.schema == found.newest else f", migrated to {found.newest} when it is opened"
    checked = ", every page is sound" if deep else ""
    bytes = size(os.path.getsize(path))
    return Finding(
        "ok", "file", f"an Ackflow database of {bytes}, schema {found.schema}{old}{checked}"
    )


def _mend(error: AckflowError, place: Place) -> str:
    if isinstance(error, SchemaTooNew):
        return f"this is Ackflow {__version__}; install the version that wrote the file, or a later"
    if isinstance(error, NotADatabase):
        return "see that the path is right; nothing was changed in the file"
    if isinstance(error, StorageFull):
        return "make room on the disk"
    if validate.is_url(place.url):
        return f"see that the server of {place.shown} runs and lets you in"
    return f"see that you may read and write {place.url} and the folder it is in"


def _disk(path: str) -> Finding:
    usage = shutil.disk_usage(os.path.dirname(os.path.abspath(path)))
    sentence = f"{size(usage.free)} of {size(usage.total)} are free"
    if usage.free < NO_DISK:
        return Finding("bad", "disk", sentence, "make room: pushes are refused when it is full")
    if usage.free < LITTLE_DISK:
        return Finding("look", "disk", sentence, "make room before pushes are refused")
    return Finding("ok", "disk", sentence)


def _local(path: str) -> Finding:
    kind = _filesystem(os.path.realpath(path))
    if kind in NETWORK:
        advice = "move it to a disk of this machine: locks over a network lose messages"
        return Finding("bad", "file system", f"the file is on a network ({kind})", advice)
    return Finding("ok", "file system", f"the file is on a local disk{kind and f' ({kind})'}")


def _filesystem(path: str) -> str:
    """The kind of file system a path is on, as far as the system tells."""
    best, kind = "", ""
    try:
        with open("/proc/mounts") as mounts:
            for line in mounts:
                fields = line.split()
                point = fields[1].replace("\\040", " ")
                inside = path == point or path.startswith(point.rstrip("/") + "/")
                if inside and len(point) >= len(best):
                    best, kind = point, fields[2]
    except (OSError, IndexError):
        return ""
    return kind


def _upkeep(session: Session) -> Finding:
    """Whether somebody does it; asked before anything else, as every other look does some of it."""
    late = session.overdue_seconds()
    if late < LATE_UPKEEP:
        return Finding("ok", "upkeep", "nothing is left undone")
    advice = (
        "it is done while `ackflow serve` or a program with a session runs; until then a message "
        "comes again only when somebody pops or looks"
    )
    return Finding("look", "upkeep", f"nobody did it for {span(late)}", advice)


# a server


def _server(link: Link) -> Iterator[Finding]:
    from ..remote.broker import RemoteBroker
    from ..remote.protocol import about

    session = link.session
    assert isinstance(session.broker, RemoteBroker)
    started, clock = time.monotonic(), time.time()
    try:
        told = session.broker.transport.send(about())
    except AckflowError as error:
        if unreachable(error):
            raise
        yield Finding("bad", "reachable", error.message, "give the right --token")
        return
    took = time.monotonic() - started
    yield Finding("ok", "reachable", f"it answers after {took * 1000:.0f} ms")
    yield _version(told.version)
    yield _clocks(told.now / 1_000_000 - (clock + took / 2), took)
    yield from _in_clear(link.place)
    yield _upkeep(session)
    queues = session.queues()
    yield from _contents(session, queues)
    yield Finding("ok", "file", "its disk and file are checked by `ackflow doctor` where they are")


def _version(theirs: str) -> Finding:
    if theirs == __version__:
        return Finding("ok", "version", f"it runs Ackflow {theirs}, as this is")
    return Finding(
        "look", "version", f"it runs Ackflow {theirs}, this is {__version__}",
        "use the same version on both sides",
    )  # fmt: skip


def _clocks(apart: float, took: float) -> Finding:
    # Half of the time the answer took may be on either side.
    if abs(apart) <= CLOCKS_APART + took / 2:
        return Finding("ok", "clock", "its clock agrees with this machine's")
    ahead = "ahead of" if apart > 0 else "behind"
    return Finding(
        "look", "clock", f"its clock is {span(abs(apart))} {ahead} this machine's",
        "set both by NTP; leases and delays are counted by the server's",
    )  # fmt: skip


def _in_clear(place: Place) -> Iterable[Finding]:
    host = place.url.removeprefix("http://").partition("/")[0]
    here = host.startswith(("127.", "localhost", "[::1]"))
    if place.token and place.url.startswith("http://") and not here:
        advice = "serve with --tls-cert and --tls-key, and use https://"
        yield Finding("look", "token", "the token travels without encryption", advice)


# what is in it


def _contents(session: Session, queues: list[QueueStats]) -> Iterator[Finding]:
    stored = sum(queue.messages for queue in queues)
    yield Finding("ok", "queues", f"{many(len(queues), 'queue')} with {many(stored, 'message')}")
    yield _paused(queues)
    leases = [
        lease
        for queue in queues
        if any(group.counts.leased for group in queue.groups)
        for lease in session.leases(queue.name)
    ]
    yield _leases(leases)
    yield _behind(queues)
    yield _dead(queues)


def _paused(queues: list[QueueStats]) -> Finding:
    names = [queue.name for queue in queues if queue.paused]
    names += [f"{g.queue} for {group_name(g.name)}" for q in queues for g in q.groups if g.paused]
    if not names:
        return Finding("ok", "paused", "nothing is paused")
    return Finding("look", "paused", f"paused: {_some(names)}", "`ackflow resume QUEUE` ends it")


def _leases(leases: list[LeaseStats]) -> Finding:
    if not leases:
        return Finding("ok", "leases", "nothing is leased")
    oldest = min(leases, key=lambda lease: lease.acquired_at)
    age = (datetime.now(UTC) - oldest.acquired_at).total_seconds()
    sentence = (
        f"{many(len(leases), 'lease')}; the oldest began {ago(oldest.acquired_at)}: "
        f"{oldest.consumer} holds {many(oldest.held, 'message')} of {oldest.queue}"
    )
    if age < LONG_LEASE:
        return Finding("ok", "leases", sentence)
    advice = f"if that consumer hangs, end it: its messages come again {ago(oldest.expires_at)}"
    return Finding("look", "leases", sentence, advice)


def _behind(queues: list[QueueStats]) -> Finding:
    late = [
        f"{group_name(g.name)} of {q.name} ({many(g.counts.lag, 'message')}, oldest {span(g.oldest_seconds)})"
        for q in queues
        for g in q.groups
        if g.oldest_seconds is not None and g.oldest_seconds > LONG_WAIT
    ]
    if not late:
        return Finding("ok", "lag", "no group is behind by a day")
    advice = (
        "see that their consumers run; `ackflow delete QUEUE --group GROUP` ends one nobody needs"
    )
    return Finding("look", "lag", f"behind: {_some(late)}", advice)


def _dead(queues: list[QueueStats]) -> Finding:
    dead = {queue.name: queue.dead_letters for queue in queues if queue.dead_letters}
    if not dead:
        return Finding("ok", "dead letters", "there are none")
    names = [f"{count:,} in {name}" for name, count in dead.items()]
    advice = "`ackflow dlq summary` tells what they died of, `ackflow dlq redrive` sends them back"
    return Finding("look", "dead letters", _some(names), advice)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
