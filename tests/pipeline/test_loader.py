"""What loaders make of files: whole records in blocks, and a sentence for what is unreadable."""

import csv
import io
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ackflow.pipeline import Table
from ackflow.pipeline.loader import blocks, file_warnings, fix_files, send_tables, table_files
from ackflow.pipeline.router import dead_letter_bad_rows
from ackflow.pipeline.state import BadRows, Block, encode

from .conftest import SHOP, Bench

HEAD = "day,item,amount\n"
ROW = "2024-01-01 10:00:00,1,2.50\n"
TABLE = Table("t", ["a", "b"])


@pytest.fixture
def ann(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "ann"
    folder.mkdir(parents=True)
    return folder


def cut(path: Path, text: str, size: int, table: Table = TABLE) -> tuple[list[Block], list[str]]:
    path.write_text(text, encoding="utf-8", newline="")
    told: list[str] = []
    found = blocks(path, path.stat().st_size, table, size, lambda _, why: told.append(why))
    return list(found), told


def sent(bench: Bench, data: Path, workers: int = 1) -> list[tuple[str, str, str]]:
    for worker in range(workers):
        send_tables(bench.q, SHOP, data, worker, workers)
    found = bench.q.browse(SHOP.inbox, limit=1000).items
    return [(m.headers["client"], m.headers["table"], m.headers["kind"]) for m in found]


def dead_lettered(bench: Bench) -> list[str]:
    dead_letter_bad_rows(bench.q, SHOP)
    return sorted(letter.reason or "" for letter in bench.q.dead_letters(SHOP.bad).items)


@pytest.mark.parametrize("seed", range(20))
def test_blocks_are_the_file_cut_between_records_whatever_is_in_quotes(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    cells = ["", "x", '"', "a,b", "two\nlines", 'say "hi"', "é", "long" * 20, '"\n"']
    rows = [[rng.choice(cells), rng.choice(cells) + "."] for _ in range(60)]
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator=rng.choice(["\n", "\r\n"])).writerows([["a", "b"], *rows])
    found, told = cut(tmp_path / "t.csv", file.getvalue(), rng.choice([1, 20, 100, 10_000]))
    assert told == []
    text = b"".join(block.data for block in found).decode()
    assert list(csv.reader(io.StringIO(text, newline=""))) == rows
    records = [list(csv.reader(io.StringIO(b.data.decode(), newline=""))) for b in found]
    assert [row for some in records for row in some] == rows
    assert [block.place for block in found] == sorted({block.place for block in found})
    for block, some in zip(found, records, strict=True):
        assert block.quoted or not any("\n" in cell for row in some for cell in row)


def test_a_quote_within_a_field_does_not_open_one(tmp_path: Path) -> None:
    text = 'a,b\n5" pipe,1\n6" pipe,2\n'
    found, told = cut(tmp_path / "t.csv", text, 1)
    assert ([block.data for block in found], told) == ([b'5" pipe,1\n', b'6" pipe,2\n'], [])


def test_json_lines_are_cut_at_line_breaks(tmp_path: Path) -> None:
    found, told = cut(tmp_path / "t.jsonl", '{"a": "\\""}\n{"a": 2}', 1)
    assert [(b.data, b.format) for b in found] == [
        (b'{"a": "\\""}\n', "jsonl"), (b'{"a": 2}', "jsonl"),
    ]  # fmt: skip
    assert told == []


def test_a_row_group_of_parquet_is_cut_into_blocks_like_a_text(tmp_path: Path) -> None:
    """A row group may have a million rows, and a message has at most 16 MiB."""
    rows = [[str(n), f'two\nlines, "{n}"'] for n in range(25_000)]
    columns = dict(zip("ab", (list(column) for column in zip(*rows, strict=True)), strict=True))
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({**columns, "c": [0] * len(rows)}), path)
    assert pq.ParquetFile(path).num_row_groups == 1
    found = list(blocks(path, 0, TABLE, 100_000, lambda *_: pytest.fail("unreadable")))
    assert max(len(block.data) for block in found) <= 100_000
    records = [list(csv.reader(io.StringIO(b.data.decode(), newline=""))) for b in found]
    assert [row for some in records for row in some] == rows
    assert [block.place for block in found] == sorted({block.place for block in found})
    assert {(block.columns, block.quoted) for block in found} == {(("a", "b"), True)}


