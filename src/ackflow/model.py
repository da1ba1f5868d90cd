"""The records a user reads. Times are aware datetimes in UTC, durations are seconds."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar, overload

import msgspec
from msgspec import Struct

from .options import GroupOptions, QueueOptions, Settings

T = TypeVar("T")


def when(micros: int) -> datetime:
    """A time in microseconds since 1970 as a datetime in UTC."""
    return datetime.fromtimestamp(micros / 1_000_000, UTC)


def when_or_none(micros: int | None) -> datetime | None:
    """The same; None stays None."""
    return None if micros is None else when(micros)


class Sequences(Struct, frozen=True):
    """`stream`: place in the lane. `consumer`: number of the hand-out within lane and group. Both
    count from 1."""

    stream: int
    consumer: int


class Metadata(Struct, frozen=True):
    """What JetStream tells of a delivery. `num_pending`: how many messages its consumer has still to
    be given for the first time; for groups that are not in the JetStream style, of the lane alone."""

    sequence: Sequences
    num_delivered: int
    num_pending: int
    timestamp: datetime


class Page(Struct, Generic[T], frozen=True):
    """Some items; `next` continues after them, None when there are no more.

    It is used as the list of its items, and is false when it has none; `next` may still be given.
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
    """A message as it lies in its queue, seen without side effects."""

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
    """What was pushed to a queue since one looked last; `after` is where to go on, lane by lane."""

    items: list[StoredMessage]
    after: dict[int, int]


class DeadLetter(Struct, frozen=True):
    """A message that a group will not be given again, and why."""

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
    """How many of a queue's dead letters share a group, a kind and an error."""

    group: str
    kind: str
    error: str
    count: int
    first_at: datetime
    last_at: datetime


class Counts(Struct):
    """What became of every message of a queue for one group; the eight add up to `pushed`."""

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
    """A live lease: who holds how much of what until when."""

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


class Progress(Struct, frozen=True):
    """How far a group is in a partition, and the leases it has there: what they hold of it."""

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
    """A small keyed value; `version` grows by one with every change.

    It begins at 1, or above the versions of all that were ever deleted: it never comes again.
    """

    key: str
    data: Any
    version: int
    updated_at: datetime


class Why(Struct, frozen=True, omit_defaults=True):
    """What became of a message for a group, in one sentence and in fields."""

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
    """What one round of upkeep did."""

    leases_expired: int = 0
    trimmed: int = 0
    expired: int = 0
    max_wait: int = 0
    pruned: int = 0

    @property
    def total(self) -> int:
        """The sum of all counts."""
        return sum(msgspec.structs.astuple(self))
