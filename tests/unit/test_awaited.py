"""Calls of a plain session in greenlets: what is awaited, and what a finished call leaves behind."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from tests.running import Running

import ackflow
from ackflow import aio
from ackflow.broker.aio import MAX_IDLE, _idle, awaited, spawn
from ackflow.errors import SessionClosed

number: ContextVar[int] = ContextVar("number")


class Value:
    """Something that a call refers to."""


def test_many_calls_await_at_once_and_each_has_the_context_of_its_task() -> None:
    def call() -> int:
        awaited(asyncio.sleep(0.001))
        return number.get()

    async def one(n: int) -> int:
        number.set(n)
        return await spawn(call)

    async def story() -> list[int]:
        return await asyncio.gather(*(one(n) for n in range(3 * MAX_IDLE)))

    assert asyncio.run(story()) == list(range(3 * MAX_IDLE))
    assert len(_idle.greenlets) == MAX_IDLE


def test_a_variable_that_a_call_sets_is_set_in_its_task_and_in_no_other() -> None:
    async def story() -> None:
        await spawn(lambda: number.set(1))
        assert number.get() == 1
        other = asyncio.create_task(spawn(lambda: number.set(2)))
        await other
        assert number.get() == 1

    asyncio.run(story())


def test_a_call_that_has_ended_holds_nothing_that_it_was_given_or_returned() -> None:
    async def story() -> None:
        given, returned = Value(), Value()

        def call(given: Value = given, returned: Value = returned) -> Value:
            awaited(asyncio.sleep(0))
            return returned

        assert await spawn(call) is returned
        refs = weakref.ref(given), weakref.ref(returned)
        del given, returned, call
        assert [ref() for ref in refs] == [None, None]

    gc.disable()
    try:
        asyncio.run(story())
    finally:
        gc.enable()


def test_an_error_or_a_cancellation_reaches_the_call_and_its_caller() -> None:
    seen: list[type[BaseException]] = []

    def call() -> None:
        try:
            awaited(asyncio.sleep(60))
        except BaseException as error:
            seen.append(type(error))
            raise

    async def fail() -> None:
        raise ZeroDivisionError

    async def story() -> None:
        task = asyncio.create_task(spawn(call))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(ZeroDivisionError):
            await spawn(lambda: awaited(fail()))
        assert await spawn(lambda: 1) == 1

    asyncio.run(story())
    assert seen == [asyncio.CancelledError]


class Threads(list[Any]):
    """Messages that record which threads encode them."""

    def __init__(self, some: range) -> None:
        super().__init__(some)
        self.seen: set[int] = set()

    def __iter__(self) -> Iterator[Any]:
        self.seen.add(threading.get_ident())
        return super().__iter__()


@pytest.mark.parametrize(("messages", "on_loop"), [(1000, True), (1001, False)])
def test_many_messages_are_encoded_beside_the_loop(messages: int, on_loop: bool) -> None:
    async def story() -> None:
        async with await aio.connect(":memory:", upkeep=False) as q:
            data = Threads(range(messages))
            assert len(await q.push("q", data)) == messages
            assert data.seen
            assert (threading.get_ident() in data.seen) == on_loop

    asyncio.run(story())


def test_a_session_may_be_used_on_one_loop_after_another(tmp_path: Path) -> None:
    with ackflow.connect(tmp_path / "test.db", upkeep=False) as plain:
        q = aio.Session(plain)

        async def story(n: int) -> None:
            await q.push("q", n)
            (message,) = await q.pop("q", wait=5)
            assert message.data == n
            await message.ack()
            assert (await q.group_stats("q")).counts.done == n + 1

        for n in range(3):
            asyncio.run(story(n))
        assert len(q._broker._loops) == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("remote", [False, True])
def test_the_session_underneath_serves_other_threads(tmp_path: Path, remote: bool) -> None:
    running = Running(ackflow.connect(tmp_path / "test.db", upkeep=False)) if remote else None

    async def story() -> None:
        async with await aio.connect(running.url if running else tmp_path / "test.db") as q:
            await asyncio.to_thread(q.sync.push, "q", "from a thread")
            (message,) = await q.pop("q")
            assert message.data == "from a thread"
        with pytest.raises(SessionClosed):
            q.sync.push("q", "never")

    asyncio.run(story())
    if running is not None:
        running.stop()
        running.session.close()


@pytest.mark.parametrize("remote", [False, True])
def test_calls_that_run_when_the_session_is_closed_end(tmp_path: Path, remote: bool) -> None:
    running = Running(ackflow.connect(tmp_path / "test.db", upkeep=False)) if remote else None

    async def story() -> None:
        q = await aio.connect(running.url if running else tmp_path / "test.db")
        await q.push("dead", list(range(5)))
        for message in await q.pop("dead", batch=5):
            await message.reject("bad")
        calls: list[asyncio.Task[Any]] = []
        for call in (q.pop("q", wait=60), q.push("p", 1), q.queues(), q.reprocess("dead")):
            calls.append(asyncio.ensure_future(call))
        await asyncio.sleep(0)
        await q.close()
        async with asyncio.timeout(30):
            for ended in await asyncio.gather(*calls, return_exceptions=True):
                assert not isinstance(ended, BaseException) or isinstance(ended, SessionClosed)
        with pytest.raises(SessionClosed):
            await q.push("p", 2)

    asyncio.run(story())
    if running is not None:
        running.stop()
        running.session.close()
