"""The worker: processors and tasks on a database or server, and how they are run."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar, get_args

from .. import validate
from ..clock import Clock
from ..errors import GroupNotFound, InvalidArgument, QueueNotFound
from ..options import DEFAULT_PARTITION, QUEUE_MODE, Ordering
from ..session.connect import connect
from ..session.encoding import Item
from ..session.session import Session
from ..session.transaction import Operations
from ..validate import Duration, Time
from .consumer import Consumer, Counts
from .context import RunState
from .extensions.limits import MemoryLimit, MessageLimit, TimeLimit
from .extensions.logs import ProcessedLog
from .extensions.redelivery import DELAY_SECONDS, RedeliveryDelay
from .extensions.signals import Signals
from .extensions.validation import BodyValidation
from .hooks import HOOKS, Extension, Hooks
from .processor import LEASE_SECONDS, Binding, Job, Processor, wrap
from .sending import Push, current
from .tasks import BACKOFF, Task

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")
Part = TypeVar("Part")
DEFAULT_QUEUE = "default"
Queues = str | Sequence[str] | Mapping[str, int]


class Worker:
    """Processors and tasks, and the database or server whose queues they serve.

    `url` is what `ackflow.connect` takes, or a session. The connection is made on first use, in the
    process that uses it. `redelivery_delay` is how long a redelivered message is put off when its
    turn comes; 0 turns that off. `lease_seconds`: leases are renewed while messages are processed;
    this long after a worker was killed, others get its messages. `queue_sets` are named sets of
    queues with their weights, for `run(queue_set=...)`.
    """

    def __init__(
        self,
        url: str | os.PathLike[str] | Session,
        *,
        redelivery_delay: Duration = DELAY_SECONDS,
        lease_seconds: Duration = LEASE_SECONDS,
        queue_sets: Mapping[str, Queues] | None = None,
        **connection: Any,
    ) -> None:
        self.url = url
        self.results: Any = None  # set by an extension that keeps results
        self._connection = connection
        self._redelivery_delay = validate.seconds(redelivery_delay, "redelivery_delay")
        self._lease_seconds = validate.positive(lease_seconds, "lease_seconds")
        self.queue_sets = dict(queue_sets or {})
        self._session = url if isinstance(url, Session) else None
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._bindings: dict[tuple[str, str], Binding] = {}
        self._parts: list[Any] = []
        self._hooks: Hooks | None = None
        self._consumer: Consumer | None = None

    def __repr__(self) -> str:
        queues = ", ".join(binding.label for binding in self._bindings.values())
        return f"<Worker of {queues or 'no queues'}>"

    # declaring

    def processor(
        self,
        queue: str,
        *,
        group: str = QUEUE_MODE,
        name: str | None = None,
        schema: Any = None,
        weight: int = 1,
        max_deliver: int | None = None,
        ordering: Ordering | None = None,
        lease_seconds: Duration | None = None,
        time_limit: Duration | None = None,
        soft_time_limit: Duration | None = None,
    ) -> Callable[[T], T]:
        """Register a function, or a class with `process`, that returns ACK, REJECT or REQUEUE.

        It takes the message and a `ProcessorSession`, and optionally the body: a parameter whose
        type is a msgspec Struct or a dataclass. With `group`, several processors of one queue each
        get every message. `max_deliver` makes a message a dead letter after so many deliveries.
        With `ordering="ordered"` the messages of a partition are processed one after the other.
        """
        return self._register(
            Processor, queue, group, name, schema, weight, max_deliver, ordering, lease_seconds,
            time_limit, soft_time_limit,
        )  # fmt: skip

    def job(
        self,
        queue: str,
        *,
        group: str = QUEUE_MODE,
        name: str | None = None,
        schema: Any = None,
        weight: int = 1,
        max_deliver: int | None = None,
        ordering: Ordering | None = None,
        lease_seconds: Duration | None = None,
        time_limit: Duration | None = None,
        soft_time_limit: Duration | None = None,
    ) -> Callable[[T], T]:
        """Register a callable that returns True for ACK and False for REJECT."""
        return self._register(
            Job, queue, group, name, schema, weight, max_deliver, ordering, lease_seconds,
            time_limit, soft_time_limit,
        )  # fmt: skip

    def _register(
        self, kind: type[Processor], queue: str, group: str, name: str | None, schema: Any,
        weight: int, max_deliver: int | None, ordering: Ordering | None,
        lease_seconds: Duration | None, time_limit: Duration | None, soft_time_limit: Duration | None,
    ) -> Callable[[T], T]:  # fmt: skip
        limits = _limits(time_limit, soft_time_limit)

        def register(target: T) -> T:
            made = wrap(
                target, kind, name=name, schema=schema, time_limit=limits[0],
                soft_time_limit=limits[1],
            )  # fmt: skip
            binding = self._binding(queue, group, lease_seconds)
            if binding.processor is not None or binding.tasks:
                other = binding.handlers()[0].name
                raise InvalidArgument(
                    f"queue {queue} is taken by {other}; give {made.name} a group of its own, and "
                    "each gets every message"
                )
            binding.processor = made
            binding.weight = validate.integer(weight, "weight", 1, 1_000_000)
            if max_deliver is not None:
                binding.max_deliver = validate.integer(max_deliver, "max_deliver", 1, 1 << 31)
            if ordering is not None:
                binding.ordering = validate.one_of(ordering, "ordering", get_args(Ordering))
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
        **options: Any,
    ) -> Callable[[Callable[P, R]], Task[P, R]]:
        """Make a task of a function: `send_mail.push(...)` has the signature of the function.

        A task that raises is tried again up to `retries` times (None: for ever), each time after
        the next pause of `backoff`; then its message becomes a dead letter. `options` are those of
        the worker's extensions.
        """
        limits = _limits(time_limit, soft_time_limit)
        if retries is not None:
            validate.integer(retries, "retries", 0, 1_000_000)

        def register(function: Callable[P, R]) -> Task[P, R]:
            label = name or getattr(function, "__qualname__", "").replace("<locals>.", "")
            made = Task(
                self, function, name=label, queue=queue, group=group, retries=retries,
                backoff=backoff, time_limit=limits[0], soft_time_limit=limits[1],
                priority=priority, options=options,
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
            binding.tasks[made.name] = made
            return made

        return register

    def add(self, part: Part) -> Part:
        """Add an extension or middleware; the first added is called first.

        Any object with methods of these names will do.
        """
        if not any(callable(getattr(type(part), name, None)) for name in HOOKS):
            raise InvalidArgument(
                f"{part!r} is no extension or middleware: it has none of the hooks"
            )
        self._parts.append(part)
        self._hooks = None
        if hasattr(part, "attached"):
            part.attached(self)
        return part

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

    # sending

    @property
    def session(self) -> Session:
        """The session of this process; opened on first use."""
        with self._lock:
            if self._session is None or (
                self._pid != os.getpid() and self._session is not self.url
            ):
                assert not isinstance(self.url, Session)
                self._session = connect(self.url, **self._connection)
                self._pid = os.getpid()
            return self._session

    def connect_to(self, url: str | os.PathLike[str], **connection: Any) -> None:
        """Use another database or server, as the command line does; before the first use."""
        if self._session is not None:
            raise InvalidArgument("the worker is connected already")
        self.url = url
        self._connection = {k: v for k, v in connection.items() if v is not None}

    def use(self, session: Session, *more: Any) -> Callable[[], None]:
        """Use a session and more parts until the returned function is called; for tests."""
        before = self.url, self._session, self._parts
        self.url = self._session = session
        self._parts, self._hooks = [*self._parts, *more], None

        def restore() -> None:
            self.url, self._session, self._parts = before
            self._hooks = None

        return restore

    @property
    def clock(self) -> Clock:
        """The clock of the session."""
        return self.session.broker.clock

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
    ) -> str | None:
        """Push a message for a processor; returns its id.

        Inside a processor, the push goes out with the acknowledgement and the id is not known yet.
        """
        push = Push(queue, data, partition, priority, delay, at, key, dict(headers or {}))
        self.send(push)
        return push.message_id

    def send(self, push: Push) -> None:
        """Send a push: now, with the batch, or with the acknowledgement of the current message."""
        context = current()
        if context is not None and context.worker is self:
            context.session.send(push)
            return
        gathered = _batch.get()
        self.hooks.before_push(push)
        if gathered is not None and push.key is None:
            gathered.append((self, push))
        else:
            push.through(self.session)
        self.hooks.call("after_push", push)

    def add_to(self, push: Push, operations: Operations) -> None:
        """Add a push to a transaction, through the middleware."""
        self.hooks.before_push(push)
        push.into(operations)
        self.hooks.call("after_push", push)

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Send the pushes of the block together at its end; if it raises, none is sent."""
        gathered: list[tuple[Worker, Push]] = []
        token = _batch.set(gathered)
        try:
            yield
        finally:
            _batch.reset(token)
        self._send_batch([push for _, push in gathered])

    def _send_batch(self, pushes: list[Push]) -> None:
        by_queue: dict[str, list[Push]] = {}
        for push in pushes:
            by_queue.setdefault(push.queue, []).append(push)
        items = {queue: [_item(push) for push in some] for queue, some in by_queue.items()}
        if not items:
            return
        if len(items) == 1:
            receipts = [self.session.push(queue, some) for queue, some in items.items()]
        else:
            with self.session.transaction() as transaction:
                for queue, some in items.items():
                    transaction.push(queue, some)
            assert transaction.committed is not None
            receipts = transaction.committed.receipts
        for some_pushes, receipt in zip(by_queue.values(), receipts, strict=True):
            for push, id in zip(some_pushes, receipt, strict=True):
                push.message_id = id

    # running

    def run(
        self,
        *,
        queues: Queues | None = None,
        queue_set: str | None = None,
        mode: str = "round-robin",
        concurrency: int = 1,
        prefetch: int | None = None,
        message_limit: int | None = None,
        time_limit: Duration | None = None,
        memory_limit: int | None = None,
        keep_going: bool = False,
    ) -> Counts:
        """Process messages until a signal, a limit or `stop` ends it; returns the counts.

        An exception of a processor is raised here, after its message was requeued and everything
        else was finished; with `keep_going` it is only logged. `prefetch` is how many messages are
        popped ahead; None: as many as are begun within 0.2 s.
        """
        state = RunState(self)
        limits: list[Extension] = []
        if time_limit is not None:
            limits.append(TimeLimit(time_limit))
        if memory_limit is not None:
            limits.append(MemoryLimit(memory_limit))
        if message_limit is not None:
            limits.append(MessageLimit(message_limit))
        bindings = self.select(queues, queue_set)
        self.prepare(bindings)
        consumer = Consumer(
            self.session, bindings, state, Hooks([Signals(), *self.parts(), *limits]), mode=mode,
            concurrency=concurrency, prefetch=prefetch, keep_going=keep_going,
        )  # fmt: skip
        self._consumer = consumer
        try:
            return consumer.run()
        finally:
            self._consumer = None

    def stop(self, reason: str = "stopped") -> None:
        """Stop `run`, from any thread: what is being processed is finished first."""
        if self._consumer is not None:
            self._consumer.stop(reason)

    def close(self) -> None:
        """Close the session, if the worker opened it."""
        with self._lock:
            if self._session is not None and self._session is not self.url:
                self._session.close()
                self._session = None

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.close()

    @property
    def hooks(self) -> Hooks:
        """The hooks of what was added."""
        if self._hooks is None:
            self._hooks = Hooks(self._parts)
        return self._hooks

    def parts(self) -> list[Any]:
        """The built-in extensions and what was added, in the order in which they are called."""
        delay = RedeliveryDelay(self._redelivery_delay)
        return [delay, BodyValidation(), *self._parts, ProcessedLog()]

    def select(self, queues: Queues | None, queue_set: str | None = None) -> list[Binding]:
        """The bindings of some queues, or of a named set; without either, all."""
        if queue_set is not None:
            if queues is not None:
                raise InvalidArgument("give either queues or a queue set, not both")
            if queue_set not in self.queue_sets:
                known = ", ".join(sorted(self.queue_sets)) or "none"
                raise InvalidArgument(f"no queue set {queue_set!r}; there are: {known}")
            queues = self.queue_sets[queue_set]
        if not self._bindings:
            raise InvalidArgument("the worker has no processors and no tasks")
        if queues is None:
            return self.bindings
        weights = weights_of(queues)
        chosen = []
        for queue, weight in weights.items():
            found = [b for b in self.bindings if queue in (b.queue, b.label)]
            if not found:
                known = ", ".join(b.label for b in self.bindings)
                raise InvalidArgument(f"the worker has no queue {queue!r}; it has: {known}")
            for binding in found:
                if weight is not None:
                    binding.weight = weight
                chosen.append(binding)
        return chosen

    def prepare(self, bindings: Iterable[Binding]) -> None:
        """Check the options of tasks, and create the groups that do not exist.

        A new group has no limits of its own: what becomes of a failure is decided by the status, or
        by the task. The options of an existing group stay, except those that a processor names.
        """
        known = {name for part in self._parts for name in getattr(part, "options", ())}
        for binding in bindings:
            for task in binding.tasks.values():
                if unknown := sorted(set(task.options) - known):
                    raise InvalidArgument(
                        f"task {task.name} has the option {unknown[0]!r}, which no extension of the "
                        "worker knows"
                    )
            self._prepare_group(binding)

    def _prepare_group(self, binding: Binding) -> None:
        named = {"max_deliver": binding.max_deliver, "ordering": binding.ordering}
        chosen: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
        try:
            rules = self.session.group_stats(binding.queue, binding.group).settings
        except (QueueNotFound, GroupNotFound):
            options = {"retry_limit": None, "max_deliver": None, **chosen}
            rules = self.session.group(binding.queue, binding.group, **options).settings
        else:
            if any(getattr(rules, name) != value for name, value in chosen.items()):
                rules = self.session.group(binding.queue, binding.group, **chosen).settings
        binding.max_deliver = rules.max_deliver
        binding.one_by_one = rules.ordering != "shared"


