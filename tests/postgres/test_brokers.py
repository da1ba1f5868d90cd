"""PostgreSQL: server crashes, commits without a response, brokers that share a database."""

import contextlib
import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import MagicMock

import psycopg
import pytest

import ackflow
from ackflow import Session
from ackflow.broker.core.pop import pop
from ackflow.broker.requests import PopRequest
from ackflow.errors import LeaseLost, OutcomeUnknown, StorageAway, StorageBusy
from ackflow.store.postgres import notify, store
from ackflow.store.postgres.connection import PipelinedConnection
from ackflow.store.postgres.fences import lock_key
from ackflow.store.postgres.notify import POLL_SECONDS
from ackflow.store.tx import Tx

from . import server as servers


@pytest.fixture
def mortal() -> Iterator[servers.Server]:
    """A separate server for this test, with fsync on."""
    with servers.running() as server:
        yield server


def drained(q: Session, queue: str) -> list[int]:
    found: list[int] = []
    while batch := q.pop(queue, batch=1_000):
        found += [message.data for message in batch]
        q.ack(batch)
    return found


def test_a_server_killed_under_load_loses_nothing_that_was_confirmed(
    mortal: servers.Server,
) -> None:
    """Sessions block until the server is back, and continue: no verb fails."""
    kill_under_load(mortal, 3)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_a_server_killed_a_hundred_times_loses_nothing_that_was_confirmed(
    mortal: servers.Server,
) -> None:
    kill_under_load(mortal, 100)


def kill_under_load(mortal: servers.Server, times: int) -> None:
    confirmed: set[int] = set()
    acked: set[int] = set()
    ending = threading.Event()

    def push(first: int) -> None:
        number = first
        while not ending.is_set():
            q.push("jobs", number)
            confirmed.add(number)
            number += 4

    def consume() -> None:
        while not ending.is_set():
            for message in other.pop("jobs", batch=3, wait=0.2, lease_seconds=2):
                with contextlib.suppress(LeaseLost):  # it waited while the server was unavailable
                    message.ack(confirm=True)
                    acked.add(message.data)

    chance = random.Random(5)
    with ackflow.connect(mortal.url) as q, ackflow.connect(mortal.url) as other:
        q.configure("jobs", max_deliver=None)
        with ThreadPoolExecutor(6) as pool:
            working = [pool.submit(push, first) for first in range(4)]
            working += [pool.submit(consume) for _ in range(2)]
            try:
                for _ in range(times):
                    before = len(confirmed), len(acked)
                    deadline = time.monotonic() + 60
                    while len(confirmed) < before[0] + 100 or len(acked) < before[1] + 50:
                        assert time.monotonic() < deadline, "work did not go on"
                        time.sleep(chance.uniform(0.01, 0.05))
                    mortal.kill()
                    mortal.start()
            finally:
                ending.set()
            for one in working:
                one.result(60)
        time.sleep(2.1)  # leases expire by the real clock
        left = drained(q, "jobs")
        assert not acked & set(left), "a confirmed ack came again"
        assert confirmed <= acked | set(left), "a confirmed push is lost"


def cut_off(monkeypatch: pytest.MonkeyPatch, *, after: bool) -> None:
    """Lose the connection at the next commit: after it is done, or before it is sent."""
    real = PipelinedConnection.write

    def write(self: PipelinedConnection, sql: str, args: Sequence[Any] = ()) -> None:
        if sql == "commit":
            monkeypatch.setattr(PipelinedConnection, "write", real)
            if after:
                real(self, sql)
                self.sync()
            self.db.close()
            raise psycopg.OperationalError("the connection is lost")
        real(self, sql, args)

    monkeypatch.setattr(PipelinedConnection, "write", write)


