"""Pushes of concurrent tasks share a request, and each gets its own answer."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import ackflow
from ackflow import VirtualClock, aio
from ackflow.errors import QueueFull, Unavailable
from ackflow.remote import protocol, push_batching
from ackflow.server.limits import Limits

from ..running import Running


@pytest.fixture
def running(clock: VirtualClock) -> Iterator[Running]:
    running = Running(ackflow.connect(":memory:", clock=clock, upkeep=False))
    yield running
    running.stop()
    running.session.close()


class Wire:
    """Counts the requests of a session, and does what a test wants with them."""

    def __init__(self, q: aio.Session, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[str] = []
        self.losing = 0
        transport: Any = q._plain.broker.transport  # type: ignore[attr-defined]
        self._once = transport._once
        monkeypatch.setattr(transport, "_once", self)
        monkeypatch.setattr(transport, "_sleep", self._sleep)

    async def __call__(self, request: protocol.Request) -> Any:
        self.paths.append(request.path)
        answer = await self._once(request)
        if self.losing:
            self.losing -= 1
            raise Unavailable()
        return answer

    async def _sleep(self, _: float) -> None:
        pass


Work = Callable[[aio.Session, Wire], Awaitable[None]]


@pytest.fixture
def on_wire(running: Running, monkeypatch: pytest.MonkeyPatch) -> Callable[[Work], None]:
    def run(work: Work) -> None:
        async def main() -> None:
            async with await aio.connect(running.url) as q:
                await q.push("warm", 0)  # the connection is there
                await work(q, Wire(q, monkeypatch))

        asyncio.run(main())

    return run


def test_pushes_of_many_tasks_need_few_requests(
    running: Running, on_wire: Callable[[Work], None]
) -> None:
    async def work(q: aio.Session, wire: Wire) -> None:
        receipts = await asyncio.gather(*[q.push("orders", n) for n in range(100)])
        assert wire.paths == [protocol.PUSH] * push_batching.AT_ONCE + ["/v1/pushes"]
        found = {m.id: m.data for m in await q.pop("orders", batch=200)}
        assert found == {receipt[0]: n for n, receipt in enumerate(receipts)}

    on_wire(work)


def test_a_push_that_is_alone_or_large_goes_alone(on_wire: Callable[[Work], None]) -> None:
    async def work(q: aio.Session, wire: Wire) -> None:
        await q.push("orders", 1)
        large = "x" * protocol.SMALL_BYTES
        await asyncio.gather(*[q.push("orders", large) for _ in range(5)])
        assert wire.paths == [protocol.PUSH] * 6

    on_wire(work)


def test_pushes_that_are_too_much_for_one_request_go_in_several(
    running: Running, on_wire: Callable[[Work], None]
) -> None:
    running.app.limits = Limits(body_bytes=running.app.limits.body_bytes, batch=300)

    async def work(q: aio.Session, wire: Wire) -> None:
        some = list(range(1000, 1300))
        await asyncio.gather(*[q.push("orders", some) for _ in range(200)])
        together = [path for path in wire.paths if path != protocol.PUSH]
        assert 2 < len(together) < 20
        assert (await q.queue_stats("orders")).messages == 200 * 300

    on_wire(work)


def test_one_that_is_refused_does_not_hurt_the_others(
    running: Running, on_wire: Callable[[Work], None]
) -> None:
    async def work(q: aio.Session, wire: Wire) -> None:
        await q.configure("small", max_size=1)
        names = ["orders", "small"] * 5
        told = await asyncio.gather(*[q.push(name, 1) for name in names], return_exceptions=True)
        full = [name for name, answer in zip(names, told, strict=True) if _refused(answer)]
        assert full == ["small"] * 4
        assert (await q.queue_stats("orders")).messages == 5
        assert (await q.queue_stats("small")).messages == 1

    on_wire(work)


def _refused(answer: object) -> bool:
    return isinstance(answer, QueueFull)


def test_a_lost_answer_makes_nothing_twice(on_wire: Callable[[Work], None]) -> None:
    async def work(q: aio.Session, wire: Wire) -> None:
        wire.losing = 3
        await asyncio.gather(*[q.push("orders", n) for n in range(20)])
        assert wire.losing == 0
        assert sorted(m.data for m in await q.pop("orders", batch=99)) == list(range(20))

    on_wire(work)


def test_what_cannot_be_sent_fails_for_everyone(on_wire: Callable[[Work], None]) -> None:
    async def work(q: aio.Session, wire: Wire) -> None:
        wire.losing = 1000
        told = await asyncio.gather(
            *[q.push("orders", n) for n in range(4)], return_exceptions=True
        )
        assert [type(answer) for answer in told] == [Unavailable] * 4

    on_wire(work)


def test_a_push_cancelled_while_it_waits_is_not_sent(on_wire: Callable[[Work], None]) -> None:
    async def work(q: aio.Session, wire: Wire) -> None:
        tasks = [asyncio.create_task(q.push("orders", n)) for n in range(6)]
        await asyncio.sleep(0)
        tasks[4].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert tasks[4].cancelled()
        assert sorted(m.data for m in await q.pop("orders", batch=9)) == [0, 1, 2, 3, 5]

    on_wire(work)
