"""What callers ask of the broker: one struct per request, each with a `check` that validates it.

A session builds these from arguments that it has validated and converted; a server reads them from
a request body and calls `check` before anything else. A `check` covers everything inside the
struct, nested operations included, and raises `InvalidArgument`.
"""

import hashlib
from array import array
from collections.abc import Iterable
from itertools import accumulate, pairwise
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec
from msgspec import Struct, structs

from .. import ranges, validate
from ..errors import InvalidArgument
from ..ids import LaneId, new_token
from ..options import MAX_OPERATIONS, MAX_PAYLOAD, MAX_SEGMENT_COUNT, Counting, Dialect
from ..ranges import Ranges
from ..store.records import Rest
from .waiters import WaitKey

if TYPE_CHECKING:
    Offsets = array[int]
else:
    Offsets = array  # not generic before Python 3.12, and decoders are built from this annotation

SettleVerb = Literal["ack", "nack", "release", "requeue", "reject", "dead_letter"]
SETTLE_VERBS: tuple[SettleVerb, ...] = (
    "ack", "nack", "release", "requeue", "reject", "dead_letter"
)  # fmt: skip
_SYNCED: frozenset[str] = frozenset({"requeue", "reject", "dead_letter"})
STAGED_AT = "a staged message takes a delay, counted from its publication, but not a time (at)"
MAX_VALUE = 1024 * 1024
ONE_END = "a value ends after a ttl or with a lease, not both"
MAX_SEQUENCE = 1 << 48
_raw = msgspec.json.Decoder(msgspec.Raw)
_skip_json, _split_json = _raw.decode, _raw.decode_lines  # validate without building objects
LARGEST = 1 << 60  # of batch numbers, versions and limits that have no limit of their own


def check_token(token: object) -> None:
    validate.integer(token, "token", -(1 << 63), (1 << 63) - 1)


def check_ranges(which: Ranges) -> None:
    """Refuse what is not a range set: boundaries in pairs, each larger than the one before."""
    if len(which) % 2 or any(b <= a for a, b in pairwise(which)):
        raise InvalidArgument("a range set is a list of ascending boundaries, in pairs")
    if which and not 0 <= which[0] < which[-1] <= MAX_SEQUENCE:
        raise InvalidArgument(f"a sequence number must be from 0 to {MAX_SEQUENCE - 1}")


# push


class Chunk(Struct):
    """Messages for one lane, encoded and joined before the writer is taken.

    `whole`: the data is one JSON array of so many messages, and there are no offsets. Such a chunk
    is never sent over the wire and never joined with others: splitting it costs more than writing
    it. `at`: not delivered before this time; a time in the past means no delay.
    """

    queue: str
    partition: str
    priority: int
    delay: float | None
    ends: Offsets
    data: bytes
    rest: Rest | None = None
    dialect: Dialect = "native"
    whole: int = 0
    at: int | None = None

    @property
    def late(self) -> tuple[float | None, int | None]:
        return self.delay, self.at

    @property
    def count(self) -> int:
        return self.whole or len(self.ends)

    def check(self) -> None:
        """Validate a chunk that was sent; one that the session encoded is valid by construction."""
        validate.name(self.queue, "queue")
        validate.name(self.partition, "partition")
        validate.priority(self.priority)
        if self.delay is not None:
            validate.seconds(self.delay, "delay")
        if self.at is not None:
            validate.integer(self.at, "at", 0, 1 << 62)
        if self.whole:
            raise InvalidArgument("a chunk must have the offset at which each of its messages ends")
        ends = self.ends.tolist()
        if not ends or ends[0] < 0 or ends[-1] != len(self.data) or sorted(ends) != ends:
            raise InvalidArgument(
                "the offsets of a chunk must ascend, and the last must be the size of its data"
            )
        if len(ends) > MAX_SEGMENT_COUNT or len(self.data) > MAX_PAYLOAD:
            raise InvalidArgument("a chunk is too large; send several smaller ones")
        if self.rest is not None:
            _check_rest(self.rest, len(ends))
        self._check_json(ends)

    def _check_json(self, ends: list[int]) -> None:
        """Refuse payloads that are not JSON: answers contain them as they are.

        The data is decoded as a whole: a payload begins and ends with an ASCII character.
        """
        binary = self.rest.binary if self.rest is not None else []
        data, index = self.data, 0
        try:
            if not binary:
                if not data.isascii():
                    data.decode()
                if _are_values(data, ends):
                    return
            for index, (start, end) in enumerate(pairwise((0, *ends))):
                if not (binary and ranges.contains(binary, index)):
                    _skip_json(data[start:end])
                    if binary:
                        data[start:end].decode()
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidArgument(f"message {index} of a chunk must be JSON: {error}") from None


