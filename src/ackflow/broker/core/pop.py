"""Pop: find the lanes with messages, take a batch from them, and lease it."""

from collections.abc import Callable
from functools import partial

from msgspec import structs

from ... import ranges
from ...clock import micros
from ...errors import InvalidArgument
from ...ids import PartitionId
from ...options import MAX_CLAIM, MAX_POP_BYTES, PENDING_OF_GROUP, QUEUE_MODE, GroupOptions
from ...ranges import Ranges
from ...store.records import Claim, Cursor, Group, Lease, LeasedRanges, Queue, Segment
from ...store.tx import UNLIMITED, Tx
from ..brief import brief
from ..requests import PopRequest
from ..waiters import ANY_QUEUE, WaitKey
from .admin.global_pause import is_paused
from .cursors import count_never_delivered, count_unread
from .handout import Handout, LaneBatch, MessageRun, TakenMessages, message_runs, set_pending
from .leases import grant, read_lease, split_for_claims
from .routing.publish import has_expiring
from .take import take, take_with_takeover
from .topology import (
    cursor_for,
    find_queue,
    group_for,
    is_undecided,
    make_all_cursors,
    make_more_cursors,
    queue_for,
)
from .upkeep.expiry import refresh

LANES_AT_ONCE = 64
LOADED_AT_ONCE = 8 * 1024 * 1024  # bytes of payloads that one transaction reads for pops
IDLE_AT_ONCE = 256  # lanes without messages that one pop reads


class WidePop(PopRequest, kw_only=True):
    """A pop from any queue of a namespace, or with a task, that has messages.

    `among` restricts the queues. Queues that are created later are included.
    """

    namespace: str | None = None
    task: str | None = None
    among: Callable[[str], bool] | None = None

    @property
    def wait_key(self) -> WaitKey:
        """A separate key for each `among`, because waiters may have access to different queues."""
        among = "" if self.among is None else str(id(self.among))
        parts = f"{ANY_QUEUE}{self.namespace}{ANY_QUEUE}{self.task}{ANY_QUEUE}{among}"
        return parts, self.group, self.partition

    def matches(self, queue: Queue) -> bool:
        return (
            self.namespace in (None, queue.options.namespace)
            and self.task in (None, queue.options.task)
            and (self.among is None or self.among(queue.name))
        )


class BoundedPop(PopRequest, kw_only=True):
    """A pop of fewer messages than `batch`, if these would have more bytes together."""

    most_bytes: int


@brief
def pop(tx: Tx, request: PopRequest) -> Handout:
    """Lease up to `batch` messages to a consumer; the answer has no runs if there are none.

    Payloads are read by the writer. After some megabytes in one transaction, other pops run again
    in the next one, so that they neither delay other verbs nor take up memory all at once.
    """
    if tx.loaded > LOADED_AT_ONCE:
        return Handout(request.queue, request.group, tx.store, again=True)
    if request.token is not None and (lease := tx.lease(request.token)):
        return _repeat(tx, request, lease)
    if isinstance(request, WidePop):
        return _pop_in_turn(tx, request)
    if request.create:
        queue = queue_for(tx, request.queue, request.dialect)
    else:
        queue = find_queue(tx, request.queue)
    return _pop_from(tx, queue, _group(tx, queue, request), request)


def _group(tx: Tx, queue: Queue, request: PopRequest) -> Group:
    found = tx.group(queue.id, request.group)
    if found is None or is_undecided(found):
        start = "all" if request.group == QUEUE_MODE else request.start
        found = group_for(tx, queue, request.group, request.dialect, GroupOptions(start=start))
    return found


