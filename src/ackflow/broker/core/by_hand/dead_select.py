"""Dead letters that a user selects, for example by error; processed in bounded steps."""

import re
import time
from functools import lru_cache

from msgspec import Struct

from .... import validate
from ....model import DeadLetter
from ....store.mapping import open_texts
from ....store.records import Queue
from ....store.tx import Tx
from ...reach.merging import Several
from ...requests import DeadFilter
from ...verb import QueueRequest, verb
from ..dead_letters import letters, matching_ids, purge_dead, redrive, rows
from ..dead_letters import oldest as oldest_rows
from ..topology import find_group, find_queue, queue_for

MOST_STEP = 1_000  # dead letters that one step may name; it changes a slice of them
STEP_SECONDS = 0.02  # of a step that searches in the writer
SLICE = 500
MOST_TEXT = 300

_QUOTED = re.compile(r"'[^']{1,200}'|\"[^\"]{1,200}\"|`[^`]{1,200}`")
# Without the flag for upper case, and with a digit first: so written, they are found faster.
_ID = re.compile(
    r"\b(?=[0-9a-fA-F]{6})(?=[0-9a-fA-F-]*[0-9])[0-9a-fA-F]{6,}(?:-[0-9a-fA-F]{2,})*\b"
    r"|\b0[xX][0-9a-fA-F]+\b"
)
_NUMBER = re.compile(r"\d(?<!\w\d)[\d.,:]*")


@lru_cache(8192)
def normalized(error: str) -> str:
    """Return an error without the parts that differ between messages that failed the same way."""
    line = error.strip().partition("\n")[0][:MOST_TEXT]
    line = _QUOTED.sub("…", line)
    line = _ID.sub("#", line)
    return " ".join(_NUMBER.sub("#", line).split())


class DeadSelection(QueueRequest, kw_only=True):
    """Which dead letters of a queue are meant: those that fit everything given.

    `error` is a normalised error; `ids` are numbers of dead letters.
    """

    group: str | None = None
    kind: str | None = None
    error: str | None = None
    ids: list[int] | None = None

    def check(self) -> None:
        validate.name(self.queue, "queue")
        validate.kind(self.kind)
        if self.ids is not None:
            validate.integer(len(self.ids), "the number of ids", 0, MOST_STEP)
            for id in self.ids:
                validate.integer(id, "id", 0, 1 << 62)


class DeadStep(Struct):
    """The result of a step. `next` is where to continue, None at the end of the selection.

    `items` are the numbers of the dead letters that were changed, or would be.
    """

    done: int
    next: int | None
    items: list[int]


# The numbers of dead letters are those of one database.
ONE = Several(one=True)


@verb("read-only", name="dead_selected", read_only=True, wire=False, several=ONE)
def select(
    tx: Tx, which: DeadSelection, after: int, limit: int, seconds: float = STEP_SECONDS
) -> DeadStep:
    """Find the next dead letters of a selection, the oldest first."""
    queue = find_queue(tx, which.queue)
    if which.ids is not None:
        return _numbered(tx, queue, which, after, limit)
    group = None if which.group is None else find_group(tx, queue, which.group).id
    deadline = time.monotonic() + seconds
    found: list[int] = []
    while True:
        rows = tx.all("dead_after", queue.id, after, SLICE)
        for id, group_id, lane, seq, kind, reason, error in rows:
            if len(found) >= limit:
                return DeadStep(len(found), after, found)
            after = id
            if group not in (None, group_id) or which.kind not in (None, kind):
                continue
            if which.error is not None:
                reason, error = open_texts(group_id, lane, seq, reason, error)
                if normalized(reason or error or "") != which.error:
                    continue
            found.append(id)
        if len(rows) < SLICE:
            return DeadStep(len(found), None, found)
        if time.monotonic() > deadline:
            return DeadStep(len(found), after, found)


def _numbered(tx: Tx, queue: Queue, which: DeadSelection, after: int, limit: int) -> DeadStep:
    """Look up letters by their numbers, however far apart they are."""
    ids = [id for id in which.ids or () if id > after]
    found = matching_ids(
        tx, queue, DeadFilter(queue.name, group=which.group, kind=which.kind, ids=ids)
    )
    if which.error is not None:
        found = [
            row.id for id in found for row in tx.dead("dead_by_id", id)
            if normalized(row.reason or row.error or "") == which.error
        ]  # fmt: skip
    some = found[:limit]
    return DeadStep(len(some), some[-1] if len(found) > limit else None, some)


@verb("read-only", name="dead_page", read_only=True, wire=False, several=ONE)
def page(
    tx: Tx, which: DeadSelection, after: int, limit: int, seconds: float
) -> tuple[list[DeadLetter], int | None]:
    """Return dead letters of a selection with an error, the oldest first; without, the newest.

    The number is where to continue.
    """
    if which.error is None and which.ids is None:
        some = DeadFilter(which.queue, group=which.group, kind=which.kind)
        found, more = rows(tx, some, limit, 0, after or None)
        next = found[-1].id if more and found else None
        return letters(tx, which.queue, found), next
    return oldest(tx, which, after, limit, seconds)


@verb("read-only", name="dead_oldest", read_only=True, wire=False, several=ONE)
def oldest(
    tx: Tx, which: DeadSelection, after: int, limit: int, seconds: float
) -> tuple[list[DeadLetter], int | None]:
    """Return dead letters of a selection, the oldest first, and where to continue."""
    step = select(tx, which, after, limit, seconds)
    ids = DeadFilter(which.queue, ids=step.items)
    found = oldest_rows(tx, ids, limit) if step.items else []
    next = found[-1].id if 0 < len(found) < len(step.items) else step.next
    return letters(tx, which.queue, found), next


@verb("read-write", name="redrive_step", queue="to", synced=True, wire=False, several=ONE)
def redrive_step(tx: Tx, which: DeadSelection, after: int, limit: int, to: str | None) -> DeadStep:
    """Send the next dead letters of a selection back, or to another queue."""
    if to is not None:
        queue_for(tx, to)
    step = select(tx, which, after, limit)
    if step.items:
        return _done(step, redrive(tx, DeadFilter(which.queue, ids=step.items), to))
    return step


@verb("admin", name="purge_dead_step", synced=True, wire=False, several=ONE)
def purge_step(tx: Tx, which: DeadSelection, after: int, limit: int) -> DeadStep:
    """Delete the next dead letters of a selection."""
    step = select(tx, which, after, limit)
    if step.items:
        return _done(step, purge_dead(tx, DeadFilter(which.queue, ids=step.items)))
    return step


def _done(step: DeadStep, done: int) -> DeadStep:
    """Continue behind the last one that was changed: of large ones fewer are changed at once."""
    items = step.items[:done]
    return DeadStep(done, step.next if done == len(step.items) else items[-1], items)
