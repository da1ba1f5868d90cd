"""The query `route` on Spark: parses blocks, filters and folds their rows, holds end-of-file messages.

Headers alone say what a message is: the driver collects them, and the ends of file, but no rows.
Executors parse and fold; what a batch became (folders of partial results), the counts, the dead
letters and the acks are one commit. End-of-file messages are held unacknowledged until every block
before them is folded (`eof.py`).
"""

import json
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from .. import Item, Session
from .. import spark as connector
from ..errors import AckflowError, InvalidArgument
from ..session.transaction import Operations
from .declaration import Pipeline, Table
from .eof import EofForwarder, HeldEof
from .loader import DEDUP_SECONDS
from .partials import Folder, Partials
from .sql import Layout, cells, emitted, folded, literal, records, typed
from .state import (
    BLOCK,
    END,
    BadRows,
    BlockHeaders,
    EndOfTable,
    Handled,
    TableKey,
    cancelled_clients,
    encode,
    ended_tables,
    read_end,
    read_headers,
    read_state,
)

GROUP = "router"
LEASE = 10.0
MESSAGES = 1_000
BATCH_BYTES = 128 << 20
MAX_BAD_ROWS, MAX_BAD_TEXT = 5_000, 1 << 20  # rows and characters in one dead letter
VERDICTS = pa.schema([(name, pa.string()) for name in ("id", "lease", "verdict", "reason")])


