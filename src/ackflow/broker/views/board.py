"""Pages for people: one queue, leases of many queues, the progress of a group, previews of a seek."""

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from ... import ranges
from ...clock import micros
from ...ids import LaneId, PartitionId
from ...model import LeaseStats, when, when_or_none
from ...options import GroupOptions, QueueOptions, Settings
from ...store.records import LEASED, Group, Queue
from ...store.tx import Tx
from ..core.admin.global_pause import is_paused
from ..core.cursors import sequence_at
from ..core.topology import find_group, find_partition, find_queue
from ..reach import merging
from ..reach.merging import Several
from ..verb import verb
from .stats import count, lease_stats, overdue

SEGMENTS = 20_000  # whose sizes are added up
PREVIEW_SECONDS = 0.5


class GroupDetails(Struct, frozen=True):
    """A group: what was set, and what follows from it."""

    name: str
    created_at: datetime
    dialect: str
    paused: bool
    options: dict[str, Any]
    settings: Settings


class QueueDetails(Struct, frozen=True):
    """A queue: its options beside their defaults, and its size.

    `bytes` is a lower bound if `more_bytes` is set.
    """

    name: str
    created_at: datetime
    paused: bool
    options: dict[str, Any]
    defaults: dict[str, Any]
    partitions: int
    messages: int
    bytes: int
    more_bytes: bool
    groups: list[GroupDetails]


class LaneDetails(Struct, frozen=True):
    """A partition of a queue at one priority: its messages have the sequences from `first` to `next`."""

    partition: str
    priority: int
    stored: int
    first: int
    next: int
    oldest_at: datetime | None
    newest_at: datetime | None


class LanePage(Struct, frozen=True):
    items: list[LaneDetails]
    next: int | None


class Position(Struct, frozen=True):
    """The next sequence that a group reads at one priority, and the end."""

    priority: int
    next: int
    end: int


class PartitionProgress(Struct, frozen=True):
    """How far a group has read one partition. `lag` is what it has not settled."""

    partition: str
    positions: list[Position]
    lag: int
    last_at: datetime | None
    ready: int
    leased: int
    waiting: int
    dead: int
    done: int


class PartitionPage(Struct, frozen=True):
    items: list[PartitionProgress]
    next: int | None


class SeekPreview(Struct):
    """What a seek would do: messages delivered again, skipped, and taken from leases.

    `partial`: only some of the lanes were looked at, so that there are more.
    """

    again: int = 0
    skipped: int = 0
    leased: int = 0
    lanes: int = 0
    partial: bool = False


class Health(Struct, frozen=True):
    """The state of the database: how late upkeep is, and whether delivery is paused everywhere.

    `version` is that of the database, as `SQLite 3.46.1`.
    """

    overdue_seconds: float
    paused: bool
    sweeps: int
    version: str


def _merge_details(answers: Sequence[QueueDetails], _: merging.Arguments) -> QueueDetails:
    groups = {group.name: group for one in answers[::-1] for group in one.groups}
    return msgspec.structs.replace(
        answers[0], created_at=min(one.created_at for one in answers),
        paused=any(one.paused for one in answers),
        more_bytes=any(one.more_bytes for one in answers), groups=list(groups.values()),
        **{name: sum(getattr(one, name) for one in answers)
           for name in ("partitions", "messages", "bytes")},
    )  # fmt: skip


@verb("read-only", name="queue_details", queue="name", read_only=True, wire=False,
      several=Several(merge=_merge_details))  # fmt: skip
def queue_details(tx: Tx, name: str) -> QueueDetails:
    queue = find_queue(tx, name)
    segments, size = tx.all("some_bytes", queue.id, SEGMENTS)[0]
    groups = [
        GroupDetails(group.name, when(group.created_at), group.dialect, group.paused,
                     _options(group.options), group.rules)
        for group in tx.groups(queue.id)
    ]  # fmt: skip
    return QueueDetails(
        queue.name, when(queue.created_at), bool(queue.paused), _options(queue.options),
        _options(QueueOptions()), tx.value("count_partitions", queue.id),
        tx.all("queue_totals", queue.id)[0][1], size, segments >= SEGMENTS, groups,
    )  # fmt: skip


def _options(options: QueueOptions | GroupOptions) -> dict[str, Any]:
    """All options by name; null stands for none, and what follows the group's dialect is left out."""
    found = msgspec.structs.asdict(options)
    return {name: value for name, value in found.items() if value is not UNSET}


def _lane_pages(ask: merging.Ask, tags: Sequence[int], arguments: merging.Arguments) -> LanePage:
    page: LanePage = merging.one_after_another(ask, tags, arguments, 1, 2)
    return page


@verb("read-only", name="queue_lanes", queue="queue_name", read_only=True, wire=False,
      several=Several(run=_lane_pages))  # fmt: skip
def queue_lanes(tx: Tx, queue_name: str, after: int, limit: int) -> LanePage:
    """Return a page of the partitions of a queue, each at its priorities."""
    queue = find_queue(tx, queue_name)
    found = tx.lanes_after(queue.id, LaneId(after + 1), limit)
    items = []
    for lane in found:
        home = tx.partition_by_id(lane.partition)
        if home is None:
            continue
        stored = lane.head - lane.base - lane.gone
        oldest = tx.one("created_at", lane.id, lane.base) if stored else None
        items.append(
            LaneDetails(home.name, lane.priority, stored, lane.base, lane.head,
                        when_or_none(oldest[0] if oldest else None), when_or_none(lane.last_at or None))
        )  # fmt: skip
    return LanePage(items, found[-1].id if len(found) == limit else None)


Leases = tuple[list[LeaseStats], bool]


