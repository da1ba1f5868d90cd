"""Sweeps: seek, purge and delete over any number of lanes and messages, in slices.

    verb ── one transaction ──► a row in `sweeps`       decides what is covered
      │                              │
      │       used by any verb ──► lane ◄── next slice   applied to each lane once, atomically
      │                              │
      └── slices, by the caller and by upkeep, also after a crash ──► rows are removed, ended

What a sweep covers is decided when its row is added: the lanes that exist then, and in each of them
the messages of that moment. `Tx` applies the sweep to a lane before any verb reads or changes the
lane, so that no verb can tell when the slices run; a read-only transaction has the broker apply it
first. In each lane the counters of a cursor stay balanced. A delete needs no such step: without the
row of the queue or group its rows cannot be found, and the slices remove them.
"""

import time
from collections.abc import Callable
from itertools import islice
from typing import Any, Literal

from msgspec import Struct, json

from .... import ranges
from ....clock import micros
from ....ids import GroupId, LaneId, PartitionId
from ....model import SweepStats, when, when_or_none
from ....ranges import Ranges
from ....store.counters import GONE
from ....store.records import Cursor, Group, Lane, Queue, Sweep
from ....store.tx import Tx
from ...verb import verb
from ..cursors import hidden_copies_in, pass_over, sequence_at
from ..history import record_history
from ..topology import complete_cursors, cursor_for
from .retention import drop_segment, move_base

Kind = Literal["seek", "start", "purge", "queue", "group"]
SLICE_SECONDS = 0.004
LANES_AT_START = 1_000  # for more lanes, the transaction that begins a sweep does nothing else
LANES_AT_ONCE = 16
ROWS_AT_ONCE = 200
BYTES_AT_ONCE = 4 * 1024 * 1024
KEPT_SECONDS = 3600  # an ended sweep can be listed for this time


class Target(Struct):
    """Where a seek moves a group: start, end, a sequence or a time."""

    to: str | int = "end"
    time: bool = False


class Unfinished(Struct):
    """The answer of a verb whose sweeps are not done in its own transaction.

    `answer` is the verb's answer once they are done; None: the number of messages purged.
    """

    sweeps: list[int]
    answer: Any = None


class SliceResult(Struct):
    """Whether a sweep has ended, and how many messages it has purged."""

    ended: bool
    purged: int


def begin(
    tx: Tx, kind: Kind, queue: Queue, group: Group | None = None,
    partition: PartitionId | None = None, target: Target | None = None,
) -> Sweep:  # fmt: skip
    """Add a sweep over the lanes that exist now."""
    if partition is None:
        lanes = tx.value("count_lanes", queue.id)
    else:
        lanes = tx.value("count_lanes_of_partition", partition)
    sweep = Sweep(
        0, kind, queue.id, group.id if group else None, partition,
        json.encode(target or Target()).decode(), queue.name, group.name if group else None,
        LaneId(tx.value("last_lane") or 0), 0, 0, lanes, 0, 0,
        tx.now, None,
    )  # fmt: skip
    tx.add_sweep(sweep)
    tx.touched.add(queue.name)
    return sweep


def run_first(tx: Tx, sweeps: list[Sweep], answer: Any = None) -> Any:
    """Run the first slice of new sweeps in the transaction that added them.

    Returns the answer if that was all, and else what the broker has to finish. Over many lanes the
    slices begin in the next transaction: to forget what is cached of them takes long enough.
    """
    if sum(sweep.lanes for sweep in sweeps) > LANES_AT_START:
        return Unfinished([sweep.id for sweep in sweeps], answer)
    deadline, purged = time.monotonic() + SLICE_SECONDS, 0
    for sweep in sweeps:
        result = run_slice(tx, sweep.id) if time.monotonic() < deadline else None
        if result is None or not result.ended:
            return Unfinished([sweep.id for sweep in sweeps], answer)
        purged += result.purged
    for sweep in sweeps:
        tx.run("drop_sweep", sweep.id)
    return purged if answer is None else answer


