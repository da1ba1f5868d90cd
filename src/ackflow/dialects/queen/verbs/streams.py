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
from ....store.records import Lease
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

    `release` gives back what the lease then still holds there; otherwise it stays leased.
    """

    txid: str
    token: int
    verdict: Verdict
    release: bool = True


class Cycle(Struct):
    """State to put (None: to delete), messages to push and what to settle, in one transaction."""

    query: str
    partition: PartitionId
    state: list[tuple[str, bytes | None]]
    push: PushOperation | None = None
    ack: CycleAck | None = None


class Cycled(Struct):
    state: int
    pushed: Result | None = None
    dead: bool = False
    released: bool = False
    stale: bool = False


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


def get_state(
    tx: Tx, query: str, partition: PartitionId, wanted: Wanted
) -> list[tuple[str, bytes, int]]:
    """Return the state of a query in a partition as (key, JSON, time of the last change)."""
    name = _known(tx, query)
    home = _prefix(tx, query, partition)
    if wanted.ripe_at is not None and _at_work(tx, name, partition):
        return []  # the running cycle closes what is ripe
    if wanted.keys:
        keys = [key for key in dict.fromkeys(wanted.keys) if key.startswith(wanted.prefix)]
        found = [(key, tx.one("get_value", home + key)) for key in keys]
        rows = [(key, _open(home + key, row[0]), row[2]) for key, row in found if row is not None]
    else:
        first = home + wanted.prefix
        listed = tx.all("values_with", first, first + END, -1)
        rows = [(row[0][len(home) :], _open(row[0], row[1]), row[3]) for row in listed]
    if wanted.ripe_at is None:
        return rows
    return [row for row in rows if _window_end(row[1]) <= wanted.ripe_at]


def _at_work(tx: Tx, name: str, partition: PartitionId) -> bool:
    """Return whether the group of a query, as clients name it, holds messages of a partition."""
    home = tx.partition_by_id(partition)
    group = tx.group(home.queue, f"streams.{name}") if home else None
    return group is not None and tx.value("partition_leased", group.id, partition) is not None


def _window_end(value: bytes) -> float:
    """Return when the window of a value ends; infinity for a value without one."""
    found = msgspec.json.decode(value)
    end = found.get("windowEnd") if isinstance(found, dict) else None
    return end if isinstance(end, (int, float)) and not isinstance(end, bool) else math.inf


def cycle(tx: Tx, one: Cycle) -> Cycled:
    """Move a query on: all of it happens, or nothing.

    State to be deleted was read before. If it is gone, another cycle closed that window meanwhile,
    and this one is stale: it only gives its messages back, to be computed again.
    """
    _known(tx, one.query)
    prefix = _prefix(tx, one.query, one.partition)
    first = dict(reversed(one.state))  # what is done first to each key
    if any(value is None and _missing(tx, prefix + key) for key, value in first.items()):
        if one.ack is not None:
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
    for outcome in settle(tx, ack.token, _marks(tx, lease, partition, position, ack.verdict)):
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
    tx: Tx, lease: Lease, partition: PartitionId, position: Position, verdict: Verdict
) -> list[Mark]:
    """Return the verdict on a message and on all that was delivered before it in its partition."""
    last = tx.lane(position[0])
    assert last is not None
    marks = []
    for id, held in _held(tx, lease, partition):
        lane = tx.lane(id)
        assert lane is not None
        which = held if lane.priority < last.priority else []
        if id == last.id:
            which = ranges.clip(held, 0, position[1] + 1)
        if which:
            marks.append(Mark(verdict, id, which))
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


def _missing(tx: Tx, key: str) -> bool:
    return tx.one("get_value", key) is None


def _put(tx: Tx, key: str, value: bytes) -> None:
    row = tx.one("get_value", key)
    tx.run("put_value", key, value, (int(row[1]) if row else 0) + 1, tx.now)
