"""Encode payloads and build push requests, before the writer is taken."""

import json
import math
import re
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from .. import ranges, validate
from ..broker.requests import Chunk, PushRequest, digest_of
from ..errors import InvalidArgument, PayloadTooLarge
from ..options import DEFAULT_PARTITION, MAX_PAYLOAD, MAX_SEGMENT_BYTES, MAX_SEGMENT_COUNT, Dialect
from ..store import mapping
from ..store.records import Rest, joined
from ..validate import Duration, Time

T = TypeVar("T")
MOST_BYTES = 8 * 1024 * 1024  # of one push; a server refuses what is far too large
MANY = 256  # messages that are worth a segment of their own
Late = tuple[float | None, int | None]  # the delay and the time of a chunk
NOW: Late = (None, None)
_encode = msgspec.json.Encoder().encode
_NULL = re.compile(b"null")  # faster than `in` where it looks at much
UNWRITABLE = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
_check = msgspec.json.Decoder(msgspec.Raw).decode  # for a Raw inside a value, written as it is


class Item(Struct, frozen=True, kw_only=True, gc=False):
    """A message to push with settings of its own.

    Anything not given follows the push call. `at`: not delivered before this time, instead of a
    `delay`. A transaction id that the partition has seen before adds nothing; the receipt then has
    the id of the first message.
    """

    data: Any
    partition: str | None = None
    priority: int | None = None
    delay: Duration | None = None
    at: Time | None = None
    transaction_id: str | None = None
    headers: Mapping[str, str] | None = None


_LISTS = (list, tuple)
_PLAIN = {dict, list, str, int, float, bool, type(None)}
_SPECIAL = (Item, bytes, bytearray, memoryview, msgspec.Raw)


def items_of(data: object) -> Sequence[object]:
    """A list or tuple is many messages, anything else is one."""
    return data if isinstance(data, _LISTS) else [data]


