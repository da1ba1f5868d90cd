"""`ackflow doctor`: check a database or server and give advice for each finding."""

import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Literal

import typer
from msgspec import Struct

from ... import __version__, validate
from ...clock import SECOND
from ...errors import AckflowError, NotADatabase, SchemaTooNew, StorageFull
from ...model import LeaseStats, QueueStats
from ...session.session import Session
from .. import output
from ..command import Target, command, require_file
from ..contexts import Location
from ..errors import FAILED, is_unreachable
from ..output import ago, group_name, plural, safe, size, span

PANEL = "Operation"
LOW_DISK_BYTES, FULL_DISK_BYTES = 1 << 30, 64 << 20
LONG_LEASE, LONG_LAG = 3_600.0, 86_400.0
MAX_CLOCK_DIFFERENCE = 2.0
LATE_UPKEEP = 60.0
NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "glusterfs", "ceph"}
Level = Literal["ok", "warning", "error"]
STYLES = {"ok": "green", "warning": "yellow", "error": "bold red"}


class Finding(Struct):
    """One check: its level, a sentence, and advice."""

    level: Level
    what: str
    sentence: str
    advice: str = ""


def register(app: typer.Typer) -> None:
    command(app, panel=PANEL)(doctor)


def doctor(
    target: Target,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 on warnings too.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Skip the integrity check, which reads the whole file.")
    ] = False,
) -> None:
    """Check a database or server and give advice for each finding."""
    location = target.location
    target.out.say(f"{location.redacted} (from {location.source})")
    findings = []
    for finding in _server(target) if location.remote else _database(target, not quick):
        findings.append(finding)
        _show(target, finding)
    errors = sum(finding.level == "error" for finding in findings)
    warnings = sum(finding.level == "warning" for finding in findings)
    target.out.say(_summary(errors, warnings))
    if errors or (strict and warnings):
        raise typer.Exit(FAILED)


def _summary(errors: int, warnings: int) -> str:
    counts = [plural(errors, "error")] if errors else []
    counts += [plural(warnings, "warning")] if warnings else []
    return " and ".join(counts) or "no problems found"


def _show(target: Target, finding: Finding) -> None:
    if target.out.as_json:
        output.line(finding)
        return
    sign = f"{finding.level:<7}"
    if sys.stdout.isatty():
        sign = typer.style(sign, fg=STYLES[finding.level].split()[-1], bold=True)
    print(f"{sign} {finding.what}: {safe(finding.sentence)}")
    if finding.advice:
        print(f"        {safe(finding.advice)}")


# a file or PostgreSQL


def _database(target: Target, deep: bool) -> Iterator[Finding]:
    location = target.location
    require_file(location)
    intact = True
    for finding in [] if validate.is_url(location.url) else _of_file(location.url, deep):
        intact = intact and (finding.what == "disk" or finding.level != "error")
        yield finding
    if not intact:
        return
    try:
        session = target.session
    except AckflowError as error:
        yield Finding("error", "open", error.message, _advice(error, location))
        return
    yield Finding("ok", "open", "the database can be opened for reading and writing")
    yield from _time(session, validate.is_url(location.url))
    yield _upkeep(session)
    queues = session.queues()
    yield from _contents(session, queues)


def _time(session: Session, server: bool) -> Iterator[Finding]:
    """Compare the time of the database with this machine's clock."""
    apart = session.broker.clock.now() / SECOND - time.time()
    if server:
        yield _clocks(apart, 0.0)
    elif abs(apart) > MAX_CLOCK_DIFFERENCE:
        ahead = "ahead of" if apart > 0 else "behind"
        advice = "the clock was changed; the time is corrected by 6 s per minute, so that no lease ends early"
        sentence = f"the time of the database is {span(abs(apart))} {ahead} the clock"
        yield Finding("warning", "clock", sentence, advice)


def _of_file(path: str, deep: bool) -> Iterator[Finding]:
    yield _schema(path, deep)
    yield _disk(path)
    yield _local(path)


def _schema(path: str, deep: bool) -> Finding:
    from ...store.sqlite.check import check_file

    try:
        found = check_file(path, deep)
    except AckflowError as error:
        return Finding(
            "error", "file", error.message, _advice(error, Location(path, None, None, ""))
        )
    if found.broken:
        some = "; ".join(found.broken[:3])
        advice = (
            "stop all users of the file and restore a backup; keep the file, most of it is readable"
        )
        return Finding("error", "integrity", f"the file is damaged: {some}", advice)
    old = "" if found.schema == found.newest else f", to be migrated to {found.newest} when opened"
    checked = ", integrity check passed" if deep else ""
    bytes = size(os.path.getsize(path))
    return Finding(
        "ok", "file", f"Ackflow database of {bytes}, schema {found.schema}{old}{checked}"
    )


def _advice(error: AckflowError, location: Location) -> str:
    if isinstance(error, SchemaTooNew):
        return (
            f"this is Ackflow {__version__}; install the version that wrote the file or a later one"
        )
    if isinstance(error, NotADatabase):
        return "check the path; the file was not changed"
    if isinstance(error, StorageFull):
        return "free disk space"
    if validate.is_url(location.url):
        return f"check that the server of {location.redacted} runs and that you may connect"
    return f"check the permissions of {location.url} and its directory"


def _disk(path: str) -> Finding:
    usage = shutil.disk_usage(os.path.dirname(os.path.abspath(path)))
    sentence = f"{size(usage.free)} of {size(usage.total)} free"
    if usage.free < FULL_DISK_BYTES:
        return Finding(
            "error", "disk", sentence, "free disk space: pushes fail when the disk is full"
        )
    if usage.free < LOW_DISK_BYTES:
        return Finding("warning", "disk", sentence, "free disk space before pushes fail")
    return Finding("ok", "disk", sentence)


