"""The command line as a function, on a file and on a server; and as a process of its own."""

import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.testing
from typer.testing import CliRunner, Result

import ackflow
from ackflow import Session
from ackflow.cli.main import app

from ..running import Running
from ..server.conftest import start_process  # noqa: F401

# A runner makes all commands anew for each one it runs, which takes five times as long as to run it.
typer.testing._get_command = functools.cache(typer.testing._get_command)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing of the user who runs the tests is read or written, and a terminal is wide."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("ACKFLOW_URL", "ACKFLOW_TOKEN", "ACKFLOW_CA_FILE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


class Cli:
    """Runs commands in this process; `q` is a session on the same database."""

    def __init__(self, url: str | None, q: Session | None = None) -> None:
        self.url = url
        self._q = q

    @property
    def q(self) -> Session:
        assert self._q is not None
        return self._q

    def run(self, *arguments: object, input: str | bytes | None = None) -> Result:
        where = [] if self.url is None else ["--url", self.url]
        result = CliRunner().invoke(app, [*where, *map(str, arguments)], input=input)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def __call__(self, *arguments: object, input: str | bytes | None = None) -> str:
        """What a command prints; it must work."""
        result = self.run(*arguments, input=input)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *arguments: object, input: str | bytes | None = None) -> list[Any]:
        """The lines a command prints with --json; it must work."""
        return [json.loads(line) for line in self(*arguments, "--json", input=input).splitlines()]

    def fails(self, code: int, *arguments: object, input: str | bytes | None = None) -> str:
        """The one sentence a command fails with."""
        result = self.run(*arguments, input=input)
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        return result.stderr.replace("\n│", "").replace("│\n", "")


@pytest.fixture
def on_file(tmp_path: Path) -> Iterator[Cli]:
    path = str(tmp_path / "test.db")
    with ackflow.connect(path, upkeep=False, consumer="tester") as q:
        yield Cli(path, q)


@pytest.fixture(params=["file", "server", "postgres"])
def cli(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cli]:
    """The command line on a database file, on a server, and on PostgreSQL."""
    if request.param == "file":
        yield request.getfixturevalue("on_file")
        return
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
        with ackflow.connect(url, upkeep=False, consumer="tester") as q:
            yield Cli(url, q)
        return
    with ackflow.connect(":memory:", upkeep=False, consumer="tester") as q:
        running = Running(q)
        yield Cli(running.url, q)
        running.stop()


@pytest.fixture
def nowhere() -> Cli:
    """The command line without a word about where."""
    return Cli(None)


@pytest.fixture
def dead(cli: Cli) -> Cli:
    """Three dead letters in group billing, and one for those who name no group."""
    cli.q.group("orders", "billing", retry_limit=1)
    cli.q.push("orders", [{"id": 1}, {"id": 2}, {"id": 3}])
    for message in cli.q.pop("orders", group="billing", batch=3):
        message.nack("card declined: try later" if message.data["id"] < 3 else "timeout")
    cli.q.pop("orders")[0].reject("not an order")
    return cli


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "ackflow", *map(str, arguments)]


def shell(*arguments: object, input: str | None = None, **more: Any) -> Any:
    """A command as a process of its own."""
    return subprocess.run(
        command(*arguments), input=input, capture_output=True, text=True, timeout=60, **more
    )
