"""Buffers pushes and settlements in memory and sends them together: by size, by time, on close.

Nothing is lost while the process lives: calls that fail are kept and retried. A retried push has
the same key, so it is never stored twice. Pushes are sent before the settlements buffered with
them, so a consumer that pushes a result and acks its input loses neither.
"""

import atexit
import logging
import os
import secrets
import threading
from collections.abc import Mapping
from typing import Any, Protocol, Self

from .. import validate
from ..broker.broker import Verbs
from ..broker.requests import Chunk, PushRequest, Verdict, digest_of
from ..clock import Signal, micros
from ..errors import AckflowError, SessionClosed
from ..options import DEFAULT_PARTITION
from ..validate import Duration, Reason, Time
from . import encoding
from .messages import Delivery, Settled, deliveries, record, to_verdict

log = logging.getLogger("ackflow")
SIZE = 100
SECONDS = 1.0
MOST = 100  # the buffer holds at most this many times `size`; then push and ack block
AGAIN_SECONDS = 1.0
IDLE_SECONDS = 3600.0
Settlements = list[tuple[Delivery, Verdict]]


class BufferSession(Protocol):
    """The methods of a session that a buffer uses."""

    @property
    def broker(self) -> Verbs: ...
    def settle(self, verdicts: Settlements) -> Settled: ...
    def leave(self, part: Any) -> None: ...


