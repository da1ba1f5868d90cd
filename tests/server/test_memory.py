"""What a request held is freed at once, and not when the garbage collector finds it."""

import asyncio
import gc
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator

import pytest

import ackflow
from ackflow import Session
from ackflow.broker.aio import LoopBroker
from ackflow.broker.broker import Broker
from ackflow.broker.core.handout import Handout
from ackflow.broker.core.pop import LOADED_AT_ONCE
from ackflow.broker.core.settle import settle
from ackflow.broker.requests import Mark, PopRequest, Verdict
from ackflow.server.connection import Connection
from ackflow.store.job import Job

from ..running import Running
from .raw import exchange

MEGABYTE = "x" * 1_000_000


@pytest.fixture
def q() -> Iterator[Session]:
    with ackflow.connect(":memory:") as session:
        yield session


def garbage_of(q: Session, use: Callable[[LoopBroker], Awaitable[None]]) -> list[object]:
    """Return the jobs and hand-outs that a use of a broker leaves to the garbage collector."""

    async def run() -> list[object]:
        assert isinstance(q.broker, Broker)
        loop_broker = LoopBroker(q.broker)
        gc.collect()
        gc.freeze()  # what others drop meanwhile is not from here
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            await use(loop_broker)
            gc.collect()
            return [one for one in gc.garbage if isinstance(one, Job | Handout)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.unfreeze()
            gc.enable()
            loop_broker.close()

    return asyncio.run(run())


def test_a_pop_and_its_ack_leave_no_garbage(q: Session) -> None:
    q.push("orders", [1] * 100)

    async def use(loop_broker: LoopBroker) -> None:
        for _ in range(10):
            found = await loop_broker.pop(PopRequest("orders", "g", "c", 1), 1.0)
            assert found.token is not None
            await loop_broker.do(settle, False, found.token, [Mark(Verdict("ack"))])

    assert not garbage_of(q, use)


def test_a_closed_connection_leaves_no_garbage(
    served: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[Connection]] = []
    begin = Connection.connection_made

    def connection_made(self: Connection, transport: asyncio.BaseTransport) -> None:
        made.append(weakref.ref(self))
        begin(self, transport)

    monkeypatch.setattr(Connection, "connection_made", connection_made)
    head = b"POST /queue/q/pop HTTP/1.1\r\nhost: localhost\r\ncontent-length: "
    gc.disable()
    try:
        for answered in (b"0\r\n\r\n", b"0\r\nconnection: close\r\n\r\n", b"two\r\n\r\n"):
            assert exchange(served.url, head + answered).startswith(b"HTTP/1.1 ")
        deadline = time.monotonic() + 10
        while any(one() is not None for one in made) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(made) == 3
        assert [one() for one in made if one() is not None] == []
    finally:
        gc.enable()


def test_one_transaction_reads_only_so_much_for_pops(q: Session) -> None:
    """The pops behind it run in the next ones, and get their messages all the same."""
    for _ in range(12):
        q.push("big", [MEGABYTE] * 4)
    assert isinstance(q.broker, Broker)
    writer = q.broker.writer

    async def run() -> list[int]:
        assert isinstance(q.broker, Broker)
        loop_broker = LoopBroker(q.broker)
        pops = [loop_broker.pop(PopRequest("big", f"g{n}", "c", 48)) for n in range(4)]
        found = await asyncio.gather(*pops)
        loop_broker.close()
        return [sum(run.hi - run.lo for run in one.runs) for one in found]

    before = writer.commits
    assert asyncio.run(run()) == [48] * 4
    assert 48 * len(MEGABYTE) > LOADED_AT_ONCE
    assert writer.commits - before >= 4