def test_a_commit_whose_answer_is_lost_is_asked_for_and_counts(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ackflow.connect(postgres_url, upkeep=False) as q:
        q.configure("jobs")
        cut_off(monkeypatch, after=True)
        q.push("jobs", 1)
        assert drained(q, "jobs") == [1]


def test_a_commit_that_never_came_is_done_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ackflow.connect(postgres_url, upkeep=False) as q:
        q.configure("jobs")
        cut_off(monkeypatch, after=False)
        q.push("jobs", 1)
        assert drained(q, "jobs") == [1]


def test_a_server_that_stays_away_is_given_up_and_nothing_was_changed(
    mortal: servers.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "AWAY_SECONDS", 0.5)
    with ackflow.connect(mortal.url, upkeep=False) as q:
        q.configure("jobs")
        mortal.kill()
        with pytest.raises(StorageAway, match="no connection"):
            q.push("jobs", 1)
        with pytest.raises(StorageAway, match="no connection"):
            q.queue_stats("jobs")
        mortal.start()
        q.push("jobs", 2)
        assert drained(q, "jobs") == [2]


def test_when_the_server_stays_unreachable_the_outcome_is_unknown_and_nothing_is_retried(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ackflow.connect(postgres_url, upkeep=False) as q:
        q.configure("jobs")
        cut_off(monkeypatch, after=True)

        def unreachable(_: str) -> bool:
            raise OutcomeUnknown()

        monkeypatch.setattr(q.broker.store, "_was_committed", unreachable)
        writer = q.broker.writer
        with ThreadPoolExecutor(2) as pool:
            with writer.exclusively():
                calls = [pool.submit(q.push, "jobs", n) for n in (1, 2)]
                while len(writer._queue) < 2:
                    time.sleep(0.001)
            for call in calls:
                assert isinstance(call.exception(60), OutcomeUnknown)
        monkeypatch.undo()
        assert sorted(drained(q, "jobs")) == [1, 2]


def test_a_session_whose_connections_were_ended_while_idle_goes_on(postgres_url: str) -> None:
    with ackflow.connect(postgres_url, upkeep=False) as q:
        q.push("jobs", 1)
        assert q.queue_stats("jobs").messages == 1
        with psycopg.connect(postgres_url, autocommit=True) as db:
            db.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where application_name = 'ackflow'"
            )
        q.push("jobs", 2)
        assert q.queue_stats("jobs").messages == 2


def test_a_push_wakes_a_pop_that_waits_in_another_broker(postgres_url: str) -> None:
    with ackflow.connect(postgres_url) as q, ackflow.connect(postgres_url) as other:
        q.configure("jobs")
        with ThreadPoolExecutor(1) as pool:
            other.pop("jobs", wait=0.2)  # it listens by now
            taken: list[float] = []
            for _ in range(5):
                waiting = pool.submit(other.pop, "jobs", wait=30)
                while not other.broker.waiters.present.is_set():
                    time.sleep(0.001)
                began = time.monotonic()
                q.push("jobs", 1)
                assert len(waiting.result(30)) == 1
                taken.append(time.monotonic() - began)
        assert min(taken) < POLL_SECONDS / 2, f"only the look now and then woke it: {taken}"


def test_a_broker_that_closes_after_a_push_wakes_the_others(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "POLL_SECONDS", 3_600.0)
    with ackflow.connect(postgres_url) as other, ThreadPoolExecutor() as pool:
        other.group("jobs", "g")
        waiting = pool.submit(other.pop, "jobs", group="g", wait=30)
        while other.broker.store._notifier.received < 1:  # type: ignore[attr-defined]
            time.sleep(0.001)
        with ackflow.connect(postgres_url, upkeep=False) as brief:
            brief.push("jobs", 1)
        began = time.monotonic()
        assert len(waiting.result(60)) == 1
        assert time.monotonic() - began < 15


def test_a_verb_alone_in_the_schema_sees_what_others_pushed_to_a_queue_it_has_created(
    postgres_url: str,
) -> None:
    """It has cached the queue without ever having asked for its version."""

    def alone(tx: Tx, request: PopRequest) -> Any:
        return [run.lo for run in pop(tx, request).runs]

    def popped(q: Session, number: int) -> list[int]:
        asked = PopRequest("jobs", "g", f"consumer {number}")
        return q.broker.do(lambda tx: alone(tx, asked), False)  # declares nothing

    with (
        ackflow.connect(postgres_url, upkeep=False) as q,
        ackflow.connect(postgres_url, upkeep=False) as other,
    ):
        assert popped(q, 0) == []
        for number in range(4):
            other.push("jobs", number)
            assert popped(q, number) == [number]
            assert not other.pop("jobs", group="g")


def test_a_notification_whose_connection_is_lost_is_sent_by_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notify, "RETRY_SECONDS", 0.001)
    sent = threading.Event()
    connections = 0

    def opened() -> Any:
        nonlocal connections
        connections += 1
        db = MagicMock()
        db.__enter__.return_value.execute.side_effect = (
            psycopg.OperationalError("lost") if connections == 1 else lambda _: sent.set()
        )
        return db

    notifier = notify.Notifier(opened, "ackflow")
    notifier.notify()
    assert sent.wait(30)
    notifier.close()


@pytest.mark.parametrize("deaf", [False, True])
def test_polls_for_commits_of_others_take_a_tenth_of_the_time_however_many_queues_there_are(
    deaf: bool,
) -> None:
    """One of 10,000 queues takes 40 ms; without NOTIFY there would be one every 50 ms."""
    assert notify.pause_between(5.0, 5.001, deaf) == pytest.approx(0.01 if deaf else POLL_SECONDS)
    assert notify.pause_between(5.0, 5.2, deaf) == pytest.approx(2.0)
    assert notify.pause_between(5.0, 35.0, deaf) == notify.MOST_POLL_SECONDS


