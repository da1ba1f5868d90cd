"""Frames of AMQP 0-9-1. `pamqp` encodes and decodes methods, but not those of every message."""

import struct
from functools import lru_cache
from typing import NamedTuple

from pamqp import commands, exceptions, frame
from pamqp.base import Frame

from .errors import AmqpError

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
END = 0xCE
FRAME_MAX, FRAME_MIN = 131_072, 4_096
OVERHEAD = 8  # of a frame: type, channel, size, end
HEADER_OVERHEAD = OVERHEAD + 12  # of a content header, which is one frame
MEMO_BYTES = 128  # of encoded publications that are decoded once
MAX_METHOD = 16 * 1024  # `pamqp` decodes tables in quadratic time
HEARTBEAT_FRAME = b"\x08\x00\x00\x00\x00\x00\x00\xce"
_END = b"\xce"
unpack_start = struct.Struct(">BHI").unpack_from
_START = struct.Struct(">BHI").pack
_CONTENT = struct.Struct(">HHQ")
_TAG = struct.Struct(">QB")
_METHOD_ID = struct.Struct(">I")
_COUNTS = struct.Struct(">II")
PUBLISH = 0x003C0028
ACK = 0x003C0050
NACK = 0x003C0078
PUBLISH_ID = b"\x00\x3c\x00\x28"
_DELIVER = b"\x00\x3c\x00\x3c"
_GET_OK = b"\x00\x3c\x00\x47"
_RETURN = b"\x00\x3c\x00\x32"
_DECLARE_OK = b"\x00\x32\x00\x0b"
_NO_ROUTE = b"\x01\x38\x08NO_ROUTE"


class Publish(NamedTuple):
    """basic.publish"""

    exchange: str
    routing_key: str
    mandatory: bool
    immediate: bool


class Ack(NamedTuple):
    """basic.ack"""

    delivery_tag: int
    multiple: bool


Method = Frame | Publish | Ack


def decode_method(data: bytes) -> Method:
    if len(data) < 4:
        raise AmqpError(501, "a method frame is too short")
    (id,) = _METHOD_ID.unpack_from(data)
    try:
        if id == PUBLISH:
            return _publish(data) if len(data) <= MEMO_BYTES else decode_publish(data)
        if id == ACK:
            tag, bits = _TAG.unpack_from(data, 4)
            return Ack(tag, bool(bits & 1))
        if len(data) > MAX_METHOD:
            raise AmqpError(501, f"a method frame must have at most {MAX_METHOD} bytes")
        if id not in commands.INDEX_MAPPING:
            raise AmqpError(540, f"unknown method {id >> 16}.{id & 0xFFFF}")
        method: Frame = commands.INDEX_MAPPING[id]()
        method.unmarshal(data[4:])
    except (
        struct.error, ValueError, IndexError, TypeError, KeyError, OverflowError, OSError,
        RecursionError, exceptions.PAMQPException,
    ):  # fmt: skip
        raise AmqpError(502, f"method {id >> 16}.{id & 0xFFFF} cannot be decoded") from None
    return method


def decode_publish(data: bytes) -> Publish:
    exchange, at = short(data, 6)
    key, at = short(data, at)
    return Publish(exchange, key, bool(data[at] & 1), bool(data[at] & 2))


_publish = lru_cache(1024)(decode_publish)  # a client names few exchanges and keys


class Content(NamedTuple):
    """The content of a publication that is complete in the bytes that were read."""

    properties: bytes
    body: bytes
    stop: int  # where its last frame ends


def content_at(data: bytes, at: int, channel: int, most: int) -> Content | None:
    """Return the content at an offset if it is one header and one body frame, of at most some bytes.

    Everything else is left to the reader of single frames, errors as well.
    """
    size = len(data)
    if size < at + 7 + 14:
        return None
    kind, number, length = unpack_start(data, at)
    body = at + 8 + length
    if kind != HEADER or number != channel or not 14 <= length <= most or size < body + 8:
        return None
    class_id, weight, expected = _CONTENT.unpack_from(data, at + 7)
    kind, number, length = unpack_start(data, body)
    stop = body + 8 + length
    if (
        kind != BODY or number != channel or length != expected or length > most or size < stop
        or class_id != 60 or weight or data[body - 1] != END or data[stop - 1] != END
    ):  # fmt: skip
        return None
    return Content(data[at + 19 : body - 1], data[body + 7 : stop - 1], stop)


def short(data: bytes, at: int) -> tuple[str, int]:
    """Decode a short string; return it and where it ends."""
    end = at + 1 + data[at]
    if end > len(data):
        raise ValueError("a short string is cut off")
    return data[at + 1 : end].decode(), end


