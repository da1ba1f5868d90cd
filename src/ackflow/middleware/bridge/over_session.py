"""An endpoint of a bridge that uses a session: a file, PostgreSQL or a server of Ackflow."""

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from ...broker.core.routing.imports import import_messages
from ...broker.core.routing.publish import EXCHANGE, EXPIRATION, PRIORITY, ROUTING_KEY
from ...broker.requests import Publication
from ...dialects.rabbitmq.properties import MAX_EXPIRATION
from ...errors import AckflowError
from ...session.messages import Delivery
from ...session.session import Session
from .endpoints import Batch, retried

T = TypeVar("T")
LEASE_SECONDS = 6.0  # the messages of a killed bridge are delivered again after this time
WAIT_SECONDS = 1.0  # of one pop, which ends no earlier when the bridge is stopped
log = logging.getLogger("ackflow.bridge")


class SessionSource:
    def __init__(self, session: Session, queue: str, group: str, most: int) -> None:
        self._session = session
        self._queue = queue
        self._group = group
        self._most = most
        self._held: dict[str, Any] = {}
        self._renewing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await _thread(lambda: self._session.queue_stats(self._queue))  # raises if there is none
        self._renewing = asyncio.create_task(self._renew())

    async def fetch(self) -> Batch:
        while True:
            popping = asyncio.ensure_future(retried("reading", self._pop))
            try:
                found = await asyncio.shield(popping)
            except asyncio.CancelledError:
                await self._give_back(popping)
                raise
            if found:
                self._held[found.token] = found
                return Batch([_publication(one) for one in found], found)

    async def _pop(self) -> Any:
        return await _thread(
            lambda: self._session.pop(
                self._queue, group=self._group, batch=self._most, wait=WAIT_SECONDS,
                lease_seconds=LEASE_SECONDS, create=False,
            )
        )  # fmt: skip

    async def _give_back(self, popping: "asyncio.Future[Any]") -> None:
        """Release the messages of a pop that was cancelled."""
        done, _ = await asyncio.wait([popping], timeout=2 * LEASE_SECONDS)
        if done and popping.exception() is None and (found := popping.result()):
            await _thread(lambda: self._session.release(found))
        popping.cancel()

    async def ack(self, batch: Batch) -> None:
        """Acknowledge a batch that the target has stored."""
        acked = await retried(
            "acknowledging", lambda: _thread(lambda: self._session.ack(batch.mark))
        )
        self._held.pop(batch.mark.token, None)
        if acked.refused:
            log.warning(
                "%d messages were also delivered to other consumers and may be stored twice",
                len(acked.refused),
            )

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(LEASE_SECONDS / 3)
            for held in list(self._held.values()):
                try:
                    await _thread(partial(self._session.extend, held, LEASE_SECONDS))
                except AckflowError as error:
                    log.warning("a lease could not be extended: %s", error)

    async def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
        for held in self._held.values():
            with suppress(AckflowError):
                await _thread(partial(self._session.release, held))
        await _thread(self._session.close)


def _publication(message: Delivery) -> Publication:
    """A stored message as one that can be published again, under an id of its own."""
    headers = message.headers
    exchange, key = headers.get(EXCHANGE, ""), headers.get(ROUTING_KEY, message.queue)
    own = {k: v for k, v in headers.items() if k not in (EXCHANGE, ROUTING_KEY)}
    priority, expiration = own.get(PRIORITY, ""), own.get(EXPIRATION, "")
    return Publication(
        exchange, [key], message.raw, message.binary, own,
        priority=int(priority) if _is_number(priority, 255) else None,
        ttl=int(expiration) / 1000 if _is_number(expiration, MAX_EXPIRATION) else None,
        txid=message.transaction_id,
    )  # fmt: skip


def _is_number(text: str, most: int) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) <= most


class SessionTarget:
    def __init__(self, session: Session, queue: str) -> None:
        self._session = session
        self._queue = queue

    async def open(self) -> None:
        broker: Any = self._session.broker
        await _thread(lambda: broker.store.id)  # raises if a server cannot be reached

    async def put(self, messages: list[Publication]) -> int:
        """Import a batch; it may be sent again under the same key."""
        key = secrets.token_hex(12)
        broker: Any = self._session.broker

        def send() -> int:
            new: int = broker.do(import_messages, True, self._queue, messages, key)
            return new

        return await retried("writing", lambda: _thread(send))

    async def close(self) -> None:
        await _thread(self._session.close)


async def _thread(call: Callable[[], T]) -> T:
    return await asyncio.to_thread(call)
