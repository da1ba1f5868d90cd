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
from ...store.encryption import MARK
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

Key = tuple[int, int, str, str]  # queue, group, kind, normalized error


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
    found: dict[Key, DeadGroup] = {}
    names: dict[int, tuple[str, str]] = {}
    at, scanned = LAST if before is None else before, 0
    while scanned < limit:
        some = min(SLICE, limit - scanned)
        rows = (
            tx.all("dead_newest", at, some)
            if queue is None
            else tx.all("dead_newest_of_queue", queue.id, at, some)
        )
        alike: dict[Key, list[tuple[int, int, int, int, str]]] = {}
        for at, queue_id, group_id, lane, seq, kind, reason, error, died in rows:
            text = reason or error or ""
            if text.startswith(MARK):
                reason, error = open_texts(group_id, lane, seq, reason, error)
                text = reason or error or ""
            key = queue_id, group_id, kind, normalized(text)
            alike.setdefault(key, []).append((at, lane, seq, died, text))
        for key, letters in alike.items():
            name = names.get(key[1]) or _name(tx, names, *key[:2])
            if name[0]:  # else its queue or group is deleted, and its rows are not removed yet
                _count(found, key, name, tx.store, letters)
        scanned += len(rows)
        if len(rows) < some:
            return DeadGroups(_sorted(found.values()), scanned, None)
        if time.monotonic() > deadline:
            break
    return DeadGroups(_sorted(found.values()), scanned, at)


def _count(
    found: dict[Key, DeadGroup], key: Key, name: tuple[str, str], store: int,
    letters: list[tuple[int, int, int, int, str]],
) -> None:  # fmt: skip
    """Add letters of one group, newest first: of each its id, lane, sequence, time and error."""
    times = [letter[3] for letter in letters]
    newest, oldest = letters[0], letters[-1]
    page = DeadGroup(
        *name, key[2], key[3], len(letters), when(min(times)), when(max(times)),
        newest[4][:MOST_TEXT], [], oldest[0], newest[0],
    )  # fmt: skip
    one = found.setdefault(key, page)
    if one is not page:
        _add(one, page)
        one.oldest_id = page.oldest_id
    for _, lane, sequence, _, _ in letters[: EXAMPLES - len(one.message_ids)]:
        one.message_ids.append(ids.message_id(store, lane, sequence))


def _sorted(found: Iterable[DeadGroup]) -> list[DeadGroup]:
    return sorted(found, key=lambda one: (-one.count, one.error))


def _name(
    tx: Tx, names: dict[int, tuple[str, str]], queue_id: int, group_id: int
) -> tuple[str, str]:
    queue, group = tx.queue_by_id(queue_id), tx.group_by_id(group_id)  # type: ignore[arg-type]
    names[group_id] = (queue.name, group.name) if queue and group else ("", "")
    return names[group_id]
