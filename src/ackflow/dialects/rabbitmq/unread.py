"""Counts and limits the memory of data that a client was sent and has not read."""

import asyncio
import time

from ...server.limits import InTransit

WRITE_BUFFER = 1024 * 1024  # nothing more is delivered before the client has read that much
MAX_UNREAD = 8 * 1024 * 1024  # of messages and answers; then what the client sent waits
STALLED_SECONDS = 60.0  # without reading anything, while clients hold too much memory


class Unread:
    """The bytes that wait to be written to a client, above the allowance of every client."""

    def __init__(self, transit: InTransit) -> None:
        self._transit = transit
        self._transport: asyncio.Transport | None = None  # while the client does not read
        self._counted = 0
        self._read_at = 0.0
        self._has_read = asyncio.Event()
        self._has_read.set()

    def pause(self, transport: asyncio.Transport) -> None:
        """Begin to count: the client has left more than WRITE_BUFFER unread."""
        self._transport = transport
        self._read_at = time.monotonic()
        self._has_read.clear()
        self.count()

    def resume(self) -> None:
        """Stop counting: the client has read most of it, or is gone."""
        self._transport = None
        self._has_read.set()
        self.count()

    def count(self) -> None:
        held = 0
        if self._transport is not None:
            held = max(0, self._transport.get_write_buffer_size() - WRITE_BUFFER)
        if held < self._counted:
            self._read_at = time.monotonic()
        self._transit.bytes += held - self._counted
        self._counted = held

    @property
    def overdue(self) -> bool:
        """Whether the client has so much unread data that its own methods have to wait."""
        return self._transport is not None and self._transport.get_write_buffer_size() > MAX_UNREAD

    async def until_read(self) -> None:
        """Wait until the client has read most of the data that was sent to it."""
        while self.overdue:
            await self._has_read.wait()

    def is_stalled(self, now: float) -> bool:
        """Whether the client reads nothing while others need the memory."""
        if not self._counted:
            return False
        self.count()
        return now - self._read_at > STALLED_SECONDS and self._transit.is_full()
