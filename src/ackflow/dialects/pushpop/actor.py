"""The PushPopActor: push, pop and acknowledge under one lock per queue, in the words of PushPop.

Its methods take a dictionary or a request object. A dictionary is answered with a dictionary, a
request object, or nothing, with a response object.
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
from ...broker.core.handout import Handout, is_binary, payload
from ...broker.core.pop import PopRequest
from ...broker.core.settle import Verdict
from ...clock import SECOND
from ...errors import (
    AckflowError,
    InvalidArgument,
    LeaseExpired,
    LeaseLost,
    NoLock,
    SessionClosed,
    WrongLock,
)
from ...options import QUEUE_MODE
from ...session.session import Session
from . import lock

T = TypeVar("T")
SHORTEST, LONGEST = 1, 300

# Code and message of an error in the words of the dialect, where they differ from Ackflow's own.
_WORDS_OF = {
    LeaseExpired.code: ("LOCK_EXPIRED", "Lock has expired"),
    NoLock.code: ("LOCK_NOT_FOUND", "No active lock found"),
    WrongLock.code: ("INVALID_LOCK_ID", "Invalid lock_id"),
}
PUSHED = "Item pushed to queue {queue} at priority {priority}"
NEGATIVE = "Priority must be non-negative"
LOCKED = "Queue is locked by another operation"
MISSING = "lock_id is required"
NO_ITEM = "item is required, and not null"


class PushRequest(Struct):
    """`ItemJson` is the item as JSON text; 0 is the priority served first."""

    ItemJson: str
    Priority: int = 0


class PushResponse(Struct):
    Success: bool
    Message: str


class PopWithAckRequest(Struct):
    """Seconds are clamped to 1 to 300; without them the lock lasts as long as the group's lease."""

    TtlSeconds: int | None = None
    Count: int = 1


class PopResponse(Struct):
    """`Locked` when somebody holds the queue's lock, until `LockExpiresAt`."""

    ItemsJson: list[str]
    Count: int
    Locked: bool = False
    LockExpiresAt: float | None = None
    Message: str | None = None


class PopWithAckResponse(Struct):
    """With a `LockId` the lock is the caller's; `Locked` without one means it is somebody else's."""

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
    """One queue. `session` is a plain or an awaitable one; a plain one is used from a thread."""

    def __init__(self, session: Session | aio.Session, queue_id: str) -> None:
        self._session = session
        self._plain = session.sync if isinstance(session, aio.Session) else session
        self.queue_id = validate.name(queue_id, "queue")

    async def Push(self, data: PushRequest | Mapping[str, Any]) -> Any:
        """Put an item at the end of its priority; it is on disk when this is answered."""
        try:
            answer = await self._pushed(*_item(data))
        except InvalidArgument as error:
            answer = PushResponse(False, error.message)
        return answer if isinstance(data, PushRequest) else _plain(answer)

    async def _pushed(self, item: Any, priority: Any) -> PushResponse:
        # In a list of one, as an item that is itself a list is still one item.
        await self._run(partial(self._plain.push, self.queue_id, [item], priority=priority))
        return PushResponse(True, PUSHED.format(queue=self.queue_id, priority=priority))

    async def Pop(self) -> PopResponse:
        """Pop the first item of the highest priority; it is removed at once."""
        handout = await self._pop(None, 1, auto_ack=True)
        answer = PopResponse(_items(handout), 0)
        answer.Count = len(answer.ItemsJson)
        if handout.why == "locked":
            answer.Locked, answer.Message = True, LOCKED
            answer.LockExpiresAt = _seconds(handout.retry_at)
        return answer

    async def PopWithAck(self, data: PopWithAckRequest | Mapping[str, Any] | None = None) -> Any:
        """Pop under a lock: the items come again when it is not acknowledged in time."""
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
        return _plain(answer) if isinstance(data, Mapping) else answer

    async def Acknowledge(self, data: AcknowledgeRequest | Mapping[str, Any]) -> Any:
        """The items of a lock are done."""
        given = data.LockId if isinstance(data, AcknowledgeRequest) else data.get("lock_id")
        if not isinstance(given, str) or not given:
            answer = AcknowledgeResponse(False, MISSING, ErrorCode="invalid_argument")
        else:
            answer = await self._acknowledged(given)
        return answer if isinstance(data, AcknowledgeRequest) else _plain(answer)

    async def _acknowledged(self, lock_id: str) -> AcknowledgeResponse:
        try:
            token: int | None = ids.parse_token(lock_id)
        except InvalidArgument:
            token = None  # it cannot be one; what there is instead is for the broker to say

        def settle() -> int:
            broker, ack = self._plain.broker, Verdict("ack")
            return broker.do(lock.settle_lock, False, self.queue_id, QUEUE_MODE, token, ack)

        try:
            n = await self._run(settle)
        except LeaseLost as error:
            code, message = in_words(error)
            return AcknowledgeResponse(False, message, ErrorCode=code)
        return AcknowledgeResponse(True, f"Successfully acknowledged {n} item(s)", n)

    async def _pop(self, ttl: float | None, count: int, auto_ack: bool = False) -> Handout:
        """Pop under a lock of so many seconds (None: the group's lease), or what is done then."""
        request = PopRequest(
            self.queue_id, QUEUE_MODE, self._plain.consumer, validate.whole(count, "count", 1, 100),
            ttl, auto_ack=auto_ack, dialect="pushpop",
        )  # fmt: skip
        if isinstance(self._session, aio.Session):
            return await self._session.handout(request)
        popping = asyncio.ensure_future(asyncio.to_thread(self._plain.broker.pop, request))
        try:
            return await asyncio.shield(popping)
        except asyncio.CancelledError:
            popping.add_done_callback(self._release)  # a thread cannot be cancelled
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
    """The item of a push and its priority."""
    if isinstance(data, PushRequest):
        item, priority = _json(data.ItemJson), data.Priority
    else:
        item, priority = data.get("item"), data.get("priority", 0)
    if isinstance(priority, int) and priority < 0:
        raise InvalidArgument(NEGATIVE)
    if item is None:
        raise InvalidArgument(NO_ITEM)
    return item, priority


