"""Shows the progress of a run: a live table on a terminal, lines elsewhere, a picture at the end."""

import json
import sys
import time
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .state import Handled, HeldEnds, TableKey

WIDTH, HEIGHT = 900, 420
LEFT, RIGHT, TOP, BOTTOM = 64, 64, 64, 56
BATCHES, HELD, KILLED, RECOVERED = "#1f6feb", "#d97706", "#c62828", "#2e7d32"

TICKS = 4
CHARACTER = 6.5  # approximate width in pixels
Event = dict[str, Any]

LINES_EVERY = 5.0  # seconds between lines where there is no terminal
RATE_OVER = 15.0  # seconds over which the rate is measured


class Progress:
    """The progress of a run by client: blocks, rows, ends of file, rows per second, time left."""

    def __init__(
        self, report: Callable[[str], None], files: Mapping[str, Mapping[str, Mapping[str, int]]]
    ) -> None:
        self._report = report
        self._sizes = {
            client: sum(size for table in tables.values() for size in table.values())
            for client, tables in files.items()
        }
        self._live: Any = None
        self._samples: list[tuple[float, int, int]] = []
        self._told, self._told_at = "", 0.0

    def __enter__(self) -> Self:
        if sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(transient=True, refresh_per_second=4)
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if self._live is not None:
            self._live.__exit__(kind, error, trace)

    def update(
        self, handled: Mapping[TableKey, Handled], held: Mapping[str, HeldEnds], recoveries: int
    ) -> None:
        """Show what is handled now."""
        now = time.monotonic()
        rows = sum(one.rows for one in handled.values())
        size = sum(one.bytes for one in handled.values())
        if not self._samples or size != self._samples[-1][2]:
            self._samples.append((now, rows, size))
        self._samples = [s for s in self._samples if now - s[0] < RATE_OVER] or self._samples[-1:]
        if self._live is not None:
            self._live.update(self._table(handled, held, recoveries, now))
        elif now - self._told_at > LINES_EVERY:
            line = self._line(handled, held, recoveries, now)
            if handled and line != self._told:
                self._told, self._told_at = line, now
                self._report(line)

    def _rates(self, now: float) -> tuple[float, float | None]:
        """Return rows per second, and the seconds that are left; None if that is not known."""
        (began, rows, size), (_, last_rows, last_size) = self._samples[0], self._samples[-1]
        seconds = now - began
        if seconds <= 0 or last_size == size:
            return 0.0, None
        left = max(0, sum(self._sizes.values()) - last_size)
        return (last_rows - rows) / seconds, left * seconds / (last_size - size)

    def _line(
        self, handled: Mapping[TableKey, Handled], held: Mapping[str, HeldEnds], recoveries: int,
        now: float,
    ) -> str:  # fmt: skip
        blocks = sum(one.blocks for one in handled.values())
        rows = sum(one.rows for one in handled.values())
        ends = sum(one.ends for one in held.values())
        rate, left = self._rates(now)
        parts = [f"{blocks:,} {'block' if blocks == 1 else 'blocks'}", f"{rows:,} rows",
                 f"{ends} ends of file held"]  # fmt: skip
        if recoveries:
            parts.append(f"{recoveries} recovered")
        if rate:
            parts.append(f"{rate:,.0f} rows/s")
        if left is not None:
            parts.append(f"about {left:.0f} s left")
        return ", ".join(parts)

    def _table(
        self, handled: Mapping[TableKey, Handled], held: Mapping[str, HeldEnds], recoveries: int,
        now: float,
    ) -> Any:  # fmt: skip
        from rich.table import Table

        found = Table(caption=self._line(handled, held, recoveries, now))
        found.add_column("client")
        for name in ("blocks", "rows", "read", "ends held"):
            found.add_column(name, justify="right")
        for client, size in self._sizes.items():
            mine = [one for key, one in handled.items() if key.client == client]
            share = sum(one.bytes for one in mine) / size if size else 1.0
            ends = sum(e.ends for key, e in held.items() if key.rpartition("/")[0] == client)
            found.add_row(
                client, f"{sum(one.blocks for one in mine):,}",
                f"{sum(one.rows for one in mine):,}", f"{min(share, 1.0):.0%}", str(ends),
            )  # fmt: skip
        return found


def write(out: Path) -> Path:
    """Draw OUT/timeline.json as OUT/timeline.svg."""
    events = json.loads((out / "timeline.json").read_text(encoding="utf-8"))
    path = out / "timeline.svg"
    path.write_text(draw(events), encoding="utf-8")
    return path


