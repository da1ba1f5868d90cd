"""A process under load is killed repeatedly; its successor continues with the same file.

The operating system survives a kill, so every confirmed operation must hold, plain acks included.
"""

import contextlib
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import apsw
import pytest

import ackflow
from ackflow import Session

WORKER = Path(__file__).with_name("busy_worker.py")
QUEUES = ("plain", "confirmed", "batched", "moving")
TRIMMED = "batched"
Name = tuple[str, str]


class Reports:
    """The reports of all processes: sets of (queue, name of message)."""

    def __init__(self) -> None:
        self.pushed: set[Name] = set()
        self.tried: set[Name] = set()
        self.done: set[Name] = set()
        self.again: list[str] = []
        self.failures: list[str] = []
        self.counts: Counter[str] = Counter()

    def read(self, run: int, output: bytes) -> None:
        done_here: set[Name] = set()
        for line in output.decode().splitlines():
            what, queue, name = line.split(" ", 2)
            self.counts[what] += 1
            if what == "pushed":
                self.pushed.add((queue, name))
            elif what == "trying":
                self.tried.add((queue, name))
            elif what == "did":
                done_here.add((queue, name))
            elif what == "got" and (queue, name) in self.done:
                self.again.append(f"{name} of {queue} came again in run {run}")
            elif what == "failed":
                self.failures.append(f"run {run}: {name}")
        self.done |= done_here


def run_and_kill(path: Path | str, run: int, chance: random.Random) -> bytes:
    """Start a worker on the database and kill it; returns its report until then."""
    worker = subprocess.Popen(
        [sys.executable, str(WORKER), str(path), str(run)],
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    assert worker.stdout is not None
    output = b""
    try:
        if run % 10 == 9:
            # This worker may be killed while it opens the database.
            delay = chance.uniform(0.1, 0.4)
        else:
            output = worker.stdout.readline()
            delay = chance.uniform(0.05, 0.3)
        with contextlib.suppress(subprocess.TimeoutExpired):
            output += worker.communicate(timeout=delay)[0]
            raise AssertionError(f"the worker ended by itself: {output[-200:]!r}")
    finally:
        worker.kill()
        output += worker.communicate()[0]
    return output


def drain(q: Session, queue: str, group: str | None = None) -> list[str]:
    names: list[str] = []
    while batch := q.pop(queue, batch=1_000, **({"group": group} if group else {})):
        names += [message.data for message in batch]
        q.ack(batch)
    return names


def kill_again_and_again(path: Path | str, kills: int, seed: int) -> Reports:
    """Run and kill workers, then drain the database and compare it with the reports."""
    chance = random.Random(seed)
    with ackflow.connect(path) as q:
        for queue in QUEUES:
            q.configure(queue, max_deliver=None, keep_seconds=0 if queue == TRIMMED else 86_400)
    reports = Reports()
    for run in range(kills):
        reports.read(run, run_and_kill(path, run, chance))
    if isinstance(path, Path):
        with contextlib.closing(apsw.Connection(str(path))) as db:
            assert db.pragma("integrity_check") == "ok"
    time.sleep(1.1)
    with ackflow.connect(path, upkeep=False) as q:
        compare(q, reports)
    return reports


def compare(q: Session, reports: Reports) -> None:
    assert reports.failures == []
    assert reports.again == []
    moved = drain(q, "moved")
    assert len(moved) == len(set(moved)), "a transaction was done twice"
    for queue in QUEUES:
        pushed, tried, done = (
            {name for home, name in some if home == queue}
            for some in (reports.pushed, reports.tried, reports.done)
        )
        left = drain(q, queue)
        assert len(left) == len(set(left)), f"{queue}: a message came twice"
        assert not done & set(left), f"{queue}: a confirmed ack came again"
        assert pushed - tried <= set(left), f"{queue}: a confirmed push is lost"
        assert q.dead_letters(queue).items == []
        if queue == "moving":
            assert done <= set(moved) <= tried, "a transaction acked and did not push"
            assert not set(moved) & set(left), "a transaction pushed and did not ack"
            assert pushed <= set(moved) | set(left), "a confirmed push is lost"
        if queue != TRIMMED:
            stored = drain(q, queue, "auditor")
            assert len(stored) == len(set(stored)), f"{queue}: a push was done twice"
            assert pushed <= set(stored), f"{queue}: a confirmed push is lost"


def test_fifty_kills_lose_no_confirmed_push_ack_or_transaction(tmp_path: Path) -> None:
    reports = kill_again_and_again(tmp_path / "queue.db", 50, seed=1)
    assert reports.counts["pushed"] > 1_000
    assert reports.counts["did"] > 1_000
    assert len(reports.tried - reports.done) > 10, "no kill came between a call and its answer"


@pytest.mark.outer
def test_twenty_kills_of_a_broker_on_postgres_lose_nothing_that_was_confirmed(
    postgres_url: str,
) -> None:
    reports = kill_again_and_again(postgres_url, 20, seed=3)
    assert reports.counts["pushed"] > 200
    assert reports.counts["did"] > 200


@pytest.mark.soak
@pytest.mark.timeout(7_200)
def test_a_thousand_kills_lose_no_confirmed_push_ack_or_transaction(tmp_path: Path) -> None:
    reports = kill_again_and_again(tmp_path / "queue.db", 1_000, seed=2)
    assert reports.counts["did"] > 20_000
