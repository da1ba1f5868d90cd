"""The sinks: every task stages its rows, and the driver's commit publishes all stages at once."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from secrets import token_hex

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from ..broker.core import stage as stages
from ..broker.readers import commit as batches
from ..broker.requests import BatchCommit, Chunk
from ..errors import InvalidArgument
from ..session.session import Session
from . import sessions
from .encode import Chunker, check_columns
from .options import SinkOptions
from .source import batch_of

STAGE_BYTES = 16 * 1024 * 1024


@dataclass
class Staged(WriterCommitMessage):
    """The stages that one task attempt wrote."""

    query: str
    run: str
    stages: list[str] = field(default_factory=list)


class StreamSink(DataSourceStreamArrowWriter):
    """Publishes each batch of a query once, in one transaction with the acks of its input."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema.fieldNames(), options)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        if context is None:
            raise InvalidArgument("the sink can be written only by a Spark task")
        query, batch, run = batch_of(context)
        return Staged(query, run, stage_all(self._options, query, batch, iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        written = [message for message in messages if isinstance(message, Staged)]
        if not written:
            return
        named = [name for message in written for name in message.stages]
        query, run = written[0].query, written[0].run
        request = BatchCommit(query, batchId, named, query, run)
        session = sessions.session(self._options)
        session.broker.do(batches.commit_batch, True, request)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        drop_all(self._options, messages)


class BatchSink(DataSourceArrowWriter):
    """Publishes everything that one job writes, or nothing."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema.fieldNames(), options)
        if (options.producer is None) != (options.batch is None):
            raise InvalidArgument("the options producer and batch must be given together")
        self._options = options
        self._producer = options.producer or f"write-{token_hex(8)}"
        self._batch = options.batch or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        named = stage_all(self._options, self._producer, self._batch, iterator)
        return Staged(self._producer, "", named)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        written = [message for message in messages if isinstance(message, Staged)]
        named = [name for message in written for name in message.stages]
        session = sessions.session(self._options)
        request = BatchCommit(self._producer, self._batch, named)
        session.broker.do(batches.commit_batch, True, request)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        drop_all(self._options, messages)


def stage_all(
    options: SinkOptions, producer: str, batch: int, rows: Iterable[pa.RecordBatch]
) -> list[str]:
    """Stage the rows of a task, a few segments at a time; return the names of the stages."""
    session = sessions.session(options)
    chunker = Chunker(options)
    named: list[str] = []
    waiting: list[Chunk] = []
    size = 0
    for some in rows:
        for chunk in chunker.chunks(some):
            waiting.append(chunk)
            size += len(chunk.data)
            if size >= STAGE_BYTES:
                named.append(_stage(session, producer, batch, waiting))
                waiting, size = [], 0
    if waiting:
        named.append(_stage(session, producer, batch, waiting))
    return named


def _stage(session: Session, producer: str, batch: int, chunks: list[Chunk]) -> str:
    return session.broker.do(stages.stage, True, producer, batch, chunks)


def drop_all(options: SinkOptions, messages: list[WriterCommitMessage | None]) -> None:
    """Drop stages. Those of a lost task are dropped by the next publish, or after a day."""
    session = sessions.session(options)
    for message in messages:
        for name in message.stages if isinstance(message, Staged) else ():
            session.broker.do(stages.drop_stage, False, name)
