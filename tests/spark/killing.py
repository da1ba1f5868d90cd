"""A data source that dies at a named point: the real one, with a kill before or after a step.

A point is `step@batch`. Steps: `before write` and `after write` (a task of the sink), `before
publish` and `after publish` (the driver's commit, before Spark's commit log), `before settle` (after
Spark's commit log). `stop` freezes the application in a task instead, `executor` kills the executor
of a task's first attempt, and `fail after write` fails the first attempt of every task.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from ackflow.spark.datasource import AckflowDataSource
from ackflow.spark.options import SinkOptions, sink_options, source_options
from ackflow.spark.sink import StreamSink
from ackflow.spark.source import MessageStream

STEPS = ("before write", "after write", "before publish", "after publish", "before settle")


def signal_application(driver: int, number: int) -> None:
    """Signal the driver and everything it started, this process last."""
    root = psutil.Process(driver)
    for process in [root, *root.children(recursive=True)]:
        if process.pid != os.getpid():
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended by itself
                process.send_signal(number)
    os.kill(os.getpid(), number)


def kill_executor() -> None:
    """Kill the JVM that this worker belongs to."""
    for parent in psutil.Process().parents():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended by itself
            if parent.name() == "java":
                parent.kill()
                return


class DyingSink(StreamSink):
    def __init__(self, options: SinkOptions, schema: StructType, point: str, driver: int) -> None:
        super().__init__(options, schema)
        self.point, self.driver = point, driver

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        batch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
        self.pass_by("before write", batch)
        if self.point == f"stop@{batch}":
            signal_application(self.driver, signal.SIGSTOP)
        if self.point == f"executor@{batch}" and context.attemptNumber() == 0:
            kill_executor()
        written = super().write(iterator)
        self.pass_by("after write", batch)
        if self.point == "fail after write" and context.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails")
        return written

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.pass_by("before publish", batchId)
        super().commit(messages, batchId)
        self.pass_by("after publish", batchId)

    def pass_by(self, point: str, batch: int) -> None:
        if self.point == f"{point}@{batch}":
            signal_application(self.driver, signal.SIGKILL)


class DyingStream(MessageStream):
    point = ""
    driver = 0

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        # The batch that ends at number n is Spark's batch n - 1, as none of them is empty.
        if self.point == f"before settle@{start['number'] - 1}":
            signal_application(self.driver, signal.SIGKILL)
        return super().latestOffset(start, limit)


def kill_at(spark: SparkSession, point: str) -> None:
    """Make this session's format `ackflow` die at a point."""
    import sys

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    driver = os.getpid()

    class DyingDataSource(AckflowDataSource):
        def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
            return DyingSink(sink_options(self.given), schema, point, driver)

        def streamReader(self, schema: StructType) -> MessageStream:
            found = DyingStream(source_options(self.given), schema)
            found.point, found.driver = point, driver
            return found

    spark.dataSource.register(DyingDataSource)