def run_slice(tx: Tx, id: int) -> SliceResult:
    """Continue a sweep for a few milliseconds."""
    sweep = tx.sweep(id)
    if sweep is None or sweep.ended_at is not None:
        return SliceResult(True, sweep.n if sweep else 0)
    step, deadline = _STEPS[sweep.kind], time.monotonic() + SLICE_SECONDS
    while more := step(tx, sweep):
        if time.monotonic() > deadline:
            break
    if more:
        tx.save_sweep(sweep)
    else:
        tx.end_sweep(sweep)
    tx.touched.add(sweep.queue_name)
    return SliceResult(not more, sweep.n)


def sweep_from(tx: Tx, lane_id: LaneId) -> None:
    """Apply all sweeps to a lane and, for some milliseconds, to those after it."""
    deadline = time.monotonic() + SLICE_SECONDS
    lane = tx.lane(lane_id)
    while lane is not None and time.monotonic() < deadline:
        found = tx.lanes_after(lane.queue, LaneId(lane.id + 1), LANES_AT_ONCE)
        lane = found[-1] if found else None


def unfinished(tx: Tx) -> list[int]:
    """Return the sweeps that have not ended, the oldest first."""
    return [sweep.id for sweep in tx.sweeps() if sweep.ended_at is None]


def end_all(tx: Tx, queue: Queue, group_id: GroupId | None = None) -> None:
    """End the sweeps of a queue or group that is deleted; there is nothing left to sweep."""
    for sweep in tx.sweeps():
        running = sweep.ended_at is None and sweep.changes_lanes and sweep.queue == queue.id
        if running and group_id in (None, sweep.group_id):
            tx.end_sweep(sweep)


def drop_old_sweeps(tx: Tx) -> int:
    return len(tx.all("old_sweeps", tx.now - micros(KEPT_SECONDS)))


@verb("read-only", name="sweeps", read_only=True)
def list_sweeps(tx: Tx) -> list[SweepStats]:
    """Return the seeks, purges and deletes that run, and those that ended in the last hour."""
    result = []
    for sweep in tx.sweeps():
        home = None if sweep.partition is None else tx.partition_by_id(sweep.partition)
        result.append(
            SweepStats(
                _KINDS[sweep.kind], sweep.queue_name, sweep.group_name, home.name if home else None,
                when(sweep.started_at), when_or_none(sweep.ended_at), sweep.lanes,
                sweep.lanes if sweep.ended_at is not None else min(sweep.done, sweep.lanes), sweep.n,
            )
        )  # fmt: skip
    return result


_KINDS = {
    "seek": "seek", "start": "seek", "purge": "purge", "queue": "delete queue",
    "group": "delete group",
}  # fmt: skip


# applied to one lane


def apply(tx: Tx, lane: Lane, sweep: Sweep) -> None:
    """Apply a seek or purge to a lane, to the messages that it has now."""
    queue = tx.queue_by_id(sweep.queue)
    assert queue is not None
    if sweep.kind == "purge":
        sweep.n += purge_lane(tx, queue, lane)
    else:
        group = tx.group_by_id(sweep.group_id) if sweep.group_id is not None else None
        if group is not None:
            cursor = cursor_for(tx, group, lane)
            if sweep.kind == "seek" or not cursor.delivered:
                seek_lane(tx, group, lane, cursor, _position(tx, lane, sweep.target))
    sweep.done += 1
    tx.cache.room.pop(queue.id, None)
    tx.touched.add(queue.name)


Tx.sweeper = staticmethod(apply)


def _position(tx: Tx, lane: Lane, packed: str) -> int:
    target = json.decode(packed, type=Target)
    if target.to == "end":
        return lane.head
    if target.to == "start":
        return lane.base
    assert isinstance(target.to, int)
    to = sequence_at(tx, lane, target.to) if target.time else target.to
    return max(lane.base, min(to, lane.head))


