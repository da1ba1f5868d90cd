"""Messages as a consumer gets them: cheap to hand over, decoded when looked at."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Protocol, Self, TypeVar, overload

import msgspec
from msgspec import Struct

from .. import ids, ranges, validate
from ..broker.core.handout import Handout, MessageRun, is_binary, payload
from ..broker.core.push import Answer
from ..broker.core.settle import Outcome
from ..broker.requests import SETTLE_VERBS, Mark, SettleVerb, Verdict
from ..errors import InvalidArgument, by_code
from ..ids import LaneId
from ..model import Metadata, Sequences, when
from ..options import DEFAULT_PARTITION
from ..ranges import Ranges
from ..validate import Duration, Reason

_decode = msgspec.json.Decoder().decode


class HandoutInfo(Struct, gc=False):
    """The hand-out a message belongs to.

    `lost`: the lease is known to be lost. A consume loop sets two more: `pause` waits for some
    seconds and returns whether the loop is to end; `settled` holds the messages that were settled,
    by lane and sequence, or None when that is not recorded.
    """

    session: Any
    queue: str
    group: str
    store: int
    token: int | None
    expires_at: int | None
    lost: bool = False
    pause: Callable[[float], Any] | None = None
    settled: set[tuple[int, int]] | None = None


class RunInfo(Struct, gc=False):
    """The run a message belongs to, and its hand-out."""

    origin: HandoutInfo
    run: MessageRun


class Delivery(Struct, gc=False, eq=False):
    """One delivery of one message; subclasses add the verbs that end it."""

    _share: RunInfo
    _index: int

    @property
    def data(self) -> Any:
        """The payload: a JSON value, or bytes when bytes were pushed. Decoded at each look."""
        body = self._share.run.body
        index = self._index
        if (items := body.items) is not None:
            return _decode(items[index])
        ends = body.ends
        raw = body.data[ends[index - 1] if index else 0 : ends[index]]
        if body.rest is not None and is_binary(body, index):
            return raw
        return _decode(raw)

    @property
    def raw(self) -> bytes:
        """The payload as it was pushed, byte for byte."""
        return payload(self._share.run.body, self._index)

    @property
    def id(self) -> str:
        """The message id."""
        return ids.message_id(self._share.origin.store, self._share.run.lane, self.sequence)

    @property
    def queue(self) -> str:
        """The name of the queue."""
        return self._share.origin.queue

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._share.origin.group

    @property
    def partition(self) -> str:
        """The name of the partition."""
        return self._share.run.partition

    @property
    def priority(self) -> int:
        """The priority; 0 is served first."""
        return self._share.run.priority

    @property
    def sequence(self) -> int:
        """The place in its lane, from 0."""
        return self._share.run.first + self._index

    @property
    def created_at(self) -> datetime:
        """The time of the push."""
        return when(self._share.run.created_at)

    @property
    def deliveries(self) -> int:
        """How often it was handed out, this time included; returns that do not count are left out."""
        return self._share.run.deliveries

    @property
    def failures(self) -> int:
        """How often it was nacked."""
        return self._share.run.failures

    @property
    def redelivered(self) -> bool:
        """Whether it was given out before, and came back; a seek back begins anew."""
        return bool(self._share.run.redelivered)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the message."""
        rest = self._share.run.body.rest
        return rest.headers.get(self._index, {}) if rest else {}

    @property
    def transaction_id(self) -> str:
        """The id its producer gave it, else its own id."""
        rest = self._share.run.body.rest
        return (rest.txids.get(self._index) if rest else None) or self.id

    @property
    def token(self) -> str | None:
        """The token of its lease; None when it was handed out without one."""
        token = self._share.origin.token
        return None if token is None else ids.token_text(token)

    @property
    def lease_expires_at(self) -> datetime | None:
        """When the lease ends unless it is extended; as it was when the message was handed out."""
        at = self._share.origin.expires_at
        return None if at is None else when(at)

    @property
    def lost(self) -> bool:
        """Whether a consume loop has learned that the lease is lost: what is done now is in vain."""
        return self._share.origin.lost

    @property
    def metadata(self) -> Metadata:
        """What JetStream tells of a delivery."""
        run, sequence = self._share.run, self.sequence
        later = 0 if run.redelivered else run.hi - sequence - 1
        return Metadata(
            Sequences(sequence + 1, run.number + sequence - run.lo + 1),
            run.deliveries,
            run.pending + later,
            self.created_at,
        )

    @property
    def subject(self) -> str:
        """The queue, and after a dot the partition if it is not the default one."""
        home = self.partition
        return self.queue if home == DEFAULT_PARTITION else f"{self.queue}.{home}"

    def __repr__(self) -> str:
        return f"<Message {self.id} {self.queue}/{self.partition} delivery {self.deliveries}>"


