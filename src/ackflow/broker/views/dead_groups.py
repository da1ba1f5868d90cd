"""Dead letters by error: those with the same normalised error, counted together, newest first.

Errors are compared without what differs from one to the next: numbers, ids, quoted texts, addresses.
Reading stops at a limit of rows and time, and is continued where it stopped.
"""

import time
from collections.abc import Iterable, Sequence
from datetime import datetime

from msgspec import Struct

from ... import ids
from ...model import when
from ...store.mapping import open_texts
from ...store.tx import Tx
from ..core.by_hand.dead_select import MOST_TEXT, normalized
from ..core.topology import find_queue
from ..reach import merging
from ..reach.merging import Several
from ..verb import verb

SLICE = 1_000
LAST = 1 << 62
EXAMPLES = 3


class DeadGroup(Struct):
    """Dead letters with the same queue, group, kind and normalised error."""

    queue: str
    group: str
    kind: str
    error: str
    count: int
    first_at: datetime
    last_at: datetime
    example: str
    message_ids: list[str]
    oldest_id: int
    newest_id: int


class DeadGroups(Struct):
    """The groups found among `scanned` dead letters; `next` is set if there may be more."""

    items: list[DeadGroup]
    scanned: int
    next: int | None


def _newest_first(
    ask: merging.Ask, tags: Sequence[int], arguments: merging.Arguments
) -> DeadGroups:
    """Count in one database after the other; `before` and `next` say in which to continue."""
    name, before, seconds, limit = arguments
    ordered = sorted(tags)
    last = len(ordered) - 1
    place, at = (last, None) if before is None else divmod(before, 1 << merging.PLACE_BITS)
    found: dict[tuple[str, str, str, str], DeadGroup] = {}
    scanned, next = 0, None
    for number in range(min(place, last), -1, -1):
        page = ask(ordered[number], (name, at, seconds / len(tags), limit - scanned))
        at = None
        for one in page.items:
            key = one.queue, one.group, one.kind, one.error
            known = found.setdefault(key, one)
            if known is not one:
                _add(known, one)
        scanned += page.scanned
        if page.next is not None:
            next = merging.placed(number, page.next)
            break
        if scanned >= limit and number:
            next = merging.placed(number - 1, merging.PLACE)
            break
    return DeadGroups(_sorted(found.values()), scanned, next)


def _add(known: DeadGroup, other: DeadGroup) -> None:
    known.count += other.count
    known.first_at = min(known.first_at, other.first_at)
    known.last_at = max(known.last_at, other.last_at)


@verb("read-only", name="dead_groups", queue="queue_name", read_only=True, wire=False,
      several=Several(run=_newest_first))  # fmt: skip
def dead_groups(
    tx: Tx, queue_name: str | None, before: int | None, seconds: float, limit: int
) -> DeadGroups:
    """Group dead letters of one queue or of all, from the newest on."""
    queue = None if queue_name is None else find_queue(tx, queue_name)
    deadline = time.monotonic() + seconds
    found: dict[tuple[int, int, str, str], DeadGroup] = {}
    names: dict[int, tuple[str, str]] = {}
    at, scanned = LAST if before is None else before, 0
    while scanned < limit:
        some = min(SLICE, limit - scanned)
        rows = (
            tx.all("dead_newest", at, some)
            if queue is None
            else tx.all("dead_newest_of_queue", queue.id, at, some)
        )
        for at, queue_id, group_id, lane, seq, kind, reason, error, died in rows:
            name = names.get(group_id) or _name(tx, names, queue_id, group_id)
            if not name[0]:
                continue  # its queue or group is deleted, and its rows are not removed yet
            reason, error = open_texts(group_id, lane, seq, reason, error)
            text = reason or error or ""
            key = queue_id, group_id, kind, normalized(text)
            one = found.get(key)
            if one is None:
                one = found[key] = DeadGroup(
                    *name, kind, key[3], 0, when(died), when(died), text[:MOST_TEXT], [], at, at
                )
            one.count += 1
            one.oldest_id = at
            if len(one.message_ids) < EXAMPLES:
                one.message_ids.append(ids.message_id(tx.store, lane, seq))
            moment = when(died)
            one.first_at, one.last_at = min(one.first_at, moment), max(one.last_at, moment)
        scanned += len(rows)
        if len(rows) < some:
            return DeadGroups(_sorted(found.values()), scanned, None)
        if time.monotonic() > deadline:
            break
    return DeadGroups(_sorted(found.values()), scanned, at)


def _sorted(found: Iterable[DeadGroup]) -> list[DeadGroup]:
    return sorted(found, key=lambda one: (-one.count, one.error))


def _name(
    tx: Tx, names: dict[int, tuple[str, str]], queue_id: int, group_id: int
) -> tuple[str, str]:
    queue, group = tx.queue_by_id(queue_id), tx.group_by_id(group_id)  # type: ignore[arg-type]
    names[group_id] = (queue.name, group.name) if queue and group else ("", "")
    return names[group_id]
