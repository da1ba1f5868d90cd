"""One Spark session for all tests that need one. Without Java they are skipped, in CI they fail."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import ackflow
import ackflow.spark
from ackflow import Session
from tests.conftest import starts_spark

# Tests need a JVM that starts fast rather than one that runs fast.
FAST = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def fast_session(master: str = "local[2,3]", **conf: str) -> SparkSession:
    spark = ackflow.spark.session(
        "tests",
        master,
        **{
            "spark.driver.extraJavaOptions": FAST,
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
            **conf,
        },
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    try:
        ackflow.spark.spark_session.find_java()
    except ackflow.spark.JavaMissing as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))
    session = fast_session()
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def no_spark_outside_its_group(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let Spark fail to start in tests that are not in the xdist group `spark`."""
    if not starts_spark(request.node):
        monkeypatch.setenv("SPARK_HOME", "/this-test-needs-the-marker-spark")


class Lab:
    """A database and queries on it."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.url = str(folder / "queue.db")
        self.q: Session = ackflow.connect(self.url)

    def read(self, queue: str = "in", group: str = "g", **options: object) -> DataFrame:
        reader = self.spark.readStream.format("ackflow").option("url", self.url)
        reader = reader.option("queue", queue).option("group", group)
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return reader.load()

    def to_queue(self, frame: DataFrame, name: str = "query", **options: object) -> None:
        """Run a query into a queue until all that is there is done."""
        writer = frame.writeStream.format("ackflow").option("url", self.url)
        for option, value in ({"queue": "out"} | options).items():
            writer = writer.option(option, str(value))
        self.finish(writer.option("checkpointLocation", self.checkpoint(name)))

    def each(
        self, frame: DataFrame, function: Callable[[DataFrame, int], object], name: str = "query"
    ) -> None:
        """Run a function on each batch until all that is there is done."""
        writer = frame.writeStream.foreachBatch(lambda df, n: function(df, n) and None)
        self.finish(writer.option("checkpointLocation", self.checkpoint(name)))

    def collect(self, frame: DataFrame, name: str = "query") -> list[list[object]]:
        """The rows of every batch until all that is there is done."""
        found: list[list[object]] = []
        self.each(frame, lambda df, _: found.append(df.collect()), name)
        return found

    def checkpoint(self, name: str) -> str:
        return str(self.folder / "checkpoints" / name)

    def finish(self, writer: object) -> None:
        query: StreamingQuery = writer.trigger(availableNow=True).start()  # type: ignore[attr-defined]
        query.awaitTermination()

    def counts(self, queue: str = "in", group: str = "g") -> ackflow.model.Counts:
        return self.q.group_stats(queue, group).counts

    def out(self, queue: str = "out") -> list[object]:
        """Everything in a queue, in no order."""
        found: list[object] = []
        while batch := self.q.pop(queue, group="checking", batch=10_000):
            found += [message.data for message in batch]
        return found


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Iterator[Lab]:
    found = Lab(spark, tmp_path)
    yield found
    for query in spark.streams.active:
        query.stop()
    found.q.close()
