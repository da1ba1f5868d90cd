"""What extensions, middleware and handlers know about the message that is being processed."""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from .. import validate
from ..errors import InvalidArgument
from ..session.messages import Message
from ..validate import Duration
from .coordination.schedules import TICK_HEADER
from .results import Progress, Result, asked_by
from .schema import InvalidBody
from .sending import ProcessorSession
from .status import Reject, Requeue, Status

if TYPE_CHECKING:
    from .processor import Binding, Handler
    from .worker import Worker


class PutOff(Struct, frozen=True):
    """The message is not processed now, and its delivery is not counted.

    Without `copy` it keeps its place and id. With `copy`, a copy with these headers goes to the end
    of the queue.
    """

    delay: float = 0.0
    copy: bool = False
    headers: tuple[tuple[str, str], ...] = ()


class RunState:
    """The state of a running consumer that hooks may see and change."""

    def __init__(self, worker: "Worker") -> None:
        self.worker = worker
        self.interrupted = False
        self.reason: str | None = None

    def interrupt(self, reason: str) -> None:
        """Stop the consumer after the messages that are being processed; exit code 0."""
        if not self.interrupted:
            self.reason = reason
            self.interrupted = True


class Context:
    """One message in a worker: what it is, how it is handled, and what became of it.

    `status` can be set once, by an extension in `pre_received` or by the handler's result.
    `exception` is what the handler raised; `result` what a task returned. `notes` belongs to
    extensions and middleware, for what they keep from one hook to the next.
    """

    __slots__ = (
        "_status", "binding", "elapsed", "exception", "handler", "message", "notes", "put_off",
        "reason", "result", "run", "session",
    )  # fmt: skip

    def __init__(
        self, run: RunState, message: Message, binding: "Binding", session: ProcessorSession
    ) -> None:
        self.run = run
        self.message = message
        self.binding = binding
        self.session = session
        self.handler: Handler | None = None
        self.exception: BaseException | None = None
        self.result: Any = None
        self.reason: str | None = None
        self.put_off: PutOff | None = None
        self.elapsed = 0.0
        self.notes: dict[Any, Any] = {}
        self._status: Status | None = None

    @property
    def worker(self) -> "Worker":
        """The worker."""
        return self.run.worker

    @property
    def status(self) -> Status | None:
        """The status, once it is decided."""
        return self._status

    @status.setter
    def status(self, status: Status) -> None:
        if not isinstance(status, Status):
            raise InvalidArgument(f"status must be ACK, REJECT or REQUEUE, got {status!r}")
        if self._status is not None or self.put_off is not None:
            raise InvalidArgument("the status of a message can be set once")
        self._status = status

    @property
    def decided(self) -> bool:
        """Whether an extension has decided, so that the handler is not called."""
        return self._status is not None or self.put_off is not None

    def release(self, delay: Duration = 0.0) -> None:
        """Do not process the message now: return it to its place, uncounted, for `delay` seconds."""
        if self.decided:
            raise InvalidArgument("the status of a message can be set once")
        self.put_off = PutOff(validate.seconds(delay, "delay"))

    def requeue_later(self, delay: Duration, headers: dict[str, str]) -> None:
        """Do not process it now: a copy goes to the end for `delay` seconds, uncounted."""
        if self.decided:
            raise InvalidArgument("the status of a message can be set once")
        self.put_off = PutOff(validate.seconds(delay, "delay"), True, tuple(headers.items()))

    def interrupt(self, reason: str) -> None:
        """Stop the consumer after the messages that are being processed; exit code 0."""
        self.run.interrupt(reason)

    def progress(self, part: float, data: Mapping[str, Any] | None = None) -> None:
        """Record the progress immediately, from 0 to 1; for `handle.progress()` and later
        attempts. The message must ask for a result."""
        self.message.progress(part, data)

    def last_progress(self) -> Progress | None:
        """What this or an earlier attempt has recorded last."""
        asked = asked_by(self.message)
        return None if asked is None else Result(self.session.outside, asked.id).progress()

    @property
    def tick(self) -> datetime | None:
        """The time of the tick that pushed the message; None if no schedule did."""
        text = self.message.headers.get(TICK_HEADER)
        return None if text is None else datetime.fromisoformat(text)

    @property
    def failed(self) -> bool:
        """Whether the handler raised an exception that says no status."""
        error = self.exception
        return error is not None and not isinstance(error, Reject | Requeue | InvalidBody)

    @property
    def attempt(self) -> int:
        """The number of this attempt, starting at 1: failures of a task, else deliveries."""
        from_task = self.handler is not None and self.handler.counts_failures
        return self.message.failures + 1 if from_task else self.message.deliveries

    @property
    def last_attempt(self) -> bool:
        """Whether a failure now makes the message a dead letter."""
        limit = None if self.handler is None else self.handler.attempts
        return self.last_delivery or (limit is not None and self.attempt >= limit)

    @property
    def last_delivery(self) -> bool:
        """Whether the group allows no further delivery."""
        limit = self.binding.max_deliver
        return limit is not None and self.message.deliveries >= limit
