"""Whether a declaration can work, told in a sentence before any data is sent.

The Spark SQL of routes is checked by the router when it starts, as only Spark can read it.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from .. import validate
from ..errors import InvalidArgument
from .answers import try_out
from .declaration import Kind, Pipeline, Query, Route, Table

# Pipelines become queues, tables parts of file names, routes tables of SQLite, queries files.
_NAME = re.compile(r"[^\W\d_][\w-]{0,49}")
# The names that the router gives to columns of its own.
_OURS = {"_table", "_client", "_cells", "_whole", "_problem", "_readable"}


def check(pipeline: Pipeline) -> None:
    """Refuse a pipeline that cannot work, naming what is wrong and where."""
    _name(pipeline.name, "the name of a pipeline")
    _listed(pipeline.tables, Table, "tables")
    _listed(pipeline.routes, Route, "routes")
    _listed(pipeline.queries, Query, "queries")
    for table in pipeline.tables:
        _table(table)
    for route in pipeline.routes:
        _route(pipeline, route)
    for query in pipeline.queries:
        _name(query.name, "the name of a query")
        _code(query.sql, f"the sql of query {query.name!r}")
    _apart((table.name for table in pipeline.tables), "tables")
    _apart((route.name for route in pipeline.routes), "routes")
    _apart((query.name for query in pipeline.queries), "queries")
    try_out(pipeline)


def _table(table: Table) -> None:
    _name(table.name, "the name of a table")
    here = f"table {table.name!r}"
    columns = _texts(table.columns, f"columns of {here}")
    keep = _texts(table.keep, f"keep of {here}")
    kinds = _mapping(table.kinds, f"kinds of {here}")
    for column in (*keep, *kinds):
        if column not in columns:
            raise InvalidArgument(f"{here} has no column {column!r}")
    if not keep:
        raise InvalidArgument(f"{here} keeps no column")
    for column in keep:
        if set("`'\"\\") & set(column) or not column.isprintable() or column.lower() in _OURS:
            raise InvalidArgument(f"{here} cannot keep a column named {column!r}")
    _apart(columns, f"columns of {here}", cases=True)
    _apart(keep, f"columns that {here} keeps")
    for column, kind in kinds.items():
        validate.one_of(kind, f"the kind of column {column!r} of {here}", get_args(Kind))


def _route(pipeline: Pipeline, route: Route) -> None:
    _name(route.name, "the name of a route")
    here = f"route {route.name!r}"
    if pipeline.table(route.table) is None:
        raise InvalidArgument(f"{here} reads {route.table!r}, no table")
    select = _mapping(route.select, f"select of {here}")
    sums = _mapping(route.sums, f"sums of {here}")
    if not isinstance(route.shard, str) or route.shard not in select:
        raise InvalidArgument(f"{here} is sharded by {route.shard!r}, which it does not select")
    for column, code in (*select.items(), *sums.items()):
        if not column.strip() or not column.isprintable() or '"' in column:
            raise InvalidArgument(f"{here} cannot have a column named {column!r}")
        _code(code, f"{column!r} of {here}")
    _code(route.where, f"where of {here}")
    _apart((*select, *sums), f"columns of {here}")


def _name(value: object, what: str) -> None:
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} is text, not {value!r}")
    if not _NAME.fullmatch(value):
        raise InvalidArgument(
            f"{what} has 1 to 50 letters, digits, _ and - and begins with a letter, unlike {value!r}"
        )


def _code(value: object, what: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise InvalidArgument(f"{what} is an expression, not {value!r}")


def _listed(value: object, kind: type, what: str) -> None:
    if not isinstance(value, list | tuple):
        raise InvalidArgument(f"{what} is a list of {kind.__name__}(...), not {value!r}")
    if not value:
        raise InvalidArgument(f"the pipeline has no {what}")
    for item in value:
        if not isinstance(item, kind):
            raise InvalidArgument(f"{what} is a list of {kind.__name__}(...), with {item!r} in it")


def _texts(value: object, what: str) -> list[str]:
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise InvalidArgument(f"{what} is a list of texts, not {value!r}")
    return list(value)


def _mapping(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidArgument(f"{what} is a mapping of texts, not {value!r}")
    return dict(value)


def _apart(names: Iterable[str], what: str, *, cases: bool = False) -> None:
    """Refuse two of a name; neither SQLite nor Spark nor every disk tells A from a."""
    seen: dict[str, str] = {}
    for name in names:
        same = name if cases else name.casefold()
        if same in seen:
            raise InvalidArgument(f"two {what} have the same name: {seen[same]!r} and {name!r}")
        seen[same] = name
