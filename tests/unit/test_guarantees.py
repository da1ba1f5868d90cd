"""docs/guarantees.md names tests that exist, in the ring where they run."""

import ast
import re
from pathlib import Path

from tests.mutants import MUTANTS, place_of

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guarantees.md"
ROW = re.compile(r"^\| (?:[^|`]+ \| )?`(tests/[\w/]+\.py)::(\w+)` \| (.*) \|$", re.MULTILINE)
GUARANTEES = [f"I{n}" for n in range(1, 11)]


def rows(text: str) -> list[tuple[str, str, str]]:
    """Return every (file, test, ring) of a page."""
    return ROW.findall(text)


def marks(tree: ast.Module, test: ast.FunctionDef) -> set[str]:
    """Return the names of the pytest markers of a test and of its module."""
    places: list[ast.AST] = list(test.decorator_list)
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            places.append(node.value)
    found = " ".join(ast.unparse(place) for place in places)
    return set(re.findall(r"pytest\.mark\.(\w+)", found))


def ring(file: str, name: str) -> str:
    """Return where a test runs, from its markers and fixtures; empty if there is no such test."""
    path = ROOT / file
    tree = ast.parse(path.read_text()) if path.exists() else ast.Module([], [])
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            found = marks(tree, node)
            if "soak" in found:
                return "soak"
            if "outer" in found:
                return "outer"
            if "every_store" in found:
                return "inner, every store"
            fixtures = {argument.arg for argument in node.args.args}
            if {"lab", "spark"} & fixtures and "inner" not in found:
                return "outer"
            on_stores = "conformance" in file and fixtures & {"q", "open_session", "half_read"}
            return "inner, memory; outer, others" if on_stores else "inner"
    return ""


def test_every_test_named_on_the_page_exists_and_runs_where_the_page_says() -> None:
    wrong = [
        f"{file}::{name}: the page says {said!r}, it is {ring(file, name)!r}"
        for file, name, said in rows(PAGE.read_text())
        if ring(file, name) != said
    ]
    assert not wrong, "\n".join(wrong)


def test_every_guarantee_has_tests_in_the_inner_ring() -> None:
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    guarded = {
        section.split(":", 1)[0]
        for section in sections
        if sum(said.startswith("inner") for _, _, said in rows(section)) >= 2
    }
    assert [name for name in GUARANTEES if name not in guarded] == []


def test_the_page_has_no_row_that_is_not_checked() -> None:
    lines = [
        line
        for line in PAGE.read_text().splitlines()
        if line.startswith("| ") and "`tests/" in line
    ]
    assert len(lines) == len(rows("\n".join(lines)))


def test_every_mutant_has_a_place_in_the_source() -> None:
    assert len(MUTANTS) == 40
    for mutant in MUTANTS:
        assert place_of(mutant, ROOT).is_file()  # raises if its text is not there exactly once
