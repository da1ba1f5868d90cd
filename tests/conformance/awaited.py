"""Awaitable sessions that tests call like plain ones, so that a module of tests runs on both."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.running import Running

import ackflow
from ackflow import Batch, Message, VirtualClock, aio
from ackflow.broker.broker import Broker
from ackflow.broker.core.handout import Handout
from ackflow.session.lease import Lease
from ackflow.session.transaction import Transaction


class Loop:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Called:
    """A broker whose verbs are awaited on the loop."""

    def __init__(self, loop: Loop, session: aio.Session) -> None:
        self._loop = loop
        self._session = session

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._session._broker, name)
        return (lambda *args: self._loop.run(self._do(found, args))) if callable(found) else found

    async def _do(self, found: Any, args: Any) -> Any:
        return await self._session._run(partial(found, *args))


class Awaited:
    """An awaitable session that looks like a plain one: each call is awaited on the loop."""

    def __init__(self, loop: Loop, session: aio.Session) -> None:
        self._loop = loop
        self._session = session
        self.broker: Any = session.sync.broker
        if not isinstance(self.broker, Broker):
            self.broker = Called(loop, session)
        self._broker = self.broker

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._session, name)
        if not inspect.iscoroutinefunction(found):
            return found
        return lambda *args, **kwargs: self._plain(self._loop.run(found(*args, **kwargs)))

    def transaction(self, key: str | None = None) -> Transaction:
        return Transaction(self, key)

    def lease(self, token: str) -> Lease:
        return Lease(self, self._session._plain.lease(token)._token)  # type: ignore[arg-type]

    def settle_marks(self, *args: Any) -> Any:
        settle = partial(self._session._plain.settle_marks, *args)
        return self._loop.run(self._awaited(settle))

    async def _awaited(self, call: Callable[[], Any]) -> Any:
        return await self._session._run(call)

    def _plain(self, answer: Any) -> Any:
        if not isinstance(answer, Batch):
            return answer
        o = answer.origin
        handout = Handout(o.queue, o.group, o.store, o.token, o.expires_at, answer.runs, answer.why)
        plain = Batch.of(self, handout, Message)
        plain.retry_at = answer.retry_at
        return plain


@pytest.fixture(params=["file", pytest.param("http", marks=pytest.mark.outer)])
def open_session(
    request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock
) -> Iterator[Callable[..., Any]]:
    """Open awaitable sessions that are called like plain ones; all are closed at the end."""
    loop, opened = Loop(), []
    url, running = str(tmp_path / "test.db"), None
    if request.param == "http":
        running = Running(ackflow.connect(":memory:", clock=clock, upkeep=False))
        url = running.url

    def open_one(**options: Any) -> Any:
        settings = {"clock": clock, "upkeep": False, "consumer": "tester", **options}
        opened.append(loop.run(aio.connect(url, **settings)))
        return Awaited(loop, opened[-1])

    yield open_one
    for session in opened:
        loop.run(session.close())
    loop.close()
    if running is not None:
        running.stop()
        running.session.close()
