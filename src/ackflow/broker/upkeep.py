"""Upkeep: what has to happen although nobody asks for it.

Each duty finds its work beside the writer and does it in slices short enough not to be noticed.
"""

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from .. import ranges
from ..clock import micros
from ..errors import PayloadSealed
from ..model import Upkeep
from ..policy import KEY_SECONDS, QUEUE_MODE, STAGE_SECONDS, UNDECIDED
from ..ranges import Ranges
from ..store.rows import Queue, Segment
from ..store.tx import Tx
from .expire import Refreshed, close_gaps, drop_old, drop_segment, refresh
from .hands import forget_readers
from .history import MOST, History
from .lanes import group_for
from .recover import Run, recover
from .stage import drop_old_stages
from .take import may_be_overdue, overdue
from .traces import TRACE_SECONDS, forget_old
from .unread import drop_unread, old_lanes

T = TypeVar("T")
log = logging.getLogger("ackflow")


SLICE_SECONDS = 0.010
ROWS = 500
LANES = 2_000
READER_SECONDS = 30 * 24 * 3600


class Keeper:
    """Runs every duty once; remembers only where its walks have got to."""

    def __init__(self, read: Run, write: Run, whole: bool = False) -> None:
        """`whole`: a round leaves nothing for the next one."""
        self._read = read
        self._write = write
        self._whole = whole
        self._trimmed_to = 0
        self._walks: dict[int, int] = {}  # by lane, where to go on with a long one
        self._history = History()

    def run_once(self) -> Upkeep:
        done = Upkeep()
        recover(self._read, self._write)
        done.leases_expired = self.expire()
        done.expired = self._drop_old()
        done.max_wait = self._bury_overdue()
        done.trimmed = self._trim()
        done.pruned = self._prune()
        return done

    def expire(self) -> int:
        """Take back leases that are over, and wake what is due, so that waiting pops are told."""
        groups = self._read(lambda tx: [row[0] for row in tx.all("groups_with_expired", tx.now)])
        ended = 0
        for id in groups:
            found = Refreshed(more=True)
            while found.more:
                found = self._do(partial(_refresh, id=id), Refreshed())
                ended += found.ended
        return ended

    def _do(self, duty: Callable[[Tx], T], nothing: T) -> T:
        """Do one piece of a duty; what needs a key that is not given must not hold up the rest."""
        try:
            return self._write(duty)
        except PayloadSealed as error:
            log.warning("upkeep left something out: %s", error)
            return nothing

    def _drop_old(self) -> int:
        """Remove what is older than its queue's retention."""
        dropped = 0
        for queue in self._read(Tx.queues):
            if (queue.options.retention_seconds, queue.options.ttl_seconds) != (None, None):
                for lane in self._read(partial(old_lanes, queue=queue)):
                    while n := self._do(partial(_drop, queue=queue.id, lane=lane), 0):
                        dropped += n
        return dropped

    def _bury_overdue(self) -> int:
        """Dead-letter what waited too long for its first delivery, though nobody pops."""
        buried = 0
        for queue in self._read(Tx.queues):
            if queue.options.max_wait_seconds is not None:
                if self._read(partial(_dies_unread, queue=queue)):
                    self._do(partial(_expect_group, id=queue.id), None)
                for group, lane in self._read(partial(_waiting_lanes, queue=queue)):
                    more = True
                    while more:
                        n, more = self._do(partial(overdue, grp=group, lane_id=lane), (0, False))
                        buried += n
        return buried

    def _trim(self) -> int:
        """Remove segments that every group has settled and that are kept no longer."""
        until = time.monotonic() + SLICE_SECONDS
        self._trimmed_to, lanes = self._read(partial(_lanes_to_trim, start=self._trimmed_to))
        dropped = 0
        for place, lane in enumerate(lanes):
            if place and not self._whole and time.monotonic() > until:
                self._trimmed_to = lane - 1
                break
            dropped += self._trim_lane(lane)
        return dropped

    def _trim_lane(self, lane: int) -> int:
        """Go through a lane from where its last walk ended; what is needed is passed by, so a long
        stretch of it ends the walk for this round."""
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
        """Forget lease history, keys, transaction ids and stages past their time."""
        pruned = n = self._drop_leases()
        while n >= MOST:
            n = self._drop_leases()
            pruned += n
        if self._read(_anything_old):
            pruned += self._write(_drop_old_rows)
        return pruned

    def _drop_leases(self) -> int:
        mark = self._history.mark()
        old = self._read(self._history.over)
        try:
            for at in range(0, len(old), ROWS):
                self._write(partial(_drop_leases, old=old[at : at + ROWS]))
        except BaseException:
            self._history.back_to(mark, old)
            raise
        return len(old)


class Stretch(NamedTuple):
    """The segments of a stretch of a lane that may go, and where the next one begins, if it does."""

    segments: list[Segment]
    next: int | None


