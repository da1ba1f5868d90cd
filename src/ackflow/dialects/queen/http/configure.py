"""Configure in the Queen dialect: every option does what its name says.

An option that is not sent is at its default: its value is told, and has no effect. The two options
about dead letters are told as they were sent; a limit never drops a message, whatever they say.
"""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from .... import ids, validate
from ....errors import InvalidArgument
from ....options import DEFAULT_PARTITION, QueueOptions, initial_options
from ....server.http import Answer, Call, json
from ..verbs.subscriptions import declare
from .common import body_of
from .paging import route

SHORTEST_LEASE = 60.0  # what a lease time of 0 means
Seconds = Annotated[int, Meta(ge=0, le=10**9)] | Annotated[float, Meta(ge=0, le=1e9)]
Count = Annotated[int, Meta(ge=0, le=10**9)]


class Given(Struct, rename="camel"):
    """The options as a client sends them. Times are seconds, but `retryDelay` milliseconds."""

    lease_time: Seconds | None = None
    retry_limit: Annotated[int, Meta(ge=-1, le=10**9)] | None = None
    retry_delay: Seconds | None = None
    max_size: Count | None = None
    ttl: Seconds | None = None
    priority: Annotated[int, Meta(ge=-1_000_000, le=1_000_000)] | None = None
    delayed_processing: Seconds | None = None
    window_buffer: Seconds | None = None
    retention_enabled: bool | None = None
    retention_seconds: Seconds | None = None
    completed_retention_seconds: Seconds | None = None
    encryption_enabled: bool | None = None
    dead_letter_queue: bool | None = None
    dlq_after_max_retries: bool | None = None
    max_wait_time_seconds: Seconds | None = None


class Options(Struct, rename="camel"):
    """The options as they are told: what was sent, else the default."""

    lease_time: int | float = 300
    retry_limit: int = 3
    retry_delay: int | float = 1000
    max_size: int = 0
    ttl: int | float = 3600
    priority: int = 0
    delayed_processing: int | float = 0
    window_buffer: int | float = 0
    retention_enabled: bool = False
    retention_seconds: int | float = 0
    completed_retention_seconds: int | float = 0
    encryption_enabled: bool = False
    dead_letter_queue: bool = False
    dlq_after_max_retries: bool = False
    max_wait_time_seconds: int | float = 0


class Configure(Struct):
    queue: str | None = None
    namespace: str | None = None
    task: str | None = None
    options: Given | None = None


class Configured(Struct, rename="camel"):
    configured: bool
    queue_id: str
    partition_id: str
    queue: str
    namespace: str
    task: str
    options: Options


async def configure(call: Call) -> Answer:
    """Create a queue or set all its options; what is not sent goes back to its default."""
    given = body_of(call, Configure)
    if not given.queue:
        raise InvalidArgument("queue is required")
    name = validate.name(given.queue, "queue")
    call.server.allow(call, name)
    options = given.options or Given()
    labels = initial_options(name)
    changes = native(options)
    changes["namespace"] = _label(given.namespace, labels.namespace, "namespace")
    changes["task"] = _label(given.task, labels.task, "task")
    queue, home = await call.server.do(declare, True, name, changes, DEFAULT_PARTITION, "queen")
    store = call.server.broker.store.id
    return json(
        Configured(
            True, ids.row_uuid("queue", store, queue.id), ids.partition_uuid(store, home.id), name,
            changes["namespace"], changes["task"], _echo(options),
        )
    )  # fmt: skip


def _label(given: str | None, default: str, what: str) -> str:
    return default if given is None else validate.text(given, what) or ""


def native(given: Given) -> dict[str, Any]:
    """The options of a queue that these mean, all of them: 0 is off, and so is what is not sent."""
    kept = bool(given.retention_enabled)
    delay = given.retry_delay
    return {
        "lease_seconds": _or_unset(given.lease_time, lambda v: float(v) or SHORTEST_LEASE),
        "retry_limit": _or_unset(given.retry_limit, lambda v: None if v < 0 else v),
        "max_deliver": UNSET,
        "backoff": (delay / 1000,) if delay else UNSET,
        "delay_seconds": float(given.delayed_processing or 0),
        "max_wait_seconds": _or_none(given.max_wait_time_seconds),
        "retention_seconds": _or_none(given.retention_seconds) if kept else None,
        "keep_seconds": _or_none(given.completed_retention_seconds) if kept else None,
        "dedup_seconds": None,
        "max_size": given.max_size or None,
        "ttl_seconds": _or_none(given.ttl),
        "window_seconds": float(given.window_buffer or 0),
        "priority": given.priority or 0,
        "encrypted": bool(given.encryption_enabled),
    }


def _or_none(value: int | float | None) -> float | None:
    return float(value) if value else None


def _or_unset(value: Any, made: Any) -> Any:
    return UNSET if value is None else made(value)


def _echo(given: Given) -> Options:
    sent = {key: value for key, value in structs.asdict(given).items() if value is not None}
    return structs.replace(Options(), **sent)


def told(options: QueueOptions) -> Options:
    """The options of a queue as this dialect names them, by what is in effect."""
    limit = options.retry_limit
    return Options(
        lease_time=_number(options.lease_seconds, 300),
        retry_limit=3 if isinstance(limit, UnsetType) else -1 if limit is None else limit,
        retry_delay=_milliseconds(options),
        max_size=options.max_size or 0,
        ttl=_number(options.ttl_seconds, 0),
        priority=options.priority,
        delayed_processing=_number(options.delay_seconds, 0),
        window_buffer=_number(options.window_seconds, 0),
        retention_enabled=(options.retention_seconds, options.keep_seconds) != (None, None),
        retention_seconds=_number(options.retention_seconds, 0),
        completed_retention_seconds=_number(options.keep_seconds, 0),
        encryption_enabled=options.encrypted,
        dead_letter_queue=True,
        dlq_after_max_retries=True,
        max_wait_time_seconds=_number(options.max_wait_seconds, 0),
    )


def _milliseconds(options: QueueOptions) -> int | float:
    steps = options.backoff
    return 0 if isinstance(steps, UnsetType) or not steps else _number(steps[0] * 1000, 0)


def _number(value: float | UnsetType | None, default: int) -> int | float:
    if value is None or isinstance(value, UnsetType):
        return default
    return int(value) if value == int(value) else value


ROUTES = (
    route("POST", "configure", configure, "read-write", body=Configure, checks=True,
          summary="Create a queue or set all its options", answers={200: Configured}),
)  # fmt: skip
