"""A harness that runs a worker's handlers inline, on a broker in memory."""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self
from unittest.mock import ANY

import msgspec
from msgspec import Struct

from .. import validate
from ..clock import VirtualClock
from ..session.connect import connect
from ..session.messages import Delivery
from ..session.session import Session
from ..worker.consumer.leases import HeldLease
from ..worker.consumer.processing import Outcome, Processing
from ..worker.consumer.receiver import Receiver
from ..worker.consumer.settler import Settler
from ..worker.consumer.time_limits import Attempt, Caller
from ..worker.context import Context, RunState
from ..worker.coordination.job_records import JobStatus
from ..worker.coordination.jobs import Jobs
from ..worker.hooks import Hooks, Middleware
from ..worker.sending import ProcessorSession, Push
from ..worker.status import Status
from ..worker.worker import Worker

__all__ = ["ANY", "Harness", "Processed"]
MOST = 10_000


class Processed(Struct, eq=False):
    """A message that `drain` has handled. `status` is None if a task failed or it was put off."""

    queue: str
    group: str
    data: Any
    status: Status | None
    processor: str | None
    exception: BaseException | None
    result: Any
    message: Delivery

    @property
    def put_off(self) -> bool:
        """Whether an extension put it off, so that no handler was called."""
        return self.status is None and self.exception is None


class Recorder(Middleware):
    """Records what the worker sends."""

    def __init__(self) -> None:
        self.sent: list[Push] = []

    def after_push(self, push: Push) -> None:
        if not push.duplicate and push.error is None:
            self.sent.append(push)


