"""PostgreSQL: how many round trips a verb needs, whichever broker wrote last.

They are counted, as times are not reliable on a loaded machine.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

import pytest

import ackflow
from ackflow import Item, Session, VirtualClock
from ackflow.broker.core.pop import pop
from ackflow.broker.core.settle import settle
from ackflow.broker.reach.reach import reach_of
from ackflow.broker.requests import PopRequest
from ackflow.server.app import _pop_if
from ackflow.store.job import Job
from ackflow.store.postgres.connection import PipelinedConnection, statements
from ackflow.store.postgres.flush import Flushes
from ackflow.store.postgres.tx import OF_NO_QUEUE, OF_QUEUE
from ackflow.store.protocol import WiderReach
from ackflow.store.tx import Tx

T = TypeVar("T")


class RoundTrips:
    """Counts how often a broker waits for the server, as on a fast disk, however busy it is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Flushes, "took", lambda *_: None)
        self._count = 0
        real = PipelinedConnection.sync

        def sync(channel: PipelinedConnection) -> None:
            self._count += 1
            real(channel)

        monkeypatch.setattr(PipelinedConnection, "sync", sync)

    def of(self, call: Callable[[], T]) -> tuple[int, T]:
        before = self._count
        found = call()
        return self._count - before, found


@pytest.fixture
def brokers(postgres_url: str) -> Iterator[list[Session]]:
    with ExitStack() as stack:
        yield [stack.enter_context(ackflow.connect(postgres_url, upkeep=False)) for _ in range(2)]


def begin(brokers: list[Session], ordering: str) -> None:
    """Make a group with work, of which each broker has popped and acked some."""
    brokers[0].group("jobs", "g", ordering=ordering)
    for number in range(6):
        q = brokers[number % 2]
        q.push("jobs", number)
        q.ack(q.pop("jobs", group="g"))


@pytest.mark.parametrize("ordering", ["shared", "ordered"])
@pytest.mark.parametrize("sharing", [False, True])
def test_a_push_a_pop_and_an_ack_take_two_round_trips_each(
    brokers: list[Session], monkeypatch: pytest.MonkeyPatch, ordering: str, sharing: bool
) -> None:
    begin(brokers, ordering)
    trips = RoundTrips(monkeypatch)
    found = []
    for number in range(6):
        q = brokers[number % 2 if sharing else 0]
        pushed = trips.of(lambda q=q, number=number: q.push("jobs", number))[0]
        popped, messages = trips.of(lambda q=q: q.pop("jobs", group="g"))
        acked = trips.of(lambda q=q, messages=messages: q.ack(messages))[0]
        assert [message.data for message in messages] == [number]
        found.append((pushed, popped, acked))
    assert found[2:] == [(2, 2, 2)] * 4


@pytest.mark.parametrize("ordering", ["shared", "ordered"])
def test_an_ack_by_another_broker_than_the_popper_takes_one_round_trip_more(
    brokers: list[Session], monkeypatch: pytest.MonkeyPatch, ordering: str
) -> None:
    """The popper has pushed too: else it may have to sync what it shows, which depends on time."""
    begin(brokers, ordering)
    trips = RoundTrips(monkeypatch)
    one, other = brokers
    found = []
    for number in range(6):
        pushed = trips.of(lambda number=number: other.push("jobs", number))[0]
        popped, messages = trips.of(lambda: other.pop("jobs", group="g"))
        ((token, marks),) = messages.marks(ackflow.Verdict("ack")).items()
        acked, (outcome,) = trips.of(lambda a=token, b=marks: one.broker.do(settle, False, a, b))
        assert not outcome.refused
        found.append((pushed, popped, acked))
    assert found[2:] == [(2, 2, 3)] * 4


def test_a_waiting_pop_of_a_server_runs_beside_other_queues() -> None:
    """It checks its token in the transaction of the pop, and needs no more than a plain one."""
    asked = PopRequest("jobs", "g", "consumer")
    found = reach_of(partial(_pop_if, revision=1), (asked,), None)
    assert found is not None
    assert set(found.queues) == {"jobs"}


def test_what_runs_beside_other_queues_are_statements_of_the_store() -> None:
    """A statement that is replaced leaves the list; the new one must be on it."""
    assert set(statements()) >= OF_QUEUE | OF_NO_QUEUE


def test_no_common_verb_or_duty_of_upkeep_on_one_queue_needs_the_whole_schema(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would stop every broker, and all of them would drop what they have cached."""
    wider: list[str] = []
    clock = VirtualClock()
    with ackflow.connect(postgres_url, clock=clock, upkeep=False) as q:
        q.configure(
            "jobs", keep_seconds=0, retry_limit=2, dedup_seconds=100, ttl_seconds=500,
            retention_seconds=600, max_wait_seconds=300, max_size=10_000,
        )  # fmt: skip
        orderings = {"shared": "shared", "ordered": "ordered", "exclusive": "exclusive"}
        for group, ordering in orderings.items():
            q.group("jobs", group, ordering=ordering, backoff=[1, 2], max_ack_pending=100)
        q.push("jobs", 0)
        for group in orderings:
            q.ack(q.pop("jobs", group=group))
        q.upkeep()
        real = WiderReach.__init__
        monkeypatch.setattr(
            WiderReach, "__init__", lambda self, *of: (wider.append(str(of)), real(self, *of))[1]
        )
        for p in range(3):
            items = [Item(data=n, transaction_id=f"{p} {n}") for n in range(20)]
            q.push("jobs", items, partition=f"p{p}", priority=p)
        q.push("jobs", ["late"] * 3, delay=5)
        for group in orderings:
            some = q.pop("jobs", group=group, batch=10)
            q.ack(some[:2])
            q.nack(some[2:3], "bad", delay=1)
            q.reject(some[3:4], "no")
            q.requeue(some[4:5])
            q.release(some[5:6])
        for seconds in (20, 10, 301, 400, 90_000):
            for group in orderings:
                q.nack(q.pop("jobs", group=group, batch=5, lease_seconds=3), "again")
                some = q.pop("jobs", group=group, batch=5, lease_seconds=3)
                _, more = q.ack_and_pop(some, "jobs", group=group, lease_seconds=3)
                if more:
                    more[-1].ack(up_to=True)
            clock.advance(seconds)
            q.upkeep()
        q.transaction().push("jobs", 1).put("key", 1).commit()
    assert wider == []


def test_a_verb_alone_in_the_schema_sees_what_others_of_its_group_collected(
    postgres_url: str,
) -> None:
    """Also if the first rows were collected by verbs that may use fewer statements."""

    def run(*verbs: Callable[[Tx], object]) -> list[Any]:
        jobs = [Job(verb, (), False) for verb in verbs]
        q.broker.writer._runner.run(jobs)  # type: ignore[attr-defined]
        assert [job.error for job in jobs] == [None] * len(jobs)
        return [job.answer for job in jobs]

    def live(tx: Tx) -> int:
        group = tx.group_by_id(q_group)
        return len(tx.all("live_leases", group and group.id, tx.now, 10))

    def one(number: int) -> PopRequest:
        return PopRequest("jobs", "g", f"consumer {number}")

    with ackflow.connect(postgres_url, upkeep=False) as q:
        q.push("jobs", [1, 2, 3, 4])
        q.ack(q.pop("jobs", group="g"))
        q_group = q.broker.look(lambda tx: tx.group(tx.queue("jobs").id, "g").id)
        fenced = [Job(pop, (one(number),), False) for number in range(2)]
        q.broker.writer._runner.run(fenced)  # type: ignore[attr-defined]
        assert run(lambda tx: pop(tx, one(2)), live)[1] == 3
