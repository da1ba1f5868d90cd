"""Encodes rows of a DataFrame as chunks to stage: Arrow buffers become segment bytes."""

import zlib
from array import array
from collections.abc import Iterable, Iterator
from operator import sub
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from .. import validate
from ..broker.requests import Chunk
from ..errors import InvalidArgument, PayloadTooLarge
from ..options import DEFAULT_PARTITION, MAX_PAYLOAD, MAX_SEGMENT_BYTES, MAX_SEGMENT_COUNT
from ..store.records import Rest
from .columns import KEY
from .options import SinkOptions

COLUMNS: dict[str, str] = {
    "payload": "string (JSON) or binary",
    "queue": "string",
    "partition": "string",
    "key": "string or binary",
    "priority": "int",
    "headers": "map<string, string>",
    "delay": "double, seconds",
    "transaction_id": "string",
}
KAFKA_COLUMNS: dict[str, str] = {
    "value": "string or binary",
    "key": "string or binary",
    "headers": "array<struct<key: string, value: binary>>",
    "topic": "string",
    "partition": "int",
}
# Columns of the source that the queue sets itself.
SET_BY_QUEUE = ("id", "sequence", "created_at", "deliveries", "redelivered", "lease")
_decode_all = msgspec.json.Decoder(list[msgspec.Raw]).decode


def check_columns(names: Iterable[str], options: SinkOptions) -> None:
    """Check that all columns are known, and that payload and destination are given."""
    given = set(names)
    kafka = options.schema == "kafka"
    known, payload, queue = (
        (KAFKA_COLUMNS, "value", "topic") if kafka else (COLUMNS, "payload", "queue")
    )
    # `insert into` a view gives every column of the view, and null for those it does not name.
    whole = not kafka and given.issuperset(SET_BY_QUEUE)
    for name in sorted(given.difference(known, SET_BY_QUEUE if whole else ())):
        raise InvalidArgument(
            f"unknown column {name!r}; the sink accepts {', '.join(known)}. Use "
            f"to_json(struct(...)) AS {payload} to encode other columns"
        )
    if payload not in given:
        raise InvalidArgument(
            f"the sink needs a column {payload!r}; create one with to_json(struct(*)) AS {payload}"
        )
    if options.queue is None and queue not in given:
        raise InvalidArgument(f"the sink needs the option {queue!r} or a column {queue!r}")
    by_partition = "partition" in given or options.partition is not None
    if "key" in given and by_partition and not kafka:
        raise InvalidArgument("key and partition cannot be used together")


class Chunker:
    """Splits record batches into chunks of one lane each, in row order."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._named: dict[Any, str] = {}

    def chunks(self, batch: pa.RecordBatch) -> Iterator[Chunk]:
        columns = {name: batch.column(i) for i, name in enumerate(batch.schema.names)}
        if self._options.schema == "kafka":
            columns = _from_kafka(columns)
        for name in SET_BY_QUEUE:
            if name in columns and columns.pop(name).null_count < batch.num_rows:
                raise InvalidArgument(
                    f"the queue sets the column {name!r} itself; leave it out, or write null"
                )
        for lane, rows in self._lanes(columns, batch.num_rows):
            some = columns if rows is None else {n: c.take(rows) for n, c in columns.items()}
            yield from self._split(lane, some)

    def _lanes(
        self, columns: dict[str, pa.Array], n: int
    ) -> Iterator[tuple[tuple[Any, ...], pa.Array | None]]:
        """Yield each (queue, partition, priority, delay) with its rows; None means all rows."""
        parts = [
            self._given("queue", columns, self._options.queue),
            self._partition(columns),
            self._given("priority", columns, self._options.priority, 0),
            self._given("delay", columns, self._options.delay),
        ]
        varying = {str(i): part for i, part in enumerate(parts) if isinstance(part, pa.Array)}
        if not varying:
            yield tuple(parts), None
            return
        coded = [column.dictionary_encode("encode") for column in varying.values()]
        code = pa.array(array("q", bytes(8 * n)), pa.int64())
        for column in coded:
            code = pc.add(pc.multiply(code, len(column.dictionary)), column.indices.cast("int64"))
        order = pc.array_sort_indices(code)
        runs = pc.run_end_encode(code.take(order))
        start = 0
        for end in runs.run_ends.to_pylist():
            rows = order.slice(start, end - start).sort()
            first = rows[0].as_py()
            lane = [p[first].as_py() if isinstance(p, pa.Array) else p for p in parts]
            yield tuple(lane), rows
            start = end

    def _given(self, name: str, columns: dict[str, pa.Array], *constants: Any) -> Any:
        """Return the option if it is set, else the column, else the default."""
        if constants[0] is not None:
            return constants[0]
        if name not in columns:
            return constants[-1]
        column = columns[name]
        default = constants[-1]
        if column.null_count:
            if name == "queue":
                raise InvalidArgument("the column 'queue' is null in some rows")
            if default is not None:
                column = pc.fill_null(column, default)
        return column

    def _partition(self, columns: dict[str, pa.Array]) -> Any:
        if "key" not in columns or self._options.partition is not None:
            return self._given("partition", columns, self._options.partition, DEFAULT_PARTITION)
        keys = columns["key"].cast(pa.binary()).dictionary_encode("encode")
        names = pa.array([self._by_key(key) for key in keys.dictionary.to_pylist()], pa.string())
        by_key = names.take(keys.indices)
        return pc.coalesce(columns["partition"], by_key) if "partition" in columns else by_key

    def _by_key(self, key: bytes | None) -> str:
        """Return the partition of a key; equal keys get equal partitions."""
        if key is None:
            return DEFAULT_PARTITION
        if key not in self._named:
            self._named[key] = f"key-{zlib.crc32(key) % self._options.key_partitions}"
        return self._named[key]

    def _split(self, lane: tuple[Any, ...], columns: dict[str, pa.Array]) -> Iterator[Chunk]:
        """Yield chunks that fit into a segment."""
        queue, partition, priority, delay = lane
        validate.name(queue, "queue")
        validate.name(partition, "partition")
        validate.priority(priority)
        if delay is not None:
            validate.seconds(delay, "delay")
        payload, is_json = self._payload(columns["payload"])
        start = 0
        while start < len(payload):
            n = _fitting(payload, start)
            some = payload.slice(start, n)
            if is_json:
                _check_json(some)
            ends, data = _body(some)
            here = {name: column.slice(start, n) for name, column in columns.items()}
            yield Chunk(queue, partition, priority, delay, ends, data, _rest(here, n, is_json))
            start += n

    def _payload(self, column: pa.Array) -> tuple[pa.Array, bool]:
        if column.null_count:
            raise InvalidArgument("the column 'payload' is null in some rows; filter them out")
        kind = column.type
        if not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
            raise InvalidArgument(
                f"the column 'payload' must be string or binary, got {kind}; use to_json(...)"
            )
        wanted = self._options.payload_format
        if wanted is None and self._options.schema == "kafka":
            wanted = "bytes"
        is_json = pa.types.is_string(kind) if wanted is None else wanted == "json"
        return column.cast(pa.binary()), is_json


def _from_kafka(columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
    """Return Kafka's columns as those of the sink; the key is kept in a header."""
    found = {"payload": columns["value"]}
    if "topic" in columns:
        found["queue"] = columns["topic"]
    if "partition" in columns:
        found["partition"] = columns["partition"].cast(pa.string())
    if "key" in columns:
        found["key"] = columns["key"]
    if "key" in columns or "headers" in columns:
        n = len(columns["value"])
        keys = columns["key"].cast(pa.binary()).to_pylist() if "key" in columns else [None] * n
        lists = columns["headers"].to_pylist() if "headers" in columns else [None] * n
        rows = [_headers(key, some or []) for key, some in zip(keys, lists, strict=True)]
        found["headers"] = pa.array(rows, pa.map_(pa.string(), pa.string()))
    return found


