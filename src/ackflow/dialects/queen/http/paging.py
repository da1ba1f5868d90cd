"""What the administrative half of the Queen dialect shares: routes, pages, spans of time, payloads."""

from base64 import b64encode
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec
from msgspec import Raw, Struct

from ....clock import micros
from ....errors import InvalidArgument
from ....server.http import Call, Handler, Param, Route
from ....store.tx import Tx
from .common import Failure, iso, refuse, time_of

P = ParamSpec("P")
T = TypeVar("T")
MOST = 10_000
WHOLE = {"type": "integer", "minimum": 0}
FLAG = {"type": "string", "enum": ["true", "false", "1", "0", ""]}
TEXT = {"type": "string"}
PAGE = (
    Param("limit", {"type": "integer", "minimum": 1, "maximum": MOST}, "How many at most"),
    Param("offset", WHOLE, "How many to pass over"),
)
SPAN = (
    Param("from", TEXT, "A date or an ISO time in UTC"),
    Param("to", TEXT, "The same; a bare date includes that day"),
)


class Paging(Struct):
    limit: int
    offset: int


def route(method: str, path: str, handler: Handler, role: Any, **more: Any) -> Route:
    """A route of the dialect; a path without a slash in front is below /api/v1."""
    whole = path if path.startswith("/") else f"/api/v1/{path}"
    return Route(method, whole, handler, role, refuse=refuse, error=Failure, tag="queen", **more)


def looked(
    call: Call, verb: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
) -> Awaitable[T]:
    """Read what is true now, beside the loop: leases that are over are taken back first."""
    broker = call.server.broker

    def look() -> Any:
        broker.catch_up()
        return broker.look(verb, *args, **kwargs)

    found: Awaitable[T] = call.server.thread(look)
    return found


def paging(call: Call, limit: int) -> Paging:
    return Paging(call.whole("limit", limit, 1, MOST), call.whole("offset", 0, 0, 1 << 53))


def span(call: Call) -> tuple[int | None, int | None]:
    """The times [from, to) that the query asks for; None where it does not say."""
    since, until = call.query.get("from"), call.query.get("to")
    return (
        time_of(since, "from") if since else None,
        _end_of(until) if until else None,
    )


def _end_of(text: str) -> int:
    """Just after a time, or after the last moment of a day."""
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return time_of(text, "to") + 1
    try:
        after = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)
        return micros(after.timestamp())
    except OverflowError:
        raise InvalidArgument(f"to is a date or an ISO time, not {text!r}") from None


def iso_or_none(time: int | None) -> str | None:
    return None if time is None else iso(time)


def iso_of(time: datetime) -> str:
    return iso(micros(time.timestamp()))


def raw(data: bytes, is_json: bool) -> Raw:
    """A payload in an answer: JSON as it was pushed, bytes as base64 text."""
    return Raw(data if is_json else msgspec.json.encode(b64encode(data).decode()))


def no_value() -> Raw:
    return Raw(b"null")
