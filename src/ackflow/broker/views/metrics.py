"""The figures of every queue and group at one moment, for monitoring.

The cost grows with the number of lanes and claims, never with that of messages.
"""

from msgspec import Struct, field

from ... import ranges
from ...clock import SECOND
from ...store.counters import GONE
from ...store.records import DUE, LEASED
from ...store.tx import Tx
from .stats import unseen


class GroupFigures(Struct):
    """Of one group; the first eight only ever grow."""

    id: int
    queue: str
    name: str
    delivered: int = 0
    acked: int = 0
    failed: int = 0
    redelivered: int = 0
    leases_expired: int = 0
    dead_by_kind: dict[str, int] = field(default_factory=dict)
    ready: int = 0
    leased: int = 0
    waiting: int = 0
    dead: int = 0
    oldest_ready_seconds: float = 0.0

    @property
    def lag(self) -> int:
        return self.ready + self.leased + self.waiting


class Figures(Struct):
    """Pushed messages by queue, and the groups; what was deleted has no name."""

    pushed: dict[str, int]
    groups: list[GroupFigures]


def figures(tx: Tx) -> Figures:
    tallies: dict[int, dict[str, int]] = {}
    for grp, name, n in tx.all("tallies"):
        tallies.setdefault(grp, {})[name] = n
    pushed, queues = {}, {}
    for id, name, head in tx.all("pushed_figures"):
        queues[id] = name
        pushed[name] = head - tallies.get(-id, {}).get("copies", 0)
    groups: dict[int, GroupFigures] = {}
    for id, queue, name, delivered, acked, failed, dead, unread in tx.all("group_figures"):
        groups[id] = GroupFigures(
            id, queues[queue], name, delivered, acked, failed, dead=dead, ready=unread
        )
        _count(groups[id], tallies.get(id, {}))
    _unread(tx, groups)
    _claimed(tx, groups)
    if GONE in tallies:
        pushed[""] = tallies[GONE].get("pushed", 0)
        groups[GONE] = _deleted(tallies[GONE])
    return Figures(pushed, list(groups.values()))


def _count(group: GroupFigures, tally: dict[str, int]) -> None:
    group.redelivered = tally.get("redelivered", 0)
    group.leases_expired = tally.get("leases_expired", 0)
    group.dead_by_kind = {
        name.removeprefix("dead_"): n for name, n in tally.items() if name.startswith("dead_")
    }


def _deleted(tally: dict[str, int]) -> GroupFigures:
    """What groups that are no more have counted, so that totals never shrink."""
    delivered, acked, failed = (tally.get(name, 0) for name in ("delivered", "acked", "failed"))
    group = GroupFigures(GONE, "", "", delivered, acked, failed)
    _count(group, tally)
    return group


def _unread(tx: Tx, groups: dict[int, GroupFigures]) -> None:
    """Take copies for other groups and delayed messages out of what is ready."""
    for grp, hidden, delayed in tx.all("odd_figures", tx.now):
        groups[grp].ready -= hidden + delayed
        groups[grp].waiting += delayed
    for grp, lane_id, start in tx.all("cursors_with_gone"):
        lane = tx.lane(lane_id)
        assert lane is not None
        there, delayed = unseen(tx, grp, lane, start, lane.head)
        fresh = ranges.difference(there, tx.gone(lane, start, lane.head))
        groups[grp].ready += ranges.count(fresh) - delayed
        groups[grp].waiting += delayed


def _claimed(tx: Tx, groups: dict[int, GroupFigures]) -> None:
    oldest: dict[int, int | None] = {row[0]: row[1] for row in tx.all("oldest_figures", tx.now)}
    for grp, state, n, since in tx.all("claim_figures", tx.now):
        group = groups[grp]
        if state == LEASED:
            group.leased += n
        elif state == DUE:
            group.ready += n
            oldest[grp] = min(since, oldest.get(grp) or since)
        else:
            group.waiting += n
    for grp, time in oldest.items():
        if time is not None and groups[grp].ready:
            groups[grp].oldest_ready_seconds = max(0.0, (tx.now - time) / SECOND)
