"""A verb that fails unexpectedly: the verbs in the same group commit are committed together."""

import threading
from collections.abc import Sequence
from typing import Any

import ackflow
from ackflow.store.job import Job
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
