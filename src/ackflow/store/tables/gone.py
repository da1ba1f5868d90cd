"""Messages removed from a lane above its base: deleted, or trimmed between messages that remain.

They are stored as disjoint ranges, one row each, so that the cost of an operation does not depend
on the number of rows. `Lane.gone` is the number of removed messages; `Lane.gone_to` is the end of
the last range: no row is read beyond it.
"""

from ... import ranges
from ...ids import GroupId
from ...ranges import Ranges
from ..records import Lane
from ..statements import Statements


class GoneRows(Statements):
    """The operations of a transaction on removed messages."""

    def gone(self, lane: Lane, first: int, stop: int) -> Ranges:
        """Return the removed ranges within [first, stop)."""
        found: Ranges = []
        for lo, hi, _ in self._near(lane, first, stop):
            if found and found[-1] == lo:
                found[-1] = hi
            else:
                found += (lo, hi)
        return ranges.clip(found, first, stop)

    def is_gone(self, lane: Lane, sequence: int) -> bool:
        return bool(self.gone(lane, sequence, sequence + 1))

    def gone_copies(self, lane: Lane, group_id: GroupId, first: int, stop: int) -> Ranges:
        """Return the removed ranges within [first, stop) that were copies for other groups."""
        found: Ranges = []
        for lo, hi, for_group in self._near(lane, first, stop):
            if for_group not in (None, group_id):
                found = ranges.add(found, lo, hi)
        return ranges.clip(found, first, stop)

    def gone_after(self, lane: Lane, group_id: GroupId, first: int) -> int:
        """Return how many messages are removed from a sequence on.

        The count is cached for each group, and updated as the group advances.
        """
        if first >= lane.gone_to:
            return 0
        at, n = self.cache.gone_after.get(lane.id, {}).get(group_id, (first + 1, 0))
        if at > first:
            n = int(self.value("gone_after", lane.id, first))
        elif at < first:
            n -= ranges.count(self.gone(lane, at, first))
        self.cache.gone_after.setdefault(lane.id, {})[group_id] = first, n
        return n

    def add_gone(self, lane: Lane, first: int, stop: int, for_group: GroupId | None = None) -> None:
        """Record that [first, stop) is removed; the caller saves the lane."""
        lo, hi, more, was = first, stop, [], 0
        for start, end, only in self._near(lane, first, stop):
            was += end - start
            self.run("drop_gone", lane.id, start)
            if only == for_group:
                lo, hi = min(lo, start), max(hi, end)
            else:
                more += [(start, min(end, first), only), (max(start, stop), end, only)]
        rows = [(lo, hi, for_group), *((a, b, only) for a, b, only in more if a < b)]
        for row in rows:
            self.run("add_gone", lane.id, *row)
        new = sum(b - a for a, b, _ in rows) - was
        lane.gone += new
        lane.gone_to = max(lane.gone_to, stop)
        counted = self.cache.gone_after.get(lane.id, {})
        for group_id, (at, n) in list(counted.items()):
            if at <= first:
                counted[group_id] = at, n + new
            elif at < stop:
                del counted[group_id]

    def cut_gone(self, lane: Lane, base: int) -> None:
        """Delete the removed ranges below a new base; the caller saves the lane."""
        if not lane.gone:
            return
        for start, end, only in self._near(lane, base, base):
            if start < base < end:
                self.run("drop_gone", lane.id, start)
                self.run("add_gone", lane.id, base, end, only)
        self.run("drop_gone_below", lane.id, base)
        lane.gone = int(self.value("gone_after", lane.id, base))
        lane.gone_to = lane.gone_to if lane.gone else 0
        self.cache.gone_after.pop(lane.id, None)

    def _near(self, lane: Lane, first: int, stop: int) -> list[tuple[int, int, int | None]]:
        """Return the rows that overlap or touch [first, stop), in order."""
        if first > lane.gone_to:
            return []
        return [(lo, hi, only) for lo, hi, only in self.all("gone_near", lane.id, first, stop)]
