"""PostgreSQL: commits that are synced after their locks are free, and crashes in between."""

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import ackflow
from ackflow import Session
from ackflow.ids import LaneId
from ackflow.store.postgres.connection import PipelinedConnection
from ackflow.store.postgres.store import PostgresStore
from ackflow.store.postgres.sync import SyncRecord
from ackflow.store.protocol import EVERYTHING

from . import server as servers


@pytest.fixture
def slow_disk() -> Iterator[servers.Server]:
    """A server that puts nothing on disk unless it is asked to."""
    with servers.running("wal_writer_delay=10s") as server:
        yield server


def store_of(q: Session) -> Any:
    store = q.broker.store
    assert isinstance(store, PostgresStore)
    return store


def push_together(q: Session, *numbers: int, fast_disk: bool = False) -> list[Any]:
    """Push in one group; unless the disk is fast, the sync follows on another connection."""
    store_of(q)._flushes._seconds = 0.0001 if fast_disk else 0.001
    writer: Any = q.broker.writer  # type: ignore[attr-defined]
    with ThreadPoolExecutor(len(numbers)) as pool:
        with writer.exclusively():
            calls = [pool.submit(q.push, "jobs", number) for number in numbers]
            deadline = time.monotonic() + 30
            while len(writer._queue) < len(numbers):
                assert time.monotonic() < deadline
                time.sleep(0.001)
        return [call.exception(60) for call in calls]


def test_pushes_whose_commit_a_crash_loses_before_the_sync_are_run_again(
    slow_disk: servers.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ackflow.connect(slow_disk.url, upkeep=False) as q:
        q.push("jobs", 0)
        store = store_of(q)
        real = store._write_sync

        def crash() -> None:
            monkeypatch.setattr(store, "_write_sync", real)
            slow_disk.kill()
            slow_disk.start()
            real()

        monkeypatch.setattr(store, "_write_sync", crash)
        slow_disk.process("walwriter").suspend()  # its turn could come on a busy machine
        assert push_together(q, 1, 2) == [None, None]
        assert store._record.lost, "the crash lost nothing, so this tests nothing"
        assert sorted(m.data for m in q.pop("jobs", batch=10)) == [0, 1, 2]


def test_pushes_whose_connection_alone_is_lost_before_the_sync_are_not_run_again(
    slow_disk: servers.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ackflow.connect(slow_disk.url, upkeep=False) as q:
        q.push("jobs", 0)
        store = store_of(q)
        assert push_together(q, 1, 2) == [None, None]  # it has both connections now
        real = store._write_sync

        def lose() -> None:
            monkeypatch.setattr(store, "_write_sync", real)
            if store._syncer is not None:  # it is called again after the loss
                store._syncer.db.close()
            real()

        monkeypatch.setattr(store, "_write_sync", lose)
        assert push_together(q, 3, 4) == [None, None]
        assert not store._record.lost
        assert sorted(m.data for m in q.pop("jobs", batch=10)) == [0, 1, 2, 3, 4]


def test_a_segment_is_noted_as_unsynced_while_the_commit_before_it_is_confirmed() -> None:
    """Otherwise a pop of the same broker would show it before it is on disk."""
    record, lane = SyncRecord(), LaneId(5)
    record.committed = record.begin()
    record.note(lane, 0)  # the next transaction runs, and appends to a lane
    record.confirm(record.committed)  # by the thread that synced the one before
    record.committed = record.begin()
    assert record.unsynced(lane, 1)
    record.confirm(record.committed)
    assert not record.unsynced(lane, 1)


def pop_alone(q: Session) -> Any:
    """Pop with the whole schema, by a broker that has compared no versions yet."""
    store_of(q)._forget()
    q.broker.writer._runner._reach_of = lambda *_: EVERYTHING  # type: ignore[attr-defined]
    return q.pop("jobs", batch=10)


READS: dict[str, Callable[[Session], Iterable[Any]]] = {
    "pop": lambda q: q.pop("jobs"),
    "pop of a new group": lambda q: q.pop("jobs", group=secrets.token_hex(4), batch=10),
    "pop alone in the schema": pop_alone,
    "browse": lambda q: q.browse("jobs", after=None),
}


@pytest.mark.parametrize(
    "read", ["pop", pytest.param("pop of a new group", marks=pytest.mark.outer),
             "pop alone in the schema", "browse"]
)  # fmt: skip
def test_what_another_broker_pushed_is_on_disk_before_it_is_shown(
    slow_disk: servers.Server, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    """The pusher does not get as far as its sync; the id that was shown must not be given again."""
    with ackflow.connect(slow_disk.url, upkeep=False) as q:
        q.push("jobs", 0)
        with ackflow.connect(slow_disk.url, upkeep=False) as other:
            assert [m.data for m in other.pop("jobs")] == [0]
            stopped = threading.Event()
            monkeypatch.setattr(store_of(q), "_write_sync", lambda: stopped.wait(60))
            with ThreadPoolExecutor(1) as pool:
                pushing = pool.submit(push_together, q, 1, 2)
                found: list[Any] = []
                deadline = time.monotonic() + 30
                while not found and time.monotonic() < deadline:
                    found = [m for m in READS[read](other) if m.data]
                assert not pushing.done()
                slow_disk.kill()
                slow_disk.start()
                with ackflow.connect(slow_disk.url, upkeep=False) as fresh:
                    assert fresh.message("jobs", found[0].id).data == found[0].data
                stopped.set()
                pushing.result(60)
    with ackflow.connect(slow_disk.url, upkeep=False) as q:
        assert q.message("jobs", found[0].id).data == found[0].data


@pytest.mark.outer
def test_what_a_crash_loses_while_it_is_read_is_not_shown(
    slow_disk: servers.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ackflow.connect(slow_disk.url, upkeep=False) as q:
        q.push("jobs", 0)
        with ackflow.connect(slow_disk.url, upkeep=False) as other:
            assert len(list(other.browse("jobs", after=None))) == 1
            stopped = threading.Event()
            monkeypatch.setattr(store_of(q), "_write_sync", lambda: stopped.wait(60))
            real = PipelinedConnection.commit

            def crash(self: PipelinedConnection, behind: str | None = None, *args: Any) -> float:
                if behind is not None:
                    monkeypatch.setattr(PipelinedConnection, "commit", real)
                    real(self)
                    slow_disk.kill()
                    slow_disk.start()
                return real(self, behind, *args)

            with ThreadPoolExecutor(1) as pool:
                pushing = pool.submit(push_together, q, 1, 2)
                while len(store_of(q)._record.pending()) < 1:
                    time.sleep(0.001)
                monkeypatch.setattr(PipelinedConnection, "commit", crash)
                shown = [m.data for m in other.browse("jobs", after=None)]
                assert PipelinedConnection.commit is real, "no crash, so this tests nothing"
                stopped.set()
                assert pushing.result(60) == [None, None]
            assert shown == [0], "messages were shown that were lost"
