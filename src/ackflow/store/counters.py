"""Counters and events of a transaction.

Counters that no other row holds are added to the table `tallies` before the commit. Events are
passed to the commit observer after the commit, and discarded if the transaction is rolled back.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from ..ids import GroupId, LaneId
from ..ranges import Ranges

GONE = 0  # the group id under which the counts of deleted groups are kept


# A group, the time from delivery to ack, and how many messages were acked together.
Acked = tuple[int, int, int]


class Died(NamedTuple):
    """Messages of one lane that became dead letters of a group for the same reason."""

    queue: str
    group: str
    store: int
    lane: LaneId
    ranges: Ranges
    kind: str
    reason: str | None
    deliveries: int
    failures: int
    consumer: str | None


class Tally:
    """Collects counters and events of the verbs of one transaction."""

    __slots__ = ("acked", "counts", "died")

    def __init__(self) -> None:
        self.counts: dict[tuple[int, str], int] = {}
        self.acked: list[Acked] = []
        self.died: list[Died] = []

    def add(self, group_id: GroupId, name: str, n: int) -> None:
        key = group_id, name
        self.counts[key] = self.counts.get(key, 0) + n

    def clear(self) -> None:
        self.counts.clear()
        self.acked.clear()
        self.died.clear()

    def write(self, run: Callable[..., Any]) -> None:
        """Add the counters to the table."""
        for (group_id, name), n in self.counts.items():
            run("add_tally", group_id, name, n)
        self.counts.clear()

    def mark(self) -> tuple[int, int]:
        return len(self.acked), len(self.died)

    def back_to(self, mark: tuple[int, int]) -> None:
        """Discard the events after a mark; counters were written before the mark."""
        self.counts.clear()
        del self.acked[mark[0] :]
        del self.died[mark[1] :]
