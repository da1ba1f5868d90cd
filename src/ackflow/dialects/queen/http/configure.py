"""Configure in the Queen dialect.

An option that is not sent is reset; the response shows Queen's default for it. Encryption is not reset:
only `encryptionEnabled: false` switches it off. The two options about dead letters are only echoed: a
message that reaches a limit always becomes a dead letter.
"""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from .... import ids, validate
from ....errors import InvalidArgument
from ....options import DEFAULT_PARTITION, QueueOptions, initial_options
from ....server.http import Call, Response, json
from ..verbs.subscriptions import declare
from .common import body_of
from .paging import route

ZERO_LEASE_SECONDS = 60.0  # the lease time if leaseTime is 0
Seconds = Annotated[int, Meta(ge=0, le=10**9)] | Annotated[float, Meta(ge=0, le=1e9)]
Count = Annotated[int, Meta(ge=0, le=10**9)]


class OptionsBody(Struct, rename="camel"):
    """The options as a client sends them. Times are in seconds, `retryDelay` in milliseconds."""

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


class QueenOptions(Struct, rename="camel"):
    """The options in a response: what was sent, or Queen's default."""

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


class ConfigureBody(Struct):
    queue: str | None = None
    namespace: str | None = None
    task: str | None = None
    options: OptionsBody | None = None


class ConfigureResult(Struct, rename="camel"):
    configured: bool
    queue_id: str
    partition_id: str
    queue: str
    namespace: str
    task: str
    options: QueenOptions


async def configure(call: Call) -> Response:
    """Create a queue or set all its options; those not sent are reset, except encryption."""
    given = body_of(call, ConfigureBody)
    if not given.queue:
        raise InvalidArgument("queue is required")
    name = validate.name(given.queue, "queue")
    call.server.allow(call, name)
    options = given.options or OptionsBody()
    labels = initial_options(name)
    changes = queue_options(options)
    changes["namespace"] = _label(given.namespace, labels.namespace, "namespace")
    changes["task"] = _label(given.task, labels.task, "task")
    queue, home = await call.server.do(declare, True, name, changes, DEFAULT_PARTITION, "queen")
    store = call.server.broker.store.id
    return json(
        ConfigureResult(
            True, ids.row_uuid("queue", store, queue.id), ids.partition_uuid(store, home.id), name,
            changes["namespace"], changes["task"], _echo(options, queue.options),
        )
    )  # fmt: skip


def _label(given: str | None, default: str, what: str) -> str:
    return default if given is None else validate.text(given, what) or ""


def queue_options(given: OptionsBody) -> dict[str, Any]:
    """Translate to queue options; 0 and options that are not sent mean off, except encryption."""
    kept = bool(given.retention_enabled)
    delay = given.retry_delay
    return {
        "lease_seconds": _or_unset(given.lease_time, lambda v: float(v) or ZERO_LEASE_SECONDS),
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
        **({} if given.encryption_enabled is None else {"encrypted": given.encryption_enabled}),
    }


def _or_none(value: int | float | None) -> float | None:
    return float(value) if value else None


def _or_unset(value: Any, made: Any) -> Any:
    return UNSET if value is None else made(value)


def _echo(given: OptionsBody, options: QueueOptions) -> QueenOptions:
    sent = {key: value for key, value in structs.asdict(given).items() if value is not None}
    sent["encryption_enabled"] = options.encrypted
    return structs.replace(QueenOptions(), **sent)


def queen_options(options: QueueOptions) -> QueenOptions:
    """Translate the effective options of a queue to Queen's names."""
    limit = options.retry_limit
    return QueenOptions(
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
    route("POST", "configure", configure, "read-write", body=ConfigureBody, checks_queues=True,
          summary="Create a queue or set all its options", responses={200: ConfigureResult}),
)  # fmt: skip
