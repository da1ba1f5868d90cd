"""What a pipeline is: tables, what the router makes of them, and the questions answered at the end.

Filters and values are Spark SQL over the columns of a table; the questions are SQLite's SQL over
the folded rows, with `dsum(x)` for exact sums of decimals and `money(x)` to round half up to two
places at the very end.
"""

import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from msgspec import Struct

from ..errors import AckflowError, InvalidArgument

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

    `select`: what the rows of the route are made of, Spark SQL by the name of the value; `shard`
    names one of these. `where`: which rows are taken, of those whose times can be read. Without
    `sums` the selected rows go as they are; with them they are folded by the selected values.
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
        from .check import check  # it tries the questions out, and so stands on all of this

        check(self)
        return self


def load(path: str | Path) -> Pipeline:
    """The `pipeline` declared in a Python file; what is wrong with it is told with its place."""
    file = Path(path)
    if not file.is_file():
        raise InvalidArgument(f"there is no declaration at {file}")
    try:
        found = _executed(file).get("pipeline")
    except SyntaxError as error:
        place = f"{file}, line {error.lineno}" if error.lineno else str(file)
        raise InvalidArgument(f"{place}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        raise InvalidArgument(f"{_place(file, error)}: {_reason(error)}") from error
    if not isinstance(found, Pipeline):
        raise InvalidArgument(f"{file} declares no `pipeline`: pipeline = Pipeline(...)")
    try:
        return found.check()
    except InvalidArgument as error:
        raise InvalidArgument(f"{file}: {error.message}") from error


def _executed(file: Path) -> dict[str, Any]:
    name = f"ackflow_pipeline_{file.stem}"
    module = ModuleType(name)
    module.__file__ = str(file)
    sys.modules[name] = module
    exec(compile(file.read_bytes(), str(file), "exec"), module.__dict__)
    return module.__dict__


def _place(file: Path, error: BaseException) -> str:
    """Where in the file it went wrong, or was called what went wrong."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
             if frame.filename == str(file)]  # fmt: skip
    return f"{file}, line {lines[-1]}" if lines else str(file)


def _reason(error: BaseException) -> str:
    if isinstance(error, AckflowError):
        return error.message
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
