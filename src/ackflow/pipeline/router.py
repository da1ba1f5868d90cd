"""The router on Spark: filters, folds and shards batches; forwards the ends of tables when due.

What a batch of messages becomes, the counts of what was handled, and the acks of the messages are
one commit. Ends of file are held, unacknowledged, until everything before them is forwarded.
"""

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from .. import Session
from .. import spark as connector
from ..session.transaction import Operations
from . import cancel, expressions
from .declaration import Pipeline
from .eof import Ends
from .ledger import Held, Key
from .messages import Bad, EndOfTable, Tick, raw
from .routing import chosen, packer

GROUP = "router"
LEASE = 10.0
MESSAGES = 400
SPREAD = 4 * 1024 * 1024
HEAD = "kind string, client string, table string, worker int, workers int, batches int, rows string"
VERDICTS = pa.schema([(name, pa.string()) for name in ("id", "lease", "verdict", "reason")])


class Router:
    """One run of the router; its ledger of ends of file is rebuilt from what comes again."""

    def __init__(
        self, q: Session, url: str, pipeline: Pipeline, shards: int, checkpoint: Path,
        messages: int = MESSAGES, token: str | None = None,
    ) -> None:  # fmt: skip
        self._q, self._url, self._pipeline, self._token = q, url, pipeline, token
        self._shards = [f"{number:02d}" for number in range(shards)]
        self._checkpoint, self._messages = checkpoint, messages
        self.ends = Ends(q, pipeline, self._shards)
        for queue in (pipeline.inbox, pipeline.shards, pipeline.bad):
            q.configure(queue, keep_seconds=0)
        # What a killed router held comes again however often it is killed.
        q.group(pipeline.inbox, GROUP, lease_seconds=LEASE, max_deliver=None, retry_limit=None)

    def start(self, spark: SparkSession, *, to_the_end: bool = False) -> StreamingQuery:
        """Start the query; `to_the_end`: it ends when everything that is there now is handled."""
        expressions.check(spark, self._pipeline)
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
        if to_the_end:
            writer = writer.trigger(availableNow=True)
        return writer.option("checkpointLocation", str(self._checkpoint)).start()

    def batch(self, frame: DataFrame, number: int) -> None:
        """Handle one batch of the stream."""
        gone = cancel.cancelled(self._q, self._pipeline)
        said = [_Said(self._pipeline, row, gone) for row in _heads(frame).collect()]
        self._commit(frame, number, said)
        ends = [(one.held(), one.redelivered) for one in said if one.verdict == "hold"]
        self.ends.handle(ends)

    def _commit(self, frame: DataFrame, number: int, said: list["_Said"]) -> None:
        """Publish what the batch becomes, count it and settle it, all or nothing."""
        done = connector.commit_batch(
            number, self._url, output=self._output(frame, said), shape=packer(self._pipeline),
            verdicts=_verdicts(said), also=self._counted(said), token=self._token,
        )  # fmt: skip
        if done.repeated:
            # It was committed, but Spark did not get to know: what is to be held came by a new lease.
            ends = [one for one in said if one.verdict == "hold"]
            connector.settle(_verdicts(ends), self._url, token=self._token)

    def _counted(self, said: list["_Said"]) -> Operations:
        """Count what is handled, for ourselves and for every shard."""
        also = Operations(None)
        handled: dict[Key, int] = {}
        for one in said:
            if one.key is not None and not one.ends:
                handled[one.key] = handled.get(one.key, 0) + 1
        for key, n in handled.items():
            also.put(self.ends.handled(key), self.ends.count(key) + n)
            for shard in self._shards:
                tick = Tick(key.client, key.table, n)
                also.push(self._pipeline.shards, raw(tick), partition=shard)
        return also

    def _output(self, frame: DataFrame, said: list["_Said"]) -> DataFrame | None:
        wanted = {one.id: one for one in said if one.key is not None and one.verdict == "ack"}
        if not wanted:
            return None
        messages = frame.where(F.col("id").isin(list(wanted))).select("payload")
        if sum(one.size for one in wanted.values()) >= SPREAD:
            # A task of the source reads thousands of messages, and each has thousands of rows.
            messages = messages.repartition(frame.sparkSession.sparkContext.defaultParallelism)
        return chosen(self._pipeline, messages, len(self._shards))


def _heads(frame: DataFrame) -> DataFrame:
    """What the messages say but for their rows."""
    same = ["id", "lease", "sequence", "redelivered"]
    size = "length(payload) as size"
    return frame.selectExpr(*same, size, f"from_json(payload, '{HEAD}') as m").selectExpr(
        *same, "size", "m.kind", "m.client", "m.table", "m.worker", "m.workers", "m.batches",
        "not coalesce(startswith(m.rows, '['), false) as empty",
    )  # fmt: skip


class _Said:
    """What one message says, without its rows, and what becomes of it."""

    def __init__(self, pipeline: Pipeline, row: Any, gone: set[str]) -> None:
        self.id, self.lease, self.number = row.id, row.lease, row.sequence
        self.size = row.size or 0
        self.redelivered = bool(row.redelivered)
        self.key = None
        self.ends = row.kind == "eof"
        self.verdict, self.reason = "reject", _problem(pipeline, row)
        if self.reason is None and row.client in gone:
            self.verdict = "ack"
        elif self.reason is None:
            self.key = Key(row.table, row.client)
            self.verdict = "hold" if self.ends else "ack"
            if self.ends:
                self._eof = EndOfTable(row.client, row.table, row.worker, row.workers, row.batches)
        elif row.kind == "data" and row.client and pipeline.table(row.table or ""):
            self.key = Key(row.table, row.client)  # it was sent, so it counts as handled

    def held(self) -> Held:
        return Held(self._eof, self.id, self.lease, self.number)


def _verdicts(said: list[_Said]) -> pa.Table:
    rows = [(one.id, one.lease, one.verdict, one.reason) for one in said]
    columns = zip(*rows, strict=True) if rows else ([], [], [], [])
    return pa.Table.from_arrays([pa.array(c, pa.string()) for c in columns], schema=VERDICTS)


def _problem(pipeline: Pipeline, row: Any) -> str | None:
    if row.kind not in ("data", "eof") or not row.client:
        return "not a batch: the message cannot be read"
    if pipeline.table(row.table or "") is None:
        return f"unknown table: {row.table}"
    if row.kind == "data" and row.empty:
        return "truncated batch: it has no rows"
    if row.kind == "eof" and None in (row.worker, row.workers, row.batches):
        return "not an end of file: it does not say of which worker"
    if row.kind == "eof" and not 0 <= row.worker < row.workers:
        return f"not an end of file: there is no worker {row.worker} of {row.workers}"
    return None


def bury(q: Session, pipeline: Pipeline) -> int:
    """Put all that could not be read among the dead letters, each with its reason."""
    told = 0
    while some := q.pop(pipeline.bad, group=GROUP, batch=100, lease_seconds=LEASE):
        for message in some:
            bad = msgspec.json.decode(message.raw, type=Bad)
            message.reject(f"{bad.reason}: {_amount(bad)} {bad.table} from {bad.client}")
            told += len(bad.rows)
    return told


def _amount(bad: Bad) -> str:
    """Of a whole file nobody knows how many rows it has."""
    return f"{len(bad.rows)} rows of" if bad.rows else "a file of"