def draw(events: list[Event]) -> str:
    """Return an SVG of the events of a run."""
    last = max((event["at"] for event in events), default=0.0) or 1.0
    seen = [event for event in events if event["what"] == "progress"]
    axes = _Axes(
        last, _round_up(max([1, *(event["handled"] for event in seen)])),
        _round_up(max([1, *(event["held"] for event in seen)])),
    )  # fmt: skip
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        *_grid(axes),
        _line(axes, [(e["at"], axes.batches(e["handled"])) for e in seen], BATCHES),
        _line(axes, [(e["at"], axes.held(e["held"])) for e in seen], HELD),
        *_marks(axes, events),
        *_legend(),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _round_up(most: int) -> int:
    """Return the end of a scale whose ticks are integers."""
    return TICKS * -(-most // TICKS)


class _Axes:
    """Maps times and numbers to pixels; the right scale is for ends of file."""

    def __init__(self, last: float, batches: int, held: int) -> None:
        self.last, self.most_batches, self.most_held = last, batches, held

    def x(self, at: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * at / self.last, 1)

    def batches(self, n: float) -> float:
        return self._y(n / self.most_batches)

    def held(self, n: float) -> float:
        return self._y(n / self.most_held)

    def _y(self, share: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share, 1)


def _grid(axes: _Axes) -> list[str]:
    bottom = HEIGHT - BOTTOM
    parts = []
    for i in range(TICKS + 1):
        share = i / TICKS
        y, x = axes._y(share), axes.x(axes.last * share)
        parts += [
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="#ddd"/>',
            _text(LEFT - 8, y + 4, f"{axes.most_batches * share:g}", BATCHES, "end"),
            _text(WIDTH - RIGHT + 8, y + 4, f"{axes.most_held * share:g}", HELD, "start"),
            _text(x, bottom + 20, f"{axes.last * share:.0f} s", "#444", "middle"),
        ]
    return parts


def _line(axes: _Axes, points: list[tuple[float, float]], colour: str) -> str:
    """Draw steps: a number is valid until the next one."""
    if not points:
        return ""
    path = [f"M {axes.x(points[0][0])} {HEIGHT - BOTTOM}"]
    for at, y in points:
        path += [f"H {axes.x(at)}", f"V {y}"]
    path.append(f"H {axes.x(axes.last)}")
    return f'<path d="{" ".join(path)}" fill="none" stroke="{colour}" stroke-width="2"/>'


def _marks(axes: _Axes, events: list[Event]) -> list[str]:
    """Draw a labelled line for each kill, recovery and finished client; labels do not overlap."""
    parts = []
    rows: list[float] = []  # the end of the last label in each row
    for event in [e for e in events if e["what"] in ("kill", "recovered", "done")]:
        colour, label = _label(event)
        x, width = axes.x(event["at"]), CHARACTER * len(label)
        first = x + 4 if x + 4 + width < WIDTH else x - 4 - width
        free = (row for row, end in enumerate(rows) if end + 8 < first)
        row = next(free, len(rows))
        rows[row : row + 1] = [first + width]
        parts += [
            f'<line x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="{colour}" '
            'stroke-dasharray="4 3"/>',
            _text(round(first, 1), TOP + 10 + 14 * row, label, colour, "start"),
        ]
    return parts


def _label(event: Event) -> tuple[str, str]:
    """Return the colour and the label of an event."""
    match event["what"]:
        case "kill":
            return KILLED, f"{event['stage']} killed"
        case "recovered":
            again = f", {event['held']} redelivered" if event.get("held") else ""
            return RECOVERED, f"{event['stage']} recovered after {event['seconds']:.1f} s{again}"
        case _:
            return "#666", f"{event['client']} finished"


def _legend() -> list[str]:
    return [
        _text(LEFT, 24, "Blocks and ends of file", "#111", "start", 16),
        f'<rect x="{LEFT}" y="38" width="12" height="4" fill="{BATCHES}"/>',
        _text(LEFT + 18, 44, "blocks handled (left)", BATCHES, "start"),
        f'<rect x="{LEFT + 170}" y="38" width="12" height="4" fill="{HELD}"/>',
        _text(LEFT + 188, 44, "ends of file held, not acknowledged (right)", HELD, "start"),
    ]


def _text(x: float, y: float, text: str, colour: str, anchor: str, size: int = 12) -> str:
    return (
        f'<text x="{x}" y="{y}" fill="{colour}" text-anchor="{anchor}" font-size="{size}">'
        f"{escape(text)}</text>"
    )
