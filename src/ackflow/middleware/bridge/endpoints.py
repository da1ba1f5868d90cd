"""The interfaces of a bridge's two endpoints: a source and a target of messages."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from ...broker.requests import Publication
from ...errors import PASSING, AckflowError, QueueFull, StorageFull, Unavailable

T = TypeVar("T")
AMQP = ("amqp://", "amqps://")
PAUSES = (0.1, 0.2, 0.5, 1.0, 2.0)
BATCH_BYTES = 4 * 1024 * 1024
_RETRIED = PASSING | {QueueFull.code, StorageFull.code, Unavailable.code}
log = logging.getLogger("ackflow.bridge")


class Batch(Struct):
    """Messages that are not acknowledged yet. `mark` identifies them for their source."""

    messages: list[Publication]
    mark: Any


class Source(Protocol):
    async def open(self) -> None:
        """Connect; raises if the source cannot be reached or has no such queue."""

    async def fetch(self) -> Batch:
        """Wait for messages. If it is cancelled, they stay at the source."""
        ...

    async def ack(self, batch: Batch) -> None: ...
    async def close(self) -> None:
        """Return unacknowledged messages to the queue."""


class Target(Protocol):
    async def open(self) -> None: ...
    async def put(self, messages: list[Publication]) -> int:
        """Store messages; returns how many are new, once all are on disk."""
        ...

    async def close(self) -> None: ...


def is_amqp(address: str) -> bool:
    return address.startswith(AMQP)


async def retried(what: str, act: Callable[[], Awaitable[T]]) -> T:
    """Run something, and run it again after each error that is expected to be temporary."""
    attempt = 0
    while True:
        try:
            return await act()
        except AckflowError as error:
            if error.code not in _RETRIED:
                raise
            if attempt in (0, len(PAUSES)):
                log.warning("%s failed, trying again: %s", what, error)
            await asyncio.sleep(PAUSES[min(attempt, len(PAUSES) - 1)])
            attempt += 1
