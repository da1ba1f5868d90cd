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


def test_a_call_that_began_inside_another_one_goes_on_after_it() -> None:
    """A task factory that starts tasks eagerly begins them where they are created."""

    def inner() -> str:
        awaited(asyncio.sleep(0))
        awaited(asyncio.sleep(0))
        return "inner"

    async def story() -> None:
        begun = spawn(inner)
        await spawn(lambda: begun.send(None))
        begun.send(None)
        with pytest.raises(StopIteration, match="inner"):
            begun.send(None)
        assert [await spawn(lambda n=n: n) for n in range(5)] == list(range(5))  # type: ignore[misc]

    asyncio.run(story())


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


@pytest.mark.parametrize("remote", [False, True])
def test_a_close_that_is_cancelled_again_and_again_ends_the_session(
    tmp_path: Path, remote: bool
) -> None:
    running = Running(ackflow.connect(tmp_path / "test.db", upkeep=False)) if remote else None

    async def story() -> None:
        for turns in range(12):
            q = await aio.connect(running.url if running else tmp_path / "test.db")
            waiting = asyncio.ensure_future(q.pop("q", wait=60))
            await asyncio.sleep(0.01)
            closing = asyncio.ensure_future(q.close())
            for _ in range(turns):
                await asyncio.sleep(0)
            closing.cancel()
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([closing])
            if not q._closed:
                await q.close()  # it was cancelled before it began
            async with asyncio.timeout(10):
                with pytest.raises(SessionClosed):
                    await waiting
            with pytest.raises(SessionClosed):
                await asyncio.to_thread(q.sync.push, "q", "never")

    asyncio.run(story())
    if running is not None:
        running.stop()
        running.session.close()


def test_a_cancelled_pop_that_fails_reports_nothing_to_the_loop() -> None:
    reported: list[dict[str, Any]] = []

    async def story() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: reported.append(told))
        async with await aio.connect(":memory:", upkeep=False) as q:
            pop = asyncio.ensure_future(q.pop("nowhere", create=False))
            await asyncio.sleep(0)
            pop.cancel()
            await asyncio.wait([pop])
            assert pop.cancelled()
            del pop
            gc.collect()

    asyncio.run(story())
    assert reported == []


def test_pushes_that_wait_for_a_request_are_refused_when_the_session_is_closed(
    tmp_path: Path,
) -> None:
    running = Running(ackflow.connect(tmp_path / "test.db", upkeep=False))
    reported: list[dict[str, Any]] = []

    async def story() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: reported.append(told))
        q = await aio.connect(running.url)
        await q.push("q", 0)
        pushes = [asyncio.ensure_future(q.push("q", n)) for n in range(10)]
        await asyncio.sleep(0)
        await q.close()
        for ended in await asyncio.gather(*pushes, return_exceptions=True):
            assert not isinstance(ended, BaseException) or isinstance(ended, SessionClosed)
        del pushes
        gc.collect()

    asyncio.run(story())
    running.stop()
    running.session.close()
    assert reported == []


def test_nothing_is_awaited_between_the_lease_of_the_next_messages_and_their_return(
    tmp_path: Path,
) -> None:
    running = Running(ackflow.connect(tmp_path / "test.db", upkeep=False))

    async def story() -> None:
        running.session.push("q", [1, 2])
        async with await aio.connect(running.url) as q:
            (message,) = await q.pop("q")
            transport, sent = q._broker.transport, list[str]()
            send = transport.send

            def record(request: Any) -> Any:
                sent.append(request.path)
                return send(request)

            transport.send = record  # type: ignore[method-assign]
            _, (following,) = await q.ack_and_pop(message, "q")
            assert following.data == 2
            assert "ack_and_pop" in sent[-1]

    asyncio.run(story())
    running.stop()
    running.session.close()


def test_a_cancelled_pop_of_a_queue_that_does_not_exist_warns_of_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    running = Running(ackflow.connect(tmp_path / "test.db", upkeep=False))

    async def story() -> None:
        async with await aio.connect(running.url) as q:
            pop = asyncio.ensure_future(q.pop("nowhere", create=False))
            await asyncio.sleep(0)
            pop.cancel()
            await asyncio.wait([pop])

    asyncio.run(story())
    running.stop()
    running.session.close()
    assert caplog.records == []
