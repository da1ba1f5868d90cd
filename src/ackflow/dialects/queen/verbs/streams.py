"""Streams: queries with state by partition, changed by cycles that are all or nothing.

Everything is stored in the keyed values: a query under its name, its state under its id, the id of
the partition and a key of the query. State that is kept for an encrypted queue is sealed.
"""

import math
import uuid
from collections.abc import Callable

import msgspec
from msgspec import Struct

from .... import ids, ranges
from ....broker.core.cursors import count_unread
from ....broker.core.settle import settle
from ....broker.core.transactions import Result, transact
from ....broker.requests import (
    DeleteOperation,
    Mark,
    Operation,
    PushOperation,
    PutOperation,
    TransactionRequest,
    Verdict,
)
from ....errors import AckflowError, LeaseLost, NotFound
from ....ids import LaneId, PartitionId
from ....ranges import Ranges
from ....store.encryption import seal_bytes, unseal_bytes
from ....store.mapping import value_place
from ....store.records import Group, Lane, Lease
from ....store.tx import Tx
from .settle_by_name import LeaseNames, Position

QUERIES = "streams/queries/"
STATES = "streams/states/"
END = "\U0010ffff"


class QueryChanged(AckflowError):
    """The query was registered with another configuration; reset it, or take a new name."""

    code = "query_changed"
    status = 409


class StaleState(AckflowError):
    """Another cycle has changed the state meanwhile; read it again."""

    code = "stale_state"
    status = 409


class Query(Struct):
    """A registered query; `hash` identifies its configuration."""

    id: str
    hash: str
    source: str
    sink: str | None = None


class Registered(Struct):
    query: Query
    fresh: bool
    reset: bool


class CycleAck(Struct):
    """A verdict on a message of a lease and all before it in its partition.

    `count`: on how many messages; if the lease holds no more there, the verdict is on all of them,
    because clients sort by time and the message they name is not always the one delivered last.
    `release` gives back what the lease then still holds there; otherwise it stays leased.
    """

    txid: str
    token: int
    verdict: Verdict
    release: bool = True
    count: int | None = None


class Cycle(Struct):
    """State to put (None: to delete), messages to push and what to settle, in one transaction.

    `group`: the group that reads the partition, by default as clients name it after the query.
    `read_to`: the time of the last change to the state when it was last read, if that is known.
    """

    query: str
    partition: PartitionId
    state: list[tuple[str, bytes | None]]
    push: PushOperation | None = None
    ack: CycleAck | None = None
    group: str | None = None
    read_to: int | None = None


class Cycled(Struct):
    """What a cycle did: the number of changes of state, what it pushed, what became of its ack.

    `stale`: nothing was done, and the messages were given back. `skipped`: nothing was done.
    """

    state: int
    pushed: Result | None = None
    dead: bool = False
    released: bool = False
    stale: bool = False
    skipped: bool = False


def register(
    tx: Tx, name: str, query: Query, reset: bool, allow: Callable[[str], None] | None = None
) -> Registered:
    """Find a query by its name or create it; a reset deletes its state.

    A query belongs to its source and its sink. `allow` is called with those of a known query, and
    raises if the caller may not change it.
    """
    row = tx.one("get_value", QUERIES + name)
    known = msgspec.json.decode(row[0], type=Query) if row else None
    if known is not None and allow is not None:
        for queue in filter(None, (known.source, known.sink)):
            allow(queue)
    if known is not None and known.hash != query.hash and not reset:
        raise QueryChanged(
            f"config_hash mismatch: query {name!r} is registered with another configuration; "
            "reset it, or take a new name"
        )
    query.id = known.id if known else str(uuid.uuid4())
    if reset and known is not None:
        tx.run("drop_values", STATES + known.id + "/", STATES + known.id + "/" + END)
    _put(tx, QUERIES + name, msgspec.json.encode(query))
    _put(tx, STATES + query.id, msgspec.json.encode(name))
    return Registered(query, known is None, reset and known is not None)


