"""PostgreSQL: transactions of one round trip, and what happens when another broker was faster."""

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

import ackflow
from ackflow import Session
from ackflow.store.postgres import short
from ackflow.store.postgres.commits import Commits

from . import server as servers
from .test_round_trips import RoundTrips, begin
from .test_sync import push_together, store_of


@pytest.fixture
def q(postgres_url: str) -> Iterator[Session]:
    with ackflow.connect(postgres_url, upkeep=False) as session:
        begin([session, session], "shared")
        yield session


@pytest.fixture
def rivals(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Session]]:
    """Two brokers that try one round trip whoever wrote last."""
    monkeypatch.setattr(short, "SHARED_SECONDS", 0.0)
    with ExitStack() as stack:
        found = [stack.enter_context(ackflow.connect(postgres_url, upkeep=False)) for _ in range(2)]
        begin(found, "shared")
        yield found


class Refusals:
    """Counts how often the server found that another broker had written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        real = short.ShortTransactions.note_shared

        def note(chosen: short.ShortTransactions, queue: int) -> None:
            self.count += 1
            real(chosen, queue)

        monkeypatch.setattr(short.ShortTransactions, "note_shared", note)


def cycle(trips: RoundTrips, q: Session) -> tuple[int, int, int]:
    pushed = trips.of(lambda: q.push("jobs", 1))[0]
    popped, messages = trips.of(lambda: q.pop("jobs", group="g"))
    acked = trips.of(lambda: q.ack(messages))[0]
    return pushed, popped, acked


def test_a_push_a_pop_and_an_ack_of_a_broker_alone_take_one_round_trip_each(
    q: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips = RoundTrips(monkeypatch)
    assert [cycle(trips, q) for _ in range(4)] == [(1, 1, 1)] * 4


def test_acks_of_single_messages_and_pushes_of_a_group_take_one_round_trip(
    q: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.push("jobs", list(range(10)))
    batch = q.pop("jobs", group="g", batch=10)
    batch[7].ack()
    trips = RoundTrips(monkeypatch)
    assert [trips.of(batch[n].ack)[0] for n in (3, 9, 1)] == [1, 1, 1]
    push_together(q, 1, 2)
    assert trips.of(lambda: push_together(q, 3, 4, fast_disk=True))[0] == 1
    # The second is the sync, for all that wait.
    assert trips.of(lambda: push_together(q, 5, 6))[0] == 2
    large = "x" * 2_000  # stored in a row of its own, whose id the server need not return
    q.push("jobs", large)
    assert trips.of(lambda: [q.push("jobs", large) for _ in range(100)])[0] == 100


def test_a_pop_from_a_long_queue_reads_the_messages_of_the_next_pops(
    q: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        q.push("jobs", number)
    trips, found = RoundTrips(monkeypatch), []
    for number in range(40):
        count, (message,) = trips.of(lambda: q.pop("jobs", group="g"))
        found.append(count)
        assert message.data == number
        q.ack(message)
    assert found.count(1) >= 36


@pytest.mark.parametrize("without", ["functions", "advisory_locks"])
def test_without_functions_or_advisory_locks_they_take_two(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, without: str
) -> None:
    url = f"{postgres_url}?without={without}&schema=without_{without}"
    with ackflow.connect(url, upkeep=False) as q:
        begin([q, q], "shared")
        trips = RoundTrips(monkeypatch)
        assert [cycle(trips, q) for _ in range(3)] == [(2, 2, 2)] * 3


def test_a_role_that_may_not_create_the_functions_works_without_them(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = "of_another"
    with ackflow.connect(f"{postgres_url}?without=functions&schema={schema}", upkeep=False):
        pass
    with psycopg.connect(postgres_url, autocommit=True) as db:
        for statement in (
            "drop role if exists guest",
            "create role guest login",
            f"grant usage on schema {schema} to guest",
            f"grant all on all tables in schema {schema} to guest",
            f"grant all on all sequences in schema {schema} to guest",
        ):
            db.execute(statement.encode())
        url = postgres_url.replace("postgres@", "guest@")
        try:
            with ackflow.connect(f"{url}?schema={schema}", upkeep=False) as q:
                begin([q, q], "shared")
                trips = RoundTrips(monkeypatch)
                assert cycle(trips, q) == (2, 2, 2)
        finally:
            db.execute(f"drop schema {schema} cascade".encode())
            db.execute("drop role guest")


def test_what_another_broker_wrote_in_between_is_found_before_anything_is_written(
    rivals: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = rivals
    one.push("jobs", ["a", "b"])
    refusals = Refusals(monkeypatch)
    (first,) = other.pop("jobs", group="g")  # `one` does not know of this
    (second,) = one.pop("jobs", group="g")
    assert [first.data, second.data] == ["a", "b"]
    assert refusals.count
    receipts = [q.push("jobs", n) for n, q in enumerate((other, one, other, one))]
    assert len({receipt[0] for receipt in receipts}) == 4
    assert one.ack(first).settled == other.ack(second).settled == 1
    assert one.reject(second, "no").settled == 0
    assert [m.data for m in one.pop("jobs", group="g", batch=10)] == [0, 1, 2, 3]


def test_a_commit_while_it_waits_for_the_lock_is_seen_whatever_the_default_isolation(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolation = "options=-c%20default_transaction_isolation%3Dserializable"
    with ExitStack() as stack:
        one, other = (
            stack.enter_context(ackflow.connect(f"{postgres_url}?{isolation}{more}", upkeep=False))
            for more in ("", "&without=functions")
        )
        begin([one, one], "shared")
        other.push("jobs", 0)
        store_of(one)._forget()
        for _ in range(2):
            one.ack(one.pop("jobs", group="g"))
            one.push("jobs", 0)
        errors, real = list[str](), short.ShortTransactions.refused

        def refused(chosen: Any, queue: int, error: Any) -> None:
            errors.append(str(error.diag.message_primary))
            real(chosen, queue, error)

        monkeypatch.setattr(short.ShortTransactions, "refused", refused)
        holder = stack.enter_context(psycopg.connect(postgres_url))
        keys = store_of(one)._locks.keys([one.broker.look(lambda tx: tx.queue("jobs").id)])
        holder.execute("select pg_advisory_xact_lock(%s)", keys)
        pool = stack.enter_context(ThreadPoolExecutor(2))
        pushes = []
        for waiting, q in enumerate((other, one), 1):
            pushes.append(pool.submit(q.push, "jobs", waiting))
            await_locks(holder, waiting)
        holder.rollback()
        for push in pushes:
            push.result(60)
        assert errors == ["another broker has written to the queue"]
        assert [m.data for m in one.pop("jobs", group="g", batch=9)] == [0, 1, 2]


def await_locks(db: psycopg.Connection[Any], waiting: int) -> None:
    """Wait until so many transactions wait for a lock."""
    asked = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
    deadline = time.monotonic() + 60
    while db.execute(asked).fetchone() != (waiting,):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_brokers_that_work_at_once_lose_nothing_and_hand_out_nothing_twice(
    rivals: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = Refusals(monkeypatch)
    total, got = 200, list[Any]()
    lock = threading.Lock()

    def work(q: Session, name: int) -> None:
        rng = random.Random(name)
        for n in range(total // 4):
            q.push("jobs", f"{name} {n}")
            if rng.random() < 0.7:
                batch = q.pop("jobs", group="g", batch=rng.randint(1, 3))
                with lock:
                    got.extend(message.data for message in batch)
                q.ack(batch)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, rivals[n % 2], n) for n in range(4)]:
            done.result(120)
    while batch := rivals[0].pop("jobs", group="g", batch=50):
        got.extend(message.data for message in batch)
        rivals[1].ack(batch)
    assert sorted(got) == sorted(f"{name} {n}" for name in range(4) for n in range(total // 4))
    assert refusals.count, "they never met, so this tests nothing"


def test_a_broker_that_has_met_another_one_takes_the_locks_first_for_a_while(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that is refused costs a round trip and a line in the server's log."""
    with ackflow.connect(postgres_url, upkeep=False) as q:
        begin([q, q], "shared")
        with ackflow.connect(postgres_url, upkeep=False) as other:
            other.push("jobs", 0)
        refusals = Refusals(monkeypatch)
        q.push("jobs", 0)
        assert refusals.count
        cycle(RoundTrips(monkeypatch), q)  # what the other broker changed is read again
        trips = RoundTrips(monkeypatch)
        assert cycle(trips, q) == (2, 2, 2)