def free_segments(tx: Tx, lane_id: int, start: int) -> Stretch:
    """Look through some segments for those that every group has settled and that are kept no longer.

    What is needed stays, and all around it goes.
    """
    lane = tx.lane(lane_id)
    queue = tx.queue_by_id(lane.queue) if lane else None
    if lane is None or queue is None or queue.options.keep_seconds is None:
        return Stretch([], None)
    tx.flush()
    low = tx.value("lowest_cursor", lane.id)
    limit = tx.now - micros(queue.options.keep_seconds)
    settled: list[Segment] = []
    for segment in tx.headers_from(lane.id, max(start, lane.base)) if low is not None else ():
        if segment.stop > low or segment.created_at > limit or len(settled) == ROWS:
            break
        settled.append(segment)
    if not settled:
        return Stretch([], None)
    used = _used(tx, lane.id, settled[0].first, settled[-1].stop)
    free = [s for s in settled if not ranges.clip(used, s.first, s.stop)]
    return Stretch(free, settled[-1].stop if len(settled) == ROWS else None)


def _used(tx: Tx, lane: int, first: int, stop: int) -> Ranges:
    """What of [first, stop) is claimed by a group, or may be read again by a reader."""
    found: Ranges = []
    for lo, hi, packed in sorted(tx.all("used_in", lane, first, stop), key=lambda row: row[0]):
        some = [lo, hi] if packed is None else ranges.unpack(packed)
        found = ranges.union(found, ranges.clip(some, first, stop))
    return found


def trim(tx: Tx, lane_id: int, start: int) -> tuple[int, int | None]:
    """Remove a slice of the segments of a stretch that may go; answers with how many, and where to
    go on."""
    found = free_segments(tx, lane_id, start)
    lane = tx.lane(lane_id)
    queue = tx.queue_by_id(lane.queue) if lane else None
    if lane is None or queue is None or not found.segments:
        return 0, found.next
    deadline = time.monotonic() + SLICE_SECONDS
    dropped: list[Segment] = []
    for segment in found.segments:
        if dropped and time.monotonic() > deadline:
            break  # but one at least, or a slow machine would never get on
        drop_segment(tx, queue, lane, segment)
        dropped.append(segment)
    close_gaps(tx, lane, dropped)
    whole = len(dropped) == len(found.segments)
    return len(dropped), found.next if whole else dropped[-1].stop


def _refresh(tx: Tx, id: int) -> Refreshed:
    group = tx.group_by_id(id)
    if group is None:
        return Refreshed()
    found = refresh(tx, group)
    if found.changed:
        queue = tx.queue_by_id(group.queue)
        assert queue is not None
        tx.touched.add(queue.name)
    return found


def _drop(tx: Tx, queue: int, lane: int) -> int:
    found, where = tx.queue_by_id(queue), tx.lane(lane)
    if found is None or where is None:
        return 0
    return drop_old(tx, found, where, 100) + drop_unread(tx, found, where, 100)


def _drop_leases(tx: Tx, old: list[int]) -> None:
    for id in old:
        tx.run("drop_lease", id)


def _dies_unread(tx: Tx, queue: Queue) -> bool:
    """Whether something waited too long in a queue that has no group yet."""
    before = tx.now - micros(queue.options.max_wait_seconds or 0)
    return not tx.groups(queue.id) and tx.value("any_pushed_before", queue.id, before) is not None


def _expect_group(tx: Tx, id: int) -> None:
    """Make the group that dead letters belong to until the first one comes, and then to that one."""
    queue = tx.queue_by_id(id)
    if queue is not None and not tx.groups(id):
        group_for(tx, queue, QUEUE_MODE, UNDECIDED)


def _waiting_lanes(tx: Tx, queue: Queue) -> list[tuple[int, int]]:
    """Groups and lanes in which something may have waited too long."""
    return [
        (group.id, lane)
        for group in tx.groups(queue.id)
        for (lane,) in tx.all("ready_lanes", group.id)
        if may_be_overdue(tx, queue, group.id, lane)
    ]


def _lanes_to_trim(tx: Tx, start: int) -> tuple[int, list[int]]:
    """Lanes whose oldest segment may go, and where to go on with the next round."""
    rows = tx.all("lanes_to_trim", start, LANES)
    ripe = []
    for (id,) in rows:
        lane = tx.lane(id)
        queue = tx.queue_by_id(lane.queue) if lane else None
        if lane and queue:
            created, kept = tx.created_at(id, lane.base), queue.options.keep_seconds
            if created is not None and kept is not None and created + micros(kept) <= tx.now:
                ripe.append(id)
    return (rows[-1][0] if len(rows) == LANES else 0), ripe


def _anything_old(tx: Tx) -> bool:
    ages = (KEY_SECONDS, 0, STAGE_SECONDS, READER_SECONDS, TRACE_SECONDS)
    return bool(tx.value("any_old", *(tx.now - micros(age) for age in ages)))


def _drop_old_rows(tx: Tx) -> int:
    dropped = drop_old_stages(tx, 10) + forget_old(tx, ROWS)
    dropped += forget_readers(tx, tx.now - micros(READER_SECONDS), 10)
    dropped += len(tx.all("old_keys", tx.now - micros(KEY_SECONDS), ROWS))
    dropped += len(tx.all("old_txids", tx.now, ROWS))
    return dropped
