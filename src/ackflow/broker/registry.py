"""Every verb of the broker that can be called from afar: its name, its role, and how its arguments
are checked before they reach the broker."""

from collections.abc import Callable, Iterable
from inspect import signature
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_type_hints

import msgspec

from .. import options, validate
from ..dialects.pushpop import lock
from ..errors import InvalidArgument
from ..options import GroupOptions, QueueOptions
from ..ranges import Ranges
from ..remote.wire import Codec, Popped
from ..session import encoding
from .core import admin, dead_letters, leases, settle, stage, transactions
from .core.handout import Handout
from .core.pop import PopRequest
from .core.push import Chunk, PushRequest
from .core.settle import Mark
from .readers import commit, verbs
from .views import browse, peek, stats, why

Role = Literal["read-only", "read-write", "admin"]


class Verb(NamedTuple):
    """A verb: `looks` when it only reads; `queues` names the queues its arguments speak of, None
    when they cannot tell (a token may be of any queue)."""

    name: str
    run: Callable[..., Any]
    looks: bool
    role: Role
    arguments: Any
    defaults: tuple[Any, ...]
    result: Any
    check: Callable[..., None]
    queues: Callable[..., Iterable[str]] | None
    reads: Codec
    answers: Codec


def _nothing(*_: object) -> None:
    """Checked by the verb itself."""


def _first(name: str, *_: object) -> Iterable[str]:
    return [name]


# What is sent from afar is checked as `Session` checks what it is given.


def check_push(request: PushRequest) -> None:
    for chunk in request.chunks:
        _chunk(chunk)
    if request.key is not None:
        validate.name(request.key, "key")
        request.digest = encoding.digest_of(request.chunks)


def _chunk(chunk: Chunk) -> None:
    validate.name(chunk.queue, "queue")
    validate.name(chunk.partition, "partition")
    validate.priority(chunk.priority)
    if chunk.delay is not None:
        validate.seconds(chunk.delay, "delay")
    if chunk.at is not None:
        validate.whole(chunk.at, "at", 0, 1 << 62)
    if chunk.whole:
        raise InvalidArgument("a chunk that is sent says where each of its messages ends")
    ends = chunk.ends.tolist()
    if not ends or ends[0] < 0 or ends[-1] != len(chunk.data) or sorted(ends) != ends:
        raise InvalidArgument("the offsets of a chunk rise and the last is the size of its data")
    if len(ends) > options.MAX_SEGMENT_COUNT or len(chunk.data) > options.MAX_PAYLOAD:
        raise InvalidArgument("a chunk is too large; send several")
    if chunk.rest is not None:
        rest = chunk.rest
        _set(rest.binary)
        places = [*rest.txids, *rest.headers, *(at - 1 for at in rest.binary[1::2])]
        if any(not 0 <= place < len(ends) for place in places):
            raise InvalidArgument("a chunk speaks of messages that are not in it")
        for txid in rest.txids.values():
            validate.name(txid, "transaction_id")
        for headers in rest.headers.values():
            validate.headers(headers)


def check_pop(request: PopRequest) -> None:
    validate.name(request.queue, "queue")
    validate.name(request.group, "group")
    validate.name(request.consumer, "consumer")
    if request.batch != 0:
        validate.batch(request.batch)
    validate.dialect(request.dialect)
    if request.lease_seconds is not None:
        validate.positive(request.lease_seconds, "lease_seconds")
    if request.partition is not None:
        validate.name(request.partition, "partition")
    if request.partitions is not None:
        validate.whole(request.partitions, "partitions", 1, 10_000)
    if request.token is not None:
        _token(request.token)


def _token(token: int, *_: object) -> None:
    validate.whole(token, "token", -(1 << 63), (1 << 63) - 1)


def _set(which: Ranges) -> None:
    """A range set as it must be: boundaries that rise, in pairs."""
    if len(which) % 2 or any(b <= a for a, b in pairwise(which)):
        raise InvalidArgument("a set of sequences is a list of rising boundaries, in pairs")
    if which and not 0 <= which[0] < which[-1] <= 1 << 48:
        raise InvalidArgument("a sequence is from 0 on")


def _marks(token: int, marks: list[Mark], *_: object) -> None:
    _token(token)
    for mark in marks:
        mark.verdict.check()
        if mark.ranges is not None:
            if mark.lane is None:
                raise InvalidArgument("a set of sequences needs its lane")
            _set(mark.ranges)


