"""Converts handed-out messages to Arrow columns without a Python object per message.

The messages of a run differ only in payload and sequence; every other column is one value, repeated
by Arrow. Within a lane, message ids differ only in their last twelve digits. Only the columns of
the stream's schema are built, and the payloads of a large body are not copied.
"""

from array import array
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from .. import ids
from ..broker.core.handout import Handout, MessageRun

ROWS = 10_000
BYTES = 4 * 1024 * 1024
_LARGE = 1_000
_LARGE_BYTES = 256 * 1024
_BLOCK = 1 << 16
_TAILS: list[bytes] = []

PAYLOAD = "payload"
CORRUPT = "corrupt"
VALUE = "value"
KEY = "key"  # the header that holds the key of a message of Kafka

_TIMESTAMP = pa.timestamp("us", "UTC")
# Name of a column: its type in Spark's DDL.
NATIVE = {
    "id": "STRING", "queue": "STRING", "partition": "STRING", "priority": "INT",
    "sequence": "BIGINT", PAYLOAD: "BINARY", "headers": "MAP<STRING, STRING>",
    "transaction_id": "STRING", "created_at": "TIMESTAMP", "deliveries": "INT",
    "redelivered": "BOOLEAN", "lease": "STRING",
}  # fmt: skip
KAFKA = {
    "key": "BINARY", VALUE: "BINARY", "topic": "STRING", "partition": "INT", "offset": "BIGINT",
    "timestamp": "TIMESTAMP", "timestampType": "INT",
}  # fmt: skip
KAFKA_WITH_HEADERS = {**KAFKA, "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>"}


_ARROW = {
    "STRING": pa.string(), "INT": pa.int32(), "BIGINT": pa.int64(), "BINARY": pa.binary(),
    "TIMESTAMP": _TIMESTAMP, "BOOLEAN": pa.bool_(), NATIVE["headers"]: pa.map_(pa.string(), pa.string()),
    KAFKA_WITH_HEADERS["headers"]: pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}  # fmt: skip


def arrow_type(kind: str) -> pa.DataType:
    """Return the Arrow type of a type of these columns."""
    return _ARROW[kind]


def schema_of(columns: Mapping[str, str]) -> str:
    """Return columns as a schema in Spark's DDL."""
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


class RowBuilder:
    """Collects runs of messages for one record batch."""

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        self._runs: list[tuple[Handout, MessageRun]] = []
        self._ends: list[pa.Array] = []
        self._data: list[memoryview] = []
        self._large = False

    def add(self, handout: Handout, run: MessageRun) -> None:
        n = run.hi - run.lo
        at, stop = run.lo - run.first, run.hi - run.first
        body = run.body.joined()
        start = body.ends[at - 1] if at else 0
        size = body.ends[stop - 1] - start
        ends = _integers(pa.int32(), body.ends[at:stop])
        self._ends.append(
            pc.add(ends, pa.scalar(self.size - start, pa.int32())) if self.size != start else ends
        )
        self._data.append(memoryview(body.data)[start : start + size])
        self._large = self._large or size >= _LARGE_BYTES
        self._runs.append((handout, run))
        self.size += size
        self.count += n

    def fits(self, run: MessageRun) -> bool:
        """Return whether a run fits; a large one gets a batch of its own, which copies nothing."""
        n, size = run.hi - run.lo, run.payload_bytes
        return not self.count or (
            n < _LARGE and self.count + n <= ROWS and not self._large
            and size < _LARGE_BYTES and self.size + size <= BYTES
        )  # fmt: skip

    def payloads(self) -> pa.Array:
        data = self._data[0] if len(self._data) == 1 else b"".join(self._data)
        ends = pa.concat_arrays([pa.array([0], pa.int32()), *self._ends])
        return pa.Array.from_buffers(
            pa.binary(), self.count, [None, ends.buffers()[1], pa.py_buffer(data)]
        )

    def column(self, name: str, kind: pa.DataType, *, kafka: bool = False) -> pa.Array:
        """Return a column other than the payload."""
        return (_KAFKA if kafka else _NATIVE)[name](self, kind)

    def locate(self, row: int) -> tuple[MessageRun, int]:
        """Return the run and the sequence of a row."""
        for first, run in self._run_starts():
            if row < first + run.hi - run.lo:
                return run, run.lo + row - first
        raise IndexError(row)

    def ids(self) -> pa.Array:
        return self._ids

    def sequences(self) -> pa.Array:
        return pa.concat_arrays([_sequence(run.lo, run.hi) for _, run in self._runs])

    def each(self, value: Callable[[Handout, MessageRun], object], kind: pa.DataType) -> pa.Array:
        """Return a column with one value for each run."""
        values = [value(handout, run) for handout, run in self._runs]
        if len(values) == 1:
            return pa.repeat(pa.scalar(values[0], kind), self.count)
        return pa.array(values, kind).take(self._which)

    def header_map(self, kind: pa.DataType) -> pa.Array:
        if not self._has_headers():
            offsets = _integers(pa.int32(), array("i", bytes(4 * (self.count + 1))))
            nothing = pa.array([], pa.string())
            return pa.MapArray.from_arrays(offsets, nothing, nothing)
        return pa.array([list(some.items()) for some in self._headers()], kind)

    def header_list(self, kind: pa.DataType) -> pa.Array:
        """Return the headers as Kafka has them: no headers are null."""
        return pa.array(
            [
                [{"key": k, "value": v.encode()} for k, v in some.items() if k != KEY] or None
                for some in self._headers()
            ],
            kind,
        )

    def key(self, kind: pa.DataType) -> pa.Array:
        if not self._has_headers():
            return pa.nulls(self.count, kind)
        keys = [some.get(KEY) for some in self._headers()]
        return pa.array([None if key is None else key.encode() for key in keys], kind)

    def transaction_ids(self) -> pa.Array:
        if not any(run.body.rest and run.body.rest.txids for _, run in self._runs):
            return self._ids
        texts = self._ids.to_pylist()
        for row, run in self._run_starts():
            found = run.body.rest.txids if run.body.rest else {}
            for index, txid in found.items():
                if run.lo <= run.first + index < run.hi:
                    texts[row + run.first + index - run.lo] = txid
        return pa.array(texts, pa.string())

    def _run_starts(self) -> Iterator[tuple[int, MessageRun]]:
        """Yield the index of the first row of each run."""
        row = 0
        for _, run in self._runs:
            yield row, run
            row += run.hi - run.lo

    @cached_property
    def _which(self) -> pa.Array:
        """The run of each row."""
        which = array("i")
        for index, (_, run) in enumerate(self._runs):
            which.frombytes(array("i", [index]).tobytes() * (run.hi - run.lo))
        return _integers(pa.int32(), which)

    @cached_property
    def _ids(self) -> pa.Array:
        text: list[bytes] = []
        for handout, run in self._runs:
            text += _id_texts(handout.store, run.lane, run.lo, run.hi)
        buffers = [None, _id_offsets(self.count), pa.py_buffer(b"".join(text))]
        return pa.Array.from_buffers(pa.string(), self.count, buffers)

    def _has_headers(self) -> bool:
        return any(run.body.rest and run.body.rest.headers for _, run in self._runs)

    def _headers(self) -> list[dict[str, str]]:
        rows: list[dict[str, str]] = [{} for _ in range(self.count)]
        for row, run in self._run_starts():
            found = run.body.rest.headers if run.body.rest else {}
            for index, headers in found.items():
                if run.lo <= run.first + index < run.hi:
                    rows[row + run.first + index - run.lo] = headers
        return rows


