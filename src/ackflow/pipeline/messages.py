"""The messages between the stages of a pipeline."""

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
    """One worker has sent all its batches of a table; there are `workers` of them."""

    client: str
    table: str
    worker: int
    workers: int
    batches: int


class Rows(Struct, tag="rows", tag_field="kind"):
    """Rows of a route for one shard, or folded from several of those."""

    client: str
    route: str
    rows: list[dict[str, Any]]


class Tick(Struct, tag="tick", tag_field="kind"):
    """That many batches of a table are forwarded; every shard is told."""

    client: str
    table: str
    batches: int


class Forwarded(Struct, tag="end", tag_field="kind"):
    """All batches of a table are forwarded: as many as this."""

    client: str
    table: str
    batches: int


class Folded(Struct, tag="done", tag_field="kind"):
    """A shard has folded all of a table; it pushed so many messages for the client so far."""

    client: str
    table: str
    shard: str
    pushed: int


class Bad(Struct, tag="bad", tag_field="kind"):
    """Rows that cannot be read, or only in part; without rows: a whole file."""

    client: str
    table: str
    reason: str
    rows: list[list[str | None]]


def raw(message: Struct) -> msgspec.Raw:
    """A message as it is pushed."""
    return msgspec.Raw(msgspec.json.encode(message))
