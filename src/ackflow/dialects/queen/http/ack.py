"""Ack in the Queen dialect: one message or many, with a lease id or without; and lease extension.

A rejected ack is answered with 200 and `success: false`; 400 means a malformed request.
"""

from typing import Any

from msgspec import Struct

from .... import ids, validate
from ....broker.core.settle import extend
from ....broker.requests import Verdict
from ....errors import AckflowError, InvalidArgument, LeaseLost, NotFound, RolledBack
from ....ids import PartitionId
from ....options import QUEUE_MODE
from ....server.http import Call, Counted, Response, json, json_list
from ..errors import AlreadyCommitted
from ..verbs.settle_by_name import NamedMessage, NamedOutcome, settle_named
from .common import allow_partitions, body_of, iso, large_body_of, partition_of

STATUSES = ("completed", "success", "failed", "retry", "dlq", "rejected", "in_progress")
DONE = {
    "ack": "acknowledged", "nack": "failed_retry", "release": "released", "reject": "rejected",
    "dead_letter": "dead_lettered",
}  # fmt: skip
INVALID_LEASE = "Lease validation failed"
_ACK = Verdict("ack")


class Ack(Counted, rename="camel", gc=False):
    """A verdict on one message; the default `status` is completed."""

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
    """Many verdicts in one transaction; with `atomic`, one rejected ack rolls back all."""

    acknowledgments: list[Ack] | None = None
    consumer_group: str | None = None
    atomic: bool = False


class AckResult(Struct, rename="camel", gc=False):
    """The result of one ack. `message` is one word; `reason` explains a rejected ack."""

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


class AckBatchResult(AckResult, kw_only=True, rename="camel", gc=False):
    index: int


class ExtendBody(Struct):
    seconds: float = 60.0


class ExtendResult(Struct):
    """A lease extension; the new end has three names because Queen's clients differ."""

    leaseId: str
    success: bool
    renewed: int
    newExpiresAt: str | None = None
    expiresAt: str | None = None
    lease_expires_at: str | None = None
    error: str | None = None


async def ack(call: Call) -> Response:
    """Settle one message."""
    given = body_of(call, Ack)
    if not given.transaction_id:
        raise InvalidArgument("transactionId is required")
    if not given.partition_id:
        raise InvalidArgument("partitionId is required to ensure message uniqueness")
    items = AckParser(call).named([given], given.consumer_group)
    (outcome,) = await _settle(call, items, atomic=False)
    return json(AckResult(*_result_fields(items[0], outcome)))


async def ack_batch(call: Call) -> Response:
    """Settle many messages in one transaction; each has its own result."""
    given = await large_body_of(call, AckBatch)
    if given.acknowledgments is None:
        raise InvalidArgument("acknowledgments array is required")
    acks, server = given.acknowledgments, call.server
    server.check_batch(len(acks))

    def parse() -> list[NamedMessage]:
        for one in acks:
            check(one)
        return AckParser(call).named(acks, given.consumer_group)

    items = await server.compute(len(acks), parse)
    if not items:
        return json([])
    answers = await _settle(call, items, given.atomic)
    return await server.compute(len(acks), lambda: _batch_response(items, answers))


def _batch_response(items: list[NamedMessage], answers: list[NamedOutcome]) -> Response:
    return json_list(
        AckBatchResult(*_result_fields(item, outcome), index=index)
        for index, (item, outcome) in enumerate(zip(items, answers, strict=True))
    )


def check(one: Ack) -> None:
    """Check that an ack in a list names its message."""
    if not one.transaction_id:
        raise InvalidArgument("Each acknowledgment must have a valid transactionId string")
    if not one.partition_id:
        raise InvalidArgument(
            "Each acknowledgment must have a valid partitionId string to ensure message uniqueness"
        )


async def _settle(call: Call, items: list[NamedMessage], atomic: bool) -> list[NamedOutcome]:
    await allow_partitions(call, {item.partition for item in items})
    synced = any(item.verdict.synced for item in items if item.verdict)
    outcome: list[NamedOutcome] = await call.server.do(settle_named, synced, items, atomic)
    return outcome


class AckParser:
    """Converts the acks of one request; each distinct partition and lease id is parsed once."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._partitions: dict[str, PartitionId | None] = {}
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
                return _ACK
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
        raise InvalidArgument(f"status must be one of {', '.join(STATUSES)}, got {status!r}")

    def _partition(self, text: str) -> PartitionId | None:
        if text not in self._partitions:
            self._partitions[text] = partition_of(self._call, text)
        return self._partitions[text]

    def _lease(self, text: str) -> int | None:
        if text not in self._leases:
            self._leases[text] = token_of(text)
        return self._leases[text]


def token_of(text: str) -> int | None:
    """The token that a leaseId stands for; None if it is not a lease id."""
    try:
        return ids.parse_token(text)
    except InvalidArgument:
        return None


def _result_fields(item: NamedMessage, outcome: NamedOutcome) -> tuple[Any, ...]:
    """The fields of an AckResult, in order."""
    word, error = _outcome_word(item, outcome)
    return (
        outcome.error is None, word, error, item.txid, outcome.queue, outcome.partition, outcome.released,
        outcome.dead, outcome.noop, outcome.error.message if outcome.error else None,
        iso(outcome.until) if outcome.until else None,
    )  # fmt: skip


def _outcome_word(item: NamedMessage, outcome: NamedOutcome) -> tuple[str, str | None]:
    if outcome.error is not None:
        return refusal(outcome.error)
    if item.verdict is None:
        return "extended", None
    if item.verdict.verb == "nack" and outcome.dead:
        return "failed_dlq", None
    return DONE[item.verdict.verb], None


def refusal(error: AckflowError) -> tuple[str, str]:
    """An error as one word and as the text that Queen's clients know."""
    if isinstance(error, NotFound):
        return "not_found", "Message not found"
    if isinstance(error, AlreadyCommitted):
        return "already_settled", error.message
    if isinstance(error, LeaseLost):
        return "invalid_lease", INVALID_LEASE
    if isinstance(error, RolledBack):
        return "rolled_back", "Another acknowledgment was rejected, so nothing was done"
    return error.code, error.message


async def extend_lease(call: Call) -> Response:
    """Extend a lease to `seconds` from now; it is never shortened."""
    given = body_of(call, ExtendBody) if call.body else ExtendBody()
    seconds = validate.positive(given.seconds, "seconds")
    text = call.params["leaseId"]
    token = token_of(text)
    if token is None:
        return json(ExtendResult(text, False, 0, error="Lease not found"))
    await call.server.allow_lease(call, token)
    try:
        end = iso(await call.server.do(extend, False, token, seconds))
    except LeaseLost as lost:
        return json(ExtendResult(text, False, 0, error=lost.message))
    return json(ExtendResult(text, True, 1, end, end, end))