def _lock(queue: str, group: str, token: int | None, verdict: settle.Verdict, *_: object) -> None:
    validate.name(queue, "queue")
    validate.name(group, "group")
    if token is not None:
        _token(token)
    verdict.check()


def _many_marks(marks: dict[int, list[Mark]], *_: object) -> None:
    for token, some in marks.items():
        _marks(token, some)


def _transaction(request: transactions.TransactionRequest, *_: object) -> None:
    for operation in request.operations:
        match operation:
            case transactions.Settles(token, marks):
                _marks(token, marks)
            case transactions.Pushes(push):
                check_push(push)
            case transactions.Puts(key, value):
                validate.name(key, "key")
                msgspec.json.decode(value)
            case transactions.Deletes(key):
                validate.name(key, "key")


def _stage(producer: str, batch: int, chunks: list[Chunk], *_: object) -> None:
    validate.name(producer, "producer")
    validate.whole(batch, "batch", 0, 1 << 60)
    for chunk in chunks:
        _chunk(chunk)
        if chunk.at is not None:
            raise InvalidArgument(encoding.STAGED_AT)


def _publish(
    producer: str,
    batch: int,
    stages: list[str],
    also: transactions.TransactionRequest | None,
    *_: object,
) -> None:
    validate.name(producer, "producer")
    validate.whole(batch, "batch", 0, 1 << 60)
    if also is not None:
        _transaction(also)


def _options(kind: type[QueueOptions] | type[GroupOptions], given: dict[str, Any]) -> None:
    """Options as they are stored; what cannot be is refused by name."""
    check = validate.queue_options if kind is QueueOptions else validate.group_options
    given.update(check({k: v for k, v in given.items() if k != "start"}))
    start = given.get("start", "all")
    if start not in ("all", "new"):
        validate.whole(start, "start", 0, 1 << 62)


def _configure(queue: str, given: dict[str, Any], *_: object) -> None:
    validate.name(queue, "queue")
    _options(QueueOptions, given)


def _group(queue: str, name: str, given: dict[str, Any], *_: object) -> None:
    validate.name(queue, "queue")
    validate.name(name, "group")
    _options(GroupOptions, given)


def _browse(request: browse.BrowseRequest, *_: object) -> None:
    validate.whole(request.limit, "limit", 1, 10_000)
    validate.seconds(request.seconds, "seconds")
    request.seconds = min(request.seconds, 10.0)
    if request.after is not None and len(request.after) != 2:
        raise InvalidArgument("after is the `next` of a page before")


def _peek(_: str, group: str, limit: int, *__: object) -> None:
    validate.name(group, "group")
    validate.whole(limit, "limit", 1, 10_000)


def _follow(
    _: str, __: str | None, ___: dict[int, int] | None, last: int, limit: int, *____: object
) -> None:
    validate.whole(last, "last", 0, 10_000)
    validate.whole(limit, "limit", 1, 10_000)


def _dead(which: dead_letters.DeadFilter, *_: object) -> None:
    validate.name(which.queue, "queue")


def _lease_next(request: verbs.ReaderRequest) -> None:
    validate.whole(request.rows, "rows", 0, 1 << 60)
    validate.whole(request.bytes, "bytes", 1, 1 << 60)
    validate.positive(request.lease_seconds, "lease_seconds")


def _reader(*arguments: object) -> None:
    """The verbs of a reader that may lease end with the time of it."""
    validate.positive(arguments[-1], "lease_seconds")


def _fetch(_: str, __: int, ___: int, lane: int, token: int, which: Ranges, *____: int) -> None:
    _token(token)
    _set(which)
    if not which:
        raise InvalidArgument("a part of a batch has at least one message")


def _judge(settles: list[transactions.Settles], holds: list[commit.Hold]) -> None:
    for some in settles:
        _marks(some.token, some.marks)
    for one in holds:
        _token(one.token)
        _set(one.ranges)


def _commit_batch(request: commit.BatchCommit) -> None:
    validate.name(request.producer, "producer")
    validate.whole(request.batch, "batch", 0, 1 << 60)
    _judge(request.settles, request.holds)


def _of_chunks(_: str, __: int, chunks: list[Chunk], *___: object) -> Iterable[str]:
    return {chunk.queue for chunk in chunks}


def _of_filter(which: dead_letters.DeadFilter, *_: object) -> Iterable[str]:
    return [which.queue]


