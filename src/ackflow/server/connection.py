"""One HTTP/1.x connection: parses requests, runs their handlers in order, writes the responses.

A handler runs without a task: each future that it awaits calls the next step. A response is one
write. Pipelined requests are answered one after the other. A head that was parsed before, byte for
byte, is not parsed again.

    waiting for a request ──head complete──► receiving the body ──complete──► queued
            ▲                    │ refused: answered before the body                │
            │                    ▼                                                 ▼
            │               lingering (close)       ◄──close──  responding ◄── handler runs
            └──────────────────────── all of it written ────────────┘
"""

import asyncio
import contextvars
import logging
import time
from collections import deque
from collections.abc import Coroutine, Hashable
from typing import Any, Protocol, cast

import httptools

from .http import Call, Response, too_large
from .limits import MAX_HEAD_BYTES, InTransit, Limits

MAX_QUEUED = 32  # pipelined requests, before the connection is no longer read
MAX_AT_ONCE = 32  # pipelined requests answered before other connections have their turn
MAX_HEADERS = 128
LARGE_RESPONSE = 64 * 1024  # bytes of a body that is not copied behind its head
SLICE = 16 * 1024  # bytes that are parsed at once
LEAST_BYTES_PER_SECOND = 64 * 1024
PHRASES = {
    200: b"OK", 201: b"Created", 202: b"Accepted", 204: b"No Content", 206: b"Partial Content",
    302: b"Found", 304: b"Not Modified", 400: b"Bad Request", 401: b"Unauthorized", 403: b"Forbidden",
    404: b"Not Found", 405: b"Method Not Allowed", 408: b"Request Timeout", 409: b"Conflict",
    410: b"Gone", 412: b"Precondition Failed", 413: b"Content Too Large",
    415: b"Unsupported Media Type", 422: b"Unprocessable Content", 423: b"Locked",
    429: b"Too Many Requests", 431: b"Request Header Fields Too Large",
    500: b"Internal Server Error", 501: b"Not Implemented", 503: b"Service Unavailable",
    507: b"Insufficient Storage",
}  # fmt: skip
_STATUS = {code: b"HTTP/1.1 %d %b\r\nx-request-id: " % (code, p) for code, p in PHRASES.items()}
_HEAD_END = b"\r\n\r\n"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSE = b"connection: close\r\n"
_KEEP_ALIVE = b"connection: keep-alive\r\n"
_PAGE = b"content-security-policy: frame-ancestors 'none'\r\nx-content-type-options: nosniff\r\n"

log = logging.getLogger("ackflow.server")


class App(Protocol):
    """The part of the server that a connection uses."""

    limits: Limits
    in_transit: InTransit
    closing: bool
    known_heads: dict[bytes, tuple[Call, int]]

    def new_call(self, client: tuple[str, int], secure: bool) -> Call: ...
    def receive_head(self, call: Call) -> None: ...
    def remember_head(self, head: bytes, call: Call) -> None: ...
    def receive_known(self, call: Call) -> None: ...
    def respond(self, call: Call) -> Coroutine[Any, Any, Response]: ...
    def responded(self, call: Call, response: Response) -> None: ...
    def undelivered(self, response: Response) -> None: ...


class Registry(Protocol):
    """The open connections."""

    def add(self, connection: "Connection") -> None: ...
    def remove(self, connection: "Connection") -> None: ...


class TooManyHeaders(Exception):
    """A request has more header lines than the server accepts."""