class Harness:
    """Runs a worker in memory: `drain` handles all due messages, in this thread.

    The worker uses `session` while the harness is entered. `clock` moves only by
    `clock.advance(seconds)`, so that delays and back-offs take no time.
    """

    def __init__(self, worker: Worker, clock: VirtualClock | None = None) -> None:
        self.worker = worker
        self.clock = clock or VirtualClock()
        self.session: Session = connect(":memory:", clock=self.clock, upkeep=False)
        self.processed: list[Processed] = []
        self._recorder = Recorder()
        self._restore: Callable[[], None] | None = None

    def __enter__(self) -> Self:
        self._restore = self.worker.use(self.session, self._recorder)
        self.worker.schedules().run_due()  # they begin now
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._restore is not None:
            self._restore()
        self.session.close()

    # running

    def drain(
        self,
        most: int | None = None,
        *,
        queues: Any = None,
        mode: str = "round-robin",
        advance: bool = False,
        keep_going: bool = False,
    ) -> list[Processed]:
        """Handle messages until none is due, or `most` of them, and return them.

        Ticks of schedules that are due are pushed first.
        With `advance` the clock moves to what is due next, until nothing is left. An exception of a
        processor is raised after its message was requeued, unless `keep_going`.
        """
        worker, state = self.worker, RunState(self.worker)
        bindings = worker.select(queues)
        worker.prepare(bindings)
        hooks = Hooks(worker.parts())
        receiver = Receiver(self.session, bindings, mode, lambda: state.interrupted)
        caller = Caller(self.clock, lambda attempt: None)
        settler = Settler(self.session, hooks, lambda outcome, error: None, lambda: True)
        processing = Processing(hooks, caller)
        handled: list[Processed] = []
        schedules = worker.schedules()
        hooks.call("on_start", state)
        try:
            while (most is None or len(handled) < most) and not state.interrupted:
                assert len(handled) < MOST, f"{MOST:,} messages were handled and there are more"
                schedules.run_due()
                found = receiver.receive(1, wait=False)
                if not found and not (advance and self._advance(bindings)):
                    break
                for binding, (message,) in found:
                    context = self._context(state, message, binding)
                    outcome = processing.process(context, Attempt(context, self.clock))
                    settler.settle([outcome])
                    handled.append(self._record(outcome))
                    if outcome.fatal is not None and not keep_going:
                        raise outcome.fatal
        finally:
            hooks.call("interrupted", state)
            caller.close()
        return handled

    def consume(self, most: int | None = None) -> list[Processed]:
        """Handle up to `most` messages that are due; the same as `drain(most)`."""
        return self.drain(most)

    def purge(self) -> None:
        """Remove every message, and forget what was sent and processed."""
        for queue in self.session.queues():
            self.session.purge(queue.name)
        self._recorder.sent.clear()
        self.processed.clear()

    def _context(self, state: RunState, message: Any, binding: Any) -> Context:
        context = Context(
            state, message, binding, ProcessorSession(self.session, self.worker.add_to)
        )
        context.notes[HeldLease] = None
        return context

    def _record(self, outcome: Outcome) -> Processed:
        context = outcome.context
        made = Processed(
            context.message.queue, context.message.group, context.message.data, context.status,
            None if context.handler is None else context.handler.name, context.exception,
            context.result, context.message,
        )  # fmt: skip
        self.processed.append(made)
        return made

    def _advance(self, bindings: Sequence[Any]) -> bool:
        """Move the clock to the next due message; returns whether there is one."""
        due = []
        for binding in bindings:
            batch = self.session.pop(binding.queue, group=binding.group)
            assert not batch
            if batch.retry_at is not None:
                due.append(batch.retry_at.timestamp())
        if not due:
            return False
        self.clock.advance(max(0.0, min(due) - self.clock.now() / 1e6) + 1e-6)
        return True

    # what was sent

    def sent_messages(self, queue: str | None = None) -> list[tuple[str, Any]]:
        """What was sent through the worker: queue and data; of tasks, the arguments by name."""
        return [
            (push.queue, one)
            for push in self._recorder.sent
            if queue in (None, push.queue)
            for one in _data_of(push)
        ]

    def assert_message_sent(self, queue: str, data: Any = ANY) -> None:
        """A message with this data was sent to the queue."""
        sent = [one for _, one in self.sent_messages(queue)]
        assert any(data == one for one in sent), (
            f"no message {_as_text(data)} was sent to {queue}; sent: {sent}"
        )

    def assert_messages_sent(self, queue: str, data: Sequence[Any]) -> None:
        """Exactly these messages were sent to the queue, in this order."""
        sent = [one for _, one in self.sent_messages(queue)]
        assert sent == list(data), f"sent to {queue}: {sent}"

    def assert_all_messages_sent(self, messages: Sequence[tuple[str, Any]]) -> None:
        """Exactly these messages were sent, as pairs of queue and data, in this order."""
        sent = self.sent_messages()
        assert sent == list(messages), f"sent: {sent}"

    def assert_message_sent_with_priority(self, queue: str, priority: int) -> None:
        """A message with this priority was sent to the queue."""
        validate.priority(priority)
        sent = [push.priority for push in self._recorder.sent if push.queue == queue]
        assert priority in sent, f"priorities of what was sent to {queue}: {sent}"

    def assert_messages_count(self, queue: str, count: int) -> None:
        """This number of messages was sent to the queue."""
        sent = len(self.sent_messages(queue))
        assert sent == count, f"{sent} messages were sent to {queue}, expected {count}"

    def assert_messages_empty(self, queue: str | None = None) -> None:
        """Nothing was sent, to the queue or at all."""
        assert not self.sent_messages(queue), f"sent: {self.sent_messages(queue)}"

    # what was processed

    def processed_messages(
        self, status: Status | None = None, *, queue: str | None = None
    ) -> list[Processed]:
        """What was processed, with this status or from this queue."""
        return [
            one
            for one in self.processed
            if not one.put_off and status in (None, one.status) and queue in (None, one.queue)
        ]

    def assert_processed_status(
        self, status: Status, *, queue: str | None = None, data: Any = ANY
    ) -> None:
        """A message with this data was processed with this status the last time."""
        found = [one for one in self.processed_messages(queue=queue) if data == one.data]
        assert found, f"no message {_as_text(data)} was processed"
        assert found[-1].status is status, f"status {found[-1].status}, {found[-1].exception!r}"

    def assert_job_status(self, name: str, status: JobStatus) -> None:
        """The newest root job of this name has this status."""
        found = [job for job in Jobs(self.session).roots(limit=1_000) if job.name == name]
        assert found, f"there is no job {name}"
        assert found[0].status == status, f"job {name} is {found[0].status}"

    def assert_unique_jobs_processed(self) -> None:
        """No root job is left that has not stopped."""
        left = [job.name for job in Jobs(self.session).roots(limit=1_000) if not job.stopped_at]
        assert not left, f"jobs that have not stopped: {left}"

    def assert_processed_by(self, processor: str, *, queue: str | None = None) -> None:
        """A message was processed by this processor or task."""
        names = [one.processor for one in self.processed_messages(queue=queue)]
        assert processor in names, f"processed by: {names}"


def _data_of(push: Push) -> list[Any]:
    data = push.data if isinstance(push.data, list | tuple) else [push.data]
    return [
        msgspec.json.decode(one) if isinstance(one, msgspec.Raw) else getattr(one, "data", one)
        for one in data
    ]


def _as_text(data: Any) -> str:
    return "" if data is ANY else repr(data)
