"""Key rotation: encrypts everything that is sealed with another key again with the first key.

    pass 1 ── every table, in slices ──► pass 2 ── found nothing to do ──► done: the first key suffices
      ▲  │ its position is stored          │ found something: other processes still use the old key
      └──┘ killed: continues there         └──────────► another pass, up to MAX_PASSES

A slice takes the writer for about 10 ms. Rows are read and written by other sessions all the while,
which need both keys until the end.
"""

import time
from collections import Counter
from collections.abc import Callable

from msgspec import Struct, field, json

from ..errors import PayloadSealed
from ..store.encryption import first_key
from ..store.reseal import TABLES, Position, Sealed, Table
from ..store.tx import Tx
from .broker import Broker

PAGE = 500  # rows that are looked at in one read transaction
SLICE_SECONDS = 0.010
SAVE_SECONDS = 1.0  # between two stored positions in a stretch without work
MAX_PASSES = 5
POSITION = "key rotation"  # in `meta`


class Rotated(Struct):
    """The result, or the state so far: rows looked at in this pass, and rows encrypted again.

    `unreadable` counts rows that no given key opens, by the id of their key. `complete`: a whole
    pass found no row that needs another key than the first.
    """

    table: str = ""
    number: int = 1  # of the pass
    resumed: bool = False
    looked: int = 0
    resealed: int = 0
    unreadable: Counter[str] = field(default_factory=Counter)
    complete: bool = False


class _Progress(Struct):
    """Where a rotation is, as it is stored: the first key, the index of the table, the last row."""

    key: bytes
    table: int
    after: list[int | str]


class _Resealed(Struct):
    """What one transaction did: rows dealt with, of these encrypted again, and not readable."""

    rows: int = 0
    resealed: int = 0
    unreadable: Counter[str] = field(default_factory=Counter)


class Rotation:
    """One rotation. Running it again, also after a kill, continues it."""

    def __init__(self, broker: Broker, progress: Callable[[Rotated], None] | None = None) -> None:
        self._broker = broker
        self._progress = progress
        self._key = first_key()
        self._saved = time.monotonic()
        self.state = Rotated()

    def run(self) -> Rotated:
        """Rotate to the end; not `complete` if rows stay or become encrypted with another key."""
        state = self.state
        table, after = self._broker.look(self._stored_place)
        state.resumed = after is not None
        for number in range(1, MAX_PASSES + 1):
            whole, before = after is None, state.resealed
            state.number, state.looked, state.unreadable = number, 0, Counter()
            self._pass(table, after)
            table, after = 0, None
            if whole and state.resealed == before:
                state.complete = not state.unreadable
                break
        # Synced: when this returns, the old key may be removed.
        self._broker.do(_put_meta, True, POSITION, "")
        return state

    def _stored_place(self, tx: Tx) -> tuple[int, Position | None]:
        found = tx.value("get_meta", POSITION)
        place = json.decode(found, type=_Progress) if found else None
        if place is None or place.key != self._key or place.table >= len(TABLES):
            return 0, None
        return place.table, tuple(place.after)

    def _pass(self, start: int, after: Position | None) -> None:
        for index, table in enumerate(TABLES):
            if index >= start:
                self._walk(index, table, after or table.start)
                after = None

    def _walk(self, index: int, table: Table, after: Position) -> None:
        state = self.state
        state.table = table.name
        while rows := self._broker.look(table.page, after, PAGE):
            stale = [row for row in rows if row.keys - {self._key}]
            while stale:
                began = time.monotonic()
                done = self._broker.do(self._reseal, False, index, stale)
                stale = stale[done.rows :]
                state.resealed += done.resealed
                state.unreadable += done.unreadable
                self._report()
                time.sleep(min(time.monotonic() - began, 2 * SLICE_SECONDS))  # others write too
            after = rows[-1].at
            state.looked += len(rows)
            if time.monotonic() - self._saved >= SAVE_SECONDS:
                self._broker.do(_put_meta, False, POSITION, self._place(index, after))
                self._saved = time.monotonic()
            self._report()
            if len(rows) < PAGE:
                return

    def _reseal(self, tx: Tx, index: int, rows: list[Sealed]) -> _Resealed:
        """Encrypt some of these rows again, and store the position."""
        tx.flush()
        until = time.monotonic() + SLICE_SECONDS
        done = _Resealed()
        for row in rows:
            try:
                TABLES[index].reseal(tx, *row.at)
                done.resealed += 1
            except PayloadSealed:
                done.unreadable.update(key.hex() for key in row.keys - {self._key})
            done.rows += 1
            if time.monotonic() >= until:
                break
        tx.run("put_meta", POSITION, self._place(index, rows[done.rows - 1].at))
        return done

    def _place(self, index: int, after: Position) -> str:
        return json.encode(_Progress(self._key, index, list(after))).decode()

    def _report(self) -> None:
        if self._progress is not None:
            self._progress(self.state)


def key_usage(broker: Broker) -> Counter[str]:
    """Count the encrypted rows by the id of their key; changes nothing."""
    used: Counter[str] = Counter()
    for table in TABLES:
        after = table.start
        while rows := broker.look(table.page, after, PAGE):
            used.update(key.hex() for row in rows for key in row.keys)
            after = rows[-1].at
    return used


def _put_meta(tx: Tx, key: str, value: str) -> None:
    tx.run("put_meta", key, value)
