"""Jobs, workers and brokers on the command line."""

import os
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import structs

from ackflow.broker.broker import Broker
from ackflow.broker.presence import Identity, announce, take_turn
from ackflow.worker import Counts, Jobs, RunningMessage, ServedQueue
from ackflow.worker.coordination.presence import Presence

from .conftest import Cli


@pytest.fixture
def with_jobs(cli: Cli) -> Cli:
    jobs = Jobs(cli.q)
    jobs.run_unique("a", "import.users", lambda job: True)
    jobs.run_unique("b", "import.orders", lambda job: False)
    jobs.run_unique("c", "reindex", lambda job: bool(job.create_delayed("part 1")))
    return cli


def test_jobs_are_listed_newest_first_with_status_and_progress(with_jobs: Cli) -> None:
    rows = with_jobs("jobs", "list").splitlines()
    assert rows[0].split() == ["id", "name", "status", "progress", "children", "created", "took"]
    assert [row.split()[1:4] for row in rows[1:]] == [
        ["reindex", "running", "50%"],
        ["import.orders", "failed", "100%"],
        ["import.users", "success", "100%"],
    ]
    (failed,) = with_jobs.json("jobs", "list", "--status", "failed")
    assert (failed["name"], failed["counts"]["failed"]) == ("import.orders", 1)
    assert with_jobs("jobs", "list", "--status", "stale") == "no stale jobs\n"
    assert "--status must be one of" in with_jobs.fails(2, "jobs", "list", "--status", "done")
    assert "the newest 2 jobs" in with_jobs.run("jobs", "list", "-n", 2).stderr


def test_a_job_is_shown_with_its_children(with_jobs: Cli) -> None:
    id = with_jobs.json("jobs", "list")[0]["id"]
    output = with_jobs("jobs", "show", id)
    assert "status      running" in output
    assert "1 new" in output
    assert "part 1" in output
    (shown,) = with_jobs.json("jobs", "show", id)
    assert [child["status"] for child in shown["children"]] == ["success", "new"]
    assert "no job nothing" in with_jobs.fails(3, "jobs", "show", "nothing")


def test_a_job_is_interrupted_once(with_jobs: Cli) -> None:
    id = with_jobs.json("jobs", "list")[0]["id"]
    assert "give --yes" in with_jobs.fails(1, "jobs", "interrupt", id)
    assert "job reindex is cancelled" in with_jobs("jobs", "interrupt", id, "--yes")
    assert "has stopped already: cancelled" in with_jobs("jobs", "interrupt", id, "--yes")


def test_cleanup_counts_first_and_then_removes(with_jobs: Cli) -> None:
    assert with_jobs("jobs", "cleanup") == "0 jobs with 0 child jobs removed\n"
    dry = with_jobs("jobs", "cleanup", "--success", "0", "--dry-run")
    assert dry == "1 job with 1 child job would be removed\n"
    (done,) = with_jobs.json("jobs", "cleanup", "--success", "0", "--failed", "0")
    assert done == {"roots": 2, "children": 2, "dry_run": False}
    counts = with_jobs.json("jobs", "count")
    assert counts[0]["running"] == 1
    assert sum(counts[0].values()) == 1


class Consumer:
    """Stands for a consumer with one message in hand."""

    def report(self) -> dict[str, Any]:
        counts = dict.fromkeys(structs.asdict(Counts()), 0) | {"acked": 1_200, "failed": 3}
        one = RunningMessage("orders", "billing", "1", "bill", datetime.now(UTC))
        return {
            "queues": [ServedQueue("orders", "billing", ["bill"])], "mode": "round-robin",
            "concurrency": 8, "busy": 1, "running": [one], "reason": None, **counts,
        }  # fmt: skip


def test_running_workers_are_listed(cli: Cli) -> None:
    assert cli("workers") == "no workers\n"
    presence = Presence(cli.q, Consumer())
    presence._write(presence._info())
    head, row = cli("workers").splitlines()
    assert head.split()[:6] == ["worker", "process", "serves", "does", "busy", "done"]
    assert row.split()[0] == cli.q.consumer
    assert "orders/billing" in row
    assert "bill, " in row
    assert "1 of 8" in row
    assert "1,200" in row
    (found,) = cli.json("workers")
    assert (found["pid"], found["acked"], found["running"][0]["handler"]) == (
        os.getpid(),
        1200,
        "bill",
    )


def test_brokers_are_listed(on_file: Cli) -> None:
    assert "no brokers" in on_file("brokers")
    broker = on_file.q.broker
    assert isinstance(broker, Broker)
    identity = Identity("ackflow serve", "shop-1", 812, "1.2")
    broker.write(lambda tx: announce(tx, broker._name, identity, 3_600_000_000))
    broker.write(lambda tx: take_turn(tx, broker._name))
    head, row = on_file("brokers").splitlines()
    assert head.split() == [
        "program",
        "host",
        "process",
        "version",
        "since",
        "last",
        "seen",
        "upkeep",
    ]
    assert row.startswith("ackflow serve  shop-1")
    assert row.endswith("runs it")
    (found,) = on_file.json("brokers")
    assert (found["program"], found["pid"], found["upkeep"]) == ("ackflow serve", 812, True)
