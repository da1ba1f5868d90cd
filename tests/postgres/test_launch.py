"""PostgreSQL: an event loop that sends the pushes of its clients, and serves them meanwhile."""

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

import ackflow
from ackflow import Session
from ackflow.broker.aio import READ, LoopBroker
from ackflow.broker.brief import MAX_BYTES
from ackflow.broker.requests import PushRequest
from ackflow.session import encoding
from ackflow.store.postgres.commits import Commits
from ackflow.store.postgres.connection import PipelinedConnection
from ackflow.store.postgres.flight import Flight
from ackflow.store.postgres.short import FIRST_PAUSE_SECONDS, MOST_MICROSECONDS

from . import server as servers
from .test_sync import store_of


@pytest.fixture
def q(postgres_url: str) -> Iterator[Session]:
    with ackflow.connect(postgres_url, upkeep=False) as session:
        prepare(session)
        yield session


def prepare(q: Session) -> None:
    q.push("jobs", "first")  # makes the queue
    on_loop(q, lambda broker: broker.do(lambda _: None, False))  # starts the helpers
    q.push("jobs", "begun")
    store_of(q)._flushes._seconds = 0.0


def on_loop(q: Session, main: Callable[[LoopBroker], Any]) -> Any:
    async def run() -> Any:
        broker = LoopBroker(q.broker)  # type: ignore[arg-type]
        broker.leads = True
        try:
            return await main(broker)
        finally:
            broker.close()

    return asyncio.run(run())


def request(data: object, partition: str = "Default") -> PushRequest:
    made, _ = encoding.request(
        "jobs", [data], partition=partition, priority=0, delay=None, key=None
    )
    return made


def stored(q: Session) -> list[Any]:
    return sorted((m.data for m in q.pop("jobs", batch=1_000)), key=str)


class Launches:
    """Counts the transactions that the loop sent, and the threads that ran one."""

    def __init__(self, q: Session, monkeypatch: pytest.MonkeyPatch) -> None:
        self.groups: list[int] = []
        self.by_threads = 0
        store = store_of(q)
        launch, transact = store.launch, store.transact

        def launched(body: Any, reaches: Any) -> Any:
            flight = launch(body, reaches)
            if flight is not None:
                self.groups.append(len(reaches))
            return flight

        def transacted(*args: Any) -> Any:
            self.by_threads += threading.current_thread() is not threading.main_thread()
            return transact(*args)

        monkeypatch.setattr(store, "launch", launched)
        monkeypatch.setattr(store, "transact", transacted)


async def waves(broker: LoopBroker) -> None:
    """Push while pushes are on their way."""
    first = [broker.push(request(n)) for n in range(3)]
    await asyncio.sleep(0)
    second = [broker.push(request(n)) for n in range(3, 7)]
    await asyncio.gather(*first, *second)


