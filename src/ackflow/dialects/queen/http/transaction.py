"""Transactions in the Queen dialect: atomic pushes and acks."""

import uuid
from functools import partial
from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType

from ....broker.core.transactions import Result
from ....broker.requests import PushOperation
from ....errors import AckflowError, InvalidArgument, TransactionFailed
from ....ids import PartitionId
from ....server.http import Call, Response, json
from ..verbs.settle_by_name import NamedSettles, transact_named
from .ack import Ack, AckParser, check, refusal, token_of
from .common import allow_partitions, large_body_of
from .push import PushItem, PushResult, push_request, push_results


class Operation(Ack, rename="camel", kw_only=True, gc=False):
    """A push of `items` or an ack, according to `type`."""

    type: str
    items: list[PushItem] | None = None


class TransactionBody(Struct, rename="camel"):
    """Operations in order. `requiredLeases` must be live; they fence acks without a lease id."""

    operations: list[Operation] | None = None
    required_leases: list[str] | None = None
    kv: list[Raw] | None = None
    timers: list[Raw] | None = None


class OperationResult(Struct, rename="camel", gc=False):
    """The result of one pushed item or one ack."""

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


class TransactionResult(Struct, rename="camel", omit_defaults=True):
    transaction_id: str
    success: bool
    results: list[OperationResult]
    error: str | None = None
    reason: str | None = None


class Step:
    """One operation of the broker, and the operations of the request that it covers."""

    def __init__(self, operation: Any, given: list[Operation]) -> None:
        self.operation = operation
        self.given = given
        self.places: list[list[int]] = []

    @property
    def items(self) -> list[PushItem]:
        return self.given[0].items or []


async def transact(call: Call) -> Response:
    """Run all operations in one transaction; if one fails, none takes effect."""
    given = await large_body_of(call, TransactionBody)
    if given.operations is None:
        raise InvalidArgument("operations array required")
    if not given.operations:
        raise InvalidArgument("operations array cannot be empty")
    if given.kv or given.timers:
        # Ignoring a guard that the client relies on would be worse than an error.
        raise InvalidArgument("kv and timers in a transaction are not supported")
    size = sum(len(one.items or [0]) for one in given.operations)
    call.server.check_batch(size)
    steps = await call.server.compute(size, partial(_steps, call, given.operations))
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
    pushed = [
        [] if isinstance(step.operation, NamedSettles)
        else await push_results(call, step.items, result.places, step.places)
        for step, result in zip(steps, results, strict=True)
    ]  # fmt: skip
    return await call.server.compute(
        size, lambda: json(TransactionResult(id, True, _done(steps, results, pushed)))
    )


def _steps(call: Call, operations: list[Operation]) -> list[Step]:
    """Translate to operations of the broker; consecutive acks become one."""
    reader, steps = AckParser(call), list[Step]()
    for given in operations:
        if given.type == "push":
            if not given.items:
                raise InvalidArgument("a push operation needs items")
            request, places = push_request(call, given.items)
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
            raise InvalidArgument(
                f"the type of an operation must be push or ack, got {given.type!r}"
            )
    return steps


def _partitions(steps: list[Step]) -> set[PartitionId | None]:
    acks = [step.operation.items for step in steps if isinstance(step.operation, NamedSettles)]
    return {item.partition for items in acks for item in items}


def _done(
    steps: list[Step], results: list[Result], pushed: list[list[PushResult]]
) -> list[OperationResult]:
    done: list[OperationResult] = []
    for step, result, places in zip(steps, results, pushed, strict=True):
        if isinstance(step.operation, NamedSettles):
            for at, ack in enumerate(step.given):
                dead = at in result.dead
                done.append(OperationResult(len(done), "ack", True, ack.transaction_id, dlq=dead))
            continue
        for one in places:
            done.append(
                OperationResult(
                    len(done), "push", True, one.transaction_id, None, one.message_id,
                    one.partition_id, one.queue, one.status == "duplicate",
                )
            )  # fmt: skip
    return done


def _failure(id: str, steps: list[Step], failed: TransactionFailed) -> TransactionResult:
    """The result of a rolled back transaction; the failed operation carries the reason."""
    cause = failed.__cause__ if isinstance(failed.__cause__, AckflowError) else failed
    word, sentence = refusal(cause)
    at, done = _failed_index(steps, failed, cause), list[OperationResult]()
    kind = "TRANSACTION"
    for step in steps:
        names = isinstance(step.operation, NamedSettles)
        for one in step.given if names else step.items:
            why = sentence if len(done) == at else "rolled_back"
            kind = ("ACK" if names else "PUSH") + " operation" if len(done) == at else kind
            done.append(
                OperationResult(
                    len(done), "ack" if names else "push", False, one.transaction_id, why
                )
            )
    return TransactionResult(id, False, done, f"{kind} failed: {sentence}", word)


def _failed_index(steps: list[Step], failed: TransactionFailed, cause: AckflowError) -> int | None:
    """The index of the failed item or ack among all of them; None if no single one failed."""
    index = failed.details.get("index")
    if index is None:
        return None
    before = [
        len(s.given) if isinstance(s.operation, NamedSettles) else len(s.items) for s in steps
    ]
    return sum(before[:index]) + int(cause.details.get("item", 0))
