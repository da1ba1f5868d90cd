"""What is done about dead letters: an alert when there are many, a look at what they died of, and
another try once the cause is gone."""

import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol, Self

import msgspec

from . import checks
from .codec import Item
from .delivery import Receipt
from .errors import AckflowError, NotFound
from .model import DeadLetter, DeadSummary, Page
from .policy import MAX_NAME

log = logging.getLogger("ackflow")
ABOVE = 100
EVERY_SECONDS = 60.0
PAGE = 500
REPROCESSED = "reprocess-"


class Repairs(Protocol):
    """What is needed of a session."""

    def push(self, queue: str, data: Any) -> Receipt: ...
    def dead_letters(
        self, queue: str, *, group: str | None = None, limit: int = 100
    ) -> Page[DeadLetter]: ...
    def dead_summary(self, queue: str, group: str | None = None) -> list[DeadSummary]: ...
    def purge_dead(self, queue: str, *, ids: list[int]) -> int: ...
    def leave(self, part: Any) -> None: ...


def distribution(session: Repairs, queue: str, group: str | None = None) -> dict[str, int]:
    """How many died of what, most first; what counts is the error's text before the first colon."""
    found: dict[str, int] = {}
    for line in session.dead_summary(queue, group):
        found[line.error] = found.get(line.error, 0) + line.count
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def reprocess(session: Repairs, queue: str, group: str | None = None) -> int:
    """Push dead letters again, for every group, and remove them; answers with how many.

    The new transaction id is `reprocess-` and the old one, so that a repeat after a crash in
    between adds nothing. Only what is dead when this is called is taken.
    """
    left = session.dead_letters(queue, group=group, limit=1).total or 0
    done = 0
    while done < left:
        letters = session.dead_letters(queue, group=group, limit=min(PAGE, left - done)).items
        if not letters:
            break
        session.push(queue, [_again(letter) for letter in reversed(letters)])
        session.purge_dead(queue, ids=[letter.id for letter in letters])
        done += len(letters)
    return done


def _again(letter: DeadLetter) -> Item:
    id = REPROCESSED + letter.transaction_id
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

    It looks every so many seconds from a thread of its own, and calls once, then again only after
    the depth was back at or below the mark.
    """

    def __init__(
        self,
        session: Repairs,
        queue: str,
        call: Callable[[str, int], Any],
        above: int = ABOVE,
        every: float = EVERY_SECONDS,
        group: str | None = None,
    ) -> None:
        self._session = session
        self._queue = checks.name(queue, "queue")
        self._call = call
        self._above = checks.whole(above, "above", 0, 1 << 60)
        self._every = checks.positive(every, "every")
        self._group = group
        self._raised = False
        self._closed = threading.Event()
        self._looking = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="ackflow-alert", daemon=True)
        self._thread.start()

    def check(self) -> int:
        """Look now; answers with the depth."""
        with self._looking:
            try:
                page = self._session.dead_letters(self._queue, group=self._group, limit=1)
                depth = page.total or 0
            except NotFound:
                depth = 0  # the queue is not there yet
            high = depth > self._above
            raised, self._raised = self._raised, high
            if high and not raised:
                self._call(self._queue, depth)
        return depth

    def close(self) -> None:
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
                log.warning("the dead letters of %s cannot be seen now: %s", self._queue, error)
            except Exception:
                log.exception("the alert for %s failed", self._queue)
            self._closed.wait(self._every)
