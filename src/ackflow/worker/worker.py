"""The worker: processors and tasks on a database or server, and how they are run."""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from .. import validate
from ..clock import Clock
from ..errors import GroupNotFound, InvalidArgument, QueueNotFound
from ..options import DEFAULT_PARTITION
from ..session.connect import connect
from ..session.encoding import Item
from ..session.session import Session
from ..session.transaction import Operations
from ..session.within import Within
from ..validate import Duration, Time
from .consumer.consumer import Consumer, Counts
from .context import Context, RunState
from .coordination.jobs import Jobs
from .coordination.presence import Presence
from .coordination.schedules import Schedules
from .declarations import Declarations
from .extensions.limits import MemoryLimit, MessageLimit, TimeLimit
from .extensions.logs import ProcessedLog
from .extensions.redelivery import DELAY_SECONDS, DeliveryHint, RedeliveryDelay
from .extensions.signals import Signals
from .extensions.validation import BodyValidation
from .hooks import Extension, Hooks
from .processor import LEASE_SECONDS, Binding
from .sending import Push, current

if TYPE_CHECKING:
    from ..remote.retry import RetryPolicy
    from ..store.durability import MayLose

log = logging.getLogger("ackflow.worker")
Queues = str | Sequence[str] | Mapping[str, int]


class Connection(TypedDict, total=False):
    """The keywords of `ackflow.connect`."""

    consumer: str | None
    may_lose: "MayLose | None"
    clock: Clock | None
    upkeep: bool
    token: str | None
    ca_file: str | os.PathLike[str] | None
    retry: "RetryPolicy | None"


class Worker(Declarations):
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
        **connection: Unpack[Connection],
    ) -> None:
        if unknown := connection.keys() - Connection.__annotations__.keys():
            raise InvalidArgument(f"Worker has no option {', '.join(sorted(unknown))}")
        super().__init__(validate.positive(lease_seconds, "lease_seconds"))
        self.url = url
        self._connection: Connection = connection
        self.redelivery_delay = validate.seconds(redelivery_delay, "redelivery_delay")
        self.queue_sets = dict(queue_sets or {})
        self._session = url if isinstance(url, Session) else None
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._consumer: Consumer | None = None

    def __repr__(self) -> str:
        queues = ", ".join(binding.label for binding in self._bindings.values())
        return f"<Worker of {queues or 'no queues'}>"

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

    def connect_to(self, url: str | os.PathLike[str], **connection: Unpack[Connection]) -> None:
        """Use another database or server, as the command line does; before the first use."""
        if self._session is not None:
            raise InvalidArgument("the worker is connected already")
        self.url = url
        self._connection = connection

    def use(self, session: Session, *more: Any) -> Callable[[], None]:
        """Use a session and more parts until the returned function is called; for tests."""
        before = self.url, self._session, self._parts
        self.url = self._session = session
        self._parts, self._hooks = [*self._parts, *more], None

        def restore() -> None:
            self.url, self._session, self._parts = before
            self._hooks = None

        return restore

    def current(self) -> Context:
        """The context of the message that is being processed here; raises outside a handler."""
        context = current()
        if context is None or context.worker is not self:
            raise InvalidArgument("no message of this worker is being processed here")
        return context

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
        unique: str | None = None,
        headers: Mapping[str, str] | None = None,
        within: Within | None = None,
    ) -> str | None:
        """Push a message for a processor; returns its id.

        A repeat with the same `key` adds nothing. While a message with the same `unique` waits or
        runs, nothing is pushed, and None is returned. Inside a processor, the push goes out with the
        acknowledgement and the id is not known yet. With `within=ackflow.within(connection)` it is
        a part of the open transaction of that connection.
        """
        push = Push(
            queue, data, partition, priority, delay, at, key, dict(headers or {}), unique=unique,
            within=within,
        )  # fmt: skip
        self.send(push)
        return push.message_id

    def send(self, push: Push) -> None:
        """Send a push: in its own transaction, in the user's, with the batch, or with the
        acknowledgement of the current message."""
        context = current()
        if push.within is None and context is not None and context.worker is self:
            context.session.send(push)
            return
        gathered = _batch.get()
        with self._hooked(push):
            if push.within is not None:
                push.inside(push.within, self)
            elif gathered is not None and push.key is None and push.unique is None:
                gathered.append((self, push))
            else:
                push.through(self.session)

    def add_to(self, push: Push, operations: Operations) -> None:
        """Add a push to a transaction, through the middleware."""
        with self._hooked(push):
            push.into(operations, self.session)

    @contextmanager
    def _hooked(self, push: Push) -> Iterator[None]:
        try:
            self.hooks.before_push(push)
            yield
        except BaseException as error:
            push.error = error
            raise
        finally:
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
        popped ahead; None: as many as are started within 0.2 s.
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
        schedules = self.schedules()
        for line in schedules.describe():
            log.info("%s", line)
        self._consumer = consumer
        presence = Presence(self.session, consumer)
        try:
            schedules.start()
            presence.start()
            return consumer.run()
        finally:
            self._consumer = None
            presence.stop()
            schedules.stop()

    def stop(self, reason: str = "stopped") -> None:
        """Stop `run`, from any thread, after the messages that are being processed."""
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

    def parts(self) -> list[Any]:
        """The built-in extensions and what was added, in the order in which they are called."""
        delay = RedeliveryDelay(self.redelivery_delay)
        return [delay, BodyValidation(), *self.added(), ProcessedLog(), DeliveryHint()]

    def schedules(self) -> Schedules:
        """The schedules of the worker, on its session."""
        return Schedules(self.session, self.declared_schedules)

    def jobs(
        self,
        *,
        stale_after: Duration | Mapping[str, Duration | None] | None = None,
        max_redelivery_seconds: Duration | None = None,
    ) -> Jobs:
        """Jobs on the session of the worker, with the hooks of its middleware; see `Jobs`."""
        return Jobs(
            self.session, stale_after=stale_after, max_redelivery_seconds=max_redelivery_seconds,
            middleware=self.added(),
        )  # fmt: skip

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
        """Create the groups that do not exist.

        A new group has no limits of its own: what becomes of a failure is decided by the status, or
        by the task. The options of an existing group stay, except those that a handler names.
        """
        for binding in bindings:
            self._prepare_group(binding)

    def _prepare_group(self, binding: Binding) -> None:
        named = {"max_deliver": binding.max_deliver, "ordering": binding.ordering}
        chosen: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
        if binding.tasks:
            chosen["retry_limit"] = None  # each task has its own
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
