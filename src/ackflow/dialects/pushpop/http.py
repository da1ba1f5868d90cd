"""PushPop's HTTP interface: push, pop and acknowledge under one lock per queue.

A body is read as JSON whatever its content type; items pass through byte for byte.
"""

from array import array
from copy import copy
from functools import partial
from typing import Any

import msgspec

from ... import ids, validate
from ...broker.core.handout import Handout
from ...broker.requests import Chunk, PopRequest, PushRequest, Verdict
from ...clock import SECOND
from ...errors import InvalidArgument, PayloadTooLarge
from ...options import DEFAULT_PARTITION, MAX_PAYLOAD, QUEUE_MODE
from ...server.http import LARGE_BODY, Call, Handler, Response, Route, json
from . import lock
from .common import (
    ITEM_REQUIRED,
    MAX_COUNT,
    NEGATIVE_PRIORITY,
    PUSHED,
    clamp_lock_seconds,
    items_of,
    parse_lock_id,
)
from .types import (
    ERRORS,
    LOCK_ERRORS,
    POP_QUERY,
    AcknowledgeBody,
    AcknowledgeResult,
    DeadLetterBody,
    DeadLetterResult,
    ErrorResult,
    ExtendBody,
    ExtendResult,
    LiveLock,
    LockedResult,
    PopResult,
    PushBody,
    PushResult,
    QueueState,
    ReleaseBody,
    ReleaseResult,
    error_response,
)

LOCKED = "Queue is locked pending acknowledgement"
_HUGE = 10**400  # a lock time is clamped however large it is

_FLAGS = {"": False, "true": True, "1": True, "false": False, "0": False}


async def push(call: Call) -> Response:
    """Append an item to its priority; it is on disk when the response is sent."""
    if len(call.body) <= LARGE_BODY:
        body = call.json_body(PushBody)
    else:
        body = await call.server.thread(partial(call.json_body, PushBody, large=True))
    if body.priority < 0:
        raise InvalidArgument(NEGATIVE_PRIORITY)
    queue, priority = _queue(call), validate.priority(_integer(body.priority, "priority"))
    data = _item(body.item)
    chunk = Chunk(queue, DEFAULT_PARTITION, priority, None, array("i", [len(data)]), data)
    await call.server.loop_broker.push(PushRequest([chunk]))
    return json(PushResult(True, PUSHED.format(queue=queue, priority=priority)))


async def pop(call: Call) -> Response:
    """Pop the first items of the highest priority; with `require_ack`, under a lock."""
    known: PopRequest | None = call.from_head.get("pop")
    if known is None:
        known = call.from_head["pop"] = _pop_request(call)
    request = copy(known)
    request.consumer, ack = _consumer(call), not request.auto_ack
    handout = await call.server.pop(call, request, 0)
    if handout.why == "locked":
        return _locked(call, handout)
    items = [msgspec.Raw(item) for item in items_of(handout)]
    result = PopResult(items, len(items))
    if ack:
        result.locked = handout.token is not None
    if handout.token is not None and handout.expires_at is not None:
        result.lock_id = ids.token_text(handout.token)
        result.lock_expires_at = handout.expires_at / SECOND
    return json(result)._replace(undelivered=call.server.release_if_undelivered(handout))


def _pop_request(call: Call) -> PopRequest:
    """The request of a pop but for its consumer."""
    ack = _flag(call, "require_ack")
    ttl = call.integer("ttl_seconds", 0, -_HUGE, _HUGE) if call.query.get("ttl_seconds") else None
    return PopRequest(
        _queue(call), QUEUE_MODE, "", call.integer("count", 1, 1, MAX_COUNT),
        None if ttl is None else clamp_lock_seconds(ttl),
        auto_ack=not ack, dialect="pushpop",
    )  # fmt: skip


