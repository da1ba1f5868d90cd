"""Pushing, popping and settling from the command line."""

import json
from pathlib import Path

import pytest

from .conftest import Cli

pytestmark = pytest.mark.every_store  # settling by token, waiting and streams differ over HTTP

# push


def test_arguments_are_pushed_as_json_and_their_ids_are_told(cli: Cli) -> None:
    output = cli("push", "orders", '{"id": 1}', "[2]", "3")
    ids = output.splitlines()[:3]
    assert output.endswith("3 messages pushed to orders\n")
    popped = cli.q.pop("orders", batch=9)
    assert [m.data for m in popped] == [{"id": 1}, [2], 3]
    assert [m.id for m in popped] == ids


def test_json_is_kept_byte_for_byte(cli: Cli) -> None:
    cli("push", "orders", '{ "price": 1.10,  "big": 123456789012345678901234567890 }')
    assert (
        cli.q.pop("orders")[0].raw == b'{ "price": 1.10,  "big": 123456789012345678901234567890 }'
    )


def test_programs_get_a_line_for_each_message(cli: Cli) -> None:
    lines = cli.json("push", "orders", "1", "2")
    assert [line["duplicate"] for line in lines] == [False, False]
    assert [line["id"] for line in lines] == [m.id for m in cli.q.pop("orders", batch=2)]


def test_what_is_piped_in_is_pushed_line_by_line(cli: Cli) -> None:
    assert "2 messages pushed" in cli("push", "orders", input='{"a": 1}\n\n"zwölf"')
    assert [m.data for m in cli.q.pop("orders", batch=9)] == [{"a": 1}, "zwölf"]


