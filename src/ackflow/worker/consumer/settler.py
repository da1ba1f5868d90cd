"""Settle processed messages, many in one transaction.

While one transaction is being committed, the outcomes of the next are gathered; nothing waits for a
timer. Messages whose handler sent something are committed together with what it sent.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from ...broker.requests import Verdict
from ...errors import PASSING, AckflowError, LeaseLost, TransactionFailed, text_of
from ...ids import new_token
from ...session.messages import Message
from ...session.session import Session
from ...session.transaction import Operations
from ..hooks import Hooks
from .processing import Outcome

log = logging.getLogger("ackflow.worker")
T = TypeVar("T")
MOST = 1_000  # outcomes in one transaction
TOGETHER = 100  # transactions of handlers that are committed as one
AGAIN_SECONDS = 1.0
_RELEASE = Verdict("release")


class Settler:
    """Settles outcomes: `settle` in the caller's thread, `put` in a thread of its own."""

    def __init__(
        self,
        session: Session,
        hooks: Hooks,
        settled: Callable[[Outcome, BaseException | None], None],
        give_up: Callable[[], bool],
    ) -> None:
        self._session = session
        self._hooks = hooks
        self._settled = settled
        self._give_up = give_up  # whether to stop trying while the server is away
        self._changed = threading.Condition()
        self._pending: list[Outcome] = []
        self._busy = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self._failures: list[tuple[Message, BaseException]] = []  # of one call of `settle`
        self.error: BaseException | None = None

    def put(self, outcome: Outcome) -> None:
        """Hand over an outcome; blocks while too many wait to be settled."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="ackflow-worker-settle", daemon=True
                )
                self._thread.start()
            while len(self._pending) >= 2 * MOST and not self._closed:
                self._changed.wait()
            self._pending.append(outcome)
            if not self._busy:
                self._changed.notify_all()

    def close(self, timeout: float | None = None) -> None:
        """Settle everything that was handed over, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                while not self._pending and not self._closed:
                    self._changed.wait()
                some, self._pending = self._pending[:MOST], self._pending[MOST:]
                self._busy = True
                self._changed.notify_all()
            if not some:
                return
            try:
                self.settle(some)
            except BaseException as error:  # a defect; the messages are delivered again
                log.exception("messages could not be settled; they will be delivered again")
                self.error = error

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        """Settle outcomes in as few transactions as possible."""
        plain: list[Outcome] = []
        sending: list[Outcome] = []
        for outcome in outcomes:
            if outcome.verdict is None:
                self._end(outcome, LeaseLost())
            elif outcome.context.session.empty:
                plain.append(outcome)
            else:
                sending.append(outcome)
        if plain:
            self._settle_plain(plain)
        for start in range(0, len(sending), TOGETHER):
            self._commit(sending[start : start + TOGETHER])
        if self._failures:
            (first, error), n = self._failures[0], len(self._failures)
            which = str(first) if n == 1 else f"{n:,} messages, {first} first,"
            log.warning("%s could not be settled and will be delivered again: %s", which, error)
            self._failures.clear()

    def release(self, messages: Sequence[Message]) -> None:
        """Return messages that were not started; their deliveries are not counted."""
        if messages:
            try:
                self._patiently(lambda: self._session.settle([(m, _RELEASE) for m in messages]))
            except AckflowError as error:
                said = "%d messages could not be returned; they are delivered again when their lease ends: %s"
                log.warning(said, len(messages), error)

    def _settle_plain(self, outcomes: list[Outcome]) -> None:
        pairs = [(o.context.message, o.verdict) for o in outcomes if o.verdict is not None]
        try:
            result = self._patiently(lambda: self._session.settle(pairs))
        except AckflowError as error:
            if len(outcomes) == 1:
                self._end(outcomes[0], error)
            else:  # such as a full disk, which refuses a requeue and no ack
                for outcome in outcomes:
                    self._settle_plain([outcome])
            return
        refused = {one.message_id: one for one in result.refused} if result.refused else {}
        for outcome in outcomes:
            refusal = refused.get(outcome.context.message.id) if refused else None
            self._end(outcome, None if refusal is None else LeaseLost(refusal.message))

    def _commit(self, outcomes: list[Outcome]) -> None:
        """Commit messages with what their handlers sent, together; if refused, one by one."""
        operations = Operations(None if self._session.broker.local else _key())
        for outcome in outcomes:
            assert outcome.verdict is not None
            operations.settle(outcome.context.message, outcome.verdict)
            operations.include(outcome.context.session.operations)
        try:
            self._patiently(lambda: self._session.commit(operations))
        except AckflowError as error:
            if len(outcomes) > 1:
                for outcome in outcomes:
                    self._commit([outcome])
            else:
                self._refused(outcomes[0], error)
            return
        for outcome in outcomes:
            self._end(outcome, None)

    def _refused(self, outcome: Outcome, error: AckflowError) -> None:
        """What a handler sent was refused: the message is handled as after an exception."""
        lost = isinstance(error, TransactionFailed) and error.details.get("code") in _LOST
        if lost or isinstance(error, LeaseLost):
            self._end(outcome, error)
            return
        context = outcome.context
        handler = context.handler
        log.error("what %s sent was refused: %s", context.message, text_of(error))
        context.session.discard()
        context.exception = error
        verdict = Verdict("requeue", text_of(error))
        if handler is not None:
            verdict = handler.verdict_of(context, error)
            if handler.fails_consumer:
                outcome.fatal = outcome.fatal or error
        self._settle_plain([Outcome(context, verdict, outcome.fatal)])

    def _end(self, outcome: Outcome, error: BaseException | None) -> None:
        context = outcome.context
        if error is not None:
            self._failures.append((context.message, error))
        self._settled(outcome, error)
        self._hooks.call("after_settle", context, error)
        if error is None:
            self._hooks.call("post_received", context)

    def _patiently(self, call: Callable[[], T]) -> T:
        """Call, and try again while the database or server is away; a stop ends that."""
        waited = threading.Event()
        while True:
            try:
                return call()
            except AckflowError as error:
                if error.code not in PASSING or self._give_up():
                    raise
                log.warning("messages could not be settled; settling is tried again: %s", error)
                waited.wait(AGAIN_SECONDS)


_LOST = frozenset({"invalid_lease", "lease_expired", "already_settled"})


def _key() -> str:
    """A key, so that a commit whose answer was lost is not repeated."""
    return f"worker-{new_token():x}"
