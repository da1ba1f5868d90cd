"""Connections that misbehave: heads without end, requests that never become whole.

They are looked at from outside, once in a while, so that a good request pays nothing.
"""

import asyncio
import time
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD = 64 * 1024
_ANSWER = (
    "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {size}\r\n"
    "connection: close\r\n\r\n{body}"
)


class Guarded(HttpToolsProtocol):
    """A connection that bounds the size of a request's head."""

    _head = 0

    def data_received(self, data: bytes) -> None:
        if len(data) > MOST_HEAD and self._awaits_head() and b"\r\n\r\n" not in data[:MOST_HEAD]:
            self._too_long()
            return
        super().data_received(data)
        if self.scope is not None and (self.cycle is None or self.cycle.scope is not self.scope):
            self._head += len(data)
            if self._head > MOST_HEAD:
                self._too_long()
        else:
            self._head = 0

    def _awaits_head(self) -> bool:
        return self.cycle is None or not self.cycle.more_body

    def _too_long(self) -> None:
        self.refuse("431 Request Header Fields Too Large", "head_too_large",
                    f"the head of a request has at most {MOST_HEAD:,} bytes")  # fmt: skip

    def refuse(self, status: str, code: str, message: str) -> None:
        """Answer before there is a whole request, and close."""
        if not self.transport.is_closing():
            body = f'{{"error":{{"code":"{code}","message":"{message}"}}}}'
            text = _ANSWER.format(status=status, size=len(body), body=body)
            self.transport.write(text.encode())
            self.transport.close()

    def reads(self) -> object | None:
        """What it is waiting for from the client, as something that stays the same meanwhile;
        None while it waits for nothing."""
        cycle = self.cycle
        if self.transport.is_closing():
            return self.transport
        if cycle is None or cycle.response_complete:
            return None if self.timeout_keep_alive_task is not None else (cycle or self)
        if cycle.more_body and not cycle.response_started:
            return cycle.scope
        return None


class Reaper:
    """Closes what has been reading one request for too long."""

    def __init__(self, connections: set[Any], seconds: float) -> None:
        self._connections = connections
        self._seconds = seconds
        self._seen: dict[Guarded, tuple[object, float]] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self._seconds / 4))
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        before, self._seen = self._seen, {}
        for connection in list(self._connections):
            if not isinstance(connection, Guarded):
                continue
            waits = connection.reads()
            if waits is None:
                continue
            what, since = before.get(connection, (None, now))
            if what is not waits:
                since = now
            if now - since >= self._seconds:
                self._end(connection)
            else:
                self._seen[connection] = waits, since

    def _end(self, connection: Guarded) -> None:
        if connection.transport.is_closing():
            connection.transport.abort()  # the client does not take its answer
        else:
            connection.refuse("408 Request Timeout", "request_timeout",
                              f"a request must be whole within {self._seconds:g} s")  # fmt: skip
