"""The Spark application, batch by batch: what it folds, holds, counts, rejects and answers."""

import json
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import ackflow
from ackflow.errors import InvalidArgument
from ackflow.pipeline import Join, Pipeline, Query, Route, Table, Top, Window, load, partials
from ackflow.pipeline import router as routers
from ackflow.pipeline.answers import ResultFormat
from ackflow.pipeline.application import Application, answer_so_far
from ackflow.pipeline.check import check_on_spark, explained
from ackflow.pipeline.loader import send_tables
from ackflow.pipeline.router import dead_letter_bad_rows
from ackflow.pipeline.stages import Settings
from ackflow.pipeline.state import accept, cancel, read_state, table_statuses

from .conftest import PARTS, SHOP, push_block, push_end

EXAMPLES = Path(__file__).parents[2] / "examples"
DAY = "2024-01-01 10:00:00"


class Lab:
    """An application that is started, does what there is to do, and ends; as often as you like."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.out = spark, folder, folder / "out"
        self.url = str(folder / "queue.db")
        self.q = ackflow.connect(self.url)
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        spark.conf.set("spark.sql.ansi.enabled", "true")

    def run(
        self, pipeline: Pipeline = SHOP, messages: int = 400, format: ResultFormat = "json"
    ) -> Application:
        self.expire()
        layout = check_on_spark(self.spark, pipeline)
        application = Application(
            self.spark, self.q, self.url, pipeline, layout, self.out, f"file://{self.folder}/work",
            PARTS, format=format, messages=messages,
        )  # fmt: skip
        application.router.start(self.spark, available_now=True).awaitTermination()
        application.step()
        return application

    def expire(self) -> None:
        """End the leases of an earlier application on the ends of tables."""
        if any(queue.name == SHOP.ends for queue in self.q.queues()):
            for lease in self.q.leases(SHOP.ends, "answer"):
                self.q.lease(lease.token).release()

    def sales(self, *rows: str, **more: Any) -> None:
        push_block(self.q, "sales", "".join(f"{row}\n" for row in rows), **more)

    def items(self, *rows: str, **more: Any) -> None:
        push_block(self.q, "items", "".join(f"{row}\n" for row in rows), **more)

    def ends(self, sales: int = 0, items: int = 0, client: str = "ann") -> None:
        push_end(self.q, "sales", sales, client=client)
        push_end(self.q, "items", items, client=client)

    def answer(self, name: str, client: str = "ann") -> Any:
        return json.loads((self.out / client / f"{name}_results.json").read_text())

    def forwarded(self) -> list[tuple[str, int]]:
        found = [message.data for message in self.q.browse(SHOP.ends, limit=1000).items]
        return [(end["table"], end["blocks"]) for end in found]

    def counts(self) -> ackflow.model.Counts:
        return self.q.group_stats(SHOP.inbox, "router").counts

    def reasons(self, queue: str = SHOP.inbox) -> list[str]:
        return sorted(letter.reason or "" for letter in self.q.dead_letters(queue).items)

    def folders(self) -> list[Path]:
        return sorted((self.folder / "work" / "partials").iterdir())

    def forget_last_commit(self) -> None:
        """As if Spark had been killed between the commit of a batch and its own commit log."""
        last = max((self.folder / "work" / "checkpoint" / "commits").glob("[0-9]*"))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Iterator[Lab]:
    found = Lab(spark, tmp_path)
    yield found
    for query in spark.streams.active:
        query.stop()
    found.q.close()
    for name in ("spark.sql.session.timeZone", "spark.sql.ansi.enabled"):
        spark.conf.unset(name)


@pytest.mark.inner
def test_rows_are_filtered_folded_and_answered_and_nothing_is_left(lab: Lab) -> None:
    lab.sales(f"{DAY},a,80", f'{DAY},a,"0.05"', f"{DAY},b,75.00")
    lab.items("a,Tea", "b,Ünicode \\ x")
    lab.sales(f"{DAY},a,1", f"{DAY},b,75.00")
    lab.ends(sales=2, items=1)
    lab.run()
    assert (lab.out / "ann" / "totals_results.json").read_text() == (
        '[\n {\n  "name": "Tea",\n  "amount": 81.05\n },\n'
        ' {\n  "name": "Ünicode \\\\ x",\n  "amount": 150.0\n }\n]\n'
    )
    assert lab.answer("dear") == [
        {"item": "a", "amount": 80.0}, {"item": "b", "amount": 75.0},
        {"item": "b", "amount": 75.0},
    ]  # fmt: skip
    assert lab.counts().lag == 0
    assert lab.folders() == []
    assert lab.q.group_stats(SHOP.ends, "answer").counts.lag == 0
    status = {row.table: (row.blocks, row.rows, row.state) for row in table_statuses(lab.q, SHOP)}
    assert status == {"sales": (2, 5, "finished"), "items": (1, 2, "finished")}


def test_what_cannot_be_read_is_a_dead_letter_and_the_rest_goes_on(lab: Lab) -> None:
    lab.sales(f"{DAY},a,1", "yesterday,a,2", f"{DAY},a,much", f"{DAY},a,", "x", f"{DAY},a,1,2",
              f'"{DAY}",a', f'{DAY},"a",2,"3"')  # fmt: skip
    lab.sales("")
    push_block(lab.q, "nothing", "x\n")
    push_block(lab.q, "sales", "x\n", columns=["day", "item"])
    push_block(lab.q, "sales", "x\n", client="a/b")
    lab.q.push(SHOP.inbox, {"kind": "data", "client": "ann"})
    lab.q.push(SHOP.inbox, b"\xff")
    push_end(lab.q, "sales", worker=3, workers=2)
    lab.items('a,"Tea\nof two lines"', quoted=True)
    lab.ends(sales=3, items=1)
    lab.run()
    # An empty number counts as 0, and one that cannot be parsed too.
    assert lab.answer("totals") == [{"name": "Tea\nof two lines", "amount": 1.0}]
    assert lab.reasons() == [
        "a block of x.csv has no column 'amount'",
        "invalid client: 'a/b'",
        "invalid end-of-file message: worker 3 of 2",
        *["invalid message: neither a block nor an end-of-file message"] * 2,
        "unknown table: nothing",
    ]
    dead_letter_bad_rows(lab.q, SHOP)
    assert lab.reasons(SHOP.bad) == [
        "truncated row: wrong number of cells: 4 rows of sales from ann",
        "unreadable amount: 1 rows of sales from ann",
        "unreadable day: 1 rows of sales from ann",
    ]
    letters = [letter.data for letter in lab.q.dead_letters(SHOP.bad).items]
    assert sorted(row for letter in letters for row in letter["rows"]) == [
        f'"{DAY}",a', f'{DAY},"a",2,"3"', f"{DAY},a,1,2", f"{DAY},a,much", "x", "yesterday,a,2",
    ]  # fmt: skip
    assert lab.counts().lag == 0


def test_amounts_are_exact_or_unreadable_but_never_rounded(lab: Lab) -> None:
    exact = structs.replace(SHOP, queries=[
        Query("sums", "select item, cast(amount as string) as amount from sold order by item"),
        Query("dear", "select item, amount from dear where item <> 'full' order by item"),
    ])  # fmt: skip
    amounts = {
        "below": ["74.9999999"], "small": ["0.0049999", "1e-18"], "short": ["7499999999.99e-8"],
        "large": ["1000000000000", "0.000000000000000001"], "zeros": ["75.00000000000000000000"],
        "long": ["75.0000000000000000001", "1e-19"], "huge": ["10000000000000000", "1e400"],
        "full": ["9999999999999999.999999999999999999"] * 9_000,
    }  # fmt: skip
    lab.sales(*(f"{DAY},{item},{one}" for item, some in amounts.items() for one in some))
    lab.ends(sales=1)
    lab.run(exact)
    assert [row["item"] for row in lab.answer("dear")] == ["large", "zeros"]
    assert {row["item"]: Decimal(row["amount"]) for row in lab.answer("sums")} == {
        "below": Decimal("74.9999999"), "small": Decimal("0.004999900000000001"),
        "short": Decimal("74.9999999999"), "large": Decimal("1000000000000.000000000000000001"),
        "zeros": 75, "long": 0, "huge": 0, "full": Decimal("89999999999999999999.999999999999991"),
    }  # fmt: skip
    dead_letter_bad_rows(lab.q, SHOP)
    assert lab.reasons(SHOP.bad) == ["unreadable amount: 4 rows of sales from ann"]


def test_a_sum_that_does_not_fit_ends_its_client_with_the_reason_and_no_other(lab: Lab) -> None:
    squares = structs.replace(
        SHOP, routes=[Route("sold", "sales", {"item": "item"},
                            sums={"amount": "amount", "square": "amount * amount"})],
        queries=[Query("sums", "select item, amount, cast(square as bigint) as square from sold")],
    )  # fmt: skip
    lab.sales(f"{DAY},a,9999999999999999", f"{DAY},a,3")
    lab.sales(*[f"{DAY},a,9999999999999999"] * 10_001, client="bob")
    lab.ends(sales=1)
    lab.ends(sales=1, client="bob")
    lab.run(squares)
    assert lab.answer("sums") == [{"item": "a", "amount": 10000000000000002.0, "square": 9}]
    assert read_state(lab.q, SHOP, "done") == {
        "ann": True,
        "bob": "query 'sums' failed: [USER_RAISED_EXCEPTION] the sum amount of route sold does not "
               "fit decimal(38,18)",
    }  # fmt: skip
    assert not (lab.out / "bob" / "sums_results.json").exists()
    dead_letter_bad_rows(lab.q, SHOP)
    lost = "the sum square of route sold does not fit"
    assert lab.reasons(SHOP.bad) == [
        f"{lost}: 1 rows of sales from ann", f"{lost}: 1 rows of sales from bob",
        *[f"{lost}: 5000 rows of sales from bob"] * 2,
    ]  # fmt: skip


def test_gap_03_counts_of_what_was_folded_outlive_the_application(lab: Lab) -> None:
    lab.sales(f"{DAY},a,1")
    push_end(lab.q, "sales", 2)
    lab.run()
    assert lab.forwarded() == []
    lab.run()  # a new one; the end of file comes again, flagged
    assert lab.forwarded() == []
    lab.sales(f"{DAY},a,2")
    lab.run()
    assert lab.forwarded() == [("sales", 2)] * PARTS
    assert lab.counts().lag == 0


@pytest.mark.inner
def test_gaps_05_and_07_a_batch_that_fails_leaves_nothing_and_is_not_acked(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.sales(f"{DAY},a,80", f"{DAY},b,90")
    with monkeypatch.context() as failing:
        failing.setattr(routers, "folded", fail_after_some)
        with pytest.raises(StreamingQueryException):
            lab.run()
    assert lab.counts().done == 0
    lab.items("a,Tea", "b,Tea")
    lab.ends(sales=1, items=1)
    lab.run()
    assert lab.answer("totals") == [{"name": "Tea", "amount": 170.0}]
    assert lab.folders() == []
    assert lab.counts().lag == 0


def fail_after_some(rows: DataFrame, _: object) -> DataFrame:
    return rows.selectExpr(
        "*", "if(k0 = 'b', raise_error('killed in the middle'), 1) as x"
    ).repartition(2)


@pytest.mark.inner
def test_gap_06_a_batch_replayed_after_its_commit_counts_once(lab: Lab) -> None:
    lab.sales(f"{DAY},a,80")
    lab.items("a,Tea")
    push_end(lab.q, "items", 1)
    push_end(lab.q, "sales", 1, workers=2)
    lab.run()
    before = lab.folders()
    lab.forget_last_commit()
    lab.run()
    assert lab.folders() == before, [list(f.rglob("*")) for f in lab.folders()]
    assert lab.counts().leased + lab.counts().ready + lab.counts().waiting == 1
    push_end(lab.q, "sales", 0, worker=1, workers=2)
    lab.run()
    assert lab.answer("totals") == [{"name": "Tea", "amount": 80.0}]
    assert lab.counts().lag == 0


def test_gap_09_held_ends_of_file_do_not_keep_blocks_away(lab: Lab) -> None:
    for worker in range(7):
        push_end(lab.q, "sales", worker=worker, workers=8)
    for worker in range(3):
        push_end(lab.q, "items", worker=worker, workers=8)
    lab.sales(f"{DAY},a,80")
    push_end(lab.q, "sales", 1, worker=7, workers=8)
    lab.run(messages=3)
    assert lab.forwarded() == [("sales", 1)] * PARTS
    assert lab.counts().lag == 3


def test_gap_12_an_end_from_one_partition_does_not_stand_for_another(lab: Lab) -> None:
    lab.ends()
    application = lab.run()
    assert lab.answer("totals") == []  # gap 14: a query without an answer is answered with nothing
    assert (lab.out / "ann" / "totals_results.json").read_text() == "[]\n"
    for _ in range(PARTS):
        for table in ("sales", "items"):
            end = {"client": "bob", "table": table, "blocks": 0}
            lab.q.push(SHOP.ends, end, partition="00")
    assert application.answers.run_once() == []
    for table in ("sales", "items"):
        end = {"client": "bob", "table": table, "blocks": 0}
        lab.q.push(SHOP.ends, end, partition="01")
    assert application.answers.run_once() == ["bob"]


def test_gap_14_an_application_killed_after_writing_writes_the_same_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.sales(f"{DAY},a,2.5")
    lab.items("a,Tea")
    lab.ends(sales=1, items=1)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(partials.Partials, "delete", die)
        dying.setattr(ackflow.session.transaction.Transaction, "ack", die)
        with pytest.raises(KeyboardInterrupt):
            lab.run()
    path = lab.out / "ann" / "totals_results.json"
    first = path.read_bytes()
    path.unlink()
    lab.run()
    assert path.read_bytes() == first
    assert lab.folders() == []


def test_a_duplicate_end_of_a_complete_table_is_acked_and_a_late_block_is_rejected(
    lab: Lab,
) -> None:
    lab.ends(sales=1)
    lab.sales(f"{DAY},a,80")
    lab.run()
    before = (lab.out / "ann" / "dear_results.json").read_bytes()
    lab.ends(sales=1)
    lab.sales(f"{DAY},a,90")
    lab.run()
    assert lab.counts().lag == 0
    assert lab.reasons() == ["late: the table sales of ann is complete"]
    assert (lab.out / "ann" / "dear_results.json").read_bytes() == before


def test_more_than_the_ends_of_file_say_waits_until_it_is_accepted(lab: Lab) -> None:
    lab.sales(f"{DAY},a,80")
    lab.sales(f"{DAY},a,90", file="foreign.csv", worker=5)
    lab.ends(sales=1)
    application = lab.run()
    (row,) = [row for row in table_statuses(lab.q, SHOP) if row.table == "sales"]
    assert (
        row.state == "ALARM: unannounced blocks: foreign.csv from worker 5: 1 arrived, 0 announced"
    )
    accept(lab.q, SHOP, "ann")
    assert application.step() == ["ann"]
    assert [row["amount"] for row in lab.answer("dear")] == [80.0, 90.0]


def test_what_a_cancelled_client_sent_is_dropped(lab: Lab) -> None:
    lab.sales(f"{DAY},a,80", client="bob")
    push_end(lab.q, "sales", 1, workers=2, client="bob")
    application = lab.run()
    assert len(lab.folders()) == 1
    cancel(lab.q, SHOP, "bob")
    application.step()
    lab.sales(f"{DAY},a,80", client="bob")
    push_end(lab.q, "sales", 1, worker=1, workers=2, client="bob")
    lab.run()
    assert lab.counts().lag == 0
    assert lab.folders() == []
    left = [value.key for value in lab.q.values(SHOP.state_key(""))]
    assert left == [SHOP.state_key("cancelled", "bob"), SHOP.state_key("held")]


def test_partial_results_are_folded_together_beyond_a_bound(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partials, "MAX_FOLDERS", 2)
    for n in range(4):
        lab.sales(f"{DAY},a,{n}.5", f"{DAY},b,80")
        lab.run()
        assert len(lab.folders()) == [1, 2, 1, 2][n]
    files = list(lab.folders()[0].rglob("*.parquet"))
    assert {path.parent.name for path in files} == {"route=sold", "route=dear"}
    lab.items("a,Tea", "b,Milk")
    lab.ends(sales=4, items=1)
    lab.run()
    assert lab.answer("totals") == [
        {"name": "Milk", "amount": 320.0}, {"name": "Tea", "amount": 8.0},
    ]  # fmt: skip
    assert len(lab.answer("dear")) == 4
    assert lab.folders() == []


def test_routes_join_window_and_keep_the_top_and_kinds_are_spark_types(lab: Lab) -> None:
    more = Pipeline(
        "shop",
        [Table("sales", "day timestamp, item string, amount decimal(12,2)"),
         Table("items", ["item", "name"])],
        [Route("named", "sales", {"name": "upper(name)"}, "amount > 1 and name <> 'Milk'",
               sums={"amount": "amount"}, join=Join("items", ["item"])),
         Route("hourly", "sales", {}, sums={"amount": "amount"}, window=Window("day", "1 hour")),
         Route("best", "sales", {"item": "item", "amount": "amount"},
               top=Top(1, "amount desc", ["item"]))],
        [Query("named", "select * from named order by name"),
         Query("hourly", "select * from hourly order by window_start"),
         Query("best", "select * from best order by item")],
    ).check()  # fmt: skip
    lab.sales(f"{DAY},a,2", f"{DAY},a,1", "2024-01-01 11:59:59,b,5.25", f"{DAY},c,4")
    lab.sales("2024-01-01 10:59:59,a,3.5", f"{DAY},d,9")
    lab.run(more)  # the rows of the joined table come in a later batch
    lab.items("a,tea", "b,Milk", "c,Tea")
    lab.ends(sales=2, items=1)
    lab.run(more)
    assert lab.answer("named") == [{"name": "TEA", "amount": 9.5}]
    assert lab.answer("hourly") == [
        {"window_start": "2024-01-01T10:00:00.000Z", "amount": 19.5},
        {"window_start": "2024-01-01T11:00:00.000Z", "amount": 5.25},
    ]
    assert lab.answer("best") == [
        {"item": "a", "amount": 3.5}, {"item": "b", "amount": 5.25}, {"item": "c", "amount": 4.0},
        {"item": "d", "amount": 9.0},
    ]  # fmt: skip
    text = "\n".join(explained(lab.spark, more))
    assert "day timestamp, item string, amount decimal(12,2)" in text
    assert "waits for the end of items" in text
    assert "answers window_start timestamp, amount decimal(38,18)" in text


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_answers_are_written_as(lab: Lab, format: ResultFormat) -> None:
    lab.sales(f"{DAY},a,80")
    lab.items('a,"Tea, ""green"""')
    lab.ends(sales=1, items=1)
    lab.run(format=format)
    path = lab.out / "ann" / f"totals_results.{format}"
    if format == "csv":
        assert path.read_text() == 'name,amount\n"Tea, ""green""",80.00\n'
    else:
        rows = lab.spark.read.parquet(str(path)).collect()
        assert [tuple(row) for row in rows] == [('Tea, "green"', Decimal("80.00"))]


