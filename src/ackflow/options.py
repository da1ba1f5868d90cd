"""The options of queues and groups, and the defaults of every dialect."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal, TypedDict

import msgspec
from msgspec import UNSET, Struct, UnsetType

Ordering = Literal["shared", "ordered", "exclusive"]
AckPolicy = Literal["explicit", "all", "none"]
Dialect = Literal["native", "queen", "pushpop", "jetstream", "middleware", "rabbitmq"]
# A group that upkeep made for messages that waited too long before any group came: the first that
# comes takes its place.
UNDECIDED: Literal["undecided"] = "undecided"
GroupDialect = Dialect | Literal["undecided"]
# Dialects whose deliveries report how many messages are left for the group, not for the lane.
PENDING_OF_GROUP: frozenset[str] = frozenset({"jetstream"})
DeadLetterKind = Literal["failed", "max_deliver", "rejected", "max_wait"]
Counting = Literal["failures", "redeliveries"]

QUEUE_MODE = "__QUEUE_MODE__"  # the group of consumers who name none
DEFAULT_PARTITION = "Default"

MAX_PAYLOAD = 16 * 1024 * 1024
MAX_POP_BYTES = 64 * 1024 * 1024  # of payloads; a pop hands out no more once it has as many
MAX_HEADERS = 1024 * 1024  # of one message
MAX_PAGE_BYTES = MAX_POP_BYTES  # of browse, search and follow
MAX_SEGMENT_BYTES = 4 * 1024 * 1024
MAX_SEGMENT_COUNT = 10_000
SMALL_BYTES = 800  # payloads up to this lie in the header of their segment, a few to a page
MAX_CLAIM = 1_000
MAX_BATCH = 100_000
MAX_PUSHES = 1_000  # in one request
MAX_OPERATIONS = 10_000  # settlements, holds, values or names in one request of a client
MAX_PRIORITY = 2**31 - 1  # an INT column of Spark holds it
MAX_NAME = 255
MIN_HISTORY = 300.0
KEY_SECONDS = 24 * 3600
STAGE_SECONDS = 24 * 3600
RABBITMQ_KEEP_SECONDS = 60.0
TRACE_SECONDS = 7 * 24 * 3600


class QueueOptions(Struct, frozen=True, omit_defaults=True):
    """What `configure` may set on a queue; the first five are defaults for its groups."""

    lease_seconds: float | UnsetType = UNSET
    retry_limit: int | UnsetType | None = UNSET
    max_deliver: int | UnsetType | None = UNSET
    backoff: tuple[float, ...] | UnsetType = UNSET
    history_seconds: float = 600.0
    delay_seconds: float = 0.0
    max_wait_seconds: float | None = None
    retention_seconds: float | None = None
    keep_seconds: float | None = 86_400.0
    dedup_seconds: float | None = 86_400.0
    namespace: str = ""
    task: str = ""
    max_size: int | None = None
    ttl_seconds: float | None = None
    window_seconds: float = 0.0
    priority: int = 0
    encrypted: bool = False
    spread: bool = False


class GroupOptions(Struct, frozen=True, omit_defaults=True):
    """What `group` may set; what is not set follows the queue, then the group's dialect."""

    ordering: Ordering | UnsetType = UNSET
    policy: AckPolicy | UnsetType = UNSET
    lease_seconds: float | UnsetType = UNSET
    retry_limit: int | UnsetType | None = UNSET
    max_deliver: int | UnsetType | None = UNSET
    backoff: tuple[float, ...] | UnsetType = UNSET
    max_ack_pending: int | UnsetType | None = UNSET
    start: Literal["all", "new"] | int = "all"