class Wanted(Struct):
    """Which state of a query is wanted; conditions that are not given are ignored.

    `ripe_at`: only values whose number `windowEnd` is not above it.
    """

    keys: list[str] = []
    prefix: str = ""
    ripe_at: float | None = None


class State(Struct):
    """State of a query in a partition as (key, JSON, time of the last change).

    `read_to`: the time of the last change to any of it, ripe or not; None if not all was read.
    """

    rows: list[tuple[str, bytes, int]]
    read_to: int | None = None


def get_state(tx: Tx, query: str, partition: PartitionId, wanted: Wanted) -> State:
    group = _group(tx, query, partition)
    home = _prefix(tx, query, partition)
    if wanted.ripe_at is not None and group is not None and _busy(tx, group, partition):
        return State([])  # the running or the next cycle closes what is ripe
    if wanted.keys:
        keys = [key for key in dict.fromkeys(wanted.keys) if key.startswith(wanted.prefix)]
        found = [(key, tx.one("get_value", home + key)) for key in keys]
        rows = [(key, _open(home + key, row[0]), row[2]) for key, row in found if row is not None]
        state = State(rows)
    else:
        first = home + wanted.prefix
        listed = tx.all("values_with", first, first + END, -1)
        rows = [(row[0][len(home) :], _open(row[0], row[1]), row[3]) for row in listed]
        state = State(rows, max((row[2] for row in rows), default=0))
    if wanted.ripe_at is not None:
        state.rows = [row for row in state.rows if _window_end(row[1]) <= wanted.ripe_at]
    return state


def _busy(tx: Tx, group: Group, partition: PartitionId) -> bool:
    """Return whether a group holds messages of a partition, or a pop may give it some."""
    tx.flush()
    if tx.is_leased(group.id, partition):
        return True
    return any(_waiting(tx, lane, group) for lane in tx.lanes_in(partition))


def _waiting(tx: Tx, lane: Lane, group: Group) -> bool:
    cursor = tx.cursor(lane.id, group.id)
    if cursor is None or not cursor.ready:
        return False
    return bool(count_unread(tx, lane, cursor) or tx.due_claims(lane.id, group.id, 1))


def _group(tx: Tx, query: str, partition: PartitionId, name: str | None = None) -> Group | None:
    """Return the group of a query, if it reads the queue of a partition."""
    usual, home = f"streams.{_known(tx, query)}", tx.partition_by_id(partition)
    return tx.group(home.queue, name or usual) if home else None


def _window_end(value: bytes) -> float:
    """Return when the window of a value ends; infinity for a value without one."""
    found = msgspec.json.decode(value)
    end = found.get("windowEnd") if isinstance(found, dict) else None
    return end if isinstance(end, (int, float)) and not isinstance(end, bool) else math.inf


def cycle(tx: Tx, one: Cycle) -> Cycled:
    """Move a query on: all of it happens, or nothing.

    State to be deleted was read before. If it is gone, another cycle closed that window meanwhile,
    and this one is stale: it only gives its messages back, to be computed again. A cycle without
    messages closes windows of an idle partition; if it is not idle, the cycle is skipped.
    """
    group = _group(tx, one.query, one.partition, one.group)
    prefix = _prefix(tx, one.query, one.partition)
    first = dict(reversed(one.state))  # what is done first to each key
    closed = [tx.one("get_value", prefix + key) for key, value in first.items() if value is None]
    if closed and one.ack is None:
        busy = group is not None and _busy(tx, group, one.partition)
        if busy or any(row is None or _changed(one, row[2]) for row in closed):
            return Cycled(0, skipped=True)
    elif one.ack is not None and None in closed:
        _release(tx, one.ack.token, one.partition)
        return Cycled(0, stale=True)
    home = tx.partition_by_id(one.partition)
    queue = tx.queue_by_id(home.queue) if home else None
    sealed = queue is not None and queue.options.encrypted
    operations: list[Operation] = [
        DeleteOperation(prefix + key) if value is None else _put_state(prefix + key, value, sealed)
        for key, value in one.state
    ]
    if one.push is not None:
        operations.append(one.push)
    done = Cycled(len(one.state))
    with tx.savepoint():
        results = transact(tx, TransactionRequest(operations))
        done.pushed = results[-1] if one.push is not None else None
        if one.ack is not None:
            _settle(tx, one.partition, one.ack, done)
    return done


