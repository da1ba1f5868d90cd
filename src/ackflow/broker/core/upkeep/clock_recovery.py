"""Corrects times that were written while the clock was ahead.

A transaction that begins more than a minute before the previous one leaves a mark (`store/tx.py`).
Upkeep then reads every table, in slices, and moves future times back by as much as the clock went
back. Times of past events are moved to the present at most. The ends of leases and delays are moved
so that the remaining time stays the same. Leases and delayed messages store their time of creation;
a nacked message does not. It is moved if the clock went back by more than a day and it would wait
until at least a day before the last time of the clock that was ahead.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from msgspec import structs

from ....clock import AHEAD, SECOND, micros
from ....store.records import DUE, RETURNED, WAITING
from ....store.tx import CLOCK_BACK, Tx
from ...access_tokens import changed
from ..cursors import make_ready

T = TypeVar("T")
log = logging.getLogger("ackflow")
ROWS = 500
LOOKED_AT = 2_000
DAY = 86_400 * SECOND
NEVER = 1 << 62
# Statements that set a time after ?1 to ?2 in up to ?3 rows, and return a row for each.
PLAIN = (
    "keys_ahead", "values_ahead", "stages_ahead", "readers_ahead", "traces_ahead", "dead_ahead", "lanes_ahead",
    "cursors_ahead", "queues_ahead", "partitions_ahead", "declarations_ahead",
    "audit_ahead", "series_ahead",
)  # fmt: skip


class RunTransaction(Protocol):
    """Runs a function in a transaction and returns its result."""

    def __call__(self, body: Callable[[Tx], T], /) -> T: ...


class Shift(NamedTuple):
    """The amount `back` by which times are moved: past ones after `ahead`, future after `far`."""

    now: int
    ahead: int
    far: int
    back: int

    def past(self, time: int) -> int:
        return time if time <= self.ahead else min(time - self.back, self.now)

    def future(self, time: int) -> int:
        return time if time <= self.far else time - self.back


def recover(read: RunTransaction, write: RunTransaction) -> int:
    """Correct times if the clock is known to have gone back; returns the number of corrections."""
    mark = read(lambda tx: tx.value("get_meta", CLOCK_BACK))
    if not mark:
        return 0
    shift = read(partial(_shift, mark=str(mark)))
    moved = 0
    if shift.back > 0:
        for statement in PLAIN:
            while n := write(partial(_set_plain, statement=statement, shift=shift)):
                moved += n
        moved += write(partial(_move_few, shift=shift))
        # Claims and expiries before segments: they need the time at which a message was pushed.
        for walk in (
            _Claims(shift), _Expiries(shift), _Segments(shift), _Leases(shift), _Txids(shift)
        ):  # fmt: skip
            while (found := read(walk.find)) is not None:
                if found:
                    moved += len(found)
                    write(partial(_move, walk=walk, rows=found))
        log.warning("the clock was %d s ahead: corrected %d times", shift.back / SECOND, moved)
    write(partial(_unmark, mark=str(mark)))
    return moved


def _shift(tx: Tx, mark: str) -> Shift:
    """Compute the shift from the mark, or from the newest stored time if that is later."""
    now, latest = (int(time) for time in mark.split(" "))
    now = min(now or tx.now, tx.now)
    newest = [latest, tx.value("newest_message") or 0, tx.value("newest_lease") or 0]
    last, ahead = max(newest), tx.now + AHEAD
    back = last - now if last > ahead else 0
    return Shift(now, ahead, max(ahead, last - DAY) if back > DAY else NEVER, back)


def _unmark(tx: Tx, mark: str) -> None:
    if tx.value("get_meta", CLOCK_BACK) == mark:
        tx.run("put_meta", CLOCK_BACK, "")
    tx.touched.update(queue.name for queue in tx.queues())  # messages may be due earlier now


def _set_plain(tx: Tx, statement: str, shift: Shift) -> int:
    _forget(tx)
    return len(tx.all(statement, shift.ahead, shift.now, ROWS))


def _move(tx: Tx, walk: "_Walk", rows: list[Any]) -> None:
    _forget(tx)
    for row in rows:
        walk.move(tx, row)


def _forget(tx: Tx) -> None:
    """Drop cached records before their rows are changed."""
    tx.flush()
    tx.cache.clear()


class _Walk(Protocol):
    """Finds rows page by page, None at the end, and moves the times of one row."""

    def find(self, tx: Tx) -> list[Any] | None: ...
    def move(self, tx: Tx, row: Any) -> None: ...


class _Segments:
    """Messages; created_at still never decreases within a lane."""

    def __init__(self, shift: Shift) -> None:
        self._shift = shift
        self._at = 0, -1
        self._last = 0

    def find(self, tx: Tx) -> list[Any] | None:
        rows = tx.all("segments_after", *self._at, LOOKED_AT)
        found = []
        for lane, first, created, due in rows:
            if lane != self._at[0]:
                self._last = 0
            self._at = lane, first
            right = max(self._last, self._shift.past(created))
            self._last = right
            if right != created:
                found.append((lane, first, right, None if due is None else due - created + right))
        return found if rows else None

    def move(self, tx: Tx, row: Any) -> None:
        tx.run("set_segment_times", *row)


class _Claims:
    """Waiting messages; those without a time are due."""

    def __init__(self, shift: Shift) -> None:
        self._shift = shift
        self._at = 0, 0, 0, 0

    def find(self, tx: Tx) -> list[Any] | None:
        rows = tx.all("claims_ahead", *self._at, self._shift.ahead, ROWS)
        if not rows:
            return None
        self._at = rows[-1][:4]
        return rows

    def move(self, tx: Tx, row: Any) -> None:
        lane, group_id, lease, id, first, state, redelivered, at, since = row
        if state == WAITING and at is None:
            state = DUE
            make_ready(tx, lane, group_id)
        elif state == WAITING and redelivered == RETURNED:
            at = self._shift.future(at)
        elif state == WAITING and (tx.created_at(lane, first) or 0) > self._shift.ahead:
            at -= self._shift.back
        tx.run("set_claim_times", lane, group_id, lease, id, state, at, self._shift.past(since))


class _Expiries:
    """Messages with a time to live of their own, which is kept."""

    def __init__(self, shift: Shift) -> None:
        self._shift = shift
        self._at = 0, -1

    def find(self, tx: Tx) -> list[Any] | None:
        rows = tx.all("expiring_ahead", *self._at, self._shift.ahead, ROWS)
        if not rows:
            return None
        self._at = rows[-1][:2]
        return rows

    def move(self, tx: Tx, row: Any) -> None:
        lane, sequence, at = row
        created = tx.created_at(lane, sequence) or 0
        tx.run("set_expiring", lane, sequence, at - created + self._shift.past(created))


class _Leases:
    """Leases; a lease granted under the wrong clock keeps its duration."""

    def __init__(self, shift: Shift) -> None:
        self._shift = shift
        self._at = 0

    def find(self, tx: Tx) -> list[Any] | None:
        rows = tx.all("leases_ahead", self._at, self._shift.ahead, self._shift.far, ROWS)
        if not rows:
            return None
        self._at = rows[-1][0]
        return rows

    def move(self, tx: Tx, row: Any) -> None:
        lease, shift = tx.lease_by_id(row[0]), self._shift
        if lease is None:
            return
        acquired, length = shift.past(lease.acquired_at), lease.expires_at - lease.acquired_at
        made = acquired != lease.acquired_at
        lease.expires_at = acquired + length if made else shift.future(lease.expires_at)
        lease.acquired_at = acquired
        lease.ended_at = None if lease.ended_at is None else shift.past(lease.ended_at)
        for fate in lease.fates:
            fate.at = shift.past(fate.at)
        tx.save_lease(lease)
        tx.run("set_acquired", lease.id, acquired)
        if lease.ended_at is None:
            tx.move_claims(lease)


class _Txids:
    """Transaction ids: none is kept longer than any queue keeps them."""

    def __init__(self, shift: Shift) -> None:
        self._shift = shift
        self._until = 0

    def find(self, tx: Tx) -> list[Any] | None:
        windows = [queue.options.dedup_seconds or 0.0 for queue in tx.queues()]
        self._until = self._shift.now + micros(max(windows, default=0.0))
        return tx.all("txids_ahead", self._until + AHEAD, ROWS) or None

    def move(self, tx: Tx, row: Any) -> None:
        tx.run("set_txid_time", *row, self._until)


def _move_few(tx: Tx, shift: Shift) -> int:
    """Correct groups that start at a time, and access tokens."""
    _forget(tx)
    moved = 0
    for queue in tx.queues():
        for group in tx.groups(queue.id):
            options, created = group.options, shift.past(group.created_at)
            if isinstance(options.start, int):
                options = structs.replace(options, start=shift.future(options.start))
            if (options, created) != (group.options, group.created_at):
                group.options, group.created_at = options, created
                tx.save_group(group)
                tx.run("set_group_time", group.id, created)
                moved += 1
    tokens = len(tx.all("access_tokens_ahead", shift.ahead, shift.now))
    if tokens:
        changed(tx)
    return moved + tokens
