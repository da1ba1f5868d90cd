"""Pop in the Queen dialect: by queue, by partition, or by namespace and task."""

from base64 import b64encode
from collections.abc import Callable
from copy import copy
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from .... import ids, validate
from ....broker.core.handout import Handout, MessageRun, is_binary, payload
from ....broker.core.pop import WidePop
from ....broker.requests import PopRequest
from ....errors import InvalidArgument
from ....ids import LaneId
from ....options import MAX_BATCH, QUEUE_MODE
from ....server.http import Call, Param, Response, empty, json
from .common import iso, partition_ids_of, time_of
from .push import TRACE_HEADER

AUTOPILOT_BATCH = 200
MAX_WAIT_MILLISECONDS = 3_600_000
MODES: dict[str, Literal["all", "new"]] = {
    "": "all", "all": "all", "from_beginning": "all", "new": "new", "new-only": "new"
}  # fmt: skip


class PoppedMessage(Struct, rename="camel", gc=False):
    """One message; some fields appear under the names of several Queen versions."""

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


class AutopilotChoice(Struct):
    """The sizes that the server chose for a pop with `autopilot`."""

    partitions: int
    batch: int


class PopResult(Struct, rename="camel"):
    """Messages under one lease; `leaseId` is empty if they were acked on delivery."""

    success: bool
    queue: str
    partition: str
    partition_id: str
    lease_id: str
    consumer_group: str
    partitions_claimed: int
    messages: list[PoppedMessage]
    autopilot: AutopilotChoice | UnsetType = UNSET


async def pop_queue(call: Call) -> Response:
    """Lease messages of a queue from the partition that was served longest ago."""
    return await _pop(
        call, _for_client(call, lambda: PopRequest(queue=_queue(call), **_pop_options(call)))
    )


async def pop_partition(call: Call) -> Response:
    """Lease messages of one partition."""

    def made() -> PopRequest:
        partition = validate.name(call.params["partition"], "partition")
        return PopRequest(queue=_queue(call), partition=partition, **_pop_options(call))

    return await _pop(call, _for_client(call, made))


async def pop_wide(call: Call) -> Response:
    """Lease messages of a queue with this namespace and task."""
    namespace, task = call.query.get("namespace") or None, call.query.get("task") or None
    if namespace is None and task is None:
        raise InvalidArgument("namespace or task is required")

    def among(queue: str) -> bool:
        return call.server.may_see(call, queue)

    request = WidePop(queue="", namespace=namespace, task=task, among=among, **_pop_options(call))
    request.consumer = _consumer(call)
    return await _pop(call, request)


def _for_client(call: Call, made: Callable[[], PopRequest]) -> PopRequest:
    """The request of a pop, which is made once for all calls with this head."""
    known: PopRequest | None = call.from_head.get("pop")
    if known is None:
        known = call.from_head["pop"] = made()
    request = copy(known)
    request.consumer = _consumer(call)
    return request


def _consumer(call: Call) -> str:
    host, port = call.client
    return f"{host}:{port}"


def _queue(call: Call) -> str:
    return validate.name(call.params["queue"], "queue")


def _pop_options(call: Call) -> dict[str, Any]:
    """The query parameters as fields of a PopRequest; the consumer is set later."""
    if call.flag("conflation"):
        # Ignoring it would deliver every message to a client that expects only the last one.
        raise InvalidArgument("conflation is not supported")
    chosen = min(AUTOPILOT_BATCH, call.server.limits.batch) if call.flag("autopilot") else 1
    lease = call.seconds("leaseSeconds", 0.0, 1e9)
    return {
        "group": validate.name(call.query.get("consumerGroup") or QUEUE_MODE, "consumerGroup"),
        "consumer": "",
        "batch": call.integer("batch", chosen, 1, MAX_BATCH),
        "lease_seconds": lease or None,
        "auto_ack": call.flag("autoAck"),
        "partitions": call.integer("partitions", 1, 1, 10_000),
        "dialect": "queen",
        "start": _start(call),
    }