def test_json_lines_are_read_like_csv(lab: Lab) -> None:
    push_block(lab.q, "items", '{"name": "Tea", "item": 1}\n{oops\n', format="jsonl")
    lab.sales(f"{DAY},1,80")
    lab.ends(sales=1, items=1)
    lab.run()
    assert lab.answer("totals") == [{"name": "Tea", "amount": 80.0}]
    assert lab.reasons(SHOP.bad) == [
        "truncated row: wrong number of cells: 1 rows of items from ann"
    ]


def test_row_groups_of_parquet_are_read_like_csv(lab: Lab, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "ann"
    folder.mkdir(parents=True)
    day = datetime(2024, 1, 1, 10)
    rows = [{"day": day, "item": 1, "amount": Decimal(n), "more": 0} for n in (80, 5)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "sales.parquet", row_group_size=1)
    (folder / "items.parquet").write_bytes(b"no parquet")
    (folder / "items_2.csv").write_text("name,item\nTea,1\n")
    assert send_tables(lab.q, SHOP, tmp_path / "data", 0, 1) == 3
    lab.run()
    assert lab.answer("totals") == [{"name": "Tea", "amount": 85.0}]
    (reason,) = lab.reasons(SHOP.bad)
    assert reason.startswith("unreadable file items.parquet: Parquet magic bytes not found")


def test_another_pipeline_needs_a_declaration_only_and_answers_so_far(
    lab: Lab, tmp_path: Path
) -> None:
    """Sensors: JSON lines, Spark types, a join with a complete table, a window and a top."""
    sensors = load(EXAMPLES / "pipeline_sensors.py")
    building = tmp_path / "data" / "north"
    building.mkdir(parents=True)
    (building / "sensors.csv").write_text("sensor,room,highest\ns1,attic,30\ns2,cellar,20\n")
    readings = [("s1", "10:05", 31.5), ("s1", "10:55", 28.5), ("s1", "11:00", 35),
                ("s2", "10:00", 19), ("s2", "10:01", 20.25), ("s9", "10:00", 99),
                ("s2", "never", 9)]  # fmt: skip
    lines = (json.dumps({"at": f"2024-07-01 {at}:00", "celsius": c, "sensor": s})
             for s, at, c in readings)  # fmt: skip
    (building / "readings.jsonl").write_text("\n".join(lines))
    send_tables(lab.q, sensors, tmp_path / "data", 1, 2)
    lab.run(sensors)
    assert not (lab.out / "north").exists()  # the ends of the other worker are missing
    settings = Settings(
        data="", out=str(lab.out), declaration="", work=str(lab.folder / "work"), db=lab.url
    )
    so_far = tmp_path / "so_far"
    assert answer_so_far(lab.spark, settings, sensors, lab.q, "north", so_far) == (2, 9)
    send_tables(lab.q, sensors, tmp_path / "data", 0, 2)
    lab.run(sensors)
    assert lab.answer("hottest_hours", "north") == [
        {"room": "attic", "hour": "2024-07-01 11:00", "celsius": 35.0},
        {"room": "attic", "hour": "2024-07-01 10:00", "celsius": 30.0},
        {"room": "cellar", "hour": "2024-07-01 10:00", "celsius": 19.6},
    ]
    assert lab.answer("too_hot", "north") == [
        {"room": "attic", "at": "2024-07-01 11:00:00", "celsius": 35.0},
        {"room": "attic", "at": "2024-07-01 10:05:00", "celsius": 31.5},
        {"room": "cellar", "at": "2024-07-01 10:01:00", "celsius": 20.25},
    ]
    for path in (lab.out / "north").iterdir():
        assert (so_far / path.name).read_bytes() == path.read_bytes()


SOLD = SHOP.routes[0]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"sums": {"n": "1", "amount": "amout"}},
         "'amount' of route 'sold' is 'amout': [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column"),
        ({"select": {"item": "uper(item)"}},
         "'item' of route 'sold' is 'uper(item)': [UNRESOLVED_ROUTINE] Cannot resolve routine"),
        ({"where": "amount >"},
         "where of route 'sold' is 'amount >': [PARSE_SYNTAX_ERROR] Syntax error"),
        ({"where": "amount"},
         "where of route 'sold' is 'amount': [DATATYPE_MISMATCH.FILTER_NOT_BOOLEAN]"),
        ({"select": {"item": "item", "name": "name"}},
         "'name' of route 'sold' is 'name': [UNRESOLVED_COLUMN"),
        ({"sums": {"amount": "sum(amount)"}},
         "'amount' of route 'sold' is 'sum(amount)': [INVALID_WHERE_CONDITION]"),
        ({"sums": {"amount": "array(amount)"}},
         "'amount' of route 'sold' is 'array(amount)': [DATATYPE_MISMATCH.CAST_WITHOUT_SUGGESTION]"),
        ({"select": {"item": "array(item)"}},
         "'item' of route 'sold' is of type array<string>, which a route cannot have"),
        ({"top": Top(1, "amout")}, "top of route 'sold': [UNRESOLVED_COLUMN"),
        ({"window": Window("item", "1 day")}, "the window of route 'sold' is over 'item', which is"),
        ({"join": Join("items", ["item"]), "where": "nmae = ''"},
         "where of route 'sold' is \"nmae = ''\": [UNRESOLVED_COLUMN"),
    ],
)  # fmt: skip
def test_a_route_that_spark_cannot_analyse_is_rejected(
    lab: Lab, capfd: pytest.CaptureFixture[str], changed: dict[str, Any], told: str
) -> None:
    route = structs.replace(SOLD, **changed)
    with pytest.raises(InvalidArgument) as caught:
        check_on_spark(lab.spark, structs.replace(SHOP, routes=[route, *SHOP.routes[1:]]).check())
    assert caught.value.message.startswith(told)
    assert "\n" not in caught.value.message
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("select nmae from names", "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column"),
        ("selct 1", "[PARSE_SYNTAX_ERROR]"),
        ("select median2(amount) from sold", "[UNRESOLVED_ROUTINE] Cannot resolve routine"),
        ("select item, item from sold", "2 columns of its answer are named 'item'"),
        ("select 1 as a; select 2 as b", "[PARSE_SYNTAX_ERROR]"),
        ("drop view sold", "[PARSE_SYNTAX_ERROR]"),
    ],
)
def test_a_query_that_spark_cannot_analyse_is_rejected(lab: Lab, sql: str, told: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_on_spark(lab.spark, structs.replace(SHOP, queries=[Query("asked", sql)]).check())
    assert caught.value.message.startswith(f"query 'asked' is invalid: {told}")


def test_columns_whose_names_differ_in_case_only_are_of_their_table(lab: Lab) -> None:
    items = structs.replace(SHOP.tables[1], columns=["Item", "name"])
    pipeline = structs.replace(SHOP, tables=[SHOP.tables[0], items]).check()
    lab.sales(f"{DAY},a,80")
    lab.items("a,Apple", columns=["Item", "name"])
    lab.ends(sales=1, items=1)
    lab.run(pipeline=pipeline)
    assert lab.answer("totals") == [{"name": "Apple", "amount": 80.0}]
