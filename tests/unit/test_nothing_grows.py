"""The SQLite steps of a call do not grow with delayed, requeued, leased or due messages."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import ackflow
from ackflow import Session
from ackflow.broker.core.upkeep import sweeps
from ackflow.clock import VirtualClock

Fill = Callable[[Session, VirtualClock, int], None]


class Cost:
    """Counts the steps of SQLite with its progress handler."""

    def __init__(self, q: Session) -> None:
        self._db = q._broker.store._db  # type: ignore[attr-defined]
        self.steps = 0

    def _step(self) -> bool:
        self.steps += 1
        return False

    def of(self, call: Callable[[], object]) -> int:
        self.steps = 0
        self._db.set_progress_handler(self._step, 1)
        try:
            call()
        finally:
            self._db.set_progress_handler(None)
        return self.steps


def delayed(q: Session, clock: VirtualClock, n: int) -> None:
    for number in range(n):
        q.push("q", number, delay=3600 + number)
    assert not q.pop("q", group="g")


def kept(q: Session, clock: VirtualClock, n: int) -> None:
    delayed(q, clock, n)
    clock.advance(2 * 3600)
    q.ack(q.pop("q", group="g", batch=n))


def requeued_by_another_group(q: Session, clock: VirtualClock, n: int) -> None:
    q.push("q", list(range(n)))
    q.ack(q.pop("q", group="g", batch=n))
    for message in q.pop("q", group="other", batch=n):
        message.requeue()
    assert not q.pop("q", group="g")


def leased_under_a_window(q: Session, clock: VirtualClock, n: int) -> None:
    q.group("q", "g", max_ack_pending=10 * n)
    q.push("q", list(range(n)))
    for _ in range(n):
        q.pop("q", group="g")


def leased_and_older_than_the_retention(q: Session, clock: VirtualClock, n: int) -> None:
    q.configure("q", retention_seconds=100)
    q.push("q", list(range(n)))
    for _ in range(n):
        q.pop("q", group="g", lease_seconds=3_000)
    clock.advance(200)


@pytest.mark.parametrize(
    "fill",
    [
        delayed, kept, requeued_by_another_group, leased_under_a_window,
        leased_and_older_than_the_retention,
    ],
)  # fmt: skip
def test_a_pop_takes_as_many_steps_beside_many_as_beside_few(tmp_path: Path, fill: Fill) -> None:
    found = []
    for n in (20, 1_000):
        clock = VirtualClock()
        with ackflow.connect(tmp_path / f"{n}.db", clock=clock, upkeep=False) as q:
            q.configure("q", keep_seconds=None)
            q.group("q", "g")
            fill(q, clock, n)
            cost = Cost(q)
            for number in range(3):
                q.push("q", number)
                steps = cost.of(lambda: q.ack(q.pop("q", group="g")))
            found.append(steps)
    assert found[1] <= 1.2 * found[0]


@pytest.mark.parametrize("way", ["over", "due"])
def test_a_pop_writes_as_many_rows_when_thousands_come_back_as_when_hundreds_do(
    tmp_path: Path, way: str
) -> None:
    found = []
    for n in (600, 3_000):
        clock = VirtualClock()
        with ackflow.connect(tmp_path / f"{n}.db", clock=clock, upkeep=False) as q:
            q.push("q", list(range(n)))
            if way == "over":
                for _ in range(n):
                    q.pop("q", lease_seconds=60)
            else:
                for start in range(0, n, 1_000):
                    for message in q.pop("q", batch=min(1_000, n - start)):
                        message.nack("no", delay=60)
            clock.advance(60)
            db = q._broker.store._db  # type: ignore[attr-defined]
            before = db.total_changes()
            assert len(q.pop("q")) == 1
            found.append(db.total_changes() - before)
    # A slice also ends by time, so the number of rows that it writes varies.
    assert found[1] <= 1_500


def test_an_ack_at_random_costs_the_same_in_a_large_lease(tmp_path: Path) -> None:
    found = []
    for n in (1_000, 10_000):
        with ackflow.connect(tmp_path / f"{n}.db", upkeep=False) as q:
            q.push("q", list(range(n)))
            taken = list(q.pop("q", batch=n))
            random.Random(1).shuffle(taken)
            q.ack(taken[: n // 2])
            cost = Cost(q)
            found.append(max(cost.of(message.ack) for message in taken[n // 2 : n // 2 + 20]))
    assert found[1] <= 1.2 * found[0]


def test_why_holds_the_writer_no_longer_beside_many_due_messages_than_beside_few(
    tmp_path: Path,
) -> None:
    found = []
    for n in (20, 1_000):
        with ackflow.connect(tmp_path / f"{n}.db", upkeep=False) as q:
            receipt = q.push("q", list(range(n + 1)))
            taken = [q.pop("q")[0] for _ in range(n)]
            for message in taken:
                message.nack("no")
            assert q.why("q", receipt[n]).position == n + 1
            found.append(Cost(q).of(partial(q.why, "q", receipt[n])))
    assert found[1] <= 1.2 * found[0]


@pytest.mark.parametrize("way", ["redrive", "purge"])
@pytest.mark.parametrize("chosen", ["error", "group"])
def test_no_transaction_searches_among_the_dead_letters_that_do_not_match(
    tmp_path: Path, way: str, chosen: str
) -> None:
    found = []
    for n in (100, 2_000):
        with ackflow.connect(tmp_path / f"{n}.db", upkeep=False) as q:
            q.push("q", list(range(n)))
            q.reject(q.pop("q", group="g", batch=n), "common")
            q.push("q", "last")
            q.reject(q.pop("q", group="g"), "rare")
            q.reject(q.pop("q", group="other"), "of another group")
            which = {"error": "rare"} if chosen == "error" else {"group": "other"}
            act = q.redrive if way == "redrive" else q.purge_dead
            done: list[int] = []
            found.append(longest(q, partial(_note, done, partial(act, "q", **which))))  # type: ignore[arg-type]
            assert done == [1]
    assert found[1] <= 1.3 * found[0]


def _note(results: list[int], call: Callable[[], int]) -> None:
    results.append(call())


@pytest.mark.parametrize("way", ["purge", "seek", "delete"])
@pytest.mark.parametrize("shape", ["lanes", "messages", "claims"])
def test_no_transaction_of_a_sweep_takes_more_steps_the_more_it_covers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, shape: str
) -> None:
    """Counted are the steps of the longest transaction; slices end by count, not by time."""
    monkeypatch.setattr(sweeps, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(sweeps, "ROWS_AT_ONCE", 20)
    found = []
    for n in (150, 1_500):
        with ackflow.connect(tmp_path / f"{n}.db", clock=VirtualClock(), upkeep=False) as q:
            q.group("q", "g")
            for number in range(n):
                q.push("q", number, partition=f"p{number}" if shape == "lanes" else "p")
            if shape == "claims":
                for _ in range(20):
                    q.pop("q", group="g")
            verbs: dict[str, Callable[[], object]] = {
                "purge": lambda: q.purge("q"),
                "seek": lambda: q.seek("q", "g", to="end"),
                "delete": lambda: q.delete_queue("q"),
            }
            found.append(longest(q, verbs[way]))
    lanes = 1_500 if shape == "lanes" else 0
    assert found[1] <= 1.3 * found[0] + 4 * lanes  # they are counted, by an index


def longest(q: Session, call: Callable[[], object]) -> int:
    """Return the steps of the longest transaction of a call."""
    store = q.broker.store  # type: ignore[attr-defined]
    steps, most = 0, 0
    transact = store._transact

    def step() -> bool:
        nonlocal steps
        steps += 1
        return False

    def counted(*args: object) -> object:
        nonlocal steps, most
        steps = 0
        try:
            return transact(*args)
        finally:
            most = max(most, steps)

    store._transact = counted
    store._db.set_progress_handler(step, 1)
    try:
        call()
    finally:
        store._db.set_progress_handler(None)
        store._transact = transact
    return most
