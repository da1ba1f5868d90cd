"""The examples of the PushPop dialect, as they are typed into a shell, against a real server."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from .conftest import Process, at_port

Start = Callable[..., Process]
HERE = Path(__file__).parent
SCRIPT = HERE.parents[1] / "examples" / "test_acknowledgement_flow.sh"
PORT = 8000


def examples() -> dict[str, list[str]]:
    """The command lines of each example."""
    found: dict[str, list[str]] = {}
    text = (HERE / "data" / "pushpop_examples.txt").read_text().replace("\\\n", "")
    for line in text.splitlines():
        if line.startswith("# "):
            lines = found.setdefault(line[2:], [])
        else:
            lines.append(line)
    return found


EXAMPLES = examples()


@pytest.fixture
def server(start_process: Start) -> Iterator[Process]:
    with at_port(PORT, start_process) as server:
        yield server


class Shell:
    """Runs command lines of the examples; `ids` are put in the place of the ids written there."""

    def __init__(self, server: Process) -> None:
        self._host = f"localhost:{server.port}"
        self.ids: dict[str, str] = {}

    def run(self, line: str) -> tuple[int, Any]:
        line = line.replace(f"localhost:{PORT}", self._host)
        for written, given in self.ids.items():
            line = line.replace(written, given)
        done = subprocess.run(
            ["bash", "-c", line + r" -sS -w '\n%{http_code}'"],
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        body, _, status = done.stdout.rpartition("\n")
        return int(status), json.loads(body)


@pytest.fixture
def shell(server: Process) -> Shell:
    return Shell(server)


def stock(server: Process, *items: object) -> None:
    for item in items:
        httpx.post(f"{server.url}/queue/test/push", json={"item": item})


def test_there_are_as_many_lines_as_were_written() -> None:
    assert [len(lines) for lines in EXAMPLES.values()] == [3, 2, 3, 1]


def test_example_1_the_basic_flow(shell: Shell) -> None:
    push, pop, acknowledge = EXAMPLES["example 1"]
    status, answer = shell.run(push)
    assert (status, answer["success"]) == (200, True)
    before = time.time()
    status, held = shell.run(pop)
    assert before + 30 <= held["lock_expires_at"] <= time.time() + 30
    assert status == 200
    assert held["items"] == [{"task_id": 123, "action": "send_email"}]
    assert (held["count"], held["locked"], len(held["lock_id"])) == (1, True, 11)
    status, answer = shell.run(acknowledge)
    assert (status, answer["message"]) == (400, "Invalid lock_id")
    shell.ids["abc123def456"] = held["lock_id"]
    status, answer = shell.run(acknowledge)
    assert status == 200
    assert answer == {
        "success": True, "message": "Items acknowledged successfully", "items_acknowledged": 1
    }  # fmt: skip


def test_example_2_a_lock_prevents_other_pops(server: Process, shell: Shell) -> None:
    stock(server, 1, 2)
    first, second = EXAMPLES["example 2"]
    status, held = shell.run(first)
    assert (status, held["locked"], held["items"]) == (200, True, [1])
    status, answer = shell.run(second)
    assert status == 423
    assert answer == {
        "message": "Queue is locked pending acknowledgement",
        "lock_expires_at": held["lock_expires_at"],
    }


def test_example_3_a_lock_expires_by_itself(server: Process, shell: Shell) -> None:
    stock(server, "original")
    short, late, again = EXAMPLES["example 3"]
    before = time.time()
    status, held = shell.run(short)
    assert (status, held["items"]) == (200, ["original"])
    assert before + 5 <= held["lock_expires_at"] <= time.time() + 5
    time.sleep(max(0.0, held["lock_expires_at"] - time.time()) + 0.01)
    expired = {"success": False, "message": "Lock has expired", "error_code": "LOCK_EXPIRED"}
    assert shell.run(late) == (410, expired)
    shell.ids["short123"] = held["lock_id"]
    assert shell.run(late) == (410, expired)
    status, answer = shell.run(again)
    assert (status, answer["items"]) == (200, ["original"])


def test_example_4_a_plain_pop_needs_no_acknowledgement(server: Process, shell: Shell) -> None:
    stock(server, 1, 2)
    (pop,) = EXAMPLES["example 4"]
    assert shell.run(pop) == (200, {"items": [1], "count": 1})
    assert shell.run(pop) == (200, {"items": [2], "count": 1})
    assert shell.run(pop) == (200, {"items": [], "count": 0})


def flow(url: str, ttl: int = 1) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, "ACKFLOW_URL": url, "TTL": str(ttl)}
    return subprocess.run(
        ["bash", str(SCRIPT)], env=given, capture_output=True, text=True, timeout=120
    )


def test_the_script_of_the_examples_walks_through(start_process: Start) -> None:
    server = start_process()
    for _ in range(2):  # it leaves nothing behind that stops it the next time
        done = flow(server.url)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "All examples passed" in done.stdout


def test_the_script_fails_when_nobody_answers() -> None:
    done = flow("http://127.0.0.1:9")
    assert done.returncode != 0


def test_the_script_fails_when_an_answer_is_another(start_process: Start) -> None:
    server = start_process()
    # Somebody else has the lock.
    httpx.post(f"{server.url}/queue/flow-test/push", json={"item": 1})
    httpx.post(f"{server.url}/queue/flow-test/pop?require_ack=true&ttl_seconds=300")
    done = flow(server.url)
    assert done.returncode == 1
    assert "expected" in done.stderr
