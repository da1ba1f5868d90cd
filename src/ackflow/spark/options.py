"""The options of the Spark source and sink. Errors name the wrong option and list the valid ones.

Spark passes strings under lower-case names. Underscores are ignored, so that both
`maxRowsPerTrigger` and `max_rows_per_trigger` are accepted.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from msgspec import Struct

from .. import validate
from ..errors import InvalidArgument, UnknownOption
from ..options import MAX_PRIORITY

T = TypeVar("T")
Mode = Literal["commit", "manual"]
OnCorrupt = Literal["fail", "column", "dead_letter"]
TableName = Literal["messages", "dead_letters", "groups"]

MODES = ("commit", "manual")
PAYLOADS = ("binary", "string")
FORMATS = ("json", "bytes")
ON_CORRUPT = ("fail", "column", "dead_letter")
TABLES = ("messages", "dead_letters", "groups")

# Options that Spark itself adds.
_SPARK_OPTIONS = {"checkpointlocation", "path", "queryname"}


class SourceOptions(Struct, frozen=True):
    """The queue a stream reads, its batch limits, and the handling of corrupt payloads."""

    url: str
    queue: str
    group: str = "spark"
    mode: Mode = "commit"
    max_rows: int = 500_000
    max_bytes: int = 256 * 1024 * 1024
    lease_seconds: float = 60.0
    parallelism: int = 0
    payload: str = "binary"
    payload_schema: str | None = None
    on_corrupt: OnCorrupt = "fail"
    token: str | None = None
    retry_seconds: float = 60.0


class TableOptions(Struct, frozen=True):
    """The queue and the table of a batch read."""

    url: str
    queue: str
    table: TableName
    group: str | None = None
    parallelism: int = 0
    token: str | None = None
    retry_seconds: float = 60.0


class SinkOptions(Struct, frozen=True):
    """The destination of rows without columns for it, and the payload format."""

    url: str
    queue: str | None = None
    partition: str | None = None
    priority: int | None = None
    delay: float | None = None
    key_partitions: int = 16
    payload_format: str | None = None
    producer: str | None = None
    batch: int | None = None
    token: str | None = None
    retry_seconds: float = 60.0


def _integer(least: int, most: int = 1 << 60) -> Callable[[str, str], int]:
    def read(text: str, name: str) -> int:
        try:
            return validate.integer(int(text), name, least, most)
        except ValueError:
            raise InvalidArgument(f"{name} must be an integer, got {text!r}") from None

    return read


def _seconds(least: float) -> Callable[[str, str], float]:
    def read(text: str, name: str) -> float:
        try:
            return validate.seconds(float(text), name, least)
        except ValueError:
            raise InvalidArgument(f"{name} must be a number of seconds, got {text!r}") from None

    return read


def _one_of(*allowed: str) -> Callable[[str, str], str]:
    return lambda text, name: validate.one_of(text.lower(), name, allowed)


def _url(text: str, _: str) -> str:
    """Return a URL unchanged, and a file as an absolute path, which executors need."""
    if not text.strip() or text == ":memory:":
        raise InvalidArgument(f"url must be a database file or a server URL, got {text!r}")
    if "://" in text and not text.startswith("file://"):
        return text
    return os.path.abspath(text.removeprefix("file://"))


def _text(text: str, _: str) -> str:
    return text


OptionParsers = dict[str, tuple[str, Callable[[str, str], Any]]]

# Name of an option as users write it: the field that it sets, and its parser.
_COMMON: OptionParsers = {
    "url": ("url", _url),
    "token": ("token", _text),
    "retrySeconds": ("retry_seconds", _seconds(0)),
}
_SOURCE: OptionParsers = {
    **_COMMON,
    "queue": ("queue", validate.name),
    "group": ("group", validate.name),
    "mode": ("mode", _one_of(*MODES)),
    "maxRowsPerTrigger": ("max_rows", _integer(1)),
    "maxBytesPerTrigger": ("max_bytes", _integer(1)),
    "leaseSeconds": ("lease_seconds", _seconds(1)),
    "parallelism": ("parallelism", _integer(1, 10_000)),
    "payload": ("payload", _one_of(*PAYLOADS)),
    "payloadSchema": ("payload_schema", _text),
    "onCorrupt": ("on_corrupt", _one_of(*ON_CORRUPT)),
}
_TABLE: OptionParsers = {
    **_COMMON,
    "queue": ("queue", validate.name),
    "table": ("table", _one_of(*TABLES)),
    "group": ("group", validate.name),
    "parallelism": ("parallelism", _integer(1, 10_000)),
}
_SINK: OptionParsers = {
    **_COMMON,
    "queue": ("queue", validate.name),
    "partition": ("partition", validate.name),
    "priority": ("priority", _integer(0, MAX_PRIORITY)),
    "delay": ("delay", _seconds(0)),
    "keyPartitions": ("key_partitions", _integer(1, 10_000)),
    "payloadFormat": ("payload_format", _one_of(*FORMATS)),
    "producer": ("producer", validate.name),
    "batch": ("batch", _integer(0)),
}


def source_options(given: Mapping[str, str]) -> SourceOptions:
    found = _read(SourceOptions, _SOURCE, given, "a stream of messages", ("url", "queue"))
    if found.payload_schema is None and found.on_corrupt != "fail" and found.payload == "binary":
        raise InvalidArgument(
            "onCorrupt needs payloadSchema or payload = string: binary payloads are never corrupt"
        )
    return found


def table_options(given: Mapping[str, str]) -> TableOptions:
    return _read(TableOptions, _TABLE, given, "a table", ("url", "queue", "table"))


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    return _read(SinkOptions, _SINK, given, "a sink", ("url",))


def _read(
    kind: type[T],
    known: OptionParsers,
    given: Mapping[str, str],
    what: str,
    needed: tuple[str, ...],
) -> T:
    by_key = {name.lower(): name for name in known}
    values: dict[str, Any] = {}
    for raw, text in given.items():
        key = raw.lower().replace("_", "")
        if key in _SPARK_OPTIONS:
            continue
        if key not in by_key:
            raise UnknownOption(
                f"{what} has no option {raw!r}; it has {', '.join(sorted(known, key=str.lower))}"
            )
        name = by_key[key]
        field, read = known[name]
        values[field] = read(text, name)
    for name in needed:
        if name not in values:
            raise InvalidArgument(f"{what} needs the option {name!r}")
    return kind(**values)
