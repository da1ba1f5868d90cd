"""What the calls of the PushPop dialect bring and answer. Times are seconds since 1970."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from ...errors import AckflowError
from ...options import DEFAULTS, MAX_PRIORITY
from ...server.http import Answer, Param, json
from .actor import in_words

# These are told in the document but checked by hand: a refusal can use the dialect's words, and
# 5.0 is the whole number it is in JSON.
Priority = Annotated[
    int | float,
    Meta(extra_json_schema={"type": "integer", "minimum": 0, "maximum": MAX_PRIORITY}),
]
Seconds = Annotated[int | float, Meta(extra_json_schema={"type": "integer"})]
Item = Annotated[Raw, Meta(extra_json_schema={"not": {"type": "null"}})]
LockId = Annotated[str, Meta(min_length=1)]


class Push(Struct):
    """An item, any JSON value but null, and its priority: 0 is served first."""

    item: Item
    priority: Priority = 0


class Pushed(Struct):
    success: bool
    message: str


class Popped(Struct):
    """The items of one pop; the last three only of a pop that asked for a lock."""

    items: list[Raw]
    count: int
    locked: bool | UnsetType = UNSET
    lock_id: str | UnsetType = UNSET
    lock_expires_at: float | UnsetType = UNSET


class Locked(Struct):
    """Somebody holds the queue's lock until then."""

    message: str
    lock_expires_at: float


class Acknowledge(Struct):
    lock_id: LockId


class Acknowledged(Struct):
    success: bool
    message: str
    items_acknowledged: int


class Extend(Struct):
    """Seconds from now, clamped to 1 to 300; without them as long as a new lock."""

    lock_id: LockId
    ttl_seconds: Seconds | None = None


class Extended(Struct):
    success: bool
    message: str
    lock_id: str
    lock_expires_at: float


class Release(Struct):
    lock_id: LockId


class Released(Struct):
    success: bool
    message: str
    items_released: int


class DeadLetter(Struct):
    lock_id: LockId
    reason: str | None = None


class DeadLettered(Struct):
    success: bool
    message: str
    items_dead_lettered: int


class LiveLock(Struct):
    """The lock of a queue, and how many items it holds, by priority."""

    lock_id: str
    created_at: float
    lock_expires_at: float
    count: int
    priorities: dict[str, int]


class State(Struct):
    """What can be popped, by priority; beside it what is delayed, dead, or under the lock."""

    queue: str
    count: int
    priorities: dict[str, int]
    delayed: int
    dead_letters: int
    locked: bool
    lock: LiveLock | UnsetType = UNSET


class Refusal(Struct):
    success: bool
    message: str
    error_code: str


# What any call may be refused with: bad input, no or too weak a token, too much, or a store that
# cannot write now.
REFUSALS: dict[int, Any] = dict.fromkeys((400, 401, 403, 413, 429, 500, 503, 507), Refusal)
OF_LOCKS: dict[int, Any] = {**REFUSALS, 404: Refusal, 409: Refusal, 410: Refusal}

POP = (
    Param("require_ack", {"type": "boolean", "default": False}, "Hold the items under a lock"),
    Param(
        "ttl_seconds",
        {"type": "integer", "default": int(DEFAULTS["pushpop"].lease_seconds)},
        "How long, clamped to 1 to 300; by default as the lease of the queue is set",
    ),
    Param(
        "count", {"type": "integer", "minimum": 1, "maximum": 100, "default": 1}, "At most so many"
    ),
)


def refuse(error: AckflowError) -> Answer:
    """An error in the flat shape of the dialect."""
    code, message = in_words(error)
    return json(Refusal(False, message, code), error.status)
