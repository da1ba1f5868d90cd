"""Shared by Queen's administrative handlers: routes, pages, time ranges, payloads."""

from base64 import b64encode
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec
from msgspec import Raw, Struct

from ....clock import micros
from ....errors import InvalidArgument, NotFound
from ....ids import PartitionId
from ....server.http import Call, Handler, Param, Role, Route
from ....store.tx import Tx
from ..verbs.single_message import queue_of
from .common import QueenError, error_response, iso, partition_of, time_of

P = ParamSpec("P")
T = TypeVar("T")
MAX_LIMIT = 10_000
INTEGER = {"type": "integer", "minimum": 0}
FLAG = {"type": "string", "enum": ["true", "false", "1", "0", ""]}
TEXT = {"type": "string"}
PAGE = (
    Param(
        "limit", {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT}, "Maximum number of items"
    ),
    Param("offset", INTEGER, "Number of items to skip"),
)
SPAN = (
    Param("from", TEXT, "Start: a date or an ISO 8601 time, in UTC by default"),
    Param("to", TEXT, "End: the same; a date includes that day"),
)


class Paging(Struct):
    limit: int
    offset: int


def route(method: str, path: str, handler: Handler, role: Role, **more: Any) -> Route:
    """A route of the dialect; a relative path is below /api/v1."""
    full_path = path if path.startswith("/") else f"/api/v1/{path}"
    return Route(
        method, full_path, handler, role, encode_error=error_response, error=QueenError,
        tag="queen", **more,
    )  # fmt: skip


def read_current(
    call: Call, verb: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
) -> Awaitable[T]:
    """Run a read-only verb in the read lane, after expired leases are processed."""
    return call.server.read(verb, *args, **kwargs)


async def partition_for(call: Call, text: str, not_found: str) -> PartitionId:
    """The partition of a UUID; checks the token against its queue."""
    partition = partition_of(call, text)
    queue = None if partition is None else await read_current(call, queue_of, partition)
    if partition is None or queue is None:
        raise NotFound(not_found)
    call.server.allow(call, queue)
    return partition


def paging(call: Call, limit: int) -> Paging:
    return Paging(call.integer("limit", limit, 1, MAX_LIMIT), call.integer("offset", 0, 0, 1 << 53))


def span(call: Call) -> tuple[int | None, int | None]:
    """The time range [from, to) of the query; None for a missing bound."""
    since, until = call.query.get("from"), call.query.get("to")
    return (
        time_of(since, "from") if since else None,
        _end_time(until) if until else None,
    )


def _end_time(text: str) -> int:
    """The exclusive end of a range: just after a time, or after the end of a day."""
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return time_of(text, "to") + 1
    try:
        after = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)
        return micros(after.timestamp())
    except OverflowError:
        raise InvalidArgument(f"to must be a date or an ISO 8601 time, got {text!r}") from None


def iso_or_none(time: int | None) -> str | None:
    return None if time is None else iso(time)


def iso_of(time: datetime) -> str:
    return iso(micros(time.timestamp()))


def payload_json(data: bytes, is_json: bool) -> Raw:
    """A payload in a response: JSON as it was pushed, bytes as base64 text."""
    return Raw(data if is_json else msgspec.json.encode(b64encode(data).decode()))


def no_value() -> Raw:
    return Raw(b"null")
