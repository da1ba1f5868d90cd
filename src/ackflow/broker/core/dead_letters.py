"""Dead letters: added with a copy of the message, listed, redriven, purged."""

from collections.abc import Iterable, Iterator
from itertools import groupby, islice

from ... import ids, ranges
from ...errors import StorageFailed
from ...model import DeadLetter, DeadSummary, Page, when
from ...options import MAX_PAGE_BYTES, DeadLetterKind
from ...ranges import Ranges
from ...store.counters import Died
from ...store.encryption import MARK
from ...store.mapping import open_texts
from ...store.records import NO_REST, Carry, Cursor, DeadRow, Group, Lane, Queue
from ...store.tx import Tx
from ..reach import merging
from ..reach.merging import Several
from ..requests import DeadFilter
from ..verb import verb
from .copies import Copy, append_copies
from .handout import payload, rest_of
from .history import record_history
from .routing.publish import REASONS, to_dead_letter_exchange
from .topology import find_group, find_partition, find_queue, lane_for, queue_for

SLICE = 500
SLICE_BYTES = 8 * 1024 * 1024
FIRST = 1 << 62  # above every id
NOT_LOGGED = "(not logged: the queue is encrypted)"


def add_dead_letters(
    tx: Tx,
    group: Group,
    lane: Lane,
    cursor: Cursor,
    which: Ranges,
    kind: DeadLetterKind,
    reason: str | None,
    *,
    deliveries: int,
    failures: int,
    at: int,
    error: str | None = None,
    consumer: str | None = None,
) -> int:
    """Copy messages to the dead letters of a group and count them; the caller drops the claim."""
    rows = []
    for segment, first, stop in tx.segments_over(lane.id, which):
        body = tx.body(segment)
        for sequence in range(first, stop):
            index = sequence - segment.first
            rows.append(
                DeadRow(
                    0, lane.queue, group.id, lane.id, sequence, kind, reason, error, deliveries, failures,
                    segment.created_at, at, consumer, True, payload(body, index),
                    rest_of(body, index),
                )
            )  # fmt: skip
    if len(rows) != ranges.count(which):
        raise StorageFailed("the file is damaged: a message to be dead-lettered is missing")
    queue = tx.queue_by_id(lane.queue)
    tx.add_dead(rows, queue is not None and queue.options.encrypted)
    _observe(tx, group, lane, which, kind, reason, deliveries, failures, consumer)
    if queue is not None:
        to_dead_letter_exchange(tx, queue, lane, which, REASONS[kind])
    cursor.dead += len(rows)
    tx.counted(cursor)
    return len(rows)


def _observe(
    tx: Tx, group: Group, lane: Lane, which: Ranges, kind: DeadLetterKind, reason: str | None,
    deliveries: int, failures: int, consumer: str | None,
) -> None:  # fmt: skip
    queue = tx.queue_by_id(lane.queue)
    assert queue is not None
    tx.tally.add(group.id, f"dead_{kind}", ranges.count(which))
    logged = NOT_LOGGED if reason and queue.options.encrypted else reason
    tx.tally.died.append(
        Died(queue.name, group.name, tx.store, lane.id, which, kind, logged, deliveries, failures,
             consumer)
    )  # fmt: skip


@verb("read-only", name="dead_letters", read_only=True, several=Several(run=merging.dead_page))
def entries(
    tx: Tx, which: DeadFilter, limit: int, offset: int = 0, before: int | None = None
) -> Page[DeadLetter]:
    """Return a page of dead letters, newest first, and the total number."""
    queue = find_queue(tx, which.queue)
    found, more = rows(tx, which, limit, offset, before)
    next = str(found[-1].id) if more and found else None
    return Page([_letter(tx, queue, row) for row in found], next, count(tx, which))


@verb("read-only", name="dead_count", read_only=True, several=Several(run=merging.dead_count))
def count(tx: Tx, which: DeadFilter) -> int:
    """Count the dead letters that match a filter."""
    queue = find_queue(tx, which.queue)
    if which.ids is not None:
        return len(matching_ids(tx, queue, which))
    columns = _columns(tx, queue, which)
    if which.error is None:
        return int(tx.value("dead_count", queue.id, *columns))
    unmarked = tx.value("dead_count_like", queue.id, *columns, which.error, MARK)
    marked = _texts(tx, queue, which, None)
    return int(unmarked) + sum(_contains(texts, which.error) for _, *texts in marked)


@verb("read-only", name="dead_ids", read_only=True, several=Several(run=merging.dead_ids))
def numbers(tx: Tx, which: DeadFilter, after: int, limit: int) -> list[int]:
    """Return the ids of the next matches after an id, the oldest first."""
    queue = find_queue(tx, which.queue)
    if which.ids is not None:
        return [id for id in matching_ids(tx, queue, which) if id > after][:limit]
    if which.error is not None:
        return list(islice(_with_error(tx, queue, which, after=after), limit))
    columns = _columns(tx, queue, which)
    return [row[0] for row in tx.all("dead_oldest_after", queue.id, *columns, after, limit)]


