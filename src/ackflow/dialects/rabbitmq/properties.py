"""Properties of AMQP messages as headers of stored messages, and back.

A property is stored under its name, with hyphens: `content-type`. A header of type text is stored
under its own name. All other headers, and those with the name of a property, are kept as they were
sent, encoded, in the header `amqp-table`, so that every client gets them with their types.
"""

import struct
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct, json
from pamqp import encode

from ...broker.core.routing.publish import DEATHS, EXCHANGE, ROUTING_KEY
from .arguments import MAX_MILLISECONDS, SHORTEST_TTL
from .errors import AmqpError
from .tables import entries, malformed, table_at

TABLE = "amqp-table"
SHORT, OCTET, TIME, HEADERS = "short", "octet", "time", "headers"
# In the order of their flags, from bit 15 down.
PROPERTIES = (
    ("content-type", SHORT), ("content-encoding", SHORT), ("headers", HEADERS),
    ("delivery-mode", OCTET), ("priority", OCTET), ("correlation-id", SHORT), ("reply-to", SHORT),
    ("expiration", SHORT), ("message-id", SHORT), ("timestamp", TIME), ("type", SHORT),
    ("user-id", SHORT), ("app-id", SHORT), ("cluster-id", SHORT),
)  # fmt: skip
_KINDS = {name: kind for name, kind in PROPERTIES if kind != HEADERS}
_OWN = frozenset({*_KINDS, TABLE, EXCHANGE, ROUTING_KEY})
_FLAGS = struct.Struct(">H")
_TIME = struct.Struct(">Q")
_LONG = struct.Struct(">I")
_NUMBER = struct.Struct(">q")
DELIVERY_COUNT = b"\x10x-delivery-countl"
MAX_EXPIRATION = MAX_MILLISECONDS
MEMO_BYTES, MEMO_SIZE = 256, 1024
_skip_json = msgspec.json.Decoder(msgspec.Raw).decode


class Decoded(Struct, frozen=True):
    """Properties as they are stored, and what publishing needs of them."""

    headers: dict[str, str]
    table: dict[str, Any] = {}
    priority: int | None = None
    ttl: float | None = None
    copies: tuple[str, ...] = ()  # more routing keys
    user: str | None = None
    is_json: bool = False


_decoded: dict[bytes, Decoded] = {}
_encoded: dict[tuple[int | None, tuple[tuple[str, str], ...]], bytes] = {}


def decode_properties(raw: bytes) -> Decoded:
    """Decode the flags and values of a content header; equal ones are decoded once."""
    found = _decoded.get(raw)
    if found is None:
        found = _decode(raw)
        if len(raw) <= MEMO_BYTES:
            if len(_decoded) >= MEMO_SIZE:
                _decoded.clear()
            _decoded[raw] = found
    return found


def _decode(raw: bytes) -> Decoded:
    if len(raw) < 2:
        raise malformed()
    (flags,) = _FLAGS.unpack_from(raw)
    if flags & 1:
        raise malformed()  # the class has no more than these properties
    at = 2
    headers: dict[str, str] = {}
    table: dict[str, Any] = {}
    for name, kind in _present(flags):
        if kind == HEADERS:
            start, at = table_at(raw, at)
            table = _add_table(headers, raw, start, at)
        else:
            headers[name], at = _property(raw, at, kind)
    headers.pop("cluster-id", None)
    return Decoded(
        headers=headers,
        table=table,
        priority=int(headers["priority"]) if "priority" in headers else None,
        ttl=_ttl(headers.get("expiration")),
        copies=(*_keys(table, "CC"), *_keys(table, "BCC")) if table else (),
        user=headers.get("user-id"),
        is_json="content-type" in headers and _is_json(headers),
    )


@lru_cache(1024)
def _present(flags: int) -> tuple[tuple[str, str], ...]:
    """The properties that follow some flags, in order."""
    return tuple(one for bit, one in enumerate(PROPERTIES) if flags & (1 << (15 - bit)))


def _property(raw: bytes, at: int, kind: str) -> tuple[str, int]:
    try:
        if kind == OCTET:
            return str(raw[at]), at + 1
        if kind == TIME:
            return str(_TIME.unpack_from(raw, at)[0]), at + 8
        end = at + 1 + raw[at]
        if end > len(raw):
            raise malformed()
        return raw[at + 1 : end].decode(), end
    except (IndexError, struct.error, UnicodeDecodeError):
        raise malformed() from None


def _add_table(headers: dict[str, str], raw: bytes, start: int, stop: int) -> dict[str, Any]:
    """Add the headers of a table to those that are stored; returns them with their types."""
    table: dict[str, Any] = {}
    kept: list[bytes] = []
    for entry in entries(raw, start, stop):
        table[entry.name] = entry.value
        if entry.name == "BCC":
            continue
        if entry.kind == "S" and isinstance(entry.value, str) and entry.name not in _OWN:
            headers[entry.name] = entry.value
        elif entry.name == DEATHS and (deaths := _deaths(entry.value)) is not None:
            headers[DEATHS] = deaths
        else:
            kept.append(entry.raw)
    if kept:
        headers[TABLE] = b64encode(b"".join(kept)).decode()
    return table


