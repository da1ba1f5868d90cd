"""The rows of the store as records. Verbs load, change and save them; the store decides nothing."""

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from msgspec import Raw, Struct, field

from .. import ranges
from ..ids import NO_LEASE, BodyId, GroupId, LaneId, LeaseId, PartitionId, QueueId
from ..options import GroupDialect, GroupOptions, QueueOptions, Settings, is_plain, settings
from ..ranges import Ranges

LEASED, WAITING, DUE = 0, 1, 2
RETURNED, COPIED = 1, 2  # values of Claim.redelivered


class Queue(Struct):
    id: QueueId
    name: str
    created_at: int
    paused: bool
    options: QueueOptions


class Partition(Struct):
    id: PartitionId
    queue: QueueId
    name: str
    created_at: int


class Lane(Struct):
    """One append-only log: a partition at one priority."""

    id: LaneId
    queue: QueueId
    partition: PartitionId
    priority: int
    base: int = 0
    head: int = 0
    last_at: int = 0
    odd: int = 0
    copies: int = 0
    gone: int = 0
    gone_to: int = 0


class Carry(Struct, array_like=True):
    """The initial counters of a requeued copy, and its error."""

    deliveries: int
    failures: int
    redelivered: bool
    error: str | None = None


# The columns of a stored body: end offsets, data, msgpack of Rest.
Packed = tuple[bytes | None, bytes, bytes | None]


NO_BODY = BodyId(0)  # the payloads are stored in the row of the segment


class Segment(Struct):
    """The header of a sequence of messages that were pushed together; immutable.

    `small` holds the payloads as stored, if they are in the same row and were read with it; `body`
    is then 0.
    """

    lane: LaneId
    first: int
    count: int
    created_at: int
    not_before: int | None
    for_group: GroupId | None
    carry: Carry | None
    body: BodyId
    bytes: int
    small: Packed | None = None

    @property
    def stop(self) -> int:
        return self.first + self.count

    @property
    def due_at(self) -> int:
        """The time from which the waiting time is measured; `delayed` says whether it is ready."""
        return self.created_at if self.not_before is None else self.not_before

    def delayed(self, now: int) -> bool:
        """Return whether a requested delay is not over; created_at may be ahead of the clock."""
        return self.not_before is not None and self.not_before > now


class Odd(NamedTuple):
    """A delayed or group-only segment, with the columns of its covering index only."""

    first: int
    n: int
    not_before: int | None
    for_group: GroupId | None

    @property
    def stop(self) -> int:
        return self.first + self.n

    def delayed(self, now: int) -> bool:
        return self.not_before is not None and self.not_before > now


class Rest(Struct, omit_defaults=True):
    """The optional fields of the messages of a body, by index in the body, as clients send them."""

    txids: dict[int, str] = {}
    headers: dict[int, dict[str, str]] = {}
    binary: Ranges = []

    @property
    def empty(self) -> bool:
        return not (self.txids or self.headers or self.binary)

    def is_binary(self, index: int) -> bool:
        return bool(self.binary) and ranges.contains(self.binary, index)

    def transaction_id(self, index: int, id: str) -> str:
        """Return the transaction id of a message, which is by default its id."""
        return self.txids.get(index, id)

    def pick(self, index: int) -> "Rest":
        """Return the optional fields of one message, as a Rest in which it is message 0."""
        one = Rest()
        if index in self.txids:
            one.txids = {0: self.txids[index]}
        if index in self.headers:
            one.headers = {0: self.headers[index]}
        if self.is_binary(index):
            one.binary = [0, 1]
        return one

    def slice(self, lo: int, hi: int) -> "Rest":
        """Return the optional fields of messages [lo, hi), numbered from 0."""
        return Rest(
            {i - lo: txid for i, txid in self.txids.items() if lo <= i < hi},
            {i - lo: headers for i, headers in self.headers.items() if lo <= i < hi},
            [at - lo for at in ranges.clip(self.binary, lo, hi)],
        )

    def select(self, indices: Sequence[int]) -> "Rest":
        """Return the optional fields of these messages, numbered from 0 in this order."""
        return Rest(
            {new: self.txids[old] for new, old in enumerate(indices) if old in self.txids},
            {new: self.headers[old] for new, old in enumerate(indices) if old in self.headers},
            ranges.of(new for new, old in enumerate(indices) if self.is_binary(old)),
        )

    @staticmethod
    def merge(ones: Iterable["Rest | None"]) -> "Rest":
        """Merge the optional fields of single messages, as returned by `pick`, in this order."""
        merged = Rest()
        binary = []
        for at, one in enumerate(ones):
            if one is None:
                continue
            if one.txids:
                merged.txids[at] = one.txids[0]
            if one.headers:
                merged.headers[at] = one.headers[0]
            if one.binary:
                binary.append(at)
        merged.binary = ranges.of(binary)
        return merged