Build = Callable[[RowBuilder, pa.DataType], pa.Array]


def _token(handout: Handout, _: MessageRun) -> str | None:
    return None if handout.token is None else ids.token_text(handout.token)


_NATIVE: dict[str, Build] = {
    "id": lambda rows, _: rows.ids(),
    "queue": lambda rows, kind: rows.each(lambda handout, _: handout.queue, kind),
    "partition": lambda rows, kind: rows.each(lambda _, run: run.partition, kind),
    "priority": lambda rows, kind: rows.each(lambda _, run: run.priority, kind),
    "sequence": lambda rows, _: rows.sequences(),
    "headers": lambda rows, kind: rows.header_map(kind),
    "transaction_id": lambda rows, _: rows.transaction_ids(),
    "created_at": lambda rows, _: rows.each(lambda _, run: run.created_at, _TIMESTAMP),
    "deliveries": lambda rows, kind: rows.each(lambda _, run: run.deliveries, kind),
    "redelivered": lambda rows, kind: rows.each(lambda _, run: bool(run.redelivered), kind),
    "lease": lambda rows, kind: rows.each(_token, kind),
}
# A lane is what Kafka calls a partition: its sequences count up from 0.
_KAFKA: dict[str, Build] = {
    "key": lambda rows, kind: rows.key(kind),
    "topic": _NATIVE["queue"],
    "partition": lambda rows, kind: rows.each(lambda _, run: run.lane, kind),
    "offset": _NATIVE["sequence"],
    "timestamp": _NATIVE["created_at"],
    "timestampType": lambda rows, kind: rows.each(lambda *_: 0, kind),
    "headers": lambda rows, kind: rows.header_list(kind),
}


def _integers(kind: pa.DataType, numbers: "array[int] | memoryview") -> pa.Array:
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _sequence(lo: int, hi: int) -> pa.Array:
    """Return the integers of [lo, hi)."""
    blocks = [
        pc.add(_block().slice(0, min(_BLOCK, hi - start)), start) for start in range(lo, hi, _BLOCK)
    ]
    return blocks[0] if len(blocks) == 1 else pa.concat_arrays(blocks)


@lru_cache(maxsize=1)
def _block() -> pa.Array:
    return pa.array(range(_BLOCK), pa.int64())


@lru_cache(maxsize=16)
def _id_offsets(count: int) -> pa.Buffer:
    return pa.py_buffer(array("i", range(0, 36 * count + 1, 36)))


def _id_texts(store: int, lane: int, lo: int, hi: int) -> Iterator[bytes]:
    """Yield the ids of [lo, hi); within a block they differ only in the last four digits."""
    if not _TAILS:
        _TAILS.extend(b"%04x" % n for n in range(_BLOCK))
    while lo < hi:
        block = lo // _BLOCK
        stop = min(hi, (block + 1) * _BLOCK)
        head = ids.message_id(store, lane, lo)[:32].encode()
        yield head
        yield head.join(_TAILS[lo - block * _BLOCK : stop - block * _BLOCK])
        lo = stop
