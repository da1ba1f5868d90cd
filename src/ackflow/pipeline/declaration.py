"""The declaration of a pipeline: its tables, the routes of their rows, and the queries at the end.

Filters and values of routes are Spark SQL over the columns of a table. Queries are Spark SQL over
the routes, each of which is a table. Amounts are exact decimals.
"""

import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from msgspec import Struct

from ..errors import AckflowError, InvalidArgument

_UNITS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800}
_WIDTH = re.compile(r"(\d+) (second|minute|hour|day|week)s?")


class Table(Struct, frozen=True):
    """A table of the input.

    `columns`: those of its files, in any order: their names, or a schema in Spark's DDL, such as
    `"item string, day timestamp, amount decimal(12,2)"`. `keep`: the columns that are read, all if
    empty. `kinds`: the columns that are not text: `time` (YYYY-MM-DD HH:MM:SS without a zone),
    `decimal` (16 digits before the point and 18 after it), or a Spark type.
    """

    name: str
    columns: Sequence[str] | str
    keep: Sequence[str] = ()
    kinds: Mapping[str, str] = {}

    @property
    def names(self) -> list[str]:
        """The names of the columns in the files."""
        if isinstance(self.columns, str):
            return [name for name, _ in ddl_columns(self.columns)]
        return list(self.columns)

    @property
    def kept(self) -> list[str]:
        """The names of the columns that are read."""
        return list(self.keep) or self.names

    def kind(self, column: str) -> str:
        """Return the kind of a column."""
        given = dict(ddl_columns(self.columns)) if isinstance(self.columns, str) else {}
        return self.kinds.get(column) or given.get(column) or "text"


def ddl_columns(ddl: str) -> list[tuple[str, str]]:
    """Return the columns of a schema in Spark's DDL with their types; raises InvalidArgument."""
    found = []
    for column in re.split(r",(?![^(]*\))", ddl):
        name, _, kind = column.strip().partition(" ")
        kind = " ".join(kind.lower().split())
        if not name or not kind:
            raise InvalidArgument(f"a column of a schema is `name type`, got {column.strip()!r}")
        found.append((name, "text" if kind == "string" else kind))
    return found


class Join(Struct, frozen=True):
    """Another table of the same client, which is joined to the rows of a route.

    `on`: the columns of both tables that must be equal. `kind`: `inner`, or `left` to keep rows
    without a match. The rows wait for the end of file of the joined table.
    """

    table: str
    on: Sequence[str]
    kind: str = "inner"


class Window(Struct, frozen=True):
    """Adds the column `name`: the begin of the window of time that a row falls into.

    `width`: `15 minutes`, `1 hour`, `1 day` and so on.
    """

    column: str
    width: str
    name: str = "window_start"

    @property
    def seconds(self) -> int:
        """The width in seconds; 0 if it cannot be parsed."""
        found = _WIDTH.fullmatch(self.width)
        return int(found[1]) * _UNITS[found[2]] if found else 0


class Top(Struct, frozen=True):
    """Keeps the first `n` rows of a route in the order `by`, for each value of `per`."""

    n: int
    by: str
    per: Sequence[str] = ()


class Route(Struct, frozen=True):
    """Rows of one table on their way to the queries; each route is a table of the queries.

    `select`: the columns of the route, each a Spark SQL expression; `where`: a condition on the
    rows; rows whose times cannot be read are never taken. With `sums`, rows with equal selected
    values are folded into one. Columns of a joined table are used by their names.
    """

    name: str
    table: str
    select: Mapping[str, str]
    where: str = "true"
    sums: Mapping[str, str] = {}
    join: Join | None = None
    window: Window | None = None
    top: Top | None = None

    @property
    def keys(self) -> list[str]:
        """The columns of the route that are not sums."""
        return [*self.select, *([self.window.name] if self.window else [])]


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
        """Return the table with this name."""
        return next((table for table in self.tables if table.name == name), None)

    def table_of(self, route: Route) -> Table:
        """Return the table that a route reads."""
        return next(table for table in self.tables if table.name == route.table)

    @property
    def inbox(self) -> str:
        return f"{self.name}.in"

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
        found = load_module(file).get("pipeline")
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


def example(name: str) -> Path:
    """Return the path of a file of the examples, which a wheel contains as well."""
    package = Path(__file__).parents[1]
    for folder in (package / "examples", package.parents[1] / "examples"):
        if (folder / f"{name}.py").is_file():
            return folder / f"{name}.py"
    raise InvalidArgument(f"example not found: {name}.py")


def load_module(file: Path) -> dict[str, Any]:
    """Execute a Python file; return its names."""
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
