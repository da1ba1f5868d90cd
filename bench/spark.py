"""The Spark connector against built-in sources and sinks of Spark: the same rows, in one run.

Source: a stream of the queue into `noop` against a stream of the same rows, all columns, from
Parquet. Sink: writing payloads to a queue against writing them to Parquet. Trigger: the cost of a
batch of a few rows, against Spark's rate source.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import ackflow

from . import peers
from .measure import Json, Plan, folder, seconds
from .report import Row, Table, Target

OURS = "Ackflow"
TRIGGERS = 12
BATCHES = 5
PARTITIONS = 8


def run(messages: Sequence[Json], plan: Plan) -> list[Table]:
    if missing := peers.spark_missing():
        print(f"\nSpark is left out: {missing}")
        return []
    import ackflow.spark

    conf = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
    spark = ackflow.spark.session("bench", "local[2]", **conf)
    try:
        with folder() as path:
            return list(Bench(spark, path, messages, max(3, plan.rounds // 2)).tables())
    finally:
        spark.stop()


class Bench:
    def __init__(self, spark: Any, path: Path, messages: Sequence[Json], rounds: int) -> None:
        self.spark, self.path, self.rounds = spark, path, rounds
        self.batch = len(messages)
        self.rows = BATCHES * self.batch
        self.url = str(path / "queue.db")
        self.q = ackflow.connect(self.url)
        self.number = 0
        for _ in range(BATCHES):
            for n in range(PARTITIONS):
                mine = list(messages[n::PARTITIONS])
                for at in range(0, len(mine), 10_000):
                    self.q.push("in", mine[at : at + 10_000], partition=f"p{n}")

    def tables(self) -> list[Table]:
        self._copy()
        source = Row("stream of all columns into noop", "rows/s", [], [], Target(0.9))
        sink = Row("write of payloads", "rows/s", [], [], Target(0.4))
        trigger = Row("trigger of a few rows, median", "ms", [], [])
        self._warm_up()
        for number in range(self.rounds):
            self._in_turn(number, source, self._stream_queue, self._stream_parquet)
            self._in_turn(number, sink, self._write_queue, self._write_parquet)
            self._in_turn(number, trigger, self._trigger_queue, self._trigger_rate)
        self.q.close()
        notes = [
            f"{BATCHES} batches of {self.batch:,} messages in {PARTITIONS} partitions, local[2]"
        ]
        return [
            Table("Spark source", (OURS, "Parquet"), [source], notes),
            Table("Spark sink", (OURS, "Parquet"), [sink], ["each message is checked to be JSON"]),
            Table("Spark trigger", (OURS, "rate source"), [trigger]),
        ]

    def _in_turn(
        self, number: int, row: Row, ours: Callable[[], float], theirs: Callable[[], float]
    ) -> None:
        sides = [(row.first, ours), (row.second, theirs)]
        for values, measure in sides if number % 2 == 0 else reversed(sides):
            values.append(measure())

    def _warm_up(self) -> None:
        for work in (self._stream_queue, self._stream_parquet, self._write_queue,
                     self._write_parquet):  # fmt: skip
            work()

    def _source(self) -> Any:
        """Return a stream of the queue for a new group."""
        self.number += 1
        reader = self.spark.readStream.format("ackflow").option("url", self.url)
        reader = reader.option("maxRowsPerTrigger", self.batch)
        return reader.option("queue", "in").option("group", f"g{self.number}").load()

    def _copy(self) -> None:
        """The same rows, with every column, as Parquet: two files for each batch of the source."""
        frame = self._source().repartition(2)
        writer = frame.writeStream.format("parquet").option("path", str(self.path / "parquet"))
        self._finish(writer)
        self.schema = self.spark.read.parquet(str(self.path / "parquet")).schema
        payload = self.spark.read.parquet(str(self.path / "parquet")).selectExpr(
            "cast(payload as string) as payload"
        )
        self.payload = payload.cache()
        self.payload.count()

    def _finish(self, writer: Any) -> float:
        """Run a query to its end; return its rows per second without the first batch."""
        self.number += 1
        checkpoint = str(self.path / "checkpoints" / str(self.number))
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        # The first batch includes process starts and compilation on both sides.
        later = [p for p in query.recentProgress if p["numInputRows"]][1:]
        took = sum(p["durationMs"]["triggerExecution"] for p in later)
        return float(sum(p["numInputRows"] for p in later) / took * 1000)

    def _stream_queue(self) -> float:
        frame = self._source()
        rate = self._finish(frame.writeStream.format("noop"))
        group = f"g{self.number - 1}"
        assert self.q.group_stats("in", group).counts.done == self.rows
        self.q.delete_group("in", group)
        return rate

    def _stream_parquet(self) -> float:
        reader = self.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 2)
        frame = reader.parquet(str(self.path / "parquet"))
        return self._finish(frame.writeStream.format("noop"))

    def _write_queue(self) -> float:
        writer = self.payload.write.format("ackflow").mode("append").option("url", self.url)
        took = seconds(lambda: writer.option("queue", "out").save())
        self.q.delete_queue("out")
        return self.rows / took

    def _write_parquet(self) -> float:
        path = self.path / "written"
        took = seconds(lambda: self.payload.write.parquet(str(path)))
        shutil.rmtree(path)
        return self.rows / took

    def _trigger_queue(self) -> float:
        self.q.push("few", list(range(2 * (TRIGGERS + 3))))
        reader = self.spark.readStream.format("ackflow").option("url", self.url)
        frame = reader.option("queue", "few").option("maxRowsPerTrigger", 2).load()
        return self._trigger(frame)

    def _trigger_rate(self) -> float:
        reader = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2)
        return self._trigger(reader.option("numPartitions", 1).load())

    def _trigger(self, frame: Any) -> float:
        self.number += 1
        writer = frame.writeStream.format("noop")
        checkpoint = str(self.path / "checkpoints" / str(self.number))
        query = writer.option("checkpointLocation", checkpoint).start()
        try:
            while True:
                done = [p for p in query.recentProgress if p["numInputRows"]]
                if len(done) >= TRIGGERS:
                    break
                query.awaitTermination(0.05)
        finally:
            query.stop()
        return float(median(p["durationMs"]["triggerExecution"] for p in done[2:]))
