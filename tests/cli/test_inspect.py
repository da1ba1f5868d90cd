"""Looking at queues, groups, leases and messages."""

import json
from datetime import UTC, datetime

import pytest

from ackflow.broker.broker import Broker
from ackflow.broker.core.admin import admin
from ackflow.broker.core.upkeep import sweeps as core_sweeps

from .conftest import Cli


def test_queues_are_listed_with_what_is_in_them(cli: Cli) -> None:
    cli.q.push("orders", [1, 2, 3])
    cli.q.push("bills", 1)
    cli.q.pop("orders", group="g")
    cli.q.pause("bills")
    head, bills, orders = cli("queues").splitlines()
    assert head.split()[:2] == ["queue", "stored"]
    assert bills.split()[:2] == ["bills", "1"]
    assert bills.endswith("paused")
    assert orders.split()[0] == "orders"
    names = {record["name"]: record for record in cli.json("queues")}
    assert names["orders"]["groups"][0]["counts"]["leased"] == 1
    assert names["orders"]["groups"][0]["lag"] == 3


def test_no_queues_is_an_answer(cli: Cli) -> None:
    assert cli("queues") == "no queues\n"
    assert cli.json("queues") == []


def test_one_queue_is_told_with_its_options_and_groups(cli: Cli) -> None:
    cli.q.configure("orders", max_wait_seconds=60)
    cli.q.push("orders", [1, 2])
    cli.q.pop("orders", group="billing")
    output = cli("queues", "orders")
    assert "orders: 2 messages stored" in output
    assert "max_wait_seconds=60" in output
    assert "billing" in output
    assert cli.json("queues", "orders")[0]["options"] == {"max_wait_seconds": 60.0}


def test_a_name_that_is_nearly_right_is_suggested(cli: Cli) -> None:
    cli.q.push("orders", 1)
    assert "did you mean 'orders'?" in cli.fails(3, "queues", "ordres")
    assert "did you mean" not in cli.fails(3, "queues", "xyz")


def test_groups_are_listed_for_a_queue_and_for_all(cli: Cli) -> None:
    cli.q.push("orders", [1, 2])
    cli.q.push("bills", 1)
    cli.q.pop("orders")[0].ack()
    cli.q.pop("bills", group="g")
    assert [row.split()[:2] for row in cli("groups").splitlines()[1:]] == [
        ["bills", "g"], ["orders", "-"],
    ]  # fmt: skip
    (told,) = cli.json("groups", "orders")
    assert told["counts"] | {"ready": 1, "done": 1, "pushed": 2} == told["counts"]


def test_a_group_is_told_partition_by_partition(cli: Cli) -> None:
    cli.q.push("orders", [1, 2], partition="eu")
    cli.q.push("orders", 3, partition="us")
    cli.q.pop("orders", partition="us")[0].ack()
    rows = [row.split()[:6] for row in cli("groups", "orders", "-").splitlines()[1:]]
    assert rows == [["eu", "2", "0", "0", "0", "0"], ["us", "0", "0", "0", "0", "1"]]
    assert [p["partition"] for p in cli.json("groups", "orders", "-")] == ["eu", "us"]
    assert "no group" in cli.fails(3, "groups", "orders", "nobody")


def test_leases_tell_who_holds_what_until_when(cli: Cli) -> None:
    assert cli("leases") == "no leases\n"
    cli.q.push("orders", [1, 2, 3])
    batch = cli.q.pop("orders", group="g", batch=2, consumer="worker-7")
    row = cli("leases", "orders").splitlines()[1]
    assert row.split()[:5] == ["orders", "g", "worker-7", "2", "2"]
    assert row.endswith(str(batch.token))
    assert cli.json("leases", "-g", "g")[0]["held"] == 2
    assert str(batch.token) in cli("leases", "orders", "-g", "g")


