"""The router on Spark: filters, folds and shards batches; forwards the ends of tables when due.

What a batch of messages becomes, the counts of what was handled, and the acks of the messages are
one commit. Ends of file are held, unacknowledged, until everything before them is forwarded.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from .. import Session, ids
from .. import spark as connector
from ..broker.settle import Mark, Verdict
from ..broker.transact import Settles
from ..transaction import Operations
from .declare import Pipeline, Route, Table
from .ledger import Held, Key, Ledger
from .words import Bad, EndOfTable, Forwarded, Tick

GROUP = "router"
LEASE = 10.0
MESSAGES = 400
TIME = "yyyy-MM-dd HH:mm:ss"
SHAPE = (
    "kind string, client string, table string, worker int, workers int, batch int, batches int, "
    "rows array<array<string>>"
)
log = logging.getLogger("ackflow.pipeline")


class Router:
    """One run of the router; its ledger of ends of file is rebuilt from what comes again."""

    def __init__(
        self, q: Session, url: str, pipeline: Pipeline, shards: int, checkpoint: Path
    ) -> None:
        self._q, self._url, self._pipeline = q, url, pipeline
        self._shards = [f"{number:02d}" for number in range(shards)]
        self._checkpoint = checkpoint
        self._ledger = Ledger(shards)
        for queue in (pipeline.inbox, pipeline.shards, pipeline.bad):
            q.configure(queue, keep_seconds=0)

    def start(self, spark: SparkSession) -> StreamingQuery:
        stream = (
            spark.readStream.format("ackflow")
            .option("url", self._url)
            .option("queue", self._pipeline.inbox)
            .option("group", GROUP)
            .option("mode", "manual")
            .option("payload", "string")
            .option("leaseSeconds", str(LEASE))
            .option("maxRowsPerTrigger", str(MESSAGES))
            .load()
        )
        writer = stream.writeStream.foreachBatch(self._batch)
        return writer.option("checkpointLocation", str(self._checkpoint)).start()

    def _batch(self, frame: DataFrame, number: int) -> None:
        parsed = frame.select(
            "id", "lease", "sequence", "redelivered", F.from_json("payload", SHAPE).alias("m")
        ).persist()
        try:
            said = [_Said(self._pipeline, row) for row in _heads(parsed).toLocalIterator()]
            self._commit(parsed, number, said)
            self._receive(said)
            self.flush()
        finally:
            parsed.unpersist()

    def _commit(self, parsed: DataFrame, number: int, said: list["_Said"]) -> None:
        """Publish what the batch becomes, count it and settle it, all or nothing."""
        also = Operations(None)
        handled: dict[Key, int] = {}
        for one in said:
            if one.key is not None and not one.ends:
                handled[one.key] = handled.get(one.key, 0) + 1
        for key, n in handled.items():
            also.put(self._handled(key), self._count(key) + n)
            for shard in self._shards:
                tick = Tick(key.client, key.table, n)
                also.push(self._pipeline.shards, _raw(tick), partition=shard)
        spark = parsed.sparkSession
        rows = [(one.id, one.lease, one.verdict, one.reason) for one in said]
        verdicts = spark.createDataFrame(
            rows, "id string, lease string, verdict string, reason string"
        )
        connector.commit_batch(
            number, self._url, output=self._output(parsed, handled), verdicts=verdicts, also=also
        )

    def _output(self, parsed: DataFrame, handled: dict[Key, int]) -> DataFrame | None:
        found: DataFrame | None = None
        for table in {key.table for key in handled}:
            declared = self._pipeline.table(table)
            assert declared is not None
            rows = _typed(parsed, declared)
            parts = [self._bad(rows, declared)]
            for route in self._pipeline.routes:
                if route.table == table:
                    parts.append(self._routed(rows, route))
            for part in parts:
                found = part if found is None else found.unionByName(part)
        return found

    def _routed(self, rows: DataFrame, route: Route) -> DataFrame:
        chosen = rows.where(f"readable and ({route.where})")
        values = [F.expr(code).cast("string").alias(name) for name, code in route.select.items()]
        sums = [
            F.coalesce(F.expr(code).cast("decimal(38,6)"), F.lit(0)).alias(f"_{name}")
            for name, code in route.sums.items()
        ]
        made = chosen.select("client", *values, *sums)
        if route.sums:
            added = [F.sum(f"_{name}").cast("string").alias(name) for name in route.sums]
            made = made.groupBy("client", *route.select).agg(*added)
        shard = F.pmod(F.xxhash64(route.shard), F.lit(len(self._shards)))
        record = F.struct(*(F.col(name) for name in (*route.select, *route.sums)))
        grouped = made.groupBy("client", F.format_string("%02d", shard).alias("partition")).agg(
            F.collect_list(record).alias("rows")
        )
        message = F.struct(
            F.lit("rows").alias("kind"), "client", F.lit(route.name).alias("route"), "rows"
        )
        return grouped.select(
            F.lit(self._pipeline.shards).alias("queue"), "partition",
            F.to_json(message).alias("payload"),
        )  # fmt: skip

    def _bad(self, rows: DataFrame, table: Table) -> DataFrame:
        """What could not be read, to be told and kept."""
        grouped = (
            rows.where("problem is not null")
            .groupBy("client", "problem")
            .agg(F.collect_list("cells").alias("rows"))
        )
        message = F.struct(
            F.lit("bad").alias("kind"), "client", F.lit(table.name).alias("table"),
            F.col("problem").alias("reason"), "rows",
        )  # fmt: skip
        return grouped.select(
            F.lit(self._pipeline.bad).alias("queue"), F.col("client").alias("partition"),
            F.to_json(message).alias("payload"),
        )  # fmt: skip

    def _receive(self, said: list["_Said"]) -> None:
        for one in said:
            if one.ends:
                again = self._ledger.receive(one.held(), one.redelivered)
                if again is not None:
                    self._q.lease(again.lease).ack(again.id)

    def flush(self) -> None:
        """Forward the end of every table whose batches are all forwarded."""
        for key in self._ledger.open():
            held = self._ledger.complete(key, self._count(key))
            if not held:
                continue
            t = self._q.transaction()
            for shard in self._shards:
                end = Forwarded(key.client, key.table, sum(one.eof.batches for one in held))
                t.push(self._pipeline.shards, _raw(end), partition=shard)
            _ack(t, held)
            t.commit()
            self._ledger.forwarded(key)

    def _handled(self, key: Key) -> str:
        return self._pipeline.value("handled", key.client, key.table)

    def _count(self, key: Key) -> int:
        found = self._q.value(self._handled(key))
        return 0 if found is None else int(found.data)


def _ack(t: Operations, held: list[Held]) -> None:
    """Acknowledge held messages in a transaction, by what names their deliveries."""
    for one in held:
        place = ids.parse_message_id(one.id)
        mark = Mark(Verdict("ack"), place.lane, [place.sequence, place.sequence + 1])
        t.add(Settles(ids.parse_token(one.lease), [mark]))


def _heads(parsed: DataFrame) -> DataFrame:
    m = "m"
    return parsed.select(
        "id", "lease", "sequence", "redelivered", f"{m}.kind", f"{m}.client", f"{m}.table",
        f"{m}.worker", f"{m}.workers", f"{m}.batches", F.isnull(f"{m}.rows").alias("empty"),
    )  # fmt: skip


class _Said:
    """What one message says, without its rows, and what becomes of it."""

    def __init__(self, pipeline: Pipeline, row: Any) -> None:
        self.id, self.lease, self.number = row.id, row.lease, row.sequence
        self.redelivered = bool(row.redelivered)
        self.key = None
        self.ends = False
        self.verdict, self.reason = "reject", _problem(pipeline, row)
        if self.reason is None:
            self.key = Key(row.table, row.client)
            self.ends = row.kind == "eof"
            self.verdict = "hold" if self.ends else "ack"
            if self.ends:
                self._eof = EndOfTable(row.client, row.table, row.worker, row.workers, row.batches)
        elif row.kind == "data" and row.client and pipeline.table(row.table or ""):
            self.key = Key(row.table, row.client)  # it was sent, so it counts as handled

    def held(self) -> Held:
        return Held(self._eof, self.id, self.lease, self.number)


def _problem(pipeline: Pipeline, row: Any) -> str | None:
    if row.kind not in ("data", "eof") or not row.client:
        return "not a batch: the message cannot be read"
    if pipeline.table(row.table or "") is None:
        return f"unknown table: {row.table}"
    if row.kind == "data" and row.empty:
        return "truncated batch: it has no rows"
    if row.kind == "eof" and None in (row.worker, row.workers, row.batches):
        return "not an end of file: it does not say of which worker"
    return None


def _typed(parsed: DataFrame, table: Table) -> DataFrame:
    """The rows of a table with their columns by name; `problem` says what cannot be read."""
    width = len(table.keep)
    rows = parsed.where(f"m.kind = 'data' and m.table = '{table.name}' and m.rows is not null")
    cells = rows.select(F.col("m.client").alias("client"), F.explode("m.rows").alias("cells"))
    whole = F.size("cells") == width
    columns = [_read(table, name, F.get("cells", F.lit(i))) for i, name in enumerate(table.keep)]
    made = cells.select("client", "cells", whole.alias("whole"), *columns)
    problem = F.when(~F.col("whole"), F.lit("truncated row: it has not as many cells as columns"))
    readable = F.col("whole")
    for i, name in enumerate(table.keep):
        kind = table.kind(name)
        given = F.trim(F.get("cells", F.lit(i))) != ""
        if kind == "time":
            problem = problem.when(F.isnull(name), F.lit(f"unreadable {name}"))
            readable = readable & F.col(name).isNotNull()
        elif kind == "decimal":
            problem = problem.when(F.isnull(name) & given, F.lit(f"unreadable {name}"))
    return made.withColumn("problem", problem).withColumn("readable", readable)


def _read(table: Table, name: str, cell: Column) -> Column:
    match table.kind(name):
        case "time":
            return F.try_to_timestamp(cell, F.lit(TIME)).alias(name)
        case "decimal":
            return F.expr(
                f"try_cast(trim(cells[{table.keep.index(name)}]) as decimal(18,6))"
            ).alias(name)
        case _:
            return cell.alias(name)


def bury(q: Session, pipeline: Pipeline) -> int:
    """Put what could not be read among the dead letters, each with its reason."""
    told = 0
    for message in q.pop(pipeline.bad, group=GROUP, batch=100):
        bad = msgspec.json.decode(message.raw, type=Bad)
        message.reject(f"{bad.reason}: {len(bad.rows)} rows of {bad.table} from {bad.client}")
        told += len(bad.rows)
    return told


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def held_by(q: Session, pipeline: Pipeline) -> Iterator[str]:
    """For a status: who holds messages of the inbox."""
    for lease in q.leases(pipeline.inbox, GROUP):
        yield f"{lease.consumer} holds {lease.held} until {lease.expires_at:%H:%M:%S}"