class MessageSession(Protocol):
    """The methods of a session that a message uses."""

    def settle_one(self, message: Delivery, verdict: Verdict) -> None: ...
    def extend_one(self, message: Delivery, seconds: Duration | None) -> datetime | None: ...


class Message(Delivery, gc=False, eq=False):
    """One delivery. Each verb below ends it, except extend; a lost lease raises LeaseLost."""

    @property
    def _session(self) -> MessageSession:
        return self._share.origin.session  # type: ignore[no-any-return]

    def ack(self, *, confirm: bool = False, up_to: bool = False) -> None:
        """Done. `confirm`: return only when that is on disk. `up_to`: with all before it in its
        lane under the same lease."""
        self._session.settle_one(self, Verdict("ack", confirm=confirm, up_to=up_to))

    def nack(
        self, reason: Reason | None = None, *, delay: Duration | None = None, rest: bool = False
    ) -> None:
        """Failed: comes again after `delay`, else after the back-off, else now; at the limit it
        becomes a dead letter. The reason is text or an exception. `rest`: release what comes after
        it in the batch."""
        self._session.settle_one(self, to_verdict("nack", reason, delay, rest))

    def release(self) -> None:
        """Give it back at once, in its old place, uncounted."""
        self._session.settle_one(self, Verdict("release"))

    def requeue(self, *, delay: Duration | None = None) -> None:
        """Put a copy at the end of its lane for this group, with its counters; this one is done."""
        self._session.settle_one(self, to_verdict("requeue", delay=delay))

    def reject(self, reason: Reason | None = None) -> None:
        """Never again: kept in the dead letters with the reason."""
        self._session.settle_one(self, to_verdict("reject", reason))

    def dead_letter(self, reason: Reason | None = None) -> None:
        """To the dead letters now, as a failure."""
        self._session.settle_one(self, to_verdict("dead_letter", reason))

    def extend(self, seconds: Duration | None = None) -> datetime | None:
        """Keep the lease alive for `seconds` from now (None: the group's lease time)."""
        return self._session.extend_one(self, seconds)

    def in_progress(self) -> None:
        """Still at work: the lease begins anew. JetStream's word for `extend`."""
        self.extend()

    def term(self, reason: Reason | None = None) -> None:
        """Never again, kept in the dead letters. JetStream's word for `reject`."""
        self.reject(reason)


M = TypeVar("M", bound=Delivery)


class Batch(tuple[M, ...]):
    """What one pop brought, under one lease. Empty when there was nothing; then `why` tells if
    something held it back: paused, locked or window."""

    origin: HandoutInfo
    runs: list[MessageRun]
    why: str | None = None
    retry_at: datetime | None = None

    @classmethod
    def of(cls, session: Any, handout: Handout, message: type[M]) -> "Batch[M]":
        """The messages of a hand-out."""
        origin = HandoutInfo(
            session, handout.queue, handout.group, handout.store, handout.token, handout.expires_at
        )
        found: list[M] = []
        for run in handout.runs:
            share = RunInfo(origin, run)
            found += [message(share, i) for i in range(run.lo - run.first, run.hi - run.first)]
        batch = cls(found)
        batch.origin = origin
        batch.runs = handout.runs
        if not found:
            batch.why = handout.why
            batch.retry_at = None if handout.retry_at is None else when(handout.retry_at)
        return batch

    def marks(self, verdict: Verdict) -> dict[int, list[Mark]]:
        """One verdict on everything in the batch, by lease token."""
        self.origin.settled = None
        if self.origin.token is None:
            return {}
        if len(self.runs) == 1:
            (run,) = self.runs
            return {self.origin.token: [Mark(verdict, run.lane, [run.lo, run.hi])]}
        lanes: dict[LaneId, Ranges] = {}
        for run in self.runs:
            lanes[run.lane] = ranges.add(lanes.get(run.lane, []), run.lo, run.hi)
        return {self.origin.token: [Mark(verdict, lane, some) for lane, some in lanes.items()]}

    @property
    def token(self) -> str | None:
        """The token of the lease; None if the messages were acknowledged on delivery."""
        return None if self.origin.token is None else ids.token_text(self.origin.token)

    @property
    def expires_at(self) -> datetime | None:
        """The end of the lease; None if there is no lease."""
        return None if self.origin.expires_at is None else when(self.origin.expires_at)