def request(
    queue: str,
    data: object,
    *,
    partition: str,
    priority: int,
    delay: Duration | None,
    key: str | None,
    whole: bool = False,
    at: Time | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[PushRequest, list[list[int]] | None]:
    """A push request, and for each chunk the places of its messages in the call (None: in order).

    `whole`: many messages may stay one JSON array, for a broker in this process.
    """
    validate.name(queue, "queue")
    validate.name(partition, "partition")
    validate.priority(priority)
    late = _late(delay, at)
    items = items_of(data)
    kinds = set(map(type, items))
    places = None
    plain = kinds <= _PLAIN or not any(issubclass(kind, _SPECIAL) for kind in kinds)
    if plain and not headers:
        chunks = []
        if MANY <= len(items) <= MAX_SEGMENT_COUNT:
            chunks = _many(queue, items, partition, priority, late, whole and key is None)
        chunks = chunks or _plain(queue, items, partition, priority, late)
    else:
        chunks, places = _mixed(queue, items, partition, priority, late, headers)
    if key is None:
        return PushRequest(chunks), places
    return PushRequest(chunks, validate.name(key, "key"), digest_of(chunks)), places


def _late(delay: Duration | None, at: Time | None) -> Late:
    """When messages are due: after a delay in seconds, or at a time in microseconds."""
    if delay is None and at is None:
        return NOW
    if delay is not None and at is not None:
        raise InvalidArgument("a push takes either delay or at, not both")
    return validate.seconds_or_none(delay, "delay"), validate.time_or_none(at, "at")


def in_parts(items: Iterable[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Split items, in order, into parts that are small enough for one push over HTTP."""
    part: list[T] = []
    size = 0
    for item in items:
        if part and size + size_of(item) > MOST_BYTES:
            yield part
            part, size = [], 0
        part.append(item)
        size += size_of(item)
    if part:
        yield part


def encode(value: object) -> bytes:
    """A value as JSON; `msgspec.Raw` is JSON already and is kept byte for byte."""
    try:
        if isinstance(value, msgspec.Raw):
            raw = bytes(value)
            msgspec.json.decode(raw)
        else:
            raw = _encode(value)
            _check(raw)
    except OverflowError:
        raw = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidArgument(f"the data of a message must be JSON or bytes: {error}") from None
    if b"null" in raw:
        _refuse_nan(value)
    return raw


def _many(
    queue: str,
    items: Sequence[object],
    partition: str,
    priority: int,
    late: Late,
    whole: bool,
) -> list[Chunk]:
    """Encode many values at once, as one chunk; return none if they need the slow path."""
    try:
        data = _encode(items)
        encoded = mapping.items_of(data)
    except UNWRITABLE:
        return []
    if len(data) > MAX_SEGMENT_BYTES or len(encoded) != len(items):
        return []
    if _NULL.search(data):
        _refuse_nan(items)
    if whole:
        return [
            Chunk(queue, partition, priority, late[0], array("i"), data, None, "native",
                  len(items), late[1])
        ]  # fmt: skip
    ends, data = joined(encoded)
    return [Chunk(queue, partition, priority, late[0], array("i", ends), data, at=late[1])]


def _plain(
    queue: str, items: Sequence[object], partition: str, priority: int, late: Late
) -> list[Chunk]:
    """Chunks of one lane, for values without settings of their own."""
    try:
        parts = list(map(_encode, items))
        deque(map(_check, parts), 0)
    except UNWRITABLE:
        parts = [encode(item) for item in items]
    chunks = []
    for some in _split(parts):
        data = b"".join(some)
        if b"null" in data:
            _refuse_nan(items)
        chunks.append(Chunk(queue, partition, priority, late[0], _ends(some), data, at=late[1]))
    return chunks


def _mixed(
    queue: str,
    items: Sequence[object],
    partition: str,
    priority: int,
    late: Late,
    headers: Mapping[str, str] | None,
) -> tuple[list[Chunk], list[list[int]]]:
    """Chunks of items and plain values; settings an item lacks follow the push call."""
    full = [item if isinstance(item, Item) else Item(data=item) for item in items]
    if headers:
        full = [
            msgspec.structs.replace(item, headers=headers) if item.headers is None else item
            for item in full
        ]
    targets = [
        (
            queue,
            partition if item.partition is None else validate.name(item.partition, "partition"),
            priority if item.priority is None else validate.priority(item.priority),
            late if item.delay is None and item.at is None else _late(item.delay, item.at),
        )
        for item in full
    ]
    return _chunks(full, targets, _payload, "native")


def push_request_for_items(
    items: Sequence[tuple[str, Item]], dialect: Dialect
) -> tuple[PushRequest, list[list[int]]]:
    """A push of items to several queues, and for each chunk the places of its messages in the call.

    Their data is `msgspec.Raw` that a decoder has validated already; it is not validated again.
    """
    if len(items) == 1:
        return PushRequest([_only_chunk(*items[0], dialect)]), [[0]]
    targets = [
        (
            validate.name(queue, "queue"),
            validate.name(
                DEFAULT_PARTITION if item.partition is None else item.partition, "partition"
            ),
            0 if item.priority is None else validate.priority(item.priority),
            _late(item.delay, item.at),
        )
        for queue, item in items
    ]
    chunks, places = _chunks([item for _, item in items], targets, bytes, dialect)
    return PushRequest(chunks), places


def _only_chunk(queue: str, item: Item, dialect: Dialect) -> Chunk:
    """The chunk of a push of one item: the same as `_chunks`, in fewer steps."""
    data = bytes(item.data)
    if len(data) > MAX_PAYLOAD:
        _split([data])  # raises
    if item.transaction_id is not None:
        validate.name(item.transaction_id, "transaction_id")
    delay, at = _late(item.delay, item.at)
    return Chunk(
        validate.name(queue, "queue"),
        DEFAULT_PARTITION if item.partition is None else validate.name(item.partition, "partition"),
        0 if item.priority is None else validate.priority(item.priority),
        delay, array("i", [len(data)]), data,
        _rest([item]) if item.transaction_id is not None or item.headers else None,
        dialect, 0, at,
    )  # fmt: skip


def _chunks(
    items: Sequence[Item],
    targets: Sequence[tuple[str, str, int, Late]],
    payload: Callable[[Any], bytes],
    dialect: Dialect,
) -> tuple[list[Chunk], list[list[int]]]:
    """Chunks by lane, in the order of the push; one is over where the delay changes.

    One that repeats the transaction id of another adds nothing, and goes where that one does.
    """
    lanes: dict[tuple[str, str, int], list[tuple[Late, list[int]]]] = {}
    first: dict[tuple[str, str, str], int] = {}
    for index, (queue, home, level, late) in enumerate(targets):
        txid = items[index].transaction_id
        if txid is not None:
            level = first.setdefault((queue, home, validate.name(txid, "transaction_id")), level)
        runs = lanes.setdefault((queue, home, level), [])
        if not runs or runs[-1][0] != late:
            runs.append((late, []))
        runs[-1][1].append(index)
    chunks, places = [], []
    for (queue, home, level), runs in lanes.items():
        for late, indexes in runs:
            start = 0
            for some in _split([payload(items[index].data) for index in indexes]):
                mine = indexes[start : start + len(some)]
                start += len(some)
                data, rest = b"".join(some), _rest([items[index] for index in mine])
                chunks.append(
                    Chunk(queue, home, level, late[0], _ends(some), data, rest, dialect, 0, late[1])
                )
                places.append(mine)
    return chunks, places


def _payload(data: object) -> bytes:
    return bytes(data) if isinstance(data, bytes | bytearray | memoryview) else encode(data)


def _rest(items: list[Item]) -> Rest | None:
    rest = Rest()
    for index, item in enumerate(items):
        if item.transaction_id is not None:
            rest.txids[index] = item.transaction_id
        if item.headers:
            rest.headers[index] = validate.headers(item.headers)
    rest.binary = ranges.of(
        i for i, item in enumerate(items) if isinstance(item.data, bytes | bytearray | memoryview)
    )
    return None if rest.empty else rest


def _ends(parts: list[bytes]) -> "array[int]":
    if len(parts) == 1:
        return array("i", [len(parts[0])])
    return array("i", list(accumulate(map(len, parts))))  # a list is faster than what makes it


def _split(parts: list[bytes]) -> list[list[bytes]]:
    """Split payloads into runs that fit a segment."""
    if len(parts) <= MAX_SEGMENT_COUNT and sum(map(len, parts)) <= MAX_SEGMENT_BYTES:
        return [parts] if parts else []
    largest = max(map(len, parts))
    if largest > MAX_PAYLOAD:
        raise PayloadTooLarge(
            f"a message must have at most {MAX_PAYLOAD:,} bytes, got {largest:,}; nothing was pushed"
        )
    runs: list[list[bytes]] = [[]]
    room = MAX_SEGMENT_BYTES
    for part in parts:
        if runs[-1] and (len(part) > room or len(runs[-1]) >= MAX_SEGMENT_COUNT):
            runs.append([])
            room = MAX_SEGMENT_BYTES
        runs[-1].append(part)
        room -= len(part)
    return runs


def _refuse_nan(value: object) -> None:
    """Refuse NaN and infinity: JSON has neither, and the encoder silently writes null."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidArgument(f"the data of a message must be JSON, which has no {value}")
    elif isinstance(value, Mapping):
        for item in value.values():
            _refuse_nan(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            _refuse_nan(item)
    elif not isinstance(value, str | int | bytes | msgspec.Raw | None):
        plain = msgspec.to_builtins(value)
        if type(plain) is not type(value):
            _refuse_nan(plain)
