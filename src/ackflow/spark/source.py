"""The stream source: offsets are the numbers of a reader's hand-outs.

The planner process asks for numbers and keeps the leases alive; executors read what a number is.
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
from .columns import Rows
from .options import SourceOptions
from .parse import Parser, not_text

Offset = dict[str, Any]
FETCH_BYTES = 8 * 1024 * 1024
LEAST_ROWS = 5_000
NO_LIMIT = 1 << 50

log = logging.getLogger("ackflow.spark")


class Slice(InputPartition):
    """What one task reads of the numbers above `start` up to `end`."""

    def __init__(
        self, reader: str, epoch: int, start: int, end: int, lots: list[PlannedPart]
    ) -> None:
        self.reader, self.epoch = reader, epoch
        self.start, self.end = start, end
        self.lots = lots


class MessageStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a queue for a group. Nothing is acknowledged before Spark has finished with it."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._initial: Offset | None = None
        self._planner: Planner | None = None
        self._bounded = False  # with availableNow: only what is there now
        self._left: int | None = None

    def initialOffset(self) -> Offset:
        # Spark asks twice on a first start; both must be the same reader.
        if self._initial is None:
            self._initial = _offset(secrets.token_hex(8), 0)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        # Counted with the first question: starting a reader may give back what was held.
        self._bounded = True

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Settle up to `start`: that batch is in Spark's commit log. Then lease what comes next."""
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
        # Before the first batch is in Spark's commit log, a new run begins with a new reader in
        # `start`; what is to be read again belongs to the one in `end`.
        first = start["number"] if start["reader"] == end["reader"] else 0
        last = end["number"]
        planner = self._planner_of(end["reader"], first)
        parallelism = self._options.parallelism or os.cpu_count() or 1
        return [
            Slice(planner.reader, planner.epoch, first, last, lots)
            for lots in _shared_out(planner.hand_over(first, last), parallelism)
        ]

    def commit(self, end: Offset) -> None:
        self._planner_of(end["reader"], end["number"]).settle(end["number"])

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.stop()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Exactly the messages of a slice, or a failure. Runs on an executor."""
        assert isinstance(partition, Slice)
        session = sessions.session(self._options)
        context = TaskContext.get()
        if context is not None:
            query, batch, run = batch_of(context)
            session.broker.do(
                batches.bind, False, partition.reader, partition.epoch, partition.start,
                partition.end, query, batch, run,
            )  # fmt: skip
        shaping = Shaping(session, self._options, self._schema, partition)
        rows = Rows()
        for lot in partition.lots:
            for handout in pages(session, partition, lot):
                for run_ in handout.runs:
                    if not rows.takes(run_):
                        yield shaping.batch(rows, lot)
                        rows = Rows()
                    rows.add(handout, run_)
            # A batch does not go over the end of a lot, as what is bad is told by lot.
            if rows.count:
                yield shaping.batch(rows, lot)
                rows = Rows()

    def _planner_of(self, reader: str, number: int) -> "Planner":
        if self._planner is None or self._planner.reader != reader:
            self.stop()
            self._planner = Planner(self._options, reader, number)
        return self._planner


class Planner:
    """The reader's side of one run: an epoch of its own, and a heartbeat for what it leased."""

    def __init__(self, options: SourceOptions, reader: str, number: int) -> None:
        self.reader = reader
        self._options = options
        self._session = sessions.reading(options, upkeep=True)
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
        """How many messages there are to hand out now."""
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
        """Keep alive what this run leased; ends when the process does, or another run took over."""
        while not self._over.wait(self._options.lease_seconds / 4):
            try:
                broken = self._session.broker.do(
                    readers.keep, False, self.reader, self.epoch, self._options.lease_seconds
                )
            except LeaseLost as lost:
                log.warning("the heartbeat of %s ends: %s", self.reader, lost)
                return
            except AckflowError as error:
                log.warning("a heartbeat of %s failed and is tried again: %s", self.reader, error)
                continue
            if broken:
                log.warning("some messages of a running batch were lost to a lease that ran out")


class Shaping:
    """Makes record batches of the schema Spark was told, and deals with what does not parse."""

    def __init__(
        self, session: Session, options: SourceOptions, schema: StructType, part: Slice
    ) -> None:
        self._session, self._options, self._part = session, options, part
        self._arrow = to_arrow_schema(schema, timezone="UTC")
        kind = self._arrow.field("payload").type
        self._kind = kind
        self._parser = Parser(kind) if pa.types.is_struct(kind) else None

    def batch(self, rows: Rows, lot: PlannedPart) -> pa.RecordBatch:
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
            return self._without(found, rows, lot, bad)
        return found

    def _payload(self, raw: pa.Array) -> tuple[pa.Array, list[int]]:
        if self._parser is not None:
            return self._parser.parse(raw)
        if self._kind == pa.string():
            bad = not_text(raw)
            if bad:
                wrong = set(bad)
                texts = [None if i in wrong else r for i, r in enumerate(raw.to_pylist())]
                return pa.array(texts, pa.binary()).cast(pa.string()), bad
            return pa.Array.from_buffers(pa.string(), len(raw), raw.buffers()), []
        return raw, []

    def _without(
        self, found: pa.RecordBatch, rows: Rows, lot: PlannedPart, bad: list[int]
    ) -> pa.RecordBatch:
        places = [rows.place(row) for row in bad]
        if self._options.on_corrupt == "fail":
            run, sequence = places[0]
            raise InvalidArgument(
                f"the payload of sequence {sequence} in partition {run.partition!r} does not fit; "
                "option onCorrupt = column or dead_letter goes on without it"
            )
        which: Ranges = ranges.of(sequence for _, sequence in places)
        self._session.broker.do(
            readers.mark_bad, False, self._part.reader, self._part.epoch, lot.number, lot.lane,
            lot.token, which,
        )  # fmt: skip
        wrong = set(bad)
        return found.take(pa.array([row for row in range(rows.count) if row not in wrong]))


def pages(session: Session, part: Slice, lot: PlannedPart) -> Iterator[Handout]:
    """What a lot holds, a few segments at a time."""
    left = lot.ranges
    while left:
        handout = session.broker.look(
            readers.fetch, part.reader, part.epoch, lot.number, lot.lane, lot.token, left,
            FETCH_BYTES,
        )  # fmt: skip
        yield handout
        left = ranges.clip(left, handout.runs[-1].hi, left[-1])


def batch_of(context: TaskContext) -> tuple[str, int, str]:
    """The query, batch and run that a task works for; the run is Spark's job group."""
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    if query is None or batch is None:
        raise InvalidArgument("a stream of messages is read by a streaming query only")
    return query, int(batch), context.getLocalProperty("spark.jobGroup.id") or ""


def _offset(reader: str, number: int) -> Offset:
    return {"reader": reader, "number": number}


def _shared_out(lots: list[PlannedPart], parallelism: int) -> list[list[PlannedPart]]:
    """Lots for at most `parallelism` tasks of about equal size, in order; lanes may be cut."""
    total = sum(ranges.count(lot.ranges) for lot in lots)
    share = max(LEAST_ROWS, -(-total // parallelism))
    tasks: list[list[PlannedPart]] = []
    room = 0
    for lot in lots:
        left = lot.ranges
        while left:
            if room <= 0:
                tasks.append([])
                room = share
            some = ranges.lowest(left, room)
            tasks[-1].append(PlannedPart(lot.number, lot.lane, lot.token, some, 0))
            room -= ranges.count(some)
            left = ranges.clip(left, some[-1], left[-1])
    return tasks
