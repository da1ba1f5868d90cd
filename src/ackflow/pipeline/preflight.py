"""Checks before a pipeline starts: its declaration, its folders, Spark and Java.

The Spark SQL of routes and queries is checked when Spark has started (`check.py`), because only Spark
can parse it.
"""

import errno
import os
import re
import socket
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import InvalidArgument, Unavailable
from .declaration import Join, Pipeline, Query, Route, Table, Top, Window, ddl_columns

CONNECT_TIMEOUT = 3.0

# Pipelines name queues, tables name files, routes name views, queries name files.
_NAME = re.compile(r"[^\W\d_][\w-]{0,49}")
# Columns that are added to the rows of every table.
_RESERVED = re.compile(r"_(client|line|whole|problem|readable|place|a|r|c\d+)")
_KIND = re.compile(r"[a-z_]+(\(\s*\d+\s*(,\s*\d+\s*)?\))?")

_MASTER = re.compile(
    r"local(\[(\*|[1-9]\d*)(, *[1-9]\d*)?\])?"
    r"|local-cluster\[\d+, *\d+, *\d+\]"
    r"|spark://[^/,\s]+:\d+(,[^/,\s]+:\d+)*"
    r"|yarn|k8s://\S+"
)


def check_declaration(pipeline: Pipeline) -> None:
    """Raise InvalidArgument if a pipeline cannot work, naming the field and what is wrong."""
    _check_name(pipeline.name, "the name of a pipeline")
    _check_list(pipeline.tables, Table, "tables")
    _check_list(pipeline.routes, Route, "routes")
    _check_list(pipeline.queries, Query, "queries")
    for table in pipeline.tables:
        _check_table(table)
    for route in pipeline.routes:
        _check_route(pipeline, route)
    for query in pipeline.queries:
        _check_name(query.name, "the name of a query")
        _check_expression(query.sql, f"the sql of query {query.name!r}")
    _check_unique((table.name for table in pipeline.tables), "tables")
    _check_unique((route.name for route in pipeline.routes), "routes")
    _check_unique((query.name for query in pipeline.queries), "queries")


def _check_table(table: Table) -> None:
    _check_name(table.name, "the name of a table")
    here = f"table {table.name!r}"
    if isinstance(table.columns, str):
        kinds = dict(ddl_columns(table.columns))
    else:
        _strings(table.columns, f"columns of {here}")
        kinds = {}
    _strings(table.keep, f"keep of {here}")
    kinds |= _mapping(table.kinds, f"kinds of {here}")
    columns, kept = table.names, table.kept
    for column in (*kept, *kinds):
        if column not in columns:
            raise InvalidArgument(f"{here} has no column {column!r}")
    if not kept:
        raise InvalidArgument(f"{here} has no columns")
    for column in kept:
        if set("`'\"\\") & set(column) or not column.isprintable() or not column.strip():
            raise InvalidArgument(f"{here} cannot keep a column named {column!r}")
        if _RESERVED.fullmatch(column.lower()):
            raise InvalidArgument(f"{here} cannot keep a column named {column!r}")
    _check_unique(columns, f"columns of {here}", case_sensitive=True)
    _check_unique(kept, f"columns that {here} keeps")
    for column, kind in kinds.items():
        if not isinstance(kind, str) or not _KIND.fullmatch(kind):
            raise InvalidArgument(
                f"the kind of column {column!r} of {here} must be text, time, decimal or a Spark "
                f"type, got {kind!r}"
            )


def _check_route(pipeline: Pipeline, route: Route) -> None:
    _check_name(route.name, "the name of a route")
    here = f"route {route.name!r}"
    if pipeline.table(route.table) is None:
        raise InvalidArgument(f"{here} reads {route.table!r}, which is not a table")
    select = _mapping(route.select, f"select of {here}")
    sums = _mapping(route.sums, f"sums of {here}")
    _check_optional(route.join, Join, f"join of {here}")
    _check_optional(route.window, Window, f"window of {here}")
    _check_optional(route.top, Top, f"top of {here}")
    if route.join is not None:
        _check_join(pipeline, route, route.join, here)
    if route.window is not None:
        _check_window(pipeline, route, route.window, here)
    for column, sql in (*select.items(), *sums.items()):
        if not column.strip() or not column.isprintable() or "`" in column:
            raise InvalidArgument(f"{here} cannot have a column named {column!r}")
        _check_expression(sql, f"{column!r} of {here}")
    if not route.keys and not sums:
        raise InvalidArgument(f"{here} selects no columns")
    _check_expression(route.where, f"where of {here}")
    _check_unique((*route.keys, *sums), f"columns of {here}")
    if route.top is not None:
        _check_top(route, route.top, here)


def _check_join(pipeline: Pipeline, route: Route, join: Join, here: str) -> None:
    other = pipeline.table(join.table)
    if other is None or join.table == route.table:
        raise InvalidArgument(f"{here} joins {join.table!r}, which is not another table")
    if join.kind not in ("inner", "left"):
        raise InvalidArgument(f"the join of {here} must be inner or left, got {join.kind!r}")
    on = _strings(join.on, f"the columns that {here} joins on")
    if not on:
        raise InvalidArgument(f"{here} joins on no column")
    for table in (pipeline.table_of(route), other):
        for column in on:
            if column not in table.kept:
                raise InvalidArgument(
                    f"{here} joins on {column!r}, which table {table.name!r} does not keep"
                )