def _are_values(data: bytes, ends: list[int]) -> bool:
    """Whether it is JSON values that end there; False also for numbers side by side, or spaces."""
    try:
        if len(ends) == 1:
            _skip_json(data)
            return True
        return list(accumulate(map(len, _split_json(data)))) == ends
    except (msgspec.MsgspecError, RecursionError):
        return False


def _check_rest(rest: Rest, count: int) -> None:
    check_ranges(rest.binary)
    indexes = [*rest.txids, *rest.headers, *(at - 1 for at in rest.binary[1::2])]
    if any(not 0 <= index < count for index in indexes):
        raise InvalidArgument("a chunk describes messages that are not in it")
    for txid in rest.txids.values():
        validate.name(txid, "transaction_id")
    for headers in rest.headers.values():
        validate.headers(headers)


class PushRequest(Struct):
    """The messages of one push call. A repeat with the same key answers with the first result."""

    chunks: list[Chunk]
    key: str | None = None
    digest: bytes = b""

    def check(self) -> None:
        """Validate it, and compute its digest rather than trust the one that was sent."""
        for chunk in self.chunks:
            chunk.check()
        if self.key is not None:
            validate.name(self.key, "key")
            self.digest = digest_of(self.chunks)


def digest_of(chunks: Iterable[Chunk]) -> bytes:
    """A hash of a push, which tells a repeat from another push under the same key."""
    digest = hashlib.blake2b(digest_size=16)
    for chunk in chunks:
        where = (chunk.queue, chunk.partition, chunk.priority, chunk.delay, chunk.rest)
        digest.update(msgspec.msgpack.encode(where if chunk.at is None else (*where, chunk.at)))
        digest.update(chunk.ends.tobytes())
        digest.update(chunk.data)
    return digest.digest()


class Publication(Struct):
    """A message for an exchange: its routing keys decide which queues it reaches.

    `headers` are those that are stored; `table` those that a headers exchange compares, with their
    types. `ttl`: seconds after which it is dropped from a queue. `txid`: its transaction id, by which
    `import_messages` recognises a repeat.
    """

    exchange: str
    keys: list[str]
    payload: bytes = b""
    binary: bool = True
    headers: dict[str, str] = {}
    table: dict[str, Any] = {}
    priority: int | None = None
    ttl: float | None = None
    txid: str | None = None


# pop


class PopRequest(Struct):
    """What a consumer asks for. With `token`, a repeated pop answers with the same lease.

    `live`: once that lease has ended, a repeat gets nothing instead of messages that others may hold
    by now. `start` says where a new group begins; without a group there is nothing to skip.
    `batch` 0: as many as the group's settings say. Without `create`, a queue that does not exist is
    refused; the group is created at its first pop in either case.
    """

    queue: str
    group: str
    consumer: str
    batch: int = 0
    lease_seconds: float | None = None
    auto_ack: bool = False
    partition: str | None = None
    partitions: int | None = None
    token: int | None = None
    dialect: Dialect = "native"
    start: Literal["all", "new"] | int = "all"
    live: bool = False
    create: bool = True

    def check(self) -> Self:
        validate.name(self.queue, "queue")
        validate.name(self.group, "group")
        validate.name(self.consumer, "consumer")
        if self.batch != 0:
            validate.batch(self.batch)
        validate.dialect(self.dialect)
        if self.lease_seconds is not None:
            validate.positive(self.lease_seconds, "lease_seconds")
        if self.auto_ack is not False:
            validate.flag(self.auto_ack, "auto_ack")
        if self.create is not True:
            validate.flag(self.create, "create")
        if self.partition is not None:
            validate.name(self.partition, "partition")
        if self.partitions is not None:
            validate.integer(self.partitions, "partitions", 1, 10_000)
        if self.token is not None:
            check_token(self.token)
        return self

    def repeatable(self, token: int | None = None) -> Self:
        """The same with a token, so that it can be repeated, or released, when its answer is lost.
        A pop with `auto_ack` takes no lease and stays as it is."""
        if self.auto_ack or (token is None and self.token is not None):
            return self
        return structs.replace(self, token=new_token() if token is None else token, live=True)

    @property
    def wait_key(self) -> WaitKey:
        """What a pop waits for when there is nothing to deliver."""
        return self.queue, self.group, self.partition


# settle


