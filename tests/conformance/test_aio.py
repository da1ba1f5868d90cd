"""The awaitable session: cancellation, transactions and leases in an event loop.

test_aio_sessions.py and test_aio_settling.py run modules of this folder on it.
"""

import asyncio
import contextlib
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.running import Running

import ackflow
from ackflow import aio


def test_a_cancelled_pop_gives_back_what_it_was_given(tmp_path: Path) -> None:
    async def story() -> None:
        async with await aio.connect(tmp_path / "test.db", upkeep=False) as q:
            await q.push("q", list(range(20)))
            for _ in range(20):
                task = asyncio.create_task(q.pop("q"))
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            counts = (await q.group_stats("q")).counts
            assert (counts.ready, counts.leased) == (20, 0)

    asyncio.run(story())


def test_many_waiting_pops_hold_no_thread(tmp_path: Path) -> None:
    async def story() -> None:
        async with await aio.connect(tmp_path / "test.db") as q:
            pops = [asyncio.create_task(q.pop("q", wait=30)) for _ in range(50)]
            await asyncio.sleep(0.05)
            await q.push("q", list(range(50)))
            got = [batch[0].data for batch in await asyncio.gather(*pops)]
            assert sorted(got) == list(range(50))

    asyncio.run(story())


def test_a_transaction_is_an_asynchronous_context(tmp_path: Path) -> None:
    async def story() -> None:
        async with await aio.connect(tmp_path / "test.db", upkeep=False) as q:
            await q.push("in", 1)
            (message,) = await q.pop("in")
            async with q.transaction() as t:
                t.ack(message).push("out", 2)
            assert (await q.group_stats("in")).counts.done == 1
            assert [m.data for m in await q.pop("out")] == [2]
            with pytest.raises(ZeroDivisionError):
                async with q.transaction() as t:
                    t.push("out", 1 / 0)
            assert not await q.pop("out")

    asyncio.run(story())


def test_what_is_published_with_a_stage_is_not_committed_again_by_its_block(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with await aio.connect(tmp_path / "test.db", upkeep=False) as q:
            stage = await q.stage("job", 1, "out", 1)
            async with q.transaction() as also:
                also.push("log", "once")
                await q.publish("job", 1, [stage], also)
            assert (await q.queue_stats("log")).messages == 1

    asyncio.run(story())


def test_a_lease_by_its_token_gives_messages_that_can_be_awaited(tmp_path: Path) -> None:
    async def story() -> None:
        async with await aio.connect(tmp_path / "test.db", upkeep=False) as q:
            await q.push("in", 1)
            token = (await q.pop("in")).token
            assert token is not None
            (message,) = await q.lease(token).read()
            await message.ack()
            assert (await q.group_stats("in")).counts.done == 1

    asyncio.run(story())


def test_asyncio_is_there_without_an_import_of_its_own() -> None:
    code = "import sys, ackflow; print('greenlet' in sys.modules); print(ackflow.aio.connect.__module__)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\nackflow.aio\n"


def test_every_method_of_a_session_is_there() -> None:
    from ackflow import Session

    plain = {name for name in dir(Session) if not name.startswith("_")}
    helpers = {"broker", "pop_request", "release_all", "settle_marks", "forked"}
    assert plain - helpers <= {name for name in dir(aio.Session) if not name.startswith("_")}


CANCELS = 500


def test_a_pop_cancelled_again_and_again_gives_back_what_it_was_given(tmp_path: Path) -> None:
    async def story() -> None:
        async with await aio.connect(tmp_path / "test.db", upkeep=False) as q:
            await q.push("q", list(range(CANCELS)))
            for n in range(CANCELS):
                task = asyncio.create_task(q.pop("q", wait=n % 2))
                for _ in range(1 + n % 4):
                    await asyncio.sleep(0)
                    task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await until_nothing_is_leased(q, CANCELS)

    asyncio.run(story())


def test_a_pop_ended_by_a_timeout_or_by_its_task_group_gives_back_what_it_was_given(
    tmp_path: Path,
) -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError

    async def story() -> None:
        async with await aio.connect(tmp_path / "test.db", upkeep=False) as q:
            await q.push("q", list(range(10)))
            for _ in range(50):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0):
                        await q.pop("q", batch=10)
                with contextlib.suppress(ExceptionGroup):
                    async with asyncio.TaskGroup() as tasks:
                        tasks.create_task(q.pop("q", batch=10))
                        tasks.create_task(q.pop("q", batch=10, wait=5))
                        tasks.create_task(fail())
            await until_nothing_is_leased(q, 10)

    asyncio.run(story())


def test_a_pop_that_its_loop_did_not_outlive_gives_back_what_it_was_given(tmp_path: Path) -> None:
    with ackflow.connect(tmp_path / "test.db", upkeep=False) as plain:
        plain.push("q", list(range(10)))

        async def story(cancels: int) -> None:
            task = asyncio.create_task(aio.Session(plain).pop("q", batch=10))
            await asyncio.sleep(0)
            for _ in range(cancels):
                task.cancel()
                await asyncio.sleep(0)

        for n in range(60):
            asyncio.run(story(n % 3))
            deadline = time.monotonic() + 10
            while (stats := plain.group_stats("q")).delivered < 10 * n + 10 or stats.counts.leased:
                assert time.monotonic() < deadline, stats.counts
                time.sleep(0.001)


def test_a_pop_cancelled_over_http_gives_back_what_it_was_given(tmp_path: Path) -> None:
    running = Running(ackflow.connect(tmp_path / "test.db", upkeep=False))

    async def story() -> None:
        async with await aio.connect(running.url) as q:
            await q.push("q", list(range(150)))
            for n in range(150):
                task = asyncio.create_task(q.pop("q", wait=n % 2))
                for _ in range(1 + n % 3):
                    await asyncio.sleep(n % 11 / 4000)
                    task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await q.release(await task)
            await until_nothing_is_leased(q, 150)

    asyncio.run(story())
    running.stop()
    running.session.close()


async def until_nothing_is_leased(q: aio.Session, ready: int) -> None:
    """What is given back by itself is back within moments."""
    deadline = time.monotonic() + 10
    while (counts := (await q.group_stats("q")).counts).leased and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    assert (counts.ready, counts.leased) == (ready, 0)


@pytest.mark.parametrize("place", ["file", "http", "several"])
def test_an_ack_and_pop_cancelled_again_and_again_gives_back_what_it_was_given(
    tmp_path: Path, place: str
) -> None:
    async def story(url: str | list[Path]) -> None:
        async with await aio.connect(url) as q:
            await q.push("q", list(range(100)))
            batch = await q.pop("q")
            for n in range(60):
                task = asyncio.create_task(q.ack_and_pop(batch, "q"))
                for _ in range(1 + n % 3):
                    await asyncio.sleep(n % 11 / 4000)
                    task.cancel()
                try:
                    _, batch = await task
                except asyncio.CancelledError:
                    await q.ack(batch)  # again, or for the first time
                    batch = await q.pop("q")
            await q.ack(batch)
            counts = (await q.group_stats("q")).counts
            await until_nothing_is_leased(q, 100 - counts.done)

    if place != "http":
        databases = [tmp_path / "a.db", tmp_path / "b.db"]
        asyncio.run(story(databases if place == "several" else str(tmp_path / "test.db")))
        return
    running = Running(ackflow.connect(tmp_path / "test.db"))
    asyncio.run(story(running.url))
    running.stop()
    running.session.close()
