"""Streams in the Queen dialect: clients compute; the server keeps state and commits each cycle."""

from collections.abc import Sized
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from msgspec import Raw, Struct, field

from .... import ids, validate
from ....broker.requests import PushOperation, Verdict
from ....errors import AckflowError, InvalidArgument, NotFound
from ....ids import PartitionId
from ....options import MAX_OPERATIONS
from ....server.http import Call, Response, json
from ..verbs import streams
from ..verbs.streams import Cycle, CycleAck, Query, QueryChanged, StaleState, Wanted
from .common import body_of, iso, large_body_of
from .paging import no_value, partition_for, read_current, route
from .push import PushItem, PushResult, push_request, push_results

VERDICTS: dict[str, Any] = {
    "completed": "ack", "success": "ack", "failed": "nack", "retry": "release", "dlq": "dead_letter"
}  # fmt: skip
READS = 10_000

# By server, the time of the last change that each reader of (query, partition) has seen. Clients do
# not send it with their cycles.
_read_to: WeakKeyDictionary[Any, dict[tuple[str, PartitionId], int]] = WeakKeyDictionary()


class RegisterBody(Struct):
    name: str
    source_queue: str
    config_hash: str
    sink_queue: str | None = None
    reset: bool = False


class RegisterResult(Struct):
    success: bool
    query_id: str
    name: str
    config_hash: str
    fresh: bool
    reset: bool


class StreamError(Struct):
    """A rejected cycle or registration; nothing was changed."""

    success: bool
    error: str
    code: str


class StateBody(Struct):
    """Which state to read: entries that match all given conditions.

    `keys` and `key_prefix` match the key; `ripe_at_or_before`, in milliseconds, is an upper bound
    for the `windowEnd` of the value.
    """

    query_id: str
    partition_id: str
    keys: list[str] | None = None
    key_prefix: str | None = None
    ripe_at_or_before: float | None = None


class StateRow(Struct):
    key: str
    value: Raw
    updated_at: str


class StateResult(Struct):
    success: bool
    rows: list[StateRow]


class StateOp(Struct):
    type: str
    key: str
    value: Raw = field(default_factory=no_value)


class CycleAckBody(Struct, rename="camel"):
    """The last message to settle; it also settles all messages before it in the partition."""

    transaction_id: str
    lease_id: str
    status: str = "completed"
    count: int | None = None
    error: str | None = None


class CycleBody(Struct):
    query_id: str
    partition_id: str
    consumer_group: str | None = None
    release_lease: bool = True
    state_ops: list[StateOp] | None = None
    push_items: list[PushItem] | None = None
    ack: CycleAckBody | None = None


class CycleAckResult(Struct):
    success: bool
    lease_released: bool
    dlq: bool


class CycleResult(Struct):
    """A committed cycle, or one that was `skipped`: its windows are not idle, nothing was changed."""

    success: bool
    query_id: str
    partition_id: str
    state_ops_applied: int
    push_results: list[PushResult]
    ack_result: CycleAckResult | None
    skipped: bool


async def register(call: Call) -> Response:
    """Find or create a query by name; `reset` deletes its state."""
    given = body_of(call, RegisterBody)
    name = validate.name(given.name, "name")
    call.server.allow(call, validate.name(given.source_queue, "source_queue"))
    if given.sink_queue:
        call.server.allow(call, validate.name(given.sink_queue, "sink_queue"))
    query = Query("", given.config_hash, given.source_queue, given.sink_queue or None)
    try:
        allow = partial(call.server.allow, call)
        found = await call.server.do(streams.register, True, name, query, given.reset, allow)
    except QueryChanged as refusal:
        return _conflict(refusal)
    return json(
        RegisterResult(True, found.query.id, name, found.query.hash, found.fresh, found.reset)
    )


def _conflict(error: AckflowError) -> Response:
    return json(StreamError(False, error.message, error.code), 409)


