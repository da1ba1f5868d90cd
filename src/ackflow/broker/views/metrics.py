"""A snapshot of the counters of every queue and group, for monitoring.

The cost grows with the number of lanes and claims, never with the number of messages.
"""

from collections.abc import Sequence

from msgspec import Struct, field

from ... import ranges
from ...clock import SECOND
from ...store.counters import GONE
from ...store.records import DUE, LEASED
from ...store.tx import Tx
from ..reach import merging
from ..reach.merging import Several
from ..verb import verb
from .stats import visible_in


class GroupMetrics(Struct):
    """The counters of one group; the first eight never decrease. `also`: its ids in the other
    databases of its queue."""

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
    paused: bool = False
    also: list[int] = []

    @property
    def lag(self) -> int:
        return self.ready + self.leased + self.waiting


_ADDED = ("delivered", "acked", "failed", "redelivered", "leases_expired", "ready", "leased",
          "waiting", "dead")  # fmt: skip


class MetricsSnapshot(Struct):
    """Messages pushed by queue, and the groups; deleted ones have an empty name.

    `queues` has each queue that exists by its name: id, messages stored, and whether it is paused.
    `at` is the time in microseconds since 1970.
    """

    pushed: dict[str, int]
    groups: list[GroupMetrics]
    queues: dict[str, tuple[int, int, bool]] = {}
    at: int = 0


def _merged(ask: merging.Ask, tags: Sequence[int], arguments: merging.Arguments) -> MetricsSnapshot:
    """The counters of several databases; queues and groups that are in several have the sums."""
    pushed: dict[str, int] = {}
    groups: dict[tuple[str, str], GroupMetrics] = {}
    queues: dict[str, tuple[int, int, bool]] = {}
    at = 0
    for tag in tags:
        found: MetricsSnapshot = ask(tag, arguments)
        at = max(at, found.at)
        for name, (id, stored, paused) in found.queues.items():
            known_id, elsewhere, held = queues.get(name, (merging.tagged(tag, id), 0, False))
            queues[name] = known_id, elsewhere + stored, held or paused
        for queue, n in found.pushed.items():
            pushed[queue] = pushed.get(queue, 0) + n
        for group in found.groups:
            if group.id != GONE:
                group.id = merging.tagged(tag, group.id)
            known = groups.setdefault((group.queue, group.name), group)
            if known is not group:
                _add(known, group)
    return MetricsSnapshot(pushed, list(groups.values()), queues, at)


def _add(group: GroupMetrics, other: GroupMetrics) -> None:
    group.also.append(other.id)
    oldest = max(group.oldest_ready_seconds, other.oldest_ready_seconds)
    for name in _ADDED:
        setattr(group, name, getattr(group, name) + getattr(other, name))
    for kind, n in other.dead_by_kind.items():
        group.dead_by_kind[kind] = group.dead_by_kind.get(kind, 0) + n
    group.paused = group.paused or other.paused
    group.oldest_ready_seconds = oldest


@verb("read-only", name="metrics", read_only=True, several=Several(run=_merged))
def snapshot(tx: Tx) -> MetricsSnapshot:
    """Read the counters of all queues and groups."""
    tallies: dict[int, dict[str, int]] = {}
    for group_id, name, n in tx.all("tallies"):
        tallies.setdefault(group_id, {})[name] = n
    pushed, queues, known = {}, {}, {}
    for id, name, head, stored, paused in tx.all("pushed_figures"):
        queues[id] = name
        known[name] = id, stored, bool(paused)
        pushed[name] = head - tallies.get(-id, {}).get("copies", 0)
    groups: dict[int, GroupMetrics] = {}
    for id, queue, name, delivered, acked, failed, dead, unread in tx.all("group_figures"):
        groups[id] = GroupMetrics(
            id, queues[queue], name, delivered, acked, failed, dead=dead, ready=unread
        )
        _count(groups[id], tallies.get(id, {}))
    for (id,) in tx.all("paused_groups"):
        if id in groups:
            groups[id].paused = True
    _unread(tx, groups)
    _claimed(tx, groups)
    deleted = tallies.get(GONE, {})
    _add_unswept(tx, deleted)
    if deleted:
        pushed[""] = deleted.get("pushed", 0)
        groups[GONE] = _deleted(deleted)
    return MetricsSnapshot(pushed, list(groups.values()), known, tx.now)


def _count(group: GroupMetrics, tally: dict[str, int]) -> None:
    group.redelivered = tally.get("redelivered", 0)
    group.leases_expired = tally.get("leases_expired", 0)
    group.dead_by_kind = {
        name.removeprefix("dead_"): n for name, n in tally.items() if name.startswith("dead_")
    }


def _deleted(tally: dict[str, int]) -> GroupMetrics:
    """Return what deleted groups have counted, so that totals never decrease."""
    delivered, acked, failed = (tally.get(name, 0) for name in ("delivered", "acked", "failed"))
    group = GroupMetrics(GONE, "", "", delivered, acked, failed)
    _count(group, tally)
    return group


def _add_unswept(tx: Tx, tally: dict[str, int]) -> None:
    """Add the counts of deleted queues and groups whose rows are not removed yet."""
    running = [sweep for sweep in tx.sweeps() if sweep.ended_at is None]
    queues = {sweep.queue for sweep in running if sweep.kind == "queue"}
    counts = [tx.all("deleted_counts_of_queue", queue)[0] for queue in queues]
    for sweep in running:
        if sweep.kind == "group" and sweep.queue not in queues:
            counts.append(tx.all("deleted_counts_of_group", sweep.group_id)[0])
    for one in counts:
        for name, n in zip(("delivered", "acked", "failed"), one, strict=True):
            tally[name] = tally.get(name, 0) + n
    for queue in queues:
        tally["pushed"] = tally.get("pushed", 0) + tx.value("deleted_pushed", queue)


def _unread(tx: Tx, groups: dict[int, GroupMetrics]) -> None:
    """Subtract copies for other groups and delayed messages from what is ready."""
    for group_id, hidden, delayed in tx.all("odd_figures", tx.now):
        if group_id not in groups:
            continue  # it is deleted, and its rows are not removed yet
        groups[group_id].ready -= hidden + delayed
        groups[group_id].waiting += delayed
    for group_id, lane_id, start in tx.all("cursors_with_gone"):
        lane = tx.lane(lane_id)
        if lane is None or group_id not in groups:
            continue
        there, delayed = visible_in(tx, group_id, lane, start, lane.head)
        fresh = ranges.difference(there, tx.gone(lane, start, lane.head))
        groups[group_id].ready += ranges.count(fresh) - delayed
        groups[group_id].waiting += delayed


def _claimed(tx: Tx, groups: dict[int, GroupMetrics]) -> None:
    oldest: dict[int, int | None] = {row[0]: row[1] for row in tx.all("oldest_figures", tx.now)}
    for group_id, state, n, since in tx.all("claim_figures", tx.now):
        group = groups.get(group_id)
        if group is None:
            continue
        if state == LEASED:
            group.leased += n
        elif state == DUE:
            group.ready += n
            oldest[group_id] = min(since, oldest.get(group_id) or since)
        else:
            group.waiting += n
    for group_id, time in oldest.items():
        if time is not None and group_id in groups and groups[group_id].ready:
            groups[group_id].oldest_ready_seconds = max(0.0, (tx.now - time) / SECOND)
