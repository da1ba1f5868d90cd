"""Live commands: `tail` follows new messages, `top` refreshes a table of all queues."""

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, NamedTuple

import typer

from ...broker.sampling.live_stats import SEVERITY, LiveStats, QueueLine, StatsBoard
from ...broker.views.metrics import GroupMetrics, snapshot
from ...clock import SECOND
from ...errors import AckflowError
from ...model import StoredMessage
from .. import output
from ..command import Target, command
from ..errors import is_unreachable
from ..output import Cell, Columns, colored, group_name, plural, safe, span
from ..params import Partition, Queue, duration

PANEL = "Inspection"
POLL = 0.2
BROKERS_SECONDS = 10.0
COLUMNS = Columns(
    (
        "queue", "group", ">ready", ">leased", ">waiting", ">dead", ">lag", ">oldest", ">in/s",
        ">out/s", "state",
    ),
    ("waiting", "ready", "oldest", "leased", "dead", "state", "in/s", "out/s", "lag"),
)  # fmt: skip


def register(app: typer.Typer) -> None:
    for function in (tail, top):
        command(app, panel=PANEL, long_running=True, needs_reader=True)(function)


def tail(
    target: Target,
    queue: Queue,
    last: Annotated[
        int,
        typer.Option(
            "--last", "-n", min=0, max=10_000, help="Number of earlier messages to show first."
        ),
    ] = 10,
    partition: Partition = None,
    count: Annotated[
        int | None, typer.Option(min=1, help="Stop after this number of messages.")
    ] = None,
    data: Annotated[
        bool, typer.Option("--data", help="Print only the payloads, byte for byte.")
    ] = False,
) -> None:
    """Follow messages as they are pushed, without leasing them, until Ctrl-C."""
    for shown, message in enumerate(_follow(target, queue, partition, last), 1):
        _print(target, message, data)
        if shown == count:
            return


def _follow(
    target: Target, queue: str, partition: str | None, last: int
) -> Iterator[StoredMessage]:
    """Yield new messages forever; retries while the server is unreachable."""
    news = target.session.follow(queue, partition=partition, last=last)
    away = False
    while True:
        yield from news.items
        if not news.items:
            time.sleep(POLL)
        news.items.clear()
        try:
            news = target.session.follow(queue, news.after, partition=partition)
            away = False
        except AckflowError as error:
            if not is_unreachable(error):
                raise
            if not away:
                target.out.note(f"{error.message}; retrying")
            away = True
            time.sleep(1.0)


def _print(target: Target, message: StoredMessage, data: bool) -> None:
    if data:
        output.data(message.raw)
    elif target.out.as_json:
        output.line(output.message_record(message))
    else:
        at = f"{message.created_at:%H:%M:%S.%f}"[:-3]
        text = f"{at}  {message.id}  {message.partition}  {output.payload(message.raw)}"
        print(safe(text), flush=True)


def top(
    target: Target,
    interval: Annotated[float, duration("Time between refreshes.", "--interval", "-i")] = 2.0,
    count: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Stop after this number of refreshes (default: never on a terminal, else 1).",
        ),
    ] = None,
) -> None:
    """Show all queues continuously, with the figures of the dashboard: counts, ages, rates, trouble."""
    shown = sys.stdout.isatty() and not target.out.as_json
    if count is None and not shown:
        count = 1
    interval = max(interval, 0.1)
    if shown:
        with _keys() as pause:
            _draw(target, _frames(target, interval, count, pause))
        return
    for rows in _frames(target, interval, count, _sleep):
        target.out.table(COLUMNS, map(_row, rows), (_record(row) for row in rows))
        sys.stdout.flush()


