"""Upkeep: periodic duties that no call triggers.

Each duty finds its work in read-only transactions and does it in slices of about 10 ms.
"""

import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from msgspec import Struct

from ..clock import micros
from ..errors import PayloadSealed
from ..ids import GroupId, LaneId, QueueId
from ..model import Upkeep
from ..options import KEY_SECONDS, QUEUE_MODE, STAGE_SECONDS, TRACE_SECONDS, UNDECIDED
from ..store.tx import Tx
from .core.history import MOST, LeasePruner
from .core.routing.publish import drop_expired, drop_too_old
from .core.stage import drop_old_stages
from .core.take import dead_letter_overdue, may_be_overdue
from .core.topology import complete_cursors, group_for, is_undecided, make_more_cursors
from .core.upkeep.clock_recovery import RunTransaction, recover
from .core.upkeep.expiry import Refreshed, refresh
from .core.upkeep.retention import drop_old, free_segments, old_lanes, trim
from .core.upkeep.sweeps import KEPT_SECONDS, drop_old_sweeps, run_slice, unfinished
from .core.values import drop_ended
from .readers.records import NO_END, forget_readers

T = TypeVar("T")
NO_GROUP = GroupId(0)
log = logging.getLogger("ackflow")


SLICE_SECONDS = 0.010
ROWS = 500
SLICES_AT_ONCE = 4  # of a sweep in one round
LANES = 1_000
RESTS = 20  # a scan of all lanes pauses for this many times its duration
READER_SECONDS = 30 * 24 * 3600


class LaneScan(Struct):
    """A scan of all lanes in slices: its position, its time so far, and when it may start again."""

    after: int = 0
    spent: float = 0.0
    rest_until: float = 0.0