def test_sweeps_show_how_far_a_purge_is(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("sweeps") == "no sweeps\n"
    monkeypatch.setattr(core_sweeps, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(core_sweeps, "LANES_AT_ONCE", 1)
    for n in range(5):
        cli.q.push("orders", n, partition=f"p{n}")
    broker = cli.q.broker
    assert isinstance(broker, Broker)
    broker.writer.run(admin.purge, ("orders",), synced=True)
    assert cli("sweeps").splitlines()[1].split()[:5] == ["purge", "orders", "0", "5", "0"]
    cli.q.upkeep()
    (found,) = cli.json("sweeps")
    assert (found["lanes_done"], found["purged"]) == (5, 5)
    assert found["ended_at"] is not None


def test_leases_of_a_queue_that_is_not_there_are_refused(cli: Cli) -> None:
    assert "no queue" in cli.fails(3, "leases", "nothing")


# why


def test_why_tells_for_every_group(cli: Cli) -> None:
    (id,) = cli.q.push("orders", 1)
    assert "Not requested yet" in cli("why", "orders", id)
    cli.q.pop("orders", group="a")
    cli.q.pop("orders", group="b")[0].ack()
    output = cli("why", "orders", id)
    assert "a: Leased by tester until" in output
    assert "b: Done: acknowledged" in output
    assert [told["state"] for told in cli.json("why", "orders", id)] == ["leased", "acked"]
    assert cli("why", "orders", id, "-g", "b").startswith("b: Done")


def test_the_group_without_a_name_is_never_shown_by_its_inner_one(
    cli: Cli, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, third = cli.q.push("orders", [1, 2, 3])
    commands = [
        ["why", "orders", first],
        ["groups", "orders", "-"],
        ["seek", "orders", "-", "end", "--yes"],
        ["dlq", "list", "-g", "-"],
    ]
    told = "".join(cli.run(*c, *how).output for c in commands for how in ([], ["--json"]))
    assert "queue 'orders' was never popped without a group" in told
    (popped,) = cli.json("pop", "orders")
    told += str(popped)
    cli.q.pop("orders")[0].reject("no")
    commands += [
        ["why", "orders", second], ["leases"], ["queues"], ["queues", "orders"], ["groups"],
        ["dlq", "show", "orders", "1"], ["dlq", "list"], ["dlq", "summary"], ["top", "-i", "100ms"],
        ["peek", "orders"], ["peek", "orders", third], ["browse", "orders", "-g", "-"],
        ["configure", "orders", "-g", "-"], ["pause", "orders", "-g", "-"], ["doctor"],
        ["pop", "orders", "-g", "-"], ["resume", "orders", "-g", "-"],
        ["delete", "orders", "-g", "-", "--yes"],
    ]  # fmt: skip
    for command in commands:
        told += cli.run(*command).output
        lines = [json.loads(line) for line in cli.run(*command, "--json").stdout.splitlines()]
        told += str(lines)
        for line in lines if command[0] in ("why", "leases", "dlq", "top") else []:
            assert line.get("group", None) is None
        if command[0] == "groups":
            assert lines[0].get("name", lines[0].get("group")) is None
    assert "QUEUE_MODE" not in told + caplog.text


def test_why_of_a_dead_letter_says_how_to_send_it_back(dead: Cli) -> None:
    letter = dead.q.dead_letters("orders", group="billing").items[-1]
    output = dead("why", "orders", letter.message_id, "--group", "billing")
    assert "Dead since" in output
    assert "card declined" in output
    assert "Delivered once, failed once, last by tester." in output
    assert f"ackflow dlq redrive orders {letter.id}" in output


def test_why_of_what_was_never_there_exits_with_3(cli: Cli) -> None:
    result = cli.run("why", "nothing", "e535afea-2e00-8000-8001-000000000000")
    assert result.exit_code == 3
    assert "there is no queue" in result.stdout


def test_why_of_what_is_no_id_is_wrong_usage(cli: Cli) -> None:
    cli.q.push("orders", 1)
    assert "is not a message id" in cli.fails(2, "why", "orders", "42")


# messages


def test_peek_shows_what_comes_next_and_takes_nothing(cli: Cli) -> None:
    cli.q.push("orders", ["a", "b", "c"])
    cli.q.pop("orders")[0].ack()
    assert [row.split()[-1] for row in cli("peek", "orders", "-n", 1).splitlines()[1:]] == ['"b"']
    assert [m["data"] for m in cli.json("peek", "orders")] == ["b", "c"]
    assert [m["data"] for m in cli.json("peek", "orders", "-g", "new")] == ["a", "b", "c"]
    assert cli.q.group_stats("orders").counts.leased == 0


def test_peek_shows_single_messages_whole(cli: Cli) -> None:
    (id,) = cli.q.push("orders", {"text": "x" * 500})
    output = cli("peek", "orders", id)
    assert "x" * 500 in output
    assert f"{id}  orders/Default, priority 0, pushed" in output


def test_nothing_to_peek_at_exits_with_3(cli: Cli) -> None:
    cli.q.configure("orders")
    assert cli.run("peek", "orders").exit_code == 3
    assert "no queue" in cli.fails(3, "peek", "nothing")


def test_browse_shows_settled_messages_too_and_their_state(cli: Cli) -> None:
    cli.q.push("orders", ["a", "b", "c"])
    cli.q.pop("orders", group="g")[0].ack()
    cli.q.pop("orders", group="g")
    rows = cli("browse", "orders", "--group", "g").splitlines()[1:]
    assert [row.split()[-2:] for row in rows] == [
        ["settled", '"a"'], ["leased", '"b"'], ["ready", '"c"'],
    ]  # fmt: skip


def test_browse_goes_on_where_a_page_ended(cli: Cli) -> None:
    cli.q.push("orders", list(range(5)))
    result = cli.run("browse", "orders", "-n", 3)
    after = result.stderr.split()[-1]
    assert "--after" in result.stderr
    assert [m["data"] for m in cli.json("browse", "orders", "--after", after)] == [3, 4]
    *items, more = cli.json("browse", "orders", "-n", 3)
    assert len(items) == 3
    assert more == {"next": after}


def test_browse_takes_times_and_a_partition(cli: Cli) -> None:
    cli.q.push("orders", 1, partition="eu")
    cli.q.push("orders", 2, partition="us")
    assert [m["data"] for m in cli.json("browse", "orders", "-p", "us", "--since", "1h")] == [2]
    assert cli.run("browse", "orders", "--until", "2020-01-01").exit_code == 3
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    assert cli.run("browse", "orders", "--since", now).exit_code in (0, 3)


@pytest.mark.parametrize("time", ["yesterday", "12", "2026-13-01", "5x"])
def test_a_time_that_is_none_is_told(on_file: Cli, time: str) -> None:
    on_file.q.push("orders", 1)
    assert "is not a time" in on_file.fails(2, "browse", "orders", "--since", time)


def test_search_finds_a_text(cli: Cli) -> None:
    cli.q.push("orders", [{"name": "Ada"}, {"name": "Grace"}])
    assert [m["data"]["name"] for m in cli.json("search", "orders", "Ada")] == ["Ada"]
    assert cli.run("search", "orders", "Nobody").exit_code == 3
    assert "no queue" in cli.fails(3, "search", "nothing", "x")
