"""Transactions: operations are collected, then committed all together or not at all."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

import msgspec

from .. import ids, validate
from ..broker.core.transactions import Result
from ..broker.requests import (
    MAX_VALUE,
    ONE_END,
    DeleteOperation,
    Operation,
    PushOperation,
    PutOperation,
    SettleOperation,
    SettleVerb,
    TransactionRequest,
    Verdict,
    digest_of,
)
from ..errors import InvalidArgument
from ..options import DEFAULT_PARTITION
from ..validate import Duration, Reason, Time
from . import encoding
from .encoding import encode
from .messages import Batch, Delivery, Receipt, deliveries, marks_of, to_verdict, verdict_of

COMMITTED = "the transaction was already committed; begin a new one"


class Committed(msgspec.Struct):
    """The result of a transaction, operation by operation."""

    results: list[Result]
    receipts: list[Receipt]

    @property
    def settled(self) -> int:
        """The number of messages that the transaction settled."""
        return sum(result.settled for result in self.results)


class Operations:
    """The operations of one transaction, in order. None runs before the commit."""

    def __init__(self, key: str | None) -> None:
        self._key = None if key is None else validate.name(key, "key")
        self._operations: list[Operation] = []
        self._headers: dict[str, str] = {}
        self.committed: Committed | None = None
        self.places: dict[int, list[list[int]] | None] = {}

    def ack(self, messages: Delivery | list[Any] | Batch[Any]) -> Self:
        """Acknowledge messages, if the transaction commits.

        Unlike outside a transaction, acknowledging a message a second time is an error.
        """
        return self.settle(messages, Verdict("ack"))

    def nack(self, messages: Delivery | list[Any] | Batch[Any], reason: Reason | None = None, *,
             delay: Duration | None = None) -> Self:  # fmt: skip
        """Report a failure, if the transaction commits."""
        return self.settle(messages, to_verdict("nack", reason, delay))

    def reject(
        self, messages: Delivery | list[Any] | Batch[Any], reason: Reason | None = None
    ) -> Self:
        """Reject messages, if the transaction commits."""
        return self.settle(messages, to_verdict("reject", reason))

    def settle(
        self, messages: Delivery | list[Any] | Batch[Any], verdict: Verdict | SettleVerb
    ) -> Self:
        """Settle messages with any verdict, if the transaction commits."""
        judged = verdict_of(verdict)
        some = deliveries(messages)
        for token, marks in marks_of((message, judged) for message in some).items():
            self._add(SettleOperation(token, marks))
        return self

    def push(
        self,
        queue: str,
        data: Any,
        *,
        partition: str = DEFAULT_PARTITION,
        priority: int = 0,
        delay: Duration | None = None,
        at: Time | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Self:
        """Push one message or a list of them, if the transaction commits.

        A push with a `key` that was pushed before adds nothing, as outside of a transaction.
        """
        request, places = encoding.request(
            queue, data, partition=partition, priority=priority, delay=delay, key=key, at=at,
            headers=self._with_headers(headers),
        )  # fmt: skip
        self._add(PushOperation(request))
        self.places[len(self._operations) - 1] = places
        return self

    def _with_headers(self, headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
        if not self._headers:
            return headers
        return {**(validate.headers(headers) if headers else {}), **self._headers}

    @contextmanager
    def headers(self, headers: Mapping[str, str]) -> Iterator[None]:
        """Set these headers on every message that is pushed in the block."""
        before, self._headers = self._headers, {**self._headers, **headers}
        try:
            yield
        finally:
            self._headers = before

    def queue(self, name: str) -> "TransactionPush[Self]":
        """Push in the fluent style: `.queue("next").partition("p").push([...])`.

        The final `push` returns the transaction.
        """
        return TransactionPush(self, name)

    def put(
        self,
        key: str,
        value: Any,
        *,
        expect: int | None = None,
        ttl: Duration | None = None,
        lease: Delivery | str | None = None,
    ) -> Self:
        """Set a keyed value; `expect` is its required version, 0 if the key must not exist.

        It ends after `ttl`, or with a lease: that of a message, or of a token. A lease that is over
        fails the transaction.
        """
        raw = encode(value)
        if len(raw) > MAX_VALUE:
            raise InvalidArgument(
                f"a value must have at most {MAX_VALUE:,} bytes, got {len(raw):,}"
            )
        operation = PutOperation(
            validate.name(key, "key"), raw, _expected(expect),
            validate.positive_or_none(ttl, "ttl"), _token(lease),
        )  # fmt: skip
        if operation.ttl is not None and operation.lease is not None:
            raise InvalidArgument(ONE_END)
        return self._add(operation)

    def puts(self, key: str) -> bool:
        """Whether the transaction sets this keyed value."""
        return any(isinstance(one, PutOperation) and one.key == key for one in self._operations)

    def delete(self, key: str, *, expect: int | None = None) -> Self:
        """Delete a keyed value; `expect` is the version it must have."""
        return self._add(DeleteOperation(validate.name(key, "key"), _expected(expect)))

    def add(self, operation: Operation) -> Self:
        """Add an operation given as a request struct; raises after the commit."""
        operation.check()
        return self._add(operation)

    @property
    def count(self) -> int:
        """The number of operations."""
        return len(self._operations)

    def include(self, other: "Operations") -> Self:
        """Add the operations of another transaction, which are then committed with this one."""
        self.check_open()
        self._operations += other._operations
        return self

    def _add(self, operation: Operation) -> Self:
        """Add an operation that is valid by construction."""
        self.check_open()
        self._operations.append(operation)
        return self

    def check_open(self) -> None:
        """Raise after the commit: another operation would be lost, or would run twice."""
        if self.committed is not None:
            raise InvalidArgument(COMMITTED)

    def request(self) -> TransactionRequest:
        """Return the operations as a request for the broker."""
        self.check_open()
        if self._key is None:
            return TransactionRequest(self._operations)
        digest = hashlib.blake2b(digest_size=16)
        for operation in self._operations:
            if isinstance(operation, PushOperation):
                digest.update(digest_of(operation.request.chunks))
            else:
                digest.update(msgspec.msgpack.encode(operation))
        return TransactionRequest(self._operations, self._key, digest.digest())


T = TypeVar("T", bound=Operations)


class TransactionPush(Generic[T]):
    """A builder for a push within a transaction."""

    def __init__(self, transaction: T, queue: str) -> None:
        self._transaction = transaction
        self._queue = queue
        self._chosen: dict[str, Any] = {}

    def partition(self, name: str) -> Self:
        """Push to this partition."""
        self._chosen["partition"] = name
        return self

    def priority(self, level: int) -> Self:
        """Push with this priority."""
        self._chosen["priority"] = level
        return self

    def delay(self, seconds: Duration) -> Self:
        """Deliver after this delay."""
        self._chosen["delay"] = seconds
        return self

    def push(self, data: Any) -> T:
        """Push one message or a list of them, if the transaction commits."""
        return self._transaction.push(self._queue, data, **self._chosen)


class TransactionSession(Protocol):
    """The method of a session that a transaction uses."""

    def commit(self, operations: Operations) -> Committed: ...


class Transaction(Operations):
    """A transaction; `with q.transaction() as t:` commits at the end, unless the block raises."""

    def __init__(self, session: TransactionSession, key: str | None) -> None:
        super().__init__(key)
        self._session = session

    def commit(self) -> Committed:
        """Run all operations in one database transaction; a second commit raises."""
        self.committed = self._session.commit(self)
        return self.committed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and self.committed is None:
            self.commit()


def _expected(value: int | None) -> int | None:
    return None if value is None else validate.integer(value, "expect", 0, 1 << 60)


def _token(lease: Delivery | str | None) -> int | None:
    if isinstance(lease, Delivery):
        if lease._share.origin.token is None:
            raise InvalidArgument("the message was delivered without a lease")
        return lease._share.origin.token
    return None if lease is None else ids.parse_token(lease)
