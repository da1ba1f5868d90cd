"""`ackflow copy` and `ackflow migrate`."""

from pathlib import Path

import apsw
import pytest

import ackflow

from .conftest import Cli


@pytest.fixture
def places(tmp_path: Path) -> tuple[str, str]:
    one, other = str(tmp_path / "one.db"), str(tmp_path / "two.db")
    with ackflow.connect(one) as q:
        for name in ("orders", "bills"):
            q.push(name, [1, 2, 3])
            q.pop(name, group="g")
    return one, other


def test_a_dry_run_shows_what_would_be_copied(places: tuple[str, str]) -> None:
    shown = Cli(None).run("copy", *places, "--dry-run").stdout
    assert [line.split()[:4] for line in shown.splitlines()[1:3]] == [
        ["bills", "3", "0", "1"],
        ["orders", "3", "0", "1"],
    ]
    assert not Path(places[1]).exists()


def test_queues_are_copied_or_moved(places: tuple[str, str]) -> None:
    done = Cli(None).run("copy", *places, "orders", "--wait", "0")
    assert "orders: 3 messages and 0 dead letters copied, 1 leased message due" in done.stdout
    assert "orders: 1 leased by" in done.stderr
    refused = Cli(None).run("copy", *places, "orders")
    assert refused.exit_code == 2
    assert "exists at the target" in refused.stderr
    Cli(None).run("copy", *places, "bills", "--wait", "0", "--move", "--yes")
    with ackflow.connect(places[0]) as q:
        assert [(queue.name, queue.paused) for queue in q.queues()] == [("orders", True)]
    with ackflow.connect(places[1]) as q:
        assert [m.data for m in q.pop("bills", group="g", batch=9)] == [1, 2, 3]


def test_a_database_is_not_copied_to_itself(places: tuple[str, str]) -> None:
    assert "the same database" in Cli(None).run("copy", places[0], places[0]).stderr


def test_migrate_says_whether_a_migration_is_missing(places: tuple[str, str]) -> None:
    cli = Cli(places[0])
    assert "the newest that this version knows" in cli.run("migrate", "--check").stdout
    db = apsw.Connection(places[0])
    newest = db.pragma("user_version")
    db.pragma("user_version", newest - 1)
    db.close()
    missing = cli.run("migrate", "--check")
    assert missing.exit_code == 1
    assert f"would be migrated from schema {newest - 1} to {newest}" in missing.stdout
