"""Execution of named SQL statements; a store supplies their text and runs them."""

from collections.abc import Callable, Sequence
from typing import Any

from .cache import Cache
from .mapping import Row

Execute = Callable[[str, Sequence[Any]], list[Row]]


class Statements:
    """Runs the named statements of a store."""

    now: int

    def __init__(
        self,
        execute: Execute,
        write: Callable[[str, Sequence[Any]], object],
        statements: dict[str, str],
        insert: Callable[[str, Sequence[Any]], int],
        cache: Cache,
    ) -> None:
        self._execute = execute
        self._write = write
        self._sql = statements
        self._insert = insert
        self.cache = cache

    def all(self, name: str, *args: Any) -> list[Row]:
        return self._execute(self._sql[name], args)

    def one(self, name: str, *args: Any) -> Row | None:
        rows = self._execute(self._sql[name], args)
        return rows[0] if rows else None

    def value(self, name: str, *args: Any) -> Any:
        rows = self._execute(self._sql[name], args)
        return rows[0][0] if rows else None

    def insert(self, name: str, *args: Any) -> Any:
        """Insert a row and return its id."""
        return self._insert(self._sql[name], args)

    def run(self, name: str, *args: Any) -> None:
        """Run a statement that returns no rows."""
        self._write(self._sql[name], args)
