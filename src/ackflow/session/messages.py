"""Messages as a consumer receives them; payloads are decoded on access."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

LEASES_AT_ONCE = 1_000  # settled in one transaction

_decode = msgspec.json.Decoder().decode


class HandoutInfo(Struct, gc=False):
    """The hand-out a message belongs to.

    `lost`: the lease is known to be lost. A consume loop sets two more fields: `pause` waits for a
    number of seconds and returns whether the loop was stopped; `settled` holds the lane and
    sequence of each settled message, or None if they are not recorded.
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
    """One delivery of one message; subclasses add the verbs that settle it."""

    _share: RunInfo
    _index: int

    @property
    def data(self) -> Any:
        """The payload: a JSON value, or bytes if bytes were pushed. Decoded on each access."""
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
    def binary(self) -> bool:
        """Whether bytes were pushed, not a JSON value."""
        return is_binary(self._share.run.body, self._index)

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
        """The priority; 0 is delivered first."""
        return self._share.run.priority

    @property
    def sequence(self) -> int:
        """The position of the message in its lane, starting at 0."""
        return self._share.run.first + self._index

    @property
    def created_at(self) -> datetime:
        """The time of the push."""
        return when(self._share.run.created_at)

    @property
    def deliveries(self) -> int:
        """The number of deliveries, including this one, without those that were released."""
        return self._share.run.deliveries

    @property
    def failures(self) -> int:
        """The number of times the message was nacked."""
        return self._share.run.failures

    @property
    def redelivered(self) -> bool:
        """Whether the message was delivered before and returned; a seek backwards resets this."""
        return bool(self._share.run.redelivered)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the message."""
        rest = self._share.run.body.rest
        return rest.headers.get(self._index, {}) if rest else {}

    @property
    def transaction_id(self) -> str:
        """The transaction id set by the producer, or the message id."""
        rest = self._share.run.body.rest
        return (rest.txids.get(self._index) if rest else None) or self.id

    @property
    def token(self) -> str | None:
        """The token of the lease; None if the message was delivered without a lease."""
        token = self._share.origin.token
        return None if token is None else ids.token_text(token)

    @property
    def lease_expires_at(self) -> datetime | None:
        """The end of the lease at the time of delivery; later extensions are not included."""
        at = self._share.origin.expires_at
        return None if at is None else when(at)

    @property
    def lost(self) -> bool:
        """Whether a consume loop found the lease lost; another consumer may get the message."""
        return self._share.origin.lost

    @property
    def metadata(self) -> Metadata:
        """The metadata that JetStream reports for a delivery."""
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
        """The queue name, followed by a dot and the partition unless it is the default one."""
        home = self.partition
        return self.queue if home == DEFAULT_PARTITION else f"{self.queue}.{home}"

    def __repr__(self) -> str:
        return f"<Message {self.id} {self.queue}/{self.partition} delivery {self.deliveries}>"


class MessageSession(Protocol):
    """The methods of a session that a message uses."""

    def settle_one(self, message: Delivery, verdict: Verdict) -> None: ...
    def extend(self, messages: Delivery, seconds: Duration | None = None) -> datetime | None: ...
    def transaction(self) -> Any: ...


class Message(Delivery, gc=False, eq=False):
    """One delivery of one message, with the verbs that settle it.

    Every verb except `extend` and `in_progress` ends the delivery. A verb raises LeaseLost if the
    lease is lost.
    """

    @property
    def _session(self) -> MessageSession:
        return self._share.origin.session  # type: ignore[no-any-return]

    def ack(self, *, confirm: bool = False, up_to: bool = False) -> None:
        """Acknowledge the message: it is done.

        `confirm`: return only after the ack is on disk. `up_to`: also acknowledge all earlier
        messages of the same lane under the same lease.
        """
        self._session.settle_one(self, Verdict("ack", confirm=confirm, up_to=up_to))

    def nack(
        self, reason: Reason | None = None, *, delay: Duration | None = None, rest: bool = False
    ) -> None:
        """Report a failure: the message is delivered again after `delay` or the back-off.

        Without either it is delivered again immediately. At the retry limit it becomes a dead
        letter. The reason is text or an exception. `rest`: release the messages that follow it in
        the batch.
        """
        self._session.settle_one(self, to_verdict("nack", reason, delay, rest))

    def release(self, *, delay: Duration | None = None) -> None:
        """Return the message to its old position, at once or after `delay`, without counting the
        delivery."""
        self._session.settle_one(self, to_verdict("release", delay=delay))

    def requeue(self, *, delay: Duration | None = None) -> None:
        """Append a copy, with its counters, to the lane for this group; the original is done."""
        self._session.settle_one(self, to_verdict("requeue", delay=delay))

    def reject(self, reason: Reason | None = None) -> None:
        """Never deliver the message again; keep it as a dead letter with the reason."""
        self._session.settle_one(self, to_verdict("reject", reason))

    def dead_letter(self, reason: Reason | None = None) -> None:
        """Move the message to the dead letters now, as a failure."""
        self._session.settle_one(self, to_verdict("dead_letter", reason))

    def extend(self, seconds: Duration | None = None) -> datetime | None:
        """Extend the lease to end no earlier than `seconds` from now; return its new end.

        `seconds` None means the lease time of the group. Returns None without a lease.
        """
        return self._session.extend(self, seconds)

    def in_progress(self) -> None:
        """Restart the lease time; the JetStream name for `extend`."""
        self.extend()

    def progress(self, part: float, data: Mapping[str, Any] | None = None) -> None:
        """Record how far the message is, from 0 to 1, for `Result.progress` and later attempts.

        Only for messages that ask for a result.
        """
        from .results import put_progress

        t = self._session.transaction()
        put_progress(t, self, part, data)
        t.commit()

    def term(self, reason: Reason | None = None) -> None:
        """Never deliver the message again; the JetStream name for `reject`."""
        self.reject(reason)


M = TypeVar("M", bound=Delivery)


class Batch(tuple[M, ...]):
    """The messages of one pop, under one lease.

    An empty batch has a reason in `why` if messages were held back: paused, locked or window.
    """

    origin: HandoutInfo
    runs: list[MessageRun]
    why: str | None = None
    retry_at: datetime | None = None

    @classmethod
    def of(cls, session: Any, handout: Handout, message: type[M]) -> "Batch[M]":
        """Build the batch of a hand-out."""
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
        """Return the marks, by lease token, that give the whole batch one verdict."""
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


Entry = tuple[int, int, int, bool]  # store, lane, sequence, and whether it is a duplicate


class Receipt(Sequence[str]):
    """The ids of pushed messages, in the order of the push; computed on access."""

    def __init__(
        self, store: int, answer: Answer, places: list[list[int]] | None, keyed: bool = False
    ) -> None:
        self._store = store
        self._answer = answer
        self._keyed = keyed
        self._places = places
        self._flat: list[Entry] | None = None

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
        """The indexes of the messages in this push that were duplicates of stored messages."""
        return [i for i, entry in enumerate(self._entries()) if entry[3]]

    @property
    def repeated(self) -> bool:
        """Whether an earlier push had the same key, so that no message was added.

        This includes a push that the connection retried because its answer was lost.
        """
        return self._keyed and any(p.repeated for run in self._answer for p in run)

    def _id(self, entry: Entry) -> str:
        return ids.message_id(entry[0], entry[1], entry[2])

    def _entries(self) -> list[Entry]:
        if self._flat is None:
            runs = [
                [
                    (self._store if p.store is None else p.store, p.lane, s, p.duplicate)
                    for p in run
                    for s in range(p.first, p.stop)
                ]
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
    """A message that was not settled, and the reason."""

    message_id: str
    code: str
    message: str


class Settled(Struct):
    """The result of settling messages.

    `noop` counts the messages that were settled the same way before; `refused` lists the messages
    that were not settled. A verb on a list returns this result and does not raise if some messages
    are no longer leased; a verb on one message raises. `q.ack(messages).raise_for_refused()` raises
    for a list.
    """

    settled: int = 0
    noop: int = 0
    dead: int = 0
    refused: list[Refusal] = []

    def raise_for_refused(self) -> Self:
        """Raise the error of the first refused message, usually `LeaseLost`.

        The messages that are not in `refused` stay settled. Returns itself if none was refused.
        """
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
        """Add the outcome of one lease, in this store unless it names another."""
        store = store if outcome.store is None else outcome.store
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
    """Return one message or a list of messages as a list."""
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
    """Validate pairs of a message and a verdict; a verdict may be given as a verb."""
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
    """Return a validated verdict, given as a Verdict or as a verb."""
    if not isinstance(given, Verdict):
        given = Verdict(validate.one_of(given, "verdict", SETTLE_VERBS))
    return given.check()


def to_verdict(
    verb: SettleVerb,
    reason: Reason | None = None,
    delay: Duration | None = None,
    rest: bool = False,
) -> Verdict:
    """Build a verdict from the arguments of a verb."""
    return Verdict(verb, validate.reason(reason), validate.seconds_or_none(delay, "delay"), rest)


def waits(session: object, messages: Sequence[Delivery]) -> Callable[[float], Any] | None:
    """Return the function that waits for an unreachable server during a settlement, or None.

    Inside a consume loop the handler does not see the outage. Messages of another session get
    None, because that session may wait in a different way.
    """
    origin = messages[0]._share.origin if messages else None
    return origin.pause if origin is not None and origin.session is session else None


def in_slices(marks: dict[int, list[Mark]]) -> Iterator[dict[int, list[Mark]]]:
    """Yield the leases in parts, each settled in a transaction of its own."""
    tokens = list(marks)
    for at in range(0, len(tokens), LEASES_AT_ONCE):
        yield {token: marks[token] for token in tokens[at : at + LEASES_AT_ONCE]}


def marks_of(
    verdicts: Iterable[tuple[Delivery, Verdict]],
) -> dict[int, list[Mark]]:
    """Return marks by lease token; adjacent messages with the same verdict share one mark.

    Messages that were delivered without a lease are skipped: there is nothing to settle.
    """
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
    """Record, for the consume loop that delivered these messages, that they were settled."""
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
    """Return the messages of a consume loop that no verb was used on, if that is recorded."""
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
