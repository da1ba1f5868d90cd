"""An event loop commits short groups itself, and never waits for anything but a short fsync."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

import ackflow
from ackflow import Session
from ackflow.broker.aio import LoopBroker
from ackflow.broker.brief import MAX_POP, brief
from ackflow.broker.core.pop import pop
from ackflow.broker.requests import PopRequest, PushRequest
from ackflow.errors import InvalidArgument, OutcomeUnknown
from ackflow.session import encoding
from ackflow.store.group_commit import Writer
from ackflow.store.sqlite.checkpoint import SOON_PAGES
from ackflow.store.tx import Tx


class Always:
    """A budget that allows everything, however busy the machine of the tests is."""

    def __init__(self) -> None:
        self.allowed = True
        self.turns = 0

    def allows(self) -> bool:
        return self.allowed

    def synced(self, _: float) -> None:
        pass

    def ran(self, _: float) -> None:
        self.turns += 1


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


@pytest.fixture
def q(path: Path) -> Iterator[Session]:
    with ackflow.connect(path, upkeep=False) as session:
        session.configure("jobs")
        session.push("jobs", "first")  # also looks for space on the disk
        on_loop(session, lambda broker: broker.do(lambda _: None, False))  # starts the helpers
        writer_of(session)._budget = Always()  # type: ignore[assignment]
        yield session


def writer_of(q: Session) -> Writer:
    return q.broker.writer  # type: ignore[attr-defined,no-any-return]


def on_loop(q: Session, main: Callable[[LoopBroker], Any]) -> Any:
    async def run() -> Any:
        broker = LoopBroker(q.broker)  # type: ignore[arg-type]
        broker.leads = True
        try:
            return await main(broker)
        finally:
            broker.close()

    return asyncio.run(run())


def request(data: object) -> PushRequest:
    made, _ = encoding.request(
        "jobs", [data], partition="Default", priority=0, delay=None, key=None
    )
    return made


@brief
def where(_: Tx) -> int:
    return threading.get_ident()


@brief
def failing(_: Tx) -> None:
    raise RuntimeError("a defect")


@brief
def refusing(_: Tx) -> None:
    raise InvalidArgument("no")


def test_a_push_is_committed_and_synced_by_the_loop(q: Session) -> None:
    store = q.broker.store  # type: ignore[attr-defined]
    synced = []

    def sync() -> None:
        synced.append(threading.get_ident())
        log()

    log, store._sync_log = store._sync_log, sync
    answer = on_loop(q, lambda broker: broker.push(request("second")))
    assert synced == [threading.get_ident()]
    assert len(answer) == 1
    assert store._record.reached(store._committed)
    assert [m.data for m in q.pop("jobs", batch=9)] == ["first", "second"]


def test_jobs_of_one_turn_are_one_commit_in_their_order(q: Session) -> None:
    before = writer_of(q).commits

    async def main(broker: LoopBroker) -> Any:
        return await asyncio.gather(
            broker.push(request(1)), broker.do(where, False),
            broker.do(pop, False, PopRequest("jobs", "g", "c", batch=9)), broker.push(request(2)),
        )  # fmt: skip

    _, thread, popped, _ = on_loop(q, main)
    assert thread == threading.get_ident()
    assert sum(run.hi - run.lo for run in popped.runs) == 2, (
        "what was pushed after it is not there yet"
    )
    assert writer_of(q).commits == before + 1


def test_a_refusal_reaches_its_caller_alone(q: Session) -> None:
    async def main(broker: LoopBroker) -> Any:
        calls = broker.push(request(1)), broker.do(refusing, False), broker.do(where, False)
        return await asyncio.gather(*calls, return_exceptions=True)

    pushed, refused, thread = on_loop(q, main)
    assert len(pushed) == 1
    assert isinstance(refused, InvalidArgument)
    assert thread == threading.get_ident()


def test_a_defect_fails_its_verb_alone_and_nothing_is_done_twice(q: Session) -> None:
    async def main(broker: LoopBroker) -> Any:
        calls = broker.push(request(1)), broker.do(failing, False), broker.do(where, False)
        return await asyncio.gather(*calls, return_exceptions=True)

    pushed, failed, thread = on_loop(q, main)
    assert len(pushed) == 1
    assert isinstance(failed, RuntimeError)
    assert thread != threading.get_ident(), "a helper isolates the verb that failed"
    assert [m.data for m in q.pop("jobs", batch=9)] == ["first", 1]


def handed_over(q: Session) -> bool:
    """Whether another thread runs what the loop is given now."""
    return bool(on_loop(q, lambda broker: broker.do(where, False)) != threading.get_ident())


def test_a_pop_that_shows_a_push_of_another_process_waits_until_that_is_on_disk(
    q: Session, path: Path
) -> None:
    with ackflow.connect(path, upkeep=False) as other:
        other.broker.store.sync = None  # type: ignore[attr-defined]  # it dies before its sync
        other.push("jobs", "second")
    store = q.broker.store  # type: ignore[attr-defined]
    assert store._record.synced < store._record.begun
    popped = on_loop(q, lambda broker: broker.try_pop(PopRequest("jobs", "g", "c", batch=9)))
    assert sum(run.hi - run.lo for run in popped.runs) == 2
    assert store._record.synced == store._record.begun


def test_the_first_call_starts_the_threads_that_others_may_need(path: Path) -> None:
    with ackflow.connect(path, upkeep=False) as session:
        session.push("jobs", "first")
        writer_of(session)._budget = Always()  # type: ignore[assignment]
        assert handed_over(session)
        assert not handed_over(session)


def test_slow_fsyncs_are_left_to_another_thread(q: Session) -> None:
    assert not handed_over(q)
    writer_of(q)._budget.allowed = False  # type: ignore[attr-defined]
    assert handed_over(q)


def test_a_lock_of_another_process_is_waited_for_by_another_thread(q: Session, path: Path) -> None:
    other = apsw.Connection(str(path))
    other.execute("begin immediate")

    async def main(broker: LoopBroker) -> Any:
        pushed = broker.push(request("second"))
        until = time.monotonic() + 0.2
        while time.monotonic() < until:
            await asyncio.sleep(0)
            assert not pushed.done()
        other.execute("rollback")
        return await pushed

    assert len(on_loop(q, main)) == 1
    other.close()
    assert [m.data for m in q.pop("jobs", batch=9)] == ["first", "second"]


def test_what_another_process_wrote_is_seen(q: Session, path: Path) -> None:
    on_loop(q, lambda broker: broker.push(request("second")))
    with ackflow.connect(path, upkeep=False) as other:
        other.push("jobs", "third")
    on_loop(q, lambda broker: broker.push(request("fourth")))
    assert [m.data for m in q.pop("jobs", batch=9)] == ["first", "second", "third", "fourth"]


def test_a_checkpoint_is_left_to_another_thread(q: Session, monkeypatch: Any) -> None:
    store = q.broker.store  # type: ignore[attr-defined]
    checkpointer, threads = store._checkpointer, set()
    checkpoint = checkpointer.checkpoint

    def recorded(*args: Any, **options: Any) -> bool:
        threads.add(threading.get_ident())
        return bool(checkpoint(*args, **options))

    monkeypatch.setattr(checkpointer, "checkpoint", recorded)

    async def main(broker: LoopBroker) -> None:
        pages = 0
        while pages < 2 * SOON_PAGES:
            pages += 20
            await broker.push(request("x" * 80_000))

    on_loop(q, main)
    assert threads
    assert threading.get_ident() not in threads


def test_the_loop_goes_on_committing_while_a_thread_checkpoints(
    q: Session, monkeypatch: Any
) -> None:
    store = q.broker.store  # type: ignore[attr-defined]
    checkpointing, free = threading.Event(), threading.Event()
    checkpoint = store._checkpointer.checkpoint

    def slow(*args: Any, **options: Any) -> bool:
        checkpointing.set()
        assert free.wait(10)
        return bool(checkpoint(*args, **options))

    monkeypatch.setattr(store._checkpointer, "checkpoint", slow)

    async def main(broker: LoopBroker) -> list[int]:
        while not store._checkpointer._asked:
            await broker.push(request("x" * 40_000))
        assert await asyncio.to_thread(checkpointing.wait, 10)
        return [await broker.do(where, False) for _ in range(5)]

    try:
        assert on_loop(q, main) == [threading.get_ident()] * 5
    finally:
        free.set()


def test_a_transaction_of_the_same_process_is_waited_for_by_another_thread(q: Session) -> None:
    holds, free = threading.Event(), threading.Event()

    def hold() -> None:
        with writer_of(q).exclusively():
            holds.set()
            assert free.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    assert holds.wait(10)

    async def main(broker: LoopBroker) -> Any:
        asyncio.get_running_loop().call_later(0.05, free.set)
        return await broker.do(where, False)

    assert on_loop(q, main) != threading.get_ident()
    thread.join()


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        (lambda _: threading.get_ident(), ()),
        (partial(lambda _, n: n, n=0), ()),
        (pop, (PopRequest("jobs", "g", "c", batch=MAX_POP + 1),)),
    ],
)
def test_what_is_not_brief_is_left_to_another_thread(
    q: Session, verb: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    budget = writer_of(q)._budget
    on_loop(q, lambda broker: broker.do(verb, False, *arguments))
    assert budget.turns == 0  # type: ignore[attr-defined]


def test_many_bytes_are_left_to_another_thread(q: Session) -> None:
    budget = writer_of(q)._budget
    on_loop(q, lambda broker: broker.push(request("x" * 300_000)))
    assert budget.turns == 0  # type: ignore[attr-defined]


def test_a_failed_fsync_is_told_to_who_waited_for_it_and_to_no_other(q: Session) -> None:
    store = q.broker.store  # type: ignore[attr-defined]

    def fail() -> None:
        raise OutcomeUnknown("the disk did not confirm a commit")

    log, store._sync_log = store._sync_log, fail

    async def main(broker: LoopBroker) -> Any:
        calls = broker.push(request(1)), broker.do(where, False)
        return await asyncio.gather(*calls, return_exceptions=True)

    pushed, thread = on_loop(q, main)
    assert isinstance(pushed, OutcomeUnknown)
    assert thread == threading.get_ident()
    store._sync_log = log
    assert len(on_loop(q, lambda broker: broker.push(request(2)))) == 1


def test_threads_and_a_loop_that_push_at_once_lose_nothing(q: Session) -> None:
    each, receipts = 200, []

    def push(thread: int) -> None:
        for n in range(each):
            receipts.append((q.push("jobs", f"{thread}.{n}")[0], f"{thread}.{n}"))

    threads = [threading.Thread(target=push, args=(n,)) for n in range(3)]

    async def main(broker: LoopBroker) -> None:
        for thread in threads:
            thread.start()
        for n in range(each):
            await asyncio.gather(*(broker.push(request(f"loop.{n}.{k}")) for k in range(4)))

    on_loop(q, main)
    for thread in threads:
        thread.join()
    stored = {m.id: m.data for m in q.pop("jobs", batch=10_000)}
    assert all(stored[id] == data for id, data in receipts)
    assert len(stored) == 1 + 3 * each + 4 * each
    assert len(set(stored.values())) == len(stored)
