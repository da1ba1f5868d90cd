"""Which commits are on the server's disk.

A transaction is committed unsynced (`synchronous_commit = off`), so that its locks are free at once.
Verbs that must be on disk then share one small synced commit on a connection of its own, as they
share an fsync on SQLite.

After a crash of the server a commit may be missing. Every connection is lost by then, so this is
found out when one is opened again, before this broker writes anything: the row in `writes` of a
commit that is missing is missing too, and with it every later commit.
"""

import threading
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from ...ids import LaneId

KEPT = 10_000


class Marker(NamedTuple):
    """The row in `writes` by which a commit is found again."""

    number: int
    fence: int
    n: int


class SyncRecord:
    """The commits of this broker by number, and which of them are on disk.

    `begun` is the last number given, before the commit is sent; `committed` is set after it. Messages of other brokers
    count as a commit of their own, from when they were seen.
    """

    def __init__(self) -> None:
        self.begun = 1
        self.committed = 1
        self.synced = 1
        self.lost: set[int] = set()
        self._appended: dict[
            LaneId, tuple[int, int]
        ] = {}  # by lane, newest number, lowest sequence
        self._foreign = 0
        self._markers: deque[Marker] = deque(maxlen=KEPT)
        self._mutex = threading.Lock()

    def begin(self) -> int:
        """Return a number for a commit that is about to be sent."""
        self.begun += 1
        return self.begun

    def note(self, lane: int = 0, first: int = 0) -> None:
        """Note a segment that the running transaction appends to a lane."""
        key = LaneId(lane)
        with self._mutex:
            number, lowest = self._appended.get(key, (0, first))
            keep = number > self.synced
            self._appended[key] = self.begun + 1, min(lowest, first) if keep else first

    def saw_others(self, on_disk: bool) -> None:
        """Note that other brokers have written, and whether all that is on disk."""
        if not on_disk:
            self._foreign = self.committed = self.begin()

    def may_show_others(self, on_disk: bool) -> None:
        """Begin a transaction that may be the first to read a queue, which others may have written.

        What it shows of such a queue waits for a commit of its own number.
        """
        if not on_disk:
            self.committed = self.begin()

    def all_on_disk(self) -> None:
        """Note that everything is on disk that was committed up to now."""
        self.confirm(self.committed)

    def unsynced(self, lane: LaneId, stop: int) -> bool:
        if self._foreign > self.synced:
            return True
        number, first = self._appended.get(lane, (0, 0))
        return number > self.synced and first < stop

    def mark(self, markers: Iterable[Marker]) -> None:
        """Note the rows of a commit that is about to be sent."""
        with self._mutex:
            self._markers.extend(markers)

    def discard(self, number: int) -> None:
        """Forget the rows of a commit that was rolled back."""
        with self._mutex:
            while self._markers and self._markers[-1].number == number:
                self._markers.pop()

    def confirm(self, number: int) -> None:
        """Note that every commit up to a number is on disk."""
        with self._mutex:
            self.synced = max(self.synced, number)
            while self._markers and self._markers[0].number <= self.synced:
                self._markers.popleft()
            if self._appended and self.synced >= self.begun:
                # A transaction that runs meanwhile has the next number, and keeps what it noted.
                kept = [item for item in self._appended.items() if item[1][0] > self.synced]
                self._appended = dict(kept)

    def pending(self) -> list[Marker]:
        """Return the rows of commits that may not be on disk, oldest first."""
        with self._mutex:
            return [marker for marker in self._markers if marker.number > self.synced]

    def found(self, present: set[tuple[int, int]]) -> None:
        """Note which of the pending rows are there, (fence, n): what comes after the last is lost.

        A row is deleted by the next one of its fence; so a commit is there if a later one is.
        """
        with self._mutex:
            there = [m.number for m in self._markers if (m.fence, m.n) in present]
            last = max(there, default=self.synced)
            for marker in [marker for marker in self._markers if marker.number > last]:
                self.lost.add(marker.number)
                self._markers.remove(marker)


class Unchecked:
    """The record of a read-only transaction: whatever it shows may not be on disk."""

    begun = 1

    def note(self, lane: int = 0, first: int = 0) -> None:
        raise AssertionError("a read-only transaction appends nothing")

    def unsynced(self, lane: LaneId, stop: int) -> bool:
        return True