def _locked(call: Call, handout: Handout) -> Response:
    ends = handout.retry_at or 0
    left = max(1, -(-(ends - call.server.broker.clock.now()) // SECOND))
    return json(LockedResult(LOCKED, ends / SECOND), 423, (b"retry-after", str(left).encode()))


async def acknowledge(call: Call) -> Response:
    """Acknowledge the items of a lock."""
    n = await _settle(call, call.json_body(AcknowledgeBody).lock_id, Verdict("ack"))
    return json(AcknowledgeResult(True, "Items acknowledged successfully", n))


async def release(call: Call) -> Response:
    """Return the items of a lock to their places at once."""
    n = await _settle(call, call.json_body(ReleaseBody).lock_id, Verdict("release"))
    return json(ReleaseResult(True, "Items released successfully", n))


async def deadletter(call: Call) -> Response:
    """Move the items of a lock to the dead letters of the queue."""
    body = call.json_body(DeadLetterBody)
    n = await _settle(call, body.lock_id, Verdict("dead_letter", body.reason).check())
    return json(DeadLetterResult(True, "Items moved to the dead letters", n))


async def _settle(call: Call, lock_id: str, verdict: Verdict) -> int:
    return await call.server.do(
        lock.settle_lock, verdict.synced, _queue(call), QUEUE_MODE, parse_lock_id(lock_id), verdict
    )


async def extend_lock(call: Call) -> Response:
    """Extend a lock to `ttl_seconds` from now; it is never shortened."""
    body = call.json_body(ExtendBody)
    ttl = body.ttl_seconds
    seconds = None if ttl is None else clamp_lock_seconds(_integer(ttl, "ttl_seconds"))
    token = parse_lock_id(body.lock_id)
    ends = await call.server.do(lock.extend_lock, False, _queue(call), QUEUE_MODE, token, seconds)
    return json(ExtendResult(True, "Lock extended successfully", body.lock_id, ends / SECOND))


async def state(call: Call) -> Response:
    """Return the number of items ready to pop, by priority, and the live lock."""
    found = await call.server.read(lock.levels, _queue(call), QUEUE_MODE)
    result = QueueState(
        found.queue,
        sum(found.ready.values()),
        {str(priority): n for priority, n in found.ready.items()},
        found.waiting,
        found.dead,
        found.lock is not None,
    )
    if (live := found.lock) is not None:
        held = {str(priority): n for priority, n in live.held.items()}
        result.lock = LiveLock(
            ids.token_text(live.token), live.acquired_at / SECOND, live.expires_at / SECOND,
            sum(held.values()), held,
        )  # fmt: skip
    return json(result)


def _queue(call: Call) -> str:
    return validate.name(call.params["queue"], "queue")


def _consumer(call: Call) -> str:
    """The client's address: PushPop has no consumer names, and operators see who holds a lock."""
    host, port = call.client
    return f"{host}:{port}"


def _flag(call: Call, name: str) -> bool:
    given = call.query.get(name, "").lower()
    if given not in _FLAGS:
        raise InvalidArgument(f"{name} must be true or false, got {given!r}")
    return _FLAGS[given]


def _integer(number: float, what: str) -> int:
    if int(number) != number:
        raise InvalidArgument(f"{what} must be an integer, got {number!r}")
    return int(number)


def _item(raw: msgspec.Raw) -> bytes:
    """The bytes of an item; the decoder checked its JSON syntax, this checks its encoding."""
    data = bytes(raw)
    if data == b"null":
        raise InvalidArgument(ITEM_REQUIRED)
    if len(data) > MAX_PAYLOAD:
        raise PayloadTooLarge(f"an item must have at most {MAX_PAYLOAD:,} bytes, got {len(data):,}")
    try:
        data.decode()
    except UnicodeDecodeError:
        raise InvalidArgument("the item is not valid UTF-8") from None
    return data


def _route(method: str, path: str, handler: Handler, **more: Any) -> Route:
    return Route(
        method, f"/queue/{{queue}}{path}", handler, encode_error=error_response, error=ErrorResult,
        tag="pushpop", **more,
    )  # fmt: skip


ROUTES = (
    _route("POST", "/push", push, summary="Push an item", body=PushBody,
           responses={200: PushResult, **ERRORS}),
    _route("POST", "/pop", pop, summary="Pop items, optionally under a lock", query=POP_QUERY,
           responses={200: PopResult, 423: LockedResult, **ERRORS}),
    _route("POST", "/acknowledge", acknowledge, summary="Acknowledge the items of a lock",
           body=AcknowledgeBody, responses={200: AcknowledgeResult, **LOCK_ERRORS}),
    _route("POST", "/extend-lock", extend_lock, summary="Extend a lock", body=ExtendBody,
           responses={200: ExtendResult, **LOCK_ERRORS}),
    _route("POST", "/release", release, summary="Return the items of a lock to the queue",
           body=ReleaseBody, responses={200: ReleaseResult, **LOCK_ERRORS}),
    _route("POST", "/deadletter", deadletter, summary="Move the items of a lock to the dead letters",
           body=DeadLetterBody, responses={200: DeadLetterResult, **LOCK_ERRORS}),
    _route("GET", "", state, role="read-only", summary="Ready items by priority, and the live lock",
           responses={200: QueueState, **ERRORS, 404: ErrorResult}),
)  # fmt: skip
