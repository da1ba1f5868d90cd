"""A verb that fails unexpectedly: the verbs in the same group commit are committed together."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import ackflow
from ackflow.store.job import Job
from ackflow.store.protocol import CommitLost
from ackflow.store.tx import Tx


def good(tx: Tx, number: int) -> int:
    tx.run("put_meta", f"number {number}", str(number))
    return number


def bad(tx: Tx) -> None:
    tx.run("put_meta", "bad", "1")
    raise OverflowError("unexpected")


def run_together(q: ackflow.Session, verbs: Sequence[tuple[Any, tuple[Any, ...]]]) -> list[Job]:
    """Queue all verbs while the writer is held, so that they are one group."""
    writer = q.broker.writer  # type: ignore[attr-defined]
    done: list[Job] = []
    answered = threading.Event()

    def on_answer(job: Job) -> None:
        done.append(job)
        if len(done) == len(verbs):
            answered.set()

    with writer.exclusively():
        writer.submit([Job(verb, args, False, on_answer=on_answer) for verb, args in verbs])
    assert answered.wait(10)
    return done


def test_a_failing_verb_costs_the_others_one_more_transaction() -> None:
    with ackflow.connect(":memory:", upkeep=False) as q:
        writer = q.broker.writer  # type: ignore[attr-defined]
        before = writer.commits
        verbs: list[tuple[Any, tuple[Any, ...]]] = [(good, (n,)) for n in range(40)]
        verbs[7:7], verbs[30:30] = [(bad, ())], [(bad, ())]
        done = run_together(q, verbs)
        assert writer.commits - before <= 3
        assert sorted(job.answer for job in done if job.error is None) == list(range(40))
        assert [type(job.error) for job in done if job.error] == [OverflowError] * 2
        assert q.broker.look(lambda tx: tx.value("get_meta", "bad")) is None
        assert q.broker.look(lambda tx: tx.value("get_meta", "number 39")) == "39"


def test_many_failing_verbs_fail_alone() -> None:
    with ackflow.connect(":memory:", upkeep=False) as q:
        verbs: list[tuple[Any, tuple[Any, ...]]] = []
        for number in range(10):
            verbs += [(good, (number,)), (bad, ())]
        done = run_together(q, verbs)
        assert sorted(job.answer for job in done if job.error is None) == list(range(10))
        assert sum(job.error is not None for job in done) == 10


def test_a_leader_on_its_way_while_a_lost_commit_is_repeated_runs_its_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was deferred to the end of that sync, answered nothing, and left the writer without leader."""
    with ackflow.connect(tmp_path / "q.db", upkeep=False) as q, ThreadPoolExecutor(3) as pool:
        q.push("jobs", "first")
        writer: Any = q.broker.writer  # type: ignore[attr-defined]
        sync, lead = writer._store.sync, writer._lead
        syncs: list[int] = []
        repeated = threading.Event()

        def lose_the_first(number: int) -> None:
            syncs.append(number)
            if len(syncs) == 1:
                while not writer._deferred:
                    time.sleep(0.001)
                raise CommitLost
            repeated.set()
            sync(number)

        def lead_late(own: Job) -> None:
            assert repeated.wait(30)
            lead(own)

        monkeypatch.setattr(writer._store, "sync", lose_the_first)
        monkeypatch.setattr(writer, "_lead", lead_late)
        calls = [pool.submit(q.push, "jobs", "lost")]
        while not syncs:
            time.sleep(0.001)
        calls.append(pool.submit(q.push, "jobs", "late"))
        try:
            for call in calls:
                call.result(30)
            pool.submit(q.push, "jobs", "last").result(30)
        finally:
            with writer._mutex:  # the test ends also if it fails
                for job in writer._queue:
                    if job.wakeup is not None and job.wakeup.locked():
                        job.wakeup.release()
        found = {message.data for message in q.browse("jobs", after=None)}
        assert found == {"first", "lost", "late", "last"}
