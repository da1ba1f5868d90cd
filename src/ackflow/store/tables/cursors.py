"""Cursors, as primitives over named SQL statements; changes are written once, before the commit.

The next lanes with work are read several at a time; changes of cursors keep them up to date.
"""

from typing import Any

from ...ids import NO_LEASE, GroupId, LaneId, PartitionId
from ..cache import WorkAhead
from ..counters import Tally
from ..mapping import Row, cursor_columns
from ..records import Claim, Cursor, Group
from ..statements import Statements

# Before and after all lanes with work, in the order in which they are served.
_START, _END = (-1 << 62, 0), (1 << 62, 0)
_NOTHING = 0, None, None, None, None
FIRST_LANES, MOST_LANES = 2, 64  # with work, read at once

_Key = tuple[LaneId, GroupId]


class Cursors(Statements):
    """The operations of a transaction on cursors and counters."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._changed: dict[_Key, Cursor] = {}
        self._counted: dict[_Key, Cursor] = {}
        self._kept: dict[_Key, tuple[Cursor, tuple[Any, ...]]] = {}
        self.tally = Tally()

    @property
    def unwritten(self) -> bool:
        """Whether changes are not written yet."""
        return bool(self._changed or self._counted or self._kept or self._collected)

    def forget(self) -> None:
        """Discard changes that are not written yet."""
        super().forget()
        self._changed.clear()
        self._counted.clear()
        self._kept.clear()

    def cursor(self, lane: LaneId, group_id: GroupId) -> Cursor | None:
        found = self.cache.cursors.get((lane, group_id))
        if found is None and (row := self.one("cursor", lane, group_id)):
            found = self._cached_cursor(row)
        return found

    def sweep_first(self, *lanes: LaneId) -> bool:
        """Apply the sweeps that cover these lanes; False: certainly nothing was changed."""
        raise NotImplementedError

    def _cached_cursor(self, row: Row) -> Cursor:
        found = self.cache.cursors.get(row[:2])
        if found is None and self.sweep_first(row[0]):
            found = self.cursor(row[0], row[1])
        if found is None:
            found = Cursor(*row)
            found.counted = found.settled
            self.cache.keep_cursor(found)
        return found

    def cursors_of_lane(self, lane: LaneId) -> list[Cursor]:
        self.flush()
        return [self._cached_cursor(row) for row in self.all("cursors_of_lane", lane)]

    def cursors_of_group(self, group_id: GroupId) -> list[Cursor]:
        self.flush()
        return [self._cached_cursor(row) for row in self.all("cursors_of_group", group_id)]

    def add_cursor(self, cursor: Cursor) -> None:
        c = cursor
        self.run("add_cursor", c.lane, c.group_id, c.partition, c.priority, c.next, c.ready, c.blocked,
                 c.skipped, c.hidden, c.copies)  # fmt: skip
        self.cache.keep_cursor(cursor)
        self._note_work(c)

    def changed(self, cursor: Cursor) -> None:
        """Note a changed cursor; it is written before a statement can read it."""
        self._changed[cursor.lane, cursor.group_id] = cursor
        self._note_work(cursor)

    def counted(self, cursor: Cursor) -> None:
        """Note a cursor of which only counters changed: no index is updated."""
        self._counted[cursor.lane, cursor.group_id] = cursor

    def flush(self) -> None:
        """Write all changes."""
        if self._behind:
            super().flush()
        if self.tally.counts:
            self.tally.write(self.run)
        if self._kept:
            rows = []
            for key, (c, kept) in self._kept.items():
                self._counted.pop(key, None)
                self._make_room(c)
                rows.append(cursor_columns(c) + kept)
            self._write_rows("save_kept", rows)
            self._kept.clear()
        if self._counted:
            some = [c for key, c in self._counted.items() if key not in self._changed]
            for c in some:
                self._make_room(c)
            self._write_rows("save_counts", [cursor_columns(c) for c in some])
            self._counted.clear()
        if self._changed:
            rows = []
            for c in self._changed.values():
                self._make_room(c)
                rows.append((*cursor_columns(c), c.served, c.ready, c.blocked))
            self._write_rows("save_cursor", rows)
            self._changed.clear()

    def _note_work(self, cursor: Cursor) -> None:
        """Note that a lane may have work now, in the order in which lanes are served."""
        c, cache = cursor, self.cache
        has_work = c.ready and not c.blocked
        if has_work != (cache.alone.get(c.group_id) == c.lane):
            cache.alone.pop(c.group_id, None)
        if not has_work:
            return
        known = cache.work_from.get(c.group_id)
        if known is not None and (c.priority, c.served) < known:
            cache.work_from[c.group_id] = c.priority, c.served
        ahead = cache.work_ahead.get(c.group_id)
        if ahead is not None:
            ahead.add((c.priority, c.served, c.lane))

    def _make_room(self, cursor: Cursor) -> None:
        """Add the newly settled messages of a cursor to the cached capacity of its queue."""
        if cursor.group_id not in self.cache.room_known:
            return
        before, cursor.counted = cursor.counted, cursor.settled
        group = self.cache.groups.get(cursor.group_id)
        if group is None or cursor.counted[1] != before[1]:
            # Purged messages may have been removed before.
            self.cache.room_known.discard(cursor.group_id)
        elif group.queue in self.cache.room:
            self.cache.room[group.queue] += cursor.counted[0] - before[0]

    def next_work(
        self, group_id: GroupId, partition: PartitionId | None
    ) -> tuple[Cursor | None, bool]:
        """Return the lane to serve next: lowest priority number, then least recently served.

        Also return whether it is the only lane of the group with work.
        """
        if partition is not None:
            self.flush()
            lane = self.value("next_work_in", group_id, partition)
            return (None if lane is None else self.cursor(lane, group_id)), False
        only = self.only_lane(group_id)
        if only is not None:
            return self.cursor(only, group_id), True
        ahead = self.cache.work_ahead.get(group_id) or self._look_ahead(group_id, FIRST_LANES)
        while True:
            cursor = self._first_ready(group_id, ahead, 0)
            other = self._first_ready(group_id, ahead, 1)
            if other is not None or ahead.end is None:
                break
            ahead = self._look_ahead(group_id, min(4 * ahead.step, MOST_LANES))
        if cursor is None:
            self.cache.work_from[group_id] = _END
            return None, False
        self.cache.work_from[group_id] = cursor.priority, cursor.served
        if other is None:
            self.cache.alone[group_id] = cursor.lane
        return cursor, other is None

    def _look_ahead(self, group_id: GroupId, step: int) -> WorkAhead:
        """Read the next lanes with work."""
        self.flush()
        known = self.cache.work_from.pop(group_id, _START)
        rows = self.all("next_work", group_id, *known, step)
        lanes = [(priority, served, lane) for lane, priority, served in rows]
        found = WorkAhead(lanes, lanes[-1] if len(lanes) == step else None, step)
        self.cache.work_ahead[group_id] = found
        self.cache.work_from[group_id] = lanes[0][:2] if lanes else _END
        return found

    def _first_ready(self, group_id: GroupId, ahead: WorkAhead, at: int) -> Cursor | None:
        """Return the cursor of an entry, after removing outdated ones."""
        while len(ahead.lanes) > at:
            priority, served, lane = ahead.lanes[at]
            cursor = self.cursor(lane, group_id)
            if cursor and cursor.ready and not cursor.blocked and cursor.served == served:
                return cursor
            ahead.lanes.remove((priority, served, lane))
        return None

    def only_lane(self, group_id: GroupId) -> LaneId | None:
        """Return the only lane of a group with work, if it is known that there is just one."""
        return self.cache.alone.get(group_id)

    def block_partition(self, group_id: GroupId, partition: PartitionId, blocked: bool) -> None:
        lanes = self.cache.lanes_in.get(partition)
        if lanes is None:
            lanes = [row[0] for row in self.all("lane_ids_in", partition)]
            self.cache.lanes_in[partition] = lanes
        for lane in lanes.copy():
            cursor = self.cursor(lane, group_id)
            if cursor is not None and cursor.blocked != blocked:
                cursor.blocked = blocked
                self.changed(cursor)

    def reblock(self, group: Group) -> None:
        """Recompute `blocked` and `ready` of all cursors of a group."""
        self.flush()
        self.run("block_none", group.id)
        if group.rules.ordering == "ordered":
            self.run("block_leased", group.id)
        self.run("mark_ready", group.id)
        self.cache.cursors.clear()
        self.cache.alone.clear()
        self.cache.work_from.pop(group.id, None)
        self.cache.work_ahead.pop(group.id, None)

    # a claim that is stored in a cursor

    def may_keep(self, cursor: Cursor) -> bool:
        """Return whether a claim may be stored in a cursor.

        The cursor of the only lane with work becomes the keeper if the present keeper is empty.
        """
        if cursor.kept:
            return False
        return cursor.keeps or (
            self.cache.alone.get(cursor.group_id) == cursor.lane and self._become_keeper(cursor)
        )

    def _become_keeper(self, cursor: Cursor) -> bool:
        lane = self.value("keeper", cursor.group_id)
        if lane is not None:
            before = self.cursor(lane, cursor.group_id)
            assert before is not None
            if before.kept:
                return False
            before.keeps = False
            self.run("let_keep", lane, cursor.group_id, False)
        cursor.keeps = True
        self.run("let_keep", cursor.lane, cursor.group_id, True)
        return True

    def keep(self, cursor: Cursor, claim: Claim | None) -> None:
        """Store a claim in a cursor, or clear it; its changed counters are written with it."""
        cursor.kept = (claim.lease or NO_LEASE) if claim else NO_LEASE
        kept = (cursor.kept, *claim.ranges, claim.at, claim.since) if claim else _NOTHING
        if self.collects:
            self._kept[cursor.lane, cursor.group_id] = cursor, kept
            self.delay()
        else:
            self._counted.pop((cursor.lane, cursor.group_id), None)
            self._make_room(cursor)
            self._write(self._sql["save_kept"], cursor_columns(cursor) + kept)
