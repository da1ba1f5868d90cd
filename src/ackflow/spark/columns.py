"""Converts handed-out messages to Arrow columns without a Python object per message.

The messages of a run differ only in payload and sequence; every other column is one value, repeated
by Arrow. Within a lane, message ids differ only in their last twelve digits.
"""

from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache

import pyarrow as pa

from .. import ids
from ..broker.core.handout import Handout, MessageRun

ROWS = 10_000
BYTES = 4 * 1024 * 1024
_LARGE = 1_000
_BLOCK = 1 << 16
_TAILS: list[bytes] = []

NAMES = (
    "id", "queue", "partition", "priority", "sequence", "payload", "headers", "transaction_id",
    "created_at", "deliveries", "redelivered", "lease",
)  # fmt: skip
HEADERS = pa.map_(pa.string(), pa.field("value", pa.string(), nullable=True))


def ddl(payload: str, corrupt: bool) -> str:
    """Return the schema of a stream of messages in Spark's DDL."""
    return (
        "id STRING, queue STRING, partition STRING, priority INT, sequence BIGINT, "
        f"payload {payload}, headers MAP<STRING, STRING>, transaction_id STRING, "
        "created_at TIMESTAMP, deliveries INT, redelivered BOOLEAN, lease STRING"
        + (", corrupt BINARY" if corrupt else "")
    )


class RowBuilder:
    """Collects runs of messages for one record batch."""

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        self._runs: list[tuple[Handout, MessageRun]] = []
        self._which = array("i")
        self._sequences = array("q")
        self._ends = array("i", [0])
        self._data: list[bytes | memoryview] = []

    def add(self, handout: Handout, run: MessageRun) -> None:
        n = run.hi - run.lo
        at, stop = run.lo - run.first, run.hi - run.first
        ends = run.body.joined().ends
        start = ends[at - 1] if at else 0
        shift = self.size - start
        if shift == 0:
            self._ends.frombytes(ends[at:stop].cast("B"))
        else:
            self._ends.extend([end + shift for end in ends[at:stop]])
        self._data.append(memoryview(run.body.data)[start : ends[stop - 1]])
        self.size += ends[stop - 1] - start
        self._sequences.extend(range(run.lo, run.hi))
        self._which.frombytes(array("i", [len(self._runs)]).tobytes() * n)
        self._runs.append((handout, run))
        self.count += n

    def fits(self, run: MessageRun) -> bool:
        """Return whether a run fits; a large run starts a new batch, so offsets stay valid."""
        n = run.hi - run.lo
        return not self.count or (
            n < _LARGE and self.count + n <= ROWS and self.size + len(run.body.data) <= BYTES
        )

    def payloads(self) -> pa.Array:
        data = self._data[0] if len(self._data) == 1 else b"".join(self._data)
        buffers = [None, pa.py_buffer(self._ends), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.binary(), self.count, buffers)

    def columns(self) -> dict[str, pa.Array]:
        """Return every column except the payload."""
        which = _numbers(pa.int32(), self._which)
        runs = [run for _, run in self._runs]

        def each(values: Sequence[object], kind: pa.DataType) -> pa.Array:
            if len(values) == 1:
                return pa.repeat(pa.scalar(values[0], kind), self.count)
            return pa.array(values, kind).take(which)

        tokens = [None if h.token is None else ids.token_text(h.token) for h, _ in self._runs]
        messages = self._ids()
        return {
            "id": messages,
            "queue": each([handout.queue for handout, _ in self._runs], pa.string()),
            "partition": each([run.partition for run in runs], pa.string()),
            "priority": each([run.priority for run in runs], pa.int32()),
            "sequence": _numbers(pa.int64(), self._sequences),
            "headers": self._headers(),
            "transaction_id": self._transaction_ids(messages),
            "created_at": each([run.created_at for run in runs], pa.timestamp("us", "UTC")),
            "deliveries": each([run.deliveries for run in runs], pa.int32()),
            "redelivered": each([bool(run.redelivered) for run in runs], pa.bool_()),
            "lease": each(tokens, pa.string()),
        }

    def run_starts(self) -> Iterator[tuple[int, MessageRun]]:
        """Yield the index of the first row of each run."""
        row = 0
        for _, run in self._runs:
            yield row, run
            row += run.hi - run.lo

    def locate(self, row: int) -> tuple[MessageRun, int]:
        """Return the run and the sequence of a row."""
        return self._runs[self._which[row]][1], self._sequences[row]

    def _ids(self) -> pa.Array:
        text: list[bytes] = []
        for handout, run in self._runs:
            text += _id_texts(handout.store, run.lane, run.lo, run.hi)
        buffers = [None, _id_offsets(self.count), pa.py_buffer(b"".join(text))]
        return pa.Array.from_buffers(pa.string(), self.count, buffers)

    def _headers(self) -> pa.Array:
        if not any(run.body.rest and run.body.rest.headers for _, run in self._runs):
            offsets = _numbers(pa.int32(), array("i", bytes(4 * (self.count + 1))))
            nothing = pa.array([], pa.string())
            return pa.MapArray.from_arrays(offsets, nothing, nothing)
        rows: list[list[tuple[str, str]]] = [[] for _ in range(self.count)]
        for row, run in self.run_starts():
            found = run.body.rest.headers if run.body.rest else {}
            for index, headers in found.items():
                if run.lo <= run.first + index < run.hi:
                    rows[row + run.first + index - run.lo] = list(headers.items())
        return pa.array(rows, pa.map_(pa.string(), pa.string()))

    def _transaction_ids(self, messages: pa.Array) -> pa.Array:
        if not any(run.body.rest and run.body.rest.txids for _, run in self._runs):
            return messages
        texts = messages.to_pylist()
        for row, run in self.run_starts():
            found = run.body.rest.txids if run.body.rest else {}
            for index, txid in found.items():
                if run.lo <= run.first + index < run.hi:
                    texts[row + run.first + index - run.lo] = txid
        return pa.array(texts, pa.string())


def _numbers(kind: pa.DataType, numbers: "array[int]") -> pa.Array:
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


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