class Receipt(Sequence[str]):
    """The ids of pushed messages, in the order of the push; made when looked at."""

    def __init__(
        self, store: int, answer: Answer, places: list[list[int]] | None, keyed: bool = False
    ) -> None:
        self._store = store
        self._answer = answer
        self._keyed = keyed
        self._places = places
        self._flat: list[tuple[int, int, bool]] | None = None

    def __len__(self) -> int:
        return sum(place.stop - place.first for run in self._answer for place in run)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        flat = self._entries()
        if isinstance(index, slice):
            return [self._id(entry) for entry in flat[index]]
        return self._id(flat[index])

    def __repr__(self) -> str:
        n = len(self)
        some = ", ".join(self[: min(n, 3)]) + (", ..." if n > 3 else "")
        return f"<Receipt of {n:,} message{'s' * (n != 1)}{some and ': '}{some}>"

    @property
    def duplicates(self) -> list[int]:
        """Which messages of the push were already there, by their place in the push."""
        return [i for i, entry in enumerate(self._entries()) if entry[2]]

    @property
    def repeated(self) -> bool:
        """Whether the push was made before under the same key, so that nothing was added; also
        when only its answer was lost and the connection sent it again."""
        return self._keyed and any(p.repeated for run in self._answer for p in run)

    def _id(self, entry: tuple[int, int, bool]) -> str:
        return ids.message_id(self._store, entry[0], entry[1])

    def _entries(self) -> list[tuple[int, int, bool]]:
        if self._flat is None:
            runs = [
                [(p.lane, s, p.duplicate) for p in run for s in range(p.first, p.stop)]
                for run in self._answer
            ]
            if self._places is None:
                self._flat = [entry for run in runs for entry in run]
            else:
                pairs = zip(self._places, runs, strict=True)
                placed = {i: e for places, run in pairs for i, e in zip(places, run, strict=True)}
                self._flat = [placed[i] for i in range(len(placed))]
        return self._flat


class Refusal(Struct, frozen=True):
    """A message a verb did not apply to, and why."""

    message_id: str
    code: str
    message: str


class Settled(Struct):
    """What settling a batch did. `noop`: settled the same way before. `refused`: not settled.

    A verb on a list answers with this, and raises nothing when some messages are no longer held; a
    verb on one message raises. `q.ack(messages).raise_for_refused()` does that for a list.
    """

    settled: int = 0
    noop: int = 0
    dead: int = 0
    refused: list[Refusal] = []

    def raise_for_refused(self) -> Self:
        """Raise what the first refused message would have raised alone, `LeaseLost` mostly; the
        others are settled. Answers with itself when none was refused."""
        if self.refused:
            first, n = self.refused[0], len(self.refused)
            said = (
                first.message
                if n == 1
                else f"{n:,} messages were refused, the first: {first.message}"
            )
            raise by_code(first.code)(said, refused=[one.message_id for one in self.refused])
        return self

    def add(self, store: int, outcome: Outcome) -> None:
        """Add the outcome of one lease."""
        self.settled += outcome.settled
        self.noop += outcome.noop
        self.dead += outcome.dead
        for part in outcome.refused:
            if not part.ranges:
                raise part.error
            self.refused += [
                Refusal(ids.message_id(store, part.lane, s), part.error.code, part.error.message)
                for s in ranges.numbers(part.ranges)
            ]


