"""Consumer groups in the Queen dialect: lag, seek, subscription, removal."""

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from .... import ids, validate
from ....broker.core.admin import admin
from ....clock import SECOND
from ....errors import GroupNotFound, InvalidArgument
from ....server.http import Call, Param, Response, json, json_list
from ..verbs.lag import (
    GroupLag,
    Lag,
    PartitionLag,
    lags,
    late_partitions,
    members,
    partition_lags,
    seen,
)
from ..verbs.subscriptions import names, resubscribe, unsubscribe
from .common import body_of, iso, time_of
from .paging import FLAG, INTEGER, iso_or_none, read_current, route

State = Literal["Stable", "Lagging", "Dead"]
LAGGING_SECONDS = 300
MOST_LAGGING = 10_000


class GroupInQueue(Struct, rename="camel"):
    """A group in one queue, and where its subscription starts."""

    members: int
    total_lag: int
    max_time_lag: int
    partitions_with_lag: int
    subscription_mode: str
    subscription_timestamp: str | None
    subscription_created_at: str


class Group(Struct, rename="camel"):
    """A group over all its queues.

    `members` counts consumers active in the last minute. `total_lag` counts unsettled messages,
    `max_time_lag` is the age of the oldest of them in seconds.
    """

    name: str
    topics: list[str]
    members: int
    total_lag: int
    max_time_lag: int
    state: State
    queues: dict[str, GroupInQueue]


class Groups(Struct):
    groups: list[Group]


class GroupPartition(Struct, rename="camel"):
    partition: str
    partition_id: str
    worker_id: str | None
    last_consumed_at: str | None
    total_consumed: int
    offset_lag: int
    time_lag_seconds: int
    lease_active: bool


class GroupPartitions(Struct):
    partitions: list[GroupPartition]


class LaggingPartition(Struct):
    consumer_group: str
    queue_name: str
    partition_name: str
    partition_id: str
    worker_id: str | None
    offset_lag: int
    time_lag_seconds: int
    lag_hours: float
    oldest_unconsumed_at: str | None
    last_consumed_at: str | None


class DeleteGroupResult(Struct, rename="camel", omit_defaults=True):
    success: bool
    consumer_group: str
    deleted_partitions: int
    metadata_deleted: bool
    queue_name: str | None = None


class SubscriptionBody(Struct, rename="camel"):
    subscription_timestamp: str | None = None


class SubscriptionResult(Struct, rename="camel"):
    success: bool
    consumer_group: str
    new_timestamp: str
    rows_updated: int


class SeekBody(Struct, rename="camel"):
    """Seek to the end, or to just after a time."""

    to_end: bool = False
    timestamp: str | None = None


class SeekResult(Struct, rename="camel"):
    success: bool
    consumer_group: str
    queue_name: str
    seek_to_end: bool
    target_timestamp: str | None
    partitions_updated: int
    partition_name: str | None = None


async def groups(call: Call) -> Response:
    """List all groups with lag and state."""
    by_name: dict[str, list[GroupLag]] = {}
    asked = await call.server.do(seen, False)
    for one in await read_current(call, lags, asked):
        if not call.server.may_see(call, one.queue):
            continue
        by_name.setdefault(one.group, []).append(one)
    now = call.server.broker.clock.now()

    def encode() -> Response:
        return json(Groups([_group(name, some, now) for name, some in sorted(by_name.items())]))

    return await call.server.compute(sum(map(len, by_name.values())), encode)


def _group(name: str, some: list[GroupLag], now: int) -> Group:
    lag = _sum(one.lag for one in some)
    consumers = members(some)
    return Group(
        name,
        [one.queue for one in some],
        consumers,
        lag.messages,
        int(lag.seconds(now)),
        _state(lag, consumers, sum(one.consumed for one in some), now),
        {one.queue: _in_queue(one, now) for one in some},
    )


def _sum(some: Iterable[Lag]) -> Lag:
    total = Lag()
    for lag in some:
        total.add(lag.messages, lag.oldest_at)
    return total