class Connection(asyncio.Protocol):
    """One connection of a client; used on the event loop only."""

    def __init__(self, app: App, registry: Registry) -> None:
        self._app = app
        self._registry = registry
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._client = ("unknown", 0)
        self._secure = False
        self._number = 0  # requests begun, to tell one wait from another
        self._call: Call | None = None  # the request that is being received
        self._in_head = False
        self._framing = b""  # the header that frames a body after an ignored upgrade
        self._url = b""
        self._head_bytes = 0
        self._headers = 0
        self._backlog = b""  # received, and not parsed while enough requests are queued
        self._parts: list[bytes] = []
        self._size = 0
        self._held = 0  # bytes of an incomplete body, counted in transit
        self._queue: deque[Call] = deque()
        self._current: Call | None = None
        self._handler: Coroutine[Any, Any, Response] | None = None
        self._context: contextvars.Context | None = None
        self._advancing = False
        self._last: bytes | None = None  # the response to what is not HTTP; then it closes
        self._discarding = False  # what still arrives is not read as HTTP
        self._lingering = False
        self._write_paused = False
        self._read_paused = False
        self._unsent: Response | None = None  # waits until the client has read most of it
        self._unsent_bytes = 0
        self._unsent_until = 0.0

    # called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        # Any byte that the kernel does not take pauses writing, so that `_complete` notices it.
        transport.set_write_buffer_limits(high=0)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self._client = peer[0], peer[1]
        self._secure = transport.get_extra_info("sslcontext") is not None
        self._registry.add(self)

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        self._parser = None  # it refers to this connection, which would wait to be collected
        self._discarding = True
        self._registry.remove(self)
        self._count_held(0)
        self._queue.clear()
        if self._unsent is not None:
            self._app.undelivered(self._unsent)
            self._sent()
        if self._current is not None and self._current.on_disconnect is not None:
            self._current.on_disconnect()

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            return
        if self._call is None and not self._backlog:
            size = data.find(_HEAD_END) + 4
            known = self._app.known_heads.get(data[:size])
            if known is not None and len(data) - size == known[1]:
                return self._receive_known(known[0], data[size:])
        self._receive(data)
        if self._current is None:
            self._advance()

    def _receive_known(self, known: Call, body: bytes) -> None:
        """Receive a whole request with a known head: the same as `_receive`, in fewer steps."""
        call: Call = known.__copy__()  # type: ignore[attr-defined]
        call.client, call.secure, call.body = self._client, self._secure, body
        self._number += 1
        self._app.receive_known(call)
        if self._current is None and not self._queue:
            self._start(call)
        else:
            self._queue.append(call)
            self._pause_if_queued()

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._unsent is not None:
            self._sent()
            self._finish()

    # called by the parser

    def on_message_begin(self) -> None:
        if self._framing:
            return
        self._number += 1
        self._call = self._app.new_call(self._client, self._secure)
        self._in_head = True
        self._url = b""
        self._head_bytes = self._headers = 0
        self._parts = []
        self._size = 0

    def on_url(self, url: bytes) -> None:
        self._url += url  # also that of a head with the framing alone, which nothing reads

    def on_header(self, name: bytes, value: bytes) -> None:
        assert self._call is not None
        self._headers += 1
        if self._headers > MAX_HEADERS:
            raise TooManyHeaders
        if not self._framing:
            self._call.add_header(name, value)

    def on_headers_complete(self) -> None:
        call = self._call
        assert call is not None
        if self._framing:
            return
        self._in_head = False
        call.method = self._parser.get_method().decode("latin-1")
        call.version = self._parser.get_http_version()
        call.keep_alive = self._parser.should_keep_alive()
        _check_framing(call)
        path, _, query = self._url.partition(b"?")
        if not path.startswith(b"/"):
            path = _absolute(call, path)
        call.path, call.query_string = path.decode("latin-1"), query
        call.arrived = time.perf_counter()
        if self._parser.should_upgrade():
            self._framing = _framing_of(call)
        self._app.receive_head(call)

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)
        call = self._call
        if call is not None and call.refusal is None and self._size > self._app.limits.body_bytes:
            call.refusal = too_large(self._app.limits.body_bytes)
        if call is not None and call.refusal is not None:
            self._parts.clear()

    def on_message_complete(self) -> None:
        if self._framing:
            return
        call = self._call
        assert call is not None
        parts = self._parts
        call.body = parts[0] if len(parts) == 1 else b"".join(parts)
        self._parts = []
        self._call = None
        if self._held:
            self._count_held(0)
        self._discarding = not call.keep_alive  # nothing may follow it
        self._queue.append(call)

    # receiving

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    def _receive(self, data: bytes) -> None:
        """Parse data, in slices, until enough requests are queued; the rest waits."""
        for at in range(0, len(data), SLICE):
            if len(self._queue) > MAX_QUEUED:
                self._backlog = data[at:]
                break
            if self._discarding:
                return
            self._parse(data[at : at + SLICE])
        self._pause_if_queued()

    def _pause_if_queued(self) -> None:
        if len(self._queue) > MAX_QUEUED and not self._read_paused and self._transport is not None:
            self._read_paused = True
            self._transport.pause_reading()

    def _parse(self, data: bytes) -> None:
        try:
            if self._call is None:
                data = self._feed_head(data)
            self._feed(data)
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, TooManyHeaders):
                return self._reject_head()
            return self._reject(400, "invalid_request", "the request is not valid HTTP/1.1")
        if (call := self._call) is None:
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._reject_head()
        elif call.refusal is not None:
            self._stop_receiving(call)
        else:
            self._count_held(self._size)
            if call.wants_continue and self._current is None and not self._queue:
                self._send_continue(call)

    def _feed_head(self, data: bytes) -> bytes:
        """Feed a whole head, if data begins with one, and let the server remember it.

        Known are bytes that the parser, between two requests, reads as the head of one request and
        no more: then only its body follows. Returns what is left to feed.
        """
        size = data.find(_HEAD_END) + 4
        number = self._number
        if size < 4:
            return data
        head = data[:size]
        self._feed(head)
        if self._number == number + 1 and not (self._in_head or self._size or self._framing):
            self._app.remember_head(head, self._call or self._queue[-1])
        return data[size:]

    def _feed(self, data: bytes) -> None:
        while data:
            try:
                return self._parser.feed_data(data)  # type: ignore[no-any-return]
            except httptools.HttpParserUpgrade as upgrade:
                # No other protocol is spoken here, so the request is answered as it is. The parser
                # has skipped its body; another one reads it, after a head with the same framing.
                data = data[upgrade.args[0] :]
                self._parser = httptools.HttpRequestParser(self)
                if self._framing:
                    self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % self._framing)
                    self._framing = b""

    def _count_held(self, held: int) -> None:
        """Count the bytes of an incomplete body; refuse the request if all clients hold too many."""
        self._app.in_transit.bytes += held - self._held
        self._held = held
        if held and (call := self._call) is not None and self._app.in_transit.is_full():
            call.refusal = self._app.in_transit.refusal()
            self._stop_receiving(call)
            self._count_held(0)

    def _stop_receiving(self, call: Call) -> None:
        """Answer a refused request now, and close: the rest of its body is of no use."""
        call.keep_alive = False
        self._parts.clear()
        self._call = None
        self._discarding = self._lingering = True
        self._queue.append(call)

    def _send_continue(self, call: Call) -> None:
        call.wants_continue = False
        self.transport.write(_CONTINUE)

    def _reject_head(self) -> None:
        self._reject(
            431, "head_too_large",
            f"a request head must have at most {MAX_HEAD_BYTES:,} bytes and {MAX_HEADERS} headers",
        )  # fmt: skip

    def _reject(self, status: int, code: str, message: str) -> None:
        """Answer what is not a complete request with an error, and close."""
        if self._discarding:
            return
        body = b'{"error":{"code":"%b","message":"%b"}}' % (code.encode(), message.encode())
        self._last = (
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%b" % (status, PHRASES[status], len(body), body)
        )
        self._discarding = self._lingering = True
        self._call = None
        self._parts.clear()
        self._count_held(0)
        if self._current is None:
            self._advance()

    # running handlers

    def _advance(self) -> None:
        """Handle the queued requests, one after the other."""
        if self._advancing:
            return
        self._advancing = True
        try:
            for _ in range(MAX_AT_ONCE):
                if self._current is not None or self._transport is None:
                    return
                if self._queue:
                    self._start(self._queue.popleft())
                elif self._last is not None:
                    self._transport.write(self._last)
                    return self._close()
                elif self._backlog:
                    data, self._backlog = self._backlog, b""
                    self._receive(data)
                else:
                    break
            else:  # the others first
                asyncio.get_running_loop().call_soon(self._advance)
                return
        finally:
            self._advancing = False
        if self._read_paused:
            self._read_paused = False
            self._transport.resume_reading()
        call = self._call
        if call is not None and call.wants_continue:
            self._send_continue(call)

    def _start(self, call: Call) -> None:
        self._current = call
        self._handler = self._app.respond(call)
        self._context = contextvars.copy_context()
        self._context.run(self._step)

    def _step(self, _: object = None) -> None:
        """Run the handler until it waits for a future or returns its response."""
        assert self._handler is not None
        try:
            future = self._handler.send(None)
        except StopIteration as returned:
            self._handler = None
            self._complete(returned.value)
        except BaseException:
            self._handler = self._current = None
            if self._transport is not None:
                self._transport.abort()
            raise
        else:
            if future is None:  # asyncio.sleep(0)
                asyncio.get_running_loop().call_soon(self._step)
            else:
                future._asyncio_future_blocking = False
                future.add_done_callback(self._step)

    def _complete(self, response: Response) -> None:
        call = self._current
        assert call is not None
        transport = self._transport
        if transport is None or transport.is_closing():
            self._current = None
            self._app.undelivered(response)
            self._app.responded(call, response)
            return
        if self._app.closing:
            call.keep_alive = False
        if len(response.body) <= LARGE_RESPONSE:
            transport.write(_encode(call, response))
        else:
            head = _encode(call, response._replace(body=b""), len(response.body))
            transport.writelines([head, b"" if call.method == "HEAD" else response.body])
        self._app.responded(call, response)
        if self._write_paused:
            size = len(response.body)
            self._unsent = response._replace(body=b"")  # the transport holds what is not sent
            self._unsent_bytes = size
            slowest = self._app.limits.read_seconds + size / LEAST_BYTES_PER_SECOND
            self._unsent_until = time.monotonic() + slowest
            self._app.in_transit.bytes += size
        else:
            self._finish()

    def _sent(self) -> None:
        self._app.in_transit.bytes -= self._unsent_bytes
        self._unsent, self._unsent_bytes = None, 0

    def _finish(self) -> None:
        """Go on after a response was written: close, or handle the next request."""
        call, self._current = self._current, None
        if call is not None and not call.keep_alive:
            self._close()
        elif self._queue or self._last is not None or self._read_paused or self._call is not None:
            self._advance()
        elif self._app.closing:
            self._close()

    def _close(self) -> None:
        """Close; if the client may still be sending, let it read its response first."""
        transport = self._transport
        if transport is None:
            return
        self._queue.clear()
        self._last = None
        if self._lingering and transport.can_write_eof():
            self._discarding = True
            transport.write_eof()  # closing now would reset the connection under the response
        else:
            transport.close()

    # called by the registry, once in a while

    @property
    def idle(self) -> bool:
        return self._current is None and self._call is None and not self._queue

    def close_if_idle(self) -> None:
        if self.idle and self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def waits_for_client(self) -> tuple[Hashable, bool] | None:
        """What it waits for the client to do, and whether that is to begin a new request.

        Equal as long as the wait is the same; None if the connection waits for its handler.
        """
        transport = self._transport
        if transport is None:
            return None
        if self._write_paused:
            return ("read", self._number, transport.get_write_buffer_size()), False
        if self._lingering or transport.is_closing():
            return ("close", self._number), False
        if self._call is not None:
            return ("send", self._number), False
        if self._current is None:
            return ("begin", self._number), self._number > 0
        return None

    def write_overdue(self, now: float) -> bool:
        """Whether the client has read its response too slowly, though without a pause."""
        return self._unsent is not None and now >= self._unsent_until

    def end_wait(self, seconds: float) -> None:
        """Close the connection of a client that took too long."""
        if self._transport is None:
            return
        if self._call is not None or (self.idle and self._number == 0):
            self._reject(408, "request_timeout", f"a request must arrive within {seconds:g} s")
        elif self.idle and not self._lingering and not self._write_paused:
            self._transport.close()
        else:
            self._transport.abort()


