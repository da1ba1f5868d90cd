"""The router on Spark: filters, folds and shards batches, and forwards the ends of tables.

The output of a batch, the counts of handled batches, and the acks of its messages are one commit.
End-of-file messages are held unacknowledged until every batch before them is forwarded (`eof.py`).
"""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from .. import Session, connect
from .. import spark as connector
from ..session.transaction import Operations
from ..spark import sessions
from .cancel import cancelled_clients
from .declaration import ColumnKind, Pipeline, Table
from .eof import EofForwarder, HeldEof, TableKey
from .messages import BadRows, Batch, BatchesForwarded, EndOfTable, encode
from .routing import check_expressions, packer, routed_rows

GROUP = "router"
LEASE = 10.0
MESSAGES = 400
REPARTITION_BYTES = 4 * 1024 * 1024
HEADER = (
    "kind string, client string, table string, worker int, workers int, batches int, rows string"
)
VERDICTS = pa.schema([(name, pa.string()) for name in ("id", "lease", "verdict", "reason")])

WARM_UP = "warming-up"
WARM_UP_CELLS: dict[ColumnKind, str] = {
    "text": "1", "time": "2024-01-01 12:00:00", "decimal": "100",
}  # fmt: skip


class Router:
    """One run of the router. Its ledger of end-of-file messages is rebuilt from redeliveries."""

    def __init__(
        self, q: Session, url: str, pipeline: Pipeline, shards: int, checkpoint: Path,
        messages: int = MESSAGES, token: str | None = None,
    ) -> None:  # fmt: skip
        self._q, self._url, self._pipeline, self._token = q, url, pipeline, token
        self._shards = [f"{number:02d}" for number in range(shards)]
        self._checkpoint, self._messages = checkpoint, messages
        self.ends = EofForwarder(q, pipeline, self._shards)
        for queue in (pipeline.inbox, pipeline.shards, pipeline.bad):
            q.configure(queue, keep_seconds=0)
        # Without limits: a router may be killed any number of times while it holds a message.
        q.group(pipeline.inbox, GROUP, lease_seconds=LEASE, max_deliver=None, retry_limit=None)

    def start(self, spark: SparkSession, *, available_now: bool = False) -> StreamingQuery:
        """Start the query; with `available_now` it ends after the messages that exist now."""
        check_expressions(spark, self._pipeline)
        reader = (
            spark.readStream.format("ackflow")
            .option("url", self._url)
            .option("queue", self._pipeline.inbox)
            .option("group", GROUP)
            .option("mode", "manual")
            .option("payload", "string")
            .option("onCorrupt", "dead_letter")
            .option("leaseSeconds", str(LEASE))
            .option("maxRowsPerTrigger", str(self._messages))
        )
        if self._token is not None:
            reader = reader.option("token", self._token)
        writer = reader.load().writeStream.foreachBatch(self.batch)
        if available_now:
            writer = writer.trigger(availableNow=True)
        return writer.option("checkpointLocation", str(self._checkpoint)).start()

    def batch(self, frame: DataFrame, number: int) -> None:
        """Handle one batch of the stream."""
        cancelled = cancelled_clients(self._q, self._pipeline)
        received = [_Received(self._pipeline, row, cancelled) for row in _headers(frame).collect()]
        self._commit(frame, number, received)
        self.ends.receive([(m.held(), m.redelivered) for m in received if m.verdict == "hold"])

    def _commit(self, frame: DataFrame, number: int, received: list["_Received"]) -> None:
        """Publish the output of a batch, count it and settle its messages, all or nothing."""
        done = connector.commit_batch(
            number, self._url, output=self._output(frame, received), shape=packer(self._pipeline),
            verdicts=_verdicts(received), also=self._counts(received), token=self._token,
        )  # fmt: skip
        if done.repeated:
            # Spark was killed between this commit and its own: held messages have new leases.
            ends = [message for message in received if message.verdict == "hold"]
            connector.settle(_verdicts(ends), self._url, token=self._token)

    def _counts(self, received: list["_Received"]) -> Operations:
        """Count the handled batches in the router's state and for every shard."""
        operations = Operations(None)
        handled: dict[TableKey, int] = {}
        for message in received:
            if message.key is not None and not message.is_end:
                handled[message.key] = handled.get(message.key, 0) + 1
        for key, n in handled.items():
            operations.put(self.ends.handled_key(key), self.ends.batches_handled(key) + n)
            for shard in self._shards:
                forwarded = BatchesForwarded(key.client, key.table, n)
                operations.push(self._pipeline.shards, encode(forwarded), partition=shard)
        return operations

    def _output(self, frame: DataFrame, received: list["_Received"]) -> DataFrame | None:
        routed = {m.id: m for m in received if m.key is not None and m.verdict == "ack"}
        if not routed:
            return None
        messages = frame.where(F.col("id").isin(list(routed))).select("payload")
        if sum(message.size for message in routed.values()) >= REPARTITION_BYTES:
            # One task of the source reads thousands of messages with thousands of rows each.
            messages = messages.repartition(frame.sparkSession.sparkContext.defaultParallelism)
        return routed_rows(self._pipeline, messages, len(self._shards))


