"""Every public name is in the reference and has a docstring; what is not there is private."""

import importlib
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from typer.main import get_command

import ackflow
from ackflow.cli.main import app

from .blocks import DOCS, ROOT

MODULES = ("ackflow", "ackflow.aio", "ackflow.pushpop", "ackflow.jetstream", "ackflow.errors",
           "ackflow.middleware", "ackflow.model", "ackflow.pipeline", "ackflow.spark",
           "ackflow.worker", "ackflow.testing")  # fmt: skip
# Parts of `make demo` and of `ackflow pipeline generate`, which are in the examples' folder.
PROGRAMS = ("coffee_shop_data.py", "coffee_shop_demo.py")
IMPORT = re.compile(r"^ *from (ackflow[\w.]*) import ([\w, ]+)$", re.M)
PAGES = {page: page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md")}
SHOWN = {name for text in PAGES.values() for name in re.findall(r"^::: ([\w.]+)$", text, re.M)}
MENTIONED = "\n".join(PAGES.values())


def public_names(module: ModuleType) -> list[str]:
    """What a module exports: `__all__`, or else the classes and functions it defines."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    ]


def load(name: str) -> Any:
    """The object of a dotted name."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise AssertionError(name)


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class, also those of private base classes."""
    for name in dir(cls):
        value = inspect.getattr_static(cls, name)
        if name.startswith("_") or not (inspect.isroutine(value) or isinstance(value, property)):
            continue
        owner = next(base for base in cls.__mro__ if name in vars(base))
        if owner.__module__.startswith("ackflow"):
            yield name, getattr(cls, name)


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_in_the_reference(module: str) -> None:
    missing = [
        name
        for name in public_names(importlib.import_module(module))
        if f"{module}.{name}" not in SHOWN
        and module not in SHOWN
        and f"`{module}.{name}`" not in MENTIONED
    ]
    assert missing == []


def test_what_the_documentation_and_the_examples_import_is_in_the_reference() -> None:
    pages = [ROOT / "README.md", *DOCS.rglob("*.md"), *(ROOT / "examples").glob("*.py")]
    missing, found = set(), 0
    for page in pages:
        if page.name in PROGRAMS:
            continue
        for module, names in IMPORT.findall(page.read_text(encoding="utf-8")):
            for name in names.split(","):
                path = f"{module}.{name.strip()}"
                found += 1
                if not (path in SHOWN or module in SHOWN or f"`{path}`" in MENTIONED):
                    missing.add(f"{page.name}: {path}")
    assert found > 40
    assert missing == set()


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_what_the_reference_shows_exists_and_has_docstrings(name: str) -> None:
    found = load(name)
    if inspect.ismodule(found):
        shown = [(f"{name}.{one}", getattr(found, one)) for one in public_names(found)]
    else:
        shown = [(name, found)]
    missing = []
    for path, value in shown:
        if not (inspect.isclass(value) or inspect.isroutine(value)):
            continue
        if not inspect.getdoc(value):
            missing.append(path)
        if inspect.isclass(value):
            missing += [f"{path}.{one}" for one, of in members(value) if not inspect.getdoc(of)]
    assert missing == []


def test_every_command_is_explained() -> None:
    """In a table of `cli.md`, or in `pipeline.md`."""
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    cells = [row.split(" | ")[0] for row in page.splitlines() if row.startswith("| `")]
    rows = [name.replace("\\|", " ").split() for cell in cells for name in cell.split("`")[1::2]]
    shown = {row[0] for row in rows} | {f"{row[0]} {one}" for row in rows for one in row[1:]}
    pipelines = (DOCS / "pipeline.md").read_text(encoding="utf-8")
    shown |= {f"pipeline {one}" for one in re.findall(r"ackflow pipeline (\w+)", pipelines)}
    missing = []
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        commands = [name, *(f"{name} {one}" for one in getattr(command, "commands", ()))]
        missing += [one for one in commands if one not in shown]
    assert missing == []


def test_every_option_of_a_queue_and_a_group_is_explained() -> None:
    page = (DOCS / "options.md").read_text(encoding="utf-8")
    for options in (ackflow.QueueOptions, ackflow.GroupOptions):
        for name in options.__struct_fields__:
            assert f"`{name}`" in page, name
