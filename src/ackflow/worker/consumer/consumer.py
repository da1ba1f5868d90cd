"""The consumer of a worker: one thread receives, several process, one settles.

    receive ─► waiting ─► process (concurrency threads) ─► settle, many in one transaction
                   │
                   └─ at a stop: released, uncounted

Messages are popped ahead only if they will be started soon, at the speed measured so far, so a worker
with slow handlers does not hold messages that another worker could start.
"""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from msgspec import Struct, structs

from ... import validate
from ...clock import SECOND
from ...errors import SessionClosed
from ...model import when
from ...session.messages import Message
from ...session.session import Session
from ..context import Context, RunState
from ..coordination.presence import MOST_QUEUES, MOST_RUNNING, RunningMessage, served
from ..hooks import Hooks
from ..processor import Binding
from ..sending import ProcessorSession
from .leases import HeldLease, Leases
from .processing import Outcome, Processing
from .receiver import Receiver
from .settler import Settler
from .time_limits import Attempt, Caller, GivenUp

log = logging.getLogger("ackflow.worker")
AHEAD_SECONDS = 0.2
MOST_AHEAD = 1_000
MOST_AHEAD_BYTES = 16 << 20
LOOK_SECONDS = 0.2  # how often the main thread looks whether a signal has interrupted the run
PATIENCE_SECONDS = 2.0  # of a stop, before it says what it waits for
WEIGHT = 0.05  # of one message in the mean of processing times


class Counts(Struct):
    """What became of the messages of a run.

    `failed` counts exceptions. `put_off` counts messages that an extension did not let begin,
    `returned` those released at a stop, `lost` those whose lease was lost.
    """

    received: int = 0
    acked: int = 0
    rejected: int = 0
    requeued: int = 0
    failed: int = 0
    put_off: int = 0
    returned: int = 0
    lost: int = 0


class Item(Struct, eq=False, gc=False):
    """A message that was received and is waiting to be processed."""

    message: Message
    lease: HeldLease