def _check_window(pipeline: Pipeline, route: Route, window: Window, here: str) -> None:
    if window.column not in pipeline.table_of(route).kept:
        raise InvalidArgument(
            f"the window of {here} is over {window.column!r}, which its table does not keep"
        )
    if not isinstance(window.width, str) or not window.seconds:
        raise InvalidArgument(
            f"the window of {here} must have a width such as 15 minutes, got {window.width!r}"
        )


def _check_top(route: Route, top: Top, here: str) -> None:
    if not isinstance(top.n, int) or isinstance(top.n, bool) or top.n < 1:
        raise InvalidArgument(f"the top of {here} must be at least 1, got {top.n!r}")
    _check_expression(top.by, f"the order of the top of {here}")
    for column in _strings(top.per, f"per of the top of {here}"):
        if column not in (*route.keys, *route.sums):
            raise InvalidArgument(f"{here} has no column {column!r} to keep the top of")


def _check_optional(value: object, kind: type, what: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise InvalidArgument(f"{what} must be a {kind.__name__}(...), got {value!r}")


def _check_name(value: object, what: str) -> None:
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} must be a string, got {value!r}")
    if not _NAME.fullmatch(value):
        raise InvalidArgument(
            f"{what} must have 1 to 50 letters, digits, _ and - and begin with a letter, "
            f"got {value!r}"
        )


def _check_expression(value: object, what: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise InvalidArgument(f"{what} must be an SQL expression, got {value!r}")


def _check_list(value: object, kind: type, what: str) -> None:
    if not isinstance(value, list | tuple):
        raise InvalidArgument(f"{what} must be a list of {kind.__name__}(...), got {value!r}")
    if not value:
        raise InvalidArgument(f"the pipeline has no {what}")
    for item in value:
        if not isinstance(item, kind):
            raise InvalidArgument(
                f"{what} must be a list of {kind.__name__}(...), but contains {item!r}"
            )


def _strings(value: object, what: str) -> list[str]:
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise InvalidArgument(f"{what} must be a list of strings, got {value!r}")
    return list(value)


def _mapping(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidArgument(f"{what} must be a mapping with string keys, got {value!r}")
    return dict(value)


def _check_unique(names: Iterable[str], what: str, *, case_sensitive: bool = False) -> None:
    """Raise for duplicate names. Spark and some file systems ignore case."""
    seen: dict[str, str] = {}
    for name in names:
        key = name if case_sensitive else name.casefold()
        if key in seen:
            raise InvalidArgument(f"two {what} have the same name: {seen[key]!r} and {name!r}")
        seen[key] = name


def check_folder(folder: Path) -> Path:
    """Return the folder if it exists or can be created; creates nothing."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    problem = None
    if not existing.is_dir():
        problem = errno.EEXIST if existing == folder else errno.ENOTDIR
    elif not os.access(existing, os.W_OK | os.X_OK):
        problem = errno.EACCES
    if problem is not None:
        raise InvalidArgument(f"cannot create folder {folder}: {os.strerror(problem)}")
    return folder


def make_folder(folder: Path) -> Path:
    """Create the folder if it does not exist, and return it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgument(f"cannot create folder {folder}: {error.strerror}") from error
    return folder


def check_master(master: str) -> str:
    """Return a Spark master URL if its syntax is valid."""
    if not _MASTER.fullmatch(master):
        raise InvalidArgument(
            f"master must be local[2], spark://host:port, yarn or k8s://..., got {master!r}"
        )
    return master


# Settings that a pipeline needs as they are: answers depend on them.
_FIXED = ("spark.sql.session.timeZone", "spark.sql.ansi.enabled")


def parse_conf(given: Iterable[str]) -> dict[str, str]:
    """Return settings of Spark, each given as NAME=VALUE."""
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.startswith("spark."):
            raise InvalidArgument(f"--conf must be spark.NAME=VALUE, got {text!r}")
        if name in _FIXED:
            raise InvalidArgument(f"--conf cannot change {name}: the answers depend on it")
        found[name] = value
    return found


def is_local(master: str) -> bool:
    """Return whether Spark runs within one process of this machine."""
    return re.match(r"local(\[|$)", master) is not None


def check_spark(master: str) -> None:
    """Check that the cluster answers and that PySpark, PyArrow and Java are installed."""
    check_reachable(check_master(master))
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise InvalidArgument("a pipeline needs Spark: pip install 'ackflow[spark]'")
    from ..spark.spark_session import find_java

    find_java()


def check_reachable(master: str) -> None:
    """Raise Unavailable if no master of a Spark cluster accepts connections."""
    if master.startswith("spark://"):
        addresses = master.removeprefix("spark://").split(",")
        errors = [_connect_error(address) for address in addresses]
        if all(errors):
            raise Unavailable(f"cannot connect to Spark master {master}: {errors[0]}")


def _connect_error(address: str) -> str | None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT).close()
    except (OSError, OverflowError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None