_batch: ContextVar[list[tuple[Worker, Push]] | None] = ContextVar("ackflow_batch", default=None)


def _item(push: Push) -> Item:
    return Item(
        data=push.data, partition=push.partition, priority=push.priority, delay=push.delay,
        at=push.at, headers=push.headers or None,
    )  # fmt: skip


def _limits(hard: Duration | None, soft: Duration | None) -> tuple[float | None, float | None]:
    limits = (
        validate.positive_or_none(hard, "time_limit"),
        validate.positive_or_none(soft, "soft_time_limit"),
    )
    if limits[0] is not None and limits[1] is not None and limits[1] >= limits[0]:
        raise InvalidArgument("soft_time_limit must be less than time_limit")
    return limits


def weights_of(queues: Queues) -> dict[str, int | None]:
    """Queues with their weights: `"mail=3,orders"`, `["mail=3", "orders"]` or `{"mail": 3}`."""
    if isinstance(queues, Mapping):
        return {name: validate.integer(n, "weight", 1, 1_000_000) for name, n in queues.items()}
    parts = queues.split(",") if isinstance(queues, str) else list(queues)
    weights: dict[str, int | None] = {}
    for part in parts:
        name, _, weight = part.strip().partition("=")
        if name in weights:
            raise InvalidArgument(f"queue {name} is given twice")
        if weight and not (weight.isascii() and weight.isdecimal() and int(weight)):
            raise InvalidArgument(f"the weight of queue {name} must be an integer of at least 1")
        weights[validate.name(name, "queue")] = int(weight) if weight else None
    return weights
