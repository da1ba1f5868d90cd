"""Batch reads of a queue as tables: messages with their state, dead letters, groups."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from .. import ids
from ..model import DeadLetter, GroupStats, StoredMessage
from . import sessions
from .columns import KEY
from .options import TableOptions

PAGE = 5_000

SCHEMAS: dict[str, str] = {
    "messages": (
        "id STRING, queue STRING, partition STRING, priority INT, sequence BIGINT, "
        "payload BINARY, headers MAP<STRING, STRING>, transaction_id STRING, "
        "created_at TIMESTAMP, due_at TIMESTAMP, state STRING"
    ),
    "dead_letters": (
        "id BIGINT, message_id STRING, queue STRING, `group` STRING, partition STRING, "
        "priority INT, kind STRING, reason STRING, error STRING, deliveries INT, failures INT, "
        "payload BINARY, headers MAP<STRING, STRING>, transaction_id STRING, "
        "created_at TIMESTAMP, died_at TIMESTAMP, consumer STRING"
    ),
    "groups": (
        "queue STRING, name STRING, created_at TIMESTAMP, dialect STRING, paused BOOLEAN, "
        "ready BIGINT, leased BIGINT, waiting BIGINT, dead BIGINT, done BIGINT, skipped BIGINT, "
        "purged BIGINT, expired BIGINT, dead_letters BIGINT, oldest_seconds DOUBLE"
    ),
}


class TablePartition(InputPartition):
    """The partitions of the queue that one task reads; none for the table of groups."""

    def __init__(self, names: list[str]) -> None:
        self.names = names


class TableReader(DataSourceReader):
    """Reads without leasing. Each page is a snapshot; the queue may change between pages."""

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        if self._options.table == "groups":
            return [TablePartition([])]
        session = sessions.existing_session(self._options)
        names = [stats.name for stats in session.partitions(self._options.queue)]
        tasks = self._options.parallelism or 8
        shares = [names[i::tasks] for i in range(min(tasks, len(names)))]
        return [TablePartition(share) for share in shares] or [TablePartition([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TablePartition)
        schema = to_arrow_schema(self._schema, timezone="UTC")
        for rows in self._rows(partition):
            if self._options.schema == "kafka":
                rows = [_record(row) for row in rows]
            columns = [
                pa.array([row[name] for row in rows], schema.field(name).type)
                for name in schema.names
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def _rows(self, share: TablePartition) -> Iterator[list[dict[str, Any]]]:
        session, queue = sessions.existing_session(self._options), self._options.queue
        if self._options.table == "groups":
            stats = session.queue_stats(queue)
            yield [_group(group) for group in stats.groups]
            return
        for name in share.names:
            after: str | None = None
            while True:
                if self._options.table == "messages":
                    page = session.browse(
                        queue, partition=name, group=self._options.group, limit=PAGE, after=after
                    )
                    yield [_message(message) for message in page.items]
                    after = page.next
                else:
                    letters = session.dead_letters(
                        queue, partition=name, group=self._options.group, limit=PAGE, after=after
                    )
                    yield [_letter(letter) for letter in letters.items]
                    after = letters.next
                if after is None:
                    break


def _message(m: StoredMessage) -> dict[str, Any]:
    return {
        "id": m.id, "queue": m.queue, "partition": m.partition, "priority": m.priority,
        "sequence": m.sequence, "payload": m.raw, "headers": list(m.headers.items()),
        "transaction_id": m.transaction_id, "created_at": m.created_at, "due_at": m.due_at,
        "state": m.state,
    }  # fmt: skip


def _record(row: dict[str, Any]) -> dict[str, Any]:
    """Return a message in Kafka's columns."""
    headers = dict(row["headers"])
    key = headers.pop(KEY, None)
    return {
        "key": None if key is None else key.encode(), "value": row["payload"],
        "topic": row["queue"], "partition": ids.parse_message_id(row["id"]).lane,
        "offset": row["sequence"], "timestamp": row["created_at"], "timestampType": 0,
        "headers": [{"key": k, "value": v.encode()} for k, v in headers.items()] or None,
    }  # fmt: skip


def _letter(d: DeadLetter) -> dict[str, Any]:
    return {
        "id": d.id, "message_id": d.message_id, "queue": d.queue, "group": d.group,
        "partition": d.partition, "priority": d.priority, "kind": d.kind, "reason": d.reason,
        "error": d.error, "deliveries": d.deliveries, "failures": d.failures, "payload": d.raw,
        "headers": list(d.headers.items()), "transaction_id": d.transaction_id,
        "created_at": d.created_at, "died_at": d.died_at, "consumer": d.consumer,
    }  # fmt: skip


def _group(g: GroupStats) -> dict[str, Any]:
    c = g.counts
    return {
        "queue": g.queue, "name": g.name, "created_at": g.created_at, "dialect": g.dialect,
        "paused": g.paused, "ready": c.ready, "leased": c.leased, "waiting": c.waiting,
        "dead": c.dead, "done": c.done, "skipped": c.skipped, "purged": c.purged,
        "expired": c.expired, "dead_letters": g.dead_letters, "oldest_seconds": g.oldest_seconds,
    }  # fmt: skip
