"""A small pipeline on a file, whose parts a test runs by hand, one step at a time."""

import logging
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

import ackflow
from ackflow import Item, Session, VirtualClock
from ackflow.pipeline import Pipeline, Query, Route, Table, example
from ackflow.pipeline.eof import EofForwarder, HeldEof
from ackflow.pipeline.state import BlockHeaders, EndOfTable, Handled, TableKey, encode, read_end
from tests.spark.conftest import no_spark_outside_its_group, spark

__all__ = ["no_spark_outside_its_group", "spark"]

PARTS = 2

SHOP = Pipeline(
    name="shop",
    tables=[
        Table("sales", ["day", "item", "amount"], kinds={"day": "time", "amount": "decimal"}),
        Table("items", ["item", "name"]),
    ],
    routes=[
        Route("sold", "sales", {"item": "item"}, sums={"amount": "amount"}),
        Route("dear", "sales", {"item": "item", "amount": "amount"}, "amount >= 75"),
        Route("names", "items", {"item": "item", "name": "name"}),
    ],
    queries=[
        Query("totals", """select name, round(sum(amount), 2) as amount from sold
                           join names using (item) group by name order by name"""),
        Query("dear", "select item, round(amount, 2) as amount from dear order by item, amount"),
    ],
).check()  # fmt: skip

generate: Callable[..., None] = runpy.run_path(str(example("coffee_shop_data")))["generate"]


def push_block(
    q: Session, table: str, text: str, *, columns: list[str] | None = None, client: str = "ann",
    worker: int = 0, file: str = "x.csv", pipeline: Pipeline = SHOP, **more: Any,
) -> None:  # fmt: skip
    """Push a block as a loader does."""
    found = pipeline.table(table)
    names = columns or (found.names if found else [])
    headers = BlockHeaders(client, table, worker, 1, file, 0, "", columns=_json(names))
    headers = structs.replace(headers, **more)
    q.push(pipeline.inbox, [Item(data=text.encode(), headers=headers.text())], partition=client)


def push_end(
    q: Session, table: str, blocks: int = 0, worker: int = 0, workers: int = 1,
    client: str = "ann", files: dict[str, int] | None = None, pipeline: Pipeline = SHOP,
) -> None:  # fmt: skip
    """Push an end of file as a loader does."""
    files = {"x.csv": blocks} if files is None else files
    end = EndOfTable(client, table, worker, workers, blocks, files)
    q.push(pipeline.inbox, [Item(data=encode(files), headers=end.text())], partition=client)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


class Bench:
    """The queues of a pipeline on one database; what a run loses, the next one gets."""

    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        self.folder, self.out = folder, folder / "out"
        self.url = str(folder / "queue.db")
        self.sessions: list[Session] = []
        self.q = self.session()
        for queue in (SHOP.inbox, SHOP.ends, SHOP.bad):
            self.q.configure(queue, keep_seconds=0)
        self.q.group(SHOP.inbox, "router", lease_seconds=10, max_deliver=None, retry_limit=None)

    def session(self, consumer: str | None = None) -> Session:
        opened = ackflow.connect(self.url, clock=self.clock, upkeep=False, consumer=consumer)
        self.sessions.append(opened)
        return self.sessions[-1]

    def ends(self) -> EofForwarder:
        """The ends of file of a router that has just started."""
        return EofForwarder(self.q, SHOP, PARTS)

    def send_end(self, table: str, worker: int, workers: int = 2, blocks: int = 0,
                 client: str = "ann") -> None:  # fmt: skip
        push_end(self.q, table, blocks, worker, workers, client)

    def receive(self, ends: EofForwarder) -> list[HeldEof]:
        """Hand what is in the inbox to a router; all of it must be ends of file."""
        found = []
        for message in self.q.pop(SHOP.inbox, group="router", batch=100, lease_seconds=10):
            assert message.token is not None
            eof = read_end(message.headers, bytes(message.raw))
            held = HeldEof(eof, message.id, message.token, message.sequence)
            found.append((held, message.redelivered))
        ends.receive(found)
        return [held for held, _ in found]

    def handled(self, table: str, n: int, client: str = "ann", worker: int = 0,
                file: str = "x.csv") -> None:  # fmt: skip
        """Note that so many blocks of a file are folded, as the router's commit does."""
        key = TableKey(table, client)
        found = Handled(n, 10 * n, n, {str(worker): {file: n}})
        t = self.q.transaction()
        t.put(self.ends().handled_key(key), msgspec.to_builtins(found))
        t.commit()

    def held(self) -> int:
        return self.q.group_stats(SHOP.inbox, "router").counts.leased

    def inside(self, queue: str) -> list[Any]:
        """What is in a queue and was not acked by the one group that reads it."""
        return [message.data for message in self.q.browse(queue, limit=1000).items]

    def later(self, seconds: float = 11) -> None:
        """Let every lease run out."""
        self.clock.advance(seconds)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path)
    yield found
    for session in found.sessions:
        session.close()


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "ackflow.pipeline")
    return caplog