def test_what_arrives_while_pushes_are_on_their_way_is_the_next_group(
    q: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = Launches(q, monkeypatch)
    on_loop(q, waves)
    assert launches.groups == [3, 4]
    assert launches.by_threads == 0
    record = store_of(q)._record
    assert record.synced == record.committed
    assert stored(q) == [*range(7), "begun", "first"]


def test_pushes_after_those_of_another_broker_are_run_again_by_a_thread(
    q: Session, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ackflow.connect(postgres_url, upkeep=False) as other:
        other.push("jobs", "other")
    launches = Launches(q, monkeypatch)
    on_loop(q, waves)
    assert launches.groups == [3]
    assert launches.by_threads >= 1
    assert stored(q) == [*range(7), "begun", "first", "other"]


def test_a_push_that_needs_an_answer_is_left_to_a_thread(
    q: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches, connection = Launches(q, monkeypatch), store_of(q)._writer
    on_loop(q, lambda broker: broker.push(request("new", "another partition")))
    assert store_of(q)._writer is connection
    assert (launches.groups, launches.by_threads) == ([], 1)
    assert store_of(q)._short._pause == 2 * FIRST_PAUSE_SECONDS, "the next attempt waits"
    assert stored(q) == ["begun", "first", "new"]


def test_payloads_of_a_transaction_that_was_dropped_are_not_handed_out(postgres_url: str) -> None:
    """A thread then stores other messages in their place."""
    with ackflow.connect(postgres_url, upkeep=False) as other:
        other.push("jobs", "before", partition="not cached")
    keyed, _ = encoding.request(
        "jobs", ["keyed"], partition="Default", priority=0, delay=None, key="key"
    )
    with ackflow.connect(postgres_url, upkeep=False) as q:
        prepare(q)
        assert len(stored(q)) == 3
        q.push("jobs", "cached")

        async def push(broker: LoopBroker) -> None:
            plain = [request("plain"), request("new", "not cached")]
            await asyncio.gather(*(broker.push(one) for one in [*plain, keyed]))

        on_loop(q, push)
        assert stored(q) == ["cached", "keyed", "new", "plain"]


def test_pushes_too_large_for_one_turn_are_sent_one_after_the_other(
    q: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = "x" * (MAX_BYTES // 2)
    q.push("jobs", large)  # takes ids for others
    launches = Launches(q, monkeypatch)

    async def push(broker: LoopBroker) -> None:
        await asyncio.gather(*(broker.push(request(large)) for _ in range(3)))

    on_loop(q, push)
    assert launches.groups == [1, 1, 1]
    assert len(stored(q)) == 6


def test_a_busy_loop_that_reads_an_answer_late_keeps_the_time(
    q: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches, real = Launches(q, monkeypatch), Flight.land

    def land(flight: Flight[Any]) -> Any:
        time.sleep(1.5 * MOST_MICROSECONDS / 1e6)  # the clock of the server goes on
        return real(flight)

    monkeypatch.setattr(Flight, "land", land)
    on_loop(q, waves)
    assert (launches.groups, launches.by_threads) == ([3, 4], 0)


def test_a_loop_that_ends_waits_for_what_it_has_sent(q: Session) -> None:
    async def leave(broker: LoopBroker) -> None:
        broker.push(request("sent"))
        await asyncio.sleep(0)
        broker.push(request("waiting"))
        await asyncio.sleep(0)

    on_loop(q, leave)
    assert stored(q) == ["begun", "first", "sent", "waiting"]


def test_a_lost_answer_is_no_reason_to_push_twice(
    q: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = PipelinedConnection.take

    def lose(channel: PipelinedConnection, found: Any) -> None:
        monkeypatch.setattr(PipelinedConnection, "take", real)
        real(channel, found)
        raise psycopg.OperationalError("the connection is lost")

    monkeypatch.setattr(PipelinedConnection, "take", lose)
    on_loop(q, waves)
    assert stored(q) == [*range(7), "begun", "first"]


def test_pushes_are_stored_once_when_other_brokers_cannot_be_notified(
    q: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> threading.Thread:
        raise RuntimeError("can't start new thread")

    notifier = store_of(q)._notifier
    with monkeypatch.context() as patch:
        patch.setattr(notifier, "_sender", None)
        patch.setattr(notifier, "_start", refuse)
        on_loop(q, waves)
    assert stored(q) == [*range(7), "begun", "first"]


def test_a_hung_broker_makes_pushes_wait_for_its_lock_only_once(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = "-c idle_in_transaction_session_timeout=100ms -c lock_timeout=1500ms"
    url = f"{postgres_url}?options={quote(times)}"
    with (
        ackflow.connect(url, upkeep=False) as q,
        contextlib.closing(psycopg.connect(postgres_url)) as hung,
    ):
        prepare(q)
        store, errors = store_of(q), list[type]()
        undo = store._undo

        def undone(channel: PipelinedConnection, error: BaseException) -> None:
            errors.append(type(error))
            undo(channel, error)

        monkeypatch.setattr(store, "_undo", undone)
        keys = store._locks.keys([q.broker.look(lambda tx: tx.queue("jobs").id)])
        hung.execute("select pg_advisory_xact_lock(%s)", keys)
        on_loop(q, waves)
        assert errors == [psycopg.errors.LockNotAvailable]
        assert stored(q) == [*range(7), "begun", "first"]


@pytest.mark.parametrize("before", [True, False])
def test_pushes_on_their_way_to_a_server_that_is_killed_are_stored_once(
    monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    with servers.running() as server, ackflow.connect(server.url, upkeep=False) as q:
        prepare(q)
        real = Commits._launched
        starting = threading.Thread(target=server.start)

        def crash(store: Any, channel: Any, tx: Any, rows: Any) -> Any:
            monkeypatch.setattr(Commits, "_launched", real)
            if before:
                server.kill()
            coming = real(store, channel, tx, rows)
            if not before:
                channel.db.wait(coming)  # it is committed, and the answer is lost
                server.kill()
                coming = channel.coming()
            starting.start()
            return coming

        monkeypatch.setattr(Commits, "_launched", crash)
        on_loop(q, waves)
        assert stored(q) == [*range(7), "begun", "first"]
        starting.join()


def test_a_connection_that_is_lost_behind_some_data_ends_the_step_that_reads_it() -> None:
    """An event loop may report such a connection once, and not watch it after that."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
    ours.setblocking(False)

    def coming() -> Any:
        while True:
            yield READ
            ours.recv(2)

    flight = Flight(ours.fileno(), coming, lambda _: None, lambda _: None)
    with ours:
        flight.start()
        assert flight.wants == READ
        theirs.sendall(b"some")
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        theirs.close()  # with a reset
        flight.step(READ)
        assert not flight.wants
        assert flight.land() is None  # it must be resolved