def rows(
    tx: Tx, which: DeadFilter, limit: int, offset: int = 0, before: int | None = None
) -> tuple[list[DeadRow], bool]:
    """Return matches, newest first, and whether there are more: of large ones it returns fewer."""
    found = newest(tx, which, limit + 1, offset, before)
    if which.ids is not None or which.error is not None:
        some = read(tx, found[:limit])
    else:
        queue, top = find_queue(tx, which.queue), before or FIRST
        fits = _fitting(size for _, size in found[:limit])
        some = tx.dead("dead_page", queue.id, top, *_columns(tx, queue, which), fits, offset)
    return some, len(found) > len(some)


def newest(
    tx: Tx, which: DeadFilter, limit: int, offset: int = 0, before: int | None = None
) -> list[tuple[int, int]]:
    """Return the ids of matches, newest first, with the sizes of their payloads where known."""
    queue = find_queue(tx, which.queue)
    top = before or FIRST
    if which.ids is None and which.error is None:
        columns = _columns(tx, queue, which)
        return tx.all("dead_sizes", queue.id, top, *columns, limit, offset)
    found: Iterable[int]
    if which.ids is None:
        found = _with_error(tx, queue, which, before=top)
    else:
        found = (id for id in reversed(matching_ids(tx, queue, which)) if id < top)
    return [(id, 0) for id in islice(found, offset, offset + limit)]


def read(tx: Tx, found: Iterable[tuple[int, int]]) -> list[DeadRow]:
    """Return the rows of these ids; fewer of large ones, but at least one."""
    some: list[DeadRow] = []
    room = MAX_PAGE_BYTES
    for id, _ in found:
        if room <= 0:
            break
        for row in tx.dead("dead_by_id", id):
            some.append(row)
            room -= len(row.payload)
    return some


def _fitting(sizes: Iterable[int]) -> int:
    """Return how many payloads of these sizes a page has room for."""
    fits, room = 0, MAX_PAGE_BYTES
    for size in sizes:
        if room <= 0:
            break
        fits, room = fits + 1, room - size
    return fits


def letters(tx: Tx, queue_name: str, found: Iterable[DeadRow]) -> list[DeadLetter]:
    """Return rows of a queue as users see them."""
    queue = find_queue(tx, queue_name)
    return [_letter(tx, queue, row) for row in found]


def matching_ids(tx: Tx, queue: Queue, which: DeadFilter) -> list[int]:
    """Return the given ids that match the rest of the filter, oldest first."""
    columns = _columns(tx, queue, which)
    fits = (tx.value("dead_fits", queue.id, *columns, id) for id in sorted(which.ids or []))
    found = [id for id in fits if id is not None]
    if which.error is not None:
        named = (row for id in found for row in tx.dead("dead_by_id", id))
        found = [row.id for row in named if _contains((row.reason, row.error), which.error)]
    return found


def _with_error(
    tx: Tx, queue: Queue, which: DeadFilter, before: int | None = None, after: int = 0
) -> Iterator[int]:
    """Yield the ids of letters with a text in their reason or error: oldest first, or newest."""
    assert which.error is not None
    for id, *texts in _texts(tx, queue, which, which.error, before, after):
        if _contains(texts, which.error):
            yield id


Texts = tuple[int, str | None, str | None]


def _texts(
    tx: Tx, queue: Queue, which: DeadFilter, text: str | None, before: int | None = None,
    after: int = 0,
) -> Iterator[Texts]:  # fmt: skip
    """Yield id, reason and error of letters that contain a text, and of all that may be sealed.

    SQL cannot look into a sealed text, so that the caller compares them all.
    """
    columns = *_columns(tx, queue, which), text, MARK
    statement, at = ("dead_like", after) if before is None else ("dead_like_before", before)
    while True:
        found = tx.all(statement, queue.id, *columns, at, SLICE)
        for at, group_id, lane, sequence, reason, error in found:
            yield at, *open_texts(group_id, lane, sequence, reason, error)
        if len(found) < SLICE:
            return


def _contains(texts: Iterable[str | None], text: str) -> bool:
    return any(one is not None and text in one for one in texts)


def oldest(tx: Tx, which: DeadFilter, limit: int) -> list[DeadRow]:
    """Return the oldest matches, so that order is kept and new dead letters come last.

    Returns fewer than `limit` when they are large, but at least one.
    """
    queue = find_queue(tx, which.queue)
    numbers: Iterable[int]
    if which.ids is not None:
        numbers = matching_ids(tx, queue, which)
    elif which.error is not None:
        numbers = list(islice(_with_error(tx, queue, which), limit))
    else:
        asked = tx.all("dead_oldest", queue.id, *_columns(tx, queue, which), limit)
        numbers = [row[0] for row in asked]
    found: list[DeadRow] = []
    room = SLICE_BYTES
    for number in numbers:
        if len(found) >= limit or room <= 0:
            break
        for row in tx.dead("dead_by_id", number):
            found.append(row)
            room -= len(row.payload)
    return found


