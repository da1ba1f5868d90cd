"""Administration: options, pauses, seeking, purging and deleting."""

from msgspec import structs

from ... import ids, ranges, validate
from ...ids import GroupId
from ...options import Dialect, GroupOptions, QueueOptions
from ...ranges import Ranges
from ...store.encryption import check_key
from ...store.records import LEASED, Cursor, Group, Lane, Queue
from ...store.tx import Tx
from ..requests import check_group_changes, check_queue_changes, check_seek
from ..verb import verb
from .cursors import (
    LostRanges,
    hidden_copies_in,
    lease_of,
    pass_over,
    sequence_at,
    take_from_leases,
)
from .exchanges import forget_queue
from .expiry import refresh, refresh_range
from .history import record_history
from .retention import move_base, note_deleted
from .topology import (
    complete_cursors,
    cursor_for,
    find_group,
    find_partition,
    find_queue,
    group_for,
    is_undecided,
    queue_for,
)


@verb("read-write", queue="name", synced=True, check=check_queue_changes)
def configure(
    tx: Tx, name: str, changes: dict[str, object], dialect: Dialect = "native"
) -> QueueOptions:
    """Create a queue or change the given options; other options stay unchanged."""
    if changes.get("encrypted"):
        check_key()
    queue = queue_for(tx, name, dialect)
    _refresh_all(tx, queue)
    tx.cache.room.pop(queue.id, None)
    queue.options = structs.replace(queue.options, **changes)
    tx.save_queue(queue)
    for group in tx.groups(queue.id):
        group.set_rules(queue.options)
    tx.touched.add(name)
    return queue.options


@verb("read-write", queue="queue_name", synced=True, answers=False, check=check_group_changes)
def configure_group(
    tx: Tx, queue_name: str, name: str, changes: dict[str, object], dialect: Dialect | None
) -> Group:
    """Create a group or change the given options; `start` cannot be changed later."""
    queue = queue_for(tx, queue_name)
    found = tx.group(queue.id, name)
    if found is None or is_undecided(found):
        return group_for(tx, queue, name, dialect or "native", GroupOptions(**changes))  # type: ignore[arg-type]
    refresh(tx, found, whole=True)
    changes = {k: v for k, v in changes.items() if k != "start"}
    found.options = structs.replace(found.options, **changes)
    found.dialect = dialect or found.dialect
    found.set_rules(queue.options)
    tx.save_group(found)
    tx.note_window(found)
    tx.reblock(found)
    tx.touched.add(queue.name)
    return found


@verb("read-write", queue="queue_name", synced=True)
def pause(tx: Tx, queue_name: str, name: str | None, paused: bool) -> None:
    """Pause or resume delivery of a queue or of one group; settling and expiry continue."""
    queue = find_queue(tx, queue_name)
    if name is None:
        queue.paused = paused
        tx.save_queue(queue)
    else:
        group = find_group(tx, queue, name)
        group.paused = paused
        tx.save_group(group)
    tx.touched.add(queue.name)


@verb("read-write", queue="queue_name", synced=True, check=check_seek)
def seek(
    tx: Tx,
    queue_name: str,
    name: str,
    to: str | int,
    time: bool = False,
    partition: str | None = None,
) -> int:
    """Move a group to the start, the end, a time or a sequence; ends all claims it has there."""
    queue = find_queue(tx, queue_name)
    group = find_group(tx, queue, name)
    refresh(tx, group, whole=True)
    lanes = _lanes(tx, queue, partition)
    for lane in lanes:
        cursor = cursor_for(tx, group, lane)
        seek_lane(tx, group, lane, cursor, _target(tx, lane, to, time))
    tx.cache.room.pop(queue.id, None)
    tx.run("raise_epochs", group.id)
    tx.touched.add(queue.name)
    return len(lanes)


def _target(tx: Tx, lane: Lane, to: str | int, time: bool) -> int:
    if to == "end":
        return lane.head
    if to == "start":
        return lane.base
    assert isinstance(to, int)
    return max(lane.base, min(sequence_at(tx, lane, to) if time else to, lane.head))


def seek_lane(tx: Tx, group: Group, lane: Lane, cursor: Cursor, target: int) -> None:
    """Move one cursor.

    A seek forward counts the passed messages as skipped; a seek back counts all messages before
    the target as skipped.
    """
    old = cursor.next
    pass_over(tx, lane, cursor, max(old, target), "skipped")
    if target < old:
        record_history(tx, group.id, lane.id, [target, old], "sought back")
        cursor.done = cursor.dead = cursor.purged = cursor.expired = 0
        cursor.hide(-ranges.count(hidden_copies_in(tx, lane, group.id, target, old)))
        cursor.skipped = target - cursor.hidden
        cursor.next = target
        tx.run("uncount_dead", group.id, lane.id, 0)
    cursor.ready = cursor.next < lane.head
    tx.changed(cursor)


@verb("admin", queue="queue_name", repeatable=False, synced=True)
def purge(tx: Tx, queue_name: str, partition: str | None = None) -> int:
    """Remove every message of a queue or partition; dead letters stay."""
    queue = find_queue(tx, queue_name)
    _refresh_all(tx, queue)
    removed = 0
    for lane in _lanes(tx, queue, partition):
        removed += lane.head - lane.base - lane.gone
        complete_cursors(tx, queue, lane)
        for cursor in tx.cursors_of_lane(lane.id):
            pass_over(tx, lane, cursor, lane.head, "purged")
            cursor.ready = False
            tx.changed(cursor)
        if lane.gone:
            note_deleted(tx, lane, list(tx.headers_from(lane.id, lane.base)))
        tx.drop_segments(lane.id)
        tx.run("drop_txids_of_lane", lane.partition, lane.id)
        move_base(tx, lane, lane.head)
    for group_id in tx.group_ids(queue.id):
        tx.run("raise_epochs", group_id)
    tx.cache.room.pop(queue.id, None)
    tx.touched.add(queue.name)
    return removed


