"""Measurements of two sides, their ratio, and whether it meets its target."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from .measure import Results


@dataclass(frozen=True)
class Target:
    """The target of a ratio: at least or at most `bound`."""

    bound: float
    at_least: bool = True

    def holds(self, ratio: float) -> bool:
        return ratio >= self.bound if self.at_least else ratio <= self.bound

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.bound:g}x"


@dataclass
class Row:
    """One measurement on two sides, with a value per round on each."""

    what: str
    unit: str
    first: list[float]
    second: list[float]
    target: Target | None = None

    @property
    def ratio(self) -> float:
        return median(self.first) / median(self.second)

    @property
    def spread(self) -> tuple[float, float]:
        """Return the lowest and highest ratio of all rounds; of many, without the outer tenths."""
        ratios = sorted(a / b for a, b in zip(self.first, self.second, strict=True))
        cut = len(ratios) // 10
        return ratios[cut], ratios[-1 - cut]

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        return f"{self.target} {'holds' if self.target.holds(self.ratio) else 'MISSED'}"


@dataclass
class Table:
    title: str
    sides: tuple[str, str]
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    quiet: bool = True

    @property
    def missed(self) -> int:
        return sum(row.verdict.endswith("MISSED") for row in self.rows)

    def show(self) -> str:
        head = ("", *self.sides, "", "ratio", "spread", "target")
        lines = [head]
        for row in self.rows:
            low, high = row.spread
            lines.append(
                (
                    row.what,
                    number(median(row.first)),
                    number(median(row.second)),
                    row.unit,
                    f"{row.ratio:.2f}x",
                    f"{low:.2f} to {high:.2f}",
                    row.verdict,
                )
            )
        return "\n".join([f"\n{self.title}", *aligned(lines), *(f"  {n}" for n in self.notes)])

    def plain(self) -> dict[str, Any]:
        rows = [
            {**asdict(row), "target": row.verdict, "ratio": row.ratio, "spread": row.spread}
            for row in self.rows
        ]
        return {
            "title": self.title,
            "sides": self.sides,
            "rows": rows,
            "notes": self.notes,
            "quiet": self.quiet,
        }


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def aligned(lines: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    right = {1, 2, 4}
    return [
        "  ".join(
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def rows_of(
    results: Results, first: str, second: str, units: dict[str, str], targets: dict[str, Target]
) -> list[Row]:
    """Create a row for everything that both sides measured; without a unit, a value is a rate."""
    ours, theirs = results[first], results[second]
    return [
        Row(what, units.get(what, "msg/s"), ours[what], theirs[what], targets.get(what))
        for what in ours
        if what in theirs
    ]