def _state(lag: Lag, members: int, consumed: int, now: int) -> State:
    """Dead: the group has no members and never consumed a message."""
    if lag.seconds(now) > LAGGING_SECONDS:
        return "Lagging"
    return "Stable" if members or consumed else "Dead"


def _in_queue(one: GroupLag, now: int) -> GroupInQueue:
    start = one.options.start
    mode = start if isinstance(start, str) else "timestamp"
    since = one.created_at if start == "new" else start if isinstance(start, int) else None
    return GroupInQueue(
        members([one]),
        one.lag.messages,
        int(one.lag.seconds(now)),
        one.partitions,
        mode,
        iso_or_none(since),
        iso(one.created_at),
    )


async def group(call: Call) -> Response:
    """Return the progress of a group by queue and partition."""
    found = await read_current(call, partition_lags, call.params["group"])
    mine = {queue: some for queue, some in found.items() if call.server.may_see(call, queue)}
    if not mine:
        raise GroupNotFound("Consumer group not found")
    store, now = call.server.broker.store.id, call.server.broker.clock.now()

    def encode() -> Response:  # in pieces, as a group may have many partitions
        queues = [
            b'%b:{"partitions":%b}'
            % (json(queue).body, json_list(_part(part, store, now) for part in some).body)
            for queue, some in mine.items()
        ]
        return Response(200, b"{%b}" % b",".join(queues))

    return await call.server.compute(sum(map(len, mine.values())), encode)


def _part(part: PartitionLag, store: int, now: int) -> GroupPartition:
    return GroupPartition(
        part.partition,
        ids.partition_uuid(store, part.partition_id),
        _worker(part),
        iso_or_none(part.last_at),
        part.consumed,
        part.lag.messages,
        int(part.lag.seconds(now)),
        part.lease is not None,
    )


def _worker(part: PartitionLag) -> str | None:
    return None if part.lease is None else ids.token_uuid(part.lease)


async def lagging(call: Call) -> Response:
    """List the partitions in which a group lags more than `minLagSeconds`, the worst first."""
    least = call.integer("minLagSeconds", 3600, 0, 1 << 53)
    limit = call.integer("limit", MOST_LAGGING, 1, MOST_LAGGING)
    store, now = call.server.broker.store.id, call.server.broker.clock.now()
    before = max(0, now - least * SECOND - 1)  # the store holds no time of that long ago
    found = await read_current(call, late_partitions, before, limit)
    late = [part for part in found if call.server.may_see(call, part.queue)]
    late.sort(key=lambda part: part.lag.oldest_at or 0)
    del late[limit:]
    return json([_lagging(part, store, now) for part in late])


def _lagging(part: PartitionLag, store: int, now: int) -> LaggingPartition:
    seconds = part.lag.seconds(now)
    return LaggingPartition(
        part.group, part.queue, part.partition, ids.partition_uuid(store, part.partition_id),
        _worker(part), part.lag.messages, int(seconds), round(seconds / 3600, 2),
        iso_or_none(part.lag.oldest_at), iso_or_none(part.last_at),
    )  # fmt: skip


async def delete_everywhere(call: Call) -> Response:
    """Remove a group from every queue; succeeds if it does not exist."""
    return await _delete(call, None)


async def delete_in_queue(call: Call) -> Response:
    """Remove a group from one queue."""
    return await _delete(call, validate.name(call.params["queue"], "queue"))


async def _delete(call: Call, queue: str | None) -> Response:
    name = validate.name(call.params["group"], "group")
    forget = call.query.get("deleteMetadata", "true").lower() not in ("false", "0")
    for home in await read_current(call, names, name):
        if queue in (None, home):
            call.server.allow(call, home)
    dropped = await call.server.do_in_slices(unsubscribe, queue, name, forget)
    partitions = sum(n for _, n in dropped)
    return json(DeleteGroupResult(True, name, partitions, forget, queue))