class Verdict(Struct, frozen=True):
    """How a delivery ends. `delay`: None follows the back-off; a release takes place at once.
    `rest`: also release what follows.
    `up_to`: also what comes before it in its lane under the same token. `confirm`: on disk first.
    `counting`: how the retry limit is read. `yields`: see `Settlement` in `core.settle`.
    `headers`: set on the copy that a requeue makes. `uncounted`: the delivery that a requeue ends
    is not counted, because the message was not processed.
    """

    verb: SettleVerb
    reason: str | None = None
    delay: float | None = None
    rest: bool = False
    up_to: bool = False
    confirm: bool = False
    counting: Counting = "failures"
    yields: bool = False
    headers: tuple[tuple[str, str], ...] = ()
    uncounted: bool = False

    @property
    def synced(self) -> bool:
        """Whether it is on disk before it is answered."""
        return self.confirm or self.verb in _SYNCED

    def check(self) -> Self:
        """Validate the verdict; return it."""
        validate.one_of(self.verb, "verdict", SETTLE_VERBS)
        validate.text(self.reason, "reason")
        if self.delay is not None:
            validate.seconds(self.delay, "delay")
        for what, value in (("rest", self.rest), ("up_to", self.up_to), ("confirm", self.confirm)):
            if value is not False:
                validate.flag(value, what)
        if self.headers or self.uncounted:
            if self.verb != "requeue":
                raise InvalidArgument("headers and uncounted are for requeue, which makes a copy")
            validate.headers(dict(self.headers))
            validate.flag(self.uncounted, "uncounted")
        return self


class Mark(Struct):
    """A verdict on some messages of a lease: all of it, of one lane, or these ranges of a lane."""

    verdict: Verdict
    lane: LaneId | None = None
    ranges: Ranges | None = None

    def check(self) -> None:
        self.verdict.check()
        if self.ranges is not None:
            if self.lane is None:
                raise InvalidArgument("a range set needs the lane it belongs to")
            check_ranges(self.ranges)


# transactions


class SettleOperation(Struct, tag=True):
    """Settle messages of one lease."""

    token: int
    marks: list[Mark]

    def check(self) -> None:
        check_token(self.token)
        for mark in self.marks:
            mark.check()


class PushOperation(Struct, tag=True):
    """Push messages."""

    request: PushRequest

    def check(self) -> None:
        self.request.check()


class PutOperation(Struct, tag=True):
    """Set a value; `expect` is the version it must have now: 0 if it must not exist, None for any.

    It ends after `ttl` seconds, or with the lease that has the token `lease`.
    """

    key: str
    value: bytes
    expect: int | None = None
    ttl: float | None = None
    lease: int | None = None

    def check(self) -> None:
        validate.name(self.key, "key")
        if len(self.value) > MAX_VALUE:
            raise InvalidArgument(
                f"a value must have at most {MAX_VALUE:,} bytes, got {len(self.value):,}"
            )
        try:
            msgspec.json.decode(self.value)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidArgument(f"a value must be JSON: {error}") from None
        _check_version(self.expect)
        if self.ttl is not None:
            validate.positive(self.ttl, "ttl")
        if self.lease is not None:
            check_token(self.lease)
        if self.ttl is not None and self.lease is not None:
            raise InvalidArgument(ONE_END)


class DeleteOperation(Struct, tag=True):
    """Delete a value; `expect` as in `PutOperation`."""

    key: str
    expect: int | None = None

    def check(self) -> None:
        validate.name(self.key, "key")
        _check_version(self.expect)


Operation = SettleOperation | PushOperation | PutOperation | DeleteOperation


def _check_version(expect: object) -> None:
    if expect is not None:
        validate.integer(expect, "expect", 0, LARGEST)


class TransactionRequest(Struct):
    """Operations that are done all or not at all. A key makes a repeat answer with the first
    result."""

    operations: list[Operation]
    key: str | None = None
    digest: bytes = b""

    def check(self) -> None:
        for operation in self.operations:
            operation.check()
        if self.key is not None:
            validate.name(self.key, "key")
            if not self.digest:  # sessions send one; others rely on the server to compare
                packed = msgspec.msgpack.encode(self.operations, enc_hook=array.tobytes)
                self.digest = hashlib.blake2b(packed, digest_size=16).digest()


# queries


class BrowseRequest(Struct):
    """What to look for; `text` is bytes that the payload contains, `after` continues a page."""

    queue: str
    partition: str | None = None
    group: str | None = None
    text: bytes | None = None
    since: int | None = None
    until: int | None = None
    limit: int = 100
    seconds: float = 2.0
    after: tuple[int, ...] | None = None

    def check(self) -> Self:
        validate.name(self.queue, "queue")
        validate.integer(self.limit, "limit", 1, 10_000)
        validate.seconds(self.seconds, "seconds")
        if self.after is not None and len(self.after) != 2:
            raise InvalidArgument("after must be the `next` of the previous page")
        return self


class DeadFilter(Struct):
    """Which dead letters of a queue are meant: those that fit everything given; times are of death.

    `error` is a part of the reason it died for, or of the last error it failed with.
    """

    queue: str
    group: str | None = None
    partition: str | None = None
    kind: str | None = None
    since: int | None = None
    until: int | None = None
    error: str | None = None
    ids: list[int] | None = None

    def check(self) -> Self:
        validate.name(self.queue, "queue")
        validate.kind(self.kind)
        if self.ids is not None and len(self.ids) > MAX_OPERATIONS:
            raise _too_many(len(self.ids))
        return self


