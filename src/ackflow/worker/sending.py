"""How a worker sends messages: outside a processor at once, inside one with its acknowledgement."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from .. import validate
from ..clock import SECOND
from ..errors import TransactionFailed
from ..options import DEFAULT_PARTITION
from ..session.messages import Receipt
from ..session.session import Session
from ..session.transaction import Committed, Operations
from ..validate import Duration, Time
from .coordination.unique import DAY, Unique

if TYPE_CHECKING:
    from ..session.within import Within
    from .context import Context
    from .worker import Worker


class Push(Struct):
    """One push on its way to the queue. Middleware may change it in `before_push`.

    `message_id` is known after a push that went out at once; a push inside a processor goes out
    with the acknowledgement.
    """

    queue: str
    data: Any
    partition: str = DEFAULT_PARTITION
    priority: int = 0
    delay: Duration | None = None
    at: Time | None = None
    key: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    task: str | None = None
    unique: str | None = None
    message_id: str | None = None
    within: "Within | None" = None  # the user's own transaction, which it is a part of
    error: BaseException | None = None  # why it was refused
    duplicate: bool = False  # not pushed: another message with the unique key waits or runs
    notes: dict[str, Any] = field(default_factory=dict)  # kept by middleware from before to after

    def into(self, operations: Operations, session: Session) -> None:
        """Add the push to a transaction, unless its unique key is taken."""
        if self.unique is not None:
            header = Unique(session, self._wait_seconds(session)).claim(operations, self.unique)
            if header is None:
                self.duplicate = True
                return
            self.headers.update(header)
        operations.push(
            self.queue, self.data, partition=self.partition, priority=self.priority,
            delay=self.delay, at=self.at, key=self.key, headers=self.headers or None,
        )  # fmt: skip

    def through(self, session: Session) -> None:
        """Push now, unless its unique key is taken."""
        if self.unique is not None:
            return self._in_transaction(session.transaction(), session, session.commit)
        receipt = session.push(
            self.queue, self.data, partition=self.partition, priority=self.priority,
            delay=self.delay, at=self.at, key=self.key, headers=self.headers or None,
        )  # fmt: skip
        self._pushed(receipt)

    def inside(self, within: "Within", worker: "Worker") -> None:
        """Push in the user's own transaction, unless its unique key is taken."""
        if self.unique is not None:
            return self._in_transaction(Operations(None), worker.session, within.commit)
        receipt = within.push(
            self.queue, self.data, partition=self.partition, priority=self.priority,
            delay=self.delay, at=self.at, key=self.key, headers=self.headers or None,
        )  # fmt: skip
        self._pushed(receipt)

    def _in_transaction(
        self, t: Operations, session: Session, commit: Callable[[Operations], Committed]
    ) -> None:
        self.into(t, session)
        if self.duplicate:
            return
        try:
            self._pushed(commit(t).receipts[0])
        except TransactionFailed as error:
            if error.details.get("code") != "version_conflict":
                raise
            self.duplicate = True

    def _pushed(self, receipt: Receipt) -> None:
        self.message_id = receipt[0] if len(receipt) == 1 else None

    def _wait_seconds(self, session: Session) -> float:
        """How long the message may wait and keep its unique key: a day after it is due."""
        delay = 0.0
        if self.delay is not None:
            delay = validate.seconds(self.delay, "delay")
        elif self.at is not None:
            due = validate.time(self.at, "at")
            delay = max(0.0, (due - session.broker.clock.now()) / SECOND)
        return DAY + delay


class ProcessorSession:
    """The session of a processor: what it sends goes out in the transaction of its acknowledgement.

    If the processor raises, nothing is sent. `outside` is the worker's own session, for what must
    happen at once.
    """

    def __init__(self, outside: Session, send: Callable[[Push, Operations], None]) -> None:
        self.outside = outside
        self._send = send
        self._operations: Operations | None = None

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
        unique: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Push one message or a list of them, when the processor's message is settled."""
        given = dict(headers or {})
        self.send(Push(queue, data, partition, priority, delay, at, key, given, unique=unique))

    def put(self, key: str, value: Any, *, expect: int | None = None) -> None:
        """Set a keyed value in the same transaction; `expect` is its required version."""
        self.operations.put(key, value, expect=expect)

    def delete(self, key: str, *, expect: int | None = None) -> None:
        """Delete a keyed value in the same transaction."""
        self.operations.delete(key, expect=expect)

    def send(self, push: Push) -> None:
        """Add a push to the transaction, through the middleware of the worker."""
        self._send(push, self.operations)

    @property
    def operations(self) -> Operations:
        """The operations that are committed with the acknowledgement."""
        if self._operations is None:
            self._operations = Operations(None)
        return self._operations

    @property
    def empty(self) -> bool:
        """Whether there is nothing to commit beside the acknowledgement."""
        return self._operations is None

    def discard(self) -> None:
        """Drop everything that was collected."""
        self._operations = None

    def empty_copy(self) -> "ProcessorSession":
        """A session like this one, with nothing collected."""
        return ProcessorSession(self.outside, self._send)

    @contextmanager
    def apart(self) -> Iterator["Apart"]:
        """Collect what is sent in the block for another transaction than the acknowledgement."""
        before, self._operations = self._operations, None
        found = Apart()
        try:
            yield found
            found.operations = self._operations
        finally:
            self._operations = before


class Apart:
    """What was sent in a block; None: nothing."""

    operations: Operations | None = None


_current: ContextVar["Context | None"] = ContextVar("ackflow_worker_context", default=None)


def current() -> "Context | None":
    """The context of the message that is being processed here; None outside a processor."""
    return _current.get()
