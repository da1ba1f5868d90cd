"""Output: tables and sentences for people, JSON for programs."""

import sys
import unicodedata
from base64 import b64encode
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import typer
from msgspec import Struct, structs

from ..model import DeadLetter, GroupStats, Progress, QueueStats, StoredMessage
from ..options import QUEUE_MODE
from ..session.messages import Delivery

Cell = str | tuple[str, str]  # text, or text and its style on a terminal
_SHRINKABLE = {"data", "reason", "error"}
_GAP, _LEAST = 2, 12
_MOST_DATA = 500  # wider than any terminal


class Columns(Struct, frozen=True):
    """The columns of a table; a name that starts with > is aligned right.

    `optional` lists the columns that a narrow terminal may omit, the least important first. The
    others identify the rows.
    """

    names: tuple[str, ...]
    optional: tuple[str, ...] = ()

    @property
    def heads(self) -> list[str]:
        return [name.lstrip(">") for name in self.names]


class Output:
    """Prints the output of a command, as text or as JSON."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def record(self, record: Any, *sentences: str) -> None:
        """Print one object: a JSON document, or sentences."""
        if self.as_json:
            line(record)
        else:
            for sentence in sentences:
                print(safe(sentence))

    def table(
        self, columns: Columns, rows: Iterable[Sequence[Cell]], records: Iterable[Any]
    ) -> None:
        """Print a list: JSON lines, or a table."""
        if not self.as_json:
            tabulate(columns, rows)
            return
        for record in records:
            line(record)

    def say(self, sentence: str = "") -> None:
        """Print a sentence that JSON output omits."""
        if not self.as_json:
            print(safe(sentence))

    def note(self, sentence: str) -> None:
        """Print a remark about the output to stderr, so that a pipe does not receive it."""
        if not self.as_json:
            print(safe(sentence), file=sys.stderr)

    def hint(self, sentence: str) -> None:
        """Suggest a next command on a terminal."""
        if not self.as_json and sys.stderr.isatty():
            typer.secho(safe(sentence), err=True, dim=True)


def line(record: Any) -> None:
    """Print one JSON document per line, in UTF-8 whatever the encoding of the terminal."""
    sys.stdout.flush()
    out = sys.stdout.buffer
    out.write(msgspec.json.encode(_hide_default_group(record)) + b"\n")
    out.flush()


def _hide_default_group(record: Any) -> Any:
    """Replace the name of the default group by null."""
    if isinstance(record, dict):
        return {**record, "group": None} if record.get("group") == QUEUE_MODE else record
    return (
        structs.replace(record, group=None)
        if getattr(record, "group", "") == QUEUE_MODE
        else record
    )


def data(raw: bytes) -> None:
    """Print a payload byte for byte, followed by a newline."""
    sys.stdout.flush()
    sys.stdout.buffer.write(raw + b"\n")
    sys.stdout.buffer.flush()


def tabulate(columns: Columns, rows: Iterable[Sequence[Cell]]) -> None:
    """Print a table that fits the terminal; in a pipe, complete columns without colors."""
    if sys.stdout.isatty():
        _rich(columns, rows)
        return
    plain = [[safe(cell if isinstance(cell, str) else cell[0]) for cell in row] for row in rows]
    lines = [columns.heads, *plain]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for cells in lines:
        parts = [
            text.rjust(width) if name.startswith(">") else text.ljust(width)
            for name, text, width in zip(columns.names, cells, widths, strict=True)
        ]
        print("  ".join(parts).rstrip())


def _rich(columns: Columns, rows: Iterable[Sequence[Cell]]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    table, width, note = rich_table(columns, rows, console.width)
    # Names wider than the terminal wrap, so that they can be copied.
    Console(highlight=False, width=max(width, console.width)).print(table)
    if note:
        console.print(note)


def rich_table(
    columns: Columns, rows: Iterable[Sequence[Cell]], width: int
) -> tuple[Any, int, Any | None]:
    """A table for a terminal, its width, and a note about omitted columns.

    Only columns that cannot be omitted make it wider than `width`.
    """
    from rich.table import Table
    from rich.text import Text

    cells = [
        [
            Text(safe(cell)) if isinstance(cell, str) else Text(safe(cell[0]), cell[1])
            for cell in row
        ]
        for row in rows
    ]
    heads = columns.heads
    widths = [
        max([len(head), *(row[at].cell_len for row in cells)]) for at, head in enumerate(heads)
    ]
    empty = {head for at, head in enumerate(heads) if not any(row[at].plain for row in cells)}
    kept = _columns_that_fit(columns, empty, widths, width)
    needed = _shrink([heads[at] for at in kept], widths := [widths[at] for at in kept], width)
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold underline")
    for at in kept:
        right = columns.names[at].startswith(">")
        table.add_column(
            heads[at], justify="right" if right else "left", no_wrap=right or needed <= width,
            overflow="fold",
        )  # fmt: skip
    for row in cells:
        for at, most in zip(kept, widths, strict=True):
            row[at].truncate(most, overflow="ellipsis")
        table.add_row(*(row[at] for at in kept))
    left = ", ".join(head for at, head in enumerate(heads) if at not in kept)
    return table, needed, Text(f"not shown, the terminal is too narrow: {left}", "dim") if left else None  # fmt: skip


def _columns_that_fit(
    columns: Columns, empty: set[str], widths: list[int], width: int
) -> list[int]:
    """The columns that fit, by importance, if texts are shrunk as far as possible."""
    heads = columns.heads
    least = [
        min(most, _LEAST) if head in _SHRINKABLE else most
        for head, most in zip(heads, widths, strict=True)
    ]
    kept = [at for at, head in enumerate(heads) if head not in columns.optional]
    wanted = [*reversed(columns.optional)]
    for head in sorted(wanted, key=lambda head: head in empty):
        more = [*kept, heads.index(head)]
        if sum(least[at] for at in more) + _GAP * (len(more) - 1) <= width:
            kept = more
    return sorted(kept)


def _shrink(heads: list[str], widths: list[int], width: int) -> int:
    """Shrink text columns, the widest first, until a row fits; returns the width of a row."""
    long = [at for at, head in enumerate(heads) if head in _SHRINKABLE]
    needed = sum(widths) + _GAP * (len(widths) - 1)
    while needed > width and long:
        at = max(long, key=lambda at: widths[at])
        if widths[at] <= _LEAST:
            break
        widths[at] -= 1
        needed -= 1
    return needed


def safe(text: str) -> str:
    """Escape control characters except newline and tab, so that text cannot control the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" or unicodedata.category(c) != "Cc" else repr(c)[1:-1] for c in text)  # fmt: skip


