"""What the router's tasks do with the rows of a batch: read, judge, choose, fold, pack.

All tables are one pass without a shuffle: every row becomes a short list of (route, shard, values),
and the task that writes folds these and packs them into messages, a few for each shard.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from . import decimals
from .decimals import SUM
from .declaration import Kind, Pipeline, Route, Table
from .messages import Bad, Rows

TIME = "yyyy-MM-dd HH:mm:ss"
SHAPE = "client string, table string, rows array<array<string>>"
BAD = "!"
FOLD_ROWS = 200_000
MESSAGE_ROWS = 10_000
WIDE = pa.decimal256(76, decimals.SCALE)
OUT = pa.schema([("queue", pa.string()), ("partition", pa.string()), ("payload", pa.string())])

Shape = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class Packing(msgspec.Struct, frozen=True):
    """What a task must know of a pipeline to pack its rows; travels to the executors."""

    shards: str
    bad: str
    routes: dict[str, tuple[list[str], list[str]]]

    @property
    def keys(self) -> int:
        # What cannot be read needs two: why, and the cells.
        return max(2, *(len(select) for select, _ in self.routes.values()))

    @property
    def sums(self) -> int:
        return max(len(sums) for _, sums in self.routes.values())


def packing(pipeline: Pipeline) -> Packing:
    return Packing(
        pipeline.shards, pipeline.bad,
        {route.name: (list(route.select), list(route.sums)) for route in pipeline.routes},
    )  # fmt: skip


def packer(pipeline: Pipeline) -> Shape:
    """The function that makes messages of chosen rows, run by each task on its own."""
    return partial(pack, packing(pipeline))


def chosen(pipeline: Pipeline, messages: DataFrame, shards: int) -> DataFrame:
    """The rows of messages, of which the payload is given, as (_client, route, shard, values)."""
    found: DataFrame | None = None
    for tables in together(pipeline.tables):
        part = _routed(pipeline, tables, _typed(messages, tables), shards)
        found = part if found is None else found.union(part)
    assert found is not None
    return found


def together(tables: Sequence[Table]) -> list[list[Table]]:
    """Tables that can be read in one pass: a column they share is the same in all of them."""
    groups: list[list[Table]] = []
    for table in tables:
        for group in groups:
            if not any(_differ(table, other) for other in group):
                group.append(table)
                break
        else:
            groups.append([table])
    return groups


def _differ(one: Table, other: Table) -> bool:
    """Whether a column is of two kinds, or written in two ways, which Spark takes for one."""
    others = {name.lower(): name for name in other.keep}
    return any(
        (name, one.kind(name)) != (same, other.kind(same))
        for name in one.keep
        if (same := others.get(name.lower())) is not None
    )


def _typed(messages: DataFrame, tables: list[Table]) -> DataFrame:
    """The rows of tables with their columns by name; `_problem` says what cannot be read."""
    read = messages.selectExpr(f"from_json(payload, '{SHAPE}') as m")
    cells = read.where(f"m.table in ({_texts(table.name for table in tables)})").selectExpr(
        "m.table as _table", "m.client as _client",
        "explode(coalesce(m.rows, array(cast(null as array<string>)))) as _cells",
    )  # fmt: skip
    widths = " ".join(f"when '{table.name}' then {len(table.keep)}" for table in tables)
    columns = _columns(tables)
    raw = cells.selectExpr(
        "_table", "_client", "_cells", f"size(_cells) <=> (case _table {widths} end) as _whole",
        *(f"{_cell(name, tables)} as `{name}`" for name, kind in columns.items() if kind == "text"),
        *(
            f"{_read(_cell(name, tables), kind)} as `{name}`"
            for name, kind in columns.items()
            if kind != "text"
        ),
    )  # fmt: skip
    return raw.selectExpr(
        "*", f"case {_problems(tables)} end as _problem", f"{_readable(tables)} as _readable"
    )


def _columns(tables: list[Table]) -> dict[str, Kind]:
    return {name: table.kind(name) for table in tables for name in table.keep}


def _cell(name: str, tables: list[Table]) -> str:
    """Where a column is, which depends on the table."""
    places = " ".join(
        f"when '{table.name}' then {table.keep.index(name)}"
        for table in tables
        if name in table.keep
    )
    return f"get(_cells, case _table {places} else -1 end)"


def _read(cell: str, kind: Kind) -> str:
    if kind == "time":
        return f"try_to_timestamp({cell}, '{TIME}')"
    return decimals.read(cell)


def _having(name: str, tables: list[Table]) -> str:
    return f"_table in ({_texts(table.name for table in tables if name in table.keep)})"


def _problems(tables: list[Table]) -> str:
    found = [
        "when _cells is null then 'truncated batch: its rows cannot be read'",
        "when not _whole then 'truncated row: not as many cells as columns'",
    ]
    for name, kind in _columns(tables).items():
        unread = f"when {_having(name, tables)} and `{name}` is null"
        if kind == "time":
            found.append(f"{unread} then 'unreadable {name}'")
        elif kind == "decimal":
            found.append(f"{unread} and trim({_cell(name, tables)}) <> '' then 'unreadable {name}'")
    return " ".join(found)


def _readable(tables: list[Table]) -> str:
    times = [name for name, kind in _columns(tables).items() if kind == "time"]
    return " and ".join(
        ["_whole", *(f"not ({_having(name, tables)} and `{name}` is null)" for name in times)]
    )


def _routed(
    pipeline: Pipeline, tables: list[Table], rows: DataFrame, shards: int
) -> DataFrame:  # fmt: skip
    """Every row as often as it has routes, and once more if it cannot be read."""
    shape = packing(pipeline)
    names = {table.name for table in tables}
    parts = [
        f"if({_taken(route)}, {_values(route, shape, shards)}, null)"
        for route in pipeline.routes
        if route.table in names
    ]
    parts.append(_told(shape, "_problem is not null", "_problem"))
    parts += [
        _told(shape, f"{_taken(route)} and ({code}) is not null and {_sum(code)} is null",
              f"'the sum {name} of route {route.name} does not fit'")
        for route in pipeline.routes
        if route.table in names
        for name, code in route.sums.items()
        if not code.isidentifier() and not code.isdecimal()  # those always fit
    ]  # fmt: skip
    return rows.selectExpr("_client", f"inline(array({', '.join(parts)}))").where(
        "route is not null"
    )


def _taken(route: Route) -> str:
    return f"_table = '{route.table}' and _readable and ({route.where})"


def _told(shape: Packing, when: str, why: str) -> str:
    told = _struct(shape, f"concat('{BAD}', _table)", "0", [why, "to_json(_cells)"], [])
    return f"if({when}, {told}, null)"


def _sum(code: str) -> str:
    """The value of one row in a sum. It may be computed, and then be too large."""
    return f"try_cast({code} as {SUM})"


def _values(route: Route, shape: Packing, shards: int) -> str:
    shard = f"pmod(xxhash64({route.select[route.shard]}), {shards})"
    sums = [f"coalesce({_sum(code)}, 0)" for code in route.sums.values()]
    return _struct(shape, f"'{route.name}'", shard, list(route.select.values()), sums)


def _struct(shape: Packing, route: str, shard: str, keys: list[str], sums: list[str]) -> str:
    keys = keys + ["null"] * (shape.keys - len(keys))
    sums = sums + ["0"] * (shape.sums - len(sums))
    fields = [("route", route, "string"), ("shard", shard, "int")]
    fields += [(f"k{i}", key, "string") for i, key in enumerate(keys)]
    fields += [(f"v{i}", value, SUM) for i, value in enumerate(sums)]
    listed = ", ".join(f"'{name}', cast({code} as {kind})" for name, code, kind in fields)
    return f"named_struct({listed})"


def _texts(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def pack(shape: Packing, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fold the rows of a task and pack them into messages, some ten thousand rows at a time."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(one.num_rows for one in waiting) >= FOLD_ROWS:
            yield _packed(shape, waiting)
            waiting = []
    if waiting:
        yield _packed(shape, waiting)


def _packed(shape: Packing, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    table = pa.Table.from_batches(batches)
    out: list[tuple[str, str, str]] = []
    for route in pc.unique(table["route"]).to_pylist():
        rows = table.filter(pc.equal(table["route"], route))
        if route.startswith(BAD):
            out += _bad_messages(shape, route.removeprefix(BAD), rows)
        else:
            out += _messages(shape, route, rows)
    columns = zip(*out, strict=True) if out else ([], [], [])
    return pa.RecordBatch.from_arrays([pa.array(c, pa.string()) for c in columns], schema=OUT)


def _messages(shape: Packing, route: str, rows: pa.Table) -> Iterator[tuple[str, str, str]]:
    select, sums = shape.routes[route]
    keys = [f"k{i}" for i in range(len(select))]
    values = [f"v{i}" for i in range(len(sums))]
    names = ["_client", "shard", *keys, *values]
    if sums:
        for value in values:
            # A sum of the largest amounts has more digits than one of them.
            at = rows.column_names.index(value)
            rows = rows.set_column(at, value, rows[value].cast(WIDE))
        rows = rows.group_by(names[: -len(sums)]).aggregate([(value, "sum") for value in values])
        rows = rows.rename_columns(
            [n.removesuffix("_sum") if n.startswith("v") else n for n in rows.column_names]
        )
    plain = zip(*(rows[name].to_pylist() for name in names), strict=True)
    heads = [*select, *sums]
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for client, shard, *cells in plain:
        cells[len(select) :] = [decimals.text(value) for value in cells[len(select) :]]
        found.setdefault((client, shard), []).append(dict(zip(heads, cells, strict=True)))
    for (client, shard), records in found.items():
        for some in _cut(records):
            yield shape.shards, f"{shard:02d}", _text(Rows(client, route, some))


def _bad_messages(shape: Packing, table: str, rows: pa.Table) -> Iterator[tuple[str, str, str]]:
    found: dict[tuple[str, str], list[list[str]]] = {}
    for client, why, cells in zip(
        rows["_client"].to_pylist(), rows["k0"].to_pylist(), rows["k1"].to_pylist(), strict=True
    ):
        found.setdefault((client, why), []).append(msgspec.json.decode(cells) if cells else [])
    for (client, why), records in found.items():
        for some in _cut(records):
            yield shape.bad, client, _text(Bad(client, table, why, some))


def _cut(records: list[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(records), MESSAGE_ROWS):
        yield records[start : start + MESSAGE_ROWS]


def _text(message: Rows | Bad) -> str:
    return msgspec.json.encode(message).decode()
