"""Changing queues and groups, and copying a database."""

from pathlib import Path

import pytest

import ackflow

from .conftest import Cli


def test_options_of_a_queue_are_set_and_shown(cli: Cli) -> None:
    result = cli.run("configure", "orders", "retry_limit=5", "backoff=[1, 5]", "keep_seconds=none")
    assert "queue orders created" in result.stderr
    options = cli.q.queue_stats("orders").options
    assert (options.retry_limit, options.backoff, options.keep_seconds) == (5, (1.0, 5.0), None)
    (told,) = cli.json("configure", "orders")
    assert (told["retry_limit"], told["keep_seconds"]) == (5, None)
    assert ["retry_limit", "5"] in [row.split() for row in cli("configure", "orders").splitlines()]


def test_options_of_a_group_are_set_and_shown(cli: Cli) -> None:
    cli(
        "configure",
        "orders",
        "-g",
        "billing",
        "ordering=ordered",
        "start=2020-01-01",
        "retry_limit=2",
    )
    settings = cli.q.group_stats("orders", "billing").settings
    assert (settings.ordering, settings.retry_limit) == ("ordered", 2)
    (told,) = cli.json("configure", "orders", "--group", "billing")
    assert (told["ordering"], told["retry_limit"]) == ("ordered", 2)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("lease_seconds=10m", 600),
        ("lease_seconds=45", 45),
        ("delay_seconds=500ms", 0.5),
        ("keep_seconds=7d", 604_800),
        ("keep_seconds=none", None),
        ("backoff=1,5,30", [1, 5, 30]),
        ("backoff=500ms, 5s, 1m", [0.5, 5, 60]),
        ("backoff=5s", [5]),
        ("backoff=[1,5.5]", [1, 5.5]),
        ('backoff=["1s",5]', [1, 5]),
        ("backoff=none", []),
        ("namespace=10m", "10m"),
    ],
)
def test_durations_of_options_have_units(on_file: Cli, setting: str, value: object) -> None:
    (told,) = on_file.json("configure", "orders", setting)
    assert told[setting.partition("=")[0]] == value


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("lease_seconds=10x", "lease_seconds: '10x' is not a duration"),
        ("backoff=1,soon", "backoff: 'soon' is not a duration"),
        ("retrylimit=5", "unknown option 'retrylimit'; the options are"),
        ("retry_limit", "an option must be NAME=VALUE"),
        ("retry_limit=many", "retry_limit must be an integer"),
        ("keep_seconds=-1", "keep_seconds: '-1' is not a duration"),
    ],
)
def test_an_option_that_is_wrong_is_told(on_file: Cli, setting: str, told: str) -> None:
    on_file.q.configure("orders")
    assert told in on_file.fails(2, "configure", "orders", setting)


def test_showing_the_options_of_nothing_makes_nothing(cli: Cli) -> None:
    assert "no queue" in cli.fails(3, "configure", "nothing")
    assert cli.q.queues() == []


def test_a_queue_is_paused_and_resumed(cli: Cli) -> None:
    cli.q.push("orders", 1)
    assert cli("pause", "orders") == "orders is paused\n"
    assert cli.q.pop("orders") == ()
    assert cli.json("resume", "orders") == [{"queue": "orders", "group": None, "paused": False}]
    assert len(cli.q.pop("orders", group="g")) == 1
    assert "group g of orders is paused" in cli("pause", "orders", "-g", "g")
    assert "no group" in cli.fails(3, "pause", "orders", "-g", "nobody")
    assert "no queue" in cli.fails(3, "resume", "nothing")


def test_a_group_is_moved(cli: Cli) -> None:
    cli.q.push("orders", [1, 2, 3])
    cli.q.ack(cli.q.pop("orders", group="g", batch=3))
    assert "moved to start in 1 lane" in cli("seek", "orders", "g", "start", "--yes")
    assert len(cli.q.peek("orders", group="g")) == 3
    cli("seek", "orders", "g", "end", "-y")
    assert cli.q.peek("orders", group="g") == []
    assert cli.json("seek", "orders", "g", "--sequence", 1, "-y") == [{"lanes": 1}]
    assert [m.data for m in cli.q.peek("orders", group="g")] == [2, 3]
    cli("seek", "orders", "g", "1h", "-y")
    assert len(cli.q.peek("orders", group="g")) == 3


def test_seek_tells_what_is_wrong(cli: Cli) -> None:
    cli.q.push("orders", 1)
    cli.q.pop("orders", group="g")
    assert "--yes" in cli.fails(1, "seek", "orders", "g", "end")
    assert "give a position" in cli.fails(2, "seek", "orders", "g")
    assert "is not a time" in cli.fails(2, "seek", "orders", "g", "beginning", "-y")
    assert "no group" in cli.fails(3, "seek", "orders", "nobody", "end", "-y")
    assert cli.q.group_stats("orders", "g").counts.leased == 1


def test_purge_removes_all_messages_when_agreed(cli: Cli) -> None:
    cli.q.push("orders", [1, 2], partition="eu")
    cli.q.push("orders", 3)
    assert "Remove all messages of orders (3 messages)" in cli.fails(1, "purge", "orders")
    assert cli("purge", "orders", "-p", "eu", "--yes") == "2 messages removed from orders\n"
    assert cli.json("purge", "orders", "-y") == [{"purged": 1}]
    assert "no queue" in cli.fails(3, "purge", "nothing", "-y")


def test_delete_removes_a_queue_a_group_or_messages(cli: Cli) -> None:
    ids = cli.q.push("orders", [1, 2])
    cli.q.pop("orders", group="g")
    assert "Delete the queue orders with 2 messages" in cli.fails(1, "delete", "orders")
    assert "1 message of orders deleted" in cli("delete", "orders", ids[0], "--yes")
    assert "not found in queue" in cli.fails(3, "delete", "orders", ids[0], "-y")
    assert "group g of orders is deleted" in cli("delete", "orders", "-g", "g", "-y")
    assert "no group" in cli.fails(3, "delete", "orders", "-g", "g", "-y")
    assert "not both" in cli.fails(2, "delete", "orders", ids[1], "-g", "g", "-y")
    assert "queue orders is deleted" in cli("delete", "orders", "-y")
    assert "no queue" in cli.fails(3, "delete", "orders", "-y")


def test_a_backup_is_a_database(on_file: Cli, tmp_path: Path) -> None:
    on_file.q.push("orders", [1, 2])
    target = tmp_path / "copy.db"
    assert f"copied to {target}" in on_file("backup", target)
    with ackflow.connect(target, upkeep=False) as copy:
        assert copy.queue_stats("orders").messages == 2
    assert "exists already" in on_file.fails(1, "backup", target)
    assert "does not exist" in on_file.fails(1, "backup", tmp_path / "no" / "copy.db")
    assert not list(tmp_path.glob("*.part"))


def test_a_backup_of_a_server_is_made_where_its_file_is(cli: Cli, tmp_path: Path) -> None:
    if cli.url and cli.url.startswith("http"):
        told = cli.fails(2, "backup", tmp_path / "copy.db")
        assert "where the file is" in told