async def subscription(call: Call) -> Response:
    """Set the start time of a group in all queues where it has not consumed anything yet."""
    name = validate.name(call.params["group"], "group")
    given = body_of(call, SubscriptionBody).subscription_timestamp
    if not given:
        raise InvalidArgument("Missing subscriptionTimestamp in request body")
    time = _time(call, given, "subscriptionTimestamp")
    for home in await read_current(call, names, name):
        call.server.allow(call, home)
    changed = await call.server.do_in_slices(resubscribe, name, time)
    return json(SubscriptionResult(True, name, iso(time), len(changed)))


def _time(call: Call, text: str, what: str) -> int:
    time = int(call.server.broker.clock.now()) if text == "now" else time_of(text, what)
    if time < 0:
        raise InvalidArgument(f"{what} must be a time after 1970, got {text!r}")
    return time


async def seek_queue(call: Call) -> Response:
    """Move a group in a queue to the end, or to just after a time."""
    return await _seek(call, None, body_of(call, SeekBody))


async def seek_partition(call: Call) -> Response:
    """Move a group in one partition; without a body, to the end."""
    given = call.json_body(SeekBody) if call.body.strip() else SeekBody()
    if given.timestamp is None:
        given.to_end = True
    return await _seek(call, validate.name(call.params["partition"], "partition"), given)


async def _seek(call: Call, partition: str | None, given: SeekBody) -> Response:
    if not given.to_end and given.timestamp is None:
        raise InvalidArgument("Must specify either 'toEnd': true or 'timestamp'")
    queue, name = call.params["queue"], call.params["group"]
    time = None
    if given.timestamp is not None and not given.to_end:
        time = _time(call, given.timestamp, "timestamp")
    target: str | int = "end" if time is None else time + 1  # messages pushed after it
    moved = await call.server.do_in_slices(
        admin.seek, queue, name, target, time is not None, partition
    )
    return json(SeekResult(True, name, queue, time is None, iso_or_none(time), moved, partition))


_FORGET = Param("deleteMetadata", FLAG, "Also forget where the subscription starts [true]")
_LIMIT = Param(
    "limit", {"type": "integer", "minimum": 1, "maximum": MOST_LAGGING},
    f"Maximum number of partitions [{MOST_LAGGING}]",
)  # fmt: skip
_LEAST = Param("minLagSeconds", INTEGER, "Minimum lag in seconds [3600]")
ROUTES = (
    route("GET", "consumer-groups", groups, "read-only", responses={200: Groups}, checks_queues=True,
          summary="List consumer groups with lag and state"),
    route("GET", "consumer-groups/lagging", lagging, "read-only", query=(_LEAST, _LIMIT),
          responses={200: list[LaggingPartition]}, checks_queues=True,
          summary="List partitions in which a group lags"),
    route("GET", "consumer-groups/{group}", group, "read-only", responses={200: dict[str, GroupPartitions]},
          summary="Show a group by queue and partition", checks_queues=True),
    route("DELETE", "consumer-groups/{group}", delete_everywhere, "admin", query=(_FORGET,),
          responses={200: DeleteGroupResult}, checks_queues=True, summary="Remove a group from every queue"),
    route("DELETE", "consumer-groups/{group}/queues/{queue}", delete_in_queue, "admin",
          query=(_FORGET,), responses={200: DeleteGroupResult}, summary="Remove a group from a queue"),
    route("POST", "consumer-groups/{group}/subscription", subscription, "read-write",
          body=SubscriptionBody, responses={200: SubscriptionResult}, checks_queues=True,
          summary="Set the start time of a group"),
    route("POST", "consumer-groups/{group}/queues/{queue}/seek", seek_queue, "read-write",
          body=SeekBody, responses={200: SeekResult}, summary="Move a group in a queue"),
    route("POST", "consumer-groups/{group}/queues/{queue}/partitions/{partition}/seek",
          seek_partition, "read-write", body=SeekBody, responses={200: SeekResult},
          summary="Move a group in a partition"),
)  # fmt: skip
