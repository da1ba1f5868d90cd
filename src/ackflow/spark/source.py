"""The stream source: Spark's offsets are the numbers of a reader's hand-outs.

The planner process leases messages under a number and renews the leases; executors read the
messages of a number.

    latestOffset ──► leased under number n ──► partitions, read ──► batch n runs
         ▲                                                              │
         └── start = n: the batch is in Spark's commit log, settle it ◄─┘
"""

import functools
import gc
import logging
import math
import os
import secrets
import threading
import time
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
from ..broker.readers.verbs import PlannedPart, ReaderLag
from ..broker.requests import ReaderRequest
from ..clock import SECOND
from ..errors import AckflowError, Gone, InvalidArgument, LeaseLost
from ..ranges import Ranges
from ..session.session import Session
from . import columns, sessions
from .columns import CORRUPT, PAYLOAD, VALUE, RowBuilder
from .options import SourceOptions
from .parse import Parser, invalid_utf8_rows

Offset = dict[str, Any]
FETCH_BYTES = 2 * 1024 * 1024  # small, so that Spark works on the first messages early
MIN_TASK_ROWS = 5_000
ROW_BYTES = 250  # a message of so many bytes costs a task as much as any smaller one
REPORT_SECONDS = 1.0
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
        check_schema(schema, options)
        self._options = options
        self._schema = schema
        self._initial: Offset | None = None
        self._planner: Planner | None = None
        self._bounded = False  # trigger availableNow: only the messages that exist now
        self._left: int | None = None
        self._until: int | None = None
        self._report: tuple[float, Offset] | None = None

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
            now = planner.lag()
            self._left, self._until = now.ready, now.at
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else NO_LIMIT
        size = NO_LIMIT if isinstance(limit, ReadAllAvailable) else self._options.max_bytes
        if self._left is not None:
            rows = max(0, min(rows, self._left))
        found = planner.next(start["number"], rows, size, self._until)
        if self._left is not None:
            self._left -= found.rows
        return start if found.number == start["number"] else _offset(planner.reader, found.number)

    def reportLatestOffset(self) -> Offset | None:
        """Return what the group still has to do; Spark shows it as the latest offset of the source.

        Spark asks at every trigger, and an idle query is triggered every few milliseconds.
        """
        planner = self._planner
        if planner is None:
            return None
        known = self._report
        if known and known[1]["number"] == planner.leased and known[0] > time.monotonic():
            return known[1]
        try:
            report = lag_report(self._options, planner)
        except AckflowError as error:
            log.warning("the lag of reader %s cannot be read: %s", planner.reader, error)
            return None
        self._report = time.monotonic() + REPORT_SECONDS, report
        return report

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        if start == end:
            return []
        # Until the first batch is in Spark's commit log, a new run has a new reader in `start`;
        # the batch to replay belongs to the reader in `end`.
        first = start["number"] if start["reader"] == end["reader"] else 0
        last = end["number"]
        planner = self._planner_of(end["reader"], first)
        return [
            StreamPartition(planner.reader, planner.epoch, first, last, parts)
            for parts in distribute(planner.hand_over(first, last), self._options)
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
            keep_modules()
            query, batch, run = batch_of(context)
            session.broker.do(
                batches.bind, False, partition.reader, partition.epoch, partition.start,
                partition.end, query, batch, run,
            )  # fmt: skip
        converter = BatchConverter(session, self._options, self._schema, partition)
        rows = RowBuilder()
        missing = not self._options.fail_on_data_loss
        for part in partition.parts:
            for handout in pages(session, partition, part, missing=missing):
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
            self._report = None
        return self._planner


class Planner:
    """The planner of one run: a reader epoch, and a heartbeat that renews its leases."""

    def __init__(self, options: SourceOptions, reader: str, number: int) -> None:
        self.reader = reader
        self._options = options
        self._session = sessions.existing_session(options, upkeep=True)
        if options.start != "all":  # of a group that exists already it changes nothing
            start = options.start if options.start == "new" else options.start / SECOND
            self._session.group(options.queue, options.group, start=start)
        self.epoch = self._session.broker.do(
            readers.start_reader, True, self.reader, options.queue, options.group,
            options.mode == "manual", number,
        )  # fmt: skip
        self.leased = number  # the number of the last batch
        self._over = threading.Event()
        threading.Thread(target=self._beat, name="ackflow-heartbeat", daemon=True).start()

    def next(
        self, start: int, rows: int, size: int, until: int | None
    ) -> readers.NumberedBatch:  # fmt: skip
        broker = self._session.broker
        if broker.look(readers.is_idle, self.reader, self.epoch, start):
            return readers.NumberedBatch(start)
        asked = ReaderRequest(
            self.reader, self.epoch, start, rows, size, self._options.lease_seconds, until
        )
        found = broker.do(readers.lease_next, True, asked)
        self.leased = found.number
        return found

    def lag(self) -> ReaderLag:
        return self._session.broker.look(readers.lag, self.reader, self.epoch)

    def settle(self, number: int) -> None:
        self._session.broker.do(
            readers.settle_to, True, self.reader, self.epoch, number, self._options.lease_seconds
        )

    def hand_over(self, start: int, end: int) -> list[PlannedPart]:
        try:
            return self._session.broker.do(
                readers.hand_over, True, self.reader, self.epoch, start, end,
                self._options.lease_seconds,
            )  # fmt: skip
        except Gone as gone:
            if self._options.fail_on_data_loss:
                raise
            log.warning("left out, as failOnDataLoss is false: %s", gone)
            return []

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
        self._kafka = options.schema == "kafka"
        self._name = VALUE if self._kafka else PAYLOAD
        known = self._name in self._arrow.names
        self._kind = self._arrow.field(self._name).type if known else None
        self._parser = Parser(self._kind) if known and pa.types.is_struct(self._kind) else None

    def convert(self, rows: RowBuilder, part: PlannedPart) -> pa.RecordBatch:
        made: dict[str, pa.Array] = {}
        bad: list[int] = []
        if self._kind is not None:
            raw = rows.payloads()
            made[self._name], bad = self._payload(raw)
        if CORRUPT in self._arrow.names:
            wrong = set(bad)
            texts = (
                [r if i in wrong else None for i, r in enumerate(raw.to_pylist())] if bad else None
            )
            made[CORRUPT] = pa.array(texts, pa.binary()) if texts else pa.nulls(
                rows.count, pa.binary()
            )  # fmt: skip
        for field in self._arrow:
            if field.name not in made:
                made[field.name] = rows.column(field.name, field.type, kafka=self._kafka)
        found = pa.RecordBatch.from_arrays(
            [made[name] for name in self._arrow.names], schema=self._arrow
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


def check_schema(schema: StructType, options: SourceOptions) -> None:
    """Check a schema given by `readStream.schema(...)`: the columns to read, and no others."""
    kafka = options.schema == "kafka"
    known = columns.KAFKA_WITH_HEADERS if kafka else {**columns.NATIVE, CORRUPT: "BINARY"}
    for field in to_arrow_schema(schema, timezone="UTC"):
        if field.name not in known:
            raise InvalidArgument(
                f"a stream of messages has no column {field.name!r}; it has {', '.join(known)}"
            )
        kind = known[field.name]
        if field.type != columns.arrow_type(kind) and (kafka or field.name != PAYLOAD):
            raise InvalidArgument(f"the column {field.name!r} is {kind}, not {field.type}")


def pages(
    session: Session, partition: StreamPartition, part: PlannedPart, *, missing: bool
) -> Iterator[Handout]:
    """Yield the messages of a part, a few segments at a time; those `missing` may be left out."""
    left = part.ranges
    at = partition.reader, partition.epoch, part.number, part.lane, part.token
    while left:
        try:
            handout = session.broker.look(readers.fetch, *at, left, FETCH_BYTES)
        except Gone:
            if not missing:
                raise
            stored = session.broker.look(readers.stored, *at, left)
            gone = ranges.count(left) - ranges.count(stored)
            log.warning("%s messages are left out, as failOnDataLoss is false", gone)
            left, missing = stored, bool(gone)
            continue
        yield handout
        left = ranges.clip(left, handout.runs[-1].hi, left[-1])


@functools.cache
def keep_modules() -> None:
    """Keep what is loaded out of the collection that a Python worker does after each task."""
    gc.freeze()


def batch_of(context: TaskContext) -> tuple[str, int, str]:
    """Return the query, batch and run of a task; the run is Spark's job group."""
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    if query is None or batch is None:
        raise InvalidArgument("a stream of messages can be read only by a streaming query")
    return query, int(batch), context.getLocalProperty("spark.jobGroup.id") or ""


def _offset(reader: str, number: int) -> Offset:
    return {"reader": reader, "number": number}


def lag_report(options: SourceOptions, planner: Planner) -> Offset:
    """Return the last offset with the counts of the group, and Kafka's metrics of a source."""
    lag = planner.lag()
    return {
        **_offset(planner.reader, planner.leased),
        "queue": options.queue, "group": options.group, "ready": lag.ready, "leased": lag.leased,
        "waiting": lag.waiting, "done": lag.done, "dead": lag.dead,
        "oldestSeconds": lag.oldest_seconds, "minOffsetsBehindLatest": lag.least_behind,
        "maxOffsetsBehindLatest": lag.most_behind,
        "avgOffsetsBehindLatest": lag.behind / max(1, lag.lanes),
    }  # fmt: skip


def distribute(parts: list[PlannedPart], options: SourceOptions) -> list[list[PlannedPart]]:
    """Distribute parts in order over tasks of similar cost; a lane may be split.

    The cost of a message grows with its size, so that a few large messages are read in parallel.
    """
    counts = [ranges.count(part.ranges) for part in parts]
    costs = [max(1.0, part.bytes / n / ROW_BYTES) for part, n in zip(parts, counts, strict=True)]
    total = sum(n * cost for n, cost in zip(counts, costs, strict=True))
    share = total / max(options.parallelism or os.cpu_count() or 1, options.min_partitions)
    if not options.min_partitions:
        share = max(MIN_TASK_ROWS, share)
    most = options.max_records_per_partition or NO_LIMIT
    tasks: list[list[PlannedPart]] = []
    room, rows = 0.0, 0
    for part, count, cost in zip(parts, counts, costs, strict=True):
        left = part.ranges
        while left:
            if room <= 1e-6 or not rows:
                tasks.append([])
                room, rows = min(room, 0) + share, most
            some = ranges.lowest(left, min(rows, max(1, math.ceil(room / cost - 1e-6))))
            n = ranges.count(some)
            size = part.bytes * n // count
            tasks[-1].append(PlannedPart(part.number, part.lane, part.token, some, size))
            room -= n * cost
            rows -= n
            left = ranges.clip(left, some[-1], left[-1])
    return tasks