class QueueOptionsDict(TypedDict, total=False):
    """The keywords of `configure`: the fields of `QueueOptions`, before validation."""

    lease_seconds: float | timedelta
    retry_limit: int | None
    max_deliver: int | None
    backoff: Sequence[float | timedelta]
    history_seconds: float | timedelta
    delay_seconds: float | timedelta
    max_wait_seconds: float | timedelta | None
    retention_seconds: float | timedelta | None
    keep_seconds: float | timedelta | None
    dedup_seconds: float | timedelta | None
    namespace: str
    task: str
    max_size: int | None
    ttl_seconds: float | timedelta | None
    window_seconds: float | timedelta
    priority: int
    encrypted: bool
    spread: bool


class GroupOptionsDict(TypedDict, total=False):
    """The keywords of `group`: the fields of `GroupOptions`, before validation."""

    ordering: Ordering
    policy: AckPolicy
    lease_seconds: float | timedelta
    retry_limit: int | None
    max_deliver: int | None
    backoff: Sequence[float | timedelta]
    max_ack_pending: int | None
    start: Literal["all", "new"] | datetime | float


class Settings(Struct, frozen=True):
    """The effective settings of a group: dialect defaults, overridden by its queue and by itself."""

    ordering: Ordering
    policy: AckPolicy
    lease_seconds: float
    retry_limit: int | None
    max_deliver: int | None
    backoff: tuple[float, ...]
    max_ack_pending: int | None
    batch: int


DEFAULTS: dict[Dialect, Settings] = {
    "native": Settings("shared", "explicit", 300.0, 3, 20, (), None, 1),
    "queen": Settings("ordered", "explicit", 300.0, 3, None, (), None, 1),
    "pushpop": Settings("exclusive", "explicit", 30.0, None, None, (), None, 1),
    "jetstream": Settings("shared", "explicit", 30.0, None, None, (), 1000, 1),
    "middleware": Settings("shared", "explicit", 10.0, None, None, (), 10, 10),
    "rabbitmq": Settings("shared", "explicit", 30.0, None, None, (), None, 1),
}


def settings(dialect: GroupDialect, queue: QueueOptions, group: GroupOptions) -> Settings:
    """Lay the group's options over the queue's over the dialect's defaults."""
    chosen = msgspec.structs.asdict(DEFAULTS["native" if dialect == UNDECIDED else dialect])
    for options in (queue, group):
        for name in chosen:
            value = getattr(options, name, UNSET)
            if value is not UNSET:
                chosen[name] = value
    return Settings(**chosen)


# Options that the fast pop need not know: they act when messages are pushed, settled or dropped, or
# it checks what follows from them. A queue or group with any other option set takes the long way.
_PLAIN_ANY = frozenset({
    "lease_seconds", "retry_limit", "max_deliver", "backoff", "max_ack_pending", "batch", "start",
    "history_seconds", "delay_seconds", "keep_seconds", "dedup_seconds", "namespace", "task",
    "max_size", "priority", "encrypted", "ordering", "spread",
})  # fmt: skip


def is_plain(queue: QueueOptions, group: GroupOptions, rules: Settings) -> bool:
    """Whether every option that changes what a pop hands out is at its default.

    A new option is unknown here, so that only a group that leaves it at its default is plain.
    """
    if rules.policy == "none":
        return False
    native = DEFAULTS["native"]
    checked = _PLAIN_ANY | {"policy"}
    return all(
        getattr(given, name) == getattr(default, name)
        for given, default in ((queue, type(queue)()), (group, type(group)()), (rules, native))
        for name in given.__struct_fields__
        if name not in checked
    )


def initial_options(name: str, dialect: Dialect = "native") -> QueueOptions:
    """The options of a queue made by its first use; a dotted name tells its namespace and task.

    In the Queen dialect consumption deletes nothing, and a transaction id is known as long as its
    message is. In the RabbitMQ dialect consumption deletes, after a minute.
    """
    parts = name.split(".")
    options = QueueOptions(namespace=parts[0], task=parts[1]) if len(parts) > 1 else QueueOptions()
    if dialect == "queen":
        return msgspec.structs.replace(options, keep_seconds=None, dedup_seconds=None)
    if dialect == "rabbitmq":
        return msgspec.structs.replace(options, keep_seconds=RABBITMQ_KEEP_SECONDS)
    return options
