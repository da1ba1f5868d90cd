"""Queues and groups as Queen's clients declare, move and drop them."""

from msgspec import structs

from ....broker.core.admin import configure, delete_group, seek_lane
from ....broker.core.cursors import sequence_at
from ....broker.core.topology import find_queue, group_for, make_all_cursors
from ....options import Dialect, GroupOptions
from ....store.records import Group, Partition, Queue
from ....store.tx import Tx


def declare(
    tx: Tx, name: str, changes: dict[str, object], partition: str, dialect: Dialect
) -> tuple[Queue, Partition]:
    """Create a queue or change its options, and create one of its partitions."""
    configure(tx, name, changes, dialect)
    queue = find_queue(tx, name)
    return queue, tx.partition(queue.id, partition) or tx.add_partition(queue.id, partition)


def unsubscribe(tx: Tx, queue_name: str | None, name: str, forget: bool) -> list[tuple[str, int]]:
    """Delete a group from one queue or all; returns (queue, number of partitions it had read).

    Without `forget` it stays subscribed, and starts again where it first started.
    """
    dropped = []
    for queue in tx.queues():
        if queue_name not in (None, queue.name):
            continue
        group = tx.group(queue.id, name)
        if group is None:
            continue
        make_all_cursors(tx, group)
        partitions = len({cursor.partition for cursor in tx.cursors_of_group(group.id)})
        dialect, options = group.dialect, _start_kept(group)
        delete_group(tx, queue.name, name)
        if not forget:
            group_for(tx, find_queue(tx, queue.name), name, dialect, options)
        dropped.append((queue.name, partitions))
    return dropped


def _start_kept(group: Group) -> GroupOptions:
    """Return the options of a group, with `new` written as the time it meant."""
    if group.options.start == "new":
        return structs.replace(group.options, start=group.created_at)
    return group.options


def resubscribe(tx: Tx, name: str, time: int) -> list[str]:
    """Start a group at a time in every queue that has it, in lanes it has not read yet."""
    changed = []
    for queue in tx.queues():
        group = tx.group(queue.id, name)
        if group is None:
            continue
        make_all_cursors(tx, group)
        group.options = structs.replace(group.options, start=time)
        tx.save_group(group)
        for cursor in tx.cursors_of_group(group.id):
            lane = tx.lane(cursor.lane)
            if lane is not None and not cursor.delivered:
                target = max(lane.base, sequence_at(tx, lane, time))
                seek_lane(tx, group, lane, cursor, target)
        tx.cache.room.pop(queue.id, None)
        tx.touched.add(queue.name)
        changed.append(queue.name)
    return changed


def names(
    tx: Tx, group: str | None = None, namespace: str | None = None, task: str | None = None
) -> list[str]:
    """Return the names of the queues that have this group and these labels, if given."""
    return [
        queue.name
        for queue in tx.queues()
        if (group is None or tx.group(queue.id, group))
        and namespace in (None, queue.options.namespace)
        and task in (None, queue.options.task)
    ]


def groups_of(tx: Tx, queues: list[str]) -> set[str]:
    """Return the names of all groups of these queues."""
    found = [queue for name in queues if (queue := tx.queue(name))]
    return {group.name for queue in found for group in tx.groups(queue.id)}
