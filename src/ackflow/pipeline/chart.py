"""Draws the timeline of a run: batches handled, ends of file held, kills and recoveries."""

import json
from html import escape
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 900, 420
LEFT, RIGHT, TOP, BOTTOM = 64, 64, 64, 56
BATCHES, HELD, KILLED, RECOVERED = "#1f6feb", "#d97706", "#c62828", "#2e7d32"

TICKS = 4
CHARACTER = 6.5  # approximate width in pixels
Event = dict[str, Any]


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
        _text(LEFT, 24, "Batches and ends of file", "#111", "start", 16),
        f'<rect x="{LEFT}" y="38" width="12" height="4" fill="{BATCHES}"/>',
        _text(LEFT + 18, 44, "batches handled (left)", BATCHES, "start"),
        f'<rect x="{LEFT + 170}" y="38" width="12" height="4" fill="{HELD}"/>',
        _text(LEFT + 188, 44, "ends of file held, not acknowledged (right)", HELD, "start"),
    ]


def _text(x: float, y: float, text: str, colour: str, anchor: str, size: int = 12) -> str:
    return (
        f'<text x="{x}" y="{y}" fill="{colour}" text-anchor="{anchor}" font-size="{size}">'
        f"{escape(text)}</text>"
    )
