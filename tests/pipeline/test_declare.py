"""A declaration that cannot work is refused with a sentence that says what is wrong and where."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from ackflow.errors import InvalidArgument
from ackflow.pipeline import Join, Pipeline, Query, Route, Table, Top, Window, example, load

from .conftest import SHOP

EXAMPLES = Path(__file__).parents[2] / "examples"

ITEMS = SHOP.tables[1]
NAMES = SHOP.routes[2]
SELECT = {"item": "item"}


def changed(**fields: Any) -> Pipeline:
    return structs.replace(SHOP, **fields)


def table(**fields: Any) -> Pipeline:
    return changed(tables=[SHOP.tables[0], structs.replace(ITEMS, **fields)])


def route(**fields: Any) -> Pipeline:
    return changed(routes=[*SHOP.routes[:2], structs.replace(NAMES, **fields)])


def query(sql: Any, name: Any = "asked") -> Pipeline:
    return changed(queries=[Query(name, sql)])


def refused(pipeline: Pipeline) -> str:
    with pytest.raises(InvalidArgument) as caught:
        pipeline.check()
    return caught.value.message


LETTERS = "must have 1 to 50 letters, digits, _ and - and begin with a letter"


@pytest.mark.parametrize("name", ["", "a/b", "a b", "_a", "9", "a" * 51, "../up", "a'b", "a\n"])
def test_a_name_that_is_no_name_of_a_queue_file_or_table_is_refused(name: str) -> None:
    assert refused(changed(name=name)) == f"the name of a pipeline {LETTERS}, got {name!r}"
    assert refused(table(name=name)) == f"the name of a table {LETTERS}, got {name!r}"
    assert refused(route(name=name)) == f"the name of a route {LETTERS}, got {name!r}"
    assert refused(query("select 1", name)) == f"the name of a query {LETTERS}, got {name!r}"


def test_two_of_a_name_are_refused() -> None:
    both = [SHOP.queries[0], Query("Totals", "select 1")]
    assert refused(changed(queries=both)) == (
        "two queries have the same name: 'totals' and 'Totals'"
    )
    assert refused(route(name="SOLD")) == "two routes have the same name: 'sold' and 'SOLD'"
    assert refused(changed(tables=[*SHOP.tables, structs.replace(ITEMS, name="sales")])) == (
        "two tables have the same name: 'sales' and 'sales'"
    )


@pytest.mark.parametrize("what", ["tables", "routes", "queries"])
def test_a_pipeline_without_one_of_its_parts_is_refused(what: str) -> None:
    assert refused(changed(**{what: []})) == f"the pipeline has no {what}"


@pytest.mark.parametrize(
    ("pipeline", "told"),
    [
        (table(columns=["item", "name", "item"]),
         "two columns of table 'items' have the same name: 'item' and 'item'"),
        (table(columns=["item", "Item"], keep=["item", "Item"]),
         "two columns that table 'items' keeps have the same name: 'item' and 'Item'"),
        (table(keep=["item", "nmae"]), "table 'items' has no column 'nmae'"),
        (table(kinds={"nmae": "text"}), "table 'items' has no column 'nmae'"),
        (table(columns=[]), "table 'items' has no columns"),
        (table(columns="item string, name"), "a column of a schema is `name type`, got 'name'"),
        (table(columns="item string, name array<int>"),
         "the kind of column 'name' of table 'items' must be text, time, decimal or a Spark type, "
         "got 'array<int>'"),
        (table(columns=["a`b"], keep=["a`b"]), "table 'items' cannot keep a column named 'a`b'"),
        (table(columns=["_Line"]), "table 'items' cannot keep a column named '_Line'"),
        (table(kinds={"name": "a b"}),
         "the kind of column 'name' of table 'items' must be text, time, decimal or a Spark type, "
         "got 'a b'"),
        (route(table="itmes"), "route 'names' reads 'itmes', which is not a table"),
        (route(select={}), "route 'names' selects no columns"),
        (route(join=Join("itmes", ["item"])), "route 'names' joins 'itmes', which is not another"),
        (route(join=Join("items", ["item"])), "route 'names' joins 'items', which is not another"),
        (route(join=Join("sales", ["day"])),
         "route 'names' joins on 'day', which table 'items' does not keep"),
        (route(join=Join("sales", ["item"], "full")),
         "the join of route 'names' must be inner or left, got 'full'"),
        (route(join=Join("sales", [])), "route 'names' joins on no column"),
        (route(window=Window("day", "1 hour")),
         "the window of route 'names' is over 'day', which its table does not keep"),
        (route(window=Window("name", "1 month")),
         "the window of route 'names' must have a width such as 15 minutes, got '1 month'"),
        (route(top=Top(0, "name")), "the top of route 'names' must be at least 1, got 0"),
        (route(top=Top(1, " ")), "the order of the top of route 'names' must be an SQL expression"),
        (route(top=Top(1, "name", ["nmae"])),
         "route 'names' has no column 'nmae' to keep the top of"),
        (route(sums={"NAME": "1"}),
         "two columns of route 'names' have the same name: 'name' and 'NAME'"),
        (route(select={"item": "item", "a`b": "name"}),
         "route 'names' cannot have a column named 'a`b'"),
        (route(select={"item": " "}), "'item' of route 'names' must be an SQL expression, got ' '"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_table_or_a_route_is_told_with_its_place(
    pipeline: Pipeline, told: str
) -> None:
    assert refused(pipeline).startswith(told)


@pytest.mark.parametrize(
    ("pipeline", "told"),
    [
        (changed(name=7), "the name of a pipeline must be a string, got 7"),
        (changed(tables="items"), "tables must be a list of Table(...), got 'items'"),
        (changed(routes=["sold"]), "routes must be a list of Route(...), but contains 'sold'"),
        (changed(queries={}), "queries must be a list of Query(...), got {}"),
        (table(columns=7), "columns of table 'items' must be a list of strings, got 7"),
        (route(join="sales"), "join of route 'names' must be a Join(...), got 'sales'"),
        (table(keep=[1]), "keep of table 'items' must be a list of strings, got [1]"),
        (
            table(kinds=["time"]),
            "kinds of table 'items' must be a mapping with string keys, got ['time']",
        ),
        (table(kinds={"name": []}), "the kind of column 'name' of table 'items' must be text"),
        (
            route(select=["item"]),
            "select of route 'names' must be a mapping with string keys, got ['item']",
        ),
        (route(sums={"n": 1}), "'n' of route 'names' must be an SQL expression, got 1"),
        (route(where=True), "where of route 'names' must be an SQL expression, got True"),
        (query(None), "the sql of query 'asked' must be an SQL expression, got None"),
    ],
)
def test_a_field_of_a_wrong_type_is_told_with_its_place(pipeline: Pipeline, told: str) -> None:
    assert refused(pipeline).startswith(told)


def test_the_examples_pass() -> None:
    load(example("coffee_shop"))
    load(EXAMPLES / "pipeline_library.py")
    load(EXAMPLES / "pipeline_sensors.py")
    table(columns=["item", "name", "", "a`b"], keep=["item"]).check()  # not kept: any name


def test_a_mistake_in_the_file_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "mine"

    def told(text: str) -> str:
        file.write_text(text)
        with pytest.raises(InvalidArgument) as caught:
            load(file)
        return caught.value.message

    assert told("x = 1\ny = (\n") == f"{file}, line 2: '(' was never closed"
    assert told("\nx = 1 / 0\n") == f"{file}, line 2: ZeroDivisionError: division by zero"
    assert told("import nothing_like_it") == (
        f"{file}, line 1: ModuleNotFoundError: No module named 'nothing_like_it'"
    )
    assert told("raise SystemExit") == f"{file}, line 1: SystemExit"
    called = "from ackflow.pipeline import Pipeline\n\npipeline = Pipeline('a', [], [], [])"
    assert told(f"{called}.check()") == f"{file}, line 3: the pipeline has no tables"
    assert told(called) == f"{file}: the pipeline has no tables"
    assert told(f"{called[:-5]})") == (
        f"{file}, line 3: TypeError: Missing required argument 'queries'"
    )
    assert told("x = 1") == f"{file} does not define `pipeline = Pipeline(...)`"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidArgument, match="mine"):
        load(file)
    with pytest.raises(InvalidArgument, match="pipeline declaration not found:"):
        load(tmp_path)


def test_a_route_and_a_table_are_declared_by_place_or_by_name() -> None:
    Pipeline(
        "a-b", [Table("t", ("x",), ("x",))], [Route("r", "t", {"x": "x"})],
        [Query("q", "select x from r order by x")],
    ).check()  # fmt: skip
