"""Checks the option payloadSchema before Spark parses it inside the schema of the whole source.

fields := field (, field)*        field := name [:] type [NOT NULL] [COMMENT '...']
type   := NAME | DECIMAL[(p[, s])] | ARRAY<type> | MAP<STRING, type> | STRUCT<fields>
"""

import difflib
import re

from ..errors import InvalidArgument

_PLAIN = (
    "BIGINT", "BINARY", "BOOLEAN", "BYTE", "DATE", "DEC", "DECIMAL", "DOUBLE", "FLOAT", "INT",
    "INTEGER", "LONG", "NUMERIC", "REAL", "SHORT", "SMALLINT", "STRING", "TIMESTAMP",
    "TIMESTAMP_LTZ", "TIMESTAMP_NTZ", "TINYINT",
)  # fmt: skip
_NESTED = ("ARRAY", "MAP", "STRUCT")
_DECIMALS = ("DEC", "DECIMAL", "NUMERIC")
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|\w+|'(?:[^'\\]|\\.)*'|[<>(),:]|\S)")
_END = "the end"


def fields(text: str, name: str) -> str:
    """Return a list of fields unchanged, or say where it is wrong."""
    reader = _Reader(text, name)
    reader.fields(_END)
    return text


class _Reader:
    def __init__(self, text: str, name: str) -> None:
        self._tokens: list[str] = [*_TOKEN.findall(text.rstrip()), _END]
        self._at = 0
        self._name = name

    def fields(self, end: str) -> None:
        while True:
            self._field()
            if self._skip(end):
                return
            self._expect(",")

    def _field(self) -> None:
        field = self._take()
        if not re.fullmatch(r"\w+|`.+`", field):
            raise self._wrong(f"expected the name of a field, got {field}")
        self._skip(":")
        self._type(field)
        if self._skip("NOT"):
            self._expect("NULL")
        if self._skip("COMMENT"):
            self._take()

    def _type(self, field: str) -> None:
        given = self._take()
        kind = given.upper()
        if kind in _NESTED:
            self._expect("<")
            if kind == "STRUCT":
                self.fields(">")
                return
            if kind == "MAP":
                self._expect("STRING")
                self._expect(",")
            self._type(field)
            self._expect(">")
        elif kind not in _PLAIN:
            near = difflib.get_close_matches(kind, (*_PLAIN, *_NESTED), 1)
            known = (
                f"did you mean {near[0]}?" if near else f"it may be {', '.join(_PLAIN + _NESTED)}"
            )
            raise self._wrong(f"the type of {field} is {given}; {known}")
        elif kind in _DECIMALS and self._skip("("):
            self._number()
            if self._skip(","):
                self._number()
            self._expect(")")

    def _number(self) -> None:
        if not (found := self._take()).isdigit():
            raise self._wrong(f"expected a number of digits, got {found}")

    def _take(self) -> str:
        found = self._tokens[self._at]
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return found

    def _skip(self, wanted: str) -> bool:
        found = self._tokens[self._at]
        if found != wanted and found.upper() != wanted:
            return False
        self._at += 1
        return True

    def _expect(self, wanted: str) -> None:
        if not self._skip(wanted):
            raise self._wrong(f"expected {wanted}, got {self._tokens[self._at]}")

    def _wrong(self, what: str) -> InvalidArgument:
        return InvalidArgument(
            f"{self._name} is not a list of fields like 'id INT, name STRING': {what}"
        )
