"""Which verbs sync the WAL, and what happens when the disk fails or a signal arrives."""

import asyncio
import errno
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from tests.client.waiting import until

import ackflow
import ackflow.aio
from ackflow.broker.aio import LoopBroker
from ackflow.broker.requests import PopRequest, PushRequest
from ackflow.errors import OutcomeUnknown
from ackflow.session import encoding
from ackflow.store.durability import MayLose
from ackflow.store.sqlite import wal_sync


class Syncs:
    """Counts syncs; `then` is called during the next one."""

    def __init__(self) -> None:
        self.count = 0
        self.then: Callable[[], None] | None = None

    def __call__(self, handle: int) -> None:
        then, self.then = self.then, None
        if then is not None:
            then()
        self.count += 1


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    made = Syncs()
    monkeypatch.setattr(wal_sync, "_sync", made)
    return made


def open_in(folder: Path, may_lose: MayLose = "acks") -> ackflow.Session:
    return ackflow.connect(folder / "a.db", upkeep=False, may_lose=may_lose)


def fail() -> None:
    raise OSError(errno.EIO, "Input/output error")


class Alarm(Exception):
    """An exception other than KeyboardInterrupt that a signal handler may raise."""


def test_a_push_is_synced_once_and_a_pop_and_an_ack_are_not(tmp_path: Path, syncs: Syncs) -> None:
    with open_in(tmp_path) as q:
        q.push("q", [1, 2])
        assert syncs.count == 1
        first, second = q.pop("q", batch=2)
        first.ack()
        assert syncs.count == 1
        second.ack(confirm=True)
        assert syncs.count == 2


@pytest.mark.parametrize("may_lose", ["nothing", "recent", "everything"])
def test_in_other_modes_nothing_is_synced_by_hand(
    tmp_path: Path, syncs: Syncs, may_lose: MayLose
) -> None:
    with open_in(tmp_path, may_lose) as q:
        q.push("q", 1)
    assert syncs.count == 0


def test_a_failed_sync_raises_outcome_unknown(tmp_path: Path, syncs: Syncs) -> None:
    with open_in(tmp_path) as q:
        syncs.then = fail
        with pytest.raises(OutcomeUnknown, match="did not confirm a commit"):
            q.push("q", "maybe")
        q.push("q", "sure")
        assert [m.data for m in q.pop("q", batch=10)] == ["maybe", "sure"]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, Alarm])
def test_an_interrupt_during_a_sync_comes_after_it_and_pushes_once(
    tmp_path: Path, syncs: Syncs, interrupt: type[BaseException]
) -> None:
    def raised() -> None:
        raise interrupt

    with open_in(tmp_path) as q:
        syncs.then = raised
        with pytest.raises(interrupt):
            q.push("q", "once")
        assert syncs.count == 1
        assert [m.data for m in q.pop("q", batch=10)] == ["once"]


def meanwhile(syncs: Syncs, q: ackflow.Session, *calls: Callable[[], object]) -> list[Exception]:
    """Start calls in separate threads while one push is synced; returns their errors."""
    errors = list[Exception]()

    def run(call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]

    def start() -> None:
        for thread in threads:
            thread.start()
        held = q._broker.writer._deferred  # each call has returned, or waits for the next sync
        until(lambda: sum(thread.is_alive() for thread in threads) <= len(held))

    syncs.then = start
    q.push("q", "first")
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    return errors


def test_a_pop_and_an_ack_do_not_wait_for_a_sync(tmp_path: Path, syncs: Syncs) -> None:
    with open_in(tmp_path) as q:
        q.push("q", "old")

        def work() -> None:
            q.ack(q.pop("q"))
            assert syncs.count == 1, "the second sync has not ended"

        assert meanwhile(syncs, q, work) == []
        assert q.group_stats("q").counts.done == 1
        assert syncs.count == 2


def test_verbs_that_arrive_during_a_sync_share_the_next_one(tmp_path: Path, syncs: Syncs) -> None:
    with open_in(tmp_path) as q:
        assert meanwhile(syncs, q, *[partial(q.push, "q", n) for n in range(8)]) == []
        assert syncs.count == 2
        assert len(q.pop("q", batch=10)) == 9


