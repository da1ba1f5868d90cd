"""The Spark application of a pipeline: the queries `route` and `answer` in one driver.

main thread:  dead letters, held ends, answers of complete clients      │ one session of Spark,
stream:       batch after batch: fold, commit, compact                  │ executors anywhere
"""

import json
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from .. import Item, Session, connect
from ..errors import AckflowError
from ..spark import sessions
from ..spark import spark_session as spark_start
from . import preflight
from .answers import Answers, Questions, ResultFormat
from .check import check_on_spark
from .declaration import Pipeline
from .partials import Partials, WorkFolder
from .router import BATCH_BYTES, MESSAGES, Router, dead_letter_bad_rows, send_bad_rows
from .sql import Layout
from .state import BlockHeaders, EndOfTable, handled_tables, read_state
from .supervisor import PipelineFailed, error_summary

if TYPE_CHECKING:
    from .stages import Settings

ATTEMPTS = 3
WARM_UP = "warming-up"
WARM_UP_CELLS = {"text": "1", "time": "2024-01-01 12:00:00", "date": "2024-01-01"}

log = logging.getLogger("ackflow.pipeline")


class Application:
    """One run of the application, on a session of Spark."""

    def __init__(
        self, spark: SparkSession, q: Session, url: str, pipeline: Pipeline, layout: Layout,
        out: Path, work: str, parts: int, *, format: ResultFormat = "json",
        messages: int = MESSAGES, batch_bytes: int = BATCH_BYTES, token: str | None = None,
        checked: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """`checked` waits until the declaration is checked; before that, no batch is committed."""
        self._q, self._pipeline, self._spark = q, pipeline, spark
        self._checked = checked
        folder = WorkFolder(spark, f"{work.rstrip('/')}/partials")
        self.partials = Partials(q, pipeline, spark, layout, folder)
        self.partials.delete_unnamed()
        self.router = Router(
            q, url, pipeline, self.partials, layout, parts, f"{work.rstrip('/')}/checkpoint",
            messages=messages, batch_bytes=batch_bytes, token=token, checked=checked,
        )  # fmt: skip
        questions = Questions(spark, pipeline, self.partials, folder, format)
        self._send_bad_rows = partial(send_bad_rows, q, pipeline, self.partials)
        self.answers = Answers(
            q, pipeline, self.partials, questions, out, parts, self._send_bad_rows
        )

    def run(self, stop: Callable[[float], bool], working: Callable[[], None]) -> None:
        """Run until stopped. `stop` waits for some seconds and returns whether to end; `working`
        is called when the query works."""
        query = self.router.start(self._spark)
        reported = False
        try:
            self._checked()
            while not stop(0.1) and query.isActive:
                if not reported and query.status["message"] != "Initializing sources":
                    working()
                    reported = True
                self.step()
            failure = query.exception()
        finally:
            query.stop()
        dead_letter_bad_rows(self._q, self._pipeline)  # of the last batches
        if failure is not None:
            raise PipelineFailed(f"Spark failed: {error_summary(failure)}")

    def step(self) -> list[str]:
        """Do what is due beside the stream; return the clients that are finished now."""
        self._send_bad_rows()
        dead_letter_bad_rows(self._q, self._pipeline)
        self.router.ends.poll()
        done = self.answers.run_once()
        for client in done:
            log.info("the answers for %s are written", client)
        return done


def spark_session(settings: "Settings", pipeline: Pipeline) -> SparkSession:
    """Start Spark with the settings of a pipeline, without the format `ackflow`."""
    local = preflight.is_local(settings.master)
    conf = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.shuffle.partitions": str(settings.parts),
        # What a batch leaves after folding is often small: then one task writes one file.
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": str(16 << 20),
        "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
        "spark.sql.maxConcurrentOutputFileWriters": "64",
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000",
        "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
        "spark.rdd.compress": "false",  # a batch is read once more and dropped
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    if local:
        # The JVM's optimising compiler costs more than it gains in runs of a few minutes. A room
        # for classes that grows step by step is collected at each step. The heap begins with the
        # least that Spark accepts and grows with what is alive after a collection, up to
        # spark.driver.memory: a large one would fill with the buffers of past batches.
        conf["spark.driver.extraJavaOptions"] = (
            "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=192m "
            "-Xms448m -XX:NewSize=256m -XX:MinHeapFreeRatio=20"
        )
        if "SPARK_CONF_DIR" not in os.environ and (jars := spark_start.first_jars()):
            conf["spark.driver.extraClassPath"] = jars
    if settings.ui or not local:
        conf["spark.ui.enabled"] = "true"
    try:
        return spark_start.start(
            f"ackflow {pipeline.name}", settings.master, **{**conf, **settings.conf}
        )
    except AckflowError:
        raise
    except Exception as error:  # Py4J, Java and PySpark have no common base class
        raise PipelineFailed(
            f"cannot start Spark on {settings.master}: {error_summary(error)}"
        ) from error


def warm_up(
    spark: SparkSession, pipeline: Pipeline, layout: Layout, parts: int,
    stop: Callable[[float], bool],
) -> None:  # fmt: skip
    """Run the pipeline on synthetic rows in a temporary queue, so that the JVM compiles its code.

    `stop` waits for the given number of seconds and returns whether to end early.
    """
    with TemporaryDirectory(prefix="ackflow-", ignore_cleanup_errors=True) as folder:
        url = str(Path(folder, "queue.db"))
        with connect(url, consumer=WARM_UP) as q:
            application = Application(
                spark, q, url, pipeline, layout, Path(folder), f"file://{folder}", parts
            )
            for table in pipeline.tables:
                cells = [_warm_up_cell(table.kind(name)) for name in table.kept]
                block = BlockHeaders(WARM_UP, table.name, 0, 1, "", 0, "", "csv",
                                     json.dumps(table.kept), plain=True)  # fmt: skip
                end = EndOfTable(WARM_UP, table.name, 0, 1, 1)
                q.push(pipeline.inbox, [
                    Item(data=f"{','.join(cells)}\n".encode() * 2, headers=block.text()),
                    Item(data={}, headers=end.text()),
                ], partition=WARM_UP)  # fmt: skip
            query = application.router.start(spark)
            try:
                # Rows that a route or a query cannot use end the query, which is warm by then.
                while query.isActive and not read_state(q, pipeline, "done"):
                    if stop(0.2):
                        break
                    application.step()
            finally:
                query.stop()
        sessions.close()


def _warm_up_cell(kind: str) -> str:
    if kind.startswith("timestamp"):
        kind = "time"
    return WARM_UP_CELLS.get(kind, "100")


def answer_so_far(
    spark: SparkSession, settings: "Settings", pipeline: Pipeline, q: Session, client: str, to: Path
) -> tuple[int, int]:
    """Answer the queries of a client with what is folded so far; return its blocks and rows."""
    layout = check_on_spark(spark, pipeline)
    work = WorkFolder(spark, f"{settings.work_folder}/partials")
    partials = Partials(q, pipeline, spark, layout, work)
    questions = Questions(spark, pipeline, partials, work, settings.results)
    handled = [one for key, one in handled_tables(q, pipeline).items() if key.client == client]
    for attempt in range(ATTEMPTS):
        folders = partials.folders(client)
        try:
            questions.answer(folders, to)
            break
        except PySparkException:
            # The run may fold files into one, and delete them, while they are read here.
            if attempt + 1 == ATTEMPTS or partials.folders(client) == folders:
                raise
    return sum(one.blocks for one in handled), sum(one.rows for one in handled)