def _deaths(value: Any) -> str | None:
    """The history of a message that a client publishes again, as text; None if it is no history."""
    try:
        return json.encode(value).decode() if isinstance(value, list) else None
    except (TypeError, ValueError):
        return None


def _keys(table: dict[str, Any], name: str) -> list[str]:
    value = table.get(name, [])
    if not isinstance(value, list) or not all(isinstance(key, str) for key in value):
        raise AmqpError(406, f"invalid {name} header: it must be an array of text")
    return value


def _ttl(expiration: str | None) -> float | None:
    if expiration is None:
        return None
    digits = expiration.isascii() and expiration.isdecimal() and len(expiration) <= 12
    if not digits or int(expiration) > MAX_EXPIRATION:
        raise AmqpError(406, f"invalid expiration '{expiration}': it must be milliseconds, as text")
    return int(expiration) / 1000 or SHORTEST_TTL


def _is_json(headers: Mapping[str, str]) -> bool:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    plain = headers.get("content-encoding", "utf-8").lower() in ("utf-8", "utf8", "")
    return plain and (kind == "application/json" or kind.endswith("+json"))


def is_json(decoded: Decoded, body: bytes) -> bool:
    """Whether a body is stored as JSON: it says that it is, and it is."""
    if not decoded.is_json:
        return False
    try:
        body.decode()
        _skip_json(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def encode_properties(
    headers: Mapping[str, str], binary: bool, txid: str | None, failures: int | None = None
) -> bytes:
    """Encode the headers of a stored message as the properties of an AMQP message.

    `failures`: how often it was returned, for the header `x-delivery-count`.
    """
    if not binary and "content-type" not in headers:
        headers = {**headers, "content-type": "application/json"}
    if txid is not None and "message-id" not in headers:
        headers = {**headers, "message-id": txid}
    if not headers and failures is None:
        return b"\0\0"
    key = failures, tuple(headers.items())
    found = _encoded.get(key)
    if found is None:
        found = _encode(headers, failures)
        if len(found) <= MEMO_BYTES:
            if len(_encoded) >= MEMO_SIZE:
                _encoded.clear()
            _encoded[key] = found
    return found


def without_table(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that are properties: the others are too large for a frame."""
    return {name: value for name, value in headers.items() if name in _KINDS}


def _encode(headers: Mapping[str, str], failures: int | None) -> bytes:
    table: list[bytes] = []
    values: dict[str, bytes] = {}
    for name, value in headers.items():
        kind = _KINDS.get(name)
        encoded = _encoded_property(kind, value) if kind is not None else None
        if encoded is not None:
            values[name] = encoded
        elif name == TABLE:
            table.append(_kept_entries(value))
        elif name not in (EXCHANGE, ROUTING_KEY):
            table.append(_entry(name, value))
    if failures is not None:  # the last entry of a name counts
        table.append(DELIVERY_COUNT + _NUMBER.pack(failures))
    flags, parts = 0, [b""]
    if table:
        data = b"".join(table)
        values["headers"] = _LONG.pack(len(data)) + data
    for bit, (name, _) in enumerate(PROPERTIES):
        if name in values:
            flags |= 1 << (15 - bit)
            parts.append(values[name])
    parts[0] = _FLAGS.pack(flags)
    return b"".join(parts)


def _encoded_property(kind: str, value: str) -> bytes | None:
    """Encode a property; None if a client of another protocol wrote a value that does not fit."""
    if kind == SHORT:
        data = value.encode()
        return bytes([len(data)]) + data if len(data) <= 255 else None
    if not (value.isascii() and value.isdecimal() and len(value) <= 19):
        return None
    if kind == TIME:
        return _TIME.pack(int(value))
    return bytes([int(value)]) if int(value) <= 255 else None


def _kept_entries(value: str) -> bytes:
    """The encoded entries of a table; nothing if they are not what this module wrote."""
    try:
        data = b64decode(value, validate=True)
        for _ in entries(data, 0, len(data)):
            pass
    except (ValueError, AmqpError):
        return b""
    return data


def _entry(name: str, value: str) -> bytes:
    data = name.encode()
    if len(data) > 128:
        return b""  # the names of a table are no longer
    if name == DEATHS and (deaths := _encoded_deaths(value)) is not None:
        return bytes([len(data)]) + data + deaths
    text = value.encode()
    return bytes([len(data)]) + data + b"S" + _LONG.pack(len(text)) + text


def _encoded_deaths(value: str) -> bytes | None:
    try:
        deaths = json.decode(value, type=list[dict[str, Any]])
        for death in deaths:
            if isinstance(time := death.get("time"), int):
                death["time"] = datetime.fromtimestamp(time, UTC)
        return encode.encode_table_value(deaths)  # type: ignore[arg-type]
    except (
        ValueError, TypeError, OverflowError, OSError, RecursionError, struct.error,
        msgspec.MsgspecError,
    ):  # fmt: skip
        return None