@verb(
    "read-only", name="dead_summary", queue="queue_name", read_only=True,
    several=Several(merge=merging.dead_summary),
)  # fmt: skip
def summary(tx: Tx, queue_name: str, group: str | None) -> list[DeadSummary]:
    """Count dead letters by group, kind and the error's text before the first colon."""
    queue = find_queue(tx, queue_name)
    group_id = None if group is None else find_group(tx, queue, group).id
    names = {g.id: g.name for g in tx.groups(queue.id)}
    rows = tx.all("dead_summary", queue.id, group_id, MARK)
    found = {(row[0], row[1], row[2]): row[3:] for row in rows}
    for id, lane, sequence, kind, reason, at in tx.all("dead_reasons", queue.id, group_id, MARK):
        text, _ = open_texts(id, lane, sequence, reason, None)
        key = id, kind, (text or "").partition(":")[0]
        n, first, last = found.get(key, (0, at, at))
        found[key] = n + 1, min(first, at), max(last, at)
    lines = sorted(found.items(), key=lambda line: (-line[1][0], line[0][2] or ""))
    return [
        DeadSummary(names[id], kind, text or "", n, when(first), when(last))
        for (id, kind, text), (n, first, last) in lines
    ]


@verb(
    "read-write", queue="to", repeatable=False, synced=True,
    several=Several(run=merging.dead_slices),
)  # fmt: skip
def redrive(tx: Tx, which: DeadFilter, to: str | None, limit: int = SLICE) -> int:
    """Append dead letters to their lane for their group, or to another queue for all groups.

    Both counters start at 0. Returns how many were sent, at most a slice; call it again until it
    returns 0.
    """
    found = oldest(tx, which, min(limit, SLICE))
    for run in _by_lane(found):
        _send(tx, run, to)
        _record(tx, run, "redriven")
    return len(found)


def _by_lane(found: list[DeadRow]) -> Iterator[list[DeadRow]]:
    """Yield the dead letters of each group and lane, in order."""
    found.sort(key=lambda row: (row.group_id, row.lane, row.seq))
    for _, run in groupby(found, key=lambda row: (row.group_id, row.lane)):
        yield list(run)


def _record(tx: Tx, run: list[DeadRow], verb: str) -> None:
    """Record for `why` how dead letters ended, except those that a seek made readable again."""
    gone = ranges.of(row.seq for row in run if row.counted)
    if gone:
        record_history(tx, run[0].group_id, run[0].lane, gone, verb)


@verb("admin", synced=True, several=Several(run=merging.dead_slices))
def purge_dead(tx: Tx, which: DeadFilter, limit: int = SLICE) -> int:
    """Delete dead letters; returns how many, at most a slice; call it again until it returns 0."""
    found = oldest(tx, which, min(limit, SLICE))
    for run in _by_lane(found):
        for row in run:
            _drop(tx, row, "purged")
        _record(tx, run, "thrown away")
    return len(found)


def _send(tx: Tx, letters: list[DeadRow], to: str | None) -> None:
    for row in letters:
        _drop(tx, row, "done")
    copies = [
        Copy(row.payload, row.rest, ids.message_id(tx.store, row.lane, row.seq)) for row in letters
    ]
    home = tx.lane(letters[0].lane)
    assert home is not None, "dead letters go with their queue"
    if to is None:
        append_copies(tx, home, copies, 0.0, letters[0].group_id, Carry(0, 0, True))
    else:
        append_copies(tx, _elsewhere(tx, home, to), copies, 0.0, None, None)


def _elsewhere(tx: Tx, home: Lane, to: str) -> Lane:
    partition = tx.partition_by_id(home.partition)
    assert partition is not None
    return lane_for(tx, queue_for(tx, to), partition.name, home.priority)


def _drop(tx: Tx, row: DeadRow, counter: str) -> None:
    tx.run("drop_dead", row.id)
    cursor = tx.cursor(row.lane, row.group_id)
    if cursor is not None and row.counted:
        cursor.dead -= 1
        setattr(cursor, counter, getattr(cursor, counter) + 1)
        tx.changed(cursor)


def _columns(tx: Tx, queue: Queue, which: DeadFilter) -> tuple[object, ...]:
    group_id = None if which.group is None else find_group(tx, queue, which.group).id
    partition = None
    if which.partition is not None:
        partition = find_partition(tx, queue, which.partition).id
    return group_id, which.kind, partition, which.since, which.until


def _letter(tx: Tx, queue: Queue, row: DeadRow) -> DeadLetter:
    lane, group = tx.lane(row.lane), tx.group_by_id(row.group_id)
    home = tx.partition_by_id(lane.partition) if lane else None
    assert lane
    assert group
    assert home
    id = ids.message_id(tx.store, row.lane, row.seq)
    rest = row.rest or NO_REST
    return DeadLetter(
        id=row.id,
        message_id=id,
        queue=queue.name,
        group=group.name,
        partition=home.name,
        priority=lane.priority,
        kind=row.kind,
        reason=row.reason,
        error=row.error,
        deliveries=row.deliveries,
        failures=row.failures,
        created_at=when(row.created_at),
        died_at=when(row.died_at),
        consumer=row.consumer,
        raw=row.payload,
        is_json=not rest.binary,
        transaction_id=rest.transaction_id(0, id),
        headers=rest.headers.get(0, {}),
    )
