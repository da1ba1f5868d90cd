"""The Spark SQL of routes, tried out by the router before it takes anything from the queue.

Every route is tried over the columns of its own table alone: several tables are read in one pass,
where the column of another table would be there, and null.
"""

import logging
from collections.abc import Iterator

from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

from ..errors import InvalidArgument
from .decimals import COLUMN, SUM
from .declaration import Pipeline, Route, Table
from .failing import reason

TYPES = {"text": "string", "time": "timestamp", "decimal": COLUMN}


def check(spark: SparkSession, pipeline: Pipeline) -> None:
    """Refuse an expression that Spark cannot work out, naming it and its route."""
    # What is wrong is told by us; Spark would tell it, too, with two hundred lines of its insides.
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    for route in pipeline.routes:
        table = pipeline.table(route.table)
        assert table is not None
        rows = _empty(spark, table)
        codes = list(_conditions(route))
        # Almost always all are right, and one question is faster than many.
        if _problem(rows, " and ".join(f"({code})" for _, _, code in codes)):
            _refuse(rows, route, codes)


def _refuse(rows: DataFrame, route: Route, codes: list[tuple[str, str, str]]) -> None:
    for what, code, condition in codes:
        if problem := _problem(rows, condition):
            raise InvalidArgument(f"{what} of route {route.name!r} is {code!r}: {problem}")


def _conditions(route: Route) -> Iterator[tuple[str, str, str]]:
    """Every expression: what it is, its code, and a condition that has it in it.

    In a condition Spark takes only what is worked out row by row, no sum over rows.
    """
    yield "where", route.where, route.where
    for name, code in route.select.items():
        yield repr(name), code, f"cast({code} as string) is null"
    for name, code in route.sums.items():
        yield repr(name), code, f"try_cast({code} as {SUM}) is null"


def _empty(spark: SparkSession, table: Table) -> DataFrame:
    columns = [f"cast(null as {TYPES[table.kind(name)]}) as `{name}`" for name in table.keep]
    return spark.range(0).selectExpr(*columns)


def _problem(rows: DataFrame, condition: str) -> str | None:
    try:
        rows.where(condition)
    except PySparkException as error:
        return reason(error)
    return None