def test_the_time_of_a_message_is_that_of_the_server_if_the_broker_has_another(q: Session) -> None:
    store: Any = store_of(q)
    hour = 3_600_000_000
    store.clock.follow(store.clock.now() + hour)
    receipt = q.push("jobs", 1)
    created = q.message("jobs", receipt[0]).created_at.timestamp()
    assert abs(created - time.time()) < 60
    assert abs(store.clock.now() / 1e6 - time.time()) < 60


def test_a_connection_that_is_lost_at_the_commit_repeats_nothing(
    q: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is sent, and after the server has committed."""
    real = Commits._send_short
    for after in (False, True):

        def lose(store: Any, channel: Any, *args: Any, after: bool = after) -> None:
            monkeypatch.setattr(Commits, "_send_short", real)
            if after:
                real(store, channel, *args)
                channel.sync()
            channel.db.close()
            raise psycopg.OperationalError("server closed the connection unexpectedly")

        monkeypatch.setattr(Commits, "_send_short", lose)
        q.push("jobs", after)
        assert Commits._send_short is real, "no loss, so this tests nothing"
    found = [m.data for m in q.pop("jobs", group="g", batch=10)]
    assert found == [False, True]


def test_a_push_of_one_is_on_disk_when_it_is_confirmed() -> None:
    with servers.running("wal_writer_delay=10s") as server:
        with ackflow.connect(server.url, upkeep=False) as q:
            begin([q, q], "shared")
            q.push("jobs", "kept")
            assert not store_of(q)._record.pending()
            server.kill()
        server.start()
        with ackflow.connect(server.url, upkeep=False) as q:
            assert "kept" in [m.data for m in q.browse("jobs", after=None)]


def test_a_lock_that_is_held_for_long_is_reported_and_nothing_is_written(
    postgres_url: str,
) -> None:
    url = f"{postgres_url}?options=-c%20lock_timeout%3D200ms"
    with ackflow.connect(url, upkeep=False) as q, psycopg.connect(postgres_url) as holder:
        begin([q, q], "shared")
        keys = store_of(q)._locks.keys([q.broker.look(lambda tx: tx.queue("jobs").id)])
        holder.execute("select pg_advisory_xact_lock(%s)", keys)
        with pytest.raises(ackflow.errors.StorageBusy):
            q.push("jobs", "refused")
        holder.rollback()
        q.push("jobs", "kept")
        assert [m.data for m in q.pop("jobs", group="g", batch=9)] == ["kept"]