def _local(path: str) -> Finding:
    kind = _filesystem(os.path.realpath(path))
    if kind in NETWORK:
        advice = "move it to a local disk: file locks over a network can lose messages"
        return Finding(
            "error", "file system", f"the file is on a network file system ({kind})", advice
        )
    return Finding("ok", "file system", f"the file is on a local disk{kind and f' ({kind})'}")


def _filesystem(path: str) -> str:
    """The type of the file system of a path; empty if unknown."""
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
    """Check that upkeep runs; before other checks, because they do part of it."""
    late = session.overdue_seconds()
    if late < LATE_UPKEEP:
        return Finding("ok", "upkeep", "upkeep is up to date")
    advice = (
        "`ackflow serve` and programs with a session run upkeep; without it, expired messages are "
        "redelivered only by the next pop or query"
    )
    return Finding("warning", "upkeep", f"upkeep has not run for {span(late)}", advice)


# a server


def _server(target: Target) -> Iterator[Finding]:
    from ...remote.broker import RemoteBroker
    from ...remote.protocol import about

    session = target.session
    assert isinstance(session.broker, RemoteBroker)
    started, clock = time.monotonic(), time.time()
    try:
        server = session.broker.transport.send(about())
    except AckflowError as error:
        if is_unreachable(error):
            raise
        yield Finding("error", "reachable", error.message, "give a valid --token")
        return
    took = time.monotonic() - started
    yield Finding("ok", "reachable", f"the server answers in {took * 1000:.0f} ms")
    yield _version(server.version)
    yield _clocks(server.now / 1_000_000 - (clock + took / 2), took)
    yield from _unencrypted_token(target.location)
    yield _upkeep(session)
    queues = session.queues()
    yield from _contents(session, queues)
    yield Finding(
        "ok", "file", "run `ackflow doctor` on the server's machine to check its disk and file"
    )


def _version(theirs: str) -> Finding:
    if theirs == __version__:
        return Finding("ok", "version", f"the server runs Ackflow {theirs}, the same version")
    return Finding(
        "warning", "version", f"the server runs Ackflow {theirs}, this is {__version__}",
        "use the same version on both sides",
    )  # fmt: skip


def _clocks(apart: float, took: float) -> Finding:
    # The answer may have taken half of that time in either direction.
    if abs(apart) <= MAX_CLOCK_DIFFERENCE + took / 2:
        return Finding("ok", "clock", "the server's clock agrees with this machine's")
    ahead = "ahead of" if apart > 0 else "behind"
    return Finding(
        "warning", "clock", f"the server's clock is {span(abs(apart))} {ahead} this machine's",
        "synchronize both by NTP; the server's clock determines leases and delays",
    )  # fmt: skip


def _unencrypted_token(location: Location) -> Iterable[Finding]:
    host = location.url.removeprefix("http://").partition("/")[0]
    here = host.startswith(("127.", "localhost", "[::1]"))
    if location.token and location.url.startswith("http://") and not here:
        advice = "serve with --tls-cert and --tls-key, and use https://"
        yield Finding("warning", "token", "the token is sent unencrypted", advice)


# what is in it


def _contents(session: Session, queues: list[QueueStats]) -> Iterator[Finding]:
    stored = sum(queue.messages for queue in queues)
    yield Finding(
        "ok", "queues", f"{plural(len(queues), 'queue')} with {plural(stored, 'message')}"
    )
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
    return Finding(
        "warning", "paused", f"paused: {_some(names)}", "resume with `ackflow resume QUEUE`"
    )


def _leases(leases: list[LeaseStats]) -> Finding:
    if not leases:
        return Finding("ok", "leases", "nothing is leased")
    oldest = min(leases, key=lambda lease: lease.acquired_at)
    age = (datetime.now(UTC) - oldest.acquired_at).total_seconds()
    sentence = (
        f"{plural(len(leases), 'lease')}; the oldest started {ago(oldest.acquired_at)}: "
        f"{oldest.consumer} holds {plural(oldest.held, 'message')} of {oldest.queue}"
    )
    if age < LONG_LEASE:
        return Finding("ok", "leases", sentence)
    advice = (
        f"if that consumer hangs, stop it: its messages are redelivered {ago(oldest.expires_at)}"
    )
    return Finding("warning", "leases", sentence, advice)


def _behind(queues: list[QueueStats]) -> Finding:
    late = [
        f"{group_name(g.name)} of {q.name} ({plural(g.counts.lag, 'message')}, oldest {span(g.oldest_seconds)})"
        for q in queues
        for g in q.groups
        if g.oldest_seconds is not None and g.oldest_seconds > LONG_LAG
    ]
    if not late:
        return Finding("ok", "lag", "no group lags by more than a day")
    advice = (
        "check that the consumers run; `ackflow delete QUEUE --group GROUP` deletes an unused group"
    )
    return Finding("warning", "lag", f"lagging: {_some(late)}", advice)


def _dead(queues: list[QueueStats]) -> Finding:
    dead = {queue.name: queue.dead_letters for queue in queues if queue.dead_letters}
    if not dead:
        return Finding("ok", "dead letters", "no dead letters")
    names = [f"{count:,} in {name}" for name, count in dead.items()]
    advice = "`ackflow dlq summary` shows the causes, `ackflow dlq redrive` delivers them again"
    return Finding("warning", "dead letters", _some(names), advice)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