def _pop_in_turn(tx: Tx, request: WidePop) -> Handout:
    """Pop from one of the matching queues: by queue priority, then in the order of lanes.

    The group is created in all of them at once, so that with `start` new it misses none later.
    """
    answer = Handout("", request.group, tx.store)
    found: list[tuple[int, int, int, Queue, Group]] = []
    for (id,) in tx.all("queue_ids"):
        queue = tx.queue_by_id(id)
        if queue is None or not request.matches(queue):
            continue
        group = _group(tx, queue, request)
        answer.again = refresh(tx, group, request.batch).more or answer.again
        cursor, _ = next_work(tx, queue, group, None)
        if cursor is not None:
            found.append((-queue.options.priority, cursor.priority, cursor.served, queue, group))
        elif may_have_more(group):
            make_more_cursors(tx, group.id)
            answer.again = True
        elif (at := tx.next_time(group.id)) is not None:
            answer.retry_at = min(at, answer.retry_at or at)
    for *_, queue, group in sorted(found, key=lambda one: one[:3]):
        tried = _pop_from(tx, queue, group, request)
        if tried.runs:
            return tried
        answer.again = answer.again or tried.again
        if tried.retry_at is not None:
            answer.retry_at = min(tried.retry_at, answer.retry_at or tried.retry_at)
    return answer


def _pop_from(tx: Tx, queue: Queue, group: Group, request: PopRequest) -> Handout:
    answer = Handout(queue.name, group.name, tx.store)
    if not request.batch:
        request = structs.replace(request, batch=group.rules.batch)
    answer.again = refresh(tx, group, request.batch).more
    tx.cache.record_seen(group.id, request.consumer, tx.now)
    room = room_for(tx, queue, group, answer)
    wide = isinstance(request, WidePop)  # its queues are served in turn
    most_bytes = request.most_bytes if isinstance(request, BoundedPop) else MAX_POP_BYTES
    if room >= request.batch and not wide and _fast_pop(tx, group, request, most_bytes, answer):
        return answer
    partition = None
    if request.partition is not None:
        home = tx.partition(queue.id, request.partition)
        if home is None:
            return _empty(tx, group, answer)
        partition = home.id
    want = min(request.batch, room)
    tx.bytes_left = most_bytes
    try:
        parts = _gather(tx, queue, group, request, want, partition, wide, answer)
    finally:
        tx.bytes_left = UNLIMITED
    if not parts:
        if may_have_more(group) and partition is None and answer.why is None:
            make_more_cursors(tx, group.id)
            answer.again = True
        return _empty(tx, group, answer)
    if request.auto_ack or group.rules.policy == "none":
        _settle_at_once(tx, parts)
    else:
        lease_batches(tx, group, request, parts, answer)
    answer.runs = [run for part in parts for run in part.runs]
    if group.dialect in PENDING_OF_GROUP:
        make_all_cursors(tx, group)
        set_pending(answer.runs, count_never_delivered(tx, group))
    return answer


def _repeat(tx: Tx, request: PopRequest, lease: Lease) -> Handout:
    """Answer a pop whose token is known with the same lease."""
    if request.live and (lease.ended_at is not None or lease.expires_at <= tx.now):
        return Handout(request.queue, request.group, tx.store)
    answer = read_lease(tx, lease)
    if (answer.queue, answer.group) != (request.queue, request.group):
        raise InvalidArgument("the token belongs to a lease of another queue or group")
    return answer


def room_for(tx: Tx, queue: Queue, group: Group, answer: Handout) -> int:
    """Return how many messages may be delivered to the group now; if 0, set `why` of the answer."""
    if queue.paused or group.paused or (tx.cache.halted is not False and is_paused(tx)):
        answer.why = "paused"
        return 0
    if group.rules.ordering == "exclusive":
        end = tx.lock_end(group.id)
        if end is not None and end > tx.now:
            answer.why, answer.retry_at = "locked", end
            return 0
    window = group.rules.max_ack_pending
    if window is None:
        return 1 << 40
    room = window - tx.in_window(group.id)
    if room <= 0:
        answer.why = "window"
    return max(0, room)


