"""Aggregators: fold the rows of a shard and pass them on, with the ack, in one transaction.

Any number of them may run: a shard is one partition of an ordered group, so it has one holder.
"""

import logging
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import msgspec

from .. import Message, Session
from ..errors import AckflowError, TransactionFailed
from .cancel import cancelled
from .decimals import add, text
from .declaration import Pipeline, Route
from .messages import Folded, Forwarded, Rows, Tick, raw

BATCH = 200
LEASE = 10.0
GROUP = "aggregators"

log = logging.getLogger("ackflow.pipeline")
_decode = msgspec.json.Decoder(Rows | Tick | Forwarded).decode


class Aggregator:
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
        """Fold what one shard has for us; answers with how many messages that were."""
        batch = self._q.pop(
            self._pipeline.shards, group=GROUP, batch=BATCH, wait=wait, lease_seconds=LEASE
        )
        if not batch:
            return 0
        try:
            self._fold(list(batch))
        except TransactionFailed as refused:
            log.warning("a shard was not folded, its rows come again: %s", refused.message)
        except Incomplete as error:
            log.error("%s", error.message)
            self._q.nack(batch, error.message, delay=0.5)
        return len(batch)

    def _fold(self, batch: list[Message]) -> None:
        """Fold a run of messages of one shard; everything it leads to is one transaction."""
        shard = batch[0].partition
        rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
        counts = _Counts(self._q, self._pipeline, shard)
        ends: list[Forwarded] = []
        gone = cancelled(self._q, self._pipeline)
        for message in batch:
            said = _decode(message.raw)
            if said.client in gone:
                continue
            if isinstance(said, Rows):
                rows.setdefault((said.client, said.route), []).extend(said.rows)
            elif isinstance(said, Tick):
                counts.add(said.client, said.table, said.batches)
            else:
                ends.append(said)
        t = self._q.transaction()
        t.ack(batch)
        for (client, route), some in rows.items():
            folded = fold(self._routes[route], some)
            counts.add(client, "", 1)
            t.push(self._pipeline.folded, raw(Rows(client, route, folded)), partition=client)
        for end in ends:
            counts.check(end)
            done = Folded(end.client, end.table, shard, counts.get(end.client, ""))
            t.push(self._pipeline.ends, raw(done), partition=end.client)
        for key, value in counts.changed.items():
            t.put(key, value)
        t.commit()


class _Counts:
    """How many batches of each table a shard was told of, and how many messages it pushed."""

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

    def check(self, end: Forwarded) -> None:
        found = self.get(end.client, end.table)
        if found != end.batches:
            raise Incomplete(
                f"shard {self._shard} was told of {found} batches of {end.table}, not {end.batches}"
            )

    def _key(self, client: str, table: str) -> str:
        return self._pipeline.value("shard", client, self._shard, table or "_pushed")


class Incomplete(AckflowError):
    """Fewer batches arrived than were sent."""

    code = "incomplete"
    status = 409


def fold(route: Route, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a route with equal values as one, their sums added exactly."""
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