async def get_state(call: Call) -> Response:
    """Return the state of a query in a partition, filtered."""
    given = await large_body_of(call, StateBody)
    _check_count(given.keys, "keys")
    partition = await _partition(call, given)
    wanted = Wanted(given.keys or [], given.key_prefix or "", given.ripe_at_or_before)
    found = await read_current(call, streams.get_state, given.query_id, partition, wanted)
    if found.rows:
        _note_read(call, (given.query_id, partition), found.read_to)
    rows = [StateRow(key, Raw(value), iso(at)) for key, value, at in found.rows]
    return json(StateResult(True, rows))


def _note_read(call: Call, what: tuple[str, PartitionId], read_to: int | None) -> None:
    reads = _read_to.setdefault(call.server, {})
    reads.pop(what, None)
    if read_to is not None:
        reads[what] = read_to
        if len(reads) > READS:
            del reads[next(iter(reads))]


async def _partition(call: Call, given: StateBody | CycleBody) -> PartitionId:
    """The partition of a call; checks the token against its queue and those of the query."""
    text = given.partition_id
    partition = await partition_for(call, text, f"partition {text!r} not found")
    if call.who is not None and not call.who.may_everywhere(call.role):
        for queue in await read_current(call, streams.queues_of_query, given.query_id):
            call.server.allow(call, queue)
    return partition


async def cycle(call: Call) -> Response:
    """Change state, push and ack atomically."""
    given = await large_body_of(call, CycleBody)
    _check_count(given.state_ops, "state_ops")
    partition = await _partition(call, given)
    items = given.push_items or []
    call.server.check_batch(len(items))
    push, places = None, None
    if items:
        request, places = push_request(call, items)
        push = PushOperation(request)
    ops, group = _ops(given.state_ops or []), given.consumer_group
    read_to = _read_to.get(call.server, {}).get((given.query_id, partition))
    one = Cycle(given.query_id, partition, ops, push, _ack(given), group, read_to)
    try:
        done = await call.server.do(streams.cycle, True, one)
    except (InvalidArgument, NotFound):
        raise
    except AckflowError as refusal:
        if refusal.status >= 500:
            raise
        return _conflict(refusal)
    if done.stale:
        return _conflict(StaleState())
    results: list[PushResult] = []
    if done.pushed is not None and places is not None:
        results = await push_results(call, items, done.pushed.places, places)
    ack_result = CycleAckResult(True, done.released, done.dead) if given.ack else None
    return json(
        CycleResult(
            True, given.query_id, given.partition_id, done.state, results, ack_result, done.skipped
        )
    )


def _check_count(given: Sized | None, what: str) -> None:
    if given is not None and len(given) > MAX_OPERATIONS:
        raise InvalidArgument(
            f"{what} must have at most {MAX_OPERATIONS:,} items, got {len(given):,}"
        )


def _ops(given: list[StateOp]) -> list[tuple[str, bytes | None]]:
    ops: list[tuple[str, bytes | None]] = []
    for op in given:
        if op.type not in ("upsert", "delete"):
            raise InvalidArgument(
                f"the type of a state operation must be upsert or delete, got {op.type!r}"
            )
        ops.append((op.key, bytes(op.value) if op.type == "upsert" else None))
    return ops


def _ack(given: CycleBody) -> CycleAck | None:
    ack = given.ack
    if ack is None:
        return None
    if ack.status not in VERDICTS:
        raise InvalidArgument(f"status must be one of {', '.join(VERDICTS)}, got {ack.status!r}")
    token = ids.parse_token(ack.lease_id)
    verdict = Verdict(VERDICTS[ack.status], ack.error)
    return CycleAck(ack.transaction_id, token, verdict, given.release_lease, ack.count)


ROUTES = (
    route("POST", "/streams/v1/queries", register, "read-write", body=RegisterBody, checks_queues=True,
          responses={200: RegisterResult, 409: StreamError}, summary="Register a query by name"),
    route("POST", "/streams/v1/state/get", get_state, "read-only", body=StateBody, checks_queues=True,
          responses={200: StateResult}, summary="Read the state of a query in a partition"),
    route("POST", "/streams/v1/cycle", cycle, "read-write", body=CycleBody, checks_queues=True,
          responses={200: CycleResult, 409: StreamError}, summary="Change state, push and ack atomically"),
)  # fmt: skip