def seek_lane(tx: Tx, group: Group, lane: Lane, cursor: Cursor, target: int) -> None:
    """Move one cursor.

    A seek forward counts the passed messages as skipped; a seek back counts all messages before
    the target as skipped.
    """
    old = cursor.next
    pass_over(tx, lane, cursor, max(old, target), "skipped")
    if target < old:
        record_history(tx, group.id, lane.id, [target, old], "sought back")
        cursor.done = cursor.dead = cursor.purged = cursor.expired = 0
        cursor.hide(-ranges.count(hidden_copies_in(tx, lane, group.id, target, old)))
        cursor.skipped = target - cursor.hidden
        cursor.next = target
        tx.run("uncount_dead", group.id, lane.id, 0)
    cursor.ready = cursor.next < lane.head
    tx.changed(cursor)


def purge_lane(tx: Tx, queue: Queue, lane: Lane) -> int:
    """Pass every message of a lane for every group; returns how many there were.

    Its segments are removed at once if they are few, and else by the next slices.
    """
    removed = lane.head - lane.base - lane.gone
    complete_cursors(tx, queue, lane)
    cursors = tx.cursors_of_lane(lane.id)
    for cursor in cursors:
        pass_over(tx, lane, cursor, lane.head, "purged")
        cursor.ready = False
        tx.changed(cursor)
    deleted = _deleted(tx, lane)
    for cursor in cursors if deleted else ():
        record_history(tx, cursor.group_id, lane.id, deleted, "gone")
    move_base(tx, lane, lane.head)
    if not _drop_below(tx, queue, lane, lane.base):
        tx.run("put_cut_lane", lane.id, lane.base)
    return removed


def _deleted(tx: Tx, lane: Lane) -> Ranges:
    """Return the messages that were deleted one by one; `why` tells them from trimmed ones."""
    gone = tx.gone(lane, lane.base, lane.head)
    return ranges.union_all(
        [first, stop]
        for lo, hi in ranges.pairs(gone)
        for _, first, stop in tx.segments_over(lane.id, [lo, hi])
    )


# slices


def _sweep_lanes(tx: Tx, sweep: Sweep) -> bool:
    """Apply a sweep to the next lanes; returns whether there may be more."""
    if sweep.partition is None:
        name, home = "lanes_between", int(sweep.queue)
    else:
        name, home = "partition_between", int(sweep.partition)
    lanes = tx.all(name, home, sweep.after, sweep.upto, LANES_AT_ONCE)
    deadline = time.monotonic() + SLICE_SECONDS / 2
    for (id,) in lanes:
        tx.sweep_next(sweep, id)
        if time.monotonic() > deadline:
            break  # the messages of a lane may be leased together with those of many others
    if not lanes:
        sweep.after = sweep.upto
    tx.run("drop_swept", sweep.id, sweep.after)
    return bool(lanes)


def _purge_step(tx: Tx, sweep: Sweep) -> bool:
    return (sweep.after < sweep.upto and _sweep_lanes(tx, sweep)) or _drop_cut_segments(tx)


def _drop_cut_segments(tx: Tx) -> bool:
    """Remove segments of purged lanes; returns whether there may be more."""
    row = tx.one("cut_lane")
    if row is None:
        return False
    lane = tx.lane(row[0])
    queue = tx.queue_by_id(lane.queue) if lane else None
    if lane is None or queue is None or _drop_below(tx, queue, lane, row[1]):
        tx.run("drop_cut_lane", row[0])
    return True


