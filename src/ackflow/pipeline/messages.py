"""The messages between the stages of a pipeline.

worker ──Batch, EndOfTable──► router ──Rows, BatchesForwarded, EndForwarded──► aggregator
aggregator ──Rows, ShardFolded──► finisher           worker, router ──BadRows──► dead letters
"""

from typing import Any

import msgspec
from msgspec import Struct


class Batch(Struct, tag="data", tag_field="kind"):
    """Rows of one table of one client, numbered from 1 over all its files."""

    client: str
    table: str
    worker: int
    batch: int
    rows: list[list[str]]


class EndOfTable(Struct, tag="eof", tag_field="kind"):
    """One of `workers` workers has sent all its batches of a table."""

    client: str
    table: str
    worker: int
    workers: int
    batches: int


class Rows(Struct, tag="rows", tag_field="kind"):
    """Rows of a route for one shard, or an aggregator's sums of such rows."""

    client: str
    route: str
    rows: list[dict[str, Any]]


class BatchesForwarded(Struct, tag="tick", tag_field="kind"):
    """The router has forwarded this many more batches of a table; sent to every shard."""

    client: str
    table: str
    batches: int


class EndForwarded(Struct, tag="end", tag_field="kind"):
    """The router has forwarded all batches of a table; `batches` is their number."""

    client: str
    table: str
    batches: int


class ShardFolded(Struct, tag="done", tag_field="kind"):
    """A shard has folded a whole table; `pushed` messages for the client so far."""

    client: str
    table: str
    shard: str
    pushed: int


class BadRows(Struct, tag="bad", tag_field="kind"):
    """Rows that cannot be read, or only in part; without rows, a whole file."""

    client: str
    table: str
    reason: str
    rows: list[list[str | None]]


def encode(message: Struct) -> msgspec.Raw:
    """Encode a message as the payload of a push."""
    return msgspec.Raw(msgspec.json.encode(message))
