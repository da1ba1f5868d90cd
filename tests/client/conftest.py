"""What the tests of the client share: servers as processes, and awaitable sessions."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

import ackflow
from ackflow import VirtualClock, aio

from ..running import Running
from ..server.conftest import start_process as start_process

Awaited = Callable[[Callable[[aio.Session], Coroutine[Any, Any, None]]], None]


@pytest.fixture(params=["file", "http"])
def awaited(
    request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock
) -> Iterator[Awaited]:
    """Run a test on a loop of its own, with an awaitable session on the test's clock."""
    running, url = None, str(tmp_path / "awaited.db")
    if request.param == "http":
        running = Running(ackflow.connect(":memory:", clock=clock, upkeep=False))
        url = running.url

    async def main(test: Callable[[aio.Session], Coroutine[Any, Any, None]]) -> None:
        async with await aio.connect(url, clock=clock, upkeep=False, consumer="tester") as q:
            await test(q)

    yield lambda test: asyncio.run(main(test))
    if running is not None:
        running.stop()
        running.session.close()