# readers


class ReaderRequest(Struct):
    """What a Spark planner asks for: the next hand-out after the number `start`, up to the limits.

    With `until`, only messages pushed up to that time.
    """

    reader: str
    epoch: int
    start: int
    rows: int
    bytes: int
    lease_seconds: float
    until: int | None = None

    def check(self) -> None:
        validate.name(self.reader, "reader")
        validate.integer(self.epoch, "epoch", 0, LARGEST)
        validate.integer(self.start, "start", 0, LARGEST)
        validate.integer(self.rows, "rows", 0, LARGEST)
        validate.integer(self.bytes, "bytes", 1, LARGEST)
        validate.positive(self.lease_seconds, "lease_seconds")
        if self.until is not None:
            validate.integer(self.until, "until", 0, LARGEST)


class Hold(Struct):
    """Messages that stay leased when their batch is done, and do not use max_ack_pending."""

    token: int
    lane: int
    ranges: Ranges

    def check(self) -> None:
        check_token(self.token)
        check_ranges(self.ranges)


class BatchCommit(Struct):
    """The end of a batch: what to publish, what to settle how, what to hold. With a `query`, what
    that query read in this batch is acked too, unless its reader settles manually. `also` is done in
    the same commit."""

    producer: str
    batch: int
    stages: list[str] = []
    query: str = ""
    run: str = ""
    settles: list[SettleOperation] = []
    holds: list[Hold] = []
    also: list[Operation] = []

    def check(self) -> None:
        check_batch(self.producer, self.batch)
        if self.query:
            validate.name(self.query, "query")
        for part in (*self.settles, *self.holds, *self.also):
            part.check()


def check_batch(producer: object, batch: object) -> None:
    """Validate what names a batch of staged messages."""
    validate.name(producer, "producer")
    validate.integer(batch, "batch", 0, LARGEST)


def check_queue_changes(queue: str, changes: dict[str, Any], *_: object) -> None:
    """Validate options of a queue that were sent, and bring them into their stored form."""
    validate.name(queue, "queue")
    changes.update(validate.queue_options(changes))


def check_group_changes(queue: str, name: str, changes: dict[str, Any], *_: object) -> None:
    """Validate options of a group that were sent; `start` is a time in its stored form already."""
    validate.name(queue, "queue")
    validate.name(name, "group")
    changes.update(validate.group_options({k: v for k, v in changes.items() if k != "start"}))
    start = changes.get("start", "all")
    if start not in ("all", "new"):
        validate.integer(start, "start", 0, 1 << 62)


def check_all(value: Any) -> None:
    """Run the `check` of every request inside a value: a struct, a list or a dictionary of them."""
    if isinstance(value, Struct):
        check = getattr(value, "check", None)
        if check is not None:
            check()
    elif isinstance(value, list | tuple):
        for item in value:
            check_all(item)
    elif isinstance(value, dict):
        for item in value.values():
            check_all(item)


def _too_many(count: int) -> InvalidArgument:
    return InvalidArgument(
        f"a request must have at most {MAX_OPERATIONS:,} items of each kind, got {count:,}"
    )


_NO_NUMBERS = frozenset({str, bytes, bool, type(None)})


def check_numbers(value: Any) -> None:
    """Refuse numbers that the store cannot hold, and lists of too many items that are no numbers,
    wherever they are in a value."""
    kind = type(value)
    if kind in _NO_NUMBERS:
        return
    if kind is int:
        if not -(1 << 63) <= value < 1 << 63:
            raise InvalidArgument(f"an integer must have at most 64 bits, got {value}")
    elif kind is float:
        if not isfinite(value):
            raise InvalidArgument(f"a number must be finite, got {value}")
    elif kind is list or kind is tuple:
        if len(value) > MAX_OPERATIONS and type(value[0]) is not int:
            raise _too_many(len(value))
        for item in value:
            check_numbers(item)
    elif kind is dict:
        if len(value) > MAX_OPERATIONS and type(next(iter(value.values()))) is not int:
            raise _too_many(len(value))
        for key, item in value.items():
            check_numbers(key)
            check_numbers(item)
    elif isinstance(value, Struct):
        for item in structs.astuple(value):
            if type(item) not in _NO_NUMBERS:
                check_numbers(item)


def check_seek(_queue: str, _group: str, to: str | int, time: bool, *_: object) -> None:
    """Validate where to seek: `start`, `end`, a time in microseconds, or a sequence number."""
    if isinstance(to, str):
        validate.one_of(to, "to", ("start", "end"))
    else:
        validate.integer(to, "to", 0, 1 << 62 if time else MAX_SEQUENCE)
