"""Checks a declaration on Spark: its expressions and queries over empty tables, and explains it."""

import logging
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    AtomicType,
    BinaryType,
    DateType,
    StructType,
    TimestampType,
)

from ..errors import InvalidArgument
from ..spark import register
from .declaration import Pipeline, Query, Route, Table
from .partials import create_route_views, create_view, no_rows
from .sql import (
    SUM,
    Layout,
    empty_rows,
    joined_name,
    layout_of,
    quoted,
    selected,
    spark_type,
    view_sql,
)
from .supervisor import error_summary


class Checking:
    """The check of a declaration, beside the start of what needs only its layout.

    The format `ackflow` is registered meanwhile.
    """

    def __init__(self, spark: SparkSession, pipeline: Pipeline) -> None:
        pool = ThreadPoolExecutor(2, "ackflow-check")
        registered = pool.submit(register, spark)
        try:
            self.layout = layout_of(spark, pipeline)
        except PySparkException:
            check_on_spark(spark, pipeline)  # says what is wrong, and where
            raise
        self._found = pool.submit(check_on_spark, spark, pipeline)
        pool.shutdown(wait=False)
        registered.result()

    def wait(self) -> None:
        """Return when the declaration is checked; raise InvalidArgument if it cannot be used."""
        self._found.result()


def check_on_spark(spark: SparkSession, pipeline: Pipeline) -> Layout:
    """Return the layout of a pipeline; raise InvalidArgument for what Spark cannot analyse."""
    # Spark would log the same problem with two hundred lines of stack trace.
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    for table in pipeline.tables:
        _check_kinds(spark, table)
    for route in pipeline.routes:
        _check_route(spark, pipeline, route)
    layout = layout_of(spark, pipeline)
    for stored in layout.stored:
        for name, _, kind in stored.keys:
            if kind.startswith(("array", "map", "struct", "binary", "interval", "variant", "void")):
                raise InvalidArgument(
                    f"{name!r} of route {stored.name!r} is of type {kind}, which a route cannot "
                    "have: make it a text, a number, a date or a time"
                )
    session = spark.newSession()
    for stored in layout.stored:
        create_view(session, stored, no_rows(session, layout))
    for route in pipeline.routes:
        _check_view(session, route)
    create_route_views(session, pipeline)
    for query in pipeline.queries:
        _check_query(session, query)
    return layout


def _check_kinds(spark: SparkSession, table: Table) -> None:
    for name in table.kept:
        try:
            (field,) = empty_rows(spark, table, [name]).schema.fields
        except PySparkException as error:
            raise InvalidArgument(
                f"the kind of column {name!r} of table {table.name!r} is not text, time, decimal "
                f"or a Spark type: {table.kind(name)!r}: {error_summary(error)}"
            ) from None
        if not isinstance(field.dataType, AtomicType) or isinstance(field.dataType, BinaryType):
            raise InvalidArgument(
                f"the kind of column {name!r} of table {table.name!r} cannot be "
                f"{table.kind(name)!r}: use text, a number, a date or a time"
            )


def _check_route(spark: SparkSession, pipeline: Pipeline, route: Route) -> None:
    """Check each expression over the columns of the route's own tables, one row at a time."""
    table = pipeline.table_of(route)
    rows = empty_rows(spark, table, table.kept)
    if route.join is not None:
        other = pipeline.table(route.join.table)
        assert other is not None
        rows = rows.join(empty_rows(spark, other, other.kept), list(route.join.on), route.join.kind)
    if route.window is not None:
        kind = empty_rows(spark, table, [route.window.column]).schema.fields[0].dataType
        if not isinstance(kind, TimestampType | DateType):
            raise InvalidArgument(
                f"the window of route {route.name!r} is over {route.window.column!r}, "
                "which is not a time"
            )
    conditions = list(_conditions(route))
    # One analysis of all expressions is faster than one each, and almost always succeeds.
    if _analysis_error(rows, " and ".join(f"({sql})" for _, _, sql in conditions)) is None:
        return
    for what, sql, condition in conditions:
        if problem := _analysis_error(rows, condition):
            raise InvalidArgument(f"{what} of route {route.name!r} is {sql!r}: {problem}")


