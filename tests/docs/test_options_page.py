"""The defaults in the tables of `docs/options.md` are those of the code."""

import msgspec

from ackflow.options import DEFAULTS, QueueOptions

from .blocks import DOCS

PAGE = (DOCS / "options.md").read_text(encoding="utf-8")
DERIVED = ("namespace", "task")  # from the name of the queue
INHERITED = ("lease_seconds", "retry_limit", "max_deliver", "backoff")  # from the dialect


def table(heading: str) -> list[list[str]]:
    """Return the cells of the first table of a section, without its ruling line."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [
        [cell.strip().strip("`") for cell in row.split("|")[1:-1]] for row in rows[:1] + rows[2:]
    ]


def shown(value: object) -> str:
    """Return a value as the page writes it."""
    if value is None or value == ():
        return "none"
    return str(round(value)) if isinstance(value, float) else str(value)


def test_the_table_of_group_defaults_is_that_of_the_code() -> None:
    (_, *dialects), *rows = table("Group defaults by dialect")
    assert dialects == list(DEFAULTS)
    names = {row[0].replace("batch of a pop", "batch"): row[1:] for row in rows}
    for dialect, rules in DEFAULTS.items():
        values = msgspec.structs.asdict(rules)
        column = {name: cells[dialects.index(dialect)] for name, cells in names.items()}
        assert column == {name: shown(value) for name, value in values.items()}, dialect


def test_the_table_of_queue_options_has_their_defaults() -> None:
    page = {row[0]: row[1] for row in table("Queue options")[1:]}
    code = {
        name: shown(value)
        for name, value in msgspec.structs.asdict(QueueOptions()).items()
        if name not in (*INHERITED, *DERIVED)
    }
    assert {name: text for name, text in page.items() if "from the name" not in text} == code