def test_versions_of_deleted_queues_are_removed_after_a_day(postgres_url: str) -> None:
    def rows() -> int:
        counted = db.execute("select count(*) from ackflow.writes where fence = %s", (id,))
        return int(counted.fetchall()[0][0])

    with psycopg.connect(postgres_url, autocommit=True) as db:
        with ackflow.connect(postgres_url, upkeep=False) as q:
            q.configure("jobs")
            q.push("jobs", 1)
            id = q.broker.read(lambda tx: tx.queue("jobs").id)  # type: ignore[attr-defined, union-attr]
            q.delete_queue("jobs")
        assert rows()
        db.execute("update ackflow.writes set at = at - interval '2 days'")
        ackflow.connect(postgres_url, upkeep=False).close()
        assert not rows()


def test_brokers_work_where_the_default_isolation_is_that_of_the_first_statement(
    postgres_url: str,
) -> None:
    """With an older snapshot a broker would not see what was committed while it waited."""
    url = f"{postgres_url}?options=-c%20default_transaction_isolation%3Drepeatable%5C%20read"
    with ackflow.connect(url, upkeep=False) as q, ackflow.connect(url, upkeep=False) as other:
        q.configure("jobs")
        with ThreadPoolExecutor(2) as pool:
            for half in [
                pool.submit(lambda q=q, n=n: [q.push("jobs", m) for m in range(n, 100, 2)])
                for n, q in enumerate((q, other))
            ]:
                half.result(60)
        assert sorted(drained(q, "jobs")) == list(range(100))


def test_a_broker_that_hangs_in_the_middle_makes_others_wait_and_then_say_so(
    postgres_url: str,
) -> None:
    with ackflow.connect(f"{postgres_url}?options=-c%20lock_timeout%3D200ms", upkeep=False) as q:
        q.push("jobs", 1)
        with psycopg.connect(postgres_url) as hung:
            hung.execute("select pg_advisory_xact_lock(%s)", (lock_key("ackflow"),))
            with pytest.raises(StorageBusy):
                q.push("jobs", 2)
        q.push("jobs", 3)
        assert drained(q, "jobs") == [1, 3]


def test_time_is_that_of_the_server_whatever_this_machine_believes(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time_ns
    with ackflow.connect(postgres_url, upkeep=False) as q:
        q.push("jobs", 1)
        (message,) = q.pop("jobs", lease_seconds=1_000)
    monkeypatch.setattr(time, "time_ns", lambda: real() + 3_600 * 10**9)
    with ackflow.connect(postgres_url, upkeep=False) as fast:
        assert not fast.pop("jobs"), "a lease ended an hour early"
        assert fast.why("jobs", message.id).state == "leased"


def test_a_step_back_of_the_servers_clock_freezes_no_broker(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries of the server's time return an hour less from some moment on."""
    with ackflow.connect(postgres_url) as first, ackflow.connect(postgres_url) as second:
        first.push("q", "a")
        first.pop("q", lease_seconds=1)
        back = "clock_timestamp() - interval '1 hour'"
        monkeypatch.setattr(store, "LOOK", store.LOOK.replace("clock_timestamp()", back))
        began = time.monotonic()
        assert not second.pop("none", wait=0.5)
        assert 0.5 <= time.monotonic() - began < 5
        assert [m.data for m in second.pop("q", wait=10)] == ["a"]
        assert time.monotonic() - began < 10


def test_a_broker_that_only_reads_has_the_servers_time(postgres_url: str) -> None:
    late = store.ServerClock(lambda: time.time_ns() - 3600 * 1_000_000_000)
    with ackflow.connect(postgres_url, clock=late, upkeep=False) as q:
        assert abs(q.broker.clock.now() / 1_000_000 - time.time()) < 60


def test_a_servers_clock_that_is_years_ahead_for_a_moment_removes_nothing(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ackflow.connect(postgres_url, upkeep=False) as q:
        q.configure("q", retention_seconds=3600)
        q.push("q", ["a", "b"])
        q.pop("q", lease_seconds=600)
        right, wrong = store.LOOK, "clock_timestamp() + interval '3650 days'"
        monkeypatch.setattr(store, "LOOK", right.replace("clock_timestamp()", wrong))
        assert q.upkeep().total == 0
        q.push("q", "c")
        monkeypatch.setattr(store, "LOOK", right)
        assert [m.data for m in q.pop("q", batch=9)] == ["b", "c"]


def test_a_servers_clock_that_stays_years_ahead_is_followed_after_five_minutes() -> None:
    steady = [0]
    clock = store.ServerClock(lambda: 0, lambda: steady[0])
    start, years = 1_700_000_000_000_000, 315_360_000_000_000
    assert clock.follow(start) == start
    for seconds in (0, 100, 299):
        steady[0] = seconds * 1_000_000_000
        passed = seconds * 1_000_000
        assert clock.follow(start + passed + years) == clock.now() == start + passed
    steady[0] = 301_000_000_000
    assert clock.follow(start + 301_000_000 + years) == start + 301_000_000 + years
    assert clock.follow(start + 301_000_000 + years - 3_600_000_000) == clock.now()
