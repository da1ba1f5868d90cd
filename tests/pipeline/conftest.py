"""A small pipeline on a file, whose stages a test runs by hand, one step at a time."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ackflow
from ackflow import Session, VirtualClock
from ackflow.pipeline.aggregator import Aggregator
from ackflow.pipeline.declaration import Pipeline, Query, Route, Table
from ackflow.pipeline.eof import EofForwarder, HeldEof, TableKey
from ackflow.pipeline.finisher import Finisher
from ackflow.pipeline.messages import BatchesForwarded, EndForwarded, EndOfTable, Rows, encode
from tests.spark.conftest import no_spark_outside_its_group, spark

__all__ = ["no_spark_outside_its_group", "spark"]

SHARDS = ["00", "01"]

SHOP = Pipeline(
    name="shop",
    tables=[
        Table("sales", ["day", "item", "amount"], ["day", "item", "amount"],
              {"day": "time", "amount": "decimal"}),
        Table("items", ["item", "name"], ["item", "name"]),
    ],
    routes=[
        Route("sold", "sales", {"item": "item"}, "item", sums={"amount": "amount"}),
        Route("dear", "sales", {"item": "item", "amount": "amount"}, "item", "amount >= 75"),
        Route("names", "items", {"item": "item", "name": "name"}, "item"),
    ],
    queries=[
        Query("totals", """select name, money(dsum(amount)) as amount from sold
                           join names using (item) group by name order by name"""),
        Query("dear", "select item, money(amount) as amount from dear order by item"),
    ],
).check()  # fmt: skip


class Bench:
    """The stages of a pipeline on one database; what one of them loses, the next one gets."""

    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        self.folder, self.out = folder, folder / "out"
        self.url = str(folder / "queue.db")
        self.sessions: list[Session] = []
        self.q = self.session()
        for queue in (SHOP.inbox, SHOP.shards, SHOP.folded, SHOP.ends):
            self.q.configure(queue, keep_seconds=0)
        self.q.group(SHOP.inbox, "router", lease_seconds=10, max_deliver=None, retry_limit=None)

    def session(self, consumer: str | None = None) -> Session:
        opened = ackflow.connect(self.url, clock=self.clock, upkeep=False, consumer=consumer)
        self.sessions.append(opened)
        return self.sessions[-1]

    def ends(self) -> EofForwarder:
        """The ends of file of a router that has just started."""
        return EofForwarder(self.q, SHOP, SHARDS)

    def send_end(self, table: str, worker: int, workers: int = 2, batches: int = 0,
                 client: str = "ann") -> None:  # fmt: skip
        end = EndOfTable(client, table, worker, workers, batches)
        self.q.push(SHOP.inbox, encode(end), partition=client)

    def receive(self, ends: EofForwarder) -> list[HeldEof]:
        """Hand what is in the inbox to a router; all of it must be ends of file."""
        found = []
        for message in self.q.pop(SHOP.inbox, group="router", batch=100, lease_seconds=10):
            eof = msgspec.json.decode(message.raw, type=EndOfTable)
            assert message.token is not None
            held = HeldEof(eof, message.id, message.token, message.sequence)
            found.append((held, message.redelivered))
        ends.receive(found)
        return [held for held, _ in found]

    def handled(self, table: str, n: int, client: str = "ann") -> None:
        """Note that so many batches are forwarded, as the router's commit does."""
        key = self.ends().handled_key(TableKey(table, client))
        t = self.q.transaction()
        t.put(key, n)
        t.commit()

    def held(self) -> int:
        return self.q.group_stats(SHOP.inbox, "router").counts.leased

    def inside(self, queue: str) -> list[Any]:
        """What is in a queue and was not acked by the one group that reads it."""
        return [message.data for message in self.q.browse(queue, limit=1000).items]

    def forward(self, rows: list[Rows], ends: list[tuple[str, int]], client: str = "ann") -> None:
        """Put into the shards what a router would: rows, how many batches, and the ends."""
        for one in rows:
            self.q.push(SHOP.shards, encode(one), partition=SHARDS[0])
        for table, n in ends:
            for shard in SHARDS:
                if n:
                    self.q.push(
                        SHOP.shards, encode(BatchesForwarded(client, table, n)), partition=shard
                    )
                self.q.push(SHOP.shards, encode(EndForwarded(client, table, n)), partition=shard)

    def fold(self, aggregator: Aggregator | None = None) -> None:
        worker = aggregator or Aggregator(self.q, SHOP)
        while worker.run_once(wait=0):
            pass

    def finish(self, finisher: Finisher | None = None) -> list[str]:
        return (finisher or self.finisher()).run_once(wait=0)

    def finisher(self) -> Finisher:
        return Finisher(self.q, SHOP, self.out, len(SHARDS))

    def later(self, seconds: float = 11) -> None:
        """Let every lease run out."""
        self.clock.advance(seconds)


Sold = Callable[..., Rows]


def sold(item: str, amount: str, client: str = "ann") -> Rows:
    return Rows(client, "sold", [{"item": item, "amount": amount}])


def named(item: str, name: str, client: str = "ann") -> Rows:
    return Rows(client, "names", [{"item": item, "name": name}])


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path)
    yield found
    for session in found.sessions:
        session.close()