def decode_header(data: bytes) -> tuple[int, bytes]:
    """Return the size of a body and its encoded properties."""
    if len(data) < 14:
        raise AmqpError(501, "a content header is too short")
    class_id, weight, size = _CONTENT.unpack_from(data)
    if class_id != 60 or weight:
        raise AmqpError(501, f"expected a content header of class 60, got class {class_id}")
    return size, data[12:]


def encode(channel: int, method: Frame) -> bytes:
    return frame.marshal(method, channel)


@lru_cache(4096)
def short_bytes(text: str) -> bytes:
    data = text.encode()[:255]
    return bytes([len(data)]) + data


def ack(channel: int, tag: int, multiple: bool) -> bytes:
    payload = b"\x00\x3c\x00\x50" + _TAG.pack(tag, multiple)
    return _START(METHOD, channel, len(payload)) + payload + _END


def nack(channel: int, tag: int) -> bytes:
    payload = b"\x00\x3c\x00\x78" + _TAG.pack(tag, 0)
    return _START(METHOD, channel, len(payload)) + payload + _END


# `pamqp` refuses to encode names that RabbitMQ and this server allow.


def declare_ok(channel: int, queue: str, ready: int, consumers: int) -> bytes:
    counts = _COUNTS.pack(min(ready, 0xFFFFFFFF), consumers)
    payload = _DECLARE_OK + short_bytes(queue) + counts
    return _START(METHOD, channel, len(payload)) + payload + _END


def no_route(exchange: str, key: str) -> bytes:
    """basic.return of a message that reached no queue."""
    return _RETURN + _NO_ROUTE + short_bytes(exchange) + short_bytes(key)


def deliver(consumer: bytes, tag: int, redelivered: bool, exchange: bytes, key: bytes) -> bytes:
    """basic.deliver; the names are encoded short strings."""
    return b"".join((_DELIVER, consumer, _TAG.pack(tag, redelivered), exchange, key))


class Deliveries:
    """The frames of several messages for one consumer; what they have in common is encoded once."""

    def __init__(self, channel: int, consumer: bytes, frame_max: int) -> None:
        self._channel, self._consumer, self._frame_max = channel, consumer, frame_max
        self._parts: list[bytes] = []
        self._common: tuple[bytes, bytes, bytes, int] | None = None
        self._before = self._between = b""  # what comes before the tag, and between tag and body

    def add(
        self, tag: int, redelivered: bool, exchange: bytes, key: bytes, properties: bytes, body: bytes
    ) -> None:  # fmt: skip
        if len(body) > self._frame_max - OVERHEAD:
            method = deliver(self._consumer, tag, redelivered, exchange, key)
            whole = with_content(self._channel, method, properties, body, self._frame_max)
            self._parts.append(whole)
            return
        common = exchange, key, properties, len(body)
        if common != self._common:
            self._common = common
            self._prepare(*common)
        self._parts += (self._before, _TAG.pack(tag, redelivered), self._between, body, _END)

    def _prepare(self, exchange: bytes, key: bytes, properties: bytes, size: int) -> None:
        channel, names = self._channel, exchange + key
        length = len(_DELIVER) + len(self._consumer) + _TAG.size + len(names)
        self._before = _START(METHOD, channel, length) + _DELIVER + self._consumer
        header = _START(HEADER, channel, 12 + len(properties)) + _CONTENT.pack(60, 0, size)
        self._between = names + _END + header + properties
        if size:
            self._between += _END + _START(BODY, channel, size)

    def encoded(self) -> bytes:
        return b"".join(self._parts)


def get_ok(tag: int, redelivered: bool, exchange: bytes, key: bytes, left: int) -> bytes:
    left = min(left, 0xFFFFFFFF)
    return b"".join((_GET_OK, _TAG.pack(tag, redelivered), exchange, key, _METHOD_ID.pack(left)))


def with_content(
    channel: int, method: bytes, properties: bytes, body: bytes, frame_max: int
) -> bytes:
    """A method with its content, in frames that are as large as the client accepts."""
    most = frame_max - OVERHEAD
    parts = [
        _START(METHOD, channel, len(method)), method, _END,
        _START(HEADER, channel, 12 + len(properties)), _CONTENT.pack(60, 0, len(body)), properties,
        _END,
    ]  # fmt: skip
    if len(body) <= most:
        if body:
            parts += (_START(BODY, channel, len(body)), body, _END)
        return b"".join(parts)
    for at in range(0, len(body), most):
        piece = body[at : at + most]
        parts += (_START(BODY, channel, len(piece)), piece, _END)
    return b"".join(parts)
