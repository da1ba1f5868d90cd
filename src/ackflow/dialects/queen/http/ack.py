"""Ack in the Queen dialect: one message or many, with a lease or by name; and keeping a lease alive.

What is refused is told with 200 and `success: false`; 400 is for what cannot be understood.
"""

from typing import Any

from msgspec import Struct

from .... import ids, validate
from ....broker.core.settle import extend
from ....broker.requests import Verdict
from ....errors import (
    AckflowError,
    InvalidArgument,
    LeaseLost,
    NotFound,
    RolledBack,
)
from ....options import QUEUE_MODE
from ....server.http import Answer, Call, json
from ..errors import AlreadyCommitted
from ..verbs.settle_by_name import NamedMessage, NamedOutcome, settle_named
from .common import allow_partitions, body_of, iso, partition_of

STATUSES = ("completed", "success", "failed", "retry", "dlq", "rejected", "in_progress")
DONE = {
    "ack": "acknowledged", "nack": "failed_retry", "release": "released", "reject": "rejected",
    "dead_letter": "dead_lettered",
}  # fmt: skip
INVALID_LEASE = "Lease validation failed"
_PLAIN = Verdict("ack")


class Ack(Struct, rename="camel"):
    """A verdict on one message. Without `status` it is completed."""

    transaction_id: str | None = None
    partition_id: str | None = None
    lease_id: str | None = None
    status: str | None = None
    error: str | None = None
    reason: str | None = None
    delay_seconds: float | None = None
    up_to: bool = False
    confirm: bool = False
    consumer_group: str | None = None


class AckBatch(Struct, rename="camel"):
    """Many verdicts in one transaction; `atomic`: one that is refused undoes all."""

    acknowledgments: list[Ack] | None = None
    consumer_group: str | None = None
    atomic: bool = False


class Acked(Struct, rename="camel"):
    """What became of one ack. `message` is one word, `reason` a sentence when it was refused."""

    success: bool
    message: str
    error: str | None
    transaction_id: str
    queue_name: str | None
    partition_name: str | None
    lease_released: bool
    dlq: bool
    noop: bool
    reason: str | None = None
    lease_expires_at: str | None = None


class AckedItem(Acked, kw_only=True, rename="camel"):
    index: int


class Extend(Struct):
    seconds: float = 60.0


class Extended(Struct):
    """A lease that lives on, or why it does not; every client reads its own name of the time."""

    leaseId: str
    success: bool
    renewed: int
    newExpiresAt: str | None = None
    expiresAt: str | None = None
    lease_expires_at: str | None = None
    error: str | None = None


async def ack(call: Call) -> Answer:
    """Settle one message."""
    given = body_of(call, Ack)
    if not given.transaction_id:
        raise InvalidArgument("transactionId is required")
    if not given.partition_id:
        raise InvalidArgument("partitionId is required to ensure message uniqueness")
    items = Reader(call).named([given], given.consumer_group)
    (told,) = await _settle(call, items, atomic=False)
    return json(Acked(*_words(items[0], told)))


async def ack_batch(call: Call) -> Answer:
    """Settle many messages in one transaction; each answers for itself."""
    given = body_of(call, AckBatch)
    if given.acknowledgments is None:
        raise InvalidArgument("acknowledgments array is required")
    call.server.check_batch(len(given.acknowledgments))
    for one in given.acknowledgments:
        check(one)
    items = Reader(call).named(given.acknowledgments, given.consumer_group)
    if not items:
        return json([])
    answers = await _settle(call, items, given.atomic)
    return json(
        [
            AckedItem(*_words(item, told), index=index)
            for index, (item, told) in enumerate(zip(items, answers, strict=True))
        ]
    )


def check(one: Ack) -> None:
    """Refuse an ack of a list that does not name its message."""
    if not one.transaction_id:
        raise InvalidArgument("Each acknowledgment must have a valid transactionId string")
    if not one.partition_id:
        raise InvalidArgument(
            "Each acknowledgment must have a valid partitionId string to ensure message uniqueness"
        )


async def _settle(call: Call, items: list[NamedMessage], atomic: bool) -> list[NamedOutcome]:
    await allow_partitions(call, {item.partition for item in items})
    synced = any(item.verdict.synced for item in items if item.verdict)
    told: list[NamedOutcome] = await call.server.do(settle_named, synced, items, atomic)
    return told


