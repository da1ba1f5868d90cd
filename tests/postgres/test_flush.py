"""PostgreSQL on a slow disk: brokers that share a flush of the log."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

import ackflow
from ackflow import Session
from ackflow.store.postgres import flush
from ackflow.store.postgres.connection import PipelinedConnection
from ackflow.store.postgres.flush import Flushes

from . import server as servers
from .test_sync import store_of

BROKERS = 3


@pytest.fixture(scope="module")
def slow_disk() -> Iterator[servers.Server]:
    """A server that puts nothing on disk unless it is asked to."""
    with servers.running("wal_writer_delay=10s") as server:
        yield server


class Shares:
    """The answers of `share_flush`: whether a broker flushed, and how many others it saw."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: list[tuple[int, int]] = []
        real = PipelinedConnection.execute

        def execute(channel: PipelinedConnection, sql: str, args: Any = ()) -> Any:
            rows = real(channel, sql, args)
            if sql == flush.SHARE:
                self.answers.append(rows[0][:2])
            return rows

        monkeypatch.setattr(PipelinedConnection, "execute", execute)


def test_brokers_that_wait_for_the_disk_at_once_share_a_flush(
    slow_disk: servers.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        brokers = [
            stack.enter_context(ackflow.connect(slow_disk.url, upkeep=False))
            for _ in range(BROKERS)
        ]
        for n, q in enumerate(brokers):
            q.push(f"q{n}", 0)
            q.push(f"q{n}", 0)
            store_of(q)._flushes._seconds = 0.01  # as if the disk were slow
        shares = Shares(monkeypatch)
        key = store_of(brokers[0])._flushes._lock_key
        with psycopg.connect(slow_disk.url) as holder, ThreadPoolExecutor(BROKERS) as pool:
            holder.execute("select pg_advisory_xact_lock(%s)", (key,))
            pushes = [pool.submit(q.push, f"q{n}", 1) for n, q in enumerate(brokers)]
            waiting = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
            deadline = time.monotonic() + 60
            while holder.execute(waiting).fetchone() != (BROKERS,):
                assert time.monotonic() < deadline
                time.sleep(0.005)
            assert not any(push.done() for push in pushes)
            holder.rollback()
            for push in pushes:
                push.result(60)
        assert sorted(led for led, _ in shares.answers) == [0, 0, 1]
        assert (1, BROKERS - 1) in shares.answers
        assert all(not store_of(q)._record.pending() for q in brokers)
        slow_disk.kill()
        slow_disk.start()
        for n, q in enumerate(brokers):
            assert [m.data for m in q.browse(f"q{n}", after=None)] == [0, 0, 1]


def test_a_broker_alone_does_not_wait_for_others(
    slow_disk: servers.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ackflow.connect(slow_disk.url, upkeep=False) as q:
        q.push("alone", 0)
        flushes = store_of(q)._flushes
        flushes._seconds = 30.0  # it would wait for 4 ms of the 10 that count
        shares = Shares(monkeypatch)
        for n in range(20):
            q.push("alone", n)
        assert shares.answers == [(1, 0)] * 20
        assert flushes._expected == 0


def test_a_hung_broker_with_the_lock_delays_no_flush_beyond_the_lock_timeout(
    slow_disk: servers.Server,
) -> None:
    url = f"{slow_disk.url}?options=-c%20lock_timeout%3D200ms"
    with ackflow.connect(url, upkeep=False) as q, psycopg.connect(slow_disk.url) as holder:
        q.push("hung", 0)
        flushes = store_of(q)._flushes
        flushes._seconds = 0.01
        holder.execute("select pg_advisory_xact_lock(%s)", (flushes._lock_key,))
        q.push("hung", 1)
        assert not store_of(q)._record.pending()


def test_on_a_fast_disk_every_broker_flushes_on_its_own(
    slow_disk: servers.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ackflow.connect(slow_disk.url, upkeep=False) as q:
        shares = Shares(monkeypatch)
        flushes = store_of(q)._flushes
        for n in range(10):
            flushes._seconds = 0.0002
            q.push("fast", n)
        assert not shares.answers


class Answers:
    """A connection whose flushes are answered by what is given."""

    def __init__(self, *answers: tuple[int, int]) -> None:
        self._answers = iter(answers)
        self.expected: list[int] = []

    def execute(self, _sql: str, args: tuple[int, int, int]) -> list[tuple[int, int, int]]:
        self.expected.append(args[1])
        return [(*next(self._answers), 0)]


def test_as_many_others_are_expected_as_came_lately() -> None:
    led_alone, shared = (1, 0), (0, 0)
    channel: Any = Answers((1, 2), led_alone, (1, 1), shared, *[led_alone] * 12, shared, led_alone)
    seconds = iter(range(10_000))
    flushes = Flushes(1, now=lambda: next(seconds) * 0.01)
    flushes.may_share, flushes._seconds = True, 0.01
    for _ in range(18):
        flushes.flush(channel)
    assert channel.expected == [0, 2, 2, 1, *[1] * 8, *[0] * 5, 1]


def test_a_session_flushes_on_its_own_without_functions(slow_disk: servers.Server) -> None:
    def shared(q: Session) -> bool:
        store_of(q)._flushes._seconds = 0.01
        return bool(store_of(q)._flushes.shared)

    with ackflow.connect(f"{slow_disk.url}?without=functions", upkeep=False) as q:
        assert not shared(q)
    with ackflow.connect(slow_disk.url, upkeep=False) as q:
        assert shared(q)