def _headers(key: bytes | None, headers: list[dict[str, Any]]) -> list[tuple[str, str]]:
    pairs = [(pair["key"], pair["value"]) for pair in headers]
    if key is not None:
        pairs.append((KEY, key))
    try:
        return [(name, (value or b"").decode()) for name, value in pairs]
    except UnicodeDecodeError:
        raise InvalidArgument(
            "a key or a header is not UTF-8: they are kept as text headers; encode them, for "
            "example with base64()"
        ) from None


def _fitting(payload: pa.Array, start: int) -> int:
    """Return how many payloads, beginning at a row, fit into a segment; at least one."""
    n = min(MAX_SEGMENT_COUNT, len(payload) - start)
    ends, _ = _offsets(payload.slice(start, n))
    base = ends[0]
    if ends[-1] - base > MAX_SEGMENT_BYTES:
        n = max(1, sum(1 for end in ends[1:] if end - base <= MAX_SEGMENT_BYTES))
        if ends[1] - base > MAX_PAYLOAD:
            raise PayloadTooLarge(
                f"a message has {ends[1] - base:,} bytes, at most {MAX_PAYLOAD:,} are allowed"
            )
    return n


def _offsets(payload: pa.Array) -> tuple[memoryview, memoryview]:
    _, offsets, data = payload.buffers()
    at = payload.offset
    view = memoryview(offsets).cast("B").cast("i")[at : at + len(payload) + 1]
    return view, memoryview(data) if data is not None else memoryview(b"")


def _body(payload: pa.Array) -> tuple["array[int]", bytes]:
    """Return the end offsets and the joined bytes of binary payloads."""
    view, data = _offsets(payload)
    base = view[0]
    ends = array("i")
    if base == 0:
        ends.frombytes(view[1:].cast("B"))
    else:
        ends.extend([end - base for end in view[1:]])
    return ends, bytes(data[base : view[-1]])


def _check_json(payload: pa.Array) -> None:
    """Check that payloads are JSON: decode all as one list and compare the item lengths."""
    together = pa.ListArray.from_arrays(pa.array([0, len(payload)], pa.int32()), payload)
    try:
        found = _decode_all(b"[" + pc.binary_join(together, b",")[0].as_py() + b"]")
        ends, _ = _offsets(payload)
        if list(map(len, found)) == list(map(sub, ends[1:], ends[:-1])):
            return
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    for raw in payload.to_pylist():
        try:
            msgspec.json.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidArgument(
                f"a payload is not JSON: {raw[:60]!r} ({error}); use to_json(...), or the option "
                "payloadFormat = bytes"
            ) from None


def _rest(columns: dict[str, pa.Array], n: int, is_json: bool) -> Rest | None:
    rest = Rest()
    if "transaction_id" in columns:
        for row, txid in enumerate(columns["transaction_id"].to_pylist()):
            if txid is not None:
                rest.txids[row] = validate.name(txid, "transaction_id")
    if "headers" in columns:
        for row, items in enumerate(columns["headers"].to_pylist()):
            if items:
                rest.headers[row] = validate.headers(dict(items))
    if not is_json:
        rest.binary = [0, n]
    return None if rest.empty else rest
