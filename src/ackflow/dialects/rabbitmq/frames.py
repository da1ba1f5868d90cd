"""Frames of AMQP 0-9-1. `pamqp` encodes and decodes methods, but not those of every message."""

import struct
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
MAX_METHOD = 16 * 1024  # `pamqp` decodes tables in quadratic time
HEARTBEAT_FRAME = b"\x08\x00\x00\x00\x00\x00\x00\xce"
_END = b"\xce"
unpack_start = struct.Struct(">BHI").unpack_from
_START = struct.Struct(">BHI").pack
_CONTENT = struct.Struct(">HHQ")
_TAG = struct.Struct(">QB")
_METHOD_ID = struct.Struct(">I")
PUBLISH = 0x003C0028
ACK = 0x003C0050
NACK = 0x003C0078
_DELIVER = b"\x00\x3c\x00\x3c"
_GET_OK = b"\x00\x3c\x00\x47"


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
            return _publish(data)
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


def _publish(data: bytes) -> Publish:
    exchange, at = short(data, 6)
    key, at = short(data, at)
    return Publish(exchange, key, bool(data[at] & 1), bool(data[at] & 2))


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


def short_bytes(text: str) -> bytes:
    data = text.encode()[:255]
    return bytes([len(data)]) + data


def ack(channel: int, tag: int, multiple: bool) -> bytes:
    payload = b"\x00\x3c\x00\x50" + _TAG.pack(tag, multiple)
    return _START(METHOD, channel, len(payload)) + payload + _END


def nack(channel: int, tag: int) -> bytes:
    payload = b"\x00\x3c\x00\x78" + _TAG.pack(tag, 0)
    return _START(METHOD, channel, len(payload)) + payload + _END


def deliver(consumer: bytes, tag: int, redelivered: bool, exchange: bytes, key: bytes) -> bytes:
    """basic.deliver; the names are encoded short strings."""
    return b"".join((_DELIVER, consumer, _TAG.pack(tag, redelivered), exchange, key))


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
