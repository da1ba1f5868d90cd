"""What a pipeline is: tables, what the router makes of them, and the questions answered at the end.

Filters and values are Spark SQL over the columns of a table; the questions are SQLite's SQL over
the folded rows, with `dsum(x)` for exact sums of decimals and `money(x)` to round half up to two
places at the very end.
"""

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from ..errors import InvalidArgument

Kind = Literal["text", "time", "decimal"]


class Table(Struct, frozen=True):
    """A table of the input: its columns in order, those that are not text by their kind.

    `keep`: only these columns are sent on; all that a route needs. Times are
    YYYY-MM-DD HH:MM:SS without a zone.
    """

    name: str
    columns: Sequence[str]
    keep: Sequence[str]
    kinds: Mapping[str, Kind] = {}

    def kind(self, column: str) -> Kind:
        return self.kinds.get(column, "text")


class Route(Struct, frozen=True):
    """Rows of one table on their way to the aggregators, by shard.

    Without `sums` the selected rows go as they are; with them they are folded by the selected
    values. `needs`: a row in which one of these columns cannot be read is left out.
    """

    name: str
    table: str
    select: Mapping[str, str]
    shard: str
    where: str = "true"
    sums: Mapping[str, str] = {}


class Query(Struct, frozen=True):
    """One question: SQL over the routes, each a table named after it; the keys are its columns."""

    name: str
    sql: str


class Pipeline(Struct, frozen=True):
    """A whole pipeline. Its queues are named after it."""

    name: str
    tables: Sequence[Table]
    routes: Sequence[Route]
    queries: Sequence[Query]

    def table(self, name: str) -> Table | None:
        return next((table for table in self.tables if table.name == name), None)

    @property
    def inbox(self) -> str:
        return f"{self.name}.in"

    @property
    def shards(self) -> str:
        return f"{self.name}.shards"

    @property
    def folded(self) -> str:
        return f"{self.name}.folded"

    @property
    def ends(self) -> str:
        return f"{self.name}.ends"

    @property
    def bad(self) -> str:
        return f"{self.name}.bad"

    def value(self, *parts: str) -> str:
        """The key of a value this pipeline keeps."""
        return "/".join(("pipeline", self.name, *parts))

    def check(self) -> "Pipeline":
        """Refuse a declaration that cannot work, naming what is wrong."""
        for route in self.routes:
            if self.table(route.table) is None:
                raise InvalidArgument(f"route {route.name!r} reads {route.table!r}, no table")
            if route.shard not in route.select:
                raise InvalidArgument(
                    f"route {route.name!r} is sharded by {route.shard!r}, which it does not select"
                )
        for table in self.tables:
            for column in (*table.keep, *table.kinds):
                if column not in table.columns:
                    raise InvalidArgument(f"table {table.name!r} has no column {column!r}")
        return self


def load(path: str | Path) -> Pipeline:
    """The `pipeline` declared in a Python file."""
    file = Path(path)
    spec = importlib.util.spec_from_file_location(f"ackflow_pipeline_{file.stem}", file)
    if spec is None or spec.loader is None or not file.exists():
        raise InvalidArgument(f"there is no declaration at {file}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found = getattr(module, "pipeline", None)
    if not isinstance(found, Pipeline):
        raise InvalidArgument(f"{file} declares no `pipeline`")
    return found.check()
