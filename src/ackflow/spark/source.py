"""The stream source: Spark's offsets are the numbers of a reader's hand-outs.

The planner process leases messages under a number and renews the leases; executors read the
messages of a number.

    latestOffset ──► leased under number n ──► partitions, read ──► batch n runs
         ▲                                                              │
         └── start = n: the batch is in Spark's commit log, settle it ◄─┘
"""

import logging
import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from .. import ranges
from ..broker.core.handout import Handout
from ..broker.readers import commit as batches
from ..broker.readers import verbs as readers
from ..broker.readers.verbs import PlannedPart
from ..broker.requests import ReaderRequest
from ..errors import AckflowError, InvalidArgument, LeaseLost
from ..ranges import Ranges
from ..session.session import Session
from . import sessions
from .columns import RowBuilder
from .options import SourceOptions
from .parse import Parser, invalid_utf8_rows

Offset = dict[str, Any]
FETCH_BYTES = 8 * 1024 * 1024
MIN_TASK_ROWS = 5_000
NO_LIMIT = 1 << 50

log = logging.getLogger("ackflow.spark")


class StreamPartition(InputPartition):
    """The messages that one task reads of the hand-outs (start, end]."""

    def __init__(
        self, reader: str, epoch: int, start: int, end: int, parts: list[PlannedPart]
    ) -> None:
        self.reader, self.epoch = reader, epoch
        self.start, self.end = start, end
        self.parts = parts


class MessageStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a queue for a group. A batch is acknowledged only after Spark has committed it."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._initial: Offset | None = None
        self._planner: Planner | None = None
        self._bounded = False  # trigger availableNow: only the messages that exist now
        self._left: int | None = None

    def initialOffset(self) -> Offset:
        # Spark calls this twice on a first start; both calls must return the same reader.
        if self._initial is None:
            self._initial = _offset(secrets.token_hex(8), 0)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        # Messages are counted by latestOffset: starting a reader may release held ones.
        self._bounded = True

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Settle up to `start`, whose batch is in Spark's commit log; then lease the next batch."""
        planner = self._planner_of(start["reader"], start["number"])
        if self._bounded and self._left is None:
            self._left = planner.ready()
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else NO_LIMIT
        size = NO_LIMIT if isinstance(limit, ReadAllAvailable) else self._options.max_bytes
        if self._left is not None:
            rows = max(0, min(rows, self._left))
        found = planner.next(start["number"], rows, size)
        if self._left is not None:
            self._left -= found.rows
        return start if found.number == start["number"] else _offset(planner.reader, found.number)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        if start == end:
            return []
        # Until the first batch is in Spark's commit log, a new run has a new reader in `start`;
        # the batch to replay belongs to the reader in `end`.
        first = start["number"] if start["reader"] == end["reader"] else 0
        last = end["number"]
        planner = self._planner_of(end["reader"], first)
        parallelism = self._options.parallelism or os.cpu_count() or 1
        return [
            StreamPartition(planner.reader, planner.epoch, first, last, parts)
            for parts in _distribute(planner.hand_over(first, last), parallelism)
        ]

    def commit(self, end: Offset) -> None:
        self._planner_of(end["reader"], end["number"]).settle(end["number"])

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.stop()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield exactly the messages of a partition, or fail. Runs on an executor."""
        assert isinstance(partition, StreamPartition)
        session = sessions.session(self._options)
        context = TaskContext.get()
        if context is not None:
            query, batch, run = batch_of(context)
            session.broker.do(
                batches.bind, False, partition.reader, partition.epoch, partition.start,
                partition.end, query, batch, run,
            )  # fmt: skip
        converter = BatchConverter(session, self._options, self._schema, partition)
        rows = RowBuilder()
        for part in partition.parts:
            for handout in pages(session, partition, part):
                for run_ in handout.runs:
                    if not rows.fits(run_):
                        yield converter.convert(rows, part)
                        rows = RowBuilder()
                    rows.add(handout, run_)
            # A record batch ends with its part, because corrupt messages are reported per part.
            if rows.count:
                yield converter.convert(rows, part)
                rows = RowBuilder()

    def _planner_of(self, reader: str, number: int) -> "Planner":
        if self._planner is None or self._planner.reader != reader:
            self.stop()
            self._planner = Planner(self._options, reader, number)
        return self._planner


class Planner:
    """The planner of one run: a reader epoch, and a heartbeat that renews its leases."""

    def __init__(self, options: SourceOptions, reader: str, number: int) -> None:
        self.reader = reader
        self._options = options
        self._session = sessions.existing_session(options, upkeep=True)
        self.epoch = self._session.broker.do(
            readers.start_reader, True, self.reader, options.queue, options.group,
            options.mode == "manual", number,
        )  # fmt: skip
        self._over = threading.Event()
        threading.Thread(target=self._beat, name="ackflow-heartbeat", daemon=True).start()

    def next(self, start: int, rows: int, size: int) -> readers.NumberedBatch:
        broker = self._session.broker
        if broker.look(readers.is_idle, self.reader, self.epoch, start):
            return readers.NumberedBatch(start)
        asked = ReaderRequest(
            self.reader, self.epoch, start, rows, size, self._options.lease_seconds
        )
        return broker.do(readers.lease_next, True, asked)

    def ready(self) -> int:
        """Return how many messages are ready."""
        return self._session.group_stats(self._options.queue, self._options.group).counts.ready

    def settle(self, number: int) -> None:
        self._session.broker.do(
            readers.settle_to, True, self.reader, self.epoch, number, self._options.lease_seconds
        )

    def hand_over(self, start: int, end: int) -> list[PlannedPart]:
        return self._session.broker.do(
            readers.hand_over, True, self.reader, self.epoch, start, end,
            self._options.lease_seconds,
        )  # fmt: skip

    def stop(self) -> None:
        self._over.set()

    def _beat(self) -> None:
        """Renew the leases of this run until it stops or another run takes over."""
        while not self._over.wait(self._options.lease_seconds / 4):
            try:
                broken = self._session.broker.do(
                    readers.keep, False, self.reader, self.epoch, self._options.lease_seconds
                )
            except LeaseLost as lost:
                log.warning("heartbeat of reader %s stopped: %s", self.reader, lost)
                return
            except AckflowError as error:
                log.warning("heartbeat of reader %s failed, retrying: %s", self.reader, error)
                continue
            if broken:
                log.warning("a lease expired: some messages of the running batch were lost")


class BatchConverter:
    """Converts messages to record batches of Spark's schema, and handles corrupt payloads."""

    def __init__(
        self,
        session: Session,
        options: SourceOptions,
        schema: StructType,
        partition: StreamPartition,
    ) -> None:
        self._session, self._options, self._partition = session, options, partition
        self._arrow = to_arrow_schema(schema, timezone="UTC")
        kind = self._arrow.field("payload").type
        self._kind = kind
        self._parser = Parser(kind) if pa.types.is_struct(kind) else None

    def convert(self, rows: RowBuilder, part: PlannedPart) -> pa.RecordBatch:
        raw = rows.payloads()
        payload, bad = self._payload(raw)
        columns = {**rows.columns(), "payload": payload}
        if "corrupt" in self._arrow.names:
            wrong = set(bad)
            texts = (
                [r if i in wrong else None for i, r in enumerate(raw.to_pylist())] if bad else None
            )
            columns["corrupt"] = pa.array(texts, pa.binary()) if texts else pa.nulls(
                rows.count, pa.binary()
            )  # fmt: skip
        found = pa.RecordBatch.from_arrays(
            [columns[name] for name in self._arrow.names], schema=self._arrow
        )
        if bad and self._options.on_corrupt != "column":
            return self._without(found, rows, part, bad)
        return found

    def _payload(self, raw: pa.Array) -> tuple[pa.Array, list[int]]:
        if self._parser is not None:
            return self._parser.parse(raw)
        if self._kind == pa.string():
            bad = invalid_utf8_rows(raw)
            if bad:
                wrong = set(bad)
                texts = [None if i in wrong else r for i, r in enumerate(raw.to_pylist())]
                return pa.array(texts, pa.binary()).cast(pa.string()), bad
            return pa.Array.from_buffers(pa.string(), len(raw), raw.buffers()), []
        return raw, []

    def _without(
        self, found: pa.RecordBatch, rows: RowBuilder, part: PlannedPart, bad: list[int]
    ) -> pa.RecordBatch:
        places = [rows.locate(row) for row in bad]
        if self._options.on_corrupt == "fail":
            run, sequence = places[0]
            raise InvalidArgument(
                f"the payload of sequence {sequence} in partition {run.partition!r} is corrupt; "
                "set the option onCorrupt to column or dead_letter to continue without it"
            )
        which: Ranges = ranges.of(sequence for _, sequence in places)
        self._session.broker.do(
            readers.mark_bad, False, self._partition.reader, self._partition.epoch, part.number, part.lane,
            part.token, which,
        )  # fmt: skip
        wrong = set(bad)
        return found.take(pa.array([row for row in range(rows.count) if row not in wrong]))


