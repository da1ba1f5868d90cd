"""The rows of blocks: how they are split, counted, added up, and sent when they cannot be read."""

from pathlib import Path

import pytest
from msgspec import structs

from ackflow.pipeline import Join, Query, Route, Table, partials
from ackflow.pipeline import router as routers
from ackflow.pipeline.loader import blocks
from ackflow.pipeline.router import dead_letter_bad_rows
from ackflow.pipeline.sql import cells, records, typed

from .conftest import SHOP, push_end
from .test_application import DAY, Lab, lab

__all__ = ["lab"]


def test_a_line_with_quotes_is_read_like_one_without(lab: Lab) -> None:
    """They are split in two ways."""
    kinds = {"b": "string", "c": "bigint", "d": "boolean"}
    table = Table("t", columns=["a", "b", "c", "d"], kinds=kinds)
    plain = [
        "x,y,1,true",
        "x,,,",
        " x , , 1 ,",
        "\t,\x00,,é\u2028",
        ",,,",
        "#,\\,-,'",
        "x,y,1",
        "x,y,1,,",
    ]
    both = [one for line in plain for one in (line, '"' + line.replace(",", '",', 1))]
    frame = lab.spark.createDataFrame(
        [({"client": "ann"}, bytearray("\n".join(both).encode()))],
        "headers map<string, string>, payload binary",
    )
    columns = ["a", "b", "c", "d"]
    read = typed(cells(records(frame, "csv"), table, "csv", columns), table)
    rows = [tuple(row) for row in read.select("a", "b", "c", "d", "_problem").collect()]
    whole = len(plain) - 2
    assert rows[: 2 * whole : 2] == rows[1 : 2 * whole : 2]
    assert rows[2] == ("x", None, None, None, None)
    assert {row[-1] for row in rows[2 * whole :]} == {"truncated row: wrong number of cells"}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_plain_block_is_read_like_any_other(lab: Lab, end: str) -> None:
    table = Table("t", columns=["a", "b", "c"], keep=["a", "c"], kinds={"c": "bigint"})
    lines = ["x,y,1", "", "x,,", ",,", " ,\t,\x00", "x,y", "x,y,1,", "\\,#, 7 ", "", "a,b,c"]
    frame = lab.spark.createDataFrame(
        [({"client": "ann"}, bytearray(end.join(lines).encode()))],
        "headers map<string, string>, payload binary",
    )
    found = [
        typed(cells(records(frame, "csv", plain), table, "csv", table.names, plain), table)
        .select("a", "c", "_whole", "_problem").collect()
        for plain in (True, False)
    ]  # fmt: skip
    assert found[0] == found[1]
    assert [row.a for row in found[0]] == ["x", "x", "", " ", "x", "x", "\\", "a"]


def test_what_a_loader_marks_as_plain_has_no_quotes_and_is_ascii(lab: Lab, tmp_path: Path) -> None:
    for number, text in enumerate(["a,1\r\n", 'a,"1"\n', "é,1\n", "a,1\r"]):
        path = tmp_path / f"{number}.csv"
        path.write_text(f"item,n\n{text}", newline="")
        table = Table("t", ["item", "n"])
        (block,) = blocks(path, path.stat().st_size, table, 100, lambda *_: pytest.fail("read"))
        assert block.plain == (number == 0)


def test_a_sum_of_a_number_follows_from_the_number_of_rows(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partials, "MAX_FOLDERS", 1)
    counting = structs.replace(
        SHOP,
        routes=[Route("sold", "sales", {"item": "item"},
                      sums={"three": "3", "amount": "amount", "one": "1"})],
        queries=[Query("counted", "select * from sold order by item")],
    )  # fmt: skip
    for amount in (1, 2):
        lab.sales(f"{DAY},a,{amount}", f"{DAY},a,4", f"{DAY},b,")
        lab.run(counting)
    lab.ends(sales=2)
    lab.run(counting)
    assert lab.answer("counted") == [
        {"item": "a", "three": 12.0, "amount": 11.0, "one": 4.0},
        {"item": "b", "three": 6.0, "amount": 0.0, "one": 2.0},
    ]


def test_a_route_of_sums_alone_has_one_row_and_none_without_any(lab: Lab) -> None:
    totals = structs.replace(
        SHOP,
        routes=[
            Route("total", "sales", {}, sums={"amount": "amount", "rows": "1"}),
            Route("named", "sales", {}, sums={"amount": "amount"}, join=Join("items", ["item"])),
        ],
        queries=[Query("totals", "select * from total"), Query("named", "select * from named")],
    )
    lab.sales(f"{DAY},a,1", f"{DAY},b,2")
    lab.items("a,Tea")
    lab.ends(sales=1, items=1)
    lab.ends(client="bob")
    lab.run(totals)
    assert lab.answer("totals") == [{"amount": 3.0, "rows": 2.0}]
    assert lab.answer("named") == [{"amount": 1.0}]
    assert (lab.answer("totals", "bob"), lab.answer("named", "bob")) == ([], [])


def test_bad_rows_are_sent_once_by_an_application_that_was_killed_between(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routers, "MAX_BAD_ROWS", 2)
    lab.sales("x", "y", "z", "y", f"{DAY},a,1")
    push_end(lab.q, "sales", 1)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(partials.Partials, "sent", die)
        with pytest.raises(KeyboardInterrupt):
            lab.run()
    lab.items("a,Tea")
    push_end(lab.q, "items", 1)
    lab.run()
    dead_letter_bad_rows(lab.q, SHOP)
    letters = [letter.data["rows"] for letter in lab.q.dead_letters(SHOP.bad).items]
    assert sorted(letters) == [["x", "y"], ["y", "z"]]
    assert (lab.answer("totals"), lab.folders()) == ([{"name": "Tea", "amount": 1.0}], [])