class Reader:
    """Reads the acks of one request; what they have in common is read once."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._partitions: dict[str, int | None] = {}
        self._leases: dict[str, int | None] = {}

    def named(self, acks: list[Ack], group: str | None) -> list[NamedMessage]:
        return [self.one(ack, ack.consumer_group or group) for ack in acks]

    def one(self, ack: Ack, group: str | None) -> NamedMessage:
        lease = ack.lease_id or None
        token = self._lease(lease) if lease else None
        return NamedMessage(
            self._partition(ack.partition_id or ""),
            validate.writable(ack.transaction_id or "", "transactionId"),
            self._verdict(ack),
            validate.name(group or QUEUE_MODE, "consumerGroup"),
            token,
            lease is not None and token is None,
        )

    def _verdict(self, ack: Ack) -> Verdict | None:
        status = ack.status or "completed"
        if status in ("completed", "success"):
            if not (ack.up_to or ack.confirm):
                return _PLAIN
            return Verdict("ack", up_to=ack.up_to, confirm=ack.confirm)
        error, reason = validate.text(ack.error, "error"), validate.text(ack.reason, "reason")
        if status == "failed":
            delay = ack.delay_seconds
            if delay is not None:
                validate.seconds(delay, "delaySeconds")
            return Verdict("nack", error or reason, delay, confirm=ack.confirm, yields=True,
                           counting=self._call.server.retry_limit_counts)  # fmt: skip
        if status == "retry":
            return Verdict("release", confirm=ack.confirm, yields=True)
        if status == "dlq":
            return Verdict("dead_letter", error or reason)
        if status == "rejected":
            return Verdict("reject", reason or error)
        if status == "in_progress":
            return None
        raise InvalidArgument(f"status is one of {', '.join(STATUSES)}, not {status!r}")

    def _partition(self, text: str) -> int | None:
        if text not in self._partitions:
            self._partitions[text] = partition_of(self._call, text)
        return self._partitions[text]

    def _lease(self, text: str) -> int | None:
        if text not in self._leases:
            self._leases[text] = token_of(text)
        return self._leases[text]


def token_of(text: str) -> int | None:
    """The token a leaseId stands for; None when it never was one."""
    try:
        return ids.parse_token(text)
    except InvalidArgument:
        return None


def _words(item: NamedMessage, told: NamedOutcome) -> tuple[Any, ...]:
    """The fields of an answer, in their order."""
    word, error = _word(item, told)
    return (
        told.error is None, word, error, item.txid, told.queue, told.partition, told.released,
        told.dead, told.noop, told.error.message if told.error else None,
        iso(told.until) if told.until else None,
    )  # fmt: skip


def _word(item: NamedMessage, told: NamedOutcome) -> tuple[str, str | None]:
    if told.error is not None:
        return refusal(told.error)
    if item.verdict is None:
        return "extended", None
    if item.verdict.verb == "nack" and told.dead:
        return "failed_dlq", None
    return DONE[item.verdict.verb], None


def refusal(error: AckflowError) -> tuple[str, str]:
    """A refusal in one word, and as the clients of Queen know it."""
    if isinstance(error, NotFound):
        return "not_found", "Message not found"
    if isinstance(error, AlreadyCommitted):
        return "already_settled", error.message
    if isinstance(error, LeaseLost):
        return "invalid_lease", INVALID_LEASE
    if isinstance(error, RolledBack):
        return "rolled_back", "Another acknowledgment was refused, so nothing was done"
    return error.code, error.message


async def extend_lease(call: Call) -> Answer:
    """Keep a lease alive for `seconds` from now; it never ends earlier than before."""
    given = body_of(call, Extend) if call.body else Extend()
    seconds = validate.positive(given.seconds, "seconds")
    text = call.params["leaseId"]
    token = token_of(text)
    if token is None:
        return json(Extended(text, False, 0, error="Lease not found"))
    await call.server.allow_lease(call, token)
    try:
        end = iso(await call.server.do(extend, False, token, seconds))
    except LeaseLost as lost:
        return json(Extended(text, False, 0, error=lost.message))
    return json(Extended(text, True, 1, end, end, end))
