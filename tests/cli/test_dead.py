"""Dead letters: find, explain, send back, throw away."""

import time

import pytest

from .conftest import Cli


def test_dead_letters_are_listed_newest_first(dead: Cli) -> None:
    rows = dead("dlq", "list").splitlines()
    assert rows[0].split() == ["number", "queue", "group", "died", "cause", "reason", "data"]
    assert len(rows) == 5
    assert "not an order" in rows[1]
    assert "rejected" in rows[1]
    assert " ago failed timeout" in " ".join(rows[2].split())
    reasons = [letter["reason"] for letter in dead.json("dlq", "list", "orders")]
    assert reasons == ["not an order", "timeout", *["card declined: try later"] * 2]


def test_the_list_follows_its_filters(dead: Cli) -> None:
    assert len(dead.json("dlq", "list", "orders", "--error", "card")) == 2
    assert len(dead.json("dlq", "list", "orders", "--kind", "rejected")) == 1
    assert len(dead.json("dlq", "list", "orders", "-g", "billing", "--since", "1h")) == 3
    assert dead.json("dlq", "list", "orders", "--until", "1h") == []


def test_a_list_that_is_cut_says_so(dead: Cli) -> None:
    assert "the newest 2 of 4" in dead.run("dlq", "list", "-n", 2).stderr


def test_no_dead_letters_is_an_answer(cli: Cli) -> None:
    assert cli("dlq", "list") == "no dead letters\n"
    assert cli.json("dlq", "summary") == []
    assert "no queue" in cli.fails(3, "dlq", "list", "nothing")


def test_the_summary_tells_what_they_died_of(dead: Cli) -> None:
    first = dead("dlq", "summary").splitlines()[1]
    assert first.split()[:3] == ["2", "orders", "billing"]
    assert "card declined" in first
    assert [line["count"] for line in dead.json("dlq", "summary", "orders")] == [2, 1, 1]
    assert len(dead.json("dlq", "summary", "orders", "-g", "-")) == 1


def test_a_dead_letter_is_shown_whole_by_number_or_id(dead: Cli) -> None:
    letter = dead.q.dead_letters("orders", group="billing").items[0]
    output = dead("dlq", "show", "orders", letter.id)
    assert "reason      timeout" in output
    assert "attempts    1 delivered, 1 failed, last by tester" in output
    assert '{\n  "id": 3\n}\n' in output
    assert "reason      timeout" in dead("dlq", "show", "orders", letter.message_id)
    (told,) = dead.json("dlq", "show", "orders", letter.id)
    assert (told["kind"], told["data"]) == ("failed", {"id": 3})


def test_a_dead_letter_that_is_not_there_is_told(dead: Cli) -> None:
    assert "no dead letter 999" in dead.fails(3, "dlq", "show", "orders", 999)
    (alive,) = dead.q.push("orders", 1)
    assert "is not a dead letter" in dead.fails(3, "dlq", "show", "orders", alive)
    assert "give numbers" in dead.fails(2, "dlq", "show", "orders")


# redrive


def test_some_are_sent_back_by_number_or_id(dead: Cli) -> None:
    last, first = dead.q.dead_letters("orders", group="billing").items[::2]
    assert "2 dead letters redriven to orders" in dead(
        "dlq", "redrive", "orders", last.id, first.message_id, "-g", "billing"
    )
    again = dead.q.pop("orders", group="billing", batch=9)
    assert [m.data["id"] for m in again] == [1, 3]


def test_those_that_match_are_sent_back(dead: Cli) -> None:
    assert dead.json("dlq", "redrive", "orders", "--error", "card") == [{"redriven": 2}]
    assert dead.q.dead_letters("orders").total == 2


def test_all_are_sent_back_or_to_another_queue(dead: Cli) -> None:
    assert "4 dead letters redriven to repair" in dead(
        "dlq", "redrive", "orders", "--all", "--to", "repair"
    )
    assert dead.q.queue_stats("repair").messages == 4


def test_a_dry_run_changes_nothing(dead: Cli) -> None:
    output = dead("dlq", "redrive", "orders", "--group", "billing", "--dry-run")
    assert output == "3 dead letters would be redriven to orders\n"
    assert dead.json("dlq", "redrive", "orders", "--all", "-n", 2, "--dry-run") == [
        {"would_redrive": 2}
    ]
    assert dead.q.dead_letters("orders").total == 4


def test_a_rate_is_kept(dead: Cli) -> None:
    started = time.monotonic()
    assert "4 dead letters redriven to orders" in dead(
        "dlq", "redrive", "orders", "--all", "--rate", 10
    )
    assert 0.25 < time.monotonic() - started < 5


def test_what_dies_again_meanwhile_is_left_alone(dead: Cli) -> None:
    assert "2 dead letters" in dead("dlq", "redrive", "orders", "--all", "--limit", 2)
    numbers = [letter.id for letter in dead.q.dead_letters("orders").items]
    for message in dead.q.pop("orders", group="billing", batch=9):
        message.nack("again")
    dead("dlq", "redrive", "orders", "--all", "--limit", 2, "--rate", 1000)
    left = [letter.id for letter in dead.q.dead_letters("orders").items]
    assert not set(numbers) & set(left)


def test_redrive_without_a_choice_is_refused(dead: Cli) -> None:
    assert "give numbers" in dead.fails(2, "dlq", "redrive", "orders")
    assert "not both" in dead.fails(2, "dlq", "redrive", "orders", "1", "--error", "x")
    assert dead.q.dead_letters("orders").total == 4


def test_nothing_to_send_back_exits_with_3(dead: Cli) -> None:
    assert dead.run("dlq", "redrive", "orders", "--error", "nobody").exit_code == 3
    assert "no dead letter 77" in dead.fails(3, "dlq", "redrive", "orders", 77)


# purge


def test_purge_throws_away_what_is_chosen(dead: Cli) -> None:
    output = dead("dlq", "purge", "orders", "--kind", "rejected", "--yes")
    assert output == "1 dead letter deleted\n"
    assert dead.json("dlq", "purge", "orders", "--all", "-y") == [{"purged": 3}]


def test_purge_asks_and_refuses_where_nobody_can_answer(dead: Cli) -> None:
    told = dead.fails(1, "dlq", "purge", "orders", "--all")
    assert "Delete 4 dead letters of orders permanently?" in told
    assert "--yes" in told
    assert dead.q.dead_letters("orders").total == 4


@pytest.mark.parametrize("verb", ["redrive", "purge"])
def test_a_wrong_queue_is_told(cli: Cli, verb: str) -> None:
    cli.q.push("orders", 1)
    assert "did you mean 'orders'" in cli.fails(3, "dlq", verb, "order", "--all")
