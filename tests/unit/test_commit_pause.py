"""Between two slow fsyncs, pushes wait for others that come."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.client.waiting import until

import ackflow
from ackflow.broker.aio import LoopBroker
from ackflow.broker.broker import Broker
from ackflow.broker.core.settle import settle
from ackflow.broker.requests import Mark, PopRequest, PushRequest, Verdict
from ackflow.session import encoding
from ackflow.store.commit_pause import CommitPause
from ackflow.store.sqlite import wal_sync

SYNC = 0.004  # seconds


class Turns:
    """A clock that only sleeping moves, and jobs that arrive at given times."""

    def __init__(self, *arrivals: float) -> None:
        self.now, self.arrivals = 0.0, arrivals
        self.pause = CommitPause(lambda: self.now, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def synced(self, seconds: float, times: int = 100) -> None:
        for _ in range(times):
            self.pause.timed(lambda: self.sleep(seconds))

    def paused(self, expected: int) -> float:
        start = self.now
        self.pause.wait(lambda: sum(at <= self.now - start for at in self.arrivals), expected)
        return (self.now - start) / SYNC


def test_there_is_no_pause_between_fast_syncs() -> None:
    turns = Turns()
    assert not turns.pause.worthwhile
    turns.synced(0.0009)
    assert not turns.pause.worthwhile
    turns.synced(0.0011)
    assert turns.pause.worthwhile


def test_one_slow_sync_among_many_is_no_reason_for_a_pause() -> None:
    turns = Turns()
    turns.synced(0.0001)
    turns.synced(0.005, times=1)
    assert not turns.pause.worthwhile


@pytest.mark.parametrize(
    ("arrivals", "expected", "share"),
    [
        ((), 2, 0.4),  # nothing arrives
        ((0, 0), 2, 0.0),  # all are here
        ((0, 0.1), 2, 0.1),  # the last of them arrives
        ((0, 0.1), 3, 0.5),  # no more after it
        ((0, 0.3, 0.5, 0.6), 9, 0.75),  # the longest pause
    ],
)
def test_a_pause_ends_when_all_are_here_or_no_more_arrive(
    arrivals: tuple[float, ...], expected: int, share: float
) -> None:
    turns = Turns(*(at * SYNC for at in arrivals))
    turns.synced(SYNC)
    assert turns.paused(expected) == pytest.approx(share, abs=0.051)


def test_the_pause_after_a_very_slow_sync_is_bounded() -> None:
    turns = Turns(*(at / 1000 for at in range(100)))
    turns.synced(0.5)
    start = turns.now
    turns.paused(1000)
    assert turns.now - start <= 0.01


class Held(CommitPause):
    """A pause that the test ends."""

    worthwhile = True

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.end = threading.Event(), threading.Event()
        self.waiting: Callable[[], int] = int
        self.expected = 0

    def wait(self, waiting: Callable[[], int], expected: int) -> None:
        self.waiting, self.expected = waiting, expected
        self.begun.set()
        assert self.end.wait(20)


def test_a_push_of_an_answered_client_joins_one_that_waited_and_acks_do_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs, gate, syncing = list[bool](), threading.Event(), threading.Event()

    def sync(handle: int) -> None:
        syncing.set()
        assert gate.wait(20)
        syncs.append(True)

    async def run(broker: Broker) -> None:
        loop_broker = LoopBroker(broker)
        await loop_broker.push(request(0))
        broker.writer._pause = pause = Held()
        gate.clear()
        syncing.clear()
        syncs.clear()
        first = loop_broker.push(request(1))
        await asyncio.to_thread(syncing.wait, 20)
        waits = loop_broker.push(request(2))
        await asyncio.to_thread(until, lambda: len(broker.writer._deferred) == 1)
        gate.set()
        await first
        again = loop_broker.push(request(3))
        await asyncio.to_thread(until, lambda: len(broker.writer._deferred) == 2)
        found = await loop_broker.pop(PopRequest("q", "g", "c", 1))
        assert found.token is not None
        await loop_broker.do(settle, False, found.token, [Mark(Verdict("ack"))])
        assert len(syncs) == 1
        pause.end.set()
        await asyncio.gather(waits, again)
        assert len(syncs) == 2
        loop_broker.close()

    gate.set()
    monkeypatch.setattr(wal_sync, "_sync", sync)
    with ackflow.connect(tmp_path / "a.db", upkeep=False) as q:
        assert isinstance(q.broker, Broker)
        asyncio.run(run(q.broker))


def test_a_verb_that_answers_several_calls_counts_as_so_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, syncing = threading.Event(), threading.Event()

    def sync(handle: int) -> None:
        syncing.set()
        assert gate.wait(20)

    async def run(broker: Broker) -> None:
        loop_broker = LoopBroker(broker)
        await loop_broker.push(request(0))
        broker.writer._pause = pause = Held()
        gate.clear()
        syncing.clear()
        answered = asyncio.Event()
        calls = [1, 2, 3]
        loop_broker.call(lambda tx: None, (), True, lambda job: answered.set(), calls)
        await asyncio.to_thread(syncing.wait, 20)
        waits = loop_broker.push(request(1))
        await asyncio.to_thread(until, lambda: len(broker.writer._deferred) == 1)
        gate.set()
        await answered.wait()
        await asyncio.to_thread(pause.begun.wait, 20)
        assert (pause.expected, pause.waiting()) == (4, 1)
        pause.end.set()
        await waits
        loop_broker.close()

    gate.set()
    monkeypatch.setattr(wal_sync, "_sync", sync)
    with ackflow.connect(tmp_path / "a.db", upkeep=False) as q:
        assert isinstance(q.broker, Broker)
        asyncio.run(run(q.broker))


def request(data: int) -> PushRequest:
    made, _ = encoding.request("q", [data], partition="Default", priority=0, delay=None, key=None)
    return made