# Values as text


def when(time: datetime | None) -> str:
    return "" if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


def ago(time: datetime | None) -> str:
    """A time relative to now, such as `2.5m ago` or `in 30s`."""
    if time is None:
        return ""
    seconds = (datetime.now(UTC) - time).total_seconds()
    return f"{span(seconds)} ago" if seconds >= 0 else f"in {span(-seconds)}"


def span(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return (
                f"{seconds / size:.0f}{unit}"
                if seconds >= 10 * size
                else f"{seconds / size:.1f}{unit}"
            )
    return f"{seconds:.0f}s" if seconds >= 1 else f"{seconds * 1000:.0f}ms"


def size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 10 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def plural(count: int, what: str) -> str:
    """A count with its noun: 1 message, 2,000 messages."""
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def group_name(name: str) -> str:
    """The name of a group; - for the default group, as it is typed."""
    return "-" if name == QUEUE_MODE else name


def payload(raw: bytes, most: int | None = None) -> str:
    """A payload as one line of text; binary data as hex."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = f"0x{raw.hex()}"
    text = " ".join(text.split("\n"))
    return text if most is None or len(text) <= most else text[: most - 1] + "…"


def pretty(raw: bytes) -> str:
    """A complete payload; JSON is indented."""
    try:
        return msgspec.json.format(raw, indent=2).decode()
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return payload(raw)


def short(raw: bytes) -> str:
    """A payload in a table: truncated on a terminal, complete in a pipe."""
    return payload(raw, _MOST_DATA if sys.stdout.isatty() else None)


def colored(number: int, style: str) -> Cell:
    """A number with a style unless it is 0."""
    return (f"{number:,}", style) if number else "0"


# Values as JSON


def body(raw: bytes, is_json: bool) -> dict[str, Any]:
    """A payload: JSON unchanged as `data`, bytes as `text`, or as `base64` if they are not UTF-8."""
    if is_json:
        return {"data": msgspec.Raw(raw)}
    try:
        return {"text": raw.decode()}
    except UnicodeDecodeError:
        return {"base64": b64encode(raw).decode()}


def message_record(message: StoredMessage | DeadLetter) -> dict[str, Any]:
    record = structs.asdict(message)
    return record | body(record.pop("raw"), record.pop("is_json"))


def delivery_record(message: Delivery) -> dict[str, Any]:
    m = message
    is_json = not isinstance(m.data, bytes)
    return {
        "id": m.id, "queue": m.queue, "group": m.group, "partition": m.partition,
        "priority": m.priority, "sequence": m.sequence, "created_at": m.created_at,
        "deliveries": m.deliveries, "failures": m.failures, "redelivered": m.redelivered,
        "transaction_id": m.transaction_id, "headers": m.headers, "token": m.token,
        "lease_expires_at": m.lease_expires_at, **body(m.raw, is_json),
    }  # fmt: skip


def group_record(group: GroupStats) -> dict[str, Any]:
    counts = {**structs.asdict(group.counts), "pushed": group.counts.pushed}
    name = None if group.name == QUEUE_MODE else group.name
    return {**structs.asdict(group), "name": name, "counts": counts, "lag": group.counts.lag}


def progress_record(progress: Progress) -> Progress:
    return structs.replace(
        progress, leases=[_hide_default_group(lease) for lease in progress.leases]
    )


def queue_record(queue: QueueStats) -> dict[str, Any]:
    groups = [group_record(group) for group in queue.groups]
    return {**structs.asdict(queue), "groups": groups}
