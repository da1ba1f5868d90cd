"""How long it takes after a death until what the dead stage held is in other hands.

A stage says when it works. What the one before it held is handed out again when its leases are over
and their partitions are served again, or have nothing left. A router takes over the batch that was
in work as it stands, by the same lease.
"""

import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial

from msgspec import Struct

from .. import Session
from ..errors import NotFound
from ..model import LeaseStats
from .declaration import Pipeline
from .keeping import broker_time, kept

PARENT = "ACKFLOW_PIPELINE_PARENT"


class Back(Struct, frozen=True):
    """A stage that recovered, how long that took, and how many messages it had held.

    `free`: after how long those were there for others to take.
    """

    stage: str
    seconds: float
    held: int
    free: float | None = None

    def __str__(self) -> str:
        what = "it works again"
        if self.held:
            what = f"what it held ({self.held}) was handed out again"
            if self.free is not None:
                what = f"what it held ({self.held}) was free after {self.free:.1f} s, handed out"
        return f"{self.stage}: {what} {self.seconds:.1f} s after its death"


class _Down(Struct):
    since: float
    last: float
    held: dict[str, LeaseStats]
    free: float | None = None


class Recovery:
    """The stages that are down, or whose work nobody has taken up yet."""

    def __init__(
        self, q: Session, pipeline: Pipeline, now: Callable[[], float] | None = None
    ) -> None:
        self._q, self._pipeline = q, pipeline
        self.now = now or partial(broker_time, q)
        self._down: dict[str, _Down] = {}

    def died(self, stage: str, pid: int, at: float) -> None:
        """Take note of what a stage held; one that died again is down since the first time."""
        down = self._down.setdefault(stage, _Down(at, at, {}))
        down.last = at
        down.held |= {lease.token: lease for lease in self._leases(stage, pid) if lease.held}

    def back(self, pids: Mapping[str, int]) -> list[Back]:
        """The stages that have recovered by now; `pids` are the processes they run in."""
        now, found = self.now(), []
        for stage, down in list(self._down.items()):
            live = self._live(down)
            if down.held and down.free is None and not live & set(down.held):
                down.free = now - down.since
            if self._works(stage, pids[stage]) and self._handed_out(down, live):
                held = sum(lease.held for lease in down.held.values())
                found.append(Back(stage, now - down.since, held, down.free))
                del self._down[stage]
        return found

    def at_work(self, stage: str, pid: int) -> bool:
        """Whether a stage works, and nothing waits that one before it held."""
        return stage not in self._down and self._works(stage, pid)

    def _live(self, down: _Down) -> set[str]:
        """The leases of where it held something that are not over."""
        places = {(lease.queue, lease.group) for lease in down.held.values()}
        return {lease.token for place in places for lease in self._q.leases(*place)}

    def _leases(self, stage: str, pid: int) -> list[LeaseStats]:
        """What a stage holds. Aggregators of other machines have leases of their own."""
        found: list[LeaseStats] = []
        for queue, group in _places(self._pipeline, stage):
            try:
                found += self._q.leases(queue, group)
            except NotFound:  # it had not got so far as to ask for anything
                continue
        if stage == "aggregator":
            return [lease for lease in found if lease.consumer == aggregator_name(pid)]
        return found

    def _handed_out(self, down: _Down, live: set[str]) -> bool:
        died = datetime.fromtimestamp(down.last, UTC)
        waiting: set[tuple[str, str, str]] = set()
        for token, lease in down.held.items():
            if token not in live:
                waiting |= {(lease.queue, lease.group, name) for name in lease.partitions}
            elif lease.queue != self._pipeline.inbox:
                return False
        for queue, group in {(queue, group) for queue, group, _ in waiting}:
            for part in self._q.progress(queue, group):
                if (queue, group, part.partition) not in waiting or part.counts.lag == 0:
                    continue
                times = [lease.acquired_at for lease in part.leases]
                times += [] if part.last_at is None else [part.last_at]
                if not any(at > died for at in times):
                    return False
        return True

    def _works(self, stage: str, pid: int) -> bool:
        return kept(self._q, self._pipeline, "working").get(stage) == pid


def _places(pipeline: Pipeline, stage: str) -> list[tuple[str, str]]:
    return {
        "router": [(pipeline.inbox, "router")],
        "aggregator": [(pipeline.shards, "aggregators")],
        "finisher": [(pipeline.ends, "finisher"), (pipeline.folded, "finisher")],
    }.get(stage, [])


def aggregator_name(pid: int) -> str:
    """The consumer that an aggregator is."""
    return f"aggregator-{pid}"


def works(q: Session, pipeline: Pipeline, stage: str) -> None:
    """Tell the run that started this stage that it has got to work."""
    if PARENT in os.environ:
        t = q.transaction()
        t.put(pipeline.value("working", stage), os.getpid())
        t.commit()