class UpkeepRunner:
    """Runs every duty once; keeps only the positions of its scans."""

    def __init__(self, read: RunTransaction, write: RunTransaction, whole: bool = False) -> None:
        """`whole`: a round does all of its work and leaves none for the next round."""
        self._read = read
        self._write = write
        self._whole = whole
        self._old, self._waiting, self._passed = LaneScan(), LaneScan(), LaneScan()
        self._walks: dict[int, int] = {}  # by lane, where trimming continues
        self._held: dict[int, int] = {}  # by lane, where dropping what is too old continues
        self._history = LeasePruner()
        self._sweeping = False
        self.driven: set[int] = set()  # sweeps that other threads run

    def run_once(self) -> Upkeep:
        done = Upkeep()
        recover(self._read, self._write)
        self._sweep()
        self.make_cursors()
        done.leases_expired = self.expire()
        done.expired = self._drop_old()
        done.max_wait = self._dead_letter_overdue()
        done.trimmed = self._trim()
        done.pruned = self._prune()
        return done

    @property
    def unfinished(self) -> bool:
        """Whether a scan of the lanes or a sweep continues in the next round."""
        scans = self._old, self._waiting, self._passed
        return self._sweeping or any(walk.after for walk in scans)

    def expire(self) -> int:
        """End expired leases and make claims due, so that waiting pops wake."""
        groups = self._read(lambda tx: [row[0] for row in tx.all("groups_with_expired", tx.now)])
        ended = 0
        for id in groups:
            found = Refreshed(more=True)
            while found.more:
                found = self._do(partial(refresh_group, id=id), Refreshed())
                ended += found.ended
        return ended

    def make_cursors(self) -> None:
        """Create the missing cursors of new groups."""
        for (id,) in self._read(lambda tx: tx.all("groups_in_the_making")):
            while self._write(partial(make_more_cursors, group_id=id)):
                pass

    def _sweep(self) -> None:
        """Go on with seeks, purges and deletes whose caller has gone."""
        left = [id for id in self._read(unfinished) if id not in self.driven]
        self._sweeping = bool(left) and not self._whole
        for id in left:
            for _ in range(SLICES_AT_ONCE):
                while not (ended := self._write(partial(run_slice, id=id)).ended) and self._whole:
                    pass
                if ended:
                    break

    def _do(self, duty: Callable[[Tx], T], nothing: T) -> T:
        """Run one step of a duty; a missing encryption key must not stop the others."""
        try:
            return self._write(duty)
        except PayloadSealed as error:
            log.warning("upkeep skipped a step: %s", error)
            return nothing

    def _walk(self, walk: LaneScan, find: Callable[[Tx, int, int], list[T]]) -> Iterator[T]:
        """Yield what is found in the next slice of lanes, or in all of them.

        A scan that took several slices pauses before it starts again.
        """
        while self._whole or time.monotonic() >= walk.rest_until:
            start = time.monotonic()
            end, found = self._read(partial(_in_slice, find=find, after=walk.after))
            walk.spent += time.monotonic() - start
            if not end:
                walk.rest_until = time.monotonic() + RESTS * walk.spent if walk.after else 0.0
                walk.spent = 0.0
            walk.after = end
            yield from found
            if not end or not self._whole:
                return

    def _drop_old(self) -> int:
        """Drop messages that are older than the retention or time to live of their queue."""
        dropped = 0
        for queue, lane in self._walk(self._old, old_lanes):
            dropped += self._drop_old_of(queue, lane)
        for (lane,) in self._read(lambda tx: tx.all("expiring_lanes", tx.now, ROWS)):
            while n := self._do(partial(drop_expired_in, lane=lane), 0):
                dropped += n
        return dropped

    def _drop_old_of(self, queue: QueueId, lane: LaneId) -> int:
        """Drop what is too old in a lane, from where the last round ended; leased segments stay."""
        at, dropped = self._held.pop(lane, 0), 0
        nothing: tuple[int, int | None] = (0, None)
        while True:
            n, more = self._do(partial(drop_old_in, queue=queue, lane=lane, start=at), nothing)
            dropped += n
            if not n and more is None:
                return dropped
            at = more or 0
            if not n and not self._whole:
                self._held[lane] = at
                return dropped

    def _dead_letter_overdue(self) -> int:
        """Dead-letter messages that waited too long for a first delivery, without any pop."""
        dead_lettered = 0
        for queue, group, lane in self._walk(self._waiting, _waiting_lanes):
            id = group or self._do(partial(_expect_group, id=queue), NO_GROUP)
            if not group:
                self.make_cursors()
            more = True
            while more:
                n, more = self._do(
                    partial(dead_letter_overdue, group_id=id, lane_id=lane), (0, False)
                )
                dead_lettered += n
        return dead_lettered

    def _trim(self) -> int:
        """Drop segments that every group has settled and that are no longer kept."""
        until = time.monotonic() + SLICE_SECONDS
        dropped = 0
        for place, lane in enumerate(self._walk(self._passed, _passed_lanes)):
            if place and not self._whole and time.monotonic() > until:
                self._passed.after = lane - 1
                break
            dropped += self._trim_lane(lane)
        return dropped

    def _trim_lane(self, lane: LaneId) -> int:
        """Trim a lane from where the last scan ended.

        Segments that are needed are skipped; many of them in a row end the scan for this round.
        """
        at: int | None = self._walks.pop(lane, 0)
        dropped = 0
        while at is not None:
            found = self._read(partial(free_segments, lane_id=lane, start=at))
            if found.segments:
                start = found.segments[0].first
                nothing: tuple[int, int | None] = (0, None)
                n, at = self._do(partial(trim, lane_id=lane, start=start), nothing)
                dropped += n
            else:
                at = found.next
                if at is not None and not self._whole:
                    self._walks[lane] = at
                    break
        return dropped

    def _prune(self) -> int:
        """Delete old rows: lease history, keys, transaction ids, stages, readers, traces, values."""
        pruned = n = self._drop_leases()
        while n >= MOST:
            n = self._drop_leases()
            pruned += n
        if self._read(_anything_old):
            pruned += self._write(drop_forgotten)
            if self._read(_anything_old):
                pruned += self._write(_drop_old_rows)
        return pruned

    def _drop_leases(self) -> int:
        mark = self._history.mark()
        old = self._read(self._history.over)
        try:
            for at in range(0, len(old), ROWS):
                self._write(partial(drop_leases, old=old[at : at + ROWS]))
        except BaseException:
            self._history.back_to(mark, old)
            raise
        return len(old)


def refresh_group(tx: Tx, id: GroupId) -> Refreshed:
    group = tx.group_by_id(id)
    if group is None:
        return Refreshed()
    found = refresh(tx, group)
    if found.changed:
        queue = tx.queue_by_id(group.queue)
        assert queue is not None
        tx.touched.add(queue.name)
    return found