def test_a_file_that_excel_wrote_is_read(bench: Bench, ann: Path) -> None:
    (ann / "sales.csv").write_text(HEAD + ROW, encoding="utf-8-sig")
    assert sent(bench, ann.parent)[0] == ("ann", "sales", "block")
    (message, *_) = bench.q.browse(SHOP.inbox).items
    assert message.headers["columns"] == '["day", "item", "amount"]'
    assert (bytes(message.raw), dead_lettered(bench)) == (ROW.encode(), [])


def test_files_that_cannot_be_read_are_reported_once_and_do_not_block_the_rest(
    bench: Bench, ann: Path
) -> None:
    (ann / "sales_1.csv").write_text("day,item\n2024-01-01 10:00:00,1\n")
    (ann / "sales_2.csv").write_text("")
    (ann / "sales_3.csv").mkdir()
    (ann / "sales_4.csv").write_text(f'{HEAD}{ROW}2024-01-01 10:00:00,1,"9\n')
    (ann / "sales_5.csv").write_text(HEAD + ROW)
    bob = ann.with_name("bob")
    bob.mkdir()
    (bob / "items.csv").write_text("item,name\n1,Tea\n")
    found = sent(bench, ann.parent, workers=2)
    blocks_ = [(client, table) for client, table, kind in found if kind == "block"]
    assert sorted(blocks_) == [("ann", "sales"), ("ann", "sales"), ("bob", "items")]
    assert len(found) - len(blocks_) == 2 * 2 * len(SHOP.tables)
    reasons = [
        "unreadable file sales_1.csv: it has no column 'amount': a file of sales from ann",
        "unreadable file sales_2.csv: it has no header: a file of sales from ann",
        "unreadable file sales_3.csv: Is a directory: a file of sales from ann",
        "unreadable file sales_4.csv: the record at byte 43 has no end: a file of sales from ann",
    ]
    assert dead_lettered(bench) == reasons
    assert sent(bench, ann.parent, workers=2) == found
    assert dead_lettered(bench) == reasons


def test_a_file_belongs_to_the_table_with_the_longest_name_it_begins_with(ann: Path) -> None:
    names = ["stores_jan.csv", "stores-east.csv", "stores.CSV", "stores2.csv", "stores_old_1.csv"]
    for name in [*names, "shop.csv", "stores.txt", "stores.parquet", "stores.jsonl"]:
        (ann / name).touch()
    tables = [Table("stores", []), Table("stores_old", [])]
    taken, left = table_files(ann, tables)
    assert {path.name for path in taken["stores"]} == {
        *names[:4], "stores.parquet", "stores.jsonl",
    }  # fmt: skip
    assert [path.name for path in taken["stores_old"]] == ["stores_old_1.csv"]
    assert [path.name for path in left] == ["shop.csv"]


def test_files_without_a_table_and_tables_without_a_file_are_reported(
    bench: Bench, ann: Path
) -> None:
    (ann / "sale.csv").write_text(HEAD + ROW)
    (ann / "items.csv").write_text("item,name\n")
    files = fix_files(bench.q, SHOP, ann.parent)
    assert files == {"ann": {"sales": {}, "items": {"items.csv": 10}}}
    ann.with_name("late").mkdir()
    (ann / "items.csv").write_text("item\n")
    assert fix_files(bench.q, SHOP, ann.parent) == files
    assert file_warnings(ann.parent, SHOP, files) == [
        f"{ann / 'sale.csv'} belongs to no table and is ignored",
        f"{ann} has no file for table sales, which is empty",
        f"{ann / 'items.csv'} is 5 bytes shorter than when the run began",
        f"{ann.with_name('late')} came after the run began and is not part of it",
    ]


def test_a_folder_that_cannot_be_listed_is_reported_and_stops_nothing(tmp_path: Path) -> None:
    assert table_files(tmp_path / "gone", [Table("stores", [])]) == (
        {"stores": []}, [tmp_path / "gone"],
    )  # fmt: skip


def test_bad_rows_become_dead_letters_and_those_of_a_killed_router_return_after_their_lease(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(150):
        bench.q.push(SHOP.bad, encode(BadRows("ann", "sales", "bad", [str(number)])))

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr("ackflow.Message.reject", die)
        with pytest.raises(KeyboardInterrupt):
            dead_letter_bad_rows(bench.q, SHOP)
    bench.later()
    assert dead_letter_bad_rows(bench.q, SHOP) == 150
