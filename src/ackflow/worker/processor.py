"""Processors: functions and classes that decide a message by the status they return.

| handler | returns | if it raises |
|---|---|---|
| processor | ACK, REJECT or REQUEUE | a copy goes to the end; the consumer fails with the error |
| job | True: ACK, False: REJECT | the same |
| task | anything: ACK | tried again by its own rule; the consumer goes on |
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, get_type_hints

from msgspec import Struct, field

from .. import validate
from ..broker.requests import Verdict
from ..errors import InvalidArgument, text_of
from ..options import QUEUE_MODE, Ordering
from ..session.messages import Delivery
from ..session.session import Session
from .context import Context
from .coordination.limits import Limit
from .errors import InvalidStatus
from .schema import Schema, is_body_type
from .sending import ProcessorSession
from .status import ACK, REJECT, Status

LEASE_SECONDS = 30.0


class Handler(Protocol):
    """What the consumer calls with a message: a processor, a job or a task."""

    name: str
    time_limit: float | None
    soft_time_limit: float | None
    counts_failures: bool  # whether attempts are counted by failures, not by deliveries
    attempts: int | None  # how many attempts there are; None: no limit of its own
    fails_consumer: bool  # whether an exception ends the consumer
    limit: Limit | None  # across all workers

    def arguments_of(self, message: Delivery) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """What the function of a concurrency key is called with; raises InvalidBody."""

    def call(self, context: Context) -> Any:
        """Run the handler; the result is awaited if it can be."""

    def status_of(self, result: Any) -> Status:
        """The status that a result means; raises InvalidStatus."""

    def verdict_of(self, context: Context, error: BaseException) -> Verdict:
        """How the delivery ends after an exception."""

    def last_attempt_failed(self, context: Context, error: BaseException) -> None:
        """Called before a message becomes a dead letter because its last attempt failed."""


class Processor:
    """A function, or an object with `process`, that takes a message and returns a status."""

    counts_failures = False
    attempts: int | None = None
    fails_consumer = True

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        schema: Schema | None,
        time_limit: float | None,
        soft_time_limit: float | None,
        limit: Limit | None = None,
    ) -> None:
        self.function = function
        self.name = name
        self.limit = limit
        self.time_limit = time_limit
        self.soft_time_limit = soft_time_limit
        self.roles, found = _roles(function, name)
        self.schema = schema or found

    def __repr__(self) -> str:
        return f"<Processor {self.name}>"

    def call(self, context: Context) -> Any:
        """Call the function with the message, the session and the validated body, as it asks."""
        given: dict[str, Any] = {"message": context.message, "session": context.session}
        if self.schema is not None:
            given["body"] = context.notes.get(Schema)
            if Schema not in context.notes:
                given["body"] = self.schema.body_of(context.message)
        return self.function(*[given[role] for role in self.roles])

    def arguments_of(self, message: Delivery) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """The message."""
        return (message,), {}

    def status_of(self, result: Any) -> Status:
        """Accept one of the three statuses, or the text of one."""
        if isinstance(result, Status):
            return result
        if isinstance(result, str) and result in _BY_TEXT:
            return _BY_TEXT[result]
        hint = "; did it end without a return?" if result is None else ""
        raise InvalidStatus(
            f"processor {self.name} returned {result!r}{hint} A processor must return ACK, REJECT "
            "or REQUEUE"
        )

    def verdict_of(self, context: Context, error: BaseException) -> Verdict:
        """A copy goes to the end of the queue, with `redelivered`."""
        return Verdict("requeue", text_of(error))

    def last_attempt_failed(self, context: Context, error: BaseException) -> None:
        """Nothing: a processor has no hook for its last attempt."""


class Job(Processor):
    """A callable that returns True for ACK and False for REJECT."""

    def status_of(self, result: Any) -> Status:
        """Map True to ACK and False to REJECT."""
        if result is True:
            return ACK
        if result is False:
            return REJECT
        raise InvalidStatus(f"job {self.name} returned {result!r}; a job must return True or False")


_BY_TEXT = {status.value: status for status in Status}


def _roles(function: Callable[..., Any], name: str) -> tuple[list[str], Schema | None]:
    """What each parameter of a function gets: message, session or body; and the body's type."""
    try:
        hints = get_type_hints(function)
    except Exception:  # a name that exists for type checkers only
        hints = {}
    roles: list[str] = []
    schema: Schema | None = None
    places = iter(("message", "session"))
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            raise InvalidArgument(f"{name}: {parameter.name} must not be keyword-only")
        hint = hints.get(parameter.name)
        if parameter.name == "body" or is_body_type(hint):
            if schema is not None:
                raise InvalidArgument(f"{name} takes the body twice")
            schema = Schema.of(Any if hint is None else hint, name)
            roles.append("body")
        elif isinstance(hint, type) and issubclass(hint, Delivery):
            roles.append("message")
        elif isinstance(hint, type) and issubclass(hint, ProcessorSession):
            roles.append("session")
        elif isinstance(hint, type) and issubclass(hint, Session):
            raise InvalidArgument(
                f"{name}: the session of a processor is an ackflow.worker.ProcessorSession, whose "
                "pushes go out with the acknowledgement; `session.outside` is the Session"
            )
        elif parameter.default is parameter.empty:
            role = next(places, None)
            if role is None:
                raise InvalidArgument(
                    f"{name} takes {parameter.name}; a processor takes the message, the session, "
                    "and a body: a parameter named body, or one whose type is a msgspec Struct or "
                    "a dataclass"
                )
            roles.append(role)
    return roles, schema


