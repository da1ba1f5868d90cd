"""The queries of a pipeline, run by SQLite over the folded rows.

A declaration is checked by running its queries on empty tables through the same functions.
"""

from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import apsw
import apsw.ext

from ..errors import InvalidArgument
from .aggregator import fold
from .decimals import add, rounded, sortable, text
from .declaration import Pipeline, Query, Route
from .messages import Rows

Record = dict[str, Any]


def answers(pipeline: Pipeline, folded: list[Rows]) -> dict[str, list[Record]]:
    """Return the answer of every query over the folded rows."""
    db = _open()
    for route in pipeline.routes:
        rows = (row for message in folded if message.route == route.name for row in message.rows)
        _create_table(db, route, rows)
    found = {}
    for query in pipeline.queries:
        try:
            found[query.name] = _run(db, query)
        except (apsw.Error, ValueError) as error:
            raise InvalidArgument(f"query {query.name!r} failed: {error}") from error
    return found


def check_queries(pipeline: Pipeline) -> None:
    """Run every query on empty tables; raise InvalidArgument naming the first that fails."""
    db = _open()
    for route in pipeline.routes:
        try:
            _create_table(db, route, [])
        except apsw.Error as error:
            raise InvalidArgument(f"route {route.name!r} cannot be a table: {error}") from error
    for query in pipeline.queries:
        try:
            problem = _problem(db, query)
        except apsw.Error as error:
            problem = str(error)
        if problem is not None:
            raise InvalidArgument(f"query {query.name!r} is invalid: {problem}")


def _problem(db: apsw.Connection, query: Query) -> str | None:
    plan = apsw.ext.query_info(db, query.sql)
    if (plan.query_remaining or "").strip(" \t\r\n;"):
        return "it has more than one statement"
    columns = Counter(name for name, *_ in plan.description)
    if not columns or not plan.is_readonly:
        return "it is not a SELECT statement"
    for name, n in columns.items():
        if n > 1:
            return f"{n} columns of its answer are named {name!r}"
    _run(db, query)
    return None


def _open() -> apsw.Connection:
    db = apsw.Connection(":memory:")
    # By default SQLite reads an unknown name in double quotes as a string, without an error.
    db.config(apsw.SQLITE_DBCONFIG_DQS_DML, 0)
    for name, function in (("money", _money), ("whole", _whole), ("compare", _compare)):
        db.create_scalar_function(name, function, 1, deterministic=True)
    db.create_aggregate_function("dsum", _Sum, 1)
    return db


def _create_table(db: apsw.Connection, route: Route, rows: Iterable[Record]) -> None:
    folded = fold(route, rows)
    names = [*route.select, *route.sums]
    # Answers must not depend on the order in which rows arrived.
    folded.sort(key=lambda row: tuple(str(row.get(name)) for name in names))
    columns = ", ".join(f'"{name}"' for name in names)
    db.execute(f'create table "{route.name}" ({columns})')
    placeholders = ", ".join("?" * len(names))
    db.executemany(
        f'insert into "{route.name}" values ({placeholders})',
        [[row.get(name) for name in names] for row in folded],
    )


def _run(db: apsw.Connection, query: Query) -> list[Record]:
    cursor = db.cursor()
    records = []
    for row in cursor.execute(query.sql):
        names = [column[0] for column in cursor.get_description()]
        pairs = zip(names, row, strict=True)
        records.append({name: value for name, value in pairs if value is not None})
    return records


class _Sum:
    """The SQL aggregate `dsum`: an exact sum of decimals."""

    def __init__(self) -> None:
        self.total = Decimal(0)

    def step(self, *values: Any) -> None:
        for value in values:
            self.total = add(self.total, _number(value))

    def final(self) -> str:
        return text(self.total)


def _number(value: Any) -> Decimal:
    try:
        return Decimal(value or 0)
    except (ArithmeticError, TypeError):
        raise ValueError(f"{value!r} is not a number") from None


def _money(*values: Any) -> float:
    return float(rounded(_number(values[0]), 2))


def _whole(*values: Any) -> int | str:
    number = int(_number(values[0]))
    # A number that does not fit SQLite's integers must not stop the finisher.
    return number if -(2**63) <= number < 2**63 else str(number)


def _compare(*values: Any) -> str:
    """Sort key of a decimal, which is stored as text and would sort by its characters."""
    return sortable(_number(values[0]))
