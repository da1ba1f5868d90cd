"""Consumer groups in the Queen dialect: how far they are, and how to move or remove them."""

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from .... import ids, validate
from ....broker.core import admin
from ....errors import GroupNotFound, InvalidArgument
from ....server.http import Answer, Call, Param, json
from ..verbs.lag import GroupLag, Lag, PartitionLag, lags, members, seen
from ..verbs.subscriptions import names, resubscribe, unsubscribe
from .common import body_of, iso, time_of
from .paging import FLAG, WHOLE, iso_or_none, looked, route

State = Literal["Stable", "Lagging", "Dead"]
LAGGING_SECONDS = 300


class InQueue(Struct, rename="camel"):
    """A group in one queue, and where it began there."""

    members: int
    total_lag: int
    max_time_lag: int
    partitions_with_lag: int
    subscription_mode: str
    subscription_timestamp: str | None
    subscription_created_at: str


class Group(Struct, rename="camel"):
    """A group over all its queues. `members` are consumers seen in the last minute; the lag is in
    messages not yet settled, and in seconds since the oldest of them was pushed."""

    name: str
    topics: list[str]
    members: int
    total_lag: int
    max_time_lag: int
    state: State
    queues: dict[str, InQueue]


class Groups(Struct):
    groups: list[Group]


class Part(Struct, rename="camel"):
    partition: str
    partition_id: str
    worker_id: str | None
    last_consumed_at: str | None
    total_consumed: int
    offset_lag: int
    time_lag_seconds: int
    lease_active: bool


class Parts(Struct):
    partitions: list[Part]


class LaggingPart(Struct):
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


class Deleted(Struct, rename="camel", omit_defaults=True):
    success: bool
    consumer_group: str
    deleted_partitions: int
    metadata_deleted: bool
    queue_name: str | None = None


class Subscription(Struct, rename="camel"):
    subscription_timestamp: str | None = None


class Subscribed(Struct, rename="camel"):
    success: bool
    consumer_group: str
    new_timestamp: str
    rows_updated: int


class Seek(Struct, rename="camel"):
    """To the end, or to just after a time."""

    to_end: bool = False
    timestamp: str | None = None


class Sought(Struct, rename="camel"):
    success: bool
    consumer_group: str
    queue_name: str
    seek_to_end: bool
    target_timestamp: str | None
    partitions_updated: int
    partition_name: str | None = None


async def groups(call: Call) -> Answer:
    """Every group with its lag and its state."""
    by_name: dict[str, list[GroupLag]] = {}
    for one in await _lags(call, None):
        by_name.setdefault(one.group, []).append(one)
    now = call.server.broker.clock.now()
    return json(Groups([_group(name, some, now) for name, some in sorted(by_name.items())]))


async def _lags(call: Call, name: str | None) -> list[GroupLag]:
    asked = await call.server.do(seen, False)
    found = await looked(call, lags, asked, name)
    return [one for one in found if call.server.sees(call, one.queue)]


def _group(name: str, some: list[GroupLag], now: int) -> Group:
    lag = _together(one.lag for one in some)
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


def _together(some: Iterable[Lag]) -> Lag:
    total = Lag()
    for lag in some:
        total.add(lag.messages, lag.oldest_at)
    return total


def _state(lag: Lag, members: int, consumed: int, now: int) -> State:
    """Dead: nobody reads it, and nobody ever did."""
    if lag.seconds(now) > LAGGING_SECONDS:
        return "Lagging"
    return "Stable" if members or consumed else "Dead"


def _in_queue(one: GroupLag, now: int) -> InQueue:
    start = one.options.start
    mode = start if isinstance(start, str) else "timestamp"
    since = one.created_at if start == "new" else start if isinstance(start, int) else None
    return InQueue(
        members([one]),
        one.lag.messages,
        int(one.lag.seconds(now)),
        sum(1 for part in one.partitions if part.lag.messages),
        mode,
        iso_or_none(since),
        iso(one.created_at),
    )


async def group(call: Call) -> Answer:
    """A group, partition by partition, in every queue that has it."""
    found = await _lags(call, call.params["group"])
    if not found:
        raise GroupNotFound("Consumer group not found")
    store, now = call.server.broker.store.id, call.server.broker.clock.now()
    return json(
        {one.queue: Parts([_part(part, store, now) for part in one.partitions]) for one in found}
    )