class Consumer:
    """Runs the handlers of a worker. `run` returns when it is stopped or interrupted."""

    def __init__(
        self,
        session: Session,
        bindings: Sequence[Binding],
        run: RunState,
        hooks: Hooks,
        *,
        mode: str = "round-robin",
        concurrency: int = 1,
        prefetch: int | None = None,
        keep_going: bool = False,
    ) -> None:
        self._session = session
        self._state = run
        self._hooks = hooks
        self._bindings = list(bindings)
        self._mode = mode
        self._concurrency = validate.integer(concurrency, "concurrency", 1, 1_000)
        if prefetch is not None:
            validate.integer(prefetch, "prefetch", 0, 100_000)
        self._prefetch = prefetch
        self._keep_going = keep_going
        self._clock = session.broker.clock
        self._receiver = Receiver(session, bindings, mode, lambda: run.interrupted)
        self._leases = Leases(session)
        self._settler = Settler(session, hooks, self._settled, lambda: run.interrupted)
        self._caller = Caller(self._clock, self._given_up)
        self._processing = Processing(hooks, self._caller)
        self._changed = threading.Condition()
        self._not_begun: deque[Item] = deque()
        self._idle = 0  # threads that wait for a message
        self._low = -1  # the receiver waits until at most this many are waiting
        self._threads = 0
        self._held: dict[Attempt, Item] = {}
        self._mean: float | None = None  # seconds that a message takes
        self._size = 1  # bytes of a message, of the largest seen lately
        self._ended = False
        self._error: BaseException | None = None
        self.counts = Counts()

    def run(self) -> Counts:
        """Process messages until interrupted. Raises the exception that ended the consumer."""
        try:
            self._hooks.call("on_start", self._state)
            try:
                self._receive_all()
            except SessionClosed:
                self._state.interrupt("the session was closed")
            except BaseException as error:
                if self._error is None or isinstance(error, KeyboardInterrupt):
                    self._error = error
                self._state.interrupt("an error")
            self._finish(at_once=isinstance(self._error, KeyboardInterrupt))
        finally:
            self._hooks.call("interrupted", self._state)
        if self._error is not None:
            raise self._error
        return self.counts

    def stop(self, reason: str = "stopped") -> None:
        """Stop after the messages that are being processed; returns at once."""
        self._state.interrupt(reason)

    def report(self) -> dict[str, Any]:
        """What this consumer serves, is doing, and has done."""
        ahead = self._clock.now() - self._clock.steady()
        running = [
            RunningMessage(
                a.context.binding.queue, a.context.binding.group, a.context.message.id,
                a.context.handler.name, when(a.started + ahead),
            )
            for a in list(self._held) if a.context.handler is not None
        ]  # fmt: skip
        running.sort(key=lambda one: one.since)
        queues = [
            served(one.queue, one.group, [handler.name for handler in one.handlers()])
            for one in self._bindings[:MOST_QUEUES]
        ]
        return {
            "queues": queues, "mode": self._mode, "concurrency": self._concurrency,
            "busy": len(running), "running": running[:MOST_RUNNING],
            "reason": self._state.reason, **structs.asdict(self.counts),
        }  # fmt: skip

    # receiving

    def _receive_all(self) -> None:
        state = self._state
        while not state.interrupted:
            self._hooks.call("before_receive", state)
            room = self._room()
            if room <= 0 or state.interrupted:
                continue
            found = self._receiver.receive(room, busy=bool(self._held))
            for binding, batch in found:
                self._add(batch, binding)
            if not found:
                self._hooks.call("idle", state)

    def _room(self) -> int:
        """Wait until messages can be started soon; return how many to receive, 0 to check again."""
        with self._changed:
            ahead = self._ahead()
            room = self._free() + ahead - len(self._not_begun)
            if room > ahead // 2:
                return room
            self._low = len(self._not_begun) + room - ahead // 2 - 1
            self._changed.wait(LOOK_SECONDS)
            self._low = -1
            return 0

    def _free(self) -> int:
        return self._idle + self._concurrency - self._threads

    def _ahead(self) -> int:
        """How many waiting messages to hold."""
        if self._prefetch is not None:
            return self._prefetch
        if self._mean is None:
            return 0
        soon = int(self._concurrency * AHEAD_SECONDS / max(self._mean, 1e-6))
        return min(MOST_AHEAD, soon, MOST_AHEAD_BYTES // self._size)

    def _add(self, batch: Sequence[Message], binding: Binding) -> None:
        lease = self._leases.hold(batch, binding)  # type: ignore[arg-type]
        self._size = max(1, len(batch[0].raw), self._size * 9 // 10)
        with self._changed:
            self.counts.received += len(batch)
            self._not_begun.extend(Item(message, lease) for message in batch)
            for _ in range(
                min(len(self._not_begun) - self._idle, self._concurrency - self._threads)
            ):
                self._start_thread()
            self._changed.notify_all()

    # processing, in the threads of the consumer

    def _start_thread(self) -> None:
        """Start a thread; the caller holds the lock."""
        self._threads += 1
        threading.Thread(target=self._work, name="ackflow-worker-process", daemon=True).start()

    def _work(self) -> None:
        try:
            while (item := self._next()) is not None:
                try:
                    self._process(item)
                except GivenUp:
                    return  # another thread has taken the place of this one
        except BaseException as error:  # a defect; nothing is lost: the lease ends
            log.exception("a thread of the worker has ended")
            self._fail(error)
        with self._changed:
            self._threads -= 1
            self._changed.notify_all()

    def _next(self) -> Item | None:
        not_begun, state = self._not_begun, self._state
        if not state.interrupted:
            try:
                item = not_begun.popleft()
            except IndexError:
                pass
            else:
                if len(not_begun) <= self._low:
                    with self._changed:
                        self._low = -1
                        self._changed.notify_all()
                return item
        with self._changed:
            self._idle += 1
            self._changed.notify_all()
            try:
                while not not_begun and not self._ended and not state.interrupted:
                    self._changed.wait()
                return None if self._ended or state.interrupted else not_begun.popleft()
            finally:
                self._idle -= 1

    def _process(self, item: Item) -> None:
        message, lease = item.message, item.lease
        if message.lost:
            self._count(lost=1)
            return self._leases.done(lease)
        session = ProcessorSession(self._session, self._state.worker.add_to)
        attempt = Attempt(Context(self._state, message, lease.binding, session), self._clock)
        self._held[attempt] = item
        lease.attempts.add(attempt)
        began = time.perf_counter()
        outcome = self._processing.process(attempt.context, attempt)
        self._measure(time.perf_counter() - began)
        self._over(attempt, outcome)

    def _over(self, attempt: Attempt, outcome: Outcome) -> None:
        item = self._held.pop(attempt)
        item.lease.attempts.discard(attempt)
        outcome.context.notes[HeldLease] = item.lease
        self._fail_if_fatal(outcome)  # first, so that no other message is begun meanwhile
        self._settler.put(outcome)

    def _given_up(self, attempt: Attempt) -> None:
        """A handler did not return by its hard time limit; called from the timeout thread."""
        outcome = self._processing.given_up(attempt)
        with self._changed:
            self._threads -= 1
            if not self._ended:
                self._start_thread()
        self._over(attempt, outcome)

    def _measure(self, seconds: float) -> None:
        mean = self._mean
        self._mean = seconds if mean is None else mean + (seconds - mean) * WEIGHT

    # settling, in the thread of the settler

    def _settled(self, outcome: Outcome, error: BaseException | None) -> None:
        context = outcome.context
        counts = self.counts
        verb = None if outcome.verdict is None else outcome.verdict.verb
        if error is not None:
            counts.lost += 1
        elif context.put_off is not None:
            counts.put_off += 1
        elif verb == "ack":
            counts.acked += 1
        elif verb == "reject":
            counts.rejected += 1
        elif verb == "requeue":
            counts.requeued += 1
            counts.failed += outcome.fatal is not None
        else:
            counts.failed += 1
        self._leases.done(context.notes[HeldLease])
        self._fail_if_fatal(outcome)

    def _fail_if_fatal(self, outcome: Outcome) -> None:
        if outcome.fatal is not None and not self._keep_going:
            self._fail(outcome.fatal)

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
        self._state.interrupt(f"an exception: {type(error).__name__}")
        with self._changed:
            self._changed.notify_all()

    def _count(self, **more: int) -> None:
        with self._changed:
            for name, n in more.items():
                setattr(self.counts, name, getattr(self.counts, name) + n)

    # stopping

    def _finish(self, at_once: bool) -> None:
        """Finish what is being processed, return the rest, settle everything."""
        try:
            for binding, batch in self._receiver.close():
                self._add(batch, binding)
            with self._changed:
                self._ended = True
                left = []
                with contextlib.suppress(IndexError):  # threads take from it without the lock
                    while True:
                        left.append(self._not_begun.popleft())
                self._changed.notify_all()
            self._settler.release([item.message for item in left])
            self.counts.returned += len(left)
            for item in left:
                self._leases.done(item.lease)
            if at_once:
                self._abandon()
            else:
                self._wait_for_handlers()
                self._settler.close()
        except KeyboardInterrupt as error:
            self._abandon()
            self._error = error
        if self._settler.error is not None and self._error is None:
            self._error = self._settler.error
        self._caller.close()
        self._leases.close()

    def _wait_for_handlers(self) -> None:
        began, said = time.monotonic(), False
        with self._changed:
            while self._threads:
                self._changed.wait(LOOK_SECONDS)
                if not said and time.monotonic() - began > PATIENCE_SECONDS:
                    said = True
                    log.warning(
                        "stopping, but %s. The stop waits for it; a second Ctrl-C stops at once and "
                        "returns its message to the queue", self._what_runs(),
                    )  # fmt: skip

    def _what_runs(self) -> str:
        now = self._clock.steady()
        running = [
            f"{a.context.handler.name} has been running for {(now - a.started) / SECOND:.0f} s"
            for a in list(self._held)
            if a.context.handler is not None
        ]
        return ", ".join(running[:5]) or "messages are being settled"

    def _abandon(self) -> None:
        """Return what is still being processed: the process is about to end."""
        log.warning("stopped at once; %s", self._what_runs())
        self._settler.close(LOOK_SECONDS)
        self._settler.release([item.message for item in list(self._held.values())])

    def __repr__(self) -> str:
        done = {name: n for name, n in structs.asdict(self.counts).items() if n}
        return f"<worker Consumer: {done or 'nothing received'}>"
