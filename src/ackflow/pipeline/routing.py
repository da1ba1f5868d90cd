"""The Spark part of the router: parse, validate, filter, fold and pack the rows of a batch.

All tables are processed in one pass without a shuffle. Every row becomes a short list of (route,
shard, values); the writing task folds these and packs them into a few messages for each shard.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

from ..errors import InvalidArgument
from . import decimals
from .decimals import COLUMN, SUM
from .declaration import ColumnKind, Pipeline, Route, Table
from .messages import BadRows, Rows
from .supervisor import error_summary

SPARK_TYPES = {"text": "string", "time": "timestamp", "decimal": COLUMN}
TIME = "yyyy-MM-dd HH:mm:ss"
BATCH_SCHEMA = "client string, table string, rows array<array<string>>"
BAD_PREFIX = "!"
FOLD_ROWS = 200_000
MESSAGE_ROWS = 10_000
WIDE_DECIMAL = pa.decimal256(76, decimals.SCALE)
OUTPUT = pa.schema([("queue", pa.string()), ("partition", pa.string()), ("payload", pa.string())])

Transform = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class Packing(msgspec.Struct, frozen=True):
    """The parts of a pipeline that a task needs to pack rows; sent to the executors."""

    shards: str
    bad: str
    routes: dict[str, tuple[list[str], list[str]]]

    @property
    def keys(self) -> int:
        # A bad row uses two: the reason, and its cells.
        return max(2, *(len(select) for select, _ in self.routes.values()))

    @property
    def sums(self) -> int:
        return max(len(sums) for _, sums in self.routes.values())


def packing_of(pipeline: Pipeline) -> Packing:
    return Packing(
        pipeline.shards, pipeline.bad,
        {route.name: (list(route.select), list(route.sums)) for route in pipeline.routes},
    )  # fmt: skip


def packer(pipeline: Pipeline) -> Transform:
    """Return the function by which each task packs routed rows into messages."""
    return partial(pack, packing_of(pipeline))


def check_expressions(spark: SparkSession, pipeline: Pipeline) -> None:
    """Raise InvalidArgument for the first expression of a route that Spark cannot analyse.

    Each route is checked over the columns of its own table alone. At run time several tables are
    processed in one pass, where a column of another table would exist and be null.
    """
    # Spark would log the same problem with two hundred lines of stack trace.
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    for route in pipeline.routes:
        table = pipeline.table(route.table)
        assert table is not None
        columns = [
            f"cast(null as {SPARK_TYPES[table.kind(name)]}) as `{name}`" for name in table.keep
        ]
        rows = spark.range(0).selectExpr(*columns)
        conditions = list(_conditions(route))
        # One analysis of all expressions is faster than one each, and almost always succeeds.
        if not _analysis_error(rows, " and ".join(f"({sql})" for _, _, sql in conditions)):
            continue
        for what, sql, condition in conditions:
            if problem := _analysis_error(rows, condition):
                raise InvalidArgument(f"{what} of route {route.name!r} is {sql!r}: {problem}")


def _conditions(route: Route) -> Iterator[tuple[str, str, str]]:
    """Yield every expression of a route: its name, its SQL, and a condition that contains it.

    In a condition Spark accepts only expressions over one row, no aggregates.
    """
    yield "where", route.where, route.where
    for name, sql in route.select.items():
        yield repr(name), sql, f"cast({sql} as string) is null"
    for name, sql in route.sums.items():
        yield repr(name), sql, f"try_cast({sql} as {SUM}) is null"


def _analysis_error(rows: DataFrame, condition: str) -> str | None:
    try:
        rows.where(condition)
    except PySparkException as error:
        return error_summary(error)
    return None


def routed_rows(pipeline: Pipeline, messages: DataFrame, shards: int) -> DataFrame:
    """Return the rows of message payloads as (_client, route, shard, values)."""
    found: DataFrame | None = None
    for tables in compatible_tables(pipeline.tables):
        routed = _routed(pipeline, tables, _typed(messages, tables), shards)
        found = routed if found is None else found.union(routed)
    assert found is not None
    return found


def compatible_tables(tables: Sequence[Table]) -> list[list[Table]]:
    """Group tables that can be parsed in one pass: columns of equal name have equal kinds."""
    groups: list[list[Table]] = []
    for table in tables:
        for group in groups:
            if not any(_conflict(table, other) for other in group):
                group.append(table)
                break
        else:
            groups.append([table])
    return groups


def _conflict(one: Table, other: Table) -> bool:
    """Return whether a shared column differs in kind, or in case, which Spark ignores."""
    others = {name.lower(): name for name in other.keep}
    return any(
        (name, one.kind(name)) != (same, other.kind(same))
        for name in one.keep
        if (same := others.get(name.lower())) is not None
    )


def _typed(messages: DataFrame, tables: list[Table]) -> DataFrame:
    """Return the rows of tables with typed columns; `_problem` names what cannot be parsed."""
    read = messages.selectExpr(f"from_json(payload, '{BATCH_SCHEMA}') as m")
    cells = read.where(f"m.table in ({_quoted(table.name for table in tables)})").selectExpr(
        "m.table as _table", "m.client as _client",
        "explode(coalesce(m.rows, array(cast(null as array<string>)))) as _cells",
    )  # fmt: skip
    widths = " ".join(f"when '{table.name}' then {len(table.keep)}" for table in tables)
    columns = _columns(tables)
    raw = cells.selectExpr(
        "_table", "_client", "_cells", f"size(_cells) <=> (case _table {widths} end) as _whole",
        *(f"{_cell(name, tables)} as `{name}`" for name, kind in columns.items() if kind == "text"),
        *(
            f"{_parse(_cell(name, tables), kind)} as `{name}`"
            for name, kind in columns.items()
            if kind != "text"
        ),
    )  # fmt: skip
    return raw.selectExpr(
        "*", f"case {_problems(tables)} end as _problem", f"{_readable(tables)} as _readable"
    )


def _columns(tables: list[Table]) -> dict[str, ColumnKind]:
    return {name: table.kind(name) for table in tables for name in table.keep}


def _cell(name: str, tables: list[Table]) -> str:
    """Return Spark SQL for the cell of a column, whose index depends on the table."""
    indexes = " ".join(
        f"when '{table.name}' then {table.keep.index(name)}"
        for table in tables
        if name in table.keep
    )
    return f"get(_cells, case _table {indexes} else -1 end)"


def _parse(cell: str, kind: ColumnKind) -> str:
    if kind == "time":
        return f"try_to_timestamp({cell}, '{TIME}')"
    return decimals.parse_sql(cell)


def _has_column(name: str, tables: list[Table]) -> str:
    return f"_table in ({_quoted(table.name for table in tables if name in table.keep)})"


def _problems(tables: list[Table]) -> str:
    found = [
        "when _cells is null then 'truncated batch: its rows cannot be read'",
        "when not _whole then 'truncated row: wrong number of cells'",
    ]
    for name, kind in _columns(tables).items():
        unread = f"when {_has_column(name, tables)} and `{name}` is null"
        if kind == "time":
            found.append(f"{unread} then 'unreadable {name}'")
        elif kind == "decimal":
            found.append(f"{unread} and trim({_cell(name, tables)}) <> '' then 'unreadable {name}'")
    return " ".join(found)


def _readable(tables: list[Table]) -> str:
    times = [name for name, kind in _columns(tables).items() if kind == "time"]
    return " and ".join(
        ["_whole", *(f"not ({_has_column(name, tables)} and `{name}` is null)" for name in times)]
    )


def _routed(
    pipeline: Pipeline, tables: list[Table], rows: DataFrame, shards: int
) -> DataFrame:  # fmt: skip
    """Emit every row once for each of its routes, and once more if it cannot be read."""
    packing = packing_of(pipeline)
    names = {table.name for table in tables}
    emitted = [
        f"if({_matches(route)}, {_values(route, packing, shards)}, null)"
        for route in pipeline.routes
        if route.table in names
    ]
    emitted.append(_bad_row(packing, "_problem is not null", "_problem"))
    emitted += [
        _bad_row(packing, f"{_matches(route)} and ({sql}) is not null and {_sum(sql)} is null",
                 f"'the sum {name} of route {route.name} does not fit'")
        for route in pipeline.routes
        if route.table in names
        for name, sql in route.sums.items()
        if not sql.isidentifier() and not sql.isdecimal()  # those always fit
    ]  # fmt: skip
    return rows.selectExpr("_client", f"inline(array({', '.join(emitted)}))").where(
        "route is not null"
    )


def _matches(route: Route) -> str:
    return f"_table = '{route.table}' and _readable and ({route.where})"


def _bad_row(packing: Packing, condition: str, reason: str) -> str:
    row = _struct(packing, f"concat('{BAD_PREFIX}', _table)", "0", [reason, "to_json(_cells)"], [])
    return f"if({condition}, {row}, null)"


def _sum(sql: str) -> str:
    """Return the value of one row in a sum: null if it is computed and too large."""
    return f"try_cast({sql} as {SUM})"


def _values(route: Route, packing: Packing, shards: int) -> str:
    shard = f"pmod(xxhash64({route.select[route.shard]}), {shards})"
    sums = [f"coalesce({_sum(sql)}, 0)" for sql in route.sums.values()]
    return _struct(packing, f"'{route.name}'", shard, list(route.select.values()), sums)


def _struct(packing: Packing, route: str, shard: str, keys: list[str], sums: list[str]) -> str:
    keys = keys + ["null"] * (packing.keys - len(keys))
    sums = sums + ["0"] * (packing.sums - len(sums))
    fields = [("route", route, "string"), ("shard", shard, "int")]
    fields += [(f"k{i}", key, "string") for i, key in enumerate(keys)]
    fields += [(f"v{i}", value, SUM) for i, value in enumerate(sums)]
    values = ", ".join(f"'{name}', cast({sql} as {type_})" for name, sql, type_ in fields)
    return f"named_struct({values})"


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def pack(packing: Packing, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fold the rows of a task and pack them into messages, `FOLD_ROWS` rows at a time."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(one.num_rows for one in waiting) >= FOLD_ROWS:
            yield _packed(packing, waiting)
            waiting = []
    if waiting:
        yield _packed(packing, waiting)


def _packed(packing: Packing, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    table = pa.Table.from_batches(batches)
    out: list[tuple[str, str, str]] = []
    for route in pc.unique(table["route"]).to_pylist():
        rows = table.filter(pc.equal(table["route"], route))
        if route.startswith(BAD_PREFIX):
            out += _bad_messages(packing, route.removeprefix(BAD_PREFIX), rows)
        else:
            out += _messages(packing, route, rows)
    columns = zip(*out, strict=True) if out else ([], [], [])
    return pa.RecordBatch.from_arrays([pa.array(c, pa.string()) for c in columns], schema=OUTPUT)


def _messages(packing: Packing, route: str, rows: pa.Table) -> Iterator[tuple[str, str, str]]:
    select, sums = packing.routes[route]
    keys = [f"k{i}" for i in range(len(select))]
    values = [f"v{i}" for i in range(len(sums))]
    names = ["_client", "shard", *keys, *values]
    if sums:
        for value in values:
            # The sum of large amounts may have more digits than each of them.
            index = rows.column_names.index(value)
            rows = rows.set_column(index, value, rows[value].cast(WIDE_DECIMAL))
        rows = rows.group_by(names[: -len(sums)]).aggregate([(value, "sum") for value in values])
        rows = rows.rename_columns(
            [n.removesuffix("_sum") if n.startswith("v") else n for n in rows.column_names]
        )
    records = zip(*(rows[name].to_pylist() for name in names), strict=True)
    columns = [*select, *sums]
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for client, shard, *cells in records:
        cells[len(select) :] = [decimals.text(value) for value in cells[len(select) :]]
        found.setdefault((client, shard), []).append(dict(zip(columns, cells, strict=True)))
    for (client, shard), folded in found.items():
        for chunk in _chunks(folded):
            yield packing.shards, f"{shard:02d}", _text(Rows(client, route, chunk))


def _bad_messages(packing: Packing, table: str, rows: pa.Table) -> Iterator[tuple[str, str, str]]:
    found: dict[tuple[str, str], list[list[str]]] = {}
    for client, reason, cells in zip(
        rows["_client"].to_pylist(), rows["k0"].to_pylist(), rows["k1"].to_pylist(), strict=True
    ):
        found.setdefault((client, reason), []).append(msgspec.json.decode(cells) if cells else [])
    for (client, reason), records in found.items():
        for chunk in _chunks(records):
            yield packing.bad, client, _text(BadRows(client, table, reason, chunk))


def _chunks(records: list[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(records), MESSAGE_ROWS):
        yield records[start : start + MESSAGE_ROWS]


def _text(message: Rows | BadRows) -> str:
    return msgspec.json.encode(message).decode()
