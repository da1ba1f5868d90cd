"""The session: the Python interface to a database or a server."""

import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar, Unpack, cast

from .. import ids, ranges, validate
from ..broker.broker import Verbs
from ..broker.core import dead_letters, leases, settle, stage
from ..broker.core.admin import admin
from ..broker.core.handout import Handout
from ..broker.core.transactions import transact
from ..broker.requests import Mark, PopRequest, SettleOperation, SettleVerb, Verdict
from ..errors import PASSING, AckflowError, InvalidArgument, SessionForked
from ..model import GroupStats, Upkeep, when
from ..options import (
    DEFAULT_PARTITION,
    QUEUE_MODE,
    Dialect,
    GroupOptionsDict,
    QueueOptions,
    QueueOptionsDict,
)
from ..validate import Duration, Reason, Time
from . import dead_letters as dead_letter_tools
from . import encoding
from .ack_stats import AckMeter, AckStats
from .background import BackgroundTasks
from .buffer import SECONDS, SIZE, Buffer
from .consumer import AutoAck, Consumer, Plan
from .dead_letters import ABOVE, EVERY_SECONDS, Alert
from .fluent import FluentQueue
from .lease import Lease
from .messages import (
    Batch,
    Delivery,
    Message,
    Receipt,
    Settled,
    deliveries,
    in_slices,
    judged,
    marks_of,
    record,
    to_verdict,
    waits,
)
from .next_batch import NextBatch
from .queries import Queries
from .transaction import Committed, Operations, Transaction

Messages = Delivery | Sequence[Delivery]
R = TypeVar("R")
AGAIN_SECONDS = 1.0


