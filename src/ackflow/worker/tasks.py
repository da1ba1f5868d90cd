"""Typed tasks: plain functions whose calls are messages."""

import hashlib
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    ParamSpec,
    TypedDict,
    TypeVar,
    Union,
    Unpack,
    cast,
    get_type_hints,
    overload,
)  # fmt: skip

import msgspec

from .. import validate
from ..broker.requests import Verdict
from ..errors import InvalidArgument, text_of
from ..session.encoding import encode
from ..session.messages import Delivery
from ..validate import Duration, Time
from .context import Context
from .coordination.limits import Limit
from .processor import TASK_HEADER
from .results import Progress, Result, ask, result_of
from .schema import InvalidBody
from .sending import Push, current
from .status import ACK, Retry, Status

if TYPE_CHECKING:
    from ..session.within import Within
    from .worker import Worker

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
X = TypeVar("X")
BACKOFF = (1.0, 5.0, 30.0, 120.0, 600.0)


class PushOptions(TypedDict, total=False):
    """The keywords of `push_with`."""

    delay: Duration | None
    at: Time | None
    priority: int | None
    key: str | None
    partition: str
    headers: dict[str, str] | None
    within: "Within | None"


class Handle(Generic[R]):
    """A task that was pushed.

    `id` is the message id; None inside a processor, where the push goes out with the
    acknowledgement.
    """

    def __init__(self, worker: "Worker", push: Push) -> None:
        self._worker = worker
        self.push = push

    def __repr__(self) -> str:
        return f"<Handle of {self.push.task} {self.id or 'with the acknowledgement'}>"

    @property
    def id(self) -> str | None:
        """The id of the message."""
        return self.push.message_id

    @property
    def duplicate(self) -> bool:
        """Whether it was not pushed, because the same unique task waits or runs."""
        return self.push.duplicate

    def result(self, timeout: Duration | None = None) -> R:
        """Wait for what the task returns; the task must have `result=True`.

        Raises ResultFailed if it failed for good, ResultTimeout if there is no result in time.
        """
        return cast(R, self._result().result(timeout))

    @property
    def ready(self) -> bool:
        """Whether there is a result, or the task failed for good."""
        return self._result().ready

    def progress(self) -> Progress | None:
        """Return the recorded progress of the task; None if there is none."""
        return self._result().progress()

    def _result(self) -> Result:
        if self.duplicate:
            raise InvalidArgument(
                f"{self.push.task} was not pushed, because the same one waits or runs; the handle "
                "of that push has the result"
            )
        if self.id is None and current() is not None:
            raise InvalidArgument(
                f"{self.push.task} is pushed with the acknowledgement of this message, so there is "
                "nothing to wait for here"
            )
        return result_of(self._worker.session, self.push.headers)


