"""Execution of named SQL statements; a store supplies their text and runs them.

The rows of claims and leases that the verbs of a transaction write are collected, and written
together: before the commit, or before a statement that uses their tables.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from .cache import Cache
from .mapping import Row

Execute = Callable[[str, Sequence[Any]], list[Row]]
WriteMany = Callable[[str, Sequence[Sequence[Any]]], object]

# The statements that may be collected, in the order in which they are written. Two of them for one
# row must come in this order, and no row is added again once it was dropped.
_COLLECTED = ("add_lease", "end_lease", "add_claim", "drop_claim")
_NONE: frozenset[str] = frozenset()
_uses_collected = re.compile(r"\b(claims|claim_rows|leases|kept)\b").search


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
        write_many: WriteMany | None = None,
    ) -> None:
        self._execute = execute
        self._write = write
        self._sql = statements
        self._whole = statements  # of which `_sql` may be a part
        self._insert = insert
        self._write_many = write_many or self._write_each
        self.cache = cache
        self.collects = True  # False: write at once, which is faster for a verb that runs alone
        self._collected: dict[str, list[Sequence[Any]]] = {}
        self._behind = _NONE  # the statements before which `flush` must run
        self._users: frozenset[str] | None = None  # those, whenever something is collected

    def flush(self) -> None:
        """Write what is collected."""
        collected = self._collected
        if collected:
            for name in _COLLECTED if len(collected) > 1 else (*collected,):
                if name in collected:
                    self._write_rows(name, collected[name])
            collected.clear()
        self._behind = _NONE

    def forget(self) -> None:
        """Discard what is collected."""
        self._collected.clear()
        self._behind = _NONE

    def later(self, name: str, *args: Any) -> None:
        """Run a statement, together with others of its kind, before its effect can be seen."""
        if not self.collects:
            self._write(self._sql[name], args)
            return
        rows = self._collected.get(name)
        if rows is not None:
            rows.append(args)
        else:
            self._collected[name] = [args]
            self._behind = self._users or self._find_users()

    def delay(self) -> None:
        """Call `flush` before the next statement that uses claims or leases."""
        self._behind = self._users or self._find_users()

    def all(self, name: str, *args: Any) -> list[Row]:
        if name in self._behind:
            self.flush()
        return self._execute(self._sql[name], args)

    def one(self, name: str, *args: Any) -> Row | None:
        rows = self.all(name, *args)
        return rows[0] if rows else None

    def value(self, name: str, *args: Any) -> Any:
        rows = self.all(name, *args)
        return rows[0][0] if rows else None

    def insert(self, name: str, *args: Any) -> Any:
        """Insert a row and return its id."""
        return self._insert(self._sql[name], args)

    def run(self, name: str, *args: Any) -> None:
        """Run a statement that returns no rows."""
        if name in self._behind:
            self.flush()
        self._write(self._sql[name], args)

    def _write_rows(self, name: str, rows: Sequence[Sequence[Any]]) -> None:
        if len(rows) == 1:
            self._write(self._sql[name], rows[0])
        elif rows:
            self._write_many(self._sql[name], rows)

    def _find_users(self) -> frozenset[str]:
        """Find the statements that use the tables of claims and leases.

        A cursor is read only if it is not cached, and one that was changed is.
        """
        found = {name for name, sql in self._whole.items() if _uses_collected(sql)} - {"cursor"}
        self._users = frozenset(found)
        return self._users

    def _write_each(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        for row in rows:
            self._write(sql, row)