@verb("admin", queue="name", repeatable=False, synced=True)
def delete_queue(tx: Tx, name: str) -> bool:
    """Delete a queue with its messages, groups and dead letters; its leases become LeaseLost."""
    queue = tx.queue(validate.name(name, "queue"))
    if queue is None:
        return False
    tx.flush()
    for group in tx.groups(queue.id):
        _keep_counts(tx, group)
    tx.run("keep_pushed_of_queue", queue.id)
    for lane in tx.lanes(queue.id):
        tx.drop_segments(lane.id)
        tx.run("drop_claims_of_lane", lane.id)
        tx.run("drop_cursors_of_lane", lane.id)
        tx.run("drop_gone_of_lane", lane.id)
        tx.run("drop_expiring_of_lane", lane.id)
    for group in tx.groups(queue.id):
        _drop_readers(tx, group.id)
        tx.run("drop_leases_of_group", group.id)
        tx.run("drop_group", group.id)
    tx.run("drop_tallies", -queue.id)
    for partition in tx.partitions(queue.id):
        tx.run("drop_txids_of_partition", partition.id)
        tx.run("drop_trace_names_of_partition", partition.id)
        tx.run("drop_traces_of_partition", partition.id)
    tx.run("drop_dead_of_queue", queue.id)
    tx.run("drop_lanes", queue.id)
    tx.run("drop_partitions", queue.id)
    tx.run("drop_queue", queue.id)
    tx.drop_declaration(queue.id)
    forget_queue(tx, name)
    tx.cache.clear()
    tx.touched.add(name)
    return True


@verb("admin", queue="queue_name", repeatable=False, synced=True)
def delete_group(tx: Tx, queue_name: str, name: str) -> bool:
    """Delete a group with its claims and dead letters; its name can be used again."""
    queue = find_queue(tx, queue_name)
    group = tx.group(queue.id, validate.name(name, "group"))
    if group is None:
        return False
    tx.flush()
    _drop_readers(tx, group.id)
    _keep_counts(tx, group)
    tx.run("drop_claims_of_group", group.id)
    tx.run("drop_leases_of_group", group.id)
    tx.run("drop_dead_of_group", group.id)
    tx.run("drop_cursors_of_group", group.id)
    tx.run("drop_group", group.id)
    tx.cache.clear()
    return True


def _drop_readers(tx: Tx, group_id: GroupId) -> None:
    """Drop the readers of a group and their batches."""
    for table in ("hand_parts", "hands", "readers"):
        tx.run(f"drop_{table}_of_group", group_id)


def _keep_counts(tx: Tx, group: Group) -> None:
    """Keep the counts of a deleted group, so that totals never decrease."""
    tx.run("keep_counts_of_group", group.id)
    tx.run("keep_tallies_of_group", group.id)
    tx.run("drop_tallies", group.id)


@verb("read-write", queue="queue_name", repeatable=False, synced=True)
def delete_message(tx: Tx, queue_name: str, id: str) -> bool:
    """Delete one message for every group that has not settled it."""
    queue = find_queue(tx, queue_name)
    place = ids.parse_message_id(id)
    lane = tx.lane(place.lane) if place.store == tx.store else None
    if lane is None or lane.queue != queue.id or not lane.base <= place.sequence < lane.head:
        return False
    one = [place.sequence, place.sequence + 1]
    if tx.is_gone(lane, place.sequence):
        return False
    for group in tx.groups(queue.id):
        refresh_range(tx, group, lane.id, *one)
    complete_cursors(tx, queue, lane)
    for cursor in tx.cursors_of_lane(lane.id):
        if cursor.next > place.sequence:
            _cut(tx, lane, cursor, one)
    tx.add_gone(lane, one[0], one[1])
    tx.cache.room.pop(queue.id, None)
    tx.save_lane(lane)
    _forget_txid(tx, lane, place.sequence)
    tx.touched.add(queue.name)
    return True


def _forget_txid(tx: Tx, lane: Lane, sequence: int) -> None:
    for segment, _, _ in tx.segments_over(lane.id, [sequence, sequence + 1]):
        rest = tx.rest(segment)
        txid = rest.txids.get(sequence - segment.first) if rest else None
        if txid is not None:
            tx.run("drop_txid", lane.partition, txid, lane.id, sequence)


def _cut(tx: Tx, lane: Lane, cursor: Cursor, one: Ranges) -> None:
    """Remove one message from the claim that holds it."""
    for claim in tx.claims_in(lane.id, cursor.group_id, one[0], one[1]):
        if not ranges.contains(claim.ranges, one[0]):
            continue
        ended = [LostRanges(lease_of(tx, claim), one)] if claim.state == LEASED else []
        claim.ranges = ranges.difference(claim.ranges, one)
        tx.save_claim(claim) if claim.ranges else tx.drop_claim(claim)
        cursor.purged += 1
        cursor.ready = True  # the message may have blocked those after it
        tx.changed(cursor)
        take_from_leases(tx, lane.id, ended, "deleted")


def _refresh_all(tx: Tx, queue: Queue) -> None:
    """End expired leases by the current options, before anything is removed or changed."""
    for group in tx.groups(queue.id):
        refresh(tx, group, whole=True)


def _lanes(tx: Tx, queue: Queue, partition: str | None) -> list[Lane]:
    if partition is None:
        return tx.lanes(queue.id)
    return tx.lanes_in(find_partition(tx, queue, partition).id)
