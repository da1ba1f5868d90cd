"""Cursors, as primitives over named SQL statements; changes are written once, before the commit."""

from typing import Any

from ..ids import NO_LEASE, GroupId, LaneId, PartitionId
from .counters import Tally
from .mapping import Row, cursor_columns
from .records import Claim, Cursor, Group
from .statements import Statements

# Before and after all lanes with work, in the order in which they are served.
_START, _END = (-1 << 62, 0), (1 << 62, 0)
_NOTHING = 0, None, None, None, None


class Cursors(Statements):
    """The operations of a transaction on cursors and counters."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._changed: dict[tuple[LaneId, GroupId], Cursor] = {}
        self._counted: dict[tuple[LaneId, GroupId], Cursor] = {}
        self.tally = Tally()

    def forget(self) -> None:
        """Discard changes that are not written yet."""
        self._changed.clear()
        self._counted.clear()

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
        self.cache.alone.pop(c.group_id, None)
        if c.ready and not c.blocked:
            self._note_work(c.group_id, c.priority, 0)

    def changed(self, cursor: Cursor) -> None:
        """Note a changed cursor; it is written before a statement can read it."""
        self._changed[cursor.lane, cursor.group_id] = cursor

    def counted(self, cursor: Cursor) -> None:
        """Note a cursor of which only counters changed: no index is updated."""
        self._counted[cursor.lane, cursor.group_id] = cursor

    def flush(self) -> None:
        if self.tally.counts:
            self.tally.write(self.run)
        if self._counted:
            for key, c in self._counted.items():
                if key not in self._changed:
                    self._make_room(c)
                    self.run("save_counts", *cursor_columns(c))
            self._counted.clear()
        if self._changed:
            for c in self._changed.values():
                self._make_room(c)
                self.run("save_cursor", *cursor_columns(c), c.served, c.ready, c.blocked)
                self.cache.alone.pop(c.group_id, None)
                if c.ready and not c.blocked:
                    self._note_work(c.group_id, c.priority, c.served)
            self._changed.clear()

    def _note_work(self, group_id: GroupId, priority: int, served: int) -> None:
        """Lower `work_from` if a lane with work comes before it."""
        known = self.cache.work_from.get(group_id)
        if known is not None and (priority, served) < known:
            self.cache.work_from[group_id] = priority, served

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
        only = self.only_lane(group_id)
        if partition is not None:
            lane = self.value("next_work_in", group_id, partition)
            return (None if lane is None else self.cursor(lane, group_id)), False
        if only is not None:
            return self.cursor(only, group_id), True
        known = self.cache.work_from.pop(group_id, _START)
        found = self.all("next_work", group_id, *known)
        self.cache.work_from[group_id] = found[0][1:] if found else _END
        if not found:
            return None, False
        if len(found) == 1:
            self.cache.alone[group_id] = found[0][0]
        return self.cursor(found[0][0], group_id), len(found) == 1

    def only_lane(self, group_id: GroupId) -> LaneId | None:
        """Return the only lane of a group with work, if it is known that there is just one."""
        if self._changed:  # changed counters alone do not affect the index
            self.flush()
        return self.cache.alone.get(group_id)

    def block_partition(self, group_id: GroupId, partition: PartitionId, blocked: bool) -> None:
        self.flush()
        self.cache.alone.pop(group_id, None)
        self.run("block_partition", group_id, partition, blocked)
        for lane, priority, served, ready in self.all("cursors_in", group_id, partition):
            cursor = self.cache.cursors.get((lane, group_id))
            if cursor is not None:
                cursor.blocked = blocked
            if ready and not blocked:
                self._note_work(group_id, priority, served)

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
        self._counted.pop((cursor.lane, cursor.group_id), None)
        self._make_room(cursor)
        cursor.kept = (claim.lease or NO_LEASE) if claim else NO_LEASE
        kept = (cursor.kept, *claim.ranges, claim.at, claim.since) if claim else _NOTHING
        self.run("save_kept", *cursor_columns(cursor), *kept)
