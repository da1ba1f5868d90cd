"""Servers as processes of their own, to be killed; awaitable sessions."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

import ackflow
from ackflow import VirtualClock, aio

from ..running import Running
from ..server.conftest import start_process as start_process

Test = Callable[[aio.Session], Coroutine[Any, Any, None]]
Run = Callable[[Test], None]


@pytest.fixture(params=["file", "http"])
def run(request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock) -> Iterator[Run]:
    """Run a test on a loop of its own, with an awaitable session."""
    running, url = None, str(tmp_path / "test.db")
    if request.param == "http":
        running = Running(ackflow.connect(":memory:", clock=clock, upkeep=False))
        url = running.url

    async def main(test: Test) -> None:
        async with await aio.connect(url, clock=clock, upkeep=False) as q:
            await test(q)

    yield lambda test: asyncio.run(main(test))
    if running is not None:
        running.stop()
        running.session.close()