def _part(part: PartitionLag, store: int, now: int) -> Part:
    return Part(
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


async def lagging(call: Call) -> Answer:
    """The partitions in which a group is more than so many seconds behind, the worst first."""
    least = call.whole("minLagSeconds", 3600, 0, 1 << 53)
    store, now = call.server.broker.store.id, call.server.broker.clock.now()
    parts = [part for one in await _lags(call, None) for part in one.partitions]
    late = [part for part in parts if part.lag.messages and part.lag.seconds(now) > least]
    late.sort(key=lambda part: part.lag.oldest_at or 0)
    return json([_lagging(part, store, now) for part in late])


def _lagging(part: PartitionLag, store: int, now: int) -> LaggingPart:
    seconds = part.lag.seconds(now)
    return LaggingPart(
        part.group, part.queue, part.partition, ids.partition_uuid(store, part.partition_id),
        _worker(part), part.lag.messages, int(seconds), round(seconds / 3600, 2),
        iso_or_none(part.lag.oldest_at), iso_or_none(part.last_at),
    )  # fmt: skip


async def delete_everywhere(call: Call) -> Answer:
    """Remove a group from every queue; one that is not there is removed already."""
    return await _delete(call, None)


async def delete_in_queue(call: Call) -> Answer:
    """Remove a group from one queue."""
    return await _delete(call, validate.name(call.params["queue"], "queue"))


async def _delete(call: Call, queue: str | None) -> Answer:
    name = validate.name(call.params["group"], "group")
    forget = call.query.get("deleteMetadata", "true").lower() not in ("false", "0")
    for home in await looked(call, names, name):
        if queue in (None, home):
            call.server.allow(call, home)
    dropped = await call.server.do(unsubscribe, True, queue, name, forget)
    partitions = sum(n for _, n in dropped)
    return json(Deleted(True, name, partitions, forget, queue))


async def subscription(call: Call) -> Answer:
    """Let a group begin at a time, wherever it has not read anything yet."""
    name = validate.name(call.params["group"], "group")
    given = body_of(call, Subscription).subscription_timestamp
    if not given:
        raise InvalidArgument("Missing subscriptionTimestamp in request body")
    time = _time(call, given, "subscriptionTimestamp")
    for home in await looked(call, names, name):
        call.server.allow(call, home)
    changed = await call.server.do(resubscribe, True, name, time)
    return json(Subscribed(True, name, iso(time), len(changed)))


def _time(call: Call, text: str, what: str) -> int:
    time = int(call.server.broker.clock.now()) if text == "now" else time_of(text, what)
    if time < 0:
        raise InvalidArgument(f"{what} is a time after 1970, not {text!r}")
    return time


async def seek_queue(call: Call) -> Answer:
    """Move a group in a queue: to the end, or to what came after a time."""
    return await _seek(call, None, body_of(call, Seek))


async def seek_partition(call: Call) -> Answer:
    """Move a group in one partition; without a body to the end."""
    given = call.decoded(Seek) if call.body.strip() else Seek()
    if given.timestamp is None:
        given.to_end = True
    return await _seek(call, validate.name(call.params["partition"], "partition"), given)


async def _seek(call: Call, partition: str | None, given: Seek) -> Answer:
    if not given.to_end and given.timestamp is None:
        raise InvalidArgument("Must specify either 'toEnd': true or 'timestamp'")
    queue, name = call.params["queue"], call.params["group"]
    time = None
    if given.timestamp is not None and not given.to_end:
        time = _time(call, given.timestamp, "timestamp")
    target: str | int = "end" if time is None else time + 1  # messages pushed after it
    moved = await call.server.do(admin.seek, True, queue, name, target, time is not None, partition)
    return json(Sought(True, name, queue, time is None, iso_or_none(time), moved, partition))


_FORGET = Param("deleteMetadata", FLAG, "Forget also where the group began [true]")
_LEAST = Param("minLagSeconds", WHOLE, "More than so many seconds behind [3600]")
ROUTES = (
    route("GET", "consumer-groups", groups, "read-only", answers={200: Groups}, checks=True,
          summary="Every consumer group with its lag and state"),
    route("GET", "consumer-groups/lagging", lagging, "read-only", query=(_LEAST,),
          answers={200: list[LaggingPart]}, checks=True,
          summary="Partitions in which a group is far behind"),
    route("GET", "consumer-groups/{group}", group, "read-only", answers={200: dict[str, Parts]},
          summary="A group, partition by partition", checks=True),
    route("DELETE", "consumer-groups/{group}", delete_everywhere, "admin", query=(_FORGET,),
          answers={200: Deleted}, checks=True, summary="Remove a group from every queue"),
    route("DELETE", "consumer-groups/{group}/queues/{queue}", delete_in_queue, "admin",
          query=(_FORGET,), answers={200: Deleted}, summary="Remove a group from a queue"),
    route("POST", "consumer-groups/{group}/subscription", subscription, "read-write",
          body=Subscription, answers={200: Subscribed}, checks=True,
          summary="Change where a group begins"),
    route("POST", "consumer-groups/{group}/queues/{queue}/seek", seek_queue, "read-write",
          body=Seek, answers={200: Sought}, summary="Move a group in a queue"),
    route("POST", "consumer-groups/{group}/queues/{queue}/partitions/{partition}/seek",
          seek_partition, "read-write", body=Seek, answers={200: Sought},
          summary="Move a group in a partition"),
)  # fmt: skip
