"""Tables on terminals of every width: columns are left out, numbers and names never cut."""

import io
import os
import re
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import typer

import ackflow
from ackflow.cli import output
from ackflow.cli.main import app

from .test_watch import on_terminal

# each command, and the columns without which its rows could not be told apart
TABLES = {
    ("queues",): ["queue"],
    ("queues", "orders"): ["group"],
    ("groups",): ["queue", "group"],
    ("groups", "orders", "billing"): ["partition"],
    ("leases",): ["queue", "token"],
    ("browse", "orders", "-n", "5", "-g", "billing"): ["id"],
    ("dlq", "list"): ["number", "queue"],
    ("dlq", "summary"): ["count", "queue"],
    ("configure", "orders"): ["option", "value"],
    ("token", "list"): ["name"],
    ("top", "-i", "100ms", "--count", "1"): ["queue", "group"],
}
MAY_BE_CUT = {"data", "reason", "error"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database with a hundred thousand messages, leases, dead letters, pauses and tokens."""
    path = str(tmp_path_factory.mktemp("tables") / "shop.db")
    with ackflow.connect(path, upkeep=False, consumer="worker-17.eu-north") as q:
        q.group("orders", "billing", retry_limit=1)
        q.push("orders", ["x"] * 50_000)
        q.push("orders", [{"total": 1234567890}] * 50_000, partition="eu-north")
        q.configure("orders", retry_limit=5, lease_seconds=600)
        q.group("orders", "analytics")
        q.ack(q.pop("orders", group="analytics", batch=10_000))
        q.pop("orders", group="analytics", batch=1_000)
        q.push("invoices.europe", 1)
        q.pause("invoices.europe")
        for message in q.pop("orders", group="billing", batch=5):
            message.nack("card declined: try again later with another card")
    with redirect_stdout(io.StringIO()):
        command(path, "token", "create", "reader", "--grant", "read-only:orders.*")
    return path


def command(url: str, *arguments: str) -> None:
    typer.main.get_command(app).main(["--url", url, *arguments], "ackflow", standalone_mode=False)


def drawn(width: int, draw: Callable[[], None]) -> list[str]:
    """The lines that are drawn on a terminal of this width, without colours."""
    screen = Terminal()
    before = os.environ["COLUMNS"]
    os.environ["COLUMNS"] = str(width)
    try:
        with redirect_stdout(screen):
            draw()
    finally:
        os.environ["COLUMNS"] = before
    return re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue()).splitlines()


@pytest.mark.parametrize(("arguments", "names"), TABLES.items(), ids=" ".join)
def test_no_number_and_no_name_is_cut_at_any_width(
    shop: str, arguments: tuple[str, ...], names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []  # what the command lays out, so that it runs once for all widths
    with monkeypatch.context() as recording:
        recording.setattr(output, "tabulate", lambda *table: given.extend(map(freeze, table)))
        command(shop, *arguments)
    whole = drawn(1000, lambda: output.tabulate(*given))
    known = re.split(r"\s{2,}", whole[0].strip())
    words = {word for line in whole for word in line.split()}
    for width in range(40, 201):
        lines = drawn(width, lambda: output.tabulate(*given))
        shown = [name for name in known if f" {name} " in f" {lines[0]} "]
        assert set(names) <= set(shown), (width, lines)
        left = ", ".join(name for name in known if name not in shown)
        note = f"not shown, the terminal is too narrow: {left}" if left else ""
        assert " ".join(lines[len(whole) :]).split() == note.split(), (width, lines)
        assert max(map(len, lines)) <= width, lines
        for word in " ".join(lines[1 : len(whole)]).split():
            cut = word.endswith("…") and MAY_BE_CUT & set(shown)
            assert cut or word in words, (width, word, lines)


def freeze(given: Any) -> Any:
    """Rows may be an iterator, which could be read once only."""
    return given if isinstance(given, output.Columns) else list(given)


def test_what_cannot_be_left_out_is_printed_whole(tmp_path: Path) -> None:
    name = "a-queue-with-a-name-that-is-wider-than-the-terminal"
    with ackflow.connect(tmp_path / "long.db", upkeep=False) as q:
        q.push(name, 1)
        q.pop(name, group="a-group-that-is-wide-as-well-1234567890")
    lines = drawn(40, lambda: command(str(tmp_path / "long.db"), "groups"))
    assert lines[1].split() == [name, "a-group-that-is-wide-as-well-1234567890"]


def test_a_real_terminal_of_50_columns_shows_whole_numbers_and_names(shop: str) -> None:
    for arguments in (["queues"], ["top", "-i", "100ms", "--count", "1"]):
        printed, code = on_terminal(shop, *arguments, until=b"never", columns=50)
        assert code == 0
        text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", " ", printed.decode())
        assert "invoices.europe" in text
        assert re.search(r"(?<![\d,])99,995\s", text), text
        assert "not shown, the terminal is too narrow:" in text