def _drop_below(tx: Tx, queue: Queue, lane: Lane, stop: int) -> bool:
    """Remove some segments of a lane below its base; returns whether none is left."""
    if queue.options.dedup_seconds is not None or not tx.value("has_txids", lane.partition):
        return tx.drop_segments_below(lane.id, stop, ROWS_AT_ONCE, BYTES_AT_ONCE)
    n, most = 0, max(1, ROWS_AT_ONCE // 4)  # each of them is several statements
    for segment in islice(tx.headers_from(lane.id, 0), most):
        if segment.first >= stop:
            return True
        drop_segment(tx, queue, lane, segment)
        n += 1
    return n < most


def _delete_queue_step(tx: Tx, sweep: Sweep) -> bool:
    """Remove some rows of a deleted queue; returns whether there may be more."""
    step = (_delete_lane, _delete_partition, _delete_letters, _delete_leases)[sweep.phase]
    return _in_phases(tx, sweep, step, last=3)


def _delete_group_step(tx: Tx, sweep: Sweep) -> bool:
    """Remove some rows of a deleted group; returns whether there may be more."""
    step = (_delete_cursors, _delete_claims, _delete_letters, _delete_leases)[sweep.phase]
    return _in_phases(tx, sweep, step, last=3)


def _in_phases(tx: Tx, sweep: Sweep, step: Callable[[Tx, Sweep], bool], last: int) -> bool:
    if step(tx, sweep):
        return True
    if sweep.phase == last:
        return False
    sweep.phase, sweep.after = sweep.phase + 1, 0
    return True


def _delete_lane(tx: Tx, sweep: Sweep) -> bool:
    row = tx.one("first_lane", sweep.queue, sweep.after)
    if row is None:
        return False
    lane, head = row
    for name in ("drop_claims_of_lane", "drop_gone_of_lane", "drop_expiring_of_lane"):
        if len(tx.all(name, lane, ROWS_AT_ONCE)) == ROWS_AT_ONCE:
            return True
    if not _keep_counts(tx, tx.all("drop_cursors_of_lane", lane, ROWS_AT_ONCE)):
        return True
    if tx.drop_segments_below(lane, head, ROWS_AT_ONCE, BYTES_AT_ONCE):
        tx.tally.add(GroupId(GONE), "pushed", head)
        tx.run("drop_lane", lane)
        tx.run("drop_cut_lane", lane)
        sweep.done, sweep.after = sweep.done + 1, lane
    return True


def _keep_counts(tx: Tx, dropped: list[Any]) -> bool:
    """Keep the counts of dropped cursors, so that totals never decrease."""
    for name, counts in zip(
        ("delivered", "acked", "failed"), zip(*dropped, strict=True), strict=False
    ):
        if total := sum(counts):
            tx.tally.add(GroupId(GONE), name, total)
    return len(dropped) < ROWS_AT_ONCE


def _delete_partition(tx: Tx, sweep: Sweep) -> bool:
    id = tx.value("first_partition", sweep.queue)
    if id is None:
        return False
    traces = tx.all("traces_of_partition", id, ROWS_AT_ONCE)
    for (trace,) in traces:
        tx.run("drop_names_of_trace", trace)
        tx.run("drop_trace", trace)
    txids = tx.all("drop_txids_of_partition", id, ROWS_AT_ONCE)
    if max(len(traces), len(txids)) < ROWS_AT_ONCE:
        tx.run("drop_partition", id)
    return True


def _delete_letters(tx: Tx, sweep: Sweep) -> bool:
    if sweep.kind == "queue":
        return len(tx.all("drop_dead_of_queue", sweep.queue, ROWS_AT_ONCE)) == ROWS_AT_ONCE
    return len(tx.all("drop_dead_of_group", sweep.group_id, ROWS_AT_ONCE)) == ROWS_AT_ONCE


def _delete_leases(tx: Tx, sweep: Sweep) -> bool:
    """Remove leases without a group from the next ones, in the order of their ids."""
    rows = tx.all("leases_and_groups", sweep.after, ROWS_AT_ONCE)
    for id, has_group in rows:
        if not has_group:
            tx.run("drop_lease", id)
        sweep.after = id
    return len(rows) == ROWS_AT_ONCE


def _delete_cursors(tx: Tx, sweep: Sweep) -> bool:
    dropped = tx.all("drop_cursors_of_group", sweep.group_id, ROWS_AT_ONCE)
    sweep.done += len(dropped)
    return not _keep_counts(tx, dropped)


def _delete_claims(tx: Tx, sweep: Sweep) -> bool:
    return len(tx.all("drop_claims_of_group", sweep.group_id, ROWS_AT_ONCE)) == ROWS_AT_ONCE


_STEPS: dict[str, Callable[[Tx, Sweep], bool]] = {
    "seek": _sweep_lanes,
    "start": _sweep_lanes,
    "purge": _purge_step,
    "queue": _delete_queue_step,
    "group": _delete_group_step,
}
