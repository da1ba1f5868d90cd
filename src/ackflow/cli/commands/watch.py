"""Live commands: `tail` follows new messages, `top` refreshes a table of all queues."""

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from ...errors import AckflowError
from ...model import GroupStats, QueueStats, StoredMessage
from .. import output
from ..command import Target, command
from ..errors import is_unreachable
from ..output import Cell, Columns, colored, group_name, safe, span
from ..params import Partition, Queue, duration

PANEL = "Inspection"
POLL = 0.2
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
    """Show all queues continuously: ready, leased and dead messages, oldest age, rates."""
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


class Row:
    """A group of a queue, or a queue without groups, with its rates."""

    def __init__(self, queue: QueueStats, group: GroupStats | None) -> None:
        self.queue, self.group = queue, group
        self.into: float | None = None
        self.out: float | None = None

    @property
    def key(self) -> tuple[str, str | None]:
        return self.queue.name, self.group.name if self.group else None

    @property
    def pushed(self) -> int:
        return self.group.counts.pushed if self.group else self.queue.messages

    def since(self, before: "Row | None", seconds: float) -> None:
        if before is not None and seconds > 0:
            self.into = max(0, self.pushed - before.pushed) / seconds
            if self.group and before.group:
                self.out = max(0, self.group.counts.done - before.group.counts.done) / seconds


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
    before, at = _rows(target), time.monotonic()
    shown = 0
    while count is None or shown < count:
        if pause(interval if shown else min(interval, 1.0)):
            return
        now = time.monotonic()
        rows = _rows(target)
        known = {row.key: row for row in before}
        for row in rows:
            row.since(known.get(row.key), now - at)
        before, at = rows, now
        shown += 1
        yield rows


def _rows(target: Target) -> list[Row]:
    rows: list[Row] = []
    for queue in target.session.queues():
        rows += [Row(queue, group) for group in queue.groups] or [Row(queue, None)]
    return rows


def _row(row: Row) -> list[Cell]:
    paused: Cell = ("paused", "yellow") if row.queue.paused else ""
    rates = ["" if rate is None else f"{rate:,.0f}" for rate in (row.into, row.out)]
    if row.group is None:
        return [row.queue.name, "", f"{row.pushed:,}", "", "", "0", f"{row.pushed:,}", "", *rates, paused]  # fmt: skip
    group, c = row.group, row.group.counts
    if group.paused:
        paused = ("paused", "yellow")
    return [
        row.queue.name, group_name(group.name), f"{c.ready:,}", f"{c.leased:,}", f"{c.waiting:,}",
        colored(group.dead_letters, "red"), f"{c.lag:,}", span(group.oldest_seconds), *rates, paused,
    ]  # fmt: skip


def _record(row: Row) -> dict[str, Any]:
    group = output.group_record(row.group) if row.group else {"lag": row.pushed}
    return {
        "at": datetime.now(UTC), "queue": row.queue.name, "group": row.key[1],
        "counts": group.get("counts"), "lag": group["lag"],
        "dead_letters": row.group.dead_letters if row.group else 0,
        "oldest_seconds": row.group.oldest_seconds if row.group else None,
        "paused": row.queue.paused or bool(row.group and row.group.paused),
        "in_per_second": row.into, "out_per_second": row.out,
    }  # fmt: skip


def _draw(target: Target, frames: Iterator[list[Row]]) -> None:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        live.update(Text("reading ..."), refresh=True)
        for rows in frames:
            rows.sort(
                key=lambda row: (row.group is None, -(row.group.counts.lag if row.group else 0))
            )
            fit = max(1, console.height - 6)
            of = f"{fit} of {len(rows)}" if fit < len(rows) else f"{len(rows)}"
            head = f"{datetime.now():%H:%M:%S}  {of} rows, q to quit  {target.location.redacted}"
            table, _, note = output.rich_table(COLUMNS, map(_row, rows[:fit]), console.width)
            parts = [Text(safe(head), "dim"), table, *([note] if note else [])]
            live.update(Group(*parts), refresh=True)
