"""The questions of a pipeline, answered by SQLite over the folded rows.

A declaration is tried out on empty tables by the same functions, so what passed there can be asked.
"""

from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import apsw
import apsw.ext

from ..errors import InvalidArgument
from .aggregate import fold
from .decimals import add, rounded, sortable, text
from .declaration import Pipeline, Query, Route
from .messages import Rows

Record = dict[str, Any]


def answers(pipeline: Pipeline, parts: list[Rows]) -> dict[str, list[Record]]:
    """The answer of every query over the folded rows."""
    db = _opened()
    for route in pipeline.routes:
        _fill(db, route, (row for part in parts if part.route == route.name for row in part.rows))
    found = {}
    for query in pipeline.queries:
        try:
            found[query.name] = _asked(db, query)
        except (apsw.Error, ValueError) as error:
            raise InvalidArgument(f"query {query.name!r} cannot be answered: {error}") from error
    return found


def try_out(pipeline: Pipeline) -> None:
    """Ask every question without any rows; refuse what cannot be asked, naming it."""
    db = _opened()
    for route in pipeline.routes:
        try:
            _fill(db, route, [])
        except apsw.Error as error:
            raise InvalidArgument(f"route {route.name!r} cannot be a table: {error}") from error
    for query in pipeline.queries:
        try:
            problem = _problem(db, query)
        except apsw.Error as error:
            problem = str(error)
        if problem is not None:
            raise InvalidArgument(f"query {query.name!r} cannot be asked: {problem}")


def _problem(db: apsw.Connection, query: Query) -> str | None:
    plan = apsw.ext.query_info(db, query.sql)
    if (plan.query_remaining or "").strip(" \t\r\n;"):
        return "it has more than one statement"
    heads = Counter(head for head, *_ in plan.description)
    if not heads or not plan.is_readonly:
        return "it is no select"
    for head, n in heads.items():
        if n > 1:
            return f"{n} columns of its answer are named {head!r}"
    _asked(db, query)
    return None


def _opened() -> apsw.Connection:
    db = apsw.Connection(":memory:")
    # SQLite would take a column in double quotes that is not there for a text, and tell nobody.
    db.config(apsw.SQLITE_DBCONFIG_DQS_DML, 0)
    for name, function in (("money", _money), ("whole", _whole), ("compare", _compare)):
        db.create_scalar_function(name, function, 1, deterministic=True)
    db.create_aggregate_function("dsum", _Sum, 1)
    return db


def _fill(db: apsw.Connection, route: Route, rows: Iterable[Record]) -> None:
    folded = fold(route, rows)
    names = [*route.select, *route.sums]
    # The order in which rows came must not show in an answer.
    folded.sort(key=lambda row: tuple(str(row.get(name)) for name in names))
    columns = ", ".join(f'"{name}"' for name in names)
    db.execute(f'create table "{route.name}" ({columns})')
    marks = ", ".join("?" * len(names))
    db.executemany(
        f'insert into "{route.name}" values ({marks})',
        [[row.get(name) for name in names] for row in folded],
    )


def _asked(db: apsw.Connection, query: Query) -> list[Record]:
    cursor = db.cursor()
    records = []
    for row in cursor.execute(query.sql):
        heads = [column[0] for column in cursor.get_description()]
        pairs = zip(heads, row, strict=True)
        records.append({name: value for name, value in pairs if value is not None})
    return records


class _Sum:
    """An exact sum of decimals."""

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
        raise ValueError(f"{value!r} is no number") from None


def _money(*values: Any) -> float:
    return float(rounded(_number(values[0]), 2))


def _whole(*values: Any) -> int | str:
    found = int(_number(values[0]))
    # SQLite has no larger whole numbers, and one client's must not stop the finisher.
    return found if -(2**63) <= found < 2**63 else str(found)


def _compare(*values: Any) -> str:
    """Decimals are kept as text, which does not sort by value as it is."""
    return sortable(_number(values[0]))