class Buffer:
    """Buffers pushes, acks and nacks from any thread; a background thread sends them.

    It sends when `size` operations are buffered, when the oldest is `seconds` old, or when half of
    the remaining time of a lease to be settled has passed, whichever comes first. A push is on
    disk only after `flush` or `close` has returned.
    """

    def __init__(
        self, session: BufferSession, size: int = SIZE, seconds: Duration = SECONDS
    ) -> None:
        self._session = session
        self._pid = os.getpid()
        self._size = validate.integer(size, "size", 1, 100_000)
        self._seconds = micros(validate.seconds(seconds, "seconds"))
        self._clock = session.broker.clock
        self._changed = threading.Condition()
        self._signal = Signal()
        self._chunks: list[Chunk] = []
        self._settles: Settlements = []
        self._sealed: list[PushRequest | Settlements] = []
        self._gathered = 0
        self._due: int | None = None
        self._accepted = self._sent = 0
        self._begun = self._ended = 0  # attempts to send
        self._error: AckflowError | None = None
        self._closing = self._closed = False
        self.refused = 0
        """The number of settlements that came too late; those messages are delivered again."""
        self._thread = threading.Thread(target=self._run, name="ackflow-buffer", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @property
    def pending(self) -> int:
        """The number of pushes and settlements that are not sent yet."""
        return self._accepted - self._sent

    @property
    def full(self) -> bool:
        """Whether the buffer is full, so that `push`, `ack` and `nack` block."""
        return self.pending >= MOST * self._size

    def push(
        self,
        queue: str,
        data: Any,
        *,
        partition: str = DEFAULT_PARTITION,
        priority: int = 0,
        delay: Duration | None = None,
        at: Time | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Buffer messages to be pushed; invalid arguments raise immediately."""
        request, _ = encoding.request(
            queue, data, partition=partition, priority=priority, delay=delay, key=None, at=at,
            headers=headers,
        )  # fmt: skip
        with self._room():
            self._chunks += request.chunks
            self._accept(_count(request), self._clock.steady() + self._seconds)

    def ack(self, messages: Delivery | list[Delivery]) -> None:
        """Buffer messages to be acknowledged."""
        self.settle(messages, Verdict("ack"))

    def nack(
        self,
        messages: Delivery | list[Delivery],
        reason: Reason | None = None,
        *,
        delay: Duration | None = None,
    ) -> None:
        """Buffer messages to be nacked."""
        self.settle(messages, to_verdict("nack", reason, delay))

    def settle(self, messages: Delivery | list[Delivery], verdict: Verdict) -> None:
        """Buffer messages to be settled with any verdict."""
        verdict.check()
        some = deliveries(messages)
        record(some, verdict)
        begun, now = self._clock.steady(), self._clock.now()
        due = begun + self._seconds
        for message in some:
            end = message._share.origin.expires_at
            if end is not None:
                due = min(due, begun + max(0, end - now) // 2)
        with self._room():
            self._settles += [(message, verdict) for message in some]
            self._accept(len(some), due)

    def flush(self) -> None:
        """Send everything now; if that fails, raise, and keep the operations for a retry."""
        self._session.broker  # noqa: B018 - says so when this is another process
        with self._changed:
            wanted, mine = self._accepted, self._begun + 1
            while self._sent < wanted and not self._closed:
                if self._error is not None and self._ended >= mine:
                    raise self._error
                if self._begun < mine:  # an attempt already under way may postpone the next one
                    self._due = self._clock.steady()
                    self._signal.ring()
                self._changed.wait(1.0)
        if self._sent < wanted and self._error is not None:
            raise self._error

    def close(self) -> None:
        """Send everything and stop; if that fails, raise. `pending` is the number not sent."""
        if os.getpid() != self._pid:
            return  # in a forked child: the parent sends the rest, and the lock may be held
        with self._changed:
            self._closing = True
        try:
            self.flush()
        finally:
            self._closed = True
            self._signal.ring()
            if self._thread is not threading.current_thread():
                self._thread.join()
            atexit.unregister(self.close)
            self._session.leave(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _room(self) -> threading.Condition:
        """Wait until the buffer is not full; return its lock."""
        self._session.broker  # noqa: B018 - says so when this is another process
        with self._changed:
            while self.full and not self._closing:
                self._changed.wait(1.0)
            if self._closing:
                raise SessionClosed("the buffer is closed")
        return self._changed

    def _accept(self, n: int, due: int) -> None:
        self._accepted += n
        self._gathered += n
        if self._gathered >= self._size:
            due = self._clock.steady()
        if self._due is None or due < self._due:
            self._due = due
            self._signal.ring()

    # The methods below run in the background thread.

    def _run(self) -> None:
        self._clock.watch(self._signal)
        try:
            while not self._closed:
                self._signal.clear()
                if self._due is not None and self._due <= self._clock.steady():
                    self._send()
                due = self._due
                self._signal.wait(IDLE_SECONDS if due is None else self._clock.seconds_left(due))
        finally:
            self._clock.unwatch(self._signal)

    def _seal(self) -> list[PushRequest | Settlements]:
        """Turn the buffered operations into repeatable calls; each push gets a key."""
        with self._changed:
            self._begun += 1
            for chunks in encoding.in_parts(self._chunks, lambda chunk: len(chunk.data)):
                key, digest = secrets.token_hex(12), digest_of(chunks)
                self._sealed.append(PushRequest(chunks, key, digest))
            if self._settles:
                self._sealed.append(self._settles)
            self._chunks, self._settles, self._due, self._gathered = [], [], None, 0
            return list(self._sealed)

    def _send(self) -> None:
        error: AckflowError | None = None
        for call in self._seal():
            try:
                self._make(call)
            except AckflowError as failed:
                error = failed
                break
            with self._changed:
                self._sealed.pop(0)
                self._sent += _count(call)
                self._changed.notify_all()
        with self._changed:
            self._ended = self._begun
            self._error = error
            if error is not None:
                log.warning("%d buffered calls are kept and sent again: %s", self.pending, error)
                self._due = self._clock.steady() + micros(AGAIN_SECONDS)
            self._changed.notify_all()

    def _make(self, call: PushRequest | Settlements) -> None:
        if isinstance(call, PushRequest):
            self._session.broker.push(call)
            return
        for refusal in self._session.settle(call).refused:
            self.refused += 1
            log.warning("%s was settled too late: %s", refusal.message_id, refusal.message)


def _count(call: PushRequest | Settlements) -> int:
    if isinstance(call, PushRequest):
        return sum(chunk.count for chunk in call.chunks)
    return len(call)