def check_future_protocol() -> None:
    """Raise RuntimeError unless futures tell `_step` to wait in the way that asyncio's tasks know.

    It is no public interface of Python, so that the server checks it when it starts.
    """
    future = asyncio.get_running_loop().create_future()
    waiting = future.__await__()
    try:
        known = next(waiting) is future and future._asyncio_future_blocking is True
    except (AttributeError, StopIteration):
        known = False
    waiting.close()
    future.cancel()
    if not known:
        raise RuntimeError("this version of Python awaits futures in an unsupported way")


def _framing_of(call: Call) -> bytes:
    """The header that says how long the body is; empty if there is none."""
    for name in (b"transfer-encoding", b"content-length"):
        if (value := call.headers.get(name)) is not None and value != b"0":
            return name + b": " + value
    return b""


def _check_framing(call: Call) -> None:
    """Refuse what a proxy may frame in another way; the parser makes a 400 of the exception."""
    if call.version not in ("1.0", "1.1"):
        raise ValueError("unknown version")
    if call.method == "CONNECT":
        raise ValueError("what follows is a tunnel")
    coding = call.headers.get(b"transfer-encoding")
    if coding is not None and (coding.lower() != b"chunked" or call.version == "1.0"):
        raise ValueError("unknown transfer coding")


def _absolute(call: Call, target: bytes) -> bytes:
    """The path of a request target in absolute form; its host replaces the Host header."""
    try:
        url = httptools.parse_url(target)
    except httptools.HttpParserInvalidURLError:
        return b""
    if url.host is not None:
        host = b"[%b]" % url.host if b":" in url.host else url.host
        call.headers[b"host"] = host if url.port is None else b"%b:%d" % (host, url.port)
    return url.path or b"/"


def _encode(call: Call, response: Response, length: int | None = None) -> bytes:
    """Encode a response; `length` is that of a body which is sent separately."""
    status, body, type, headers, _ = response
    start = _STATUS.get(status) or b"HTTP/1.1 %d Status\r\nx-request-id: " % status
    more = b""
    if headers or call.cors_headers:
        own = list(headers)
        own += [header for header in call.cors_headers if header not in own]
        more = b"".join([b"%b: %b\r\n" % header for header in own])
    if not call.keep_alive:
        more += _CLOSE
    elif call.version == "1.0":
        more += _KEEP_ALIVE
    if status == 204 and not body:
        return b"%b%b\r\n%b\r\n" % (start, call.id.encode(), more)
    if type.startswith(b"text/html"):
        more += _PAGE
    return b"%b%b\r\ncontent-length: %d\r\ncontent-type: %b\r\n%b\r\n%b" % (
        start, call.id.encode(), len(body) if length is None else length, type, more, b"" if call.method == "HEAD" else body,
    )  # fmt: skip
