"""A type checker knows the options of queues and groups by name and by type."""

from pathlib import Path
from typing import get_type_hints

import msgspec
import pytest
from mypy import api

from ackflow.options import GroupOptions, GroupOptionsDict, QueueOptions, QueueOptionsDict

ROOT = Path(__file__).parents[2]

CALLS = """
from datetime import timedelta
from ackflow import Session, aio

def right(q: Session) -> None:
    q.configure("q", lease_seconds=timedelta(minutes=1), backoff=[1, 5], max_size=None)
    q.group("q", "g", dialect="jetstream", ordering="shared", start="new")
    q.queue("q").config(retry_limit=3).create()

async def wrong(q: Session, a: aio.Session) -> None:
    q.configure("q", lease_second=60)  # error
    q.configure("q", priority="high")  # error
    q.group("q", "g", ordering="random")  # error
    q.group("q", "g", max_ack_pendin=10)  # error
    q.queue("q").config(retry_limits=3)  # error
    await a.configure("q", lease_second=60)  # error
    await a.group("q", "g", max_ack_pendin=10)  # error
"""


@pytest.mark.parametrize(
    ("keywords", "options"),
    [(QueueOptionsDict, QueueOptions), (GroupOptionsDict, GroupOptions)],
    ids=["queue", "group"],
)
def test_every_option_is_a_keyword(keywords: type, options: type[msgspec.Struct]) -> None:
    assert [*get_type_hints(keywords)] == [f.name for f in msgspec.structs.fields(options)]


def test_a_misspelt_or_mistyped_option_is_a_type_error(tmp_path: Path) -> None:
    config = tmp_path / "mypy.ini"
    config.write_text(f"[mypy]\nstrict = True\nmypy_path = {ROOT / 'src'}\n")
    cache = str(ROOT / ".mypy_cache")  # of the project, so that only the calls are checked
    output, problems, _ = api.run(["--config-file", str(config), "--cache-dir", cache, "-c", CALLS])
    assert not problems
    expected = {i for i, line in enumerate(CALLS.split("\n"), 1) if line.endswith("# error")}
    found = {int(line.split(":")[1]) for line in output.splitlines() if ": error:" in line}
    assert found == expected, output