def deliveries(messages: object) -> Sequence[Delivery]:
    """One message or a list of them, as a list."""
    if isinstance(messages, Batch):
        return messages
    if isinstance(messages, Delivery):
        return [messages]
    if not isinstance(messages, Sequence) or not all(isinstance(m, Delivery) for m in messages):
        raise InvalidArgument(
            "only a message or a list of messages, as returned by pop, can be settled"
        )
    return messages


def judged(verdicts: object) -> list[tuple[Delivery, Verdict]]:
    """Messages with a verdict each, checked; a verdict may be told by its verb alone."""
    found = []
    for pair in verdicts if isinstance(verdicts, Iterable) else [verdicts]:
        if (
            not isinstance(pair, tuple | list)
            or len(pair) != 2
            or not isinstance(pair[0], Delivery)
        ):
            raise InvalidArgument("settle takes pairs of a message and its verdict")
        found.append((pair[0], verdict_of(pair[1])))
    return found


def verdict_of(given: object) -> Verdict:
    """A checked verdict, given as one or by its verb."""
    if not isinstance(given, Verdict):
        given = Verdict(validate.one_of(given, "verdict", SETTLE_VERBS))
    return given.check()


def to_verdict(
    verb: SettleVerb,
    reason: Reason | None = None,
    delay: Duration | None = None,
    rest: bool = False,
) -> Verdict:
    """A verdict as the arguments of a verb say it."""
    return Verdict(verb, validate.reason(reason), validate.seconds_or_none(delay, "delay"), rest)


def waits(session: object, messages: Sequence[Delivery]) -> Callable[[float], Any] | None:
    """How to wait for a server that is away while messages are settled; None: not at all.

    A handler of a consume loop is not bothered with it. It may come from another session; then
    its way of waiting may not fit here.
    """
    origin = messages[0]._share.origin if messages else None
    return origin.pause if origin is not None and origin.session is session else None


def marks_of(
    verdicts: Iterable[tuple[Delivery, Verdict]],
) -> dict[int, list[Mark]]:
    """Marks by lease token; neighbours with one verdict become one mark. Messages handed out
    without a lease have nothing to settle and are left out."""
    marks: dict[int, list[Mark]] = {}
    share, verdict, indexes = None, None, list[int]()
    for message, judged in verdicts:
        if message._share is not share or judged != verdict:
            _close(marks, share, verdict, indexes)
            share, verdict, indexes = message._share, judged, []
        indexes.append(message._index)
    _close(marks, share, verdict, indexes)
    return marks


def record(messages: Sequence[Delivery], verdict: Verdict) -> None:
    """Let the consume loop these messages come from know that a verb was used on them."""
    for message in messages:
        _record(message._share, verdict, [message._index])


def _record(share: RunInfo, verdict: Verdict, indexes: list[int]) -> None:
    origin, run = share.origin, share.run
    if origin.settled is None:
        return
    if verdict.up_to or verdict.rest:
        origin.settled = None
    else:
        origin.settled.update([(run.lane, run.first + index) for index in indexes])


def unsettled(part: Sequence[Delivery]) -> list[Delivery]:
    """What of a consume loop's messages no verb was used on, as far as it is recorded."""
    settled = part[0]._share.origin.settled
    if settled is None:
        return []
    return [m for m in part if (m._share.run.lane, m.sequence) not in settled]


def _close(
    marks: dict[int, list[Mark]], share: RunInfo | None, verdict: Verdict | None, indexes: list[int]
) -> None:
    if share is None or verdict is None or share.origin.token is None:
        return
    _record(share, verdict, indexes)
    first = share.run.first
    low, high = indexes[0], indexes[-1] + 1
    if high - low == len(indexes) and indexes == list(range(low, high)):
        which = [first + low, first + high]
    else:
        which = ranges.of(first + i for i in indexes)
    marks.setdefault(share.origin.token, []).append(Mark(verdict, share.run.lane, which))
