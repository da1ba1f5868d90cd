"""What the wire and a router have to know of a verb: declared where it is defined, with `@verb`.

    @verb("read-write", queue="queue_name", repeatable=False, synced=True)
    def purge(tx: Tx, queue_name: str, partition: str | None = None) -> int: ...

The decorator registers the function and returns it unchanged, so that a verb costs no more to call.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, Literal, TypeVar

from msgspec import Struct, structs

from .. import validate
from . import requests
from .reach.merging import PLAIN, Several
from .requests import (
    BatchCommit,
    BrowseRequest,
    Chunk,
    DeadFilter,
    DeleteOperation,
    Hold,
    PopRequest,
    PutOperation,
    ReaderRequest,
    SettleOperation,
)

F = TypeVar("F", bound=Callable[..., Any])
Role = Literal["read-only", "read-write", "admin"]
Names = tuple[str, ...]


class QueueRequest(Struct):
    """A request about one queue; those of the wire are in `requests`."""

    queue: str


@dataclass(slots=True)
class Scope:
    """What a call touches: queues by name, what belongs to queues, and whether any keyed value.

    `batches`: the batches of Spark queries, by query and number.
    """

    queues: set[str] = field(default_factory=set)
    leases: set[int] = field(default_factory=set)
    readers: set[str] = field(default_factory=set)
    producers: set[str] = field(default_factory=set)
    stages: set[str] = field(default_factory=set)
    batches: set[tuple[str, int]] = field(default_factory=set)
    values: bool = False

    @property
    def indirect(self) -> bool:
        """Whether it touches queues that only the database knows."""
        return bool(self.leases or self.readers or self.producers or self.stages or self.batches)


@dataclass(frozen=True, eq=False, slots=True)
class Verb:
    """A verb that can be called over HTTP, or routed to one of several databases.

    `queues` and `leases` name the parameters that hold a queue's name or a lease's token; so do
    `readers`, `producers` and `stages`, which belong to queues as well. `query_batch` names the two
    parameters that hold a Spark query and the number of its batch.
    `read_only`: it runs on a snapshot, beside the writer. `repeatable`: a client may send it again
    when the answer was lost. `synced`: it is on disk before it is answered, whatever the client
    asks for. `values`: it reads keyed values, which belong to no queue. `answers`: its result is
    sent back. `in_slices`: its answer may be `Unfinished`; the broker then does the rest. `wire`: it
    may be called over HTTP. `home`: it concerns all databases and is kept in the first of several.
    `several`: how it works over several databases, see `merging`.
    """

    name: str
    run: Callable[..., Any]
    role: Role
    queues: Names
    leases: Names
    readers: Names
    producers: Names
    stages: Names
    query_batch: Names
    read_only: bool
    repeatable: bool
    synced: bool
    values: bool
    answers: bool
    in_slices: bool
    wire: bool
    home: bool
    several: Several
    extra_check: Callable[..., None] | None
    parameters: Names
    defaults: tuple[Any, ...]

    def complete(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The arguments of a call in the order of the parameters, with the defaults."""
        rest = zip(self.parameters[len(args) :], self.defaults[len(args) :], strict=True)
        return (*args, *[kwargs.get(name, default) for name, default in rest])

    def check(self, arguments: tuple[Any, ...]) -> None:
        """Validate the arguments of a call that was sent: its tokens and every request in it."""
        for name, value in zip(self.parameters, arguments, strict=True):
            if value == _PLAIN_ACK:  # of most calls
                continue
            requests.check_numbers(value)
            if name in self.leases:
                for token in _tokens(value):
                    requests.check_token(token)
            elif name in _LIMITS:
                if value is not None:
                    _LIMITS[name](value)
            else:
                requests.check_all(value)
        if self.extra_check is not None:
            self.extra_check(*arguments)

    def scope(self, arguments: tuple[Any, ...]) -> Scope:
        """What a call touches, found in its arguments and in every request inside them."""
        given = dict(zip(self.parameters, arguments, strict=True))
        scope = Scope(
            {given[name] for name in self.queues if given[name] is not None},
            {token for name in self.leases for token in _tokens(given[name])},
            {given[name] for name in self.readers},
            {given[name] for name in self.producers},
            {stage for name in self.stages for stage in _names(given[name])},
            values=self.values,
        )
        for part in structs_in(arguments):
            match part:
                case Chunk() | DeadFilter() | BrowseRequest() | PopRequest() | QueueRequest():
                    scope.queues.add(part.queue)
                case SettleOperation() | Hold():
                    scope.leases.add(part.token)
                case PutOperation() | DeleteOperation():
                    scope.values = True
                    if isinstance(part, PutOperation) and part.lease is not None:
                        scope.leases.add(part.lease)
                case ReaderRequest():
                    scope.readers.add(part.reader)
                case BatchCommit():
                    scope.producers.add(part.producer)
                    scope.stages.update(part.stages)
                    if part.query:
                        scope.batches.add((part.query, part.batch))
        if self.query_batch:
            query, batch = (given[name] for name in self.query_batch)
            scope.batches.add((query, batch))
        return scope