def test_one_that_leads_and_needs_no_sync_leaves_it_to_one_that_does(
    tmp_path: Path, syncs: Syncs
) -> None:
    with open_in(tmp_path) as q, ThreadPoolExecutor(2) as pool:
        q.push("q", "old")
        writer = q._broker.writer
        ended = threading.Event()
        syncs.then = lambda: assert_in_time(ended)
        with writer.exclusively():
            popped = pool.submit(q.pop, "q")
            until(lambda: len(writer._queue) == 1)
            pushed = pool.submit(q.push, "q", "new")
            until(lambda: len(writer._queue) == 2)
        assert [m.data for m in popped.result(10)] == ["old"]
        assert not pushed.done()
        ended.set()
        assert len(pushed.result(10)) == 1


def test_no_thread_waits_for_the_sync_of_the_main_thread_either(
    tmp_path: Path, syncs: Syncs
) -> None:
    """It runs nothing for others, and therefore no sync: a helper thread does."""
    with open_in(tmp_path) as q, ThreadPoolExecutor(2) as pool:
        q.push("q", "old")
        writer = q._broker.writer
        ended = threading.Event()
        syncs.then = lambda: assert_in_time(ended)
        queued = threading.Event()

        def watch() -> list[object]:
            with writer.exclusively():
                popped = pool.submit(q.pop, "q")
                until(lambda: len(writer._queue) == 1)
                queued.set()
                until(lambda: len(writer._queue) == 2)
            found = [m.data for m in popped.result(10)]
            ended.set()
            return found

        watching = pool.submit(watch)
        assert queued.wait(10)
        assert len(q.push("q", "new")) == 1
        assert watching.result(10) == ["old"]


def test_an_unknown_outcome_reaches_every_waiter_and_nothing_is_pushed_twice(
    tmp_path: Path, syncs: Syncs
) -> None:
    with open_in(tmp_path) as q, ThreadPoolExecutor(4) as pool:
        writer = q._broker.writer
        with writer.exclusively():
            pushed = [pool.submit(q.push, "q", n) for n in range(4)]
            until(lambda: len(writer._queue) == 4)
            syncs.then = fail
        assert [type(push.exception(10)) for push in pushed] == [OutcomeUnknown] * 4
        assert sorted(m.data for m in q.pop("q", batch=10)) == [0, 1, 2, 3]


def test_an_asyncio_session_goes_on_while_a_push_is_synced(tmp_path: Path, syncs: Syncs) -> None:
    async def work() -> None:
        q = await ackflow.aio.connect(tmp_path / "a.db", upkeep=False)
        await q.push("q", ["a", "b"])
        ended = threading.Event()
        syncs.then = lambda: assert_in_time(ended)
        pushing = asyncio.create_task(q.push("q", "c"))
        while syncs.then is not None:
            await asyncio.sleep(0)
        await q.ack(await q.pop("q"))
        assert not pushing.done()
        ended.set()
        await pushing
        await q.close()

    asyncio.run(asyncio.wait_for(work(), 20))


def test_a_server_goes_on_while_a_push_is_synced(tmp_path: Path, syncs: Syncs) -> None:
    def push(n: int) -> PushRequest:
        return encoding.request("q", n, partition="p", priority=0, delay=None, key=None)[0]

    async def work(q: ackflow.Session) -> None:
        on_loop = LoopBroker(q._broker)
        await on_loop.push(push(0))
        ended = threading.Event()
        syncs.then = lambda: assert_in_time(ended)
        pushing = on_loop.push(push(1))
        while syncs.then is not None:
            await asyncio.sleep(0)
        following = [on_loop.push(push(n)) for n in range(2, 9)]
        handout = await on_loop.pop(PopRequest("q", "g", "c"))
        assert [run.hi - run.lo for run in handout.runs] == [1]
        assert not pushing.done()
        ended.set()
        await asyncio.gather(pushing, *following)
        assert syncs.count == 3

    with open_in(tmp_path) as q:
        asyncio.run(asyncio.wait_for(work(q), 20))
        assert len(q.pop("q", batch=10)) == 9


def assert_in_time(event: threading.Event) -> None:
    assert event.wait(10)