def next_work(
    tx: Tx, queue: Queue, group: Group, partition: PartitionId | None
) -> tuple[Cursor | None, bool]:
    """Return the lane to serve next, and whether it is the only one of the group with work.

    In a queue with `window_seconds`, only partitions without a push during that time are served.
    While a group is being created, lanes that come first may not have a cursor yet; then no lane is
    returned.
    """
    if group.made is not None and partition is not None:
        for lane in tx.lanes_in(partition):
            cursor_for(tx, group, lane)
    found = _next_work(tx, queue, group, partition)
    cursor = found[0]
    if (
        group.made is not None
        and cursor is not None
        and partition is None
        and may_have_more(group)
        and (cursor.served or (cursor.priority, cursor.lane) > group.made)
    ):
        return None, False
    return found


def may_have_more(group: Group) -> bool:
    """Return whether lanes without a cursor of the group may have messages for it."""
    return group.made is not None and group.options.start != "new"


def _next_work(
    tx: Tx, queue: Queue, group: Group, partition: PartitionId | None
) -> tuple[Cursor | None, bool]:
    if not queue.options.window_seconds:
        return tx.next_work(group.id, partition)
    tx.flush()
    since = tx.now - micros(queue.options.window_seconds)
    lane = tx.value("quiet_work", group.id, partition, since)
    return (None if lane is None else tx.cursor(lane, group.id)), False


def quiet_time(tx: Tx, queue: Queue, group: Group) -> int | None:
    """Return when the next partition with messages will have been quiet long enough."""
    window = micros(queue.options.window_seconds)
    last = tx.value("quiet_time", group.id, tx.now - window)
    return None if last is None else int(last) + window


def _fast_pop(tx: Tx, group: Group, request: PopRequest, most_bytes: int, answer: Handout) -> bool:
    """Lease new messages of the next lane, all of one cached segment, in fewer steps.

    Most pops take this path. Returns False for any other; the general code gives the same result.
    It runs only for plain groups, because it ignores the options that restrict delivery.
    """
    if (
        not group.plain
        or group.made is not None
        or request.auto_ack
        or request.partition is not None
        or request.batch > MAX_CLAIM
    ):
        return False
    cursor, alone = tx.next_work(group.id, None)
    if cursor is None or (not alone and group.dialect in PENDING_OF_GROUP):
        return False
    id = cursor.lane
    lane = tx.lane(id)
    assert lane is not None
    first, number = cursor.next, cursor.delivered
    stop = first + request.batch
    segment = tx.cache.segment(id, first)
    if (
        segment is None
        or stop > segment.first + segment.count
        or segment.not_before is not None
        or segment.for_group is not None
        or lane.gone_to > first
        or (id, group.id) not in tx.cache.nothing_due
        or has_expiring(tx, id)
        or (segment.bytes > most_bytes and _size(tx, segment, first, stop) > most_bytes)
        or (
            group.rules.ordering == "ordered"
            and (
                tx.first_returned(id, group.id) is not None
                or tx.is_leased(group.id, lane.partition)
            )
        )
    ):
        return False
    cursor.next = stop
    cursor.delivered += request.batch
    if not alone:  # the others have their turn first
        cursor.served = tx.tick()
        tx.changed(cursor)
    home = tx.partition_by_id(lane.partition)
    assert home is not None
    lease = grant(
        tx, group, request.consumer, request.lease_seconds or group.rules.lease_seconds,
        [LeasedRanges(id, [first, stop], number)],
        [Claim.leased(group.id, id, [first, stop], segment.created_at)],
        token=request.token, keeper=cursor,
    )  # fmt: skip
    answer.token, answer.expires_at = lease.token, lease.expires_at
    tx.show(id, stop)
    answer.runs = [
        MessageRun(
            id, home.name, lane.priority, segment.first, first, stop, segment.created_at,
            tx.cache.body(id, segment.first) or tx.body(segment), 1, 0, False, number,
            count_unread(tx, lane, cursor), home.id,
        )
    ]  # fmt: skip
    return True


def _size(tx: Tx, segment: Segment, first: int, stop: int) -> int:
    return tx.body(segment).size(first - segment.first, stop - segment.first)