def _of_transaction(request: transactions.TransactionRequest, *_: object) -> Iterable[str]:
    pushes = [o.request for o in request.operations if isinstance(o, transactions.Pushes)]
    return {chunk.queue for push in pushes for chunk in push.chunks}


def _verb(
    run: Callable[..., Any],
    role: Role,
    check: Callable[..., None] = _nothing,
    queues: Callable[..., Iterable[str]] | None = _first,
    *,
    looks: bool = False,
    name: str | None = None,
) -> Verb:
    hints = get_type_hints(run)
    parameters = list(signature(run).parameters.values())[1:]
    defaults = tuple(None if p.default is p.empty else p.default for p in parameters)
    result = hints.pop("return")
    hints.pop("tx")
    if run is admin.configure_group:
        result = None  # the row is nobody's business
    if result is Handout:
        result = Popped
    arguments = tuple.__class_getitem__(tuple(hints.values()))
    return Verb(
        name or run.__name__, run, looks, role, arguments, defaults, result, check, queues,
        Codec(tuple.__class_getitem__((bool, arguments))), Codec(result),
    )  # fmt: skip


_ALL = [
    _verb(settle.settle, "read-write", _marks, None),
    _verb(settle.settle_many, "read-write", _many_marks, None),
    _verb(settle.extend, "read-write", _token, None),
    _verb(lock.settle_lock, "read-write", _lock),
    _verb(leases.read, "read-write", _token, None),
    _verb(transactions.transact, "read-write", _transaction, _of_transaction),
    _verb(stage.stage, "read-write", _stage, _of_chunks),
    _verb(stage.publish, "read-write", _publish, None),
    _verb(admin.configure, "read-write", _configure),
    _verb(admin.configure_group, "read-write", _group),
    _verb(admin.pause, "read-write"),
    _verb(admin.seek, "read-write"),
    _verb(admin.purge, "admin"),
    _verb(admin.delete_queue, "admin"),
    _verb(admin.delete_group, "admin"),
    _verb(admin.delete_message, "read-write"),
    _verb(dead_letters.redrive, "read-write", _dead, _of_filter),
    _verb(dead_letters.purge_dead, "admin", _dead, _of_filter),
    _verb(why.why, "read-only"),
    _verb(stats.queues, "read-only", queues=lambda *_: [], looks=True),
    _verb(stats.queue_stats, "read-only", looks=True),
    _verb(stats.group_stats, "read-only", looks=True),
    _verb(stats.partitions, "read-only", looks=True),
    _verb(stats.leases, "read-only", looks=True),
    _verb(stats.progress, "read-only", looks=True),
    _verb(stats.value, "read-only", queues=lambda *_: [], looks=True),
    _verb(stats.values, "read-only", queues=lambda *_: [], looks=True),
    _verb(stats.overdue, "read-only", queues=lambda *_: [], looks=True),
    _verb(browse.get, "read-only", looks=True, name="message"),
    _verb(browse.browse, "read-only", _browse, lambda request, *_: [request.queue], looks=True),
    _verb(peek.peek, "read-only", _peek, looks=True),
    _verb(peek.follow, "read-only", _follow, looks=True),
    _verb(dead_letters.entries, "read-only", _dead, _of_filter, looks=True, name="dead_letters"),
    _verb(dead_letters.summary, "read-only", looks=True, name="dead_summary"),
    _verb(dead_letters.count, "read-only", _dead, _of_filter, looks=True, name="dead_count"),
    _verb(verbs.start_reader, "read-write", queues=lambda _, queue, *__: [queue]),
    _verb(verbs.is_idle, "read-write", queues=None, looks=True, name="reader_idle"),
    _verb(verbs.lease_next, "read-write", _lease_next, None),
    _verb(verbs.settle_to, "read-write", _reader, None),
    _verb(verbs.hand_over, "read-write", _reader, None),
    _verb(verbs.keep, "read-write", _reader, None, name="keep_reader"),
    _verb(verbs.fetch, "read-write", _fetch, None, looks=True, name="reader_fetch"),
    _verb(verbs.mark_bad, "read-write", _fetch, None),
    _verb(commit.bind, "read-write", queues=None, name="bind_batch"),
    _verb(commit.commit_batch, "read-write", _commit_batch, None),
    _verb(commit.judge, "read-write", _judge, None),
    _verb(stage.drop_stage, "read-write", queues=None),
]
VERBS = {verb.name: verb for verb in _ALL}
BY_FUNCTION = {verb.run: verb for verb in _ALL}
