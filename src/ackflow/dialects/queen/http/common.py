"""Shared by Queen's handlers: request bodies, errors, times and partition ids."""

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from msgspec import Struct

from .... import ids
from ....broker.core.handout import MessageRun
from ....broker.core.topology import partitions_of_lanes, queues_of
from ....clock import micros
from ....errors import AckflowError, InvalidArgument
from ....ids import LaneId, PartitionId
from ....model import when
from ....server.http import LARGE_BODY, Call, Response, json

T = TypeVar("T")
MAX_CACHED_LANES = 100_000


class QueenError(Struct):
    """The body of an error response: the message and a stable code."""

    error: str
    code: str


def error_response(error: AckflowError) -> Response:
    return json(QueenError(error.message, error.code), error.status)


def body_of(call: Call, type: type[T], large: bool = False) -> T:
    """Decode the body as JSON; payloads stay raw, so the encoding of the whole is checked first."""
    if not call.body:
        raise InvalidArgument("Empty request body")
    if not large:
        call.check_small_body()
    try:
        call.body.decode()
    except UnicodeDecodeError:
        raise InvalidArgument("Invalid JSON: the body is not UTF-8") from None
    return call.json_body(type, large)


async def large_body_of(call: Call, type: type[T]) -> T:
    """Decode like `body_of`, in a worker thread if the body is large."""
    if len(call.body) <= LARGE_BODY:
        return body_of(call, type)
    return await call.server.thread(partial(body_of, call, type, large=True))


def iso(time: int) -> str:
    return when(time).isoformat(timespec="microseconds").replace("+00:00", "Z")


def time_of(text: str, name: str) -> int:
    """Parse an ISO time, in UTC if it has no zone; URL decoding may have turned + into a space."""
    try:
        found = datetime.fromisoformat(text[:11] + text[11:].replace(" ", "+"))
        return micros((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        raise InvalidArgument(f"{name} must be an ISO 8601 time, got {text!r}") from None


# A lane never changes its partition, so cached entries stay valid.
_partition_ids: WeakKeyDictionary[Any, dict[LaneId, str]] = WeakKeyDictionary()


def partition_ids_of(call: Call, runs: Iterable[MessageRun]) -> dict[LaneId, str]:
    """Partition UUIDs by lane, for messages that were handed out."""
    known = _known_ids(call)
    for run in runs:
        if run.lane not in known:
            known[run.lane] = ids.partition_uuid(call.server.broker.store.id, run.home)
    return known


def _known_ids(call: Call) -> dict[LaneId, str]:
    known = _partition_ids.setdefault(call.server, {})
    if len(known) > MAX_CACHED_LANES:
        known.clear()
    return known


async def partition_ids(call: Call, lanes: Iterable[LaneId]) -> dict[LaneId, str]:
    """Partition UUIDs by lane."""
    known = _known_ids(call)
    missing = {lane for lane in lanes if lane not in known}
    if missing:
        store = call.server.broker.store.id
        found = await call.server.loop_broker.look(partitions_of_lanes, missing)
        for lane in missing:
            known[lane] = ids.partition_uuid(store, found.get(lane, PartitionId(0)))
    return known


def partition_of(call: Call, text: str) -> PartitionId | None:
    """The partition of a UUID; None if it is not of this database."""
    try:
        return ids.parse_partition_uuid(call.server.broker.store.id, text)
    except InvalidArgument:
        return None


async def allow_partitions(call: Call, partitions: Iterable[PartitionId | None]) -> None:
    """Raise Forbidden unless the caller's token covers the queues of these partitions."""
    if call.who is None or call.who.may_everywhere(call.role):
        return
    known = {partition for partition in partitions if partition is not None}
    for queue in await call.server.loop_broker.look(queues_of, known):
        call.server.allow(call, queue)
