"""Parses JSON payloads into Arrow structs and reports the rows that do not fit the schema."""

import datetime
import decimal
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import pyarrow as pa

from ..errors import InvalidArgument

_WIDTHS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}


class Parser:
    """Decodes JSON payloads into one Arrow struct; created once per task."""

    def __init__(self, kind: pa.StructType) -> None:
        self._kind = kind
        self._decode = msgspec.json.Decoder(_type_of(kind)).decode

    def parse(self, payloads: pa.Array) -> tuple[pa.Array, list[int]]:
        """Return the payloads as structs, null where one does not fit, and the rows of those."""
        found: list[Any] = []
        bad: list[int] = []
        for row, raw in enumerate(payloads.to_pylist()):
            try:
                found.append(self._decode(raw))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                found.append(None)
                bad.append(row)
        return _array(found, self._kind), bad


def invalid_utf8_rows(payloads: pa.Array) -> list[int]:
    """Return the rows whose payload is not valid UTF-8."""
    text = pa.Array.from_buffers(pa.string(), len(payloads), payloads.buffers())
    try:
        text.validate(full=True)
        return []
    except pa.ArrowInvalid:
        return [row for row, raw in enumerate(payloads.to_pylist()) if not _is_text(raw)]


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _type_of(kind: pa.DataType) -> Any:
    """Return the Python type for an Arrow type, for msgspec; fields may be absent or null."""
    simple: dict[pa.DataType, Any] = {
        pa.bool_(): bool, pa.float32(): float, pa.float64(): float, pa.string(): str,
        pa.date32(): datetime.date, pa.binary(): bytes,
    }  # fmt: skip
    if kind in simple:
        return simple[kind]
    if kind in _WIDTHS:
        half = 1 << (_WIDTHS[kind] - 1)
        return Annotated[int, msgspec.Meta(ge=-half, le=half - 1)]
    if pa.types.is_timestamp(kind):
        return datetime.datetime
    if pa.types.is_decimal(kind):
        return decimal.Decimal
    if pa.types.is_list(kind):
        return list[_type_of(kind.value_type) | None]  # type: ignore[misc]
    if pa.types.is_map(kind) and kind.key_type == pa.string():
        return dict[str, _type_of(kind.item_type) | None]  # type: ignore[misc]
    if pa.types.is_struct(kind):
        fields = [(field.name, _type_of(field.type) | None, None) for field in kind]
        return msgspec.defstruct("Payload", fields, rename={f[0]: f[0] for f in fields})
    raise InvalidArgument(
        f"payloadSchema does not support the type {kind}; use payload = string and from_json"
    )


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if not pa.types.is_struct(kind):
        return pa.array([_plain(value, kind) for value in values] if _deep(kind) else values, kind)
    columns = [
        _array([None if v is None else getattr(v, field.name) for v in values], field.type)
        for field in kind
    ]
    missing = pa.array([value is None for value in values])
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=missing)


def _deep(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_map(kind) or pa.types.is_timestamp(kind))


def _plain(value: Any, kind: pa.DataType) -> Any:
    """Convert a nested value to the form that Arrow accepts."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {f.name: _plain(getattr(value, f.name), f.type) for f in kind}
    if pa.types.is_list(kind):
        return [_plain(item, kind.value_type) for item in value]
    if pa.types.is_map(kind):
        return [(key, _plain(item, kind.item_type)) for key, item in value.items()]
    if pa.types.is_timestamp(kind) and value.tzinfo is None:
        return value.replace(tzinfo=datetime.UTC)
    return value


Parse = Callable[[pa.Array], tuple[pa.Array, list[int]]]
