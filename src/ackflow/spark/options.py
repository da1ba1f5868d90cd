"""The options of the Spark source and sink. Errors name the wrong option and list the valid ones.

Spark passes strings under lower-case names. Underscores are ignored, so that both
`maxRowsPerTrigger` and `max_rows_per_trigger` are accepted.
"""

import difflib
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from msgspec import Struct

from .. import validate
from ..errors import InvalidArgument, UnknownOption
from ..options import MAX_PRIORITY
from . import ddl

T = TypeVar("T")
Mode = Literal["commit", "manual"]
OnCorrupt = Literal["fail", "column", "dead_letter"]
TableName = Literal["messages", "dead_letters", "groups"]
SchemaName = Literal["ackflow", "kafka"]
Start = Literal["all", "new"] | int

MODES = ("commit", "manual")
PAYLOADS = ("binary", "string")
FORMATS = ("json", "bytes")
ON_CORRUPT = ("fail", "column", "dead_letter")
TABLES = ("messages", "dead_letters", "groups")
SCHEMAS = ("ackflow", "kafka")

# Options that Spark itself adds.
_SPARK_OPTIONS = {"checkpointlocation", "queryname"}
CATALOG = (
    ": Spark does not hand its options to the data source; use CREATE TEMPORARY VIEW ... USING "
    "ackflow OPTIONS (...)"
)


class SourceOptions(Struct, frozen=True):
    """The queue a stream reads, its batch limits, and the handling of corrupt payloads."""

    url: str
    queue: str
    group: str = "spark"
    schema: SchemaName = "ackflow"
    mode: Mode = "commit"
    start: Start = "all"
    max_rows: int = 500_000
    max_bytes: int = 256 * 1024 * 1024
    lease_seconds: float = 60.0
    parallelism: int = 0
    min_partitions: int = 0
    max_records_per_partition: int = 0
    fail_on_data_loss: bool = True
    include_headers: bool = False
    payload: str = "binary"
    payload_schema: str | None = None
    on_corrupt: OnCorrupt = "fail"
    token: str | None = None
    retry_seconds: float = 60.0


class TableOptions(Struct, frozen=True):
    """The queue and the table of a batch read."""

    url: str
    queue: str
    table: TableName = "messages"
    schema: SchemaName = "ackflow"
    group: str | None = None
    parallelism: int = 0
    include_headers: bool = False
    token: str | None = None
    retry_seconds: float = 60.0


class SinkOptions(Struct, frozen=True):
    """The destination of rows without columns for it, and the payload format."""

    url: str
    queue: str | None = None
    schema: SchemaName = "ackflow"
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


def _boolean(text: str, name: str) -> bool:
    return bool(validate.one_of(text.lower(), name, ("true", "false")) == "true")


def _url(text: str, _: str) -> str:
    """Return a URL unchanged, and a file as an absolute path, which executors need."""
    if not text.strip() or text == ":memory:":
        raise InvalidArgument(f"url must be a database file or a server URL, got {text!r}")
    if "://" in text and not text.startswith("file://"):
        return text
    return os.path.abspath(text.removeprefix("file://"))


def _text(text: str, _: str) -> str:
    return text


def _starting_offsets(text: str, name: str) -> Start:
    if text.lower() not in ("earliest", "latest"):
        raise InvalidArgument(
            f"{name} must be earliest or latest, got {text!r}: a group keeps its position in the "
            "database, and `ackflow seek` moves it"
        )
    return "all" if text.lower() == "earliest" else "new"


def _starting_timestamp(text: str, name: str) -> Start:
    return _integer(0)(text, name) * 1_000  # Kafka's are milliseconds


def _only(word: str, why: str) -> Callable[[str, str], str]:
    def read(text: str, name: str) -> str:
        if text.lower() != word:
            raise InvalidArgument(f"{name} must be {word}, got {text!r}: {why}")
        return word

    return read


OptionParsers = dict[str, tuple[str, Callable[[str, str], Any]]]

# Name of an option as users write it: the field that it sets, and its parser.
_COMMON: OptionParsers = {
    "url": ("url", _url),
    "token": ("token", _text),
    "retrySeconds": ("retry_seconds", _seconds(0)),
    "schema": ("schema", _one_of(*SCHEMAS)),
    "queue": ("queue", validate.name),
}
_STREAM: OptionParsers = {
    **_COMMON,
    "group": ("group", validate.name),
    "maxBytesPerTrigger": ("max_bytes", _integer(1)),
    "minPartitions": ("min_partitions", _integer(1, 10_000)),
    "maxRecordsPerPartition": ("max_records_per_partition", _integer(1)),
    "failOnDataLoss": ("fail_on_data_loss", _boolean),
    "startingOffsets": ("start", _starting_offsets),
    "startingTimestamp": ("start", _starting_timestamp),
    "leaseSeconds": ("lease_seconds", _seconds(1)),
    "parallelism": ("parallelism", _integer(1, 10_000)),
}
_SOURCE: OptionParsers = {
    **_STREAM,
    "mode": ("mode", _one_of(*MODES)),
    "maxRowsPerTrigger": ("max_rows", _integer(1)),
    "payload": ("payload", _one_of(*PAYLOADS)),
    "payloadSchema": ("payload_schema", ddl.fields),
    "onCorrupt": ("on_corrupt", _one_of(*ON_CORRUPT)),
}
_KAFKA_SOURCE: OptionParsers = {
    **_STREAM,
    "subscribe": ("queue", validate.name),
    "kafka.group.id": ("group", validate.name),
    "maxOffsetsPerTrigger": ("max_rows", _integer(1)),
    "includeHeaders": ("include_headers", _boolean),
}
_TABLE: OptionParsers = {
    **_COMMON,
    "table": ("table", _one_of(*TABLES)),
    "group": ("group", validate.name),
    "parallelism": ("parallelism", _integer(1, 10_000)),
}
_WHOLE = "a table is everything that is stored"
_KAFKA_TABLE: OptionParsers = {
    **_COMMON,
    "subscribe": ("queue", validate.name),
    "startingOffsets": ("", _only("earliest", _WHOLE)),
    "endingOffsets": ("", _only("latest", _WHOLE)),
    "minPartitions": ("parallelism", _integer(1, 10_000)),
    "parallelism": ("parallelism", _integer(1, 10_000)),
    "includeHeaders": ("include_headers", _boolean),
}
_SINK: OptionParsers = {
    **_COMMON,
    "partition": ("partition", validate.name),
    "priority": ("priority", _integer(0, MAX_PRIORITY)),
    "delay": ("delay", _seconds(0)),
    "keyPartitions": ("key_partitions", _integer(1, 10_000)),
    "payloadFormat": ("payload_format", _one_of(*FORMATS)),
    "producer": ("producer", validate.name),
    "batch": ("batch", _integer(0)),
}
_KAFKA_SINK: OptionParsers = {**_SINK, "topic": ("queue", validate.name)}

