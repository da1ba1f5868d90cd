"""Transactions: settlements, pushes and small keyed values in one commit, all or nothing."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from msgspec import Struct, msgpack

from ...errors import (
    AckflowError,
    AlreadySettled,
    InvalidArgument,
    TransactionFailed,
)
from ...store.tx import Tx
from ..requests import (
    DeleteOperation,
    Operation,
    PushOperation,
    PutOperation,
    SettleOperation,
    TransactionRequest,
)
from ..verb import verb
from .push import Placed, push, recall_answer, remember_answer
from .settle import settle
from .values import delete, put

T = TypeVar("T")


class Result(Struct):
    """The result of one operation.

    It holds the positions of pushed messages, the number of settled messages, the version of a
    value, and the messages settled by name that became dead letters.
    """

    places: list[list[Placed]] = []
    settled: int = 0
    version: int = 0
    dead: list[int] = []


_results = msgpack.Decoder(list[Result]).decode


@verb("read-write", synced=True)
def transact(tx: Tx, request: TransactionRequest) -> list[Result]:
    """Run all operations or none; a repeat with the same key returns the first result."""
    known = recall_answer(tx, request.key, request.digest)
    if known is not None:
        return _results(known)
    with tx.savepoint():
        results = run_all(tx, request.operations, _run)
        if request.key is not None:
            remember_answer(tx, request.key, request.digest, msgpack.encode(results))
    return results


def run_all(tx: Tx, operations: Iterable[T], run: Callable[[Tx, T], Result]) -> list[Result]:
    """Run operations in order; the first error aborts all of them and names its operation."""
    results = []
    for index, operation in enumerate(operations):
        try:
            results.append(run(tx, operation))
        except InvalidArgument:
            raise
        except AckflowError as refusal:
            raise TransactionFailed(
                f"operation {index} was refused, so nothing was done: {refusal.message}",
                index=index,
                code=refusal.code,
            ) from refusal
    return results


def run_push(tx: Tx, operation: PushOperation) -> Result:
    (answer,) = push(tx, [operation.request])
    if isinstance(answer, AckflowError):
        raise answer
    return Result(places=answer)


def _run(tx: Tx, operation: Operation) -> Result:
    match operation:
        case SettleOperation():
            return Result(settled=_settle(tx, operation))
        case PushOperation():
            return run_push(tx, operation)
        case PutOperation():
            return Result(version=put(tx, operation))
        case DeleteOperation():
            delete(tx, operation)
            return Result()


def _settle(tx: Tx, operation: SettleOperation) -> int:
    """Settle; a repeated ack is an error too, because the first one already had its effects."""
    settled = 0
    for outcome in settle(tx, operation.token, operation.marks):
        if outcome.refused:
            raise outcome.refused[0].error
        if outcome.noop:
            raise AlreadySettled("the message was settled before this transaction")
        settled += outcome.settled
    return settled
