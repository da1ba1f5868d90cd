"""The schema of a message's body: a type that msgspec can decode, or a JSON Schema."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, is_typeddict

import msgspec

from ..errors import InvalidArgument
from ..session.messages import Delivery


class InvalidBody(ValueError):
    """The body of a message does not match its schema."""


def is_body_type(hint: Any) -> bool:
    """Whether a type hint is the type of a body: a msgspec Struct, a dataclass or a TypedDict."""
    if not isinstance(hint, type):
        return False
    if issubclass(hint, Delivery):  # a Struct too
        return False
    return issubclass(hint, msgspec.Struct) or dataclasses.is_dataclass(hint) or is_typeddict(hint)


class Schema:
    """Decodes and validates bodies."""

    def __init__(self, decode: Callable[[bytes], Any], what: str) -> None:
        self._decode = decode
        self._what = what

    def __repr__(self) -> str:
        return f"<Schema {self._what}>"

    @classmethod
    def of(cls, given: Any, owner: str) -> "Schema":
        """The schema of a type, or of a JSON Schema given as a mapping."""
        if isinstance(given, Mapping):
            return cls(_json_schema(given, owner), "JSON Schema")
        try:
            decoder = msgspec.json.Decoder(given)
        except (TypeError, RuntimeError) as error:
            raise InvalidArgument(
                f"{owner}: {given!r} cannot be the type of a body: {error}"
            ) from None
        return cls(decoder.decode, getattr(given, "__name__", str(given)))

    def body_of(self, message: Delivery) -> Any:
        """The decoded body; raises InvalidBody with what is wrong and where."""
        try:
            return self._decode(message.raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidBody(str(error)) from None


def _json_schema(schema: Mapping[str, Any], owner: str) -> Callable[[bytes], Any]:
    try:
        import jsonschema
    except ImportError:
        raise InvalidArgument(f"{owner}: a JSON Schema needs: pip install jsonschema") from None
    kind = jsonschema.validators.validator_for(schema)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise InvalidArgument(f"{owner}: the JSON Schema is invalid: {error.message}") from None
    validator = kind(schema)

    def decode(raw: bytes) -> Any:
        body = msgspec.json.decode(raw)
        error = next(iter(validator.iter_errors(body)), None)
        if error is not None:
            raise InvalidBody(f"{error.message} - at `{error.json_path}`")
        return body

    return decode
