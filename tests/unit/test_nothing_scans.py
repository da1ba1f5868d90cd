"""The cost of a verb does not grow with the batch, the depth of the queue or idle partitions.

The tests count rows written and steps of SQLite's virtual machine, and measure no times.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ackflow
from ackflow import Message, Session, VirtualClock
from ackflow.errors import QueueFull
from ackflow.store import tx
from ackflow.store.mapping import Row
from ackflow.store.statements import Statements

Verb = Callable[[Session], object]


@pytest.fixture
def q(tmp_path: Path) -> Iterator[Session]:
    with opened(tmp_path / "a.db") as session:
        yield session


def opened(path: Path) -> Session:
    # With a real clock, one transaction a second also reads the time shared with other processes.
    session = ackflow.connect(path, upkeep=False, clock=VirtualClock())
    session.configure("q", keep_seconds=0)
    session.group("q", "g")
    return session


def rows(q: Session, verb: Verb) -> int:
    """Return how many rows a verb writes."""
    db = q._broker.store._db  # type: ignore[attr-defined]
    before = db.total_changes()
    verb(q)
    return int(db.total_changes() - before)


def steps(q: Session, verb: Verb) -> int:
    """Return how many steps SQLite takes for a verb."""
    count = 0

    def step() -> bool:
        nonlocal count
        count += 1
        return False

    db = q._broker.store._db  # type: ignore[attr-defined]
    db.set_progress_handler(step, 1)
    verb(q)
    db.set_progress_handler(None)
    return count


def push(n: int) -> Verb:
    return lambda q: q.push("q", [f"{number:099}" for number in range(n)])


def pop(n: int) -> Verb:
    def verb(q: Session) -> None:
        q.batch = q.pop("q", group="g", batch=n)  # type: ignore[attr-defined]
        assert len(q.batch) == n  # type: ignore[attr-defined]

    return verb


def ack(q: Session) -> None:
    q.ack(q.batch)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("verb", "most"), [("push", 2), ("pop", 2), ("ack", 2)])
def test_a_verb_on_a_thousand_messages_writes_as_many_rows_as_on_ten(
    q: Session, verb: str, most: int
) -> None:
    counted = []
    push(1)(q)
    pop(1)(q)
    ack(q)
    for n in (10, 1_000):
        costs = {"push": rows(q, push(n)), "pop": rows(q, pop(n)), "ack": rows(q, ack)}
        counted.append(costs[verb])
    assert counted[0] == counted[1] <= most


def test_an_ack_of_one_of_a_thousand_writes_two_rows(q: Session) -> None:
    push(1_000)(q)
    batch = q.pop("q", group="g", batch=1_000)
    first: Message = batch[500]
    first.ack()  # moves the claim from its cursor to a row, once
    for message in (batch[3], batch[700], batch[999]):
        assert rows(q, lambda _, m=message: m.ack()) == 2  # type: ignore[misc]


def costs(q: Session) -> dict[str, int]:
    """Return the steps of each verb, with as many messages pushed as popped."""
    found = {}
    for n in (1, 100):
        found[f"push {n}"] = steps(q, push(n))
        found[f"pop {n}"] = steps(q, pop(n))
        found[f"ack {n}"] = steps(q, ack)
        found[f"trim {n}"] = steps(q, lambda q: q.upkeep())
    return found


def deep(path: Path, pushes: int) -> Session:
    q = opened(path)
    for _ in range(pushes):
        push(100)(q)
    return q


def test_a_deep_queue_costs_no_more_steps_than_a_shallow_one(tmp_path: Path) -> None:
    with deep(tmp_path / "shallow.db", 20) as shallow, deep(tmp_path / "deep.db", 2_000) as far:
        costs(shallow), costs(far)
        few, many = costs(shallow), costs(far)
    assert {what: many[what] for what in few if many[what] > 1.05 * few[what]} == {}


def test_the_test_of_deep_queues_sees_a_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tx.Tx, "first_step", 256)
    with deep(tmp_path / "shallow.db", 20) as shallow, deep(tmp_path / "deep.db", 500) as far:
        costs(shallow), costs(far)
        few, many = costs(shallow), costs(far)
    assert many["trim 100"] > 2 * few["trim 100"]


def test_a_thousand_idle_partitions_cost_no_more_steps_than_none(tmp_path: Path) -> None:
    with opened(tmp_path / "one.db") as one, opened(tmp_path / "many.db") as many:
        for n in range(1_000):
            many.push("q", n, partition=f"p{n}")
        while batch := many.pop("q", group="g", batch=1_000):
            many.ack(batch)
        found = []
        for q in (one, many):
            costs(q)
            found.append(costs(q))
    alone, beside = found
    assert {what: beside[what] for what in alone if beside[what] > 1.05 * alone[what]} == {}


def round_of_upkeep(q: Session) -> None:
    q.broker._keeper.run_once()  # type: ignore[attr-defined]


@pytest.mark.parametrize("age", [301, 599])
def test_a_round_of_upkeep_does_not_read_the_history_of_leases_again(age: int) -> None:
    found = []
    for n in (10, 1_000):
        clock = VirtualClock()
        with ackflow.connect(":memory:", clock=clock, upkeep=False) as q:
            for number in range(n):
                q.push("q", number)
                q.ack(q.pop("q"))
            clock.advance(age)
            round_of_upkeep(q)
            found.append(steps(q, round_of_upkeep))
    assert found[1] <= 1.05 * found[0]


def test_a_round_of_upkeep_takes_as_many_statements_with_many_queues_as_with_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names: list[str] = []
    run = Statements.all

    def counted(self: Statements, name: str, *args: object) -> list[Row]:
        names.append(name)
        return run(self, name, *args)

    monkeypatch.setattr(Statements, "all", counted)
    found = []
    for n in (2, 60):
        with ackflow.connect(":memory:", clock=VirtualClock(), upkeep=False) as q:
            for number in range(n):
                q.group(f"q{number}", "g")
            round_of_upkeep(q)
            names.clear()
            round_of_upkeep(q)
            found.append(len(names))
    assert found[1] == found[0]


def test_leases_left_in_a_walk_through_the_history_are_found_later() -> None:
    """A scan skips held leases, and leases of queues with a longer history."""
    clock = VirtualClock()
    with ackflow.connect(":memory:", clock=clock, upkeep=False) as q:
        q.configure("long", history_seconds=3_600)
        for name in ("long", "q", "q", "q"):
            q.push(name, 1)
        q.ack(q.pop("long"))
        held = q.pop("q", lease_seconds=1_000)
        late = q.pop("q", lease_seconds=1_000)
        q.ack(q.pop("q"))
        pruned = []
        for seconds in (599, 1, 299, 601, 2_099, 1):  # 599, 600, 899, 1500, 3599, 3600
            clock.advance(seconds)
            pruned.append(q.broker._keeper.run_once().pruned)  # type: ignore[attr-defined]
            if seconds == 299:
                q.ack(late)
                q.ack(held)
        assert pruned == [0, 1, 0, 2, 0, 1]


def test_a_history_made_shorter_is_removed_in_the_next_round() -> None:
    clock = VirtualClock()
    with ackflow.connect(":memory:", clock=clock, upkeep=False) as q:
        q.configure("long", history_seconds=3_600)
        for name in ("long", "q"):
            q.push(name, 1)
            q.ack(q.pop(name))
        clock.advance(700)
        assert q.broker._keeper.run_once().pruned == 1  # type: ignore[attr-defined]
        q.configure("long", history_seconds=600)
        assert q.broker._keeper.run_once().pruned == 1  # type: ignore[attr-defined]


def among_deleted(n: int) -> dict[str, int]:
    """Return the steps of verbs in a lane where n messages ahead, every other one, are deleted."""
    with ackflow.connect(":memory:", clock=VirtualClock(), upkeep=False) as q:
        q.group("q", "g")
        ids = list(q.push("q", list(range(2 * n + 100))))
        for id in ids[100 : 100 + 2 * n : 2]:
            q.delete_message("q", id)
        found: dict[str, int] = {}
        for _ in range(2):
            one, after = ids.pop(60), ids.pop(-1)
            found["delete"] = steps(q, lambda q, one=one: q.delete_message("q", one))
            found["pop"] = steps(q, pop(1))
            found["ack"] = steps(q, ack)
            found["delete the last"] = steps(q, lambda q, one=after: q.delete_message("q", one))
            found["pop again"] = steps(q, pop(1))
        return found


def test_thousands_of_deleted_messages_cost_no_more_steps_than_a_few() -> None:
    few, many = among_deleted(10), among_deleted(2_000)
    assert {what: many[what] for what in few if many[what] > 1.1 * few[what]} == {}


def test_a_stuck_message_costs_no_more_steps_of_upkeep_the_more_was_trimmed_behind_it() -> None:
    found = []
    for n in (10, 1_000):
        clock = VirtualClock()
        with ackflow.connect(":memory:", clock=clock, upkeep=False) as q:
            q.configure("q", keep_seconds=0)
            q.push("q", "stuck")
            q.pop("q", lease_seconds=86_400)
            for number in range(n):
                q.push("q", number)
                q.ack(q.pop("q"))
                if number % 10 == 9:
                    clock.advance(0.05)
                    round_of_upkeep(q)
            q.push("q", n)
            q.ack(q.pop("q"))
            found.append(steps(q, round_of_upkeep))
            assert q.queue_stats("q").messages == 1
    assert found[1] <= 1.05 * found[0]


def test_a_push_to_a_full_queue_costs_no_more_steps_the_more_waits() -> None:
    """Also when messages are settled between two pushes."""
    found = []
    for n in (10, 500):
        with ackflow.connect(":memory:", clock=VirtualClock(), upkeep=False) as q:
            q.configure("q", max_size=n)
            q.push("q", list(range(n)))
            for message in q.pop("q", batch=n):
                message.nack(delay=60 + message.data)
            costs = []
            for _ in range(3):
                costs.append(steps(q, refused))
                q.delete_message("q", q.browse("q", limit=1).items[0].id)
                q.push("q", "one more")
                refused(q)
                q.ack(q.pop("q"))
                q.push("q", "and another")
            assert q.group_stats("q").counts.pushed == n + 6
            found.append(costs[1:])
    assert max(found[1]) <= 1.05 * max(found[0])


def refused(q: Session) -> None:
    with pytest.raises(QueueFull):
        q.push("q", "too much")
