"""The PushPop dialect: push, pop and acknowledge under one lock per queue.

Bodies are flat, and a body is JSON whatever its content type says. Items go through byte for byte.
What the calls bring and answer is in `pushpop_types`.
"""

from array import array
from collections.abc import Awaitable
from typing import Any

import msgspec

from ... import ids, validate
from ...broker.core.handout import Handout
from ...broker.core.pop import PopRequest
from ...broker.core.push import Chunk, PushRequest
from ...broker.core.settle import Verdict
from ...clock import SECOND
from ...errors import InvalidArgument, PayloadTooLarge
from ...options import DEFAULT_PARTITION, MAX_PAYLOAD, QUEUE_MODE
from ...server.http import Answer, Call, Handler, Route, json
from . import lock
from .actor import NEGATIVE, PUSHED, clamped, items
from .types import (
    OF_LOCKS,
    POP,
    REFUSALS,
    Acknowledge,
    Acknowledged,
    DeadLetter,
    DeadLettered,
    Extend,
    Extended,
    LiveLock,
    Locked,
    Popped,
    Push,
    Pushed,
    Refusal,
    Release,
    Released,
    State,
    refuse,
)

LOCKED = "Queue is locked pending acknowledgement"
_HUGE = 10**400  # a number is clamped however large it is

_FLAGS = {"": False, "true": True, "1": True, "false": False, "0": False}


async def push(call: Call) -> Answer:
    """Put an item at the end of its priority; it is on disk when this is answered."""
    brought = call.decoded(Push)
    if brought.priority < 0:
        raise InvalidArgument(NEGATIVE)
    queue, priority = _queue(call), validate.priority(_whole(brought.priority, "priority"))
    data = _item(brought.item)
    chunk = Chunk(queue, DEFAULT_PARTITION, priority, None, array("i", [len(data)]), data)
    await call.server.onloop.push(PushRequest([chunk]))
    return json(Pushed(True, PUSHED.format(queue=queue, priority=priority)))


async def pop(call: Call) -> Answer:
    """Pop the first items of the highest priority; with `require_ack` under a lock."""
    ack = _flag(call, "require_ack")
    ttl = call.whole("ttl_seconds", 0, -_HUGE, _HUGE) if call.query.get("ttl_seconds") else None
    handout: Handout = await call.server.pop(
        call,
        PopRequest(
            _queue(call), QUEUE_MODE, _consumer(call), call.whole("count", 1, 1, 100),
            None if ttl is None else clamped(ttl),
            auto_ack=not ack, dialect="pushpop",
        ),
        0,
    )  # fmt: skip
    if handout.why == "locked":
        return _locked(call, handout)
    items = _items(handout)
    answer = Popped(items, len(items))
    if ack:
        answer.locked = handout.token is not None
    if handout.token is not None and handout.expires_at is not None:
        answer.lock_id = ids.token_text(handout.token)
        answer.lock_expires_at = handout.expires_at / SECOND
    return json(answer)._replace(after=call.server.returning(handout))


async def acknowledge(call: Call) -> Answer:
    """The items of a lock are done."""
    n = await _settled(call, call.decoded(Acknowledge).lock_id, Verdict("ack"))
    return json(Acknowledged(True, "Items acknowledged successfully", n))


async def release(call: Call) -> Answer:
    """Give the items of a lock back at once, to their old places."""
    n = await _settled(call, call.decoded(Release).lock_id, Verdict("release"))
    return json(Released(True, "Items released successfully", n))


async def deadletter(call: Call) -> Answer:
    """Move the items of a lock to the dead letters of the queue."""
    brought = call.decoded(DeadLetter)
    verdict = Verdict("dead_letter", brought.reason).check()
    n = await _settled(call, brought.lock_id, verdict)
    return json(DeadLettered(True, "Items moved to the dead letters", n))


async def extend_lock(call: Call) -> Answer:
    """Keep a lock alive for `ttl_seconds` from now; it never becomes shorter."""
    brought = call.decoded(Extend)
    ttl = brought.ttl_seconds
    seconds = None if ttl is None else clamped(_whole(ttl, "ttl_seconds"))
    token = _token(brought.lock_id)
    ends = await call.server.do(lock.extend_lock, False, _queue(call), QUEUE_MODE, token, seconds)
    return json(Extended(True, "Lock extended successfully", brought.lock_id, ends / SECOND))


