"""The aggregator: folds the rows of a shard and forwards them in one transaction with the acks.

Any number of aggregators may run. A shard is a partition of an ordered group, so only one
aggregator holds it at a time.
"""

import logging
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import msgspec

from .. import Message, Session
from ..errors import AckflowError, TransactionFailed
from .cancel import cancelled_clients
from .decimals import add, text
from .declaration import Pipeline, Route
from .messages import BatchesForwarded, EndForwarded, Rows, ShardFolded, encode

BATCH = 200
LEASE = 10.0
GROUP = "aggregators"

log = logging.getLogger("ackflow.pipeline")
_decode = msgspec.json.Decoder(Rows | BatchesForwarded | EndForwarded).decode


class Aggregator:
    """Consumes the shards of a pipeline."""

    def __init__(self, q: Session, pipeline: Pipeline) -> None:
        self._q = q
        self._pipeline = pipeline
        self._routes = {route.name: route for route in pipeline.routes}
        q.configure(pipeline.shards, keep_seconds=0)
        q.configure(pipeline.folded, keep_seconds=0)
        q.configure(pipeline.ends, keep_seconds=0)
        q.group(
            pipeline.shards, GROUP, ordering="ordered", lease_seconds=LEASE, max_deliver=None,
            retry_limit=5,
        )  # fmt: skip

    def run_once(self, wait: float = 1.0) -> int:
        """Fold the next messages of one shard; return how many there were."""
        batch = self._q.pop(
            self._pipeline.shards, group=GROUP, batch=BATCH, wait=wait, lease_seconds=LEASE
        )
        if not batch:
            return 0
        try:
            self._fold(list(batch))
        except TransactionFailed as refused:
            log.warning("shard not folded, its messages are redelivered: %s", refused.message)
        except ShardIncomplete as error:
            log.error("%s", error.message)
            self._q.nack(batch, error.message, delay=0.5)
        return len(batch)

    def _fold(self, batch: list[Message]) -> None:
        """Fold messages of one shard; the acks, sums, counts and ends are one transaction."""
        shard = batch[0].partition
        rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
        counts = _ShardCounts(self._q, self._pipeline, shard)
        ends: list[EndForwarded] = []
        cancelled = cancelled_clients(self._q, self._pipeline)
        for message in batch:
            decoded = _decode(message.raw)
            if decoded.client in cancelled:
                continue
            if isinstance(decoded, Rows):
                rows.setdefault((decoded.client, decoded.route), []).extend(decoded.rows)
            elif isinstance(decoded, BatchesForwarded):
                counts.add(decoded.client, decoded.table, decoded.batches)
            else:
                ends.append(decoded)
        t = self._q.transaction()
        t.ack(batch)
        for (client, route), unfolded in rows.items():
            folded = Rows(client, route, fold(self._routes[route], unfolded))
            counts.add(client, "", 1)
            t.push(self._pipeline.folded, encode(folded), partition=client)
        for end in ends:
            counts.check_complete(end)
            done = ShardFolded(end.client, end.table, shard, counts.get(end.client, ""))
            t.push(self._pipeline.ends, encode(done), partition=end.client)
        for key, value in counts.changed.items():
            t.put(key, value)
        t.commit()


class _ShardCounts:
    """Batches of each table that reached a shard, and messages that the shard pushed."""

    def __init__(self, q: Session, pipeline: Pipeline, shard: str) -> None:
        self._q, self._pipeline, self._shard = q, pipeline, shard
        self.changed: dict[str, int] = {}

    def add(self, client: str, table: str, n: int) -> None:
        self.changed[self._key(client, table)] = self.get(client, table) + n

    def get(self, client: str, table: str) -> int:
        key = self._key(client, table)
        if key in self.changed:
            return self.changed[key]
        found = self._q.value(key)
        return 0 if found is None else int(found.data)

    def check_complete(self, end: EndForwarded) -> None:
        received = self.get(end.client, end.table)
        if received != end.batches:
            raise ShardIncomplete(
                f"shard {self._shard} received {received} of {end.batches} batches of {end.table}"
            )

    def _key(self, client: str, table: str) -> str:
        return self._pipeline.state_key("shard", client, self._shard, table or "_pushed")


class ShardIncomplete(AckflowError):
    """A shard received fewer batches than the router forwarded."""

    code = "incomplete"
    status = 409


def fold(route: Route, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge rows with equal selected values, adding their sums exactly."""
    if not route.sums:
        return list(rows)
    names = list(route.select)
    sums: dict[tuple[Any, ...], list[Decimal]] = {}
    for row in rows:
        total = sums.setdefault(tuple(row.get(name) for name in names), [])
        values = [Decimal(row[name]) for name in route.sums]
        total[:] = [add(a, b) for a, b in zip(total, values, strict=True)] if total else values
    return [
        {**dict(zip(names, key, strict=True)),
         **{name: text(value) for name, value in zip(route.sums, total, strict=True)}}
        for key, total in sums.items()
    ]  # fmt: skip
