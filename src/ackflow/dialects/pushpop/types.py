"""Request and response bodies of PushPop's HTTP interface. Times are seconds since 1970."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from ...errors import AckflowError
from ...options import DEFAULTS, MAX_PRIORITY
from ...server.http import Param, Response, json
from .common import MAX_COUNT
from .errors import spelling

# The OpenAPI document shows these bounds; the handlers check them, so that an error can use
# PushPop's texts and 5.0 counts as the integer it is in JSON.
Priority = Annotated[
    int | float,
    Meta(extra_json_schema={"type": "integer", "minimum": 0, "maximum": MAX_PRIORITY}),
]
Seconds = Annotated[int | float, Meta(extra_json_schema={"type": "integer"})]
Item = Annotated[Raw, Meta(extra_json_schema={"not": {"type": "null"}})]
LockId = Annotated[str, Meta(min_length=1)]


class PushBody(Struct):
    """An item, any JSON value except null, and its priority; 0 is served first."""

    item: Item
    priority: Priority = 0


class PushResult(Struct):
    success: bool
    message: str


class PopResult(Struct):
    """The items of one pop; the last three fields only for a pop under a lock."""

    items: list[Raw]
    count: int
    locked: bool | UnsetType = UNSET
    lock_id: str | UnsetType = UNSET
    lock_expires_at: float | UnsetType = UNSET


class LockedResult(Struct):
    """The queue is locked by another consumer until `lock_expires_at`."""

    message: str
    lock_expires_at: float


class AcknowledgeBody(Struct):
    lock_id: LockId


class AcknowledgeResult(Struct):
    success: bool
    message: str
    items_acknowledged: int


class ExtendBody(Struct):
    """`ttl_seconds` counts from now, clamped to 1 to 300; by default the time of a new lock."""

    lock_id: LockId
    ttl_seconds: Seconds | None = None


class ExtendResult(Struct):
    success: bool
    message: str
    lock_id: str
    lock_expires_at: float


class ReleaseBody(Struct):
    lock_id: LockId


class ReleaseResult(Struct):
    success: bool
    message: str
    items_released: int


class DeadLetterBody(Struct):
    lock_id: LockId
    reason: str | None = None


class DeadLetterResult(Struct):
    success: bool
    message: str
    items_dead_lettered: int


class LiveLock(Struct):
    """The lock of a queue and the number of items it holds, by priority."""

    lock_id: str
    created_at: float
    lock_expires_at: float
    count: int
    priorities: dict[str, int]


class QueueState(Struct):
    """Items ready to pop, by priority, and those that are delayed, dead or locked."""

    queue: str
    count: int
    priorities: dict[str, int]
    delayed: int
    dead_letters: int
    locked: bool
    lock: LiveLock | UnsetType = UNSET


class ErrorResult(Struct):
    success: bool
    message: str
    error_code: str


# Errors of any request: invalid input, missing or insufficient token, too large, too many requests,
# or a store that cannot be written now.
ERRORS: dict[int, Any] = dict.fromkeys((400, 401, 403, 413, 429, 500, 503, 507), ErrorResult)
LOCK_ERRORS: dict[int, Any] = {**ERRORS, 404: ErrorResult, 409: ErrorResult, 410: ErrorResult}

POP_QUERY = (
    Param(
        "require_ack", {"type": "boolean", "default": False}, "Lock the items until acknowledged"
    ),
    Param(
        "ttl_seconds",
        {"type": "integer", "default": int(DEFAULTS["pushpop"].lease_seconds)},
        "Lock time, clamped to 1 to 300; by default the lease time set for the queue",
    ),
    Param(
        "count",
        {"type": "integer", "minimum": 1, "maximum": MAX_COUNT, "default": 1},
        "Maximum number of items",
    ),
)


def error_response(error: AckflowError) -> Response:
    """Encode an error in PushPop's flat form."""
    code, message = spelling(error)
    return json(ErrorResult(False, message, code), error.status)