def test_a_long_file_is_pushed_in_parts(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "orders.jsonl"
    path.write_text("".join(f'{{"n": {n}, "pad": "{"x" * 60}"}}\r\n' for n in range(25_000)))
    assert cli("push", "orders", "--file", path) == "25,000 messages pushed to orders\n"
    assert cli.q.queue_stats("orders").messages == 25_000
    assert cli.q.peek("orders", limit=1)[0].raw.endswith(b'"}')


def test_a_line_that_is_not_json_is_named_and_what_came_before_is_pushed(cli: Cli) -> None:
    told = cli.fails(2, "push", "orders", input="1\n2\nthree\n4\n")
    assert "line 3 of stdin is not valid JSON: 'three'" in told
    assert "2 messages before it were pushed" in told
    assert "--raw" in told
    assert cli.q.queue_stats("orders").messages == 2


def test_a_document_of_several_lines_wants_whole(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "order.json"
    path.write_text(json.dumps({"id": 1}, indent=2))
    told = cli.fails(2, "push", "orders", "-f", path)
    assert "--whole" in told
    assert "nothing was pushed" in told
    cli("push", "orders", "-f", path, "--whole")
    assert cli.q.pop("orders")[0].data == {"id": 1}


def test_raw_takes_text_as_it_is(cli: Cli) -> None:
    cli("push", "orders", "--raw", "hello", "{not json")
    cli("push", "orders", "--raw", input=b"\xff\x00\nplain\n")
    got = [m.data for m in cli.q.pop("orders", batch=9)]
    assert got == [b"hello", b"{not json", b"\xff\x00", b"plain"]


def test_push_takes_partition_priority_delay_headers_and_a_transaction_id(cli: Cli) -> None:
    cli(
        "push", "orders", "1", "-p", "eu", "--priority", 3, "-H", "source=web", "-H", "a=b=c",
        "--transaction-id", "order-1",
    )  # fmt: skip
    (message,) = cli.q.pop("orders")
    assert (message.partition, message.priority) == ("eu", 3)
    assert message.headers == {"source": "web", "a": "b=c"}
    assert message.transaction_id == "order-1"
    cli("push", "late", "1", "--delay", "2h")
    assert cli.q.pop("late") == ()
    again = cli("push", "orders", "1", "-p", "eu", "--transaction-id", "order-1")
    assert "including 1 duplicate" in again


def test_the_same_input_under_the_same_key_is_pushed_once(cli: Cli) -> None:
    lines = "".join(f"{n}\n" for n in range(12_000))
    cli("push", "orders", "--key", "import-7", input=lines)
    cli("push", "orders", "--key", "import-7", input=lines)
    assert cli.q.queue_stats("orders").messages == 12_000
    assert "used before" in cli.fails(1, "push", "orders", "--key", "import-7", "1")


def test_a_repeat_under_a_key_is_told(cli: Cli) -> None:
    key = ["push", "orders", "--key", "k"]
    first = cli.json(*key, "1", "2")
    assert [one["duplicate"] for one in first] == [False, False]
    told = cli(*key, "1", "2").splitlines()
    assert told == [
        *(one["id"] for one in first),
        "nothing added: the same 2 messages were pushed to orders with this key before",
    ]
    assert cli.json(*key, "1", "2") == [{**one, "duplicate": True} for one in first]
    assert "1 message pushed to orders\n" in cli("push", "orders", "--key", "other", "1")


def test_what_was_broken_off_goes_on_under_its_key(cli: Cli) -> None:
    lines = [f"{n}\n" for n in range(12_000)]
    cli("push", "orders", "--key", "k", input="".join(lines[:10_000]))
    told = cli("push", "orders", "--key", "k", input="".join(lines))
    assert told == "12,000 messages pushed to orders, including 10,000 duplicates\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["{bad"], "message 1 is not valid JSON"),
        (["1", "--priority", "3000000000"], "priority"),
        (["1", "--delay", "soon"], "is not a duration"),
        (["1", "--header", "novalue"], "NAME=VALUE"),
        (["1", "2", "--transaction-id", "x"], "single message"),
        (["1", "--file", "x"], "not both"),
        (["--file", "/no/such/file"], "cannot read /no/such/file"),
    ],
)
def test_push_tells_what_is_wrong(on_file: Cli, arguments: list[str], told: str) -> None:
    assert told in on_file.fails(2, "push", "orders", *arguments)
    assert on_file.q.queues() == []


def test_a_queue_without_a_name_is_refused(on_file: Cli) -> None:
    assert "queue must have 1 to 255 bytes" in on_file.fails(2, "push", "", "1")


def test_empty_input_pushes_nothing(cli: Cli) -> None:
    assert cli.run("push", "orders", input="\n").exit_code == 3


# pop


def test_pop_prints_messages_and_the_token_that_settles_them(cli: Cli) -> None:
    cli.q.push("orders", {"id": 1}, partition="eu")
    output = cli("pop", "orders")
    token = output.split()[-1]
    assert '{"id":1}' in output
    assert "eu, pushed" in output
    assert cli("ack", token) == "1 message acknowledged\n"
    assert cli.q.group_stats("orders").counts.done == 1


def test_pop_for_programs_tells_everything_of_a_delivery(cli: Cli) -> None:
    cli.q.push("orders", [{"id": 1}])
    cli.q.push("orders", b"\xff")
    cli.q.push("orders", b"text")
    first, second, third = cli.json(
        "pop", "orders", "-n", 9, "--group", "billing", "--consumer", "me"
    )
    assert first["data"] == {"id": 1}
    assert second["base64"] == "/w=="
    assert third["text"] == "text"
    assert (first["group"], first["deliveries"], first["redelivered"]) == ("billing", 1, False)
    (lease,) = cli.q.leases("orders")
    assert (lease.consumer, lease.token) == ("me", first["token"])


def test_an_empty_pop_exits_with_3(cli: Cli) -> None:
    cli.q.configure("orders")
    result = cli.run("pop", "orders")
    assert (result.exit_code, result.stdout, result.stderr) == (3, "", "no messages\n")
    assert cli.run("--json", "pop", "orders").output == ""


def test_a_pop_of_a_queue_that_does_not_exist_says_so_and_creates_nothing(cli: Cli) -> None:
    cli.q.push("orders", 1)
    told = cli.fails(3, "pop", "ordres", "--wait", "60")
    assert "there is no queue 'ordres'; did you mean 'orders'?" in told
    assert '"queue_not_found"' in cli.fails(3, "pop", "ordres", "--json")
    assert [queue.name for queue in cli.q.queues()] == ["orders"]
    assert cli.fails(3, "pop", "jobs", "--create") == "no messages\n"
    assert [queue.name for queue in cli.q.queues()] == ["jobs", "orders"]


def test_an_empty_pop_says_what_holds_it_back(cli: Cli) -> None:
    cli.q.push("orders", 1)
    cli.q.pause("orders")
    assert "orders is paused" in cli.run("pop", "orders").stderr


def test_pop_with_ack_leaves_nothing_leased(cli: Cli) -> None:
    cli.q.push("orders", [1, 2, 3])
    assert cli("pop", "orders", "--batch", 2, "--ack", "--data") == "1\n2\n"
    counts = cli.q.group_stats("orders").counts
    assert (counts.done, counts.leased, counts.ready) == (2, 0, 1)


def test_pop_waits_as_long_as_it_is_told(cli: Cli) -> None:
    assert cli.run("pop", "orders", "--wait", "50ms").exit_code == 3


def test_pop_takes_a_lease_time_and_a_partition(cli: Cli) -> None:
    cli.q.push("orders", 1, partition="eu")
    cli.q.push("orders", 2, partition="us")
    (got,) = cli.json("pop", "orders", "-p", "us", "--lease", "1h", "-n", 5)
    assert got["data"] == 2
    (lease,) = cli.q.leases("orders")
    assert (lease.expires_at - lease.acquired_at).total_seconds() == pytest.approx(3600, abs=5)


def test_escapes_in_a_payload_do_not_reach_the_terminal(cli: Cli) -> None:
    cli.q.push("orders", "\x1b[2Jboo\x9b1m".encode())
    output = cli("peek", "orders")
    assert "\x1b" not in output
    assert "\x9b" not in output
    assert "\\x1b[2Jboo" in output


# settle


def test_messages_of_a_lease_are_settled_by_id(cli: Cli) -> None:
    cli.q.push("orders", [1, 2, 3, 4, 5])
    batch = cli.q.pop("orders", batch=5)
    token = batch.token
    assert "1 message acknowledged" in cli("ack", token, batch[0].id)
    assert "1 message nacked" in cli("nack", token, batch[1].id, "-r", "no stock", "--delay", "1h")
    assert "1 message rejected" in cli("reject", token, batch[2].id, "--reason", "bad")
    assert "1 message released" in cli("release", token, batch[3].id)
    assert "1 message requeued" in cli("requeue", token, batch[4].id)
    assert "no stock" in cli("why", "orders", batch[1].id)
    assert [d.reason for d in cli.q.dead_letters("orders").items] == ["bad"]


def test_a_repeated_ack_is_told_as_such(cli: Cli) -> None:
    cli.q.push("orders", 1)
    batch = cli.q.pop("orders")
    cli("ack", batch.token, batch[0].id)
    assert "1 already settled" in cli("ack", batch.token, batch[0].id)
    (told,) = cli.json("ack", batch.token, batch[0].id)
    assert (told["settled"], told["noop"], told["refused"]) == (0, 1, [])


def test_another_verb_on_a_settled_message_is_refused(cli: Cli) -> None:
    cli.q.push("orders", 1)
    batch = cli.q.pop("orders")
    cli("ack", batch.token, batch[0].id)
    result = cli.run("nack", batch.token, batch[0].id)
    assert result.exit_code == 1
    assert "already settled" in result.stderr


def test_the_last_failure_is_told_to_have_made_a_dead_letter(cli: Cli) -> None:
    cli.q.group("orders", "g", retry_limit=1)
    cli.q.push("orders", 1)
    assert "became dead letters" in cli("nack", cli.q.pop("orders", group="g").token)


def test_a_lease_is_extended(cli: Cli) -> None:
    cli.q.push("orders", 1)
    batch = cli.q.pop("orders", lease_seconds=60)
    (told,) = cli.json("extend", batch.token, "--by", "1h")
    assert told["token"] == batch.token
    assert "leased until" in cli("extend", batch.token)


@pytest.mark.parametrize("verb", ["ack", "nack", "release", "requeue", "reject", "extend"])
def test_what_is_no_token_is_refused(on_file: Cli, verb: str) -> None:
    assert "'nonsense' is not a lease token" in on_file.fails(2, verb, "nonsense")


@pytest.mark.parametrize("verb", ["ack", "nack", "release", "requeue", "reject", "extend"])
def test_a_token_that_nobody_has_is_refused(cli: Cli, verb: str) -> None:
    told = cli.fails(1, verb, "AAAAAAAAAAA")
    assert told.startswith("ackflow: ")
    assert "lease" in told
