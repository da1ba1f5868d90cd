"""HTTP/1.1 requests over pooled connections, in as few steps as possible.

urllib3 opens the connections, with its certificates and time-outs. A request is written and its
answer is read here: urllib3 takes 0.2 ms of CPU for that, as much as a push takes in all.
"""

import contextlib
import socket
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple
from weakref import WeakSet

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError
from urllib3.util import parse_url

MAX_IDLE = 64
MAX_HEAD_BYTES = 64 * 1024
READ_BYTES = 64 * 1024
COPIED_BYTES = 64 * 1024  # a larger body is sent without copying it behind its head
_WITHOUT_BODY = (204, 304)


class NotSent(HTTPError):
    """No connection could be opened, so that the server has certainly not seen the request."""


class NotAnswered(HTTPError):
    """The server may have received the request, and there is no complete answer."""


class Answer(NamedTuple):
    """A response; the names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Connections:
    """The connections to one server; any thread may use them."""

    def __init__(
        self, base: str, headers: Mapping[str, str], connect_seconds: float, **tls: Any
    ) -> None:
        url = parse_url(base)
        self._connect_seconds = connect_seconds
        self._tls = tls if url.scheme == "https" else None
        self._address = url.host or "", url.port or (443 if url.scheme == "https" else 80)
        self._prefix = (url.path or "").encode()
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._head = f" HTTP/1.1\r\nhost: {url.netloc}\r\n{lines}content-length: ".encode()
        self._closed = False
        self._idle: deque[HTTPConnection] = deque()
        self._open: WeakSet[HTTPConnection] = WeakSet()

    def request(self, method: str, path: str, body: bytes, seconds: float) -> Answer:
        """Send a request, and wait so many seconds for each part of its answer."""
        whole = b"%b %b%b%b%d\r\n\r\n" % (
            method.encode(), self._prefix, path.encode(), self._head, len(body)
        )  # fmt: skip
        connection = self._idle_one() or self._connect()
        try:
            sock = connection.sock
            if sock.gettimeout() != seconds:
                sock.settimeout(seconds)
            _send(sock, whole, body)
            answer, reusable = _Reader(sock).answer(method)
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError | ValueError):
                raise NotAnswered(_reason(error)) from error
            raise
        if reusable and len(self._idle) < MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.close()
        if self._closed:
            self._close_idle()
        return answer

    def _idle_one(self) -> HTTPConnection | None:
        """The connection that was used last, if the server has not closed it."""
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread took it
                break
            if connection.is_connected:
                return connection
            connection.close()
        return None

    def _connect(self) -> HTTPConnection:
        host, port = self._address
        if self._tls is None:
            connection = HTTPConnection(host, port, timeout=self._connect_seconds)
        else:
            connection = HTTPSConnection(host, port, timeout=self._connect_seconds, **self._tls)
        try:
            connection.connect()
        except (HTTPError, OSError, ValueError) as error:
            connection.close()
            raise NotSent(_reason(error)) from error
        self._open.add(connection)
        return connection

    def close(self) -> None:
        """Close every connection, also those on which another thread waits for an answer."""
        self._closed = True
        for connection in list(self._open):
            if connection.sock is not None:
                with contextlib.suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)
        self._close_idle()

    def _close_idle(self) -> None:
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread took it
                self._idle.pop().close()


def _send(sock: socket.socket, head: bytes, body: bytes) -> None:
    try:
        if len(body) <= COPIED_BYTES:
            sock.sendall(head + body)
        else:
            sock.sendall(head)
            for at in range(0, len(body), COPIED_BYTES):  # the time-out is that of each part
                sock.sendall(memoryview(body)[at : at + COPIED_BYTES])
    except (BrokenPipeError, ConnectionResetError):
        return  # the server may have refused the request before it read all of it


class _Reader:
    """Reads one answer from a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._data = b""  # received and not used

    def answer(self, method: str) -> tuple[Answer, bool]:
        """Return the answer, and whether the connection may be used again."""
        while True:
            version, status, headers = _parse_head(self._until(b"\r\n\r\n"))
            if status >= 200:  # others announce the answer
                break
        length = headers.get("content-length")
        reusable = version == b"HTTP/1.1" and headers.get("connection", "").lower() != "close"
        if method == "HEAD" or status in _WITHOUT_BODY:
            body = b""
        elif headers.get("transfer-encoding", "").lower() == "chunked":
            body = self._chunks()
        elif length is not None:
            body = self._exactly(int(length))
        else:
            body, reusable = self._rest(), False
        return Answer(status, headers, body), reusable and not self._data

    def _receive(self) -> bytes:
        data = self._sock.recv(READ_BYTES)
        if not data:
            raise ConnectionError("the server closed the connection without an answer")
        return data

    def _until(self, end: bytes) -> bytes:
        while (at := self._data.find(end)) < 0:
            if len(self._data) > MAX_HEAD_BYTES:
                raise ValueError("the head of the answer is too large")
            self._data += self._receive()
        found, self._data = self._data[:at], self._data[at + len(end) :]
        return found

    def _exactly(self, size: int) -> bytes:
        if len(self._data) >= size:
            found, self._data = self._data[:size], self._data[size:]
            return found
        parts, left = [self._data], size - len(self._data)
        self._data = b""
        while left:
            part = self._sock.recv(min(left, 1 << 20))
            if not part:
                raise ConnectionError("the server closed the connection within an answer")
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def _chunks(self) -> bytes:
        parts = []
        while size := int(self._until(b"\r\n").partition(b";")[0], 16):
            parts.append(self._exactly(size))
            self._exactly(2)
        while self._until(b"\r\n"):
            pass  # trailers
        return b"".join(parts)

    def _rest(self) -> bytes:
        parts = [self._data]
        self._data = b""
        while part := self._sock.recv(READ_BYTES):
            parts.append(part)
        return b"".join(parts)


def _parse_head(head: bytes) -> tuple[bytes, int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError("the answer is not HTTP")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return version.encode(), int(rest[:3]), headers


def _reason(error: Exception) -> str:
    cause = error.__cause__ or error.__context__ or error
    for one in (error, cause):
        if isinstance(one, OSError) and one.strerror:
            return one.strerror
    return str(error)
