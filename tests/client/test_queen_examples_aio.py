"""The awaited examples for those who come from Queen do what its documentation says of each."""

import asyncio
from functools import partial
from typing import Any

import pytest

from ackflow import VirtualClock, aio
from ackflow.errors import TransactionFailed
from ackflow.options import QUEUE_MODE

from . import queen
from .queen import ASYNC, HEADINGS, LOADED, Proof, Work, data
from .queen import url as url
from .waiting import until_awaited

SHOWN = queen.shown(LOADED[ASYNC])
PROOFS: dict[str, Proof] = {}
proves = partial(queen.proves, proofs=PROOFS)


def test_every_awaited_example_is_of_the_documentation_and_has_its_proof() -> None:
    assert sorted(SHOWN) == sorted(PROOFS)
    assert set(SHOWN) < set(HEADINGS)


@pytest.mark.parametrize("heading", SHOWN)
def test_an_awaited_example_does_the_same(
    url: str, clock: VirtualClock, heading: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with await aio.connect(url, clock=clock, upkeep=False) as q:
            monkeypatch.setattr(q, "consume", partial(q.consume, wait=0))
            await PROOFS[heading](q, clock, SHOWN[heading])

    asyncio.run(main())


async def counted(q: aio.Session, queue: str, group: str = QUEUE_MODE) -> Any:
    return (await q.group(queue, group)).counts


@proves("Manual ACK (Default)")
async def it_is_nacked_and_comes_again(q: aio.Session, clock: VirtualClock, example: Any) -> None:
    await q.push("orders", [1, 2])
    work = Work(fails_on=[2])
    async with example(q, work.awaited) as consumer:
        await until_awaited(lambda: consumer.counts.succeeded == 4)
    assert work.seen == [1, 2, 2, 2]
    assert [letter.data for letter in (await q.dead_letters("orders")).items] == [2]


@proves("Auto-ACK")
async def it_does_not_come_again(q: aio.Session, clock: VirtualClock, example: Any) -> None:
    await q.push("events", [1, 2])
    work = Work(fails_on=[2])
    async with example(q, work.awaited) as consumer:
        await until_awaited(lambda: consumer.counts.failed)
    assert work.seen == [1, 2]
    assert (await counted(q, "events", "processors")).done == 2


@proves("Callback-based ACK")
async def callbacks_are_awaited(q: aio.Session, clock: VirtualClock, example: Any) -> None:
    await q.push("tasks", [1, 2])
    work = Work(fails_on=[2])
    async with example(q, work.awaited):
        await until_awaited(lambda: len(work.seen) == 4)
    found = await counted(q, "tasks", "workers")
    assert (found.done, found.dead) == (1, 1)


@proves("Batch ACK")
async def a_batch_is_settled(q: aio.Session, clock: VirtualClock, example: Any) -> None:
    await q.push("orders", [1, 2, 3])
    assert (await example(q, *await q.pop("orders", batch=3))).settled == 3
    assert [(m.data, m.failures) for m in await q.pop("orders", batch=3)] == [(3, 1)]


@proves("Lease Renewal")
async def it_may_take_longer(q: aio.Session, clock: VirtualClock, example: Any) -> None:
    await q.push("long-tasks", 1)
    done: list[bool] = []

    async def end() -> Any:
        return (await q.leases("long-tasks"))[0].expires_at

    async def ten_minutes(_: Any) -> None:
        for _ in range(3):
            before = await end()
            clock.advance(200)
            while await end() == before:
                await asyncio.sleep(0)
        done.append(True)

    async with example(q, ten_minutes):
        await until_awaited(lambda: done)
    assert (await counted(q, "long-tasks", "workers")).done == 1


@proves("Use batch ACK for high throughput")
async def a_hundred_go_together(q: aio.Session, clock: VirtualClock, example: Any) -> None:
    await q.push("events", list(range(200)))
    work = Work()
    async with example(q, work.awaited) as consumer:
        await until_awaited(lambda: consumer.counts.succeeded == 200)
        while (await counted(q, "events")).done < 100:
            await asyncio.sleep(0)
        clock.advance(1)  # the rest is sent by time
        while (await counted(q, "events")).done < 200:
            await asyncio.sleep(0)
    assert work.seen == list(range(200))


@proves("Transactional ACK + PUSH")
async def both_or_neither(q: aio.Session, clock: VirtualClock, example: Any) -> None:
    await q.push("orders", 1)
    (message,) = await q.pop("orders")
    assert (await example(q, message)).settled == 1
    with pytest.raises(TransactionFailed):
        await example(q, message)
    assert data(await q.pop("next-step", batch=5)) == [{"processed": True}]
