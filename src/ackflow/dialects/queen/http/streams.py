"""Streams in the Queen dialect: clients compute, the server keeps their state and moves them on."""

from typing import Any

from msgspec import Raw, Struct, field

from .... import ids, validate
from ....broker.requests import PushOperation, Verdict
from ....errors import AckflowError, InvalidArgument, NotFound
from ....server.http import Answer, Call, json
from ..verbs import streams
from ..verbs.single_message import queue_of
from ..verbs.streams import Cycle, CycleAck, Query, QueryChanged, StaleState, Wanted
from .common import body_of, iso, partition_of
from .paging import looked, no_value, route
from .push import Pushed, PushItem, pushed, requested

VERDICTS: dict[str, Any] = {
    "completed": "ack", "success": "ack", "failed": "nack", "retry": "release", "dlq": "dead_letter"
}  # fmt: skip


class Register(Struct):
    name: str
    source_queue: str
    config_hash: str
    sink_queue: str | None = None
    reset: bool = False


class Registered(Struct):
    success: bool
    query_id: str
    name: str
    config_hash: str
    fresh: bool
    reset: bool


class Refused(Struct):
    """A cycle or a registration that was refused; nothing of it has happened."""

    success: bool
    error: str
    code: str


class GetState(Struct):
    """All state, or what has one of these keys, a key that begins so, and a `windowEnd` that is not
    above `ripe_at_or_before` (milliseconds): every condition that is given must hold."""

    query_id: str
    partition_id: str
    keys: list[str] | None = None
    key_prefix: str | None = None
    ripe_at_or_before: float | None = None


class StateRow(Struct):
    key: str
    value: Raw
    updated_at: str


class State(Struct):
    success: bool
    rows: list[StateRow]


class StateOp(Struct):
    type: str
    key: str
    value: Raw = field(default_factory=no_value)


class Ack(Struct, rename="camel"):
    """The last message that is done; with it, all before it in the partition."""

    transaction_id: str
    lease_id: str
    status: str = "completed"
    count: int | None = None
    error: str | None = None


class Commit(Struct):
    query_id: str
    partition_id: str
    consumer_group: str | None = None
    release_lease: bool = True
    state_ops: list[StateOp] | None = None
    push_items: list[PushItem] | None = None
    ack: Ack | None = None


class AckResult(Struct):
    success: bool
    lease_released: bool
    dlq: bool


class Committed(Struct):
    success: bool
    query_id: str
    partition_id: str
    state_ops_applied: int
    push_results: list[Pushed]
    ack_result: AckResult | None


async def register(call: Call) -> Answer:
    """Find a query by its name, or make it; with `reset` its state is forgotten."""
    given = body_of(call, Register)
    name = validate.name(given.name, "name")
    call.server.allow(call, validate.name(given.source_queue, "source_queue"))
    if given.sink_queue:
        call.server.allow(call, validate.name(given.sink_queue, "sink_queue"))
    query = Query("", given.config_hash, given.source_queue, given.sink_queue or None)
    try:
        found = await call.server.do(streams.register, True, name, query, given.reset)
    except QueryChanged as refusal:
        return _refused(refusal)
    return json(Registered(True, found.query.id, name, found.query.hash, found.fresh, found.reset))


def _refused(error: AckflowError) -> Answer:
    return json(Refused(False, error.message, error.code), 409)


async def get_state(call: Call) -> Answer:
    """The state of a query in a partition: all of it, or what is asked for."""
    given = body_of(call, GetState)
    partition = await _partition(call, given.partition_id)
    wanted = Wanted(given.keys or [], given.key_prefix or "", given.ripe_at_or_before)
    found = await looked(call, streams.get_state, given.query_id, partition, wanted)
    return json(State(True, [StateRow(key, Raw(value), iso(at)) for key, value, at in found]))


async def _partition(call: Call, text: str) -> int:
    partition = partition_of(call, text)
    queue = None if partition is None else await looked(call, queue_of, partition)
    if partition is None or queue is None:
        raise NotFound(f"there is no partition {text!r}")
    call.server.allow(call, queue)
    return partition


async def cycle(call: Call) -> Answer:
    """Change state, push and ack, all or nothing."""
    given = body_of(call, Commit)
    partition = await _partition(call, given.partition_id)
    items = given.push_items or []
    call.server.check_batch(len(items))
    push, places = None, None
    if items:
        request, places = requested(call, items)
        push = PushOperation(request)
    one = Cycle(given.query_id, partition, _ops(given.state_ops or []), push, _ack(given))
    try:
        done = await call.server.do(streams.cycle, True, one)
    except (InvalidArgument, NotFound):
        raise
    except AckflowError as refusal:
        if refusal.status >= 500:
            raise
        return _refused(refusal)
    if done.stale:
        return _refused(StaleState())
    results: list[Pushed] = []
    if done.pushed is not None and places is not None:
        results = await pushed(call, items, done.pushed.places, places)
    told = AckResult(True, done.released, done.dead) if given.ack else None
    return json(Committed(True, given.query_id, given.partition_id, done.state, results, told))


def _ops(given: list[StateOp]) -> list[tuple[str, bytes | None]]:
    ops: list[tuple[str, bytes | None]] = []
    for op in given:
        if op.type not in ("upsert", "delete"):
            raise InvalidArgument(f"a state operation is upsert or delete, not {op.type!r}")
        ops.append((op.key, bytes(op.value) if op.type == "upsert" else None))
    return ops


def _ack(given: Commit) -> CycleAck | None:
    ack = given.ack
    if ack is None:
        return None
    if ack.status not in VERDICTS:
        raise InvalidArgument(f"status is one of {', '.join(VERDICTS)}, not {ack.status!r}")
    token = ids.parse_token(ack.lease_id)
    verdict = Verdict(VERDICTS[ack.status], ack.error)
    return CycleAck(ack.transaction_id, token, verdict, given.release_lease)


ROUTES = (
    route("POST", "/streams/v1/queries", register, "read-write", body=Register, checks=True,
          answers={200: Registered, 409: Refused}, summary="Register a query by its name"),
    route("POST", "/streams/v1/state/get", get_state, "read-only", body=GetState, checks=True,
          answers={200: State}, summary="The state of a query in a partition"),
    route("POST", "/streams/v1/cycle", cycle, "read-write", body=Commit, checks=True,
          answers={200: Committed, 409: Refused}, summary="Change state, push and ack at once"),
)  # fmt: skip