async def state(call: Call) -> Answer:
    """How many items of each priority can be popped, and the live lock."""
    broker, queue = call.server.broker, _queue(call)

    def look() -> lock.Levels:
        broker.catch_up()
        found: lock.Levels = broker.look(lock.levels, queue, QUEUE_MODE)
        return found

    found: lock.Levels = await call.server.thread(look)
    answer = State(
        found.queue,
        sum(found.ready.values()),
        {str(priority): n for priority, n in found.ready.items()},
        found.waiting,
        found.dead,
        found.lock is not None,
    )
    if (live := found.lock) is not None:
        held = {str(priority): n for priority, n in live.held.items()}
        answer.lock = LiveLock(
            ids.token_text(live.token), live.acquired_at / SECOND, live.expires_at / SECOND,
            sum(held.values()), held,
        )  # fmt: skip
    return json(answer)


def _queue(call: Call) -> str:
    return validate.name(call.params["queue"], "queue")


def _consumer(call: Call) -> str:
    """PushPop names no consumers; the address tells an operator who holds a lock."""
    host, port = call.scope.get("client") or ("unknown", 0)
    return f"{host}:{port}"


def _flag(call: Call, name: str) -> bool:
    given = call.query.get(name, "").lower()
    if given not in _FLAGS:
        raise InvalidArgument(f"{name} is true or false, not {given!r}")
    return _FLAGS[given]


def _whole(number: float, what: str) -> int:
    if int(number) != number:
        raise InvalidArgument(f"{what} is a whole number, not {number!r}")
    return int(number)


def _item(raw: msgspec.Raw) -> bytes:
    """The bytes of an item. They were found to be JSON in form; that they are text is seen here."""
    data = bytes(raw)
    if data == b"null":
        raise InvalidArgument("item is required, and not null")
    if len(data) > MAX_PAYLOAD:
        raise PayloadTooLarge(f"an item has at most {MAX_PAYLOAD:,} bytes, not {len(data):,}")
    try:
        data.decode()
    except UnicodeDecodeError:
        raise InvalidArgument("the item is not UTF-8") from None
    return data


def _items(handout: Handout) -> list[msgspec.Raw]:
    return [msgspec.Raw(item) for item in items(handout)]


def _locked(call: Call, handout: Handout) -> Answer:
    ends = handout.retry_at or 0
    left = max(1, -(-(ends - call.server.broker.clock.now()) // SECOND))
    return json(Locked(LOCKED, ends / SECOND), 423, (b"retry-after", str(left).encode()))


def _token(lock_id: str) -> int | None:
    """The token an id stands for; None when it cannot be one."""
    try:
        return ids.parse_token(lock_id)
    except InvalidArgument:
        return None


def _settled(call: Call, lock_id: str, verdict: Verdict) -> Awaitable[int]:
    return call.server.do(  # type: ignore[no-any-return]
        lock.settle_lock, verdict.synced, _queue(call), QUEUE_MODE, _token(lock_id), verdict
    )


def _post(path: str, handler: Handler, **says: Any) -> Route:
    return Route(
        "POST", "/queue/{queue}/" + path, handler, refuse=refuse, tag="pushpop", error=Refusal,
        **says,
    )  # fmt: skip


ROUTES = (
    _post("push", push, summary="Push an item", body=Push, answers={200: Pushed, **REFUSALS}),
    _post(
        "pop",
        pop,
        summary="Pop items, under a lock if asked for",
        query=POP,
        answers={200: Popped, 423: Locked, **REFUSALS},
    ),
    _post(
        "acknowledge",
        acknowledge,
        summary="The items of a lock are done",
        body=Acknowledge,
        answers={200: Acknowledged, **OF_LOCKS},
    ),
    _post(
        "extend-lock",
        extend_lock,
        summary="Keep a lock alive",
        body=Extend,
        answers={200: Extended, **OF_LOCKS},
    ),
    _post(
        "release",
        release,
        summary="Give the items of a lock back",
        body=Release,
        answers={200: Released, **OF_LOCKS},
    ),
    _post(
        "deadletter",
        deadletter,
        summary="Move the items of a lock to the dead letters",
        body=DeadLetter,
        answers={200: DeadLettered, **OF_LOCKS},
    ),
    Route(
        "GET",
        "/queue/{queue}",
        state,
        "read-only",
        refuse,
        "pushpop",
        "What can be popped, by priority, and the live lock",
        answers={200: State, **REFUSALS, 404: Refusal},
        error=Refusal,
    ),
)
