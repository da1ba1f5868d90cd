"""What the verbs of a group write is collected, and written together."""

from pathlib import Path
from typing import Any

import ackflow
from ackflow.broker.core.pop import pop
from ackflow.broker.core.settle import settle
from ackflow.broker.requests import Mark, PopRequest, Verdict
from ackflow.store.job import Job

GROUP = 32


def statements(session: ackflow.Session, jobs: list[Job]) -> int:
    """Run a group, and return how many statements its verbs take."""
    broker: Any = session.broker
    tx, calls = broker.store._writing, 0
    names = ("_execute", "_write", "_write_many")
    originals = {name: getattr(tx, name) for name in names}

    def counted(original: Any) -> Any:
        def run(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            return original(*args)

        return run

    for name, original in originals.items():
        setattr(tx, name, counted(original))
    try:
        broker.writer._runner.run(jobs)
    finally:
        for name, original in originals.items():
            setattr(tx, name, original)
    assert [job.error for job in jobs] == [None] * len(jobs)
    return calls


def pops(group: str = "g") -> list[Job]:
    requests = [PopRequest("q", group, f"c{n}", 1) for n in range(GROUP)]
    return [Job(pop, (request,), False) for request in requests]


def acks(popped: list[Job]) -> list[Job]:
    ack = [Mark(Verdict("ack"))]
    return [Job(settle, (job.answer.token, ack), False) for job in popped]


def test_a_pop_and_its_ack_take_less_than_one_statement_each_in_a_group(tmp_path: Path) -> None:
    with ackflow.connect(tmp_path / "a.db", upkeep=False) as session:
        session.push("q", list(range(4 * GROUP)))
        (message,) = session.pop("q", group="g")
        message.ack()
        first = pops()
        assert statements(session, first) < GROUP
        assert statements(session, acks(first)) < GROUP
        second = pops()
        assert statements(session, second) < GROUP
        mixed = [job for pair in zip(acks(second), pops(), strict=True) for job in pair]
        assert statements(session, mixed) < 2 * GROUP
        stats = session.group_stats("q", "g").counts
        assert (stats.leased, stats.done) == (GROUP, 2 * GROUP + 1)
