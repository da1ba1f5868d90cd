"""Every command with each extra alone: it works, or says what to install."""

import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from ackflow.cli.main import app

EXTRAS = {
    "cli": "typer,rich,shellingham",
    "client": "aiohttp,urllib3",
    "cron": "cronsim",
    "server": "cryptography,httptools,prometheus_client,uvloop",
    "postgres": "psycopg,psycopg_binary",
    "spark": "pyspark,pyarrow,py4j",
    "rabbitmq": "pika",
}
ROOT = Path(__file__).parents[2]
# What each command needs to be given to get as far as opening its database.
ARGUMENTS = {
    "work": "app --time-limit 10ms",
    **dict.fromkeys(("ack", "nack", "release", "requeue", "reject", "extend"), "AAAAAAAAAAA"),
    **dict.fromkeys(("purge", "pause", "resume", "delete", "pop", "tail", "peek", "browse"), "q"),
    "push": "q 1", "why": "q e535afea-2e00-8000-8001-000000000000", "search": "q text",
    "dlq show": "q 1", "dlq redrive": "q --all", "dlq purge": "q --all", "seek": "q g end",
    "configure": "q retry_limit=1", "backup": "copy.db", "jobs show": "x", "jobs interrupt": "x",
}  # fmt: skip
OF_FILES = ("keys", "token", "migrate")  # commands that name a URL, and work on databases alone


def commands(group: Any = None, name: str = "") -> Iterator[tuple[str, Any]]:
    group = group or typer.main.get_command(app)
    for word, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{name}{word} ")
        else:
            yield name + word, command


def everywhere() -> list[str]:
    """The commands that work on any database."""
    return [
        name
        for name, command in commands()
        if any("--url" in option.opts for option in command.params)
        and name.split()[0] not in OF_FILES
    ]


APP = """
from ackflow.worker import Worker
worker = Worker("app.db")
worker.task("mail")(print)
"""


def without(tmp_path: Path, hidden: str, lines: list[str]) -> list[tuple[int, str]]:
    (tmp_path / "app.py").write_text(APP)
    env = {**os.environ, "XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("without.py")), hidden],
        input="\n".join(lines), capture_output=True, text=True, env=env, cwd=tmp_path, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    for line, (_, _, trace) in zip(lines, answers, strict=True):
        assert not trace, (line, trace)
    return [(code, output) for code, output, _ in answers]


@pytest.mark.parametrize("extra", ["none", "client", "postgres", "spark", "rabbitmq"])
def test_without_the_command_line_it_says_so(extra: str, tmp_path: Path) -> None:
    """With no extra, and with each that does not bring the command line."""
    program = tmp_path / "start.py"
    program.write_text(
        (ROOT / "tests/cli/without.py").read_text().partition("import typer")[0]
        + "sys.argv[1:] = ['queues']\nfrom ackflow.__main__ import main\nmain()\n"
    )
    hidden = ",".join(packages for name, packages in EXTRAS.items() if name != extra)
    done = subprocess.run([sys.executable, str(program), hidden], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("ackflow: the command line needs more: pip install ackflow[cli")


@pytest.mark.parametrize("extra", ["cli", "client", "server", "postgres", "spark", "rabbitmq"])
def test_every_command_says_which_extra_it_needs(extra: str, tmp_path: Path) -> None:
    missing = EXTRAS.keys() - {"cli", extra}
    asked: list[tuple[str, str]] = []
    assert len(everywhere()) > 20
    for command in everywhere() if extra == "cli" else ["queues", "push"]:
        line = f"{command} {ARGUMENTS.get(command, '')}"
        if "client" in missing:
            asked.append((f"{line} --url http://127.0.0.1:1", "client"))
        if "postgres" in missing:
            asked.append((f"{line} --url postgresql://127.0.0.1:1/x", "postgres"))
    (tmp_path / "data" / "client").mkdir(parents=True)
    (tmp_path / "data" / "client" / "users.csv").write_text("user_id\n")
    if "server" in missing:
        asked.append(("serve", "server"))
    if "spark" in missing:
        asked.append(("pipeline run --data data --out out", "spark"))
        asked.append(("pipeline run --data data --out out --stage spark", "spark"))
    if "server" in missing and "spark" in missing:
        asked.append(("pipeline status --out out --prometheus", "server"))
    hidden = ",".join(EXTRAS[name] for name in missing)
    answers = without(tmp_path, hidden, [line for line, _ in asked])
    for (line, needed), (code, output) in zip(asked, answers, strict=True):
        assert code in (1, 2), (line, output)
        assert f"ackflow[{needed}]" in output, (line, output)


def test_every_command_shows_its_help_and_works_on_a_file_with_the_command_line_alone(
    tmp_path: Path,
) -> None:
    hidden = ",".join(packages for name, packages in EXTRAS.items() if name != "cli")
    lines = [f"{command} --help" for command, _ in commands()]
    lines += [f"{c} {ARGUMENTS.get(c, '')} --url file.db" for c in everywhere() if c not in ("tail", "top", "bench")]  # fmt: skip
    for line, (code, output) in zip(lines, without(tmp_path, hidden, lines), strict=True):
        assert code == 0 or "--help" not in line, (line, output)
        assert "pip install" not in output, (line, output)


@pytest.mark.soak
@pytest.mark.parametrize("extra", ["", "cli", "server", "client,cli"])
def test_an_environment_with_one_extra_says_what_it_lacks(extra: str, tmp_path: Path) -> None:
    """The same with real packages: each in a virtual environment of its own."""
    venv.create(tmp_path / "venv", with_pip=True)
    run = str(tmp_path / "venv" / "bin" / "python")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(
        [run, "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"),
         f"{ROOT}[{extra}]" if extra else str(ROOT)], check=True, env=env,
    )  # fmt: skip

    def told(*arguments: str) -> str:
        done = subprocess.run(
            [run, "-m", "ackflow", *arguments], capture_output=True, text=True, env=env, timeout=60
        )
        assert "Traceback" not in done.stderr
        return done.stderr

    if not extra:
        assert "ackflow[cli" in told("queues")
        return
    assert ("ackflow[client]" in told("queues", "--url", "http://127.0.0.1:1")) == (
        "client" not in extra
    )
    assert "ackflow[postgres]" in told("queues", "--url", "postgresql://127.0.0.1/x")
    if extra != "server":
        assert "ackflow[server]" in told("serve")
