"""The loop of a bridge: read a batch, write it, acknowledge it; the next one is read meanwhile.

    source ── batch ──► target: on disk ──► source: acknowledged

If the bridge is killed between the last two, the batch is delivered again, and a target in Ackflow knows
the messages by their ids.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from msgspec import Struct

from ...errors import AckflowError
from .endpoints import Batch, Source, Target

IDLE_SECONDS = 2.0  # without a message, after which a queue counts as empty
STOP_SECONDS = 5.0  # for a batch that is being written when the bridge is stopped


class Counts(Struct):
    """What a bridge has moved. `known`: messages that the target had already stored."""

    moved: int = 0
    known: int = 0


class Bridge:
    """Moves messages until it is stopped or, with `until_empty`, until nothing is left."""

    def __init__(
        self, source: Source, target: Target, *, until_empty: bool = False,
        report: Callable[[Counts], None] = lambda _: None, report_seconds: float = 1.0,
    ) -> None:  # fmt: skip
        self._source = source
        self._target = target
        self._until_empty = until_empty
        self._report = report
        self._report_seconds = report_seconds
        self._stopping = asyncio.Event()
        self.counts = Counts()

    def stop(self) -> None:
        """Finish the batch that is being written, and return all other messages to the source."""
        self._stopping.set()

    async def run(self) -> Counts:
        reporting = asyncio.create_task(self._report_often())
        try:
            await self._target.open()
            await self._source.open()
            await self._move()
        finally:
            reporting.cancel()
            await self._source.close()
            await self._target.close()
        return self.counts

    async def _move(self) -> None:
        stopped: asyncio.Future[Any] = asyncio.ensure_future(self._stopping.wait())
        fetching = asyncio.ensure_future(self._source.fetch())
        try:
            while not stopped.done():
                idle = IDLE_SECONDS if self._until_empty else None
                await asyncio.wait(
                    [fetching, stopped], timeout=idle, return_when=asyncio.FIRST_COMPLETED
                )
                if stopped.done() or not fetching.done():
                    return
                batch = fetching.result()
                fetching = asyncio.ensure_future(self._source.fetch())
                await self._move_batch(batch, stopped)
        finally:
            stopped.cancel()
            fetching.cancel()
            with suppress(asyncio.CancelledError, AckflowError):
                await fetching

    async def _move_batch(self, batch: Batch, stopped: "asyncio.Future[Any]") -> None:
        putting: asyncio.Future[Any] = asyncio.ensure_future(self._target.put(batch.messages))
        await asyncio.wait([putting, stopped], return_when=asyncio.FIRST_COMPLETED)
        if not putting.done():
            await asyncio.wait([putting], timeout=STOP_SECONDS)
        if not putting.done():  # the target is away
            putting.cancel()
            return
        new = putting.result()
        await self._source.ack(batch)
        self.counts.moved += len(batch.messages)
        self.counts.known += len(batch.messages) - new

    async def _report_often(self) -> None:
        while True:
            await asyncio.sleep(self._report_seconds)
            self._report(self.counts)


class Rate:
    """Lines about the progress of a bridge."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._moved = 0

    def line(self, counts: Counts) -> str:
        now = time.monotonic()
        rate = (counts.moved - self._moved) / max(now - self._at, 0.001)
        self._at, self._moved = now, counts.moved
        known = f", {counts.known:,} of them known to the target" if counts.known else ""
        return f"{counts.moved:,} messages moved{known}, {rate:,.0f}/s"
