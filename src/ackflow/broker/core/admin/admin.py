"""Administration: options, pauses, seeking, purging and deleting."""

from msgspec import structs

from .... import ids, ranges, validate
from ....ids import GroupId
from ....options import Dialect, GroupOptions, QueueOptions
from ....ranges import Ranges
from ....store.counters import GONE
from ....store.encryption import check_key
from ....store.records import LEASED, Cursor, Group, Lane, Queue, Sweep
from ....store.tx import Tx
from ...reach.merging import Several
from ...requests import check_group_changes, check_queue_changes, check_seek
from ...verb import verb
from ..cursors import LostRanges, lease_of, take_from_leases
from ..routing.exchanges import forget_queue
from ..topology import (
    complete_cursors,
    find_group,
    find_partition,
    find_queue,
    group_for,
    is_undecided,
    queue_for,
)
from ..upkeep import sweeps
from ..upkeep.expiry import refresh, refresh_range
from ..upkeep.sweeps import Target


@verb(
    "read-write", queue="name", synced=True, check=check_queue_changes,
    several=Several(spread="changes"),
)  # fmt: skip
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


@verb("read-write", queue="queue_name", synced=True, in_slices=True, check=check_seek)
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
    home = None if partition is None else find_partition(tx, queue, partition).id
    tx.run("raise_epochs", group.id)
    sweep = sweeps.begin(tx, "seek", queue, group, home, Target(to, time))
    return sweeps.run_first(tx, [sweep], sweep.lanes)  # type: ignore[no-any-return]


@verb("admin", queue="queue_name", repeatable=False, synced=True, in_slices=True)
def purge(tx: Tx, queue_name: str, partition: str | None = None) -> int:
    """Remove every message of a queue or partition; dead letters stay."""
    queue = find_queue(tx, queue_name)
    _refresh_all(tx, queue)
    home = None if partition is None else find_partition(tx, queue, partition).id
    for group_id in tx.group_ids(queue.id):
        tx.run("raise_epochs", group_id)
    sweep = sweeps.begin(tx, "purge", queue, partition=home)
    return sweeps.run_first(tx, [sweep])  # type: ignore[no-any-return]


@verb("admin", queue="name", repeatable=False, synced=True, in_slices=True)
def delete_queue(tx: Tx, name: str) -> bool:
    """Delete a queue with its messages, groups and dead letters; its leases become LeaseLost."""
    queue = tx.queue(validate.name(name, "queue"))
    if queue is None:
        return False
    tx.flush()
    sweeps.end_all(tx, queue)
    for group in tx.groups(queue.id):
        _drop_group(tx, group)
    copies = tx.value("tally", -queue.id, "copies") or 0
    tx.tally.add(GroupId(GONE), "pushed", -copies)
    tx.run("drop_tallies", -queue.id)
    tx.run("drop_queue", queue.id)
    tx.drop_declaration(queue.id)
    forget_queue(tx, name)
    return sweeps.run_first(tx, [sweeps.begin(tx, "queue", queue)], True)  # type: ignore[no-any-return]


@verb("admin", queue="queue_name", repeatable=False, synced=True, in_slices=True)
def delete_group(tx: Tx, queue_name: str, name: str) -> bool:
    """Delete a group with its claims and dead letters; its name can be used again."""
    queue = find_queue(tx, queue_name)
    group = tx.group(queue.id, validate.name(name, "group"))
    if group is None:
        return False
    return sweeps.run_first(tx, [remove_group(tx, queue, group)], True)  # type: ignore[no-any-return]


def remove_group(tx: Tx, queue: Queue, group: Group) -> Sweep:
    """Remove a group; a sweep removes its rows."""
    tx.flush()
    sweeps.end_all(tx, queue, group.id)
    _drop_group(tx, group)
    return sweeps.begin(tx, "group", queue, group)


def _drop_group(tx: Tx, group: Group) -> None:
    """Drop the row of a group, its readers and their batches; its counts are kept."""
    for table in ("hand_parts", "hands", "readers"):
        tx.run(f"drop_{table}_of_group", group.id)
    tx.run("keep_tallies_of_group", group.id)
    tx.run("drop_tallies", group.id)
    tx.run("drop_group", group.id)


@verb(
    "read-write", queue="queue_name", repeatable=False, synced=True, several=Several(message="id")
)
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