def _gather(
    tx: Tx,
    queue: Queue,
    group: Group,
    request: PopRequest,
    want: int,
    partition: PartitionId | None,
    wide: bool,
    answer: Handout,
) -> list[LaneBatch]:
    """Take from one lane after another until there is enough or no lane has work."""
    idle = 0
    most = request.partitions or (1 if group.rules.ordering == "ordered" else LANES_AT_ONCE)
    parts: list[LaneBatch] = []
    homes: set[PartitionId] = set()
    while want > 0 and tx.bytes_left > 0:
        cursor, alone = next_work(tx, queue, group, partition)
        if cursor and cursor.partition not in homes and len(homes) >= most:
            cursor, alone = _next_in(tx, queue, group, homes), False
        if cursor is None or any(part.cursor is cursor for part in parts):
            break  # no messages are left, or this lane already returned part of its messages
        lane = tx.lane(cursor.lane)
        assert lane is not None
        number = cursor.delivered
        turn = wide or not alone or bool(parts)
        some = partial(take, tx, queue, group, lane, cursor, want, turn=turn)
        taken = take_with_takeover(tx, queue, group, lane, some)
        if not taken:
            idle += 1
            if cursor.ready or idle >= IDLE_AT_ONCE:  # it stopped before all work was done
                answer.again = True
                break
            continue
        homes.add(cursor.partition)
        everything = union_of(taken)
        left = count_unread(tx, lane, cursor)
        runs = message_runs(tx, lane, taken, number, left)
        parts.append(LaneBatch(lane, cursor, taken, everything, number, runs))
        want -= ranges.count(everything)
    return parts


def _next_in(tx: Tx, queue: Queue, group: Group, homes: set[PartitionId]) -> Cursor | None:
    """Return the lane to serve next in these partitions, for a batch limited to them."""
    found = [next_work(tx, queue, group, home)[0] for home in homes]
    some = [cursor for cursor in found if cursor is not None]
    return min(some, key=lambda c: (c.priority, c.served, c.lane), default=None)


def _settle_at_once(tx: Tx, parts: list[LaneBatch]) -> None:
    """Count messages as done that are handed out without a lease."""
    for part in parts:
        cursor = part.cursor
        n = ranges.count(part.ranges)
        cursor.done += n
        cursor.consumed += n
        last = part.runs[-1]
        cursor.last_seq, cursor.last_created, cursor.last_at = last.hi - 1, last.created_at, tx.now
        tx.changed(cursor)


def lease_batches(
    tx: Tx, group: Group, request: PopRequest, parts: list[LaneBatch], answer: Handout
) -> None:
    """Grant one lease for the messages that were taken; set its token and end in the answer."""
    claims = [
        Claim.leased(
            group.id, part.lane.id, which, taken.since, taken.deliveries, taken.failures,
            taken.redelivered, taken.error,
        )
        for part in parts
        for taken in part.taken
        for which in split_for_claims(taken.ranges)
    ]  # fmt: skip
    lease = grant(
        tx, group, request.consumer, request.lease_seconds or group.rules.lease_seconds,
        [LeasedRanges(part.lane.id, part.ranges, part.number) for part in parts],
        claims, token=request.token,
    )  # fmt: skip
    answer.token, answer.expires_at = lease.token, lease.expires_at


def union_of(taken: list[TakenMessages]) -> Ranges:
    """Return the union of the messages that were taken."""
    result = taken[0].ranges
    for more in taken[1:]:
        result = ranges.union(result, more.ranges)
    return result


def _empty(tx: Tx, group: Group, answer: Handout) -> Handout:
    """Complete the answer of a pop without messages with the time to try again."""
    if answer.retry_at is None:
        answer.retry_at = tx.next_time(group.id)
        queue = tx.queue_by_id(group.queue)
        if queue is not None and queue.options.window_seconds:
            times = [answer.retry_at, quiet_time(tx, queue, group)]
            answer.retry_at = min((time for time in times if time is not None), default=None)
    return answer
