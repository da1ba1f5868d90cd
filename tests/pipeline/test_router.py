"""The router on Spark, batch by batch: what it forwards, holds, counts and buries."""

import shutil
from collections.abc import Iterator
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec import structs
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import ackflow
from ackflow.errors import InvalidArgument
from ackflow.pipeline import router as routers
from ackflow.pipeline.cancel import cancel
from ackflow.pipeline.declaration import Pipeline, Route
from ackflow.pipeline.messages import Batch, EndOfTable, encode
from ackflow.pipeline.router import Router, dead_letter_bad_rows

from .conftest import SHARDS, SHOP


class Lab:
    """A router that is started, works off what is there, and ends; as often as you like."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.url = str(folder / "queue.db")
        self.q = ackflow.connect(self.url)
        self.number = 0

    def run(self, messages: int = 400, pipeline: Pipeline = SHOP) -> Router:
        checkpoint = self.folder / "checkpoint"
        router = Router(self.q, self.url, pipeline, len(SHARDS), checkpoint, messages)
        router.start(self.spark, available_now=True).awaitTermination()
        return router

    def sales(self, *rows: list[str], client: str = "ann") -> None:
        self.number += 1
        batch = Batch(client, "sales", 0, self.number, list(rows))
        self.q.push(SHOP.inbox, encode(batch), partition=client)

    def end(self, table: str = "sales", batches: int = 0, worker: int = 0, workers: int = 1,
            client: str = "ann") -> None:  # fmt: skip
        end = EndOfTable(client, table, worker, workers, batches)
        self.q.push(SHOP.inbox, encode(end), partition=client)

    def forwarded(self, kind: str) -> list[dict[str, Any]]:
        found = [message.data for message in self.q.browse(SHOP.shards, limit=1000).items]
        return [data for data in found if data["kind"] == kind]

    def rows(self, route: str) -> list[dict[str, Any]]:
        told = [data["rows"] for data in self.forwarded("rows") if data["route"] == route]
        return sorted((row for rows in told for row in rows), key=str)

    def counts(self) -> ackflow.model.Counts:
        return self.q.group_stats(SHOP.inbox, "router").counts

    def reasons(self, queue: str = SHOP.inbox) -> list[str]:
        return sorted(letter.reason or "" for letter in self.q.dead_letters(queue).items)

    def forget_last_commit(self) -> None:
        """As if Spark had been killed between the commit of a batch and its own commit log."""
        last = max((self.folder / "checkpoint" / "commits").glob("[0-9]*"))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Iterator[Lab]:
    found = Lab(spark, tmp_path)
    yield found
    for query in spark.streams.active:
        query.stop()
    found.q.close()
    shutil.rmtree(tmp_path, ignore_errors=True)


DAY = "2024-01-01 10:00:00"


def test_rows_are_filtered_folded_and_sharded(lab: Lab) -> None:
    lab.sales([DAY, "a", "80"], [DAY, "a", "0.05"], [DAY, "b", "75.00"])
    lab.end(batches=1)
    lab.run()
    amounts = {row["item"]: row["amount"] for row in lab.rows("sold")}
    assert amounts == {"a": "80.050000000000000000", "b": "75.000000000000000000"}
    assert [row["item"] for row in lab.rows("dear")] == ["a", "b"]
    assert [(d["batches"]) for d in lab.forwarded("end")] == [1, 1]
    assert lab.counts().lag == 0


def test_what_cannot_be_read_is_told_and_the_rest_goes_on(lab: Lab) -> None:
    lab.sales([DAY, "a", "1"], ["yesterday", "a", "2"], [DAY, "a", "much"], [DAY, "a", ""], ["x"])
    lab.q.push(SHOP.inbox, {"kind": "data", "client": "ann", "table": "nothing", "rows": []})
    lab.q.push(SHOP.inbox, {"kind": "data", "client": "ann", "table": "sales", "batch": 7})
    lab.q.push(SHOP.inbox, {"kind": "data", "client": "ann", "table": "sales", "rows": [1, 2]})
    lab.q.push(SHOP.inbox, {"kind": "eof", "client": "ann", "table": "sales"})
    lab.q.push(SHOP.inbox, "what?")
    lab.run()
    assert [row["amount"] for row in lab.rows("sold")] == ["1.000000000000000000"]
    assert lab.reasons() == [
        "invalid end of file: worker, workers or batches is missing",
        "invalid message: neither a batch nor an end of file",
        "truncated batch: it has no rows",
        "unknown table: nothing",
    ]
    assert dead_letter_bad_rows(lab.q, SHOP) == 4
    assert lab.reasons(SHOP.bad) == [
        "truncated batch: its rows cannot be read: 1 rows of sales from ann",
        "truncated row: wrong number of cells: 1 rows of sales from ann",
        "unreadable amount: 1 rows of sales from ann",
        "unreadable day: 1 rows of sales from ann",
    ]
    assert lab.counts().lag == 0


def test_amounts_are_exact_or_unreadable_but_never_rounded(lab: Lab) -> None:
    for item, amounts in {
        "below": ["74.9999999"], "small": ["0.0049999", "1e-18"], "short": ["7499999999.99e-8"],
        "large": ["1000000000000", "0.000000000000000001"], "zeros": ["75.00000000000000000000"],
        "long": ["75.0000000000000000001", "1e-19"], "huge": ["10000000000000000", "1e400"],
        "full": ["9999999999999999.999999999999999999"] * 20_000,
    }.items():  # fmt: skip
        lab.sales(*([DAY, item, amount] for amount in amounts))
    lab.run()
    assert [row["item"] for row in lab.rows("dear")] == ["full"] * 20_000 + ["large", "zeros"]
    assert {row["item"]: Decimal(row["amount"]).normalize(Context(99)) for row in lab.rows("sold")} == {
        "below": Decimal("74.9999999"), "small": Decimal("0.004999900000000001"),
        "short": Decimal("74.9999999999"), "large": Decimal("1000000000000.000000000000000001"),
        "zeros": 75, "long": 0, "huge": 0,
        "full": Decimal("199999999999999999999.99999999999998"),
    }  # fmt: skip
    dead_letter_bad_rows(lab.q, SHOP)
    assert lab.reasons(SHOP.bad) == ["unreadable amount: 4 rows of sales from ann"]


def test_a_computed_amount_that_is_too_large_is_told_and_stops_nobody(lab: Lab) -> None:
    sold = Route("sold", "sales", {"item": "item"}, "item", sums={"amount": "amount * amount"})
    squares = structs.replace(SHOP, routes=[sold], queries=[])
    lab.sales([DAY, "a", "9999999999999999"], [DAY, "a", "3"])
    lab.run(pipeline=squares)
    assert [Decimal(row["amount"]) for row in lab.rows("sold")] == [9]
    dead_letter_bad_rows(lab.q, SHOP)
    assert lab.reasons(SHOP.bad) == [
        "the sum amount of route sold does not fit: 1 rows of sales from ann"
    ]


def test_gap_03_counts_of_what_was_handled_outlive_the_router(lab: Lab) -> None:
    lab.sales([DAY, "a", "1"])
    lab.end(batches=2)
    lab.run()
    assert lab.forwarded("end") == []
    lab.run()  # a new router; the end of file comes again, flagged
    assert lab.forwarded("end") == []
    lab.sales([DAY, "a", "2"])
    lab.run()
    assert [end["batches"] for end in lab.forwarded("end")] == [2, 2]
    assert lab.counts().lag == 0


@pytest.mark.inner
def test_gaps_05_and_07_a_batch_that_fails_reaches_no_shard_and_is_not_acked(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.sales([DAY, "a", "80"], [DAY, "b", "90"])
    with monkeypatch.context() as failing:
        failing.setattr(routers, "packer", lambda _: fail_after_some)
        with pytest.raises(StreamingQueryException):
            lab.run()
    assert lab.counts().done == 0
    assert lab.forwarded("rows") == []
    lab.run()
    assert len(lab.rows("sold")) == len(lab.rows("dear")) == 2
    assert lab.counts().lag == 0


def fail_after_some(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from ackflow.pipeline.routing import pack, packing

    yield from pack(packing(SHOP), batches)
    raise RuntimeError("killed in the middle of a fan-out")


@pytest.mark.inner
def test_gap_06_a_batch_replayed_after_its_commit_is_published_once(lab: Lab) -> None:
    lab.sales([DAY, "a", "80"])
    lab.end(batches=1, workers=2)
    lab.run()
    before = lab.q.queue_stats(SHOP.shards).messages
    lab.forget_last_commit()
    lab.run()
    assert lab.q.queue_stats(SHOP.shards).messages == before
    assert lab.counts().leased + lab.counts().ready + lab.counts().waiting == 1
    lab.end(batches=0, worker=1, workers=2)
    lab.run()
    assert [end["batches"] for end in lab.forwarded("end")] == [1, 1]
    assert lab.counts().lag == 0


def test_gap_09_held_ends_of_file_do_not_keep_batches_away(lab: Lab) -> None:
    for worker in range(7):
        lab.end("sales", batches=0, worker=worker, workers=8)
    for worker in range(3):
        lab.end("items", batches=0, worker=worker, workers=8)
    lab.sales([DAY, "a", "80"])
    lab.end("sales", batches=1, worker=7, workers=8)
    lab.run(messages=3)
    assert [end["table"] for end in lab.forwarded("end")] == ["sales"] * len(SHARDS)
    assert lab.counts().lag == 3


def test_gap_10_what_fails_for_good_is_a_dead_letter_and_nothing_else_is(lab: Lab) -> None:
    lab.q.push(SHOP.inbox, b'{"kind": "data", "client": "ann"')
    lab.sales([DAY, "a", "80"])
    lab.run()
    assert lab.reasons() == ["invalid message: neither a batch nor an end of file"]
    assert lab.counts().done == 1


def test_what_a_cancelled_client_sent_is_let_go(lab: Lab) -> None:
    lab.sales([DAY, "a", "80"], client="bob")
    lab.end(client="bob", workers=2)
    router = lab.run()
    cancel(lab.q, SHOP, "bob")
    router.ends.poll()
    lab.sales([DAY, "a", "80"], client="bob")
    lab.end(client="bob", worker=1, workers=2)
    lab.run()
    assert lab.counts().lag == 0
    assert len(lab.rows("sold")) == 1
    assert lab.q.values(SHOP.state_key("handled", "")) == []


SOLD = SHOP.routes[0]


@pytest.mark.parametrize(
    ("route", "told"),
    [
        (structs.replace(SOLD, sums={"n": "1", "amount": "amout"}),
         "'amount' of route 'sold' is 'amout': [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column"),
        (structs.replace(SOLD, select={"item": "uper(item)"}),
         "'item' of route 'sold' is 'uper(item)': [UNRESOLVED_ROUTINE] Cannot resolve routine"),
        (structs.replace(SOLD, where="amount >"),
         "where of route 'sold' is 'amount >': [PARSE_SYNTAX_ERROR] Syntax error"),
        (structs.replace(SOLD, where="amount"),
         "where of route 'sold' is 'amount': [DATATYPE_MISMATCH.FILTER_NOT_BOOLEAN]"),
        # Of another table, which is read in the same pass.
        (structs.replace(SOLD, select={"item": "item", "name": "name"}),
         "'name' of route 'sold' is 'name': [UNRESOLVED_COLUMN"),
        (structs.replace(SOLD, sums={"amount": "sum(amount)"}),
         "'amount' of route 'sold' is 'sum(amount)': [INVALID_WHERE_CONDITION]"),
        (structs.replace(SOLD, sums={"amount": "array(amount)"}),
         "'amount' of route 'sold' is 'array(amount)': [DATATYPE_MISMATCH.CAST_WITHOUT_SUGGESTION]"),
    ],
)  # fmt: skip
def test_an_expression_that_spark_cannot_work_out_is_refused_before_anything_is_taken(
    lab: Lab, capfd: pytest.CaptureFixture[str], route: Route, told: str
) -> None:
    lab.sales([DAY, "a", "80"])
    with pytest.raises(InvalidArgument) as caught:
        lab.run(pipeline=structs.replace(SHOP, routes=[route, *SHOP.routes[1:]]))
    assert caught.value.message.startswith(told)
    assert "\n" not in caught.value.message
    assert capfd.readouterr().err == ""
    assert lab.counts().ready == 1


def test_columns_whose_names_differ_in_case_only_are_told_apart_by_their_table(lab: Lab) -> None:
    items = structs.replace(SHOP.tables[1], columns=["Item", "name"], keep=["Item", "name"])
    pipeline = structs.replace(SHOP, tables=[SHOP.tables[0], items]).check()
    lab.sales([DAY, "a", "80"])
    lab.q.push(SHOP.inbox, encode(Batch("ann", "items", 0, 1, [["a", "Apple"]])), partition="ann")
    lab.run(pipeline=pipeline)
    assert lab.rows("names") == [{"item": "a", "name": "Apple"}]
    assert [row["item"] for row in lab.rows("sold")] == ["a"]
