"""Waiting for what threads and tasks do by themselves."""

import asyncio
import time
from collections.abc import Callable

LONG = 20.0


def until(true: Callable[[], object], seconds: float = LONG) -> None:
    """Wait until something is true; a test that waits too long fails here."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.005)


async def until_awaited(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + LONG
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        await asyncio.sleep(0.005)