class Task(Generic[P, R]):
    """A function whose calls can be pushed to a queue and run by a worker.

    Calling it runs it here. `push` has the signature of the function.
    """

    counts_failures = True
    fails_consumer = False

    def __init__(
        self,
        worker: "Worker",
        function: Callable[P, R],
        *,
        name: str,
        queue: str,
        group: str,
        retries: int | None,
        backoff: Sequence[Duration],
        time_limit: float | None,
        soft_time_limit: float | None,
        priority: int,
        limit: Limit | None,
        keep: float | None,
        unique: bool | str | Callable[..., object],
    ) -> None:
        self._worker = worker
        self.function = function
        self.name = validate.name(name, "name")
        self.queue = queue
        self.group = group
        self.attempts = None if retries is None else retries + 1
        self.backoff = [validate.seconds(one, "backoff") for one in backoff] or [0.0]
        self.time_limit = time_limit
        self.soft_time_limit = soft_time_limit
        self.priority = validate.priority(priority)
        self.limit = limit
        self._keep = keep  # seconds to keep results
        self._unique = unique
        self._arguments = Arguments(function, self.name)
        self._on_last_attempt: Callable[[Context, BaseException], Any] | None = None
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", name)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly, without a queue."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.name} of queue {self.queue}>"

    @overload
    def push(
        self: "Task[P, Coroutine[Any, Any, X]]", *args: P.args, **kwargs: P.kwargs
    ) -> Handle[X]: ...
    @overload
    def push(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]: ...
    def push(self, *args: P.args, **kwargs: P.kwargs) -> Handle[Any]:
        """Push a call of the task; the arguments are validated first.

        Inside a processor or a task it goes out with the acknowledgement.
        """
        return self.push_with()(*args, **kwargs)

    @overload
    def push_with(
        self: "Task[P, Coroutine[Any, Any, X]]", **options: Unpack[PushOptions]
    ) -> Callable[P, Handle[X]]: ...
    @overload
    def push_with(self, **options: Unpack[PushOptions]) -> Callable[P, Handle[R]]: ...
    def push_with(self, **options: Unpack[PushOptions]) -> Callable[P, Handle[Any]]:
        """Push with options: `send_mail.push_with(delay=60)(to, subject="Hello")`.

        A repeat with the same `key` adds nothing. With `within=ackflow.within(connection)` the push
        is a part of the open transaction of that connection. The others are `at`, `priority`,
        `partition` and `headers`.
        """
        if unknown := options.keys() - PushOptions.__annotations__.keys():
            raise InvalidArgument(f"push_with has no option {', '.join(sorted(unknown))}")
        given = options.copy()
        key, headers = given.pop("key", None), given.pop("headers", None)
        chosen = {name: value for name, value in given.items() if value is not None}

        def push(*args: P.args, **kwargs: P.kwargs) -> Handle[Any]:
            made = self.make_push(args, kwargs, key=key, headers=headers)
            for name, value in chosen.items():
                setattr(made, name, value)
            self._worker.send(made)
            return Handle(self._worker, made)

        return push

    def make_push(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Push:
        """The push of a call, which is not sent yet; raises if the arguments do not fit."""
        body = self._arguments.encode(args, kwargs)
        given = {**(headers or {}), TASK_HEADER: self.name}
        if self._keep is not None:
            repeat = None if key is None else f"{self.queue}/{key}"
            given.update(ask(self._keep, repeat).header)
        return Push(
            self.queue, body, priority=self.priority, key=key, headers=given, task=self.name,
            unique=self._unique_key(body, args, kwargs),
        )  # fmt: skip

    def _unique_key(
        self, body: msgspec.Raw, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str | None:
        if self._unique is False:
            return None
        if self._unique is True:
            return f"{self.name}:{hashlib.blake2b(body, digest_size=12).hexdigest()}"
        chosen = self._unique(*args, **kwargs) if callable(self._unique) else self._unique
        return f"{self.name}:{chosen}"

    def on_last_attempt(
        self, hook: Callable[[Context, BaseException], Any]
    ) -> Callable[[Context, BaseException], Any]:
        """Register `hook(context, error)`, called when the last attempt has failed.

        What it pushes through `context.session` goes out with the dead letter.
        """
        if inspect.iscoroutinefunction(hook):
            raise InvalidArgument("the hook of the last attempt must not be asynchronous")
        self._on_last_attempt = hook
        return hook

    # what the consumer calls

    def call(self, context: Context) -> Any:
        """Decode and validate the arguments, and run the function."""
        args, kwargs = self._arguments.decode(context.message.raw)
        return self.function(*args, **kwargs)

    def arguments_of(self, message: Delivery) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """The arguments of a call; raises InvalidBody."""
        return self._arguments.decode(message.raw)

    def status_of(self, result: Any) -> Status:
        """A task that returns is done; it may also return a status."""
        return result if isinstance(result, Status) else ACK

    def verdict_of(self, context: Context, error: BaseException) -> Verdict:
        """Try again after the back-off; after the last attempt, keep it as a dead letter."""
        reason = text_of(error)
        if context.last_attempt:
            return Verdict("dead_letter", reason)
        delay = error.delay if isinstance(error, Retry) else None
        if delay is None:
            delay = self.backoff[min(context.attempt, len(self.backoff)) - 1]
        return Verdict("nack", reason, delay)

    def last_attempt_failed(self, context: Context, error: BaseException) -> None:
        """Call the hook of the last attempt."""
        if self._on_last_attempt is not None:
            self._on_last_attempt(context, error)


class Arguments:
    """The arguments of a function as a JSON object, by parameter; validated by their type hints."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._name = name
        self._signature = inspect.signature(function)
        parameters = self._signature.parameters.values()
        self._positional = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]
        self._rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)
        self._more = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), None)
        if self._rest is not None:  # what comes before *args can only be passed by position
            self._positional = [
                p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
            ]
        try:
            hints = get_type_hints(function, include_extras=True)
        except Exception as error:
            raise InvalidArgument(
                f"the type hints of task {name} cannot be read: {error}"
            ) from None
        fields = [_field(p, hints.get(p.name, Any)) for p in parameters]
        try:
            self._type = msgspec.defstruct(
                "Arguments", fields, kw_only=True, forbid_unknown_fields=True
            )
            self._decoder = msgspec.json.Decoder(self._type)
        except (TypeError, RuntimeError) as error:
            raise InvalidArgument(
                f"the arguments of task {name} must be JSON values, dataclasses or msgspec "
                f"Structs: {error}"
            ) from None
        self._names = [p.name for p in parameters]

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> msgspec.Raw:
        """The body of a message with these arguments; raises InvalidArgument if they do not fit."""
        try:
            bound = self._signature.bind(*args, **kwargs)
            raw = encode(bound.arguments)
            self._decoder.decode(raw)
        except (TypeError, InvalidArgument, msgspec.MsgspecError) as error:
            raise InvalidArgument(f"{self._name} was not pushed: {error}") from None
        return msgspec.Raw(raw)

    def decode(self, raw: bytes) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a message; raises InvalidBody."""
        try:
            found = self._decoder.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidBody(f"arguments of task {self._name}: {error}") from None
        named = {name: getattr(found, name) for name in self._names}
        named = {name: value for name, value in named.items() if value is not msgspec.UNSET}
        args = [named.pop(name) for name in self._positional if name in named]
        if self._rest is not None:
            args += named.pop(self._rest, ())
        kwargs = named.pop(self._more, {}) if self._more is not None else {}
        return args, {**named, **kwargs}


def _field(parameter: inspect.Parameter, hint: Any) -> Any:
    """A field of the body; one that is not given is left to the default of the function."""
    if parameter.kind is parameter.VAR_POSITIONAL:
        return (parameter.name, list[hint], msgspec.field(default_factory=list))
    if parameter.kind is parameter.VAR_KEYWORD:
        return (parameter.name, dict[str, hint], msgspec.field(default_factory=dict))
    if parameter.default is parameter.empty:
        return (parameter.name, hint)
    return (parameter.name, Union[hint, msgspec.UnsetType], msgspec.UNSET)  # noqa: UP007
