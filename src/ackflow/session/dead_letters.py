"""Dead letters: an alert on their number, and reprocessing after the cause is fixed."""

import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol, Self

import msgspec
from msgspec import structs

from .. import validate
from ..broker.broker import Verbs
from ..broker.core import dead_letters
from ..broker.requests import DeadFilter
from ..clock import SECOND
from ..errors import AckflowError, InvalidArgument, NotFound
from ..model import DeadLetter, DeadSummary, Page, StoredMessage
from ..options import MAX_NAME
from ..validate import Duration
from .encoding import Item, in_parts
from .messages import Receipt

log = logging.getLogger("ackflow")
ABOVE = 100
EVERY_SECONDS = 60.0
PAGE = 500
REPROCESSED = "reprocess-"


class DeadLetterSession(Protocol):
    """The methods of a session that this module uses."""

    def push(self, queue: str, data: Any) -> Receipt: ...
    def message(self, queue: str, id: str) -> StoredMessage: ...
    def dead_letters(
        self, queue: str, *, group: str | None = None, limit: int = 100, offset: int = 0,
        after: str | None = None,
    ) -> Page[DeadLetter]: ...  # fmt: skip
    def dead_summary(self, queue: str, group: str | None = None) -> list[DeadSummary]: ...
    def purge_dead(self, queue: str, *, ids: list[int]) -> int: ...
    def leave(self, part: Any) -> None: ...


def in_slices(
    broker: Verbs, act: Callable[[DeadFilter, int], int], which: DeadFilter, limit: int | None
) -> int:
    """Process in slices at most as many dead letters as exist now, not those that come later.

    Those that match a filter are found beside the writer, however many there are in between.
    """
    left = broker.look(dead_letters.count, which) if limit is None else limit
    total, after = 0, 0
    while left > 0:
        most = min(left, dead_letters.SLICE)
        ids = broker.look(dead_letters.numbers, which, after, most)
        if not ids:
            break
        chosen, done = structs.replace(which, ids=ids), 0
        while done < len(ids) and (n := act(chosen, len(ids) - done)):
            done += n  # of large ones, fewer at once
        total += done
        left -= done
        after = ids[-1]
    return total


def reprocess(session: DeadLetterSession, queue: str, group: str | None = None) -> int:
    """Push dead letters again, for every group, oldest first, and delete them; return how many.

    The new transaction id is `reprocess-` and the old id, so a repeat after a crash between the
    two steps adds nothing. If another message has that id, the message id and the time of death
    form the new one. Only messages that are dead letters when the call starts are processed.
    """
    newest = session.dead_letters(queue, group=group, limit=1)
    left, done = newest.total or 0, 0
    while left > 0:
        # Dead letters that are added meanwhile are newer: they do not shift the offset.
        upto, size = str(newest.items[0].id + 1), min(PAGE, left)
        while True:
            page = session.dead_letters(
                queue, group=group, limit=size, offset=left - size, after=upto
            )
            if page.next is None or len(page) == size:
                break
            size = max(1, min(size // 2, len(page)))  # of large ones, a page has the newest
        left -= size
        for letters in in_parts(page.items[::-1], lambda letter: len(letter.raw)):
            _push_again(session, queue, letters)
            done += session.purge_dead(queue, ids=[letter.id for letter in letters])
    return done


def _push_again(session: DeadLetterSession, queue: str, letters: list[DeadLetter]) -> None:
    receipt = session.push(queue, [_again(letter, letter.transaction_id) for letter in letters])
    known = [(receipt[place], letters[place]) for place in receipt.duplicates]
    # Another message may have used the id after the producer's id was pruned, or this message used
    # it before it was replayed. Treating that as a repeat would lose the dead letter.
    others = [letter for id, letter in known if not _came_of(session, queue, id, letter)]
    if others:
        session.push(queue, [_again(letter, _death(letter)) for letter in others])


def _came_of(session: DeadLetterSession, queue: str, id: str, letter: DeadLetter) -> bool:
    """Return whether a message is this dead letter pushed again."""
    try:
        found = session.message(queue, id)
    except NotFound:
        return False
    return found.raw == letter.raw and found.created_at >= letter.died_at


def _death(letter: DeadLetter) -> str:
    """Return an id of this dead letter that no other has, even for the same message."""
    return f"{letter.message_id}-{round(letter.died_at.timestamp() * SECOND)}"


def _again(letter: DeadLetter, known_as: str) -> Item:
    id = REPROCESSED + known_as
    if len(id.encode()) > MAX_NAME:
        id = REPROCESSED + letter.message_id
    return Item(
        data=msgspec.Raw(letter.raw) if letter.is_json else letter.raw,
        partition=letter.partition,
        priority=letter.priority,
        transaction_id=id,
        headers=letter.headers,
    )


class Alert:
    """Calls `call(queue, depth)` when a queue has more than `above` dead letters.

    A background thread checks every `every` seconds. It calls once, and again only after the depth
    has been at or below `above`.
    """

    def __init__(
        self,
        session: DeadLetterSession,
        queue: str,
        call: Callable[[str, int], Any],
        above: int = ABOVE,
        every: Duration = EVERY_SECONDS,
        group: str | None = None,
    ) -> None:
        self._session = session
        self._queue = validate.name(queue, "queue")
        if not callable(call):
            raise InvalidArgument(f"call must be a function of queue and depth, got {call!r}")
        self._call = call
        self._above = validate.integer(above, "above", 0, 1 << 60)
        self._every = validate.positive(every, "every")
        self._group = group
        self._raised = False
        self._closed = threading.Event()
        self._looking = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="ackflow-alert", daemon=True)
        self._thread.start()

    def check(self) -> int:
        """Check now; return the number of dead letters."""
        with self._looking:
            try:
                page = self._session.dead_letters(self._queue, group=self._group, limit=1)
                depth = page.total or 0
            except NotFound:
                depth = 0  # the queue does not exist yet
            high = depth > self._above
            if high and not self._raised:
                self._call(self._queue, depth)  # if this raises, the next check calls again
            self._raised = high
        return depth

    def close(self) -> None:
        """Stop checking."""
        self._closed.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._session.leave(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self.check()
            except AckflowError as error:
                log.warning("the dead letters of %s cannot be read now: %s", self._queue, error)
            except Exception:
                log.exception("the alert for %s failed", self._queue)
            self._closed.wait(self._every)
