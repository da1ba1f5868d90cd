"""The tutorial and the how-to pages: every block runs, in order, and prints what the page shows."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import ackflow
from ackflow.worker import Worker

from ..running import Running
from .blocks import DOCS, blocks, run_python, run_shell, shown

ELSEWHERE = {"postgresql.md", "spark.md"}  # run by tests/postgres and tests/spark
HOW_TO = sorted(page for page in (DOCS / "how-to").glob("*.md") if page.name not in ELSEWHERE)
RUN = ("index", "tutorial", "upgrading", "workers", "jobs")
PAGES = [DOCS / f"{name}.md" for name in RUN] + HOW_TO


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Running]:
    """A server at the address that the pages use."""
    with ackflow.connect(tmp_path / "served.db") as session:
        running = Running(session)
        yield running
        running.stop()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_print_what_it_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for place, language, code, output in blocks(page):
        if "http://localhost:8000" in code:
            served = request.getfixturevalue("served")
            code = code.replace("http://localhost:8000", served.url)
        if language == "shell":
            printed = run_shell(code, tmp_path)
        else:
            printed = run_python(code, names, place)
        if output is not None:
            assert shown(printed, output), f"{place} printed:\n{printed}"
    for value in names.values():
        if isinstance(value, ackflow.Session | Worker):
            value.close()


def test_every_how_to_page_has_blocks_that_are_run() -> None:
    without = {page.stem for page in PAGES if not blocks(page)}
    assert without <= {"index", "upgrading"}