def _json(text: object) -> msgspec.Raw | None:
    """JSON text as it is; None when it says null. That it is JSON is checked by the push."""
    try:
        raw = text.encode() if isinstance(text, str) else b""
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"the item is not UTF-8: {error.reason}") from None
    return msgspec.Raw(raw) if raw.strip() not in (b"", b"null") else None


def _ttl(seconds: object) -> int | None:
    """The time of a lock as it was asked for, clamped however large it is."""
    if seconds is None:
        return None
    if not isinstance(seconds, int) or isinstance(seconds, bool):
        raise InvalidArgument(f"ttl_seconds is a whole number, not {seconds!r}")
    return clamped(seconds)


def in_words(error: AckflowError) -> tuple[str, str]:
    """Code and message of an error, as the dialect spells them."""
    return _WORDS_OF.get(error.code, (error.code, error.message))


def clamped(seconds: int) -> int:
    """The time of a lock: 1 to 300 seconds."""
    return max(SHORTEST, min(seconds, LONGEST))


def items(handout: Handout) -> list[bytes]:
    """What was popped, as JSON."""
    found = []
    for run in handout.runs:
        for index in range(run.lo - run.first, run.hi - run.first):
            data = payload(run.body, index)
            # Bytes pushed in another dialect are no JSON: here they are base64 text.
            found.append(msgspec.json.encode(data) if is_binary(run.body, index) else data)
    return found


def _items(handout: Handout) -> list[str]:
    return [item.decode() for item in items(handout)]


def _seconds(micros: int | None) -> float | None:
    return None if micros is None else micros / SECOND


_WORDS = {"ItemsJson": "items", "LockExpiresAt": "lock_expires_at", "LockId": "lock_id",
          "ItemsAcknowledged": "items_acknowledged", "ErrorCode": "error_code"}  # fmt: skip


def _plain(answer: Struct) -> dict[str, Any]:
    """A response as a dictionary; items are values in it, and what is not there is left out."""
    found = {
        _WORDS.get(name, name.lower()): value
        for name, value in msgspec.structs.asdict(answer).items()
        if value is not None
    }
    if "items" in found:
        found["items"] = [msgspec.json.decode(item) for item in found["items"]]
    return found
