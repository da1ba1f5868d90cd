"""Queues and groups as Queen's clients declare, move and drop them."""

from msgspec import structs

from ....broker.core.admin.admin import configure, remove_group
from ....broker.core.topology import find_queue, group_for
from ....broker.core.upkeep import sweeps
from ....broker.core.upkeep.sweeps import Target
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
    dropped, begun = [], []
    for queue in tx.queues():
        if queue_name not in (None, queue.name):
            continue
        group = tx.group(queue.id, name)
        if group is None:
            continue
        partitions = tx.value("count_read_partitions", queue.id)
        dialect, options = group.dialect, _start_kept(group)
        begun.append(remove_group(tx, queue, group))
        if not forget:
            group_for(tx, find_queue(tx, queue.name), name, dialect, options)
        dropped.append((queue.name, partitions))
    return sweeps.run_first(tx, begun, dropped)  # type: ignore[no-any-return]


def _start_kept(group: Group) -> GroupOptions:
    """Return the options of a group, with `new` written as the time it meant."""
    if group.options.start == "new":
        return structs.replace(group.options, start=group.created_at)
    return group.options


def resubscribe(tx: Tx, name: str, time: int) -> list[str]:
    """Start a group at a time in every queue that has it, in lanes it has not read yet."""
    changed, begun = [], []
    for queue in tx.queues():
        group = tx.group(queue.id, name)
        if group is None:
            continue
        group.options = structs.replace(group.options, start=time)
        tx.save_group(group)
        begun.append(sweeps.begin(tx, "start", queue, group, target=Target(time, True)))
        changed.append(queue.name)
    return sweeps.run_first(tx, begun, changed)  # type: ignore[no-any-return]


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