def _headers(frame: DataFrame) -> DataFrame:
    """Return the fields of the messages without their rows."""
    same = ["id", "lease", "sequence", "redelivered"]
    size = "length(payload) as size"
    return frame.selectExpr(*same, size, f"from_json(payload, '{HEADER}') as m").selectExpr(
        *same, "size", "m.kind", "m.client", "m.table", "m.worker", "m.workers", "m.batches",
        "not coalesce(startswith(m.rows, '['), false) as empty",
    )  # fmt: skip


class _Received:
    """A message of the inbox without its rows, and the verdict on it.

    `key` is set if the message counts as a batch or an end of this table.
    """

    def __init__(self, pipeline: Pipeline, row: Any, cancelled: set[str]) -> None:
        self.id, self.lease, self.sequence = row.id, row.lease, row.sequence
        self.size = row.size or 0
        self.redelivered = bool(row.redelivered)
        self.key = None
        self.is_end = row.kind == "eof"
        self.verdict, self.reason = "reject", _problem(pipeline, row)
        if self.reason is None and row.client in cancelled:
            self.verdict = "ack"
        elif self.reason is None:
            self.key = TableKey(row.table, row.client)
            self.verdict = "hold" if self.is_end else "ack"
            if self.is_end:
                self._eof = EndOfTable(row.client, row.table, row.worker, row.workers, row.batches)
        elif row.kind == "data" and row.client and pipeline.table(row.table or ""):
            # The worker counted this batch, so it counts as handled although it is rejected.
            self.key = TableKey(row.table, row.client)

    def held(self) -> HeldEof:
        return HeldEof(self._eof, self.id, self.lease, self.sequence)


def _verdicts(received: list[_Received]) -> pa.Table:
    rows = [(message.id, message.lease, message.verdict, message.reason) for message in received]
    columns = zip(*rows, strict=True) if rows else ([], [], [], [])
    return pa.Table.from_arrays([pa.array(c, pa.string()) for c in columns], schema=VERDICTS)


def _problem(pipeline: Pipeline, row: Any) -> str | None:
    if row.kind not in ("data", "eof") or not row.client:
        return "invalid message: neither a batch nor an end of file"
    if pipeline.table(row.table or "") is None:
        return f"unknown table: {row.table}"
    if row.kind == "data" and row.empty:
        return "truncated batch: it has no rows"
    if row.kind == "eof" and None in (row.worker, row.workers, row.batches):
        return "invalid end of file: worker, workers or batches is missing"
    if row.kind == "eof" and not 0 <= row.worker < row.workers:
        return f"invalid end of file: worker {row.worker} of {row.workers}"
    return None


def dead_letter_bad_rows(q: Session, pipeline: Pipeline) -> int:
    """Move all unreadable rows to the dead letters with their reason; return how many."""
    rows = 0
    while batch := q.pop(pipeline.bad, group=GROUP, batch=100, lease_seconds=LEASE):
        for message in batch:
            bad = msgspec.json.decode(message.raw, type=BadRows)
            amount = f"{len(bad.rows)} rows of" if bad.rows else "a file of"
            message.reject(f"{bad.reason}: {amount} {bad.table} from {bad.client}")
            rows += len(bad.rows)
    return rows


def warm_up(
    spark: SparkSession, pipeline: Pipeline, shards: int, stop: Callable[[float], bool]
) -> None:
    """Route a synthetic batch in a temporary queue, so that the JVM loads and compiles its code.

    `stop` waits for the given number of seconds and returns whether to end early.
    """
    with TemporaryDirectory(prefix="ackflow-", ignore_cleanup_errors=True) as folder:
        url = str(Path(folder, "queue.db"))
        with connect(url, consumer=WARM_UP) as q:
            router = Router(q, url, pipeline, shards, Path(folder, "checkpoint"))
            for table in pipeline.tables:
                for message in (_warm_up_batch(table), EndOfTable(WARM_UP, table.name, 0, 1, 1)):
                    q.push(pipeline.inbox, encode(message), partition=WARM_UP)
            query = router.start(spark)
            # A route that fails on the synthetic rows stops the query, which is warm by then.
            while query.isActive and q.group_stats(pipeline.inbox, GROUP).counts.lag:
                if stop(0.2):
                    break
            query.stop()
        sessions.close()


def _warm_up_batch(table: Table) -> Batch:
    cells = [WARM_UP_CELLS[table.kind(name)] for name in table.keep]
    return Batch(WARM_UP, table.name, 0, 1, [cells, cells])