class StoredRest(Rest):
    """The optional fields as they are stored.

    `sealed` applies to the whole body: how its data is encrypted, see `encryption`. Older versions
    wrote True.
    """

    sealed: bool | int = 0

    @classmethod
    def sealed_from(cls, rest: Rest, how: int) -> "StoredRest":
        """The fields of a body that is encrypted in this way."""
        return cls(**{name: getattr(rest, name) for name in Rest.__struct_fields__}, sealed=how)

    def plain(self) -> Rest | None:
        """The fields as they were pushed; None if there are none."""
        rest = Rest(*(getattr(self, name) for name in Rest.__struct_fields__))
        return None if rest.empty else rest


NO_REST = Rest()  # shared by messages without optional fields; must not be changed


class Body(Struct):
    """The payloads of a segment: `ends` are their end offsets in `data`.

    With `items`, `data` is a JSON array of the payloads without offsets; `joined` computes them.
    """

    ends: memoryview
    data: bytes
    rest: Rest | None = None
    items: list[Raw] | None = None

    def joined(self) -> "Body":
        """Return this body with offsets. `items` is cleared last, for concurrent readers."""
        items = self.items
        if items is not None:
            ends, self.data = joined(items)
            self.ends = memoryview(ends).cast("i")
            self.items = None
        return self

    def size(self, first: int, stop: int) -> int:
        """Return the bytes of the payloads of [first, stop), by index."""
        items = self.items  # another thread may set it to None
        if items is not None:
            return sum(map(len, items[first:stop]))
        return int(self.ends[stop - 1] - (self.ends[first - 1] if first else 0))


def joined(items: list[Raw]) -> tuple[bytes, bytes]:
    """Return the end offsets of items, and their concatenation."""
    return array("i", list(accumulate(map(len, items)))).tobytes(), b"".join(items)


class Group(Struct):
    """A group and its rules. `plain`: the fast pop may serve it, see `options.is_plain`.

    `made`: the group has cursors up to the lane of this priority and id; None: for all lanes.
    """

    id: GroupId
    queue: QueueId
    name: str
    created_at: int
    dialect: GroupDialect
    paused: bool
    options: GroupOptions
    rules: Settings
    plain: bool = False
    made: tuple[int, int] | None = None

    def set_rules(self, queue: QueueOptions) -> None:
        """Compute the rules again, after the options of the group or its queue have changed."""
        self.rules = settings(self.dialect, queue, self.options)
        self.plain = is_plain(queue, self.options, self.rules)


class Cursor(Struct):
    """The position of a group in a lane, and counters of the outcomes of all messages before it.

    `copies` counts the copies in the lane that belong to the group or are behind the cursor; the
    other copies of the lane are hidden and ahead of it. `keeps`: a claim may be stored in it;
    `kept`: the lease of the claim that is stored in it.
    """

    lane: LaneId
    group_id: GroupId
    partition: PartitionId
    priority: int
    next: int
    served: int = 0
    ready: bool = False
    blocked: bool = False
    delivered: int = 0
    consumed: int = 0
    failed: int = 0
    done: int = 0
    dead: int = 0
    skipped: int = 0
    purged: int = 0
    expired: int = 0
    hidden: int = 0
    copies: int = 0
    last_seq: int | None = None
    last_created: int | None = None
    last_at: int | None = None
    keeps: bool = False
    kept: LeaseId = NO_LEASE
    counted: tuple[int, int] = (0, 0)  # `settled` when its queue's capacity was last updated

    @property
    def settled(self) -> tuple[int, int]:
        return self.done + self.dead + self.skipped + self.expired, self.purged

    def hide(self, n: int) -> None:
        """Count `n` copies for other groups as passed; negative when the cursor moves back."""
        self.hidden += n
        self.copies += n


class Claim(Struct):
    """Messages of one lane that a group has read and not settled, all in one state.

        new ── pop ──► LEASED ── ack ──► done
         │               │ ▲ └── reject, limit ──► dead letter
         │ delayed       │ └──────────── pop ────────────┐
         │               ▼ nack, release, expiry         │
         └──────────► WAITING ── its time comes ──► DUE ─┘

    `redelivered` is RETURNED when they were delivered before, and COPIED when they are copies of
    such messages that were not delivered yet. `stored` is the lease under which the row is stored,
    which may be the previous one; a claim without an id is stored in its cursor. `counted` is how
    many of them count against `max_ack_pending`.
    """

    id: int
    group_id: GroupId
    lane: LaneId
    ranges: Ranges
    state: int
    at: int | None
    since: int
    deliveries: int
    failures: int
    redelivered: int
    error: str | None
    lease: LeaseId | None
    acked_at: int | None = None
    stored: LeaseId = NO_LEASE
    counted: int = 0

    @staticmethod
    def leased(
        group_id: GroupId,
        lane: LaneId,
        which: Ranges,
        since: int,
        deliveries: int = 1,
        failures: int = 0,
        redelivered: int = 0,
        error: str | None = None,
    ) -> "Claim":
        """Return a claim for a lease; granting the lease sets the lease id and the expiry time."""
        return Claim(
            0, group_id, lane, which, LEASED, None, since, deliveries, failures, redelivered, error,
            None,
        )  # fmt: skip

    @staticmethod
    def unleased(
        group_id: GroupId,
        lane: LaneId,
        which: Ranges,
        at: int | None,
        since: int,
        deliveries: int = 0,
        failures: int = 0,
        redelivered: int = 0,
        error: str | None = None,
    ) -> "Claim":
        """Return a claim that waits until `at`, or is due if `at` is None."""
        state = DUE if at is None else WAITING
        return Claim(
            0, group_id, lane, which, state, at, since, deliveries, failures, redelivered, error,
            None,
        )  # fmt: skip

    @property
    def returned(self) -> bool:
        """Whether they were delivered before and returned: only then do they block others."""
        return self.redelivered == RETURNED


