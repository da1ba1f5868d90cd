"""The examples of the Queen dialect, as they are typed into a shell, against a real server."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from .conftest import Process, at_port
from .queen_calls import Queen

Start = Callable[..., Process]
HERE = Path(__file__).parent
PORT = 6632


def examples() -> dict[str, list[str]]:
    """The commands of each example, as they are written."""
    found: dict[str, list[str]] = {}
    for line in (HERE / "data" / "queen_examples.txt").read_text().splitlines():
        if line.startswith("# "):
            commands = found.setdefault(line[2:], [])
        elif line.startswith("curl "):
            commands.append(line)
        else:
            commands[-1] += "\n" + line
    return found


EXAMPLES = examples()


@pytest.fixture
def server(start_process: Start) -> Iterator[Process]:
    with at_port(PORT, start_process) as server:
        yield server


@pytest.fixture
def queen(server: Process) -> Iterator[Queen]:
    with httpx.Client(base_url=server.url, timeout=30) as http:
        yield Queen(http)


def run(server: Process, command: str, **written: str) -> tuple[int, Any]:
    """Run one command; `written` are put in the place of the words they are named by."""
    command = command.replace(f"localhost:{PORT}", f"localhost:{server.port}")
    for word, given in written.items():
        command = command.replace(word.replace("_", "-"), given)
    done = subprocess.run(
        ["bash", "-c", command + r" -sS -w '\n%{http_code}'"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    body, _, status = done.stdout.rpartition("\n")
    return int(status), json.loads(body) if body else None


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_command_is_understood_as_it_is_written(server: Process, name: str) -> None:
    for command in EXAMPLES[name]:
        status, _ = run(server, command)
        assert status in (200, 204)


def test_events_are_popped_and_acked_at_once(server: Process, queen: Queen) -> None:
    (command,) = EXAMPLES["pop and ack at once"]
    queen.push("events", *range(12))
    status, answer = run(server, command)
    assert (status, [m["data"] for m in answer["messages"]]) == (200, list(range(10)))
    assert [m["data"] for m in run(server, command)[1]["messages"]] == [10, 11]
    assert run(server, command) == (204, None)


def test_a_batch_is_acked_and_nacked(server: Process, queen: Queen) -> None:
    (command,) = EXAMPLES["ack in batches"]
    for n in (1, 2):
        queen.push("orders", n, transactionId=f"tx-{n}", partition=f"p{n}")
    popped = queen.pop("orders", batch=2, partitions=2, consumerGroup="workers")
    homes = {f"partition_uuid_{m['data']}": m["partitionId"] for m in popped}
    status, answers = run(server, command, **homes)
    assert status == 200
    assert [(a["index"], a["transactionId"], a["success"], a["message"]) for a in answers] == [
        (0, "tx-1", True, "acknowledged"),
        (1, "tx-2", True, "failed_retry"),
    ]
    (again,) = queen.pop("orders", batch=2, partitions=2, consumerGroup="workers")
    assert (again["data"], again["retryCount"]) == (2, 1)


def test_a_lease_is_extended(server: Process, queen: Queen) -> None:
    (command,) = EXAMPLES["extend a lease"]
    assert run(server, command)[1]["success"] is False
    queen.push("orders", 1)
    (message,) = queen.pop("orders", leaseSeconds=5)
    status, answer = run(server, command.replace("LEASE_ID", message["leaseId"]))
    assert (status, answer["success"]) == (200, True)


def test_dead_letters_are_listed_and_filtered(server: Process, queen: Queen) -> None:
    everything, of_workers, of_january = EXAMPLES["dead letters"]
    for group in ("workers", "others"):
        queen.push("orders", {"orderId": "12345"}, transactionId="tx-123-" + group)
        for message in queen.pop("orders", batch=9, consumerGroup=group):
            queen.ack(message, "dlq", error="Processing failed: invalid data")
    status, answer = run(server, everything)
    assert (status, answer["total"], answer["limit"], answer["offset"]) == (200, 3, 50, 0)
    (letter,) = run(server, of_workers)[1]["messages"]
    assert set(letter) >= {
        "id", "messageId", "partitionId", "transactionId", "consumerGroup", "errorMessage",
        "retryCount", "originalCreatedAt", "movedToDlqAt", "queueName", "data",
    }  # fmt: skip
    assert (letter["consumerGroup"], letter["errorMessage"], letter["data"]) == (
        "workers", "Processing failed: invalid data", {"orderId": "12345"}
    )  # fmt: skip
    assert run(server, of_january)[1]["total"] == 0


def test_groups_are_listed_with_their_lag(server: Process, queen: Queen) -> None:
    (command,) = EXAMPLES["consumer groups"]
    queen.push("orders", *range(3))
    queen.pop("orders", consumerGroup="workers")
    status, answer = run(server, command)
    (group,) = answer["groups"]
    assert status == 200
    assert (group["name"], group["topics"], group["members"]) == ("workers", ["orders"], 1)
    assert (group["totalLag"], group["state"]) == (3, "Stable")
    assert 0 <= group["maxTimeLag"] < 60