class Row(NamedTuple):
    """A group of a queue, or a queue without groups, with the rates of its queue and its own."""

    line: QueueLine
    group: GroupMetrics | None
    out: float | None


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """A sleep that ends early and returns True when q is pressed."""
    if not sys.stdin.isatty():
        yield _sleep
        return
    import termios
    import tty

    keyboard = sys.stdin.fileno()

    def pause(seconds: float) -> bool:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([keyboard], [], [], left)[0]:
                pressed = os.read(keyboard, 64)
                if not pressed or b"q" in pressed.lower():  # nothing: the terminal was closed
                    return True
        return False

    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    try:
        yield pause
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _frames(
    target: Target, interval: float, count: int | None, pause: Callable[[float], bool]
) -> Iterator[list[Row]]:
    """Yield all rows after each interval, with rates since the one before, until a pause ends it."""
    board = StatsBoard(partial(target.session.broker.look, snapshot))
    before = board.take()
    shown = 0
    while count is None or shown < count:
        if pause(interval if shown else min(interval, 1.0)):
            return
        found = board.take()
        shown += 1
        yield _rows(found, before)
        before = found


def _rows(found: LiveStats, before: LiveStats) -> list[Row]:
    acked = {group.id: group.acked for line in before.queues.values() for group in line.groups}
    seconds = (found.steady - before.steady) / SECOND
    rows: list[Row] = []
    for name in sorted(found.queues):
        line = found.queues[name]
        for group in line.groups:
            known = acked.get(group.id)
            less = known is None or seconds <= 0
            rows.append(Row(line, group, None if less else (group.acked - (known or 0)) / seconds))
        if not line.groups:
            rows.append(Row(line, None, None))
    return rows


def _state(row: Row) -> Cell:
    """The reason why a queue needs attention, worded as in the dashboard."""
    text = ", ".join(row.line.trouble)
    return (text, "red" if row.line.severity[0] > SEVERITY["paused"] else "yellow") if text else ""


def _row(row: Row) -> list[Cell]:
    line, group = row.line, row.group
    into = line.rates.pushed if line.rates else None
    rates = ["" if rate is None else f"{rate:,.0f}" for rate in (into, row.out)]
    if group is None:
        stored = f"{line.stored:,}"
        return [line.name, "", stored, "", "", "0", stored, "", *rates, _state(row)]
    return [
        line.name, group_name(group.name), f"{group.ready:,}", f"{group.leased:,}",
        f"{group.waiting:,}", colored(group.dead, "red"), f"{group.lag:,}",
        span(group.oldest_ready_seconds) if group.ready else "", *rates, _state(row),
    ]  # fmt: skip


def _record(row: Row) -> dict[str, Any]:
    line, group = row.line, row.group
    names = ("ready", "leased", "waiting", "dead", "delivered", "acked", "failed")
    return {
        "at": datetime.now(UTC), "queue": line.name, "group": group.name if group else None,
        "counts": {name: getattr(group, name) for name in names} if group else None,
        "lag": group.lag if group else line.stored, "dead_letters": group.dead if group else 0,
        "oldest_seconds": group.oldest_ready_seconds if group else None,
        "paused": line.paused or bool(group and group.paused), "trouble": line.trouble,
        "in_per_second": line.rates.pushed if line.rates else None, "out_per_second": row.out,
    }  # fmt: skip


def _brokers(target: Target) -> Callable[[], str]:
    """The number of brokers as text, read again every few seconds; nothing, if it is not for all."""
    text, read_at = "", 0.0

    def read() -> str:
        nonlocal text, read_at
        if time.monotonic() - read_at > BROKERS_SECONDS:
            with suppress(AckflowError):  # a token for some queues, or an older server
                text = f"{plural(len(target.session.brokers()), 'broker')}, "
            read_at = time.monotonic()
        return text

    return read


def _draw(target: Target, frames: Iterator[list[Row]]) -> None:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        live.update(Text("reading ..."), refresh=True)
        working = _brokers(target)
        for rows in frames:
            rows.sort(key=lambda row: (row.group is None, -(row.group.lag if row.group else 0)))
            fit = max(1, console.height - 6)
            of = f"{fit} of {len(rows)}" if fit < len(rows) else f"{len(rows)}"
            head = f"{datetime.now():%H:%M:%S}  {of} rows, {working()}q to quit  {target.location.redacted}"
            table, _, note = output.rich_table(COLUMNS, map(_row, rows[:fit]), console.width)
            parts = [Text(safe(head), "dim"), table, *([note] if note else [])]
            live.update(Group(*parts), refresh=True)
