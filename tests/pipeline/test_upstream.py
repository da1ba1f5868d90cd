"""What workers read of a folder: which files, which rows, and what they say of the unreadable."""

from pathlib import Path
from typing import Any

import pytest

from ackflow import Message
from ackflow.pipeline import preflight
from ackflow.pipeline.declaration import Table
from ackflow.pipeline.loader import send_tables, table_files
from ackflow.pipeline.messages import BadRows, encode
from ackflow.pipeline.router import dead_letter_bad_rows
from ackflow.pipeline.run import Run
from ackflow.pipeline.stages import Settings

from .conftest import SHOP, Bench

HEAD = "day,item,amount\n"
ROW = "2024-01-01 10:00:00,1,2.50\n"


@pytest.fixture
def ann(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "ann"
    folder.mkdir(parents=True)
    return folder


def sent(bench: Bench, data: Path, workers: int = 1, kind: str = "data") -> list[dict[str, Any]]:
    for worker in range(workers):
        send_tables(bench.q, SHOP, data, worker, workers)
    return [message for message in bench.inside(SHOP.inbox) if message["kind"] == kind]


def dead_lettered(bench: Bench) -> list[str]:
    dead_letter_bad_rows(bench.q, SHOP)
    return sorted(letter.reason or "" for letter in bench.q.dead_letters(SHOP.bad).items)


def test_a_file_that_excel_wrote_is_read(bench: Bench, ann: Path) -> None:
    (ann / "sales.csv").write_text(HEAD + ROW, encoding="utf-8-sig")
    (batch,) = sent(bench, ann.parent)
    assert batch["rows"] == [["2024-01-01 10:00:00", "1", "2.50"]]
    assert dead_lettered(bench) == []


def test_files_that_cannot_be_read_are_told_once_and_nobody_waits_for_them(
    bench: Bench, ann: Path
) -> None:
    (ann / "sales_1.csv").write_text("day,item\n2024-01-01 10:00:00,1\n")
    (ann / "sales_2.csv").write_text("")
    (ann / "sales_3.csv").mkdir()
    (ann / "sales_4.csv").write_text(HEAD + ROW + "2024-01-01 10:00:00,1," + "9" * 200_000 + "\n")
    (ann / "sales_5.csv").write_text(HEAD + ROW)
    bob = ann.with_name("bob")
    bob.mkdir()
    (bob / "items.csv").write_text("item,name\n1,Tea\n")
    batches = sent(bench, ann.parent, workers=2)
    assert [(m["client"], len(m["rows"])) for m in batches] == [("ann", 2), ("bob", 1)]
    ends = sent(bench, ann.parent, workers=2, kind="eof")  # sent again, it adds nothing
    assert len(ends) == 2 * 2 * len(SHOP.tables)
    assert dead_lettered(bench) == [
        "unreadable file sales_1.csv: it has no column 'amount': a file of sales from ann",
        "unreadable file sales_2.csv: it has no header: a file of sales from ann",
        "unreadable file sales_3.csv: Is a directory: a file of sales from ann",
        "unreadable file sales_4.csv: field larger than field limit (131072) in line 3: "
        "a file of sales from ann",
    ]
    sent(bench, ann.parent, workers=2)
    assert len(dead_lettered(bench)) == 4


def test_a_file_belongs_to_the_table_with_the_longest_name_it_begins_with(ann: Path) -> None:
    names = ["stores_jan.csv", "stores-east.csv", "stores.CSV", "stores2.csv", "stores_old_1.csv"]
    for name in [*names, "shop.csv", "stores.txt"]:
        (ann / name).touch()
    tables = [Table("stores", [], []), Table("stores_old", [], [])]
    taken, left = table_files(ann, tables)
    assert {path.name for path in taken["stores"]} == {*names[:4]}
    assert [path.name for path in taken["stores_old"]] == ["stores_old_1.csv"]
    assert [path.name for path in left] == ["shop.csv"]


def test_a_file_without_a_table_and_a_table_without_a_file_are_told_by_the_first_worker_and_the_run(
    bench: Bench, ann: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ann / "sale.csv").write_text(HEAD + ROW)
    (ann / "items.csv").write_text("item,name\n")
    left = f"{ann / 'sale.csv'} belongs to no table and is ignored"
    assert sent(bench, ann.parent, workers=2) == []
    assert caplog.messages == [left, f"{ann} has no file for table sales, which is empty"]
    told: list[str] = []
    run = Run(Settings(data=str(ann.parent), out=str(bench.out)), told.append)
    monkeypatch.setattr(preflight, "check_spark", lambda _: None)
    monkeypatch.setattr(run, "_names", list)
    monkeypatch.setattr(run, "_watch", lambda *_: None)
    run._q.push(run.pipeline.bad, 1)
    run._q.pop(run.pipeline.bad)[0].reject("unreadable day")
    run.run()
    assert told[:2] == [f"{ann / 'items.csv'} belongs to no table and is ignored", left]
    assert told[2] == f"{ann} has no file for table menu_items, which is empty"
    assert told[-1].startswith("some input could not be read: 1 dead letter in coffee.bad; list: ")


def test_a_folder_that_cannot_be_listed_is_told_and_stops_nobody(tmp_path: Path) -> None:
    assert table_files(tmp_path / "gone", [Table("stores", [], [])]) == (
        {"stores": []}, [tmp_path / "gone"],
    )  # fmt: skip


def test_all_that_is_bad_is_buried_and_what_a_killed_router_took_is_back_after_its_lease(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.q.configure(SHOP.bad, keep_seconds=0)
    for number in range(150):
        bench.q.push(SHOP.bad, encode(BadRows("ann", "sales", "bad", [[str(number)]])))

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(Message, "reject", die)
        with pytest.raises(KeyboardInterrupt):
            dead_letter_bad_rows(bench.q, SHOP)
    bench.later()
    assert dead_letter_bad_rows(bench.q, SHOP) == 150