def pages(session: Session, partition: StreamPartition, part: PlannedPart) -> Iterator[Handout]:
    """Yield the messages of a part, a few segments at a time."""
    left = part.ranges
    while left:
        handout = session.broker.look(
            readers.fetch, partition.reader, partition.epoch, part.number, part.lane, part.token, left,
            FETCH_BYTES,
        )  # fmt: skip
        yield handout
        left = ranges.clip(left, handout.runs[-1].hi, left[-1])


def batch_of(context: TaskContext) -> tuple[str, int, str]:
    """Return the query, batch and run of a task; the run is Spark's job group."""
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    if query is None or batch is None:
        raise InvalidArgument("a stream of messages can be read only by a streaming query")
    return query, int(batch), context.getLocalProperty("spark.jobGroup.id") or ""


def _offset(reader: str, number: int) -> Offset:
    return {"reader": reader, "number": number}


def _distribute(parts: list[PlannedPart], parallelism: int) -> list[list[PlannedPart]]:
    """Distribute parts in order over at most `parallelism` tasks of similar size; splits lanes."""
    total = sum(ranges.count(part.ranges) for part in parts)
    share = max(MIN_TASK_ROWS, -(-total // parallelism))
    tasks: list[list[PlannedPart]] = []
    room = 0
    for part in parts:
        left = part.ranges
        while left:
            if room <= 0:
                tasks.append([])
                room = share
            some = ranges.lowest(left, room)
            tasks[-1].append(PlannedPart(part.number, part.lane, part.token, some, 0))
            room -= ranges.count(some)
            left = ranges.clip(left, some[-1], left[-1])
    return tasks
