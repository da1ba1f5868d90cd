"""What a worker declares: processors, jobs, tasks, schedules, extensions and middleware."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar, Unpack, cast, get_args

from msgspec import Struct

from .. import validate
from ..errors import InvalidArgument
from ..options import QUEUE_MODE, Ordering
from ..session.results import TTL_SECONDS
from ..session.transaction import Operations
from ..validate import Duration
from .coordination.limits import Limit, Rate
from .coordination.schedules import (
    Missed,
    Schedule,
    Spec,
    Tick,
    cron,
    every,
    schedule_of,
    tick_headers,
)
from .extensions.keyed import KEYED, LimitHooks
from .hooks import HOOKS, Hooks
from .processor import Binding, Job, Processor, wrap
from .tasks import BACKOFF, Task

if TYPE_CHECKING:
    from .worker import Worker

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")
Part = TypeVar("Part")
DEFAULT_QUEUE = "default"
Key = str | Callable[..., object]


class HandlerOptions(TypedDict, total=False):
    """The keywords of `processor` and `job`: the fields of `Options`."""

    name: str | None
    schema: Any
    weight: int
    max_deliver: int | None
    ordering: Ordering | None
    lease_seconds: Duration | None
    time_limit: Duration | None
    soft_time_limit: Duration | None
    concurrency: int | None
    concurrency_key: Key | None
    rate: str | Rate | None


class Options(Struct, frozen=True):
    """The options of a processor or a job."""

    name: str | None = None
    schema: Any = None
    weight: int = 1
    max_deliver: int | None = None
    ordering: Ordering | None = None
    lease_seconds: Duration | None = None
    time_limit: Duration | None = None
    soft_time_limit: Duration | None = None
    concurrency: int | None = None
    concurrency_key: Key | None = None
    rate: str | Rate | None = None


class Declarations:
    """The handlers of a worker, and what was added to it."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self._bindings: dict[tuple[str, str], Binding] = {}
        self._parts: list[Any] = []
        self._keyed = [kind() for kind in KEYED]
        self._hooks: Hooks | None = None
        self.declared_schedules: dict[str, Schedule] = {}

    def processor(
        self, queue: str, *, group: str = QUEUE_MODE, **options: Unpack[HandlerOptions]
    ) -> Callable[[T], T]:
        """Register a function, or a class with `process`, that returns ACK, REJECT or REQUEUE.

        It takes the message and a `ProcessorSession`, and optionally the body: a parameter whose
        type is a msgspec Struct or a dataclass, or which has a JSON Schema (`schema`). With `group`,
        several processors of one queue each get every message. `max_deliver` makes a message a dead
        letter after so many deliveries. With `ordering="ordered"` the messages of a partition are
        processed one after the other. `time_limit`, `soft_time_limit` and `lease_seconds` are for
        one message; `weight` is the share of the queue in the mode `weighted`. `concurrency`,
        `rate` and `concurrency_key` (a text, or a function of the message) limit it across all
        workers, as those of a task.
        """
        return self._register(Processor, queue, group, Options(**options))

    def job(
        self, queue: str, *, group: str = QUEUE_MODE, **options: Unpack[HandlerOptions]
    ) -> Callable[[T], T]:
        """Register a callable that returns True for ACK and False for REJECT.

        The options are those of `processor`.
        """
        return self._register(Job, queue, group, Options(**options))

    def _register(
        self, kind: type[Processor], queue: str, group: str, options: Options
    ) -> Callable[[T], T]:
        times = _times(options.time_limit, options.soft_time_limit)
        limit = Limit.of(options.concurrency, options.concurrency_key, options.rate)

        def register(target: T) -> T:
            made = wrap(
                target, kind, name=options.name, schema=options.schema,
                time_limit=times[0], soft_time_limit=times[1], limit=limit,
            )  # fmt: skip
            binding = self._binding(queue, group, options.lease_seconds)
            if binding.processor is not None or binding.tasks:
                other = binding.handlers()[0].name
                raise InvalidArgument(
                    f"queue {queue} is taken by {other}; give {made.name} a group of its own, and "
                    "each gets every message"
                )
            binding.processor = made
            binding.weight = validate.integer(options.weight, "weight", 1, 1_000_000)
            _limit_deliveries(binding, options.max_deliver)
            if options.ordering is not None:
                binding.ordering = validate.one_of(options.ordering, "ordering", get_args(Ordering))
            self._hooks = None
            return target

        return register

    def task(
        self,
        queue: str = DEFAULT_QUEUE,
        *,
        name: str | None = None,
        group: str = QUEUE_MODE,
        retries: int | None = 5,
        backoff: Sequence[Duration] = BACKOFF,
        time_limit: Duration | None = None,
        soft_time_limit: Duration | None = None,
        priority: int = 0,
        max_deliver: int | None = None,
        concurrency: int | None = None,
        concurrency_key: Key | None = None,
        rate: str | Rate | None = None,
        result: bool | Duration = False,
        unique: bool | Key = False,
    ) -> Callable[[Callable[P, R]], Task[P, R]]:
        """Make a task of a function: `send_mail.push(...)` has the signature of the function.

        A task that raises is retried up to `retries` times (None: without limit), each time after
        the next pause of `backoff`; then its message becomes a dead letter. `max_deliver` also counts
        deliveries that ended with the death of their worker; it is that of all tasks of the queue.

        `concurrency` is how many run at once, `rate` ("10/s") how many start per time, in all
        workers together; for each `concurrency_key`, a text or a function of the task's arguments,
        of which one runs at once by default. `result` keeps what the function returns for an hour,
        or for so many seconds. While a `unique` task waits or runs, it is not pushed again: True
        for each set of arguments, or a text or a function of the arguments.
        """
        times = _times(time_limit, soft_time_limit)
        limit = Limit.of(concurrency, concurrency_key, rate)
        if retries is not None:
            validate.integer(retries, "retries", 0, 1_000_000)
        keep = None if result is False else TTL_SECONDS
        if not isinstance(result, bool):
            keep = validate.positive(result, "result")
        if not (isinstance(unique, bool | str) or callable(unique)):
            raise InvalidArgument("unique must be True, a text or a function of the arguments")

        def register(function: Callable[P, R]) -> Task[P, R]:
            label = name or getattr(function, "__qualname__", "").replace("<locals>.", "")
            made = Task(
                cast("Worker", self), function, name=label, queue=queue, group=group,
                retries=retries, backoff=backoff, time_limit=times[0], soft_time_limit=times[1],
                priority=priority, limit=limit, keep=keep, unique=unique,
            )  # fmt: skip
            binding = self._binding(queue, group, None)
            if binding.processor is not None:
                raise InvalidArgument(
                    f"queue {queue} is taken by the processor {binding.processor.name}; a task "
                    "needs another queue"
                )
            if made.name in binding.tasks:
                raise InvalidArgument(
                    f"queue {queue} has a task {made.name}; give one of them a name"
                )
            _limit_deliveries(binding, max_deliver)
            binding.tasks[made.name] = made
            self._hooks = None
            return made

        return register

    # schedules

    def every(
        self,
        interval: str | Duration,
        *,
        arguments: Mapping[str, Any] | None = None,
        name: str | None = None,
        missed: Missed = "once",
    ) -> Callable[[Callable[P, R]], Task[P, R]]:
        """Run a task at an interval: "15m", "1h30m" or seconds.

        It is put on a task, or on a function, which becomes a task. Each tick is pushed once,
        however many workers run. `missed` says what becomes of ticks that were due while no worker
        ran: pushed as one (`once`), left out (`skip`) or pushed each (`all`). A schedule has the
        name of its task; a second one of a task needs a `name`.
        """
        return self._scheduled(every(interval), arguments, name, missed)

    def cron(
        self,
        expression: str,
        *,
        tz: str = "UTC",
        arguments: Mapping[str, Any] | None = None,
        name: str | None = None,
        missed: Missed = "once",
    ) -> Callable[[Callable[P, R]], Task[P, R]]:
        """Run a task by a cron expression in a time zone; otherwise as `every`."""
        return self._scheduled(cron(expression, tz), arguments, name, missed)

    def schedule(
        self, name: str, spec: Spec, *, queue: str, data: Any = None, missed: Missed = "once"
    ) -> None:
        """Push a message for a processor at every tick; `spec` is `every(...)` or `cron(...)`."""
        self._add_schedule(schedule_of(name, spec, queue=queue, data=data, missed=missed))

    def _scheduled(
        self, spec: Spec, arguments: Mapping[str, Any] | None, name: str | None, missed: Missed
    ) -> Callable[[Callable[P, R]], Task[P, R]]:
        def register(function: Callable[P, R]) -> Task[P, R]:
            task = function if isinstance(function, Task) else self.task()(function)
            task.make_push((), dict(arguments or {}))  # validates them

            def send(t: Operations, tick: Tick) -> None:
                push = task.make_push((), dict(arguments or {}), headers=tick_headers(tick))
                cast("Worker", self).add_to(push, t)

            self._add_schedule(schedule_of(name or task.name, spec, send=send, missed=missed))
            return task

        return register

    def _add_schedule(self, made: Schedule) -> None:
        if made.name in self.declared_schedules:
            raise InvalidArgument(
                f"there is a schedule {made.name!r} already; give one of them a name"
            )
        self.declared_schedules[made.name] = made

    # extensions and middleware

    def add(self, part: Part) -> Part:
        """Add an extension or middleware; the first added is called first.

        Any object with methods of these names will do.
        """
        found = [name for name in HOOKS if callable(getattr(type(part), name, None))]
        if not found:
            raise InvalidArgument(
                f"{part!r} is no extension or middleware: it has none of the hooks"
            )
        for name in found:
            if inspect.iscoroutinefunction(getattr(part, name)):
                raise InvalidArgument(f"{name} of {part!r} must not be asynchronous")
        self._parts.append(part)
        self._hooks = None
        if hasattr(part, "attached"):
            part.attached(self)
        return part

    def added(self) -> list[Any]:
        """What was added, and the hooks of the options that handlers use."""
        limited = any(one.limit is not None for b in self.bindings for one in b.handlers())
        needed = [one for one in self._keyed if limited or not isinstance(one, LimitHooks)]
        return [*self._parts, *needed]

    @property
    def hooks(self) -> Hooks:
        """The hooks of what was added."""
        if self._hooks is None:
            self._hooks = Hooks(self.added())
        return self._hooks

    def _binding(self, queue: str, group: str, lease_seconds: Duration | None) -> Binding:
        key = validate.name(queue, "queue"), validate.name(group, "group")
        seconds = validate.positive_or_none(lease_seconds, "lease_seconds")
        if key not in self._bindings:
            self._bindings[key] = Binding(queue, group, lease_seconds=self._lease_seconds)
        if seconds is not None:
            self._bindings[key].lease_seconds = seconds
        return self._bindings[key]

    @property
    def bindings(self) -> list[Binding]:
        """The queues of the worker and their handlers, in the order of their declaration."""
        return list(self._bindings.values())


def _limit_deliveries(binding: Binding, most: int | None) -> None:
    if most is None:
        return
    validate.integer(most, "max_deliver", 1, 1 << 31)
    if binding.max_deliver not in (None, most):
        raise InvalidArgument(
            f"queue {binding.label} has max_deliver={binding.max_deliver} already; all tasks of a "
            "queue share it"
        )
    binding.max_deliver = most


def _times(hard: Duration | None, soft: Duration | None) -> tuple[float | None, float | None]:
    limits = (
        validate.positive_or_none(hard, "time_limit"),
        validate.positive_or_none(soft, "soft_time_limit"),
    )
    if limits[0] is not None and limits[1] is not None and limits[1] >= limits[0]:
        raise InvalidArgument("soft_time_limit must be less than time_limit")
    return limits
