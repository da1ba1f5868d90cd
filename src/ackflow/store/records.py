"""The rows of the store as records. Verbs load, change and save them; the store decides nothing."""

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from msgspec import Raw, Struct, field

from .. import ranges
from ..ids import NO_LEASE, BodyId, GroupId, LaneId, LeaseId, PartitionId, QueueId
from ..options import GroupDialect, GroupOptions, QueueOptions, Settings, is_plain, settings
from ..ranges import Ranges

LEASED, WAITING, DUE = 0, 1, 2
RETURNED, COPIED = 1, 2  # of a claim


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
    """The counters with which a requeued copy starts, and the message it is a copy of."""

    deliveries: int
    failures: int
    redelivered: bool
    error: str | None = None


# What is stored of a body: its ends, its data, msgpack of its rest.
Packed = tuple[bytes, bytes, bytes | None]


NO_BODY = BodyId(0)  # the payloads lie in the header


class Segment(Struct):
    """The header of one pushed run of messages; immutable.

    `small`: its payloads as they are stored, if they lie in the header and were read with it;
    then `body` is 0.
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
        """The time from which its waiting is counted. See `delayed` for whether it is ready."""
        return self.created_at if self.not_before is None else self.not_before

    def delayed(self, now: int) -> bool:
        """Whether a delay that was asked for is not over: created_at may be ahead of the clock."""
        return self.not_before is not None and self.not_before > now


class Odd(NamedTuple):
    """A delayed or group-only segment, as far as it is known without reading its header."""

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
    """The optional fields of the messages of a body, by index in the body.

    `sealed` concerns all of them, and is set only while stored: the data is encrypted.
    """

    txids: dict[int, str] = {}
    headers: dict[int, dict[str, str]] = {}
    binary: Ranges = []
    sealed: bool = False

    @property
    def empty(self) -> bool:
        return not (self.txids or self.headers or self.binary)

    def is_binary(self, index: int) -> bool:
        return bool(self.binary) and ranges.contains(self.binary, index)

    def transaction_id(self, index: int, id: str) -> str:
        """The transaction id of a message; one without has its id as transaction id."""
        return self.txids.get(index, id)

    def pick(self, index: int) -> "Rest":
        """The optional fields of one message, as a Rest in which it is message 0."""
        one = Rest()
        if index in self.txids:
            one.txids = {0: self.txids[index]}
        if index in self.headers:
            one.headers = {0: self.headers[index]}
        if self.is_binary(index):
            one.binary = [0, 1]
        return one

    def slice(self, lo: int, hi: int) -> "Rest":
        """The optional fields of messages [lo, hi), numbered from 0."""
        return Rest(
            {i - lo: txid for i, txid in self.txids.items() if lo <= i < hi},
            {i - lo: headers for i, headers in self.headers.items() if lo <= i < hi},
            [at - lo for at in ranges.clip(self.binary, lo, hi)],
        )

    def select(self, indices: Sequence[int]) -> "Rest":
        """The optional fields of these messages, numbered from 0 in this order."""
        return Rest(
            {new: self.txids[old] for new, old in enumerate(indices) if old in self.txids},
            {new: self.headers[old] for new, old in enumerate(indices) if old in self.headers},
            ranges.of(new for new, old in enumerate(indices) if self.is_binary(old)),
        )

    @staticmethod
    def merge(ones: Iterable["Rest | None"]) -> "Rest":
        """The optional fields of single messages, as `pick` gives them, one after the other."""
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


NO_REST = Rest()  # of messages without optional fields; never changed


class Body(Struct):
    """The payloads of a segment: `ends` are their end offsets in `data`.

    With `items`, `data` is the JSON array of them and there are no offsets; `joined` computes them.
    """

    ends: memoryview
    data: bytes
    rest: Rest | None = None
    items: list[Raw] | None = None

    def joined(self) -> "Body":
        """This body, with offsets. Others may read it meanwhile: the items go last."""
        items = self.items
        if items is not None:
            ends, self.data = joined(items)
            self.ends = memoryview(ends).cast("i")
            self.items = None
        return self


def joined(items: list[Raw]) -> tuple[bytes, bytes]:
    """The end offsets of items, and the items one after the other."""
    return array("i", list(accumulate(map(len, items)))).tobytes(), b"".join(items)


class Group(Struct):
    """A group and its rules. `plain`: the fast pop may serve it, see `options.is_plain`.

    `made`: it has cursors up to the lane of this priority and id only; None: of all lanes.
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
    """How far a group is in a lane, and what became of everything before that.

    `copies`: those of the lane that are the group's own or lie behind the cursor, so that the rest
    of the lane's are hidden ahead of it. `keeps`: a claim may lie in it; `kept`: the lease of the
    one that does.
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
    counted: tuple[int, int] = (0, 0)  # settled and purged, when the room of its queue was

    @property
    def settled(self) -> tuple[int, int]:
        return self.done + self.dead + self.skipped + self.expired, self.purged

    def hide(self, n: int) -> None:
        """Pass copies that are for other groups; back over them when `n` is negative."""
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
        """A claim to be held under a lease; granting the lease sets its id and its end."""
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
        """A claim that waits until `at`, or is due when that is None."""
        state = DUE if at is None else WAITING
        return Claim(
            0, group_id, lane, which, state, at, since, deliveries, failures, redelivered, error,
            None,
        )  # fmt: skip

    @property
    def returned(self) -> bool:
        """Whether they were handed out before and came back: only then do they hold others back."""
        return self.redelivered == RETURNED


class Fate(Struct, array_like=True):
    """Which ranges of a lease one verb ended, and when."""

    verb: str
    at: int
    lane: LaneId
    ranges: Ranges


class LeasedRanges(Struct):
    """What a lease delivered from one lane, and how many deliveries that lane had before."""

    lane: LaneId
    ranges: Ranges
    number: int


class Lease(Struct):
    """One delivery of a batch: consumer, token, messages, and how each of them ended."""

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
    """Record in a lease the acks that only its claims show: what is missing without a fate."""
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
    """One piece of a staged push: stored, invisible until published."""

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