_ONE_QUEUE = "a source reads one queue; use the option subscribe, and union for several"
_NO_OFFSETS = "a group keeps its position in the database; use startingOffsets or startingTimestamp"
_NO_CLIENT = "there is no Kafka client; retrySeconds limits how long calls are retried"
_NOT_YET = "a batch begins when there is a message; use trigger(processingTime=...)"
# Kafka's options that have no meaning here, in lower case, and why.
_REFUSED = {
    "kafka.bootstrap.servers": "give the database or the server of the queue as url",
    "subscribepattern": _ONE_QUEUE,
    "assign": _ONE_QUEUE,
    "startingoffsetsbytimestamp": _NO_OFFSETS,
    "startingoffsetsbytimestampstrategy": _NO_OFFSETS,
    "endingtimestamp": _WHOLE,
    "endingoffsetsbytimestamp": _WHOLE,
    "groupidprefix": "give the name of the group as group or kafka.group.id",
    "minoffsetspertrigger": _NOT_YET,
    "maxtriggerdelay": _NOT_YET,
    "kafkaconsumer.polltimeoutms": _NO_CLIENT,
    "fetchoffset.numretries": _NO_CLIENT,
    "fetchoffset.retryintervalms": _NO_CLIENT,
}


def source_options(given: Mapping[str, str]) -> SourceOptions:
    known = _KAFKA_SOURCE if is_kafka(given) else _SOURCE
    found = _read(SourceOptions, known, given, "a stream of messages", ("url", "queue"))
    if found.payload_schema is None and found.on_corrupt != "fail" and found.payload == "binary":
        raise InvalidArgument(
            "onCorrupt needs payloadSchema or payload = string: binary payloads are never corrupt"
        )
    return found


def table_options(given: Mapping[str, str]) -> TableOptions:
    if is_kafka(given):
        return _read(TableOptions, _KAFKA_TABLE, given, "a table", ("url", "queue"))
    return _read(TableOptions, _TABLE, given, "a table", ("url", "queue", "table"))


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    return _read(SinkOptions, _KAFKA_SINK if is_kafka(given) else _SINK, given, "a sink", ("url",))


def is_table(given: Mapping[str, str]) -> bool:
    """Return whether options are of a batch read: `table`, or an end that only a batch has."""
    return not {"table", "endingoffsets"}.isdisjoint(_key(name) for name in given)


def is_kafka(given: Mapping[str, str]) -> bool:
    return any(_key(name) == "schema" and text.lower() == "kafka" for name, text in given.items())


def _key(name: str) -> str:
    return name.lower().replace("_", "")


def _read(
    kind: type[T],
    known: OptionParsers,
    given: Mapping[str, str],
    what: str,
    needed: tuple[str, ...],
) -> T:
    by_key = {name.lower(): name for name in known}
    values: dict[str, Any] = {}
    set_by: dict[str, str] = {}
    for raw, text in given.items():
        key = _key(raw)
        if key in _SPARK_OPTIONS:
            continue
        if key not in by_key:
            raise UnknownOption(_unknown(what, raw, known))
        name = by_key[key]
        field, read = known[name]
        value = read(text, name)
        if field in set_by:
            raise InvalidArgument(
                f"{set_by[field]} and {name} set the same option; give one of them"
            )
        if field:
            values[field], set_by[field] = value, name
    for name in needed:
        if name not in values:
            raise InvalidArgument(f"{what} needs the option {name!r}{CATALOG if not given else ''}")
    return kind(**values)


def _unknown(what: str, raw: str, known: OptionParsers) -> str:
    """Return why an option is refused: what to use instead, the nearest name, all names."""
    key = _key(raw)
    if key == "path":
        return f"{what} has no path; give the database or server as the option url"
    if key == "provider" or key.startswith("option."):
        return "a table of the catalog cannot be used" + CATALOG
    if key in _REFUSED:
        return f"{what} has no option {raw!r}: {_REFUSED[key]}"
    if key.startswith("kafka."):
        return f"{what} has no option {raw!r}: there is no Kafka client to configure"
    names = sorted(known, key=str.lower)
    lower = [name.lower() for name in names]
    near = [name for name in lower if len(key) > 2 and name.startswith(key)]
    near = near or difflib.get_close_matches(key, lower, 1)
    meant = [f"did you mean {name!r}? It" for name in names if name.lower() in near]
    return f"{what} has no option {raw!r}; {(*meant, 'it')[0]} has {', '.join(names)}"
