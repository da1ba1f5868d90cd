"""Locks: leases that one id settles as a whole, and the answers for an unknown id."""

from msgspec import Struct, field

from ... import ranges, validate
from ...broker.brief import brief
from ...broker.core.settle import extend, settle
from ...broker.core.topology import find_queue
from ...broker.core.upkeep.expiry import refresh
from ...broker.requests import Mark, Verdict
from ...broker.verb import verb
from ...broker.views.stats import count, visible_in
from ...errors import LeaseExpired
from ...ids import GroupId
from ...model import Counts
from ...store.records import Cursor, Group, Queue
from ...store.tx import Tx
from .errors import NoLock, WrongLock


class Lock(Struct):
    """A live lock: its token, its times, and how many messages it holds, by priority."""

    token: int
    acquired_at: int
    expires_at: int
    held: dict[int, int]


class Levels(Struct):
    """Messages that a group may still pop, by priority, and those it cannot get now."""

    queue: str
    ready: dict[int, int] = field(default_factory=dict)
    waiting: int = 0
    dead: int = 0
    lock: Lock | None = None


def _check_lock(queue: str, group: str, *_: object) -> None:
    validate.name(queue, "queue")
    validate.name(group, "group")


@brief
@verb("read-write", queue="queue", lease="token", check=_check_lock)
def settle_lock(tx: Tx, queue: str, group: str, token: int | None, verdict: Verdict) -> int:
    """Settle everything a lock holds with one verdict; returns how many messages.

    The same verdict again returns the same. Once the lock has expired, its messages are back in
    their places, and the call is refused however long ago that was.
    """
    (outcome,) = settle(tx, _known(tx, queue, group, token), [Mark(verdict)])
    ended = outcome.settled + outcome.noop
    for part in outcome.refused:
        if not ended or isinstance(part.error, LeaseExpired):
            raise part.error
    return ended


@verb("read-write", queue="queue", lease="token", wire=False)
def extend_lock(tx: Tx, queue: str, group: str, token: int | None, seconds: float | None) -> int:
    """Let a live lock end no earlier than `seconds` from now; returns its new end."""
    return extend(tx, _known(tx, queue, group, token), seconds)


@verb("read-only", queue="queue_name", read_only=True, wire=False)
def levels(tx: Tx, queue_name: str, name: str) -> Levels:
    """Count the messages of each priority that are left for a group, and return its live lock.

    A group that does not exist yet would read everything.
    """
    queue = find_queue(tx, queue_name)
    group = tx.group(queue.id, name)
    found = Levels(queue.name)
    for priority, counts in _counts(tx, queue, group).items():
        found.waiting += counts.waiting
        if counts.ready:
            found.ready[priority] = counts.ready
    if group is not None:
        found.lock = _live(tx, group)
        dead = {row[0]: row[1] for row in tx.all("dead_per_group", queue.id)}
        found.dead = dead.get(group.id, 0)
    return found


def _known(tx: Tx, queue_name: str, name: str, token: int | None) -> int:
    """Return the token if it is of a lock of this group, live or over; else raise what applies."""
    queue = tx.queue(queue_name)
    group = tx.group(queue.id, name) if queue else None
    if group is None:
        raise NoLock()
    refresh(tx, group)
    if token is not None and tx.group_of_lease(token) == group.id:
        return token
    if (tx.lock_end(group.id) or 0) > tx.now:
        raise WrongLock()
    raise LeaseExpired() if _ran_out(tx, group) else NoLock()


def _ran_out(tx: Tx, group: Group) -> bool:
    """Return whether a message was returned by an expired lease and waits to be popped again.

    A release subtracts its delivery and a nack adds a failure; only an expiry leaves a delivery
    without either.
    """
    return any(
        claim.returned and claim.deliveries > claim.failures
        for cursor in tx.cursors_of_group(group.id)
        if cursor.ready
        for claim in tx.due_claims(cursor.lane, group.id, 100)
    )


def _counts(tx: Tx, queue: Queue, group: Group | None) -> dict[int, Counts]:
    if group is None:
        return _counts_of_all(tx, queue)
    by_priority: dict[int, list[Cursor]] = {}
    for cursor in tx.cursors_of_group(group.id):
        by_priority.setdefault(cursor.priority, []).append(cursor)
    return {p: count(tx, group, cursors)[0] for p, cursors in sorted(by_priority.items())}


def _counts_of_all(tx: Tx, queue: Queue) -> dict[int, Counts]:
    found: dict[int, Counts] = {}
    for lane in sorted(tx.lanes(queue.id), key=lambda lane: lane.priority):
        there, delayed = visible_in(tx, GroupId(0), lane, lane.base, lane.head)
        counts = found.setdefault(lane.priority, Counts())
        counts.ready += (
            ranges.count(ranges.difference(there, tx.gone(lane, lane.base, lane.head))) - delayed
        )
        counts.waiting += delayed
    return found


def _live(tx: Tx, group: Group) -> Lock | None:
    """Return the live lock of a group; of several leases, the one that ends last."""
    ids = [row[0] for row in tx.all("live_leases", group.id, tx.now, 1_000)]
    leases = [lease for id in ids if (lease := tx.lease_by_id(id))]
    if not leases:
        return None
    lease = max(leases, key=lambda lease: lease.expires_at)
    held: dict[int, int] = {}
    for claim in tx.claims_of_lease(lease):
        lane = tx.lane(claim.lane)
        assert lane is not None
        held[lane.priority] = held.get(lane.priority, 0) + ranges.count(claim.ranges)
    return Lock(lease.token, lease.acquired_at, lease.expires_at, dict(sorted(held.items())))
