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

    `columns` are the columns of its files, in any order: a list of names, or a schema in Spark's DDL
    such as `"item string, day timestamp, amount decimal(12,2)"`. `keep` lists the columns to read
    (default: all). `kinds` gives the kind of each column that is not text: `time`
    (YYYY-MM-DD HH:MM:SS without a zone), `decimal` (16 digits before the point and 18 after it), or
    a Spark type.
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
    """Joins another table of the same client to the rows of a route.

    Rows match if the columns `on` are equal in both tables. `kind` is `inner`, or `left` to keep rows
    without a match. The join is computed when both tables are complete.
    """

    table: str
    on: Sequence[str]
    kind: str = "inner"


class Window(Struct, frozen=True):
    """Adds the column `name`: the start of the time window that contains the row's `column`.

    `width` is a duration such as `15 minutes`, `1 hour` or `1 day`.
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
    """Keeps the first `n` rows of a route in the order `by`, for each value of the columns `per`."""

    n: int
    by: str
    per: Sequence[str] = ()


class Route(Struct, frozen=True):
    """What is computed from the rows of one table; queries read the result as a table.

    `select` maps the columns of the route to Spark SQL expressions, `where` is a condition on the
    rows. Rows whose times cannot be parsed are never selected. With `sums`, rows with equal selected
    values are folded into one. Expressions may use the columns of a joined table by name.
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
    """A query in Spark SQL over the routes; its columns are the fields of the answer's records."""

    name: str
    sql: str


class Pipeline(Struct, frozen=True):
    """The declaration of a pipeline. The names of its queues begin with `name`."""

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
        """The queue of blocks and end-of-file messages."""
        return f"{self.name}.in"

    @property
    def ends(self) -> str:
        """The queue of the forwarded ends of tables."""
        return f"{self.name}.ends"

    @property
    def bad(self) -> str:
        """The queue whose dead letters are the rows and files that cannot be read."""
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
    """Return the path of an example by its name; the examples are part of the installed package."""
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
