"""The declaration of a pipeline: its tables, the routes of their rows, and the queries at the end.

Filters and values of routes are Spark SQL over the columns of a table. Queries are SQLite's SQL
over the folded rows, with `dsum(x)` for exact sums of decimals and `money(x)` to round half up to
two places at the end.
"""

import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from msgspec import Struct

from ..errors import AckflowError, InvalidArgument

ColumnKind = Literal["text", "time", "decimal"]


class Table(Struct, frozen=True):
    """A table of the input.

    `keep`: the columns that are sent to the router; everything the routes need. `kinds`: the
    columns that are not text. Times are YYYY-MM-DD HH:MM:SS without a time zone.
    """

    name: str
    columns: Sequence[str]
    keep: Sequence[str]
    kinds: Mapping[str, ColumnKind] = {}

    def kind(self, column: str) -> ColumnKind:
        return self.kinds.get(column, "text")


class Route(Struct, frozen=True):
    """The rows of one table that go to the aggregators, distributed over shards.

    `select`: the columns of the route, each a Spark SQL expression; `shard` names one of them.
    `where`: a condition on the rows; rows whose times cannot be read are never taken. With `sums`,
    rows with equal selected values are folded into one.
    """

    name: str
    table: str
    select: Mapping[str, str]
    shard: str
    where: str = "true"
    sums: Mapping[str, str] = {}


class Query(Struct, frozen=True):
    """A query over the routes, each of which is a table; its columns are the keys of the answer."""

    name: str
    sql: str


class Pipeline(Struct, frozen=True):
    """A pipeline. Its queues are named after it."""

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

    def state_key(self, *parts: str) -> str:
        """Return the key of a value that this pipeline keeps in the queue."""
        return "/".join(("pipeline", self.name, *parts))

    def check(self) -> "Pipeline":
        """Raise InvalidArgument if the declaration cannot work; return it otherwise."""
        from .preflight import check_declaration  # imported here, because it imports this module

        check_declaration(self)
        return self


def load(path: str | Path) -> Pipeline:
    """Load the `pipeline` that a Python file declares; errors name the file and line."""
    file = Path(path)
    if not file.is_file():
        raise InvalidArgument(f"pipeline declaration not found: {file}")
    try:
        found = _execute(file).get("pipeline")
    except SyntaxError as error:
        where = f"{file}, line {error.lineno}" if error.lineno else str(file)
        raise InvalidArgument(f"{where}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        raise InvalidArgument(f"{_location(file, error)}: {_describe(error)}") from error
    if not isinstance(found, Pipeline):
        raise InvalidArgument(f"{file} does not define `pipeline = Pipeline(...)`")
    try:
        return found.check()
    except InvalidArgument as error:
        raise InvalidArgument(f"{file}: {error.message}") from error


def _execute(file: Path) -> dict[str, Any]:
    name = f"ackflow_pipeline_{file.stem}"
    module = ModuleType(name)
    module.__file__ = str(file)
    sys.modules[name] = module
    exec(compile(file.read_bytes(), str(file), "exec"), module.__dict__)
    return module.__dict__


def _location(file: Path, error: BaseException) -> str:
    """Return the line of the file that raised the error, or whose call raised it."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
             if frame.filename == str(file)]  # fmt: skip
    return f"{file}, line {lines[-1]}" if lines else str(file)


def _describe(error: BaseException) -> str:
    if isinstance(error, AckflowError):
        return error.message
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