def _start(call: Call) -> Literal["all", "new"] | int:
    """Where a new group starts."""
    mode, since = call.query.get("subscriptionMode", ""), call.query.get("subscriptionFrom", "")
    if mode not in MODES:
        modes = ", ".join(mode for mode in MODES if mode)
        raise InvalidArgument(f"subscriptionMode must be one of {modes}, got {mode!r}")
    if since == "now":
        return "new"
    return time_of(since, "subscriptionFrom") if since else MODES[mode]


async def _pop(call: Call, request: PopRequest) -> Response:
    wait: float | None = call.from_head.get("wait")
    if wait is None:
        timeout = call.integer("timeout", 30_000, 0, 1 << 53)
        wait = min(timeout, MAX_WAIT_MILLISECONDS) / 1000 if call.flag("wait") else 0.0
        call.from_head["wait"] = wait
    handout = await call.server.pop(call, request, wait)
    if not handout.runs:
        return empty()
    homes = partition_ids_of(call, handout.runs)
    chosen: AutopilotChoice | UnsetType = UNSET
    if call.query_string and call.flag("autopilot"):
        chosen = AutopilotChoice(request.partitions or 1, request.batch)

    def encode() -> Response:
        answer = pop_result(handout, homes)
        answer.autopilot = chosen
        return json(answer)

    messages = sum(run.hi - run.lo for run in handout.runs)
    response = await call.server.compute(messages, encode)
    return response._replace(undelivered=call.server.release_if_undelivered(handout))


def pop_result(handout: Handout, homes: dict[LaneId, str]) -> PopResult:
    """Encode a hand-out; payloads pass through as they were pushed."""
    lease = "" if handout.token is None else ids.token_uuid(handout.token)
    messages: list[PoppedMessage] = []
    for run in handout.runs:
        _add(messages, handout, run, homes[run.lane], lease)
    first = messages[0]
    return PopResult(
        True, handout.queue, first.partition, first.partition_id, lease, handout.group,
        len({run.partition for run in handout.runs}), messages,
    )  # fmt: skip


def _add(
    messages: list[PoppedMessage], handout: Handout, run: MessageRun, home: str, lease: str
) -> None:
    created, body, rest = iso(run.created_at), run.body, run.body.rest
    prefix = ids.id_prefix(handout.store, run.lane)
    for sequence in range(run.lo, run.hi):
        index = sequence - run.first
        id = f"{prefix}{sequence:012x}"
        message = PoppedMessage(
            id, id, id, None, handout.queue, run.partition, home, Raw(payload(body, index)), None,
            run.failures, run.deliveries, bool(run.redelivered), run.priority, created,
            handout.group, lease,
        )  # fmt: skip
        if rest is not None:
            message.transaction_id = rest.txids.get(index, id)
            if headers := rest.headers.get(index):
                message.headers, message.trace_id = headers, headers.get(TRACE_HEADER)
            if is_binary(body, index):
                message.encoding = "base64"
                message.data = Raw(msgspec.json.encode(b64encode(bytes(message.data)).decode()))
        messages.append(message)


_WHOLE = {"type": "integer", "minimum": 1}
_FLAG = {"type": "string", "enum": ["true", "false", "1", "0", ""]}
POP_QUERY = (
    Param("batch", {**_WHOLE, "maximum": MAX_BATCH}, "Maximum number of messages [1]"),
    Param("wait", _FLAG, "Wait for messages if there are none"),
    Param("timeout", {"type": "integer", "minimum": 0}, "Milliseconds to wait [30000]"),
    Param("consumerGroup", {"type": "string"}, "Name of the consumer group"),
    Param("autoAck", _FLAG, "Ack on delivery, without a lease"),
    Param("subscriptionMode", {"enum": list(MODES)}, "Where a new group starts [all]"),
    Param(
        "subscriptionFrom", {"type": "string"}, "Start time of a new group: now or an ISO 8601 time"
    ),
    Param("partitions", {**_WHOLE, "maximum": 10_000}, "Maximum number of partitions [1]"),
    Param(
        "leaseSeconds",
        {"type": "number", "minimum": 0},
        "Lease time; default: the queue's leaseTime",
    ),
    Param("autopilot", _FLAG, "Let the server choose the batch size"),
)
WIDE_POP_QUERY = (
    Param("namespace", {"type": "string"}, "Queues of this namespace"),
    Param("task", {"type": "string"}, "Queues with this task"),
    *POP_QUERY,
)
