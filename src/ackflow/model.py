"""The records that queries return. Times are aware datetimes in UTC, durations are seconds."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar, overload

import msgspec
from msgspec import Struct

from .options import GroupOptions, QueueOptions, Settings

T = TypeVar("T")


def when(micros: int) -> datetime:
    """Convert a time in microseconds since 1970 to a datetime in UTC."""
    return datetime.fromtimestamp(micros / 1_000_000, UTC)


def when_or_none(micros: int | None) -> datetime | None:
    """Convert a time like `when`; None stays None."""
    return None if micros is None else when(micros)


class Sequences(Struct, frozen=True):
    """The sequence numbers of a delivery, as JetStream counts them, both from 1.

    `stream`: the position in the lane. `consumer`: the number of the delivery within the lane and
    the group.
    """

    stream: int
    consumer: int


class Metadata(Struct, frozen=True):
    """The metadata that JetStream reports for a delivery.

    `num_pending`: the number of messages that were never delivered to the consumer; for groups
    that are not in the JetStream style, only those of the lane.
    """

    sequence: Sequences
    num_delivered: int
    num_pending: int
    timestamp: datetime


class Page(Struct, Generic[T], frozen=True):
    """One page of a result; `next` is the position of the next page, None after the last one.

    A page behaves like the list of its items. An empty page is false, even if `next` is set.
    """

    items: list[T]
    next: str | None = None
    total: int | None = None

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        return self.items[index]


class StoredMessage(Struct, frozen=True):
    """A message as it is stored in its queue; reading it has no side effects."""

    id: str
    queue: str
    partition: str
    priority: int
    sequence: int
    created_at: datetime
    due_at: datetime
    raw: bytes
    is_json: bool
    transaction_id: str
    headers: dict[str, str]
    state: str | None = None

    @property
    def data(self) -> Any:
        """The payload: decoded JSON, or bytes."""
        return msgspec.json.decode(self.raw) if self.is_json else self.raw


class News(Struct, frozen=True):
    """The messages pushed to a queue since a position; `after` is the next position, by lane."""

    items: list[StoredMessage]
    after: dict[int, int]


class DeadLetter(Struct, frozen=True):
    """A message that is not delivered to its group again, and the reason."""

    id: int
    message_id: str
    queue: str
    group: str
    partition: str
    priority: int
    kind: str
    reason: str | None
    error: str | None
    deliveries: int
    failures: int
    created_at: datetime
    died_at: datetime
    consumer: str | None
    raw: bytes
    is_json: bool
    transaction_id: str
    headers: dict[str, str]

    @property
    def data(self) -> Any:
        """The payload: decoded JSON, or bytes."""
        return msgspec.json.decode(self.raw) if self.is_json else self.raw


class DeadSummary(Struct, frozen=True):
    """The number of dead letters of a queue with the same group, kind and error."""

    group: str
    kind: str
    error: str
    count: int
    first_at: datetime
    last_at: datetime


class Counts(Struct):
    """The messages of a queue by their state in one group; the eight counts add up to `pushed`."""

    ready: int = 0
    leased: int = 0
    waiting: int = 0
    dead: int = 0
    done: int = 0
    skipped: int = 0
    purged: int = 0
    expired: int = 0

    @property
    def pushed(self) -> int:
        """The sum of all counts."""
        return sum(msgspec.structs.astuple(self))

    @property
    def lag(self) -> int:
        """Messages not yet settled."""
        return self.ready + self.leased + self.waiting


class GroupStats(Struct, frozen=True):
    queue: str
    name: str
    created_at: datetime
    dialect: str
    paused: bool
    settings: Settings
    options: GroupOptions
    counts: Counts
    dead_letters: int
    oldest_seconds: float | None
    consumed: int
    failed: int
    delivered: int


class QueueStats(Struct, frozen=True):
    name: str
    created_at: datetime
    paused: bool
    options: QueueOptions
    partitions: int
    messages: int
    bytes: int
    dead_letters: int
    groups: list[GroupStats]


class PartitionStats(Struct, frozen=True):
    queue: str
    name: str
    created_at: datetime
    priorities: list[int]
    messages: int
    bytes: int


class LeaseStats(Struct, frozen=True):
    """A live lease: its consumer, its messages and its end."""

    token: str
    queue: str
    group: str
    consumer: str
    acquired_at: datetime
    expires_at: datetime
    batch: int
    acked: int
    held: int
    partitions: list[str]


class DatabaseStats(Struct):
    """A database of a session, and whether it is available; `store` is its id, once it is known."""

    place: str
    up: bool
    store: int | None = None
    queues: int = 0
    error: str | None = None


class BrokerInfo(Struct, frozen=True):
    """A broker: a process that has the database open, such as a server or a worker.

    `upkeep`: of all brokers of the database, it runs upkeep.
    """

    name: str
    program: str
    host: str
    pid: int
    version: str
    started_at: datetime
    seen_at: datetime
    upkeep: bool


class SweepStats(Struct, frozen=True):
    """A seek, purge or delete that is done in slices, and how far it is.

    `kind` is `seek`, `purge`, `delete queue` or `delete group`; `lanes_done` of `lanes` are done.
    """

    kind: str
    queue: str
    group: str | None
    partition: str | None
    started_at: datetime
    ended_at: datetime | None
    lanes: int
    lanes_done: int
    purged: int


class Progress(Struct, frozen=True):
    """The progress of a group in a partition; `leases` covers only messages of this partition."""

    queue: str
    partition: str
    group: str
    last_id: str | None
    last_created_at: datetime | None
    last_at: datetime | None
    consumed: int
    failed: int
    counts: Counts
    leases: list[LeaseStats]


class Value(Struct, frozen=True):
    """A small keyed value; `version` increases by one with every change.

    The first version is 1, or above that of every value deleted before, so none is used twice.
    `expires_at` is its end, if it has one; that of a value bound to a lease moves with the lease.
    """

    key: str
    data: Any
    version: int
    updated_at: datetime
    expires_at: datetime | None = None


class Why(Struct, frozen=True, omit_defaults=True):
    """The state of a message in a group, as one sentence and as fields."""

    sentence: str
    state: str
    message_id: str
    group: str
    partition: str | None = None
    priority: int | None = None
    sequence: int | None = None
    position: int | None = None
    consumer: str | None = None
    token: str | None = None
    until: datetime | None = None
    at: datetime | None = None
    deliveries: int | None = None
    failures: int | None = None
    error: str | None = None
    kind: str | None = None
    behind: str | None = None
    dead_letter: int | None = None

    def __str__(self) -> str:
        return self.sentence


class Upkeep(Struct):
    """The work that one round of upkeep did, as counts."""

    leases_expired: int = 0
    trimmed: int = 0
    expired: int = 0
    max_wait: int = 0
    pruned: int = 0

    @property
    def total(self) -> int:
        """The sum of all counts."""
        return sum(msgspec.structs.astuple(self))