def _changed(one: Cycle, changed_at: int) -> bool:
    return one.read_to is not None and changed_at > one.read_to


def _put_state(key: str, value: bytes, sealed: bool) -> PutOperation:
    return PutOperation(key, seal_bytes(value, value_place(key)) if sealed else value)


def _open(key: str, stored: bytes) -> bytes:
    return unseal_bytes(stored, value_place(key))


def _settle(tx: Tx, partition: PartitionId, ack: CycleAck, done: Cycled) -> None:
    lease = tx.lease(ack.token)
    if lease is None:
        raise LeaseLost()
    position = LeaseNames(tx, lease.parts, many=False).position(partition, ack.txid)
    if position is None:
        raise NotFound("the message is not part of this lease")
    settled = 0
    for outcome in settle(tx, ack.token, _marks(tx, lease, partition, position, ack)):
        if outcome.refused:
            raise outcome.refused[0].error
        settled += outcome.settled
        done.dead = done.dead or bool(outcome.dead)
    if not settled:
        raise LeaseLost("the messages are no longer held under this lease")
    if ack.release:
        _release(tx, ack.token, partition)
    found = tx.lease(ack.token)
    done.released = found is None or found.ended_at is not None


def _marks(
    tx: Tx, lease: Lease, partition: PartitionId, position: Position, ack: CycleAck
) -> list[Mark]:
    """Return the verdict on a message and on all that was delivered before it in its partition."""
    everything = _held(tx, lease, partition)
    if ack.count == sum(ranges.count(held) for _, held in everything):
        return [Mark(ack.verdict, id, held) for id, held in everything]
    last = tx.lane(position[0])
    assert last is not None
    marks = []
    for id, held in everything:
        lane = tx.lane(id)
        assert lane is not None
        which = held if lane.priority < last.priority else []
        if id == last.id:
            which = ranges.clip(held, 0, position[1] + 1)
        if which:
            marks.append(Mark(ack.verdict, id, which))
    return marks


def _held(tx: Tx, lease: Lease, partition: PartitionId) -> list[tuple[LaneId, Ranges]]:
    """Return what a lease still holds of a partition, by lane."""
    found: dict[LaneId, Ranges] = {}
    for claim in tx.claims_of_lease(lease):
        lane = tx.lane(claim.lane)
        if lane is not None and lane.partition == partition:
            found[lane.id] = ranges.union(found.get(lane.id, []), claim.ranges)
    return list(found.items())


def _release(tx: Tx, token: int, partition: PartitionId) -> None:
    lease = tx.lease(token)
    if lease is None or lease.ended_at is not None:
        return
    held = _held(tx, lease, partition)
    settle(tx, token, [Mark(Verdict("release"), lane, which) for lane, which in held])


def _prefix(tx: Tx, query: str, partition: PartitionId) -> str:
    return f"{STATES}{query}/{ids.partition_uuid(tx.store, partition)}/"


def _known(tx: Tx, query: str) -> str:
    """Return the name of a registered query, or raise NotFound."""
    row = None if "/" in query else tx.one("get_value", STATES + query)
    if row is None:
        raise NotFound(f"query {query!r} not found; register it first")
    return msgspec.json.decode(row[0], type=str)


def queues_of_query(tx: Tx, query: str) -> list[str]:
    """Return the source and the sink of a registered query, or raise NotFound."""
    row = tx.one("get_value", QUERIES + _known(tx, query))
    known = msgspec.json.decode(row[0], type=Query) if row else None
    return [queue for queue in (known.source, known.sink) if queue] if known else []


def _put(tx: Tx, key: str, value: bytes) -> None:
    row = tx.one("get_value", key)
    tx.run("put_value", key, value, (int(row[1]) if row else 0) + 1, tx.now)
