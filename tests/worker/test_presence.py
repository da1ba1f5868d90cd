"""Which workers run: what they say about themselves, and when they disappear."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import ackflow
from ackflow import VirtualClock
from ackflow.broker import access_tokens
from ackflow.worker import ACK, Worker, workers
from ackflow.worker.coordination import presence
from ackflow.worker.coordination.presence import LIVE_SECONDS, MOST_RUNNING, Presence

from ..running import Running as Server
from .conftest import Running, until


def token_for_orders(tx: Any) -> str:
    return access_tokens.create(tx, "w", [access_tokens.grant("read-write:orders")], None)


class Consumer:
    """Stands for a consumer with nothing to do."""

    def report(self) -> dict[str, Any]:
        counts = dict.fromkeys(
            ("received", "acked", "rejected", "requeued", "failed", "put_off", "returned", "lost"),
            0,
        )
        return {"queues": [], "mode": "round-robin", "concurrency": 1, "busy": 0, "running": [],
                "reason": None, **counts}  # fmt: skip


@contextmanager
def at_work(worker: Worker, **options: object) -> Iterator[None]:
    running = Running(worker, **options)
    try:
        yield
    finally:
        running.stop()
        worker.close()


def test_a_worker_that_waits_is_listed_with_its_queues_and_processors(tmp_path: Path) -> None:
    worker = Worker(tmp_path / "a.db")

    @worker.processor("orders", group="billing")
    def bill(message: Any) -> Any:
        return ACK

    @worker.task(queue="mail")
    def send(to: str) -> None: ...

    with at_work(worker, concurrency=3), ackflow.connect(tmp_path / "a.db") as q:
        until(lambda: workers(q))
        [found] = workers(q)
        assert [
            (one.queue, one.group, [name.rpartition(".")[2] for name in one.handlers])
            for one in found.queues
        ] == [
            ("orders", "billing", ["bill"]), ("mail", "__QUEUE_MODE__", ["send"])
        ]  # fmt: skip
        assert (found.concurrency, found.busy, found.running) == (3, 0, [])
        assert found.consumer == worker.session.consumer
    with ackflow.connect(tmp_path / "a.db") as q:
        assert workers(q) == []
        assert q.values("workers/") == []


def test_what_a_worker_does_now_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "CHANGED_SECONDS", 0.02)
    worker = Worker(tmp_path / "a.db")
    release = threading.Event()

    @worker.processor("orders")
    def bill(message: Any) -> Any:
        release.wait(30)
        return ACK

    with ackflow.connect(tmp_path / "a.db") as q, at_work(worker, concurrency=30):
        q.push("orders", list(range(30)))

        until(lambda: [one for one in workers(q) if one.busy == 30])
        [found] = workers(q)
        assert len(found.running) == MOST_RUNNING
        assert {one.handler.rpartition(".")[2] for one in found.running} == {"bill"}
        assert found.running[0].since <= found.seen_at
        release.set()
        until(lambda: [one for one in workers(q) if one.acked == 30])
        [done] = workers(q)
        assert (done.received, done.failed) == (30, 0)


def test_a_worker_that_was_killed_disappears(clock: VirtualClock) -> None:
    with ackflow.connect(":memory:", clock=clock, upkeep=False) as q:
        killed = Presence(q, Consumer())
        assert killed._write(killed._info())
        assert len(workers(q)) == 1
        clock.advance(LIVE_SECONDS)
        assert workers(q) == []


def test_a_worker_of_a_clock_that_was_ahead_is_not_listed(clock: VirtualClock) -> None:
    with ackflow.connect(":memory:", clock=clock, upkeep=False) as q:
        other = Presence(q, Consumer())
        assert other._write(other._info())
        [value] = q.values("workers/")
        assert presence._is_live(value, clock.now())
        assert not presence._is_live(value, clock.now() - 3_600_000_000)


def test_a_worker_whose_token_is_for_some_queues_runs_unlisted() -> None:
    with ackflow.connect(":memory:") as behind:
        server = Server(behind)
        try:
            token = behind.broker.do(token_for_orders, True)
            behind.push("orders", 1)
            worker = Worker(server.url, token=token)
            done = threading.Event()

            @worker.processor("orders")
            def bill(message: Any) -> Any:
                done.set()
                return ACK

            with at_work(worker):
                assert done.wait(30)
            assert workers(behind) == []
        finally:
            server.stop()
