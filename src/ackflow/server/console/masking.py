"""Masking: fields of payloads and headers that the dashboard must not show."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec

MASK = "••••"
_MASKED = msgspec.Raw(msgspec.json.encode(MASK))
DEPTH = 200


class Masking:
    """Replaces the values of fields whose name or path fits a pattern.

    `password` fits a field of this name at any depth, `card.*` every field of a `card`. Everything
    else keeps its bytes, so that no number loses digits.
    """

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        self.patterns = tuple(pattern.strip().lower() for pattern in patterns if pattern.strip())

    def __bool__(self) -> bool:
        return bool(self.patterns)

    def headers(self, headers: dict[str, str]) -> dict[str, str]:
        return {name: MASK if self._fits(name) else text for name, text in headers.items()}

    def payload(self, raw: bytes) -> bytes:
        """Mask a JSON payload; what is not an object or array is unchanged."""
        if not self.patterns:
            return raw
        try:
            return msgspec.json.encode(self._masked(msgspec.Raw(raw), "", DEPTH))
        except (msgspec.MsgspecError, RecursionError):  # nested too deeply to look for fields
            return bytes(_MASKED)

    def _masked(self, raw: msgspec.Raw, path: str, depth: int) -> Any:
        start = bytes(raw).lstrip()[:1]
        if depth == 0:
            return _MASKED
        if start == b"{":
            fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
            return {
                name: _MASKED if self._fits(inner := f"{path}.{name}" if path else name)
                else self._masked(value, inner, depth - 1)
                for name, value in fields.items()
            }  # fmt: skip
        if start == b"[":
            items = msgspec.json.decode(raw, type=list[msgspec.Raw])
            return [self._masked(value, path, depth - 1) for value in items]
        return raw

    def _fits(self, path: str) -> bool:
        path = path.lower()
        ends = [path[at + 1 :] for at, letter in enumerate(path) if letter == "."]
        return any(
            fnmatchcase(part, pattern) for pattern in self.patterns for part in (path, *ends)
        )
