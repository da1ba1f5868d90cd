"""Limits of a connection: the size of a request head and the time to read a request.

The read timeout polls the connections, so that normal requests pay nothing for it.
"""

import asyncio
import time
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
_RESPONSE = (
    "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {size}\r\n"
    "connection: close\r\n\r\n{body}"
)


class LimitedProtocol(HttpToolsProtocol):
    """An HTTP connection that limits the size of a request head."""

    _head_bytes = 0

    def data_received(self, data: bytes) -> None:
        if (
            len(data) > MAX_HEAD_BYTES
            and self._expects_head()
            and b"\r\n\r\n" not in data[:MAX_HEAD_BYTES]
        ):
            self._reject_head()
            return
        super().data_received(data)
        if self.scope is not None and (self.cycle is None or self.cycle.scope is not self.scope):
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._reject_head()
        else:
            self._head_bytes = 0

    def _expects_head(self) -> bool:
        return self.cycle is None or not self.cycle.more_body

    def _reject_head(self) -> None:
        self.reject("431 Request Header Fields Too Large", "head_too_large",
                    f"a request head must have at most {MAX_HEAD_BYTES:,} bytes")  # fmt: skip

    def reject(self, status: str, code: str, message: str) -> None:
        """Answer an incomplete request with an error and close the connection."""
        if not self.transport.is_closing():
            body = f'{{"error":{{"code":"{code}","message":"{message}"}}}}'
            text = _RESPONSE.format(status=status, size=len(body), body=body)
            self.transport.write(text.encode())
            self.transport.close()

    def pending_read(self) -> object | None:
        """An object that stands for what the connection waits to receive from the client.

        It is the same object as long as the wait is the same; None if it waits for nothing.
        """
        cycle = self.cycle
        if self.transport.is_closing():
            return self.transport
        if cycle is None or cycle.response_complete:
            return None if self.timeout_keep_alive_task is not None else (cycle or self)
        if cycle.more_body and not cycle.response_started:
            return cycle.scope
        return None


class ReadTimeout:
    """Closes connections that take too long to send one request."""

    def __init__(self, connections: set[Any], seconds: float) -> None:
        self._connections = connections
        self._seconds = seconds
        self._pending: dict[LimitedProtocol, tuple[object, float]] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self._seconds / 4))
            self.check(time.monotonic())

    def check(self, now: float) -> None:
        before, self._pending = self._pending, {}
        for connection in list(self._connections):
            if not isinstance(connection, LimitedProtocol):
                continue
            read = connection.pending_read()
            if read is None:
                continue
            earlier, since = before.get(connection, (None, now))
            if earlier is not read:
                since = now
            if now - since >= self._seconds:
                self._close(connection)
            else:
                self._pending[connection] = read, since

    def _close(self, connection: LimitedProtocol) -> None:
        if connection.transport.is_closing():
            connection.transport.abort()  # the client does not read its response
        else:
            connection.reject("408 Request Timeout", "request_timeout",
                              f"a request must arrive within {self._seconds:g} s")  # fmt: skip
