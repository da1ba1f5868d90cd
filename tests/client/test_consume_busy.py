"""Consume loops on a server that refuses pops because slow clients hold much memory."""

import asyncio
from collections.abc import Iterator

import pytest

import ackflow
from ackflow import Message, aio

from ..running import Running
from .test_consume import NOW, counts
from .waiting import until, until_awaited


@pytest.fixture
def running() -> Iterator[Running]:
    running = Running(ackflow.connect(":memory:", upkeep=False))
    running.session.group("orders", "g")
    running.session.push("orders", [1, 2])
    yield running
    running.stop()
    running.session.close()


def hold(running: Running, size: int) -> None:
    running.app.in_transit.bytes = size


def test_a_loop_waits_and_acks_what_it_handled(running: Running) -> None:
    seen: list[int] = []

    def handle(message: Message) -> None:
        seen.append(message.data)
        hold(running, 1 << 40)

    with ackflow.connect(running.url) as q:
        with q.consume("orders", handle, group="g", auto_ack="handled", **NOW) as consumer:
            until(lambda: counts(running.session).done == 1)
            assert (seen, consumer.running) == ([1], True)
            hold(running, 0)
            until(lambda: seen == [1, 2])
        assert counts(running.session).done == 2
        assert consumer.counts.lost == 0


def test_an_awaitable_loop_waits_and_acks_what_it_handled(running: Running) -> None:
    seen: list[int] = []

    async def handle(message: aio.Message) -> None:
        seen.append(message.data)
        hold(running, 1 << 40)

    async def consume() -> None:
        async with await aio.connect(running.url) as q:
            async with q.consume("orders", handle, group="g", auto_ack="handled", **NOW) as loop:
                await until_awaited(lambda: counts(running.session).done == 1)
                assert (seen, loop.running) == ([1], True)
                hold(running, 0)
                await until_awaited(lambda: seen == [1, 2])
            assert counts(running.session).done == 2

    asyncio.run(consume())
