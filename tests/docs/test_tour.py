"""The tour of the code names files that exist."""

import re
from pathlib import Path

import pytest

from .blocks import DOCS, ROOT

TOUR = (DOCS / "contributing" / "index.md").read_text(encoding="utf-8")
ROWS = [row for row in TOUR.splitlines() if row.startswith("| a") or row.startswith("| the ")]


def named(row: str) -> list[str]:
    """The files and folders that a row names; a bare file name is in the folder named before it."""
    found, folder = [], ""
    for name in re.findall(r"`([\w/]+(?:\.py|/))`", row):
        if "/" in name:
            folder = name.rpartition("/")[0]
        if "/" in name or Path(ROOT, "src/ackflow", name).exists():
            found.append(name)
        else:
            found.append(f"{folder}/{name}")
    return found


def test_the_tour_has_all_changes() -> None:
    assert len(ROWS) >= 15


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_the_files_of_a_change_exist(row: str) -> None:
    names = named(row)
    assert names
    for name in names:
        folder = ROOT if name.startswith("tests/") else ROOT / "src" / "ackflow"
        assert (folder / name).exists(), name


def test_the_names_that_the_tour_gives_with_a_file_are_defined_in_it() -> None:
    found = re.findall(r"`([\w/]+\.py)` \(((?:`\w+`(?:, )?)+)\)", TOUR)
    assert len(found) > 5
    for file, names in found:
        text = (ROOT / "src" / "ackflow" / file).read_text(encoding="utf-8")
        for name in re.findall(r"\w+", names):
            defined = rf"^(?:(?:async )?def |class )?{name}\b(?: =|:|\()"
            assert re.search(defined, text, re.MULTILINE), f"{name} is not in {file}"


PAGES = [DOCS / "design.md", *sorted((DOCS / "decisions").glob("*.md")), ROOT / "CONTRIBUTING.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_modules_that_a_page_names_exist(page: Path) -> None:
    for name in re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:py|sql))`", page.read_text(encoding="utf-8")):
        found = [
            folder / name for folder in (ROOT, ROOT / "src/ackflow", ROOT / "src/ackflow/store")
        ]
        assert any(path.exists() for path in found), name