class Router:
    """One run of the query. Its ledger of end-of-file messages is rebuilt from redeliveries."""

    def __init__(
        self, q: Session, url: str, pipeline: Pipeline, partials: Partials, layout: Layout,
        parts: int, checkpoint: Path | str, *, messages: int = MESSAGES,
        batch_bytes: int = BATCH_BYTES, token: str | None = None,
        checked: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._q, self._url, self._pipeline, self._token = q, url, pipeline, token
        self._partials, self._layout = partials, layout
        self._checkpoint = str(checkpoint)
        self._messages, self._batch_bytes, self._checked = messages, batch_bytes, checked
        self.ends = EofForwarder(q, pipeline, parts)
        for queue in (pipeline.inbox, pipeline.ends):
            q.configure(queue, keep_seconds=0)
        q.configure(pipeline.bad, keep_seconds=0, dedup_seconds=DEDUP_SECONDS)
        # Without limits: a router may be killed any number of times while it holds a message.
        q.group(pipeline.inbox, GROUP, lease_seconds=LEASE, max_deliver=None, retry_limit=None)

    def start(self, spark: SparkSession, *, available_now: bool = False) -> StreamingQuery:
        """Start the query; with `available_now` it ends after the messages that exist now."""
        reader = (
            spark.readStream.format("ackflow")
            .option("url", self._url)
            .option("queue", self._pipeline.inbox)
            .option("group", GROUP)
            .option("mode", "manual")
            .option("leaseSeconds", str(LEASE))
            .option("parallelism", str(spark.sparkContext.defaultParallelism))
            .option("maxRowsPerTrigger", str(self._messages))
            .option("maxBytesPerTrigger", str(self._batch_bytes))
        )
        if self._token is not None:
            reader = reader.option("token", self._token)
        writer = reader.load().writeStream.queryName("route").foreachBatch(self.batch)
        if available_now:
            writer = writer.trigger(availableNow=True)
        return writer.option("checkpointLocation", self._checkpoint).start()

    def batch(self, frame: DataFrame, number: int) -> None:
        """Handle one batch of the stream."""
        blocks = frame.select("id", "lease", "sequence", "redelivered", "headers", "payload")
        # The headers and the rows are read by different jobs; the source is read once. In memory
        # a batch would take several times its size while it is stored.
        blocks.persist(StorageLevel.DISK_ONLY)
        # No end of a table is forwarded while a batch may still have blocks of it.
        with self.ends.lock:
            try:
                known = _Known(self._q, self._pipeline)
                received = [_Received(row, known) for row in _headers(blocks).collect()]
                self._checked()
                self._commit(blocks, number, received)
            finally:
                blocks.unpersist()
            self.ends.receive([(m.held(), m.redelivered) for m in received if m.end is not None])
        for client in {m.block.client for m in received if m.block is not None}:
            self._partials.compact(client)

    def _commit(self, blocks: DataFrame, number: int, received: list["_Received"]) -> None:
        """Store the output of a batch, count it and settle its messages, all or nothing."""
        folders, rows = self._fold(blocks, [m for m in received if m.verdict == "ack"])
        operations = Operations(None)
        for table, handled in self._handled(received, rows).items():
            operations.put(self.ends.handled_key(table), msgspec.to_builtins(handled))
        for client, folder in folders.items():
            for key, value in self._partials.named(client, folder).items():
                operations.put(key, value)
        done = connector.commit_batch(
            number, self._url, verdicts=_verdicts(received), also=operations, token=self._token
        )
        if done.repeated:
            # Spark was killed between this commit and its own: held messages have new leases.
            self._partials.delete(list(folders.values()))
            ends = [message for message in received if message.end is not None]
            connector.settle(_verdicts(ends), self._url, token=self._token)

    def _fold(
        self, blocks: DataFrame, received: list["_Received"]
    ) -> tuple[dict[str, Folder], dict[TableKey, int]]:
        """Parse, route and fold blocks; return where the results are, and how many rows there were.

        Blocks of one table with the same columns are parsed in one pass.
        """
        alike: dict[tuple[str, str, str, bool], list[_Received]] = {}
        for message in received:
            if (block := message.block) is not None:
                kind = block.table, block.format, block.columns, block.plain
                alike.setdefault(kind, []).append(message)
        found: DataFrame | None = None
        observed: list[tuple[Observation, list[TableKey]]] = []
        for (name, format, columns, plain), messages in alike.items():
            table = self._pipeline.table(name)
            assert table is not None
            some = blocks.where(F.col("id").isin([message.id for message in messages]))
            keys = sorted({TableKey(name, m.block.client) for m in messages if m.block})
            observation = Observation()
            found_records = records(some, format, plain).observe(
                observation,
                *(F.expr(f"sum(if(_client = {literal(key.client)}, size(_lines), 0))").alias(f"n{i}")
                  for i, key in enumerate(keys)),
            )  # fmt: skip
            rows = cells(found_records, table, format, json.loads(columns), plain)
            observed.append((observation, keys))
            routed = emitted(typed(rows, table), table, self._layout)
            found = routed if found is None else found.union(routed)
        if found is None:
            return {}, {}
        folders = self._partials.write(folded(found, self._layout))
        return folders, {key: observation.get[f"n{i}"]
                         for observation, keys in observed
                         for i, key in enumerate(keys)}  # fmt: skip

    def _handled(
        self, received: list["_Received"], rows: dict[TableKey, int]
    ) -> dict[TableKey, Handled]:
        """Return what is folded of the tables of a batch, including this batch."""
        found: dict[TableKey, Handled] = {}
        for message in received:
            if message.counts is None:
                continue
            block = message.counts
            key = TableKey(block.table, block.client)
            if key not in found:
                found[key] = self.ends.handled(key)
                found[key].rows += rows.get(key, 0)
            found[key].add(block.worker, block.file, message.size)
        return found


def _headers(blocks: DataFrame) -> DataFrame:
    """Return the headers and the size of messages, and the payloads of ends of file."""
    return blocks.selectExpr(
        "id", "lease", "sequence", "redelivered", "headers", "octet_length(payload) as size",
        f"if(headers['kind'] = '{END}', payload, null) as counts",
    )  # fmt: skip


class _Known:
    """What the driver knows when a batch begins."""

    def __init__(self, q: Session, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.cancelled = cancelled_clients(q, pipeline)
        self.done = set(read_state(q, pipeline, "done"))
        self.ended = ended_tables(q, pipeline)


class _Received:
    """A message of the inbox without its rows, and the verdict on it.

    `block` or `end`: what it is, if it is used. `counts`: the block that counts as folded.
    """

    def __init__(self, row: Any, known: _Known) -> None:
        self.id, self.lease, self.sequence = row.id, row.lease, row.sequence
        self.size, self.redelivered = row.size or 0, bool(row.redelivered)
        self.block: BlockHeaders | None = None
        self.counts: BlockHeaders | None = None
        self.end: EndOfTable | None = None
        self.verdict, self.reason = "reject", None
        try:
            key = self._read(known.pipeline, dict(row.headers or {}), row.counts)
        except (msgspec.MsgspecError, AckflowError) as error:
            self.block = self.end = None
            self.reason = str(error)
            return
        late = key.client in known.done or key in known.ended
        if late and self.end is None:
            self.reason = f"late: the table {key.table} of {key.client} is complete"
        else:
            # A second end of file of a table that is complete is acknowledged, and adds nothing.
            self.verdict = "hold" if self.end is not None and not late else "ack"
        if key.client in known.cancelled:
            self.verdict, self.reason = "ack", None
        if late or key.client in known.cancelled:
            self.block = self.counts = self.end = None

    def _read(self, pipeline: Pipeline, headers: dict[str, str], payload: Any) -> TableKey:
        """Read the headers. Raises if the message cannot be used."""
        kind, name = headers.get("kind"), headers.get("table", "")
        if kind not in (BLOCK, END):
            raise InvalidArgument("invalid message: neither a block nor an end-of-file message")
        table = pipeline.table(name)
        if table is None:
            raise InvalidArgument(f"unknown table: {name}")
        client = headers.get("client", "")
        if not client or "/" in client:
            raise InvalidArgument(f"invalid client: {client!r}")
        if kind == BLOCK:
            self.counts = read_headers(headers)
            _check_block(table, self.counts, self.size)
            self.block = self.counts
        else:
            end = read_end(headers, payload)
            if not 0 <= end.worker < end.workers:
                raise InvalidArgument(
                    f"invalid end-of-file message: worker {end.worker} of {end.workers}"
                )
            self.end = end
        return TableKey(name, client)

    def held(self) -> HeldEof:
        assert self.end is not None
        return HeldEof(self.end, self.id, self.lease, self.sequence)


def _check_block(table: Table, block: BlockHeaders, size: int) -> None:
    if size == 0:
        raise InvalidArgument("truncated block: it has no rows")
    if block.format not in ("csv", "jsonl"):
        raise InvalidArgument(f"unknown format of a block: {block.format!r}")
    if block.format == "csv":
        columns = msgspec.json.decode(block.columns, type=list[str])
        for name in table.kept:
            if name not in columns:
                raise InvalidArgument(f"a block of {block.file} has no column {name!r}")


def _verdicts(received: list[_Received]) -> pa.Table:
    rows = [(message.id, message.lease, message.verdict, message.reason) for message in received]
    columns = zip(*rows, strict=True) if rows else ([], [], [], [])
    return pa.Table.from_arrays([pa.array(c, pa.string()) for c in columns], schema=VERDICTS)


def send_bad_rows(q: Session, pipeline: Pipeline, partials: Partials) -> None:
    """Send the bad rows of batches as messages, each with rows of one table and reason.

    This is no part of a batch, which need not wait for it. An application that was killed sends the
    same messages again, which the queue discards.
    """
    for client, folder in partials.waiting():
        same = groupby(partials.bad_rows(folder), key=lambda row: (row[0], row[1]))
        for (table, reason), rows in same:
            texts = (text for _, _, text, n in rows for _ in range(n))
            name = blake2b(f"{table}/{reason}".encode(), digest_size=12).hexdigest()
            for number, part in enumerate(_letters(texts)):
                data = encode(BadRows(client, table, reason, part))
                item = Item(data=data, transaction_id=f"{folder.name}/{name}-{number}")
                q.push(pipeline.bad, [item], partition=client)
        partials.sent(client, folder)


def _letters(texts: Iterable[str]) -> Iterator[list[str]]:
    part: list[str] = []
    size = 0
    for text in texts:
        part.append(text)
        size += len(text)
        if len(part) == MAX_BAD_ROWS or size > MAX_BAD_TEXT:
            yield part
            part, size = [], 0
    if part:
        yield part


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