def _from(what: str, least: int, most: int) -> Callable[[object], object]:
    return lambda value: validate.integer(value, what, least, most)


def _after(value: object) -> None:
    """Validate where a page begins: after an id or a name, or by lane."""
    for one in value.values() if isinstance(value, dict) else [value]:
        if isinstance(one, int):
            validate.integer(one, "after", 0, requests.LARGEST)


# The limits of parameters that mean the same in every verb.
_LIMITS: dict[str, Callable[[object], object]] = {
    "limit": _from("limit", 1, 100_000),
    "offset": _from("offset", 0, requests.LARGEST),
    "before": _from("before", 0, requests.LARGEST),
    "after": _after,
    "batch": _from("batch", 0, requests.LARGEST),
    "epoch": _from("epoch", 0, requests.LARGEST),
    "number": _from("number", 0, requests.LARGEST),
    "start": _from("start", 0, requests.LARGEST),
    "end": _from("end", 0, requests.LARGEST),
    "size": _from("size", 1, requests.LARGEST),
    "reader": lambda value: validate.name(value, "reader"),
    "producer": lambda value: validate.name(value, "producer"),
    "seconds": lambda value: validate.seconds(value, "seconds"),
    "lease_seconds": lambda value: validate.positive(value, "lease_seconds"),
}

_PLAIN_ACK = [requests.Mark(requests.Verdict("ack"))]
_LISTS = (list, tuple)
_PLAIN = (int, str, bytes, float, type(None))  # they hold no struct

VERBS: dict[str, Verb] = {}
BY_FUNCTION: dict[Callable[..., Any], Verb] = {}
IN_SLICES: set[Callable[..., Any]] = set()  # the functions whose answer may be `Unfinished`


def verb(
    role: Role,
    *,
    name: str | None = None,
    queue: str | Names = (),
    lease: str | Names = (),
    reader: str | Names = (),
    producer: str | Names = (),
    stage: str | Names = (),
    query_batch: Names = (),
    read_only: bool = False,
    repeatable: bool = True,
    synced: bool = False,
    values: bool = False,
    answers: bool = True,
    in_slices: bool = False,
    wire: bool = True,
    home: bool = False,
    several: Several = PLAIN,
    check: Callable[..., None] | None = None,
) -> Callable[[F], F]:
    """Register a function over a `Tx` as a verb of the wire; see `Verb` for the facts."""

    def register(run: F) -> F:
        parameters = list(signature(run).parameters.values())[1:]
        found = Verb(
            name or run.__name__, run, role, _names(queue), _names(lease), _names(reader),
            _names(producer), _names(stage), query_batch, read_only, repeatable, synced, values,
            answers, in_slices, wire, home, several, check, tuple(p.name for p in parameters),
            tuple(None if p.default is p.empty else p.default for p in parameters),
        )  # fmt: skip
        named = {*found.queues, *found.leases, *found.readers, *found.producers, *found.stages,
                 *query_batch}  # fmt: skip
        assert named <= {*found.parameters}, found.name
        assert found.name not in VERBS, found.name
        BY_FUNCTION[run] = found
        if wire:
            VERBS[found.name] = found
        if in_slices:
            IN_SLICES.add(run)
        return run

    return register


def _names(given: str | Names | list[str]) -> Names:
    return (given,) if isinstance(given, str) else tuple(given)


def _tokens(value: Any) -> list[int]:
    """The lease tokens in an argument: one, none, or the keys of a dictionary."""
    return list(value) if isinstance(value, dict) else [] if value is None else [value]


def structs_in(value: Any) -> list[Struct]:
    """Every struct inside an argument."""
    found: list[Struct] = []
    _collect_structs(value, found)
    return found


def _collect_structs(value: Any, found: list[Struct]) -> None:
    inside: Iterable[Any]
    if isinstance(value, Struct):
        found.append(value)
        inside = structs.astuple(value)
    elif isinstance(value, dict):
        inside = value.values()
    elif isinstance(value, _LISTS):
        inside = value
    else:
        return
    for inner in inside:
        if not isinstance(inner, _PLAIN):
            _collect_structs(inner, found)
