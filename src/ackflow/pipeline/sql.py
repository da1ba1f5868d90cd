"""What a declaration becomes on Spark: expressions that parse cells, filter, select and fold rows.

    block ──► records ──► typed rows ──► emitted rows ──► folded rows
              (split)     (from_csv)     (client, route,   (groupBy per batch,
                                          k0…, v0…)         then over all batches)

Every row is parsed once, and emitted once for each route that takes it. Keys are stored as text and
read back with their type; sums are decimals. `n` counts equal rows. A row that cannot be read is
emitted for the route `_bad`.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from .declaration import Pipeline, Route, Table

SCALE = 18
DECIMAL = f"decimal(34,{SCALE})"
SUM = f"decimal(38,{SCALE})"
TIME = "^[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}$"
BAD = "_bad"
MAX_BAD = 65_536  # characters of a row in a dead letter
SAME_WHEN_EMPTY = ("text", "time", "decimal")  # kinds that read an empty cell and null alike

# A field is quoted or not; a quote within quotes is doubled.
_FIELD = r'(?:"[^"]*+(?:""[^"]*+)*+"[^,\n]*+|[^,\n]*+)'
RECORD = f"{_FIELD}(?:,{_FIELD})*+"


def spark_type(kind: str) -> str:
    """Return the Spark type of a kind of column."""
    return {"text": "string", "time": "timestamp", "decimal": DECIMAL}.get(kind, kind)


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


class Stored(NamedTuple):
    """A route as it is stored: its keys (name, expression, Spark type) and its sums."""

    name: str
    table: str
    where: str
    keys: list[tuple[str, str, str]]
    sums: list[tuple[str, str]]

    @property
    def added(self) -> dict[int, str]:
        """The sums that are added up, by their position; one of a literal follows from `n`."""
        return {i: sql for i, (_, sql) in enumerate(self.sums) if not is_count(sql)}


def is_count(sql: str) -> bool:
    """Return whether a sum adds the same integer for each row."""
    return sql.isdecimal() and len(sql) < 10


class Layout(NamedTuple):
    """How the rows of all routes are stored: each uses the first columns of its kind."""

    stored: list[Stored]

    @property
    def keys(self) -> list[str]:
        # A bad row uses three: the reason, the row, and its table.
        return [f"k{i}" for i in range(max(3, *(len(one.keys) for one in self.stored)))]

    @property
    def sums(self) -> list[str]:
        return [f"v{i}" for i in range(max(max(one.added, default=-1) for one in self.stored) + 1)]

    def schema(self) -> str:
        """Return the schema of stored rows as DDL."""
        keys = [f"{name} string" for name in self.keys]
        return ", ".join([*keys, "n bigint", *(f"{name} {SUM}" for name in self.sums)])

    def find(self, name: str) -> Stored:
        return next(one for one in self.stored if one.name == name)


def empty_rows(spark: SparkSession, table: Table, names: Iterable[str]) -> DataFrame:
    """Return no rows of a table, with the types of its columns."""
    columns = [f"cast(null as {spark_type(table.kind(n))}) as {quoted(n)}" for n in names]
    return spark.range(0).selectExpr(*columns)


def selected(route: Route) -> dict[str, str]:
    """Return the columns of a route that are not sums, with their expressions."""
    if route.window is None:
        return dict(route.select)
    seconds = f"unix_seconds({quoted(route.window.column)})"
    begin = f"timestamp_seconds({seconds} - pmod({seconds}, {route.window.seconds}))"
    return {**route.select, route.window.name: begin}


def needed(route: Route, table: Table) -> list[str]:
    """Return the columns of a table that a route with a join may use."""
    assert route.join is not None
    texts = [route.where, *selected(route).values(), *route.sums.values()]
    words = {word.casefold() for text in texts for word in re.findall(r"\w+", text)}
    on = set(route.join.on)
    return [n for n in table.kept if n in on or set(re.findall(r"\w+", n.casefold())) <= words]


def joined_name(route: Route) -> str:
    """Return the name under which the joined table of a route is stored."""
    return f"_{route.name}_joined"


def layout_of(spark: SparkSession, pipeline: Pipeline) -> Layout:
    """Return how the rows of a pipeline's routes are stored; Spark finds their types.

    A route with a join is stored as the columns it needs of both tables, and joined when the
    tables are complete.
    """
    stored = []
    for route in pipeline.routes:
        table = pipeline.table_of(route)
        if route.join is None:
            rows = empty_rows(spark, table, table.kept)
            values = selected(route)
            typed = rows.selectExpr(*(f"{sql} as {quoted(name)}" for name, sql in values.items()))
            keys = [
                (name, sql, field.dataType.simpleString())
                for (name, sql), field in zip(values.items(), typed.schema.fields, strict=True)
            ]
            sums = list(route.sums.items())
            stored.append(Stored(route.name, route.table, route.where, keys, sums))
            continue
        other = pipeline.table(route.join.table)
        assert other is not None
        for name, one in ((route.name, table), (joined_name(route), other)):
            columns = [(n, quoted(n), spark_type(one.kind(n))) for n in needed(route, one)]
            stored.append(Stored(name, one.name, "true", columns, []))
    return Layout(stored)


# Parsing


def records(blocks: DataFrame, format: str, plain: bool = False) -> DataFrame:
    """Return blocks as (_client, _lines): their records, without empty ones.

    `plain`: the blocks are CSV in ASCII without quotes. A record may end with a CR then.
    """
    text = "cast(payload as string)"
    if not plain:
        text = f"replace(make_valid_utf8({text}), '\\r\\n', '\\n')"
    lines = f"split({text}, '\\n')"
    if format == "csv" and not plain:
        whole = f"regexp_extract_all({text}, {literal(RECORD)}, 0)"
        lines = f"if(headers['quoted'] = 'true', {whole}, {lines})"
    lines = f"array_remove({lines}, '')"
    if plain:
        lines = f"array_remove({lines}, '\\r')"
    return blocks.selectExpr("headers['client'] as _client", f"{lines} as _lines")


def cells(
    records: DataFrame, table: Table, format: str, columns: Sequence[str], plain: bool = False
) -> DataFrame:
    """Return the rows of records of one table as (_client, _line, _whole, _c0…), all text."""
    lines = records.selectExpr("_client", "explode(_lines) as _line")
    if plain:
        return _plain_cells(lines, table, columns)
    return _csv_cells(lines, table, columns) if format == "csv" else _json_cells(lines, table.kept)


def _plain_cells(lines: DataFrame, table: Table, columns: Sequence[str]) -> DataFrame:
    """Split lines at their commas. The last cell may end with a CR."""
    rows = lines.selectExpr("_client", "_line", "split(_line, ',') as _a")
    last = len(columns) - 1
    values = []
    for n, name in enumerate(table.kept):
        i = list(columns).index(name)
        cell = without_cr(f"get(_a, {i})") if i == last else f"get(_a, {i})"
        values.append(f"{_cell(cell, table.kind(name))} as _c{n}")
    return rows.selectExpr("_client", "_line", f"size(_a) = {len(columns)} as _whole", *values)


def without_cr(text: str) -> str:
    """Return Spark SQL for a text without the CR at its end."""
    return f"if(endswith({text}, '\\r'), left({text}, length({text}) - 1), {text})"


def _cell(cell: str, kind: str) -> str:
    """Return Spark SQL for an unquoted cell: an empty one is null, as from_csv has it."""
    return cell if kind in SAME_WHEN_EMPTY else f"if({cell} = '', null, {cell})"


def _csv_cells(lines: DataFrame, table: Table, columns: Sequence[str]) -> DataFrame:
    """A line without quotes is split at its commas, which takes a third of the time of from_csv."""
    quotes = "contains(_line, '\"')"
    schema = ", ".join([*(f"c{i} string" for i in range(len(columns))), "bad string"])
    options = "map('columnNameOfCorruptRecord', 'bad', 'escape', '\"')"
    rows = lines.selectExpr(
        "_client", "_line", f"if({quotes}, null, split(_line, ',')) as _a",
        f"if({quotes}, from_csv(_line, '{schema}', {options}), null) as _r",
    )  # fmt: skip
    values = []
    for n, name in enumerate(table.kept):
        i = list(columns).index(name)
        values.append(f"coalesce({_cell(f'get(_a, {i})', table.kind(name))}, _r.c{i}) as _c{n}")
    whole = f"if(_a is null, _r.bad is null, size(_a) = {len(columns)}) as _whole"
    return rows.selectExpr("_client", "_line", whole, *values)


def _json_cells(lines: DataFrame, kept: Sequence[str]) -> DataFrame:
    schema = ", ".join([*(f"{quoted(name)} string" for name in kept), "`_bad` string"])
    options = "map('columnNameOfCorruptRecord', '_bad')"
    rows = lines.selectExpr(
        "_client", "_line", f"from_json(_line, {literal(schema)}, {options}) as _r"
    )
    values = [f"_r.{quoted(name)} as _c{n}" for n, name in enumerate(kept)]
    return rows.selectExpr("_client", "_line", "_r.`_bad` is null as _whole", *values)


def typed(rows: DataFrame, table: Table) -> DataFrame:
    """Return rows with typed columns; `_problem` says what cannot be read.

    `_readable`: the row is whole, and its times can be read.
    """
    kept = table.kept
    values = [f"{parse_sql(f'_c{i}', table.kind(n))} as {quoted(n)}" for i, n in enumerate(kept)]
    problems = ["when not _whole then 'truncated row: wrong number of cells'"]
    times = []
    for i, name in enumerate(kept):
        kind, column = table.kind(name), quoted(name)
        if is_time(kind):
            times.append(f"{column} is not null")
            problems.append(f"when {column} is null then {literal(f'unreadable {name}')}")
        elif kind != "text":
            unread = f"{column} is null and trim(coalesce(_c{i}, '')) <> ''"
            problems.append(f"when {unread} then {literal(f'unreadable {name}')}")
    return rows.selectExpr("*", *values).selectExpr(
        "*", f"case {' '.join(problems)} end as _problem",
        f"{' and '.join(['_whole', *times])} as _readable",
    )  # fmt: skip


def is_time(kind: str) -> bool:
    return kind in ("time", "date") or kind.startswith("timestamp")


def parse_sql(cell: str, kind: str) -> str:
    """Return Spark SQL that parses a cell: null if it cannot be read as this kind."""
    if kind == "text":
        return f"coalesce({cell}, '')"
    if kind == "time":
        return f"if({cell} rlike '{TIME}', try_cast({cell} as timestamp), null)"
    if kind == "decimal":
        return _decimal_sql(cell)
    return f"try_cast(trim({cell}) as {kind})"


def _decimal_sql(cell: str) -> str:
    """Return Spark SQL for an exact decimal: null if the cell is no number or does not fit."""
    number = f"trim({cell})"
    fraction = f"regexp_extract({number}, '[.]([0-9]*?)0*([eE]|$)', 1)"
    exponent = f"coalesce(try_cast(regexp_extract({number}, '[eE](.*)$', 1) as int), 0)"
    # Almost every cell is too short to have more digits than fit, which is cheap to test.
    short = (
        f"(octet_length({cell}) <= {SCALE + 1} and not contains({cell}, 'e') "
        f"and not contains({cell}, 'E'))"
    )
    exact = f"({short} or length({fraction}) - {exponent} <= {SCALE})"
    return f"if({exact}, try_cast({number} as {DECIMAL}), null)"


# Routing and folding


def emitted(rows: DataFrame, table: Table, layout: Layout) -> DataFrame:
    """Emit every typed row once for each route that takes it, and once more if it is bad."""
    found = []
    for one in (one for one in layout.stored if one.table == table.name):
        matches = f"_readable and ({one.where})"
        keys = [f"cast({sql} as string)" for _, sql, _ in one.keys]
        sums = [f"coalesce({_sum(one.added[i])}, 0)" if i in one.added else "null"
                for i in range(len(one.sums))]  # fmt: skip
        found.append(_emit(layout, matches, one.name, keys, sums))
        for name, sql in one.sums:
            if sql.isidentifier() or sql.isdecimal():
                continue  # always fits
            reason = literal(f"the sum {name} of route {one.name} does not fit")
            lost = f"{matches} and ({sql}) is not null and {_sum(sql)} is null"
            found.append(_emit(layout, lost, BAD, _bad(reason, table), []))
    found.append(_emit(layout, "_problem is not null", BAD, _bad("_problem", table), []))
    return rows.selectExpr("_client as client", f"inline(array({', '.join(found)}))").where(
        "route is not null"
    )


def _bad(reason: str, table: Table) -> list[str]:
    return [reason, f"left({without_cr('_line')}, {MAX_BAD})", literal(table.name)]


def _sum(sql: str) -> str:
    """Return the value of one row in a sum: null if it is computed and too large."""
    return f"try_cast({sql} as {SUM})"


def _emit(layout: Layout, condition: str, route: str, keys: list[str], sums: list[str]) -> str:
    fields = [("route", literal(route), "string"), ("n", "1", "bigint")]
    fields += [(name, sql, "string") for name, sql in _padded(layout.keys, keys)]
    fields += [(name, sql, SUM) for name, sql in _padded(layout.sums, sums)]
    values = ", ".join(f"'{name}', cast({sql} as {type_})" for name, sql, type_ in fields)
    return f"if({condition}, named_struct({values}), null)"


def _padded(names: list[str], values: list[str]) -> list[tuple[str, str]]:
    return [(name, values[i] if i < len(values) else "null") for i, name in enumerate(names)]


def folded(rows: DataFrame, layout: Layout, *, again: bool = False) -> DataFrame:
    """Fold equal rows of a route into one.

    A sum that does not fit is null, and remains null when rows are folded `again`.
    """
    values = {v: f"try_sum({v})" for v in layout.sums}
    if again:
        values = {v: f"if(bool_or({v} is null), null, {sql})" for v, sql in values.items()}
    sums: list[Column] = [F.expr(sql).alias(v) for v, sql in values.items()]
    keys = ["client", "route", *layout.keys]
    return rows.groupBy(*keys).agg(F.expr("sum(n)").alias("n"), *sums)


def view_sql(route: Route) -> str | None:
    """Return the query that makes a route of its stored rows; None if they are the route.

    The stored rows of routes are the views `_stored_<name>`.
    """
    rows = quoted(f"_stored_{route.name}")
    columns = ", ".join(quoted(name) for name in [*route.keys, *route.sums])
    if route.join is not None:
        on = ", ".join(quoted(name) for name in route.join.on)
        other = quoted(f"_stored_{joined_name(route)}")
        values = [f"{sql} as {quoted(name)}" for name, sql in selected(route).items()]
        values += [
            f"coalesce(sum({_sum(sql)}), 0) as {quoted(name)}" for name, sql in route.sums.items()
        ]
        group = ", ".join(str(i + 1) for i in range(len(route.keys))) or "true"
        rows = (
            f"(select {', '.join(values)} from {rows} {route.join.kind} join {other} "
            f"using ({on}) where {route.where}{f' group by {group}' if route.sums else ''})"
        )
    if route.top is not None:
        per = ", ".join(quoted(name) for name in route.top.per)
        within = f"partition by {per} " if per else ""
        rows = (
            f"(select {columns} from (select *, row_number() over ({within}order by "
            f"{route.top.by}) as _place from {rows}) where _place <= {route.top.n})"
        )
    return None if rows.startswith("`") else f"select {columns} from {rows}"
