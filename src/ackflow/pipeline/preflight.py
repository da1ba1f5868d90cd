"""Checks before a pipeline starts: its declaration, its folders, Spark and Java.

The Spark SQL of routes is checked by the router when it starts (`routing.check_expressions`),
because only Spark can parse it.
"""

import errno
import os
import re
import socket
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

from .. import validate
from ..errors import InvalidArgument, Unavailable
from .answers import check_queries
from .declaration import ColumnKind, Pipeline, Query, Route, Table

CONNECT_TIMEOUT = 3.0

# Pipelines name queues, tables name files, routes name SQLite tables, queries name files.
_NAME = re.compile(r"[^\W\d_][\w-]{0,49}")
# Columns that the router adds to every table.
_RESERVED = {"_table", "_client", "_cells", "_whole", "_problem", "_readable"}

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
    check_queries(pipeline)


def _check_table(table: Table) -> None:
    _check_name(table.name, "the name of a table")
    here = f"table {table.name!r}"
    columns = _strings(table.columns, f"columns of {here}")
    keep = _strings(table.keep, f"keep of {here}")
    kinds = _mapping(table.kinds, f"kinds of {here}")
    for column in (*keep, *kinds):
        if column not in columns:
            raise InvalidArgument(f"{here} has no column {column!r}")
    if not keep:
        raise InvalidArgument(f"{here} keeps no column")
    for column in keep:
        if set("`'\"\\") & set(column) or not column.isprintable() or column.lower() in _RESERVED:
            raise InvalidArgument(f"{here} cannot keep a column named {column!r}")
    _check_unique(columns, f"columns of {here}", case_sensitive=True)
    _check_unique(keep, f"columns that {here} keeps")
    for column, kind in kinds.items():
        validate.one_of(kind, f"the kind of column {column!r} of {here}", get_args(ColumnKind))


def _check_route(pipeline: Pipeline, route: Route) -> None:
    _check_name(route.name, "the name of a route")
    here = f"route {route.name!r}"
    if pipeline.table(route.table) is None:
        raise InvalidArgument(f"{here} reads {route.table!r}, which is not a table")
    select = _mapping(route.select, f"select of {here}")
    sums = _mapping(route.sums, f"sums of {here}")
    if not isinstance(route.shard, str) or route.shard not in select:
        raise InvalidArgument(f"{here} is sharded by {route.shard!r}, which it does not select")
    for column, sql in (*select.items(), *sums.items()):
        if not column.strip() or not column.isprintable() or '"' in column:
            raise InvalidArgument(f"{here} cannot have a column named {column!r}")
        _check_expression(sql, f"{column!r} of {here}")
    _check_expression(route.where, f"where of {here}")
    _check_unique((*select, *sums), f"columns of {here}")


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
    """Raise for duplicate names. SQLite, Spark and some file systems ignore case."""
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
