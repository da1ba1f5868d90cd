"""Transactions in the Queen dialect: pushes and acks, all of them or none."""

import uuid
from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType

from ....broker.core.transactions import Result
from ....broker.requests import PushOperation
from ....errors import AckflowError, InvalidArgument, TransactionFailed
from ....server.http import Answer, Call, json
from ..verbs.settle_by_name import NamedSettles, transact_named
from .ack import Ack, Reader, check, refusal, token_of
from .common import allow_partitions, body_of
from .push import PushItem, pushed, requested


class Operation(Ack, rename="camel", kw_only=True):
    """A push of `items`, or an ack, by its `type`."""

    type: str
    items: list[PushItem] | None = None


class Transaction(Struct, rename="camel"):
    """Operations in order. `requiredLeases` must be live, and fence acks that name no lease."""

    operations: list[Operation] | None = None
    required_leases: list[str] | None = None
    kv: list[Raw] | None = None
    timers: list[Raw] | None = None


class Done(Struct, rename="camel"):
    """What became of one pushed item or one ack."""

    index: int
    type: str
    success: bool
    transaction_id: str | None
    error: str | None = None
    message_id: str | UnsetType = UNSET
    partition_id: str | UnsetType = UNSET
    queue_name: str | UnsetType = UNSET
    duplicate: bool | UnsetType = UNSET
    dlq: bool | UnsetType = UNSET


class Committed(Struct, rename="camel", omit_defaults=True):
    transaction_id: str
    success: bool
    results: list[Done]
    error: str | None = None
    reason: str | None = None


class Step:
    """One operation of the broker, and the operations of the request it stands for."""

    def __init__(self, operation: Any, given: list[Operation]) -> None:
        self.operation = operation
        self.given = given
        self.places: list[list[int]] = []

    @property
    def items(self) -> list[PushItem]:
        return self.given[0].items or []


async def transact(call: Call) -> Answer:
    """Run all operations in one transaction; refused, none of them has happened."""
    given = body_of(call, Transaction)
    if given.operations is None:
        raise InvalidArgument("operations array required")
    if not given.operations:
        raise InvalidArgument("operations array cannot be empty")
    if given.kv or given.timers:
        # A guard that is not looked at would be worse than none.
        raise InvalidArgument("kv and timers in a transaction are not served")
    call.server.check_batch(sum(len(one.items or [0]) for one in given.operations))
    steps = _steps(call, given.operations)
    await allow_partitions(call, _partitions(steps))
    id = str(uuid.uuid4())
    tokens = [token_of(text) for text in given.required_leases or []]
    required = [token for token in tokens if token is not None]
    try:
        if len(required) < len(tokens):
            raise TransactionFailed("a required lease does not exist, so nothing was done")
        results = await call.server.do(
            transact_named, True, [step.operation for step in steps], required
        )
    except TransactionFailed as failed:
        return json(_failure(id, steps, failed))
    return json(Committed(id, True, await _done(call, steps, results)))


def _steps(call: Call, operations: list[Operation]) -> list[Step]:
    """The operations of the broker; acks that follow each other are one."""
    reader, steps = Reader(call), list[Step]()
    for given in operations:
        if given.type == "push":
            if not given.items:
                raise InvalidArgument("a push operation has items")
            request, places = requested(call, given.items)
            steps.append(Step(PushOperation(request), [given]))
            steps[-1].places = places
        elif given.type == "ack":
            check(given)
            item = reader.one(given, given.consumer_group)
            if steps and isinstance(steps[-1].operation, NamedSettles):
                steps[-1].operation.items.append(item)
                steps[-1].given.append(given)
            else:
                steps.append(Step(NamedSettles([item]), [given]))
        else:
            raise InvalidArgument(f"the type of an operation is push or ack, not {given.type!r}")
    return steps


def _partitions(steps: list[Step]) -> set[int | None]:
    acks = [step.operation.items for step in steps if isinstance(step.operation, NamedSettles)]
    return {item.partition for items in acks for item in items}


async def _done(call: Call, steps: list[Step], results: list[Result]) -> list[Done]:
    done: list[Done] = []
    for step, result in zip(steps, results, strict=True):
        if isinstance(step.operation, NamedSettles):
            for at, ack in enumerate(step.given):
                dead = at in result.dead
                done.append(Done(len(done), "ack", True, ack.transaction_id, dlq=dead))
            continue
        for one in await pushed(call, step.items, result.places, step.places):
            done.append(
                Done(
                    len(done), "push", True, one.transaction_id, None, one.message_id,
                    one.partition_id, one.queue, one.status == "duplicate",
                )
            )  # fmt: skip
    return done


def _failure(id: str, steps: list[Step], failed: TransactionFailed) -> Committed:
    """Everything was undone; the operation that was the reason says why."""
    cause = failed.__cause__ if isinstance(failed.__cause__, AckflowError) else failed
    word, sentence = refusal(cause)
    at, done = _place(steps, failed, cause), list[Done]()
    kind = "TRANSACTION"
    for step in steps:
        names = isinstance(step.operation, NamedSettles)
        for one in step.given if names else step.items:
            why = sentence if len(done) == at else "rolled_back"
            kind = ("ACK" if names else "PUSH") + " operation" if len(done) == at else kind
            done.append(Done(len(done), "ack" if names else "push", False, one.transaction_id, why))
    return Committed(id, False, done, f"{kind} failed: {sentence}", word)


def _place(steps: list[Step], failed: TransactionFailed, cause: AckflowError) -> int | None:
    """Which of all pushed items and acks was refused, when it was one."""
    index = failed.details.get("index")
    if index is None:
        return None
    before = [
        len(s.given) if isinstance(s.operation, NamedSettles) else len(s.items) for s in steps
    ]
    return sum(before[:index]) + int(cause.details.get("item", 0))
