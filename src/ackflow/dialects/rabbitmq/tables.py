"""Field tables of AMQP 0-9-1: decoded with a limit of depth, at a cost that is linear in the size."""

import struct
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NamedTuple

from .errors import AmqpError

MAX_DEPTH = 16
_NUMBERS = {
    kind: struct.Struct(">" + code)
    for kind, code in {
        "b": "b", "B": "B", "s": "h", "u": "H", "I": "i", "i": "I", "l": "q", "L": "q", "f": "f",
        "d": "d", "T": "Q",
    }.items()
}  # fmt: skip
_LONG = struct.Struct(">I").unpack_from
_DECIMAL = struct.Struct(">Bi").unpack_from


class Entry(NamedTuple):
    """An entry of a table; `raw` is its name, type and value as they were sent."""

    name: str
    kind: str
    value: Any
    raw: bytes


def entries(data: bytes, at: int, stop: int) -> Iterator[Entry]:
    """Decode the entries of the table that fills [at, stop)."""
    return _entries(data, at, stop, MAX_DEPTH)


def table_at(data: bytes, at: int) -> tuple[int, int]:
    """Return where the entries of the table at an offset begin and end."""
    if at + 4 > len(data):
        raise malformed()
    stop = at + 4 + _LONG(data, at)[0]
    if stop > len(data):
        raise malformed()
    return at + 4, stop


def malformed() -> AmqpError:
    return AmqpError(502, "a field table or property list cannot be decoded")


def _entries(data: bytes, at: int, stop: int, depth: int) -> Iterator[Entry]:
    while at < stop:
        start = at
        end = at + 1 + data[at]
        if end >= stop:
            raise malformed()
        try:
            name = data[at + 1 : end].decode()
        except UnicodeDecodeError:
            raise malformed() from None
        kind = chr(data[end])
        value, at = _value(data, end + 1, stop, kind, depth)
        yield Entry(name, kind, value, data[start:at])


def _value(data: bytes, at: int, stop: int, kind: str, depth: int) -> tuple[Any, int]:
    if (number := _NUMBERS.get(kind)) is not None:
        end = at + number.size
        if end > stop:
            raise malformed()
        return number.unpack_from(data, at)[0], end
    if kind in "SxFA":
        if at + 4 > stop:
            raise malformed()
        end = at + 4 + _LONG(data, at)[0]
        if end > stop:
            raise malformed()
        return _sized(data, at + 4, end, kind, depth - 1), end
    if kind == "t" and at < stop:
        return bool(data[at]), at + 1
    if kind == "V":
        return None, at
    if kind == "D" and at + 5 <= stop:
        scale, digits = _DECIMAL(data, at)
        return Decimal(digits).scaleb(-scale), at + 5
    raise malformed()


def _sized(data: bytes, at: int, end: int, kind: str, depth: int) -> Any:
    if depth < 0:
        raise malformed()
    if kind == "F":
        return {entry.name: entry.value for entry in _entries(data, at, end, depth)}
    if kind == "A":
        found = []
        while at < end:
            value, at = _value(data, at + 1, end, chr(data[at]), depth)
            found.append(value)
        return found
    raw = data[at:end]
    if kind == "x":
        return raw
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw
