"""PushPopActor: PushPop's Python style, with push, pop and acknowledge under one lock per queue.

The methods accept a dictionary or a request object. They answer a dictionary with a dictionary,
and a request object, or no argument, with a response object.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from ... import aio, ids, validate
from ...broker.core.handout import Handout
from ...broker.requests import PopRequest, Verdict
from ...clock import SECOND
from ...errors import InvalidArgument, LeaseLost, SessionClosed
from ...options import QUEUE_MODE
from ...session.session import Session
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
from .errors import spelling

T = TypeVar("T")
LOCKED = "Queue is locked by another operation"
LOCK_ID_REQUIRED = "lock_id is required"


class PushRequest(Struct):
    """`ItemJson` is the item as JSON text. Priority 0 is served first."""

    ItemJson: str
    Priority: int = 0


class PushResponse(Struct):
    Success: bool
    Message: str


class PopWithAckRequest(Struct):
    """`TtlSeconds` is clamped to 1 to 300; None means the lease time of the group."""

    TtlSeconds: int | None = None
    Count: int = 1


class PopResponse(Struct):
    """`Locked` is true while another consumer holds the lock, until `LockExpiresAt`."""

    ItemsJson: list[str]
    Count: int
    Locked: bool = False
    LockExpiresAt: float | None = None
    Message: str | None = None


class PopWithAckResponse(Struct):
    """With a `LockId` the caller holds the lock; `Locked` without one: another consumer does."""

    ItemsJson: list[str]
    Count: int
    Locked: bool
    LockId: str | None = None
    LockExpiresAt: float | None = None
    Message: str | None = None


class AcknowledgeRequest(Struct):
    LockId: str


class AcknowledgeResponse(Struct):
    Success: bool
    Message: str
    ItemsAcknowledged: int | None = None
    ErrorCode: str | None = None


class PushPopActor:
    """One queue. A blocking `session` is called from a worker thread."""

    def __init__(self, session: Session | aio.Session, queue_id: str) -> None:
        self._session = session
        self._plain = session._plain if isinstance(session, aio.Session) else session
        self.queue_id = validate.name(queue_id, "queue")

    async def Push(self, data: PushRequest | Mapping[str, Any]) -> Any:
        """Append an item to its priority; it is on disk when this returns."""
        try:
            answer = await self._push(*_item(data))
        except InvalidArgument as error:
            answer = PushResponse(False, error.message)
        return answer if isinstance(data, PushRequest) else _as_dict(answer)

    async def _push(self, item: Any, priority: Any) -> PushResponse:
        # In a list, because an item that is itself a list is still one item.
        await self._run(partial(self._plain.push, self.queue_id, [item], priority=priority))
        return PushResponse(True, PUSHED.format(queue=self.queue_id, priority=priority))

    async def Pop(self) -> PopResponse:
        """Remove and return the first item of the highest priority."""
        handout = await self._pop(None, 1, auto_ack=True)
        items = _items(handout)
        answer = PopResponse(items, len(items))
        if handout.why == "locked":
            answer.Locked, answer.Message = True, LOCKED
            answer.LockExpiresAt = _seconds(handout.retry_at)
        return answer

    async def PopWithAck(self, data: PopWithAckRequest | Mapping[str, Any] | None = None) -> Any:
        """Pop under a lock; the items are delivered again if it expires unacknowledged."""
        if isinstance(data, PopWithAckRequest):
            handout = await self._pop(_ttl(data.TtlSeconds), data.Count)
        else:
            given = data or {}
            handout = await self._pop(_ttl(given.get("ttl_seconds")), given.get("count", 1))
        items = _items(handout)
        answer = PopWithAckResponse(items, len(items), handout.token is not None)
        if handout.why == "locked":
            answer.Locked, answer.Message = True, LOCKED
            answer.LockExpiresAt = _seconds(handout.retry_at)
        elif handout.token is not None:
            answer.LockId = ids.token_text(handout.token)
            answer.LockExpiresAt = _seconds(handout.expires_at)
        return _as_dict(answer) if isinstance(data, Mapping) else answer

    async def Acknowledge(self, data: AcknowledgeRequest | Mapping[str, Any]) -> Any:
        """Acknowledge the items of a lock."""
        given = data.LockId if isinstance(data, AcknowledgeRequest) else data.get("lock_id")
        if not isinstance(given, str) or not given:
            answer = AcknowledgeResponse(False, LOCK_ID_REQUIRED, ErrorCode=InvalidArgument.code)
        else:
            answer = await self._acknowledge(given)
        return answer if isinstance(data, AcknowledgeRequest) else _as_dict(answer)

    async def _acknowledge(self, lock_id: str) -> AcknowledgeResponse:
        token = parse_lock_id(lock_id)

        def settle() -> int:
            broker, ack = self._plain.broker, Verdict("ack")
            return broker.do(lock.settle_lock, False, self.queue_id, QUEUE_MODE, token, ack)

        try:
            n = await self._run(settle)
        except LeaseLost as error:
            code, message = spelling(error)
            return AcknowledgeResponse(False, message, ErrorCode=code)
        return AcknowledgeResponse(True, f"Successfully acknowledged {n} item(s)", n)

    async def _pop(self, ttl: float | None, count: int, auto_ack: bool = False) -> Handout:
        """Pop under a lock of `ttl` seconds (None: the group's lease time), or auto-acknowledged."""
        request = PopRequest(
            self.queue_id, QUEUE_MODE, self._plain.consumer,
            validate.integer(count, "count", 1, MAX_COUNT),
            ttl, auto_ack=auto_ack, dialect="pushpop",
        )  # fmt: skip
        if isinstance(self._session, aio.Session):
            return await self._run(partial(self._plain.broker.pop, request))
        popping = asyncio.ensure_future(asyncio.to_thread(self._plain.broker.pop, request))
        try:
            return await asyncio.shield(popping)
        except asyncio.CancelledError:
            popping.add_done_callback(self._release)  # the thread cannot be cancelled
            raise

    def _release(self, popping: "asyncio.Future[Handout]") -> None:
        if not popping.cancelled() and popping.exception() is None:
            token = popping.result().token
            if token is not None:
                threading.Thread(target=self._give_back, args=(token,)).start()

    def _give_back(self, token: int) -> None:
        with contextlib.suppress(SessionClosed, LeaseLost):
            self._plain.release_all(token)

    async def _run(self, call: Callable[[], T]) -> T:
        if isinstance(self._session, aio.Session):
            return await self._session._run(call)
        return await asyncio.to_thread(call)


def _item(data: PushRequest | Mapping[str, Any]) -> tuple[Any, Any]:
    """Item and priority of a push request."""
    if isinstance(data, PushRequest):
        item, priority = _json(data.ItemJson), data.Priority
    else:
        item, priority = data.get("item"), data.get("priority", 0)
    if isinstance(priority, int) and priority < 0:
        raise InvalidArgument(NEGATIVE_PRIORITY)
    if item is None:
        raise InvalidArgument(ITEM_REQUIRED)
    return item, priority


def _json(text: object) -> msgspec.Raw | None:
    """JSON text unchanged; None for null. The push itself checks that it is JSON."""
    try:
        raw = text.encode() if isinstance(text, str) else b""
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"the item is not UTF-8: {error.reason}") from None
    return msgspec.Raw(raw) if raw.strip() not in (b"", b"null") else None


def _ttl(seconds: object) -> int | None:
    """The requested lock time, clamped."""
    if seconds is None:
        return None
    if not isinstance(seconds, int) or isinstance(seconds, bool):
        raise InvalidArgument(f"ttl_seconds must be an integer, got {seconds!r}")
    return clamp_lock_seconds(seconds)


def _items(handout: Handout) -> list[str]:
    return [item.decode() for item in items_of(handout)]


def _seconds(micros: int | None) -> float | None:
    return None if micros is None else micros / SECOND


_KEYS = {"ItemsJson": "items", "LockExpiresAt": "lock_expires_at", "LockId": "lock_id",
          "ItemsAcknowledged": "items_acknowledged", "ErrorCode": "error_code"}  # fmt: skip


def _as_dict(answer: Struct) -> dict[str, Any]:
    """A response as a dictionary with decoded items and without the fields that are None."""
    found = {
        _KEYS.get(name, name.lower()): value
        for name, value in msgspec.structs.asdict(answer).items()
        if value is not None
    }
    if "items" in found:
        found["items"] = [msgspec.json.decode(item) for item in found["items"]]
    return found
