"""Queen's own Python clients, unchanged, against this server."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import Process

Start = Callable[..., Process]
CLIENTS = Path(sys.prefix) / "clients"  # made by `make setup`
SCENARIOS = Path(__file__).with_name("queen_scenarios.py")


# Scenarios that need a server or a client with options of its own; the others share one of each.
ALONE = {"administration", "attempts", "consume_unsized"}
SHARED = (
    "push", "pop_and_ack", "consume_single", "consume_batch", "consume_each",
    "consume_concurrently", "callbacks", "renewal", "transactions", "subscriptions",
    "dead_letters", "namespaces", "traces", "streams",
)  # fmt: skip
pytestmark = pytest.mark.xdist_group("queen clients")


@pytest.fixture(scope="module", params=["0.15.0", "2.6.0"])
def version(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if not (CLIENTS / f"queen-mq-{name}").is_dir():
        if os.environ.get("CI"):
            raise AssertionError("the clients are missing")
        pytest.skip("the clients are missing: make setup")
    return name


def run_scenarios(version: str, url: str, *names: str, **environment: str) -> dict[str, Any]:
    """Run scenarios in a process of its own: the client takes over the signals of a process."""
    done = subprocess.run(
        [sys.executable, str(SCENARIOS), url, *names],
        env={**os.environ, **environment, "PYTHONPATH": str(CLIENTS / f"queen-mq-{version}")},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    answers: dict[str, Any] = json.loads(lines[-1])
    return answers


@pytest.fixture(scope="module")
def shared(version: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The answers of the scenarios that ran at the same time on one server."""
    server = Process(tmp_path_factory.mktemp("queen") / "server.db")
    yield run_scenarios(version, server.url, *SHARED)
    assert server.stop() == 0
    assert server.process.stdout is not None
    server.process.stdout.close()


@pytest.fixture
def run(version: str, request: pytest.FixtureRequest, start_process: Start) -> Callable[..., Any]:
    """The answer of a scenario."""

    def one(name: str, *options: str, **environment: str) -> Any:
        if name not in ALONE:
            return request.getfixturevalue("shared")[name]
        server = start_process(*options)
        return run_scenarios(version, server.url, name, **environment)[name]

    return one


Run = Callable[..., Any]


def test_it_pushes_with_callbacks_duplicates_and_a_buffer(run: Run) -> None:
    assert run("push") == {
        "seen": {"queued": 2, "duplicate": 2},
        "read": [1, None, {"n": 3}, 4, 5, 6, 7],
    }


def test_it_pops_acks_and_nacks_by_hand(run: Run) -> None:
    assert run("pop_and_ack") == {
        "done": [True, "acknowledged", True],
        "failed": [True, "failed_retry", False],
        "retry": 1,
        "many": ["acknowledged", "failed_retry", "released", "dead_lettered", "acknowledged"],
        "left": [2, 3],
    }


def test_it_consumes_one_message_at_a_time(run: Run) -> None:
    assert run("consume_single") == [0, 1, 1, 2, 3]


def test_it_consumes_batches_and_a_failed_one_comes_again(run: Run) -> None:
    assert run("consume_batch") == [[0, 1, 2, 3], [0, 1, 2, 3], [4, 5]]


def test_it_consumes_each_of_a_batch_and_strands_nothing(run: Run, version: str) -> None:
    # The newer client drops the rest of its batch after a failure, the older one goes on.
    expected = {"0.15.0": [0, 1, 2, 3, 4, 1], "2.6.0": [0, 1, 1, 2, 3, 4]}
    assert run("consume_each") == expected[version]


@pytest.mark.parametrize("autopilot", ["on", pytest.param("off", marks=pytest.mark.outer)])
def test_it_consumes_without_a_batch_size(run: Run, autopilot: str) -> None:
    assert run("consume_unsized", QUEEN_SDK_POP_AUTOPILOT=autopilot) == [0, 1, 2, 3, 4]


def test_it_consumes_with_many_workers(run: Run) -> None:
    assert run("consume_concurrently") == {"count": 40, "ordered": True}


def test_it_settles_in_callbacks(run: Run) -> None:
    assert run("callbacks") == {
        "said": [["ok", 0, True], ["error", 1, True], ["ok", 20, True]],
        "dead": ["never"],
    }


def test_it_renews_its_leases(run: Run) -> None:
    assert run("renewal") == {"seen": [1], "renewed": [True, True], "over": None}


def test_it_commits_transactions(run: Run) -> None:
    answer = run("transactions")
    assert "ACK operation failed" in answer.pop("error") or answer.get("in") == [1]
    assert answer == {"success": True, "types": ["ack", "push"], "out": ["one"], "in": [1]}


def test_it_subscribes_where_it_says(run: Run) -> None:
    assert run("subscriptions") == {
        "begun": {"all": ["old"], "new": [], "new-only": [], "now": [], "1970": ["old"]},
        "later": {"new": ["new"], "only": ["new"], "now": ["new"]},
    }


def test_it_finds_its_dead_letters(run: Run) -> None:
    assert run("dead_letters") == {
        "tries": 2, "total": 1, "transactionId": "t7", "consumerGroup": "g", "retryCount": 2,
        "queueName": "dying", "data": {"order": 7},
    }  # fmt: skip


def test_it_finds_queues_by_namespace_and_task(run: Run) -> None:
    assert run("namespaces") == {
        "namespace": ["configured", "dotted"],
        "task": ["configured", "task"],
    }


def test_it_leaves_traces(run: Run) -> None:
    assert run("traces") == {
        "success": True, "by message": [{"step": "begun"}], "by name": ["t1"]
    }  # fmt: skip


def test_its_streams_sum_and_gate(run: Run) -> None:
    assert run("streams") == {"sum": sum(range(20)), "passed": 9, "errors": [0, 0]}


def test_its_administration_finds_everything(run: Run) -> None:
    assert run("administration") == {
        "queues": ["seen"], "listed": 2, "detail": [1, "processing"], "group": ["g", 2, "Stable"],
        "parts": 1, "sought": 1, "moved": 1, "deleted": True, "health": "healthy",
    }  # fmt: skip


@pytest.mark.parametrize(("counting", "tries"), [("failures", 2), ("redeliveries", 3)])
def test_the_server_says_what_the_retry_limit_counts(run: Run, counting: str, tries: int) -> None:
    assert run("attempts", "--queen-retry-limit", counting) == tries