def _merge_leases(answers: Sequence[Leases], arguments: merging.Arguments) -> Leases:
    limit = arguments[2]
    found = [one for leases, _ in answers for one in leases]
    return found[:limit], len(found) > limit or any(more for _, more in answers)


@verb("read-only", name="leases_of_groups", read_only=True, wire=False,
      several=Several(merge=_merge_leases))  # fmt: skip
def leases(
    tx: Tx, groups: Iterable[tuple[str, str | None]], consumer: str | None, limit: int,
    seconds: float,
) -> Leases:  # fmt: skip
    """Return live leases of these groups, and whether there may be more; None: of every group."""
    deadline = time.monotonic() + seconds
    found: list[LeaseStats] = []
    for queue, group in _groups(tx, groups):
        if time.monotonic() > deadline:
            return found, True
        for (id,) in tx.all("live_leases", group.id, tx.now, limit):
            if len(found) >= limit or time.monotonic() > deadline:
                return found, True
            lease = tx.lease_by_id(id)
            if lease is None or (consumer and consumer not in lease.consumer):
                continue
            found.append(lease_stats(tx, queue, group, lease))
    return found, False


def _groups(tx: Tx, names: Iterable[tuple[str, str | None]]) -> Iterator[tuple[Queue, Group]]:
    for queue_name, group_name in names:
        queue = tx.queue(queue_name)
        if queue is None:
            continue
        if group_name is None:
            yield from ((queue, group) for group in tx.groups(queue.id))
        elif (group := tx.group(queue.id, group_name)) is not None:
            yield queue, group


def _pages(ask: merging.Ask, tags: Sequence[int], arguments: merging.Arguments) -> PartitionPage:
    page: PartitionPage = merging.one_after_another(ask, tags, arguments, 2, 3)
    return page


@verb("read-only", name="group_progress", queue="queue_name", read_only=True, wire=False,
      several=Several(run=_pages))  # fmt: skip
def group_progress(
    tx: Tx, queue_name: str, group_name: str, after: int, limit: int
) -> PartitionPage:
    """Return a page of the partitions that a group reads."""
    queue = find_queue(tx, queue_name)
    group = find_group(tx, queue, group_name)
    found = [row[0] for row in tx.all("cursors_page", group.id, after, limit)]
    items = []
    for id in found:
        home = tx.partition_by_id(PartitionId(id))
        lanes = [] if home is None else tx.lanes_in(home.id)
        read = [(lane, cursor) for lane in lanes if (cursor := tx.cursor(lane.id, group.id))]
        cursors = [cursor for _, cursor in read]
        if home is None:
            continue
        counts, _ = count(tx, group, cursors)
        last = max((cursor.last_at for cursor in cursors if cursor.last_at), default=None)
        items.append(
            PartitionProgress(
                home.name, [Position(lane.priority, cursor.next, lane.head) for lane, cursor in read],
                counts.ready + counts.leased + counts.waiting, when_or_none(last), counts.ready,
                counts.leased, counts.waiting, counts.dead, counts.done,
            )
        )  # fmt: skip
    return PartitionPage(items, found[-1] if len(found) == limit else None)


def _merge_previews(answers: Sequence[SeekPreview], _: merging.Arguments) -> SeekPreview:
    partial = any(one.partial for one in answers)
    names = ("again", "skipped", "leased", "lanes")
    sums = {name: sum(getattr(one, name) for one in answers) for name in names}
    return SeekPreview(partial=partial, **sums)


@verb("read-only", name="seek_preview", queue="queue_name", read_only=True, wire=False,
      several=Several(merge=_merge_previews))  # fmt: skip
def seek_preview(
    tx: Tx, queue_name: str, group_name: str, to: str | int, is_time: bool, partition: str | None
) -> SeekPreview:
    """Return what a seek would do now, lane by lane, within a time limit."""
    queue = find_queue(tx, queue_name)
    group = find_group(tx, queue, group_name)
    deadline = time.monotonic() + PREVIEW_SECONDS
    home = None if partition is None else find_partition(tx, queue, partition)
    found = SeekPreview()
    for lane in tx.lanes(queue.id) if home is None else tx.lanes_in(home.id):
        cursor = tx.cursor(lane.id, group.id)
        if cursor is None:
            continue
        if time.monotonic() > deadline:
            found.partial = True
            return found
        found.lanes += 1
        if isinstance(to, str):
            target = lane.head if to == "end" else lane.base
        else:
            target = sequence_at(tx, lane, to) if is_time else min(max(to, lane.base), lane.head)
        held: ranges.Ranges = []
        for claim in tx.claims_in(lane.id, group.id, lane.base, lane.head):
            held = ranges.union(held, claim.ranges)
            if claim.state == LEASED:
                found.leased += ranges.count(claim.ranges)
        read = [lane.base, cursor.next] if lane.base < cursor.next else []
        settled = ranges.difference(
            ranges.difference(read, held), tx.gone(lane, lane.base, lane.head)
        )
        found.again += ranges.count(ranges.clip(settled, target, lane.head))
        unread = [cursor.next, lane.head] if cursor.next < lane.head else []
        found.skipped += ranges.count(ranges.clip(ranges.union(unread, held), lane.base, target))
    return found


def _merge_health(answers: Sequence[Health], _: merging.Arguments) -> Health:
    return Health(
        max(one.overdue_seconds for one in answers), any(one.paused for one in answers),
        sum(one.sweeps for one in answers), ", ".join(sorted({one.version for one in answers})),
    )  # fmt: skip


@verb("read-only", name="health", read_only=True, wire=False, several=Several(merge=_merge_health))
def health(tx: Tx) -> Health:
    running = sum(sweep.ended_at is None for sweep in tx.sweeps())
    return Health(
        overdue(tx) / micros(1), is_paused(tx), running, str(tx.value("database_version"))
    )