class Session(Queries, NextBatch):
    """Push, pop and settle messages, and query their state. Safe to use from several threads."""

    def __init__(self, broker: Verbs, consumer: str | None = None, place: str = "") -> None:
        self._broker = broker
        self._background = BackgroundTasks()
        self._acks = AckMeter()
        self._watching: weakref.finalize | None = None  # type: ignore[type-arg]
        self._place = place  # as it may be shown
        self._pid = os.getpid()
        given = f"{socket.gethostname()}:{self._pid}" if consumer is None else consumer
        self.consumer = validate.name(given, "consumer")

    # producing

    def push(
        self,
        queue: str,
        data: Any,
        *,
        partition: str = DEFAULT_PARTITION,
        priority: int = 0,
        delay: Duration | None = None,
        key: str | None = None,
        at: Time | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Receipt:
        """Append messages to a queue. They are on disk when this returns.

        A list or tuple is many messages, anything else is one; an `Item` brings settings of its
        own. They are delivered after `delay`, or from the time `at` on (an aware datetime, or
        seconds since 1970). A repeat with the same `key` adds nothing and returns the first
        receipt.
        """
        broker = self.broker
        request, places = self._encode(
            queue, data, partition=partition, priority=priority, delay=delay, key=key,
            whole=broker.whole, at=at, headers=headers,
        )  # fmt: skip
        return Receipt(broker.store.id, broker.push(request), places, key is not None)

    def stage(
        self,
        producer: str,
        batch: int,
        queue: str,
        data: Any,
        *,
        partition: str = DEFAULT_PARTITION,
        priority: int = 0,
        delay: Duration | None = None,
    ) -> str:
        """Write messages that stay invisible until the returned stage is published."""
        request, _ = self._encode(
            queue, data, partition=partition, priority=priority, delay=delay, key=None
        )
        return self.broker.do(stage.stage, True, producer, batch, request.chunks)

    def publish(
        self, producer: str, batch: int, stages: Iterable[str], also: Operations | None = None
    ) -> int:
        """Publish these stages and drop all others of the batch, with `also` in one commit.

        Returns the number of messages published, without those whose transaction id was known.
        A batch that was published before is left unchanged.
        """
        if also is not None and not isinstance(also, Operations):
            raise InvalidArgument("also must be a transaction that is not committed yet")
        request = None if also is None else also.request()
        named = validate.names(stages, "stages")
        answer = self.broker.do(stage.publish, True, producer, batch, named, request)
        if also is not None:
            also.committed = Committed([], [])
        return sum(p.stop - p.first for run in answer for p in run if not p.duplicate)

    # consuming

    def pop(
        self,
        queue: str,
        *,
        group: str = QUEUE_MODE,
        batch: int | None = None,
        wait: Duration = 0.0,
        lease_seconds: Duration | None = None,
        auto_ack: bool = False,
        partition: str | None = None,
        partitions: int | None = None,
        consumer: str | None = None,
        token: str | None = None,
        dialect: Dialect = "native",
        create: bool = True,
    ) -> Batch[Message]:
        """Lease up to `batch` messages (None: the group's default, usually 1), waiting up to `wait`
        seconds for the first.

        `auto_ack` acks them on delivery. `partition` restricts the pop to one partition;
        `partitions` is the largest number of partitions in a batch: 64 by default, one in an
        ordered group. With a `token` chosen by the caller, a repeated pop returns the same messages,
        even if their lease has ended. `dialect` decides the defaults of a new group. A queue that
        does not exist is created; with `create=False` it raises `QueueNotFound`.
        """
        request = self.pop_request(
            queue, group=group, batch=batch, lease_seconds=lease_seconds, auto_ack=auto_ack,
            partition=partition, partitions=partitions, consumer=consumer, token=token,
            dialect=dialect, create=create,
        )  # fmt: skip
        return self.take(request, validate.seconds(wait, "wait"))

    def take(self, request: PopRequest, wait: float) -> Batch[Message]:
        """Pop with a validated request."""
        return self.batch_of(self.broker.pop(request, wait))

    def pop_request(
        self,
        queue: str,
        *,
        group: str = QUEUE_MODE,
        batch: int | None = None,
        lease_seconds: Duration | None = None,
        auto_ack: bool = False,
        partition: str | None = None,
        partitions: int | None = None,
        consumer: str | None = None,
        token: str | None = None,
        dialect: Dialect = "native",
        create: bool = True,
    ) -> PopRequest:
        """Validate the arguments of a pop."""
        if batch is not None:
            validate.batch(batch)
        return PopRequest(
            queue, group, self.consumer if consumer is None else consumer, batch or 0,
            validate.seconds_or_none(lease_seconds, "lease_seconds"), auto_ack, partition,
            partitions, None if token is None else ids.parse_token(token), dialect, create=create,
        ).check()  # fmt: skip

    def read(self, token: str) -> Batch[Message]:
        """Read all messages of a lease again, settled or not.

        The counters of settled messages are lost: they show one delivery, as redelivered.
        """
        return self.batch_of(self.broker.do(leases.read, False, ids.parse_token(token)))

    def lease(self, token: str) -> Lease:
        """Return a lease by its token, to settle its messages from any process."""
        return Lease(self, ids.parse_token(token))

    # in the background

    def consume(
        self,
        queue: str,
        handler: Callable[[Any], Any],
        *,
        group: str = QUEUE_MODE,
        batch: int = 1,
        each: bool = False,
        concurrency: int = 1,
        auto_ack: AutoAck = False,
        on_success: Callable[[Any], Any] | None = None,
        on_error: Callable[[Any, Exception], Any] | None = None,
        renew: bool | Duration = True,
        wait: Duration = 1.0,
        stop: threading.Event | None = None,
        lease_seconds: Duration | None = None,
        partition: str | None = None,
        dialect: Dialect = "native",
        create: bool = True,
        timeout: Duration | None = None,
    ) -> Consumer:
        """Call `handler` with every message, from `concurrency` threads; returns at once.

        `q.consume("orders", handler).join()` runs until it is stopped; a context manager stops it.
        The handler gets a message, or a list of them if `batch` is more than 1 and `each` is not set.

        The handler settles its messages. If it raises, what it left unsettled is nacked with the
        error's text. With `auto_ack` messages are done when handed out, or with `"handled"` when it
        returns: they are acked with the next pop. With `on_success` or `on_error`, called with the
        message (and the error), only the callbacks settle.

        While the handler runs its lease is renewed: at half of its time, or every `renew` seconds.
        If the lease is lost all the same, that is logged and `message.lost` is True. After `timeout`
        it is renewed no more and the message is nacked, though the handler cannot be ended. While
        the server is unavailable, the loop waits. `stop`, if set from outside, ends the loop as
        `stop()` does; a stop may take as long as a pop waits, which is `wait` seconds at most.
        """
        request = self.pop_request(
            queue, group=group, batch=batch, lease_seconds=lease_seconds, auto_ack=auto_ack is True,
            partition=partition, dialect=dialect, create=create,
        )  # fmt: skip
        plan: Plan[Message] = Plan.of(
            handler, request, each, concurrency, on_success, on_error, renew, wait, timeout, auto_ack,
        )  # fmt: skip
        return self._background.add(Consumer(self, plan, stop))

    def queue(self, name: str) -> FluentQueue[Receipt, Batch[Message], Consumer, QueueOptions]:
        """A queue in the fluent style: `q.queue("orders").group("workers").batch(100).pop()`."""
        return FluentQueue(self, name)

    def buffer(self, size: int = SIZE, seconds: Duration = SECONDS) -> Buffer:
        """Gather pushes and settles and send them together; see `Buffer`. Closing the session
        sends what is left."""
        return self._background.add(Buffer(self, size, seconds))

    def ack_stats(self) -> AckStats:
        """Return statistics of the settles of this session: counts, success rate, latencies."""
        return self._acks.stats()

    # settling

    def ack(self, messages: Messages, *, confirm: bool = False) -> Settled:
        """Mark messages as done. Messages whose lease was lost are listed in `refused` and delivered
        again; unlike `message.ack()` this does not raise, see `Settled.raise_for_refused`."""
        return self._settle_all(messages, Verdict("ack", confirm=confirm))

    def nack(
        self, messages: Messages, reason: Reason | None = None, *, delay: Duration | None = None
    ) -> Settled:
        """Report failures: redeliver after `delay`, otherwise after the back-off, otherwise now."""
        return self._settle_all(messages, to_verdict("nack", reason, delay))

    def release(self, messages: Messages, *, delay: Duration | None = None) -> Settled:
        """Return messages to their places, immediately or after `delay`, without counting a delivery."""
        return self._settle_all(messages, to_verdict("release", delay=delay))

    def requeue(self, messages: Messages, *, delay: Duration | None = None) -> Settled:
        """Append copies to the end of their lanes, for this group; the originals are done."""
        return self._settle_all(messages, to_verdict("requeue", delay=delay))

    def reject(self, messages: Messages, reason: Reason | None = None) -> Settled:
        """Never deliver messages again; keep them as dead letters with the reason."""
        return self._settle_all(messages, to_verdict("reject", reason))

    def dead_letter(self, messages: Messages, reason: Reason | None = None) -> Settled:
        """Move messages to the dead letters now, as failures."""
        return self._settle_all(messages, to_verdict("dead_letter", reason))

    def settle(
        self, verdicts: Iterable[tuple[Delivery, Verdict | SettleVerb]], *, atomic: bool = False
    ) -> Settled:
        """Settle each message with its own verdict. `atomic`: one refusal rolls back all."""
        given = judged(verdicts)
        synced = any(verdict.synced for _, verdict in given)
        some = [message for message, _ in given]
        return self._patiently(
            some, lambda: self.settle_marks(marks_of(given), len(some), synced, atomic)
        )

    def extend(self, messages: Messages, seconds: Duration | None = None) -> datetime | None:
        """Extend the leases to `seconds` from now (None: the lease time); return the earliest end."""
        given = validate.positive_or_none(seconds, "seconds")
        tokens = {m._share.origin.token for m in deliveries(messages)} - {None}
        ends = [self.broker.do(settle.extend, False, cast(int, token), given) for token in tokens]
        return when(min(ends)) if ends else None

    def settle_one(self, message: Delivery, verdict: Verdict) -> None:
        """Settle one message; raises if it is refused."""
        verdict.check()
        share = message._share
        if share.origin.token is None:
            return
        at = share.run.first + message._index
        token, mark = share.origin.token, Mark(verdict, share.run.lane, [at, at + 1])
        if share.origin.pause is None:
            self._settle_one(token, mark)
        else:
            record([message], verdict)
            self._patiently([message], lambda: self._settle_one(token, mark))

    def release_all(self, token: int) -> None:
        """Release all messages that a lease still holds."""
        self.broker.do(settle.settle, False, token, [Mark(Verdict("release"))])

    def _settle_one(self, token: int, mark: Mark) -> None:
        with self._acks.measure(1):
            (outcome,) = self.broker.do(settle.settle, mark.verdict.synced, token, [mark])
            if outcome.refused:
                raise outcome.refused[0].error

    def _settle_all(self, messages: Messages, verdict: Verdict) -> Settled:
        verdict.check()
        some = deliveries(messages)
        if isinstance(messages, Batch):
            marks = messages.marks(verdict)
        else:
            marks = marks_of((message, verdict) for message in some)
        return self._patiently(some, lambda: self.settle_marks(marks, len(some), verdict.synced))

    def _patiently(self, messages: Sequence[Delivery], call: Callable[[], R]) -> R:
        """Settle; in a consume loop, wait while the server is unavailable."""
        pause = self._pause(messages)
        while True:
            try:
                return call()
            except AckflowError as error:
                if pause is None or error.code not in PASSING or pause(AGAIN_SECONDS):
                    raise

    def settle_marks(
        self, marks: dict[int, list[Mark]], messages: int, synced: bool, atomic: bool = False
    ) -> Settled:
        """Settle the messages that are marked under each token."""
        result = Settled()
        if not marks:
            return result
        with self._acks.measure(messages) as call:
            for some in [marks] if atomic else in_slices(marks):
                for outcome in self.broker.do(settle.settle_many, synced, some, atomic):
                    result.add(self.broker.store.id, outcome)
            call.successful = result.settled + result.noop
            call.refused = len(result.refused)
        return result

    # transactions and values

    def transaction(self, key: str | None = None) -> Transaction:
        """Return a transaction: settles, pushes and keyed values on any queues, all or nothing."""
        return Transaction(self, key)

    def commit(self, operations: Operations) -> Committed:
        """Run the operations of a transaction; see `transaction`."""
        request = operations.request()
        with self._acks.measure(
            _count(o.marks for o in request.operations if isinstance(o, SettleOperation))
        ):
            results = self.broker.do(transact, True, request)
        store = self.broker.store.id
        pushes = operations.places.items()
        return Committed(results, [Receipt(store, results[i].places, p) for i, p in pushes])

    # setting up

    def configure(self, /, queue: str, **options: Unpack[QueueOptionsDict]) -> QueueOptions:
        """Create a queue, or change the given options; the others do not change."""
        given = validate.queue_options(options)
        return self.broker.do(admin.configure, True, validate.name(queue, "queue"), given)

    def group(
        self,
        /,
        queue: str,
        name: str,
        *,
        dialect: Dialect | None = None,
        **options: Unpack[GroupOptionsDict],
    ) -> GroupStats:
        """Create a group, or change the given options. `start` (all, new, a time) is for a new one."""
        given = validate.group_options(options)
        validate.name(queue, "queue")
        validate.name(name, "group")
        if dialect is not None:
            validate.dialect(dialect)
        self.broker.do(admin.configure_group, True, queue, name, given, dialect)
        return self.group_stats(queue, name)

    def pause(self, queue: str, group: str | None = None) -> None:
        """Pause a queue or a group: nothing is delivered until `resume`; settling continues."""
        self.broker.do(admin.pause, True, queue, group, True)

    def resume(self, queue: str, group: str | None = None) -> None:
        """Resume a paused queue or group."""
        self.broker.do(admin.pause, True, queue, group, False)

    def seek(
        self,
        queue: str,
        group: str,
        *,
        to: str | None = None,
        time: Time | None = None,
        sequence: int | None = None,
        partition: str | None = None,
    ) -> int:
        """Move a group: to="start" or "end", or to a time, or to a sequence of each lane.

        Its leases there end. Returns the number of lanes moved.
        """
        if [to, time, sequence].count(None) != 2:
            raise InvalidArgument("seek takes exactly one of to, time and sequence")
        target: str | int
        if to is not None:
            target = validate.one_of(to, "to", ("start", "end"))
        elif time is not None:
            target = validate.time(time, "time")
        else:
            target = validate.integer(sequence, "sequence", 0, (1 << 48) - 1)
        return self.broker.do(admin.seek, True, queue, group, target, time is not None, partition)

    def purge(self, queue: str, partition: str | None = None) -> int:
        """Remove all messages of a queue or partition, also leased ones; return their number."""
        return self.broker.do(admin.purge, True, queue, partition)

    def delete_queue(self, queue: str) -> bool:
        """Delete a queue with everything in it; return False if there was none."""
        return self.broker.do(admin.delete_queue, True, queue)

    def delete_group(self, queue: str, group: str) -> bool:
        """Delete a group with its leases and dead letters; return False if there was none."""
        return self.broker.do(admin.delete_group, True, queue, group)

    def delete_message(self, queue: str, id: str) -> bool:
        """Delete one message for every group; return False if it is not stored."""
        return self.broker.do(admin.delete_message, True, queue, id)

    # dead letters

    def redrive(
        self,
        queue: str,
        *,
        ids: Iterable[int] | None = None,
        to: str | None = None,
        limit: int | None = None,
        group: str | None = None,
        partition: str | None = None,
        kind: str | None = None,
        error: str | None = None,
        since: Time | None = None,
        until: Time | None = None,
    ) -> int:
        """Send dead letters back to their lane for their group, or to another queue for all.

        Selects the dead letters that match every filter given; returns how many were sent.
        """
        if to is not None:
            validate.name(to, "to")
        if limit is not None:
            validate.integer(limit, "limit", 0, 1 << 60)
        which = self._dead_filter(queue, group, partition, kind, error, since, until, ids)
        return dead_letter_tools.in_slices(
            self.broker,
            lambda some, n: self.broker.do(dead_letters.redrive, True, some, to, n),
            which,
            limit,
        )

    def purge_dead(
        self,
        queue: str,
        *,
        ids: Iterable[int] | None = None,
        group: str | None = None,
        partition: str | None = None,
        kind: str | None = None,
        error: str | None = None,
        since: Time | None = None,
        until: Time | None = None,
    ) -> int:
        """Delete the dead letters of a queue that match every filter given; returns how many."""
        which = self._dead_filter(queue, group, partition, kind, error, since, until, ids)
        return dead_letter_tools.in_slices(
            self.broker,
            lambda some, n: self.broker.do(dead_letters.purge_dead, True, some, n),
            which,
            None,
        )

    def reprocess(self, queue: str, group: str | None = None) -> int:
        """Push dead letters again, for every group, with the transaction ids `reprocess-<id>`, and
        remove them; answers with how many. `redrive` sends them to the group they died in alone."""
        return dead_letter_tools.reprocess(self, queue, group)

    def alert_dead(
        self,
        queue: str,
        call: Callable[[str, int], Any],
        *,
        above: int = ABOVE,
        every: Duration = EVERY_SECONDS,
        group: str | None = None,
    ) -> Alert:
        """Call `call(queue, depth)` when the queue has more than `above` dead letters."""
        return self._background.add(Alert(self, queue, call, above, every, group))

    # upkeep and end

    def upkeep(self) -> Upkeep:
        """Run one round of upkeep now. In a session with upkeep it also runs in the background."""
        return self.broker.upkeep()

    def backup(self, target: str | os.PathLike[str]) -> None:
        """Copy the database in its current state to a new file, while it is in use."""
        place = validate.place(target)
        if place == ":memory:":
            raise InvalidArgument("a backup must be a new file; :memory: is not a file")
        self.broker.store.backup(place)

    def close(self) -> None:
        """End the session. Its leases stay until they expire.

        Consume loops are stopped gracefully and buffers sent; an error in that is raised at the end.
        """
        if not self.forked:
            try:
                self._background.close()
            finally:
                self._broker.close()
                if self._watching is not None:
                    self._watching.detach()

    def leave(self, task: object) -> None:
        """Forget a consumer, buffer or alert that has ended."""
        self._background.discard(task)

    # what is different in asyncio

    _encode = staticmethod(encoding.request)
    _pause = waits

    def batch_of(self, handout: Handout) -> Batch[Any]:
        """Return the messages of a hand-out."""
        return Batch.of(self, handout, Message)

    @property
    def broker(self) -> Verbs:
        """The broker underneath; refused in a process that did not open the session."""
        if os.getpid() != self._pid:
            raise SessionForked()
        return self._broker

    @property
    def forked(self) -> bool:
        """Whether this is not the process that opened the session."""
        return os.getpid() != self._pid

    def __repr__(self) -> str:
        return f"<Session on {self._place or 'a broker'} as {self.consumer}>"

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _count(marks: Iterable[list[Mark]]) -> int:
    """The number of messages in marks; a mark on a whole lease counts as one."""
    return sum(ranges.count(m.ranges) if m.ranges else 1 for some in marks for m in some)