def wrap(
    target: Any,
    kind: type[Processor],
    *,
    name: str | None = None,
    schema: Any = None,
    time_limit: float | None = None,
    soft_time_limit: float | None = None,
    limit: Limit | None = None,
) -> Processor:
    """Make a processor of a function, of a class with `process`, or of an object of such a class."""
    function = target
    if inspect.isclass(target):
        try:
            target = target()
        except TypeError as error:
            raise InvalidArgument(
                f"{function.__qualname__} cannot be made without arguments; give an object of it "
                f"({error})"
            ) from None
        function = getattr(target, "process", None)
    elif not inspect.isroutine(target) and hasattr(target, "process"):
        function = target.process
    if not callable(function):
        raise InvalidArgument(
            f"{target!r} is neither a function nor an object with a method `process`"
        )
    label = name or _name_of(target)
    declared = None if schema is None else Schema.of(schema, label)
    named = validate.name(label, "name")
    return kind(function, named, declared, time_limit, soft_time_limit, limit)


def _name_of(target: Any) -> str:
    named = target if hasattr(target, "__qualname__") else type(target)
    return str(named.__qualname__).replace("<locals>.", "")


class Binding(Struct, eq=False):
    """A queue read for one group, and the handlers of its messages.

    A processor takes every message. Tasks share a binding; a header of the message names the task.
    """

    queue: str
    group: str
    processor: Processor | None = None
    tasks: dict[str, Any] = field(default_factory=dict)
    weight: int = 1
    max_deliver: int | None = None
    lease_seconds: float = LEASE_SECONDS
    ordering: Ordering | None = None
    one_by_one: bool = False  # the group has an order, which a batch in several threads would break

    @property
    def label(self) -> str:
        """The queue, and the group if it has a name."""
        return self.queue if self.group == QUEUE_MODE else f"{self.queue}/{self.group}"

    def handler_of(self, message: Delivery) -> Handler | None:
        """The handler of a message; None if it is for a task that this worker does not have."""
        if self.processor is not None:
            return self.processor
        return self.tasks.get(message.headers.get(TASK_HEADER, ""))

    def handlers(self) -> Sequence[Handler]:
        return [self.processor] if self.processor is not None else list(self.tasks.values())


TASK_HEADER = "ackflow-task"
