"""Interfaces of other packages that are not public: each is known here, and checked to be there."""

import ast
import asyncio
import re
from pathlib import Path

import pytest

import ackflow
from ackflow.cli import command
from ackflow.server.connection import check_future_protocol

SOURCE = Path(ackflow.__file__).parent
ROOT = SOURCE.parent.parent
# A private module that is imported, and what ensures that a version without it is noticed.
MODULES = {
    "typer._completion_shared": "`ackflow completion` says so",
    "_thread": "part of Python",
    "psycopg.generators": "upper bound",
    "pyspark.cloudpickle": "upper bound",
    "pyspark.sql.pandas.types": "upper bound",
}
ATTRIBUTES = {
    "_asyncio_future_blocking": "checked when the server starts",
    "_jvm": "upper bound of pyspark",
    "_jsc": "upper bound of pyspark",
}
PRIVATE = {"psycopg.generators", "pyspark.cloudpickle", "pyspark.sql.pandas.types"}


def imported(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in found if not name.startswith("ackflow")}


def test_every_private_interface_is_known_here() -> None:
    modules, attributes = set(), set()
    for file in SOURCE.rglob("*.py"):
        text = file.read_text()
        names = imported(ast.parse(text))
        modules |= {
            name for name in names
            if name in PRIVATE or (re.search(r"\._[a-z]\w*$|^_[a-z]", name) and "__" not in name)
        }  # fmt: skip
        attributes |= set(re.findall(r"\._(?:asyncio|loop_|ssl_|sock_|jvm|jsc|gateway)\w*", text))
    assert modules == set(MODULES)
    assert {name.lstrip(".") for name in attributes} - {"_loop_"} == set(ATTRIBUTES)


def test_packages_with_private_interfaces_have_upper_bounds() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    for package in ("psycopg", "pyspark"):
        assert re.search(rf'"{package}[^"]*,<[0-9.]+"', text), package


def test_futures_are_awaited_as_the_server_expects(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection runs handlers without tasks, and relies on what a future yields to a task."""

    async def check() -> None:
        check_future_protocol()

    asyncio.run(check())

    class Other(asyncio.Future):  # type: ignore[type-arg]
        def __await__(self):  # type: ignore[no-untyped-def]
            yield "something else"

    async def check_other() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "create_future", Other)
        with pytest.raises(RuntimeError, match="this version of Python"):
            check_future_protocol()

    asyncio.run(check_other())


def test_typer_has_the_class_of_usage_errors() -> None:
    assert command._UsageError.__name__ == "UsageError"


def test_the_lock_has_the_versions_of_the_constraints() -> None:
    """If this fails: `make lock`."""
    pinned = re.findall(r"(?m)^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text())
    text = (ROOT / "requirements.lock").read_text().replace("\\\n", " ")
    locked = {
        match[1]: (match[2], re.findall(r"sha256:[0-9a-f]{64}", match[3]))
        for match in re.finditer(r"(?m)^([a-z0-9-]+)==(\S+)(.*)$", text)
    }
    for name, version in pinned:
        entry = locked.pop(re.sub(r"[-_.]+", "-", name).lower(), None)
        if entry is not None:  # a few are pinned for the benchmarks alone
            assert entry[0] == version, name
            assert entry[1], name
    assert not locked, "not in constraints.txt"
