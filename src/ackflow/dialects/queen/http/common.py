"""What the handlers of the Queen dialect share: bodies, errors, times and the ids of partitions."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from msgspec import Struct

from .... import ids
from ....broker.core.topology import partitions_of_lanes, queues_of
from ....clock import micros
from ....errors import AckflowError, InvalidArgument
from ....model import when
from ....server.http import Answer, Call, json

T = TypeVar("T")
MOST_LANES = 100_000


class Failure(Struct):
    """How this dialect tells an error: the sentence alone, and a code that never changes."""

    error: str
    code: str


def refuse(error: AckflowError) -> Answer:
    return json(Failure(error.message, error.code), error.status)


def body_of(call: Call, type: type[T]) -> T:
    """The body as JSON; payloads are passed over, so its encoding is checked as a whole."""
    if not call.body:
        raise InvalidArgument("Empty request body")
    try:
        call.body.decode()
    except UnicodeDecodeError:
        raise InvalidArgument("Invalid JSON: the body is not UTF-8") from None
    return call.decoded(type)


def iso(time: int) -> str:
    return when(time).isoformat(timespec="microseconds").replace("+00:00", "Z")


def time_of(text: str, name: str) -> int:
    """An ISO time, in UTC when it names no zone; a plus sign may have become a space on the way."""
    try:
        found = datetime.fromisoformat(text[:11] + text[11:].replace(" ", "+"))
        return micros((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        raise InvalidArgument(f"{name} is an ISO time, not {text!r}") from None


# A lane never changes its partition, so what was looked up once holds.
_homes: WeakKeyDictionary[Any, dict[int, str]] = WeakKeyDictionary()


async def partition_ids(call: Call, lanes: Iterable[int]) -> dict[int, str]:
    """The UUIDs of the partitions of lanes, by lane."""
    known = _homes.setdefault(call.server, {})
    missing = {lane for lane in lanes if lane not in known}
    if missing:
        if len(known) > MOST_LANES:
            known.clear()
        store = call.server.broker.store.id
        found = await call.server.onloop.look(partitions_of_lanes, missing)
        for lane in missing:
            known[lane] = ids.partition_uuid(store, found.get(lane, 0))
    return known


def partition_of(call: Call, text: str) -> int | None:
    """The partition a UUID names; None when it names none of this database."""
    try:
        return ids.parse_partition_uuid(call.server.broker.store.id, text)
    except InvalidArgument:
        return None


async def allow_partitions(call: Call, partitions: Iterable[int | None]) -> None:
    """Refuse when one of these partitions is of a queue the token of the call is not good for."""
    if call.who is None or call.who.may_everywhere(call.role):
        return
    known = {partition for partition in partitions if partition is not None}
    for queue in await call.server.onloop.look(queues_of, known):
        call.server.allow(call, queue)