class Fate(Struct, array_like=True):
    """The ranges of a lease that one verb settled, and when."""

    verb: str
    at: int
    lane: LaneId
    ranges: Ranges


class LeasedRanges(Struct):
    """The messages a lease delivered from one lane, and the deliveries of that lane before it."""

    lane: LaneId
    ranges: Ranges
    number: int


class Lease(Struct):
    """One delivery of a batch: consumer, token, messages, and the outcome of each of them."""

    id: LeaseId
    token: int
    group_id: GroupId
    consumer: str
    acquired_at: int
    expires_at: int
    ended_at: int | None
    n: int
    parts: list[LeasedRanges] = field(default_factory=list)
    fates: list[Fate] = field(default_factory=list)


def record_acks(lease: Lease, claims: list[Claim]) -> None:
    """Add to a lease the acks that it does not record: messages without a claim and a fate."""
    for part in lease.parts:
        acked = [c.acked_at for c in claims if c.lane == part.lane and c.acked_at is not None]
        if acked:
            known = ranges.union_all(
                [claim.ranges for claim in claims if claim.lane == part.lane]
                + [fate.ranges for fate in lease.fates if fate.lane == part.lane]
            )
            missing = ranges.difference(part.ranges, known)
            if missing:
                lease.fates.append(Fate("ack", max(acked), part.lane, missing))


class DeadRow(Struct):
    id: int
    queue: QueueId
    group_id: GroupId
    lane: LaneId
    seq: int
    kind: str
    reason: str | None
    error: str | None
    deliveries: int
    failures: int
    created_at: int
    died_at: int
    consumer: str | None
    counted: bool
    payload: bytes
    rest: Rest | None


class Stage(Struct):
    """One part of a staged push: stored, and invisible until it is published."""

    stage: str
    piece: int
    producer: str
    batch: int
    queue: str
    partition: str
    priority: int
    delay: int | None
    count: int
    bytes: int
    body: BodyId
    created_at: int


ExchangeKind = Literal["direct", "fanout", "topic", "headers"]
Arguments = dict[str, Any]


class Exchange(Struct):
    """A named place to publish to; its bindings decide which queues a message reaches."""

    name: str
    kind: ExchangeKind
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Arguments = {}

    @property
    def alternate(self) -> str | None:
        """The exchange that gets the messages that match no binding."""
        return self.arguments.get("alternate-exchange")


class Binding(Struct):
    """A rule of an exchange: which messages it forwards to a queue or to another exchange."""

    source: str
    to_exchange: bool
    destination: str
    routing_key: str
    arguments: Arguments = {}


class Declaration(Struct):
    """What a client declared about a queue, in addition to its options.

    `owner`: the connection, and `server` its server, to which an exclusive queue belongs.
    """

    queue: QueueId
    durable: bool = True
    auto_delete: bool = False
    owner: str | None = None
    server: str | None = None
    used_at: int = 0
    arguments: Arguments = {}

    @property
    def dead_letter_exchange(self) -> str | None:
        return self.arguments.get("x-dead-letter-exchange")

    @property
    def dead_letter_key(self) -> str | None:
        return self.arguments.get("x-dead-letter-routing-key")

    @property
    def max_length(self) -> int | None:
        """How many ready messages it may have; the oldest above that are dropped."""
        if self.arguments.get("x-overflow", "drop-head") != "drop-head":
            return None
        return self.arguments.get("x-max-length")

    @property
    def max_priority(self) -> int | None:
        return self.arguments.get("x-max-priority")

    @property
    def expires(self) -> int | None:
        """After so many milliseconds without use it is deleted."""
        return self.arguments.get("x-expires")

    def lane_priority(self, priority: int | None) -> int:
        """The priority of a lane, of which 0 is served first, for the priority of a message."""
        most = self.max_priority
        return 0 if most is None else most - min(priority or 0, most)


class Sweep(Struct):
    """A seek, purge or delete that is applied lane by lane; the table `sweeps` explains the fields."""

    id: int
    kind: str
    queue: QueueId
    group_id: GroupId | None
    partition: PartitionId | None
    target: str
    queue_name: str
    group_name: str | None
    upto: LaneId
    after: int
    phase: int
    lanes: int
    done: int
    n: int
    started_at: int
    ended_at: int | None

    @property
    def changes_lanes(self) -> bool:
        """Whether it must be applied to a lane before the lane is used; a delete need not be."""
        return self.kind in ("seek", "start", "purge")

    def covers(self, lane: Lane) -> bool:
        """Return whether it is not yet applied to a lane, unless `swept` has the lane."""
        return self.after < lane.id <= self.upto and self.partition in (None, lane.partition)