def drop_old_in(tx: Tx, queue: QueueId, lane: LaneId, start: int) -> tuple[int, int | None]:
    found, where = tx.queue_by_id(queue), tx.lane(lane)
    if found is None or where is None:
        return 0, None
    complete_cursors(tx, found, where)
    dropped, more = drop_old(tx, found, where, 100, start)
    return dropped + drop_too_old(tx, found, where, 100), more


def drop_expired_in(tx: Tx, lane: LaneId) -> int:
    where = tx.lane(lane)
    queue = tx.queue_by_id(where.queue) if where is not None else None
    if where is None or queue is None:
        return len(tx.all("drop_expiring_of_lane", lane, ROWS))  # of a deleted queue
    complete_cursors(tx, queue, where)
    return drop_expired(tx, queue, where)


def drop_leases(tx: Tx, old: list[int]) -> None:
    for id in old:
        tx.run("drop_lease", id)


def _expect_group(tx: Tx, id: QueueId) -> GroupId:
    """Return the group that owns dead letters before a real group exists; 0 if one exists."""
    queue, groups = tx.queue_by_id(id), tx.groups(id)
    if queue is None or any(not is_undecided(group) for group in groups):
        return NO_GROUP
    return group_for(tx, queue, QUEUE_MODE, UNDECIDED).id


def _in_slice(tx: Tx, find: Callable[[Tx, int, int], list[T]], after: int) -> tuple[int, list[T]]:
    """Search the lanes after one; return the last lane of the slice (0: end) and the results."""
    end = tx.value("lane_after", after, LANES - 1)
    return end or 0, find(tx, after, end or NO_END)


def _waiting_lanes(tx: Tx, after: int, end: int) -> list[tuple[QueueId, GroupId, LaneId]]:
    """Return (queue, group or 0, lane) in which a message may have waited too long."""
    limits = {
        queue.id: micros(queue.options.max_wait_seconds)
        for queue in tx.queues()
        if queue.options.max_wait_seconds is not None
    }
    found = []
    for group_id, lane, queue, created, due in (
        tx.all("waiting_lanes", after, end) if limits else ()
    ):
        limit = limits.get(queue)
        if limit is not None and (
            (created is not None and created + limit <= tx.now)
            or (due and may_be_overdue(tx, limit, lane, group_id))
        ):
            found.append((queue, group_id, lane))
    early = {queue: limit for queue, limit in limits.items() if not tx.group_ids(queue)}
    for lane, queue, created in tx.all("oldest_of_lanes", after, end) if early else ():
        if queue in early and created + early[queue] <= tx.now:
            found.append((queue, NO_GROUP, lane))
    return found


def _passed_lanes(tx: Tx, after: int, end: int) -> list[LaneId]:
    """Return lanes whose oldest segment is passed by every group and no longer kept."""
    kept = {queue.id: queue.options.keep_seconds for queue in tx.queues()}
    found = []
    for lane, queue, created in tx.all("passed_lanes", after, end):
        seconds = kept.get(queue)
        if seconds is not None and created + micros(seconds) <= tx.now:
            found.append(lane)
    return found


def _anything_old(tx: Tx) -> bool:
    ages = (KEY_SECONDS, 0, STAGE_SECONDS, READER_SECONDS, TRACE_SECONDS, KEPT_SECONDS)
    return bool(tx.value("any_old", *(tx.now - micros(age) for age in ages)))


def _drop_old_traces(tx: Tx) -> int:
    old = tx.all("old_traces", tx.now - micros(TRACE_SECONDS), ROWS)
    for (id,) in old:
        tx.run("drop_names_of_trace", id)
        tx.run("drop_trace", id)
    return len(old)


def drop_forgotten(tx: Tx) -> int:
    """Delete keys and transaction ids whose time is over."""
    keys = tx.all("old_keys", tx.now - micros(KEY_SECONDS), ROWS)
    return len(keys) + len(tx.all("old_txids", tx.now, ROWS))


def _drop_old_rows(tx: Tx) -> int:
    dropped = drop_old_stages(tx, 10) + _drop_old_traces(tx)
    dropped += forget_readers(tx, tx.now - micros(READER_SECONDS), 10)
    return dropped + drop_old_sweeps(tx) + drop_ended(tx, ROWS)
