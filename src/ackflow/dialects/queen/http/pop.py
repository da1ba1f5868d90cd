"""Pop in the Queen dialect: by queue, by partition, or by namespace and task."""

from base64 import b64encode
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from .... import ids, validate
from ....broker.core.handout import Handout, MessageRun, is_binary, payload
from ....broker.core.pop import WidePop
from ....broker.requests import PopRequest
from ....errors import InvalidArgument
from ....options import MAX_BATCH, QUEUE_MODE
from ....server.http import Answer, Call, Param, empty, json
from .common import iso, partition_ids, time_of
from .push import TRACE

AUTOPILOT_BATCH = 200
LONGEST_WAIT = 3_600_000
MODES: dict[str, Literal["all", "new"]] = {
    "": "all", "all": "all", "from_beginning": "all", "new": "new", "new-only": "new"
}  # fmt: skip


class Popped(Struct, rename="camel"):
    """One message, with the names every version of Queen has for its fields."""

    id: str
    message_id: str
    transaction_id: str
    trace_id: str | None
    queue: str
    partition: str
    partition_id: str
    data: Raw
    producer_sub: None
    retry_count: int
    deliveries: int
    redelivered: bool
    priority: int
    created_at: str
    consumer_group: str
    lease_id: str
    headers: dict[str, str] | UnsetType = UNSET
    encoding: Literal["base64"] | UnsetType = UNSET


class Sizes(Struct):
    """What the server chose for a client that left it to it."""

    partitions: int
    batch: int


class PopAnswer(Struct, rename="camel"):
    """Messages under one lease; `leaseId` is empty when they were acked on delivery."""

    success: bool
    queue: str
    partition: str
    partition_id: str
    lease_id: str
    consumer_group: str
    partitions_claimed: int
    messages: list[Popped]
    autopilot: Sizes | UnsetType = UNSET


async def pop_queue(call: Call) -> Answer:
    """Lease messages of a queue, of whichever partition was served longest ago."""
    return await _pop(call, PopRequest(queue=_queue(call), **_asked(call)))


async def pop_partition(call: Call) -> Answer:
    """Lease messages of one partition."""
    partition = validate.name(call.params["partition"], "partition")
    return await _pop(call, PopRequest(queue=_queue(call), partition=partition, **_asked(call)))


async def pop_wide(call: Call) -> Answer:
    """Lease messages of a queue with this namespace and task."""
    namespace, task = call.query.get("namespace") or None, call.query.get("task") or None
    if namespace is None and task is None:
        raise InvalidArgument("namespace or task is required")

    def among(queue: str) -> bool:
        return bool(call.server.sees(call, queue))

    return await _pop(
        call, WidePop(queue="", namespace=namespace, task=task, among=among, **_asked(call))
    )


def _queue(call: Call) -> str:
    return validate.name(call.params["queue"], "queue")


def _asked(call: Call) -> dict[str, Any]:
    """What the query asks for."""
    if call.flag("conflation"):
        # Ignored, it would hand over every message to a client that wants the last one alone.
        raise InvalidArgument("conflation is not served")
    chosen = min(AUTOPILOT_BATCH, call.server.limits.batch) if call.flag("autopilot") else 1
    lease = call.seconds("leaseSeconds", 0.0, 1e9)
    host, port = call.scope.get("client") or ("unknown", 0)
    return {
        "group": validate.name(call.query.get("consumerGroup") or QUEUE_MODE, "consumerGroup"),
        "consumer": f"{host}:{port}",
        "batch": call.whole("batch", chosen, 1, MAX_BATCH),
        "lease_seconds": lease or None,
        "auto_ack": call.flag("autoAck"),
        "partitions": call.whole("partitions", 1, 1, 10_000),
        "dialect": "queen",
        "start": _start(call),
    }


def _start(call: Call) -> Literal["all", "new"] | int:
    """Where a group begins that nobody has asked for before."""
    mode, since = call.query.get("subscriptionMode", ""), call.query.get("subscriptionFrom", "")
    if mode not in MODES:
        modes = ", ".join(mode for mode in MODES if mode)
        raise InvalidArgument(f"subscriptionMode must be one of {modes}, got {mode!r}")
    if since == "now":
        return "new"
    return time_of(since, "subscriptionFrom") if since else MODES[mode]


async def _pop(call: Call, request: PopRequest) -> Answer:
    timeout = call.whole("timeout", 30_000, 0, 1 << 53)
    wait = min(timeout, LONGEST_WAIT) / 1000 if call.flag("wait") else 0.0
    handout = await call.server.pop(call, request, wait)
    if not handout.runs:
        return empty()
    homes = await partition_ids(call, {run.lane for run in handout.runs})
    answer = answered(handout, homes)
    if call.flag("autopilot"):
        answer.autopilot = Sizes(request.partitions or 1, request.batch)
    return json(answer)._replace(after=call.server.returning(handout))


def answered(handout: Handout, homes: dict[int, str]) -> PopAnswer:
    """A hand-out as this dialect writes it; payloads go through as they were pushed."""
    lease = "" if handout.token is None else ids.token_uuid(handout.token)
    messages: list[Popped] = []
    for run in handout.runs:
        _add(messages, handout, run, homes[run.lane], lease)
    first = messages[0]
    return PopAnswer(
        True, handout.queue, first.partition, first.partition_id, lease, handout.group,
        len({run.partition for run in handout.runs}), messages,
    )  # fmt: skip


def _add(messages: list[Popped], handout: Handout, run: MessageRun, home: str, lease: str) -> None:
    created, body, rest = iso(run.created_at), run.body, run.body.rest
    prefix = ids.id_prefix(handout.store, run.lane)
    for sequence in range(run.lo, run.hi):
        index = sequence - run.first
        id = f"{prefix}{sequence:012x}"
        message = Popped(
            id, id, id, None, handout.queue, run.partition, home, Raw(payload(body, index)), None,
            run.failures, run.deliveries, bool(run.redelivered), run.priority, created,
            handout.group, lease,
        )  # fmt: skip
        if rest is not None:
            message.transaction_id = rest.txids.get(index, id)
            if headers := rest.headers.get(index):
                message.headers, message.trace_id = headers, headers.get(TRACE)
            if is_binary(body, index):
                message.encoding = "base64"
                message.data = Raw(msgspec.json.encode(b64encode(bytes(message.data)).decode()))
        messages.append(message)


_WHOLE = {"type": "integer", "minimum": 1}
_FLAG = {"type": "string", "enum": ["true", "false", "1", "0", ""]}
QUERY = (
    Param("batch", {**_WHOLE, "maximum": MAX_BATCH}, "How many messages at most [1]"),
    Param("wait", _FLAG, "Wait for messages when there are none"),
    Param("timeout", {"type": "integer", "minimum": 0}, "Milliseconds to wait [30000]"),
    Param("consumerGroup", {"type": "string"}, "An independent reader of the queue"),
    Param("autoAck", _FLAG, "Hand out as done, without a lease"),
    Param("subscriptionMode", {"enum": list(MODES)}, "Where a new group begins [all]"),
    Param("subscriptionFrom", {"type": "string"}, "now, or an ISO time"),
    Param("partitions", {**_WHOLE, "maximum": 10_000}, "From how many partitions at most [1]"),
    Param("leaseSeconds", {"type": "number", "minimum": 0}, "Instead of the queue's leaseTime"),
    Param("autopilot", _FLAG, "Let the server choose a batch that is not given"),
)
WIDE = (
    Param("namespace", {"type": "string"}, "Queues of this namespace"),
    Param("task", {"type": "string"}, "Queues with this task"),
    *QUERY,
)