def _conditions(route: Route) -> Iterator[tuple[str, str, str]]:
    """Yield every expression of a route: its name, its SQL, and a condition that contains it.

    In a condition Spark accepts only expressions over one row, no aggregates.
    """
    yield "where", route.where, route.where
    for name, sql in route.select.items():
        yield repr(name), sql, f"({sql}) is null"
    for name, sql in route.sums.items():
        yield repr(name), sql, f"try_cast({sql} as {SUM}) is null"


def _analysis_error(rows: DataFrame, condition: str) -> str | None:
    try:
        _ = rows.where(condition).schema
    except PySparkException as error:
        return error_summary(error)
    return None


def _check_view(spark: SparkSession, route: Route) -> None:
    sql = view_sql(route)
    if sql is None:
        return
    try:
        _ = spark.sql(sql).schema
    except PySparkException as error:
        what = "top" if route.top else "join"
        raise InvalidArgument(f"{what} of route {route.name!r}: {error_summary(error)}") from None


def _check_query(spark: SparkSession, query: Query) -> StructType:
    try:
        found = spark.sql(f"select * from ({query.sql.strip().rstrip(';')})").schema
    except PySparkException as error:
        raise InvalidArgument(f"query {query.name!r} is invalid: {error_summary(error)}") from None
    for name, n in Counter(name.casefold() for name in found.names).items():
        if n > 1:
            raise InvalidArgument(
                f"query {query.name!r} is invalid: {n} columns of its answer are named {name!r}"
            )
    return found


def explained(spark: SparkSession, pipeline: Pipeline) -> list[str]:
    """Return in lines what each part of a pipeline becomes on Spark."""
    layout = check_on_spark(spark, pipeline)
    lines = [f"pipeline {pipeline.name}: queues {pipeline.inbox}, {pipeline.ends}, {pipeline.bad}"]
    for table in pipeline.tables:
        types = ", ".join(f"{name} {spark_type(table.kind(name))}" for name in table.kept)
        unread = [name for name in table.names if name not in table.kept]
        lines += ["", f"table {table.name}: blocks of its files, parsed by from_csv or from_json",
                  f"  {types}"]  # fmt: skip
        if unread:
            lines.append(f"  not read: {', '.join(unread)}")
    for route in pipeline.routes:
        lines += ["", *_explained_route(route, layout)]
    session = spark.newSession()
    for stored in layout.stored:
        create_view(session, stored, no_rows(session, layout))
    create_route_views(session, pipeline)
    for query in pipeline.queries:
        schema = _check_query(session, query)
        types = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in schema.fields)
        lines += ["", f"query {query.name}: Spark SQL over the routes", f"  answers {types}"]
    return lines


def _explained_route(route: Route, layout: Layout) -> list[str]:
    stored = layout.find(route.name)
    lines = [f"route {route.name}: from table {route.table}"]
    if route.join is None:
        values = ", ".join(f"{sql} as {quoted(name)}" for name, sql in selected(route).items())
        sums = "".join(f", sum({sql}) as {quoted(name)}" for name, sql in route.sums.items())
        lines.append(f"  per batch: select {values}{sums} where {route.where}")
        keys = ", ".join(f"{name} {kind}" for name, _, kind in stored.keys)
        how = f"group by {keys}; sums are {SUM}" if route.sums else f"{keys}; equal rows counted"
        lines.append(f"  stored: {how}")
    else:
        for name in (route.name, joined_name(route)):
            keys = ", ".join(f"{key} {kind}" for key, _, kind in layout.find(name).keys)
            lines.append(f"  stored of {layout.find(name).table}: {keys}; equal rows counted")
        lines.append(f"  waits for the end of {route.join.table}")
    if (sql := view_sql(route)) is not None:
        lines.append(f"  when complete: {sql}")
    return lines
