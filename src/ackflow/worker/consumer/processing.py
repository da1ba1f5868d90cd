"""Process one message: extensions, handler, status, and the verdict that ends its delivery.

message ─► pre_received ─decided─► status or put off ──┐
                │                                       ├─► before_settle ─► Outcome
                └─► before_process ─► handler ─► status ┘
                                         └─ raised ─► requeue, retry or dead letter
"""

import logging
import time
from copy import copy

from msgspec import Struct

from ...broker.requests import Verdict
from ...errors import LeaseLost, text_of
from ..context import Context, PutOff
from ..errors import TimeLimitExceeded
from ..hooks import Hooks
from ..processor import TASK_HEADER
from ..schema import InvalidBody
from ..sending import _current
from ..status import ACK, REJECT, REQUEUE, Reject, Requeue
from .time_limits import Attempt, Caller, GivenUp, LeaseGone

log = logging.getLogger("ackflow.worker")
REDELIVER_COUNT = "oro-redeliver-count"
NO_TASK_SECONDS = 10.0


class Outcome(Struct, eq=False):
    """A processed message and the verdict that ends its delivery; None: the lease is lost.

    `fatal` is an exception that ends the consumer once the message is settled, unless it keeps
    going.
    """

    context: Context
    verdict: Verdict | None
    fatal: BaseException | None = None


class Processing:
    """Processes messages; safe to use from several threads."""

    def __init__(self, hooks: Hooks, caller: Caller) -> None:
        self._hooks = hooks
        self._caller = caller

    def process(self, context: Context, attempt: Attempt) -> Outcome:
        """Process a message. Raises GivenUp if the attempt was given up meanwhile."""
        token = _current.set(context)
        try:
            try:
                outcome = self._decide(context)
            except (Reject, Requeue) as error:  # raised by an extension
                outcome = self._raised_status(context, error)
            if outcome is None:
                outcome = self._handle(context, attempt)
            self._hooks.call("before_settle", context)
            return outcome
        finally:
            _current.reset(token)

    def given_up(self, attempt: Attempt) -> Outcome:
        """The outcome of a message whose handler did not return by its hard time limit.

        Its thread may go on, and send more: the outcome has a context of its own.
        """
        context = copy(attempt.context)
        context.session = context.session.empty_copy()
        handler = context.handler
        assert handler is not None
        error = TimeLimitExceeded(
            f"{handler.name} did not return within its time limit of {handler.time_limit:g} s. Its "
            "thread cannot be killed: it is left to itself, and another one takes its place"
        )
        context.elapsed = handler.time_limit or 0.0
        outcome = self._failed(context, error)
        self._hooks.call("after_process", context)
        self._hooks.call("before_settle", context)
        return outcome

    def _decide(self, context: Context) -> Outcome | None:
        """Let extensions decide; None: the message is to be processed."""
        self._hooks.decide(context)
        if context.put_off is not None:
            return Outcome(context, _put_off(context.put_off))
        if context.status is not None:
            return Outcome(context, _verdict(context))
        context.handler = context.binding.handler_of(context.message)
        if context.handler is None:
            return self._no_task(context)
        return None

    def _no_task(self, context: Context) -> Outcome:
        name = context.message.headers.get(TASK_HEADER)
        known = ", ".join(sorted(context.binding.tasks)) or "none"
        reason = f"no task {name!r} in this worker (tasks of {context.binding.label}: {known})"
        if name is None:
            reason = f"the message names no task (tasks of {context.binding.label}: {known})"
        log.error("%s: %s; it is delivered again in %g s", context.message, reason, NO_TASK_SECONDS)
        context.status = REQUEUE
        return Outcome(context, Verdict("requeue", reason, NO_TASK_SECONDS))

    def _handle(self, context: Context, attempt: Attempt) -> Outcome:
        began = time.perf_counter()
        handler = context.handler
        assert handler is not None
        try:
            self._hooks.call("before_process", context)
            context.result = self._caller.call(attempt)
            context.elapsed = time.perf_counter() - began
            context.status = handler.status_of(context.result)
        except GivenUp:
            raise
        except LeaseGone:
            context.elapsed = time.perf_counter() - began
            context.exception = LeaseLost()
            outcome = Outcome(context, None)
        except (Reject, Requeue) as error:
            context.elapsed = time.perf_counter() - began
            outcome = self._raised_status(context, error)
        except InvalidBody as error:
            context.elapsed = time.perf_counter() - began
            outcome = self._invalid_body(context, error)
        except BaseException as error:
            context.elapsed = time.perf_counter() - began
            outcome = self._failed(context, error)
        else:
            assert context.status is not None
            outcome = Outcome(context, _verdict(context))
        self._hooks.call("after_process", context)
        return outcome

    def _raised_status(self, context: Context, error: Reject | Requeue) -> Outcome:
        context.session.discard()
        context.exception = error
        context.reason = str(error) or None
        if isinstance(error, Reject):
            log.warning("%s is rejected: %s", context.message, error)
            context.status = REJECT
            return Outcome(context, _verdict(context))
        context.status = REQUEUE
        if error.delay is None:
            return Outcome(context, _verdict(context))
        count = ((REDELIVER_COUNT, str(context.message.deliveries)),)
        return Outcome(context, Verdict("requeue", context.reason, error.delay, headers=count))

    def _invalid_body(self, context: Context, error: InvalidBody) -> Outcome:
        context.session.discard()
        context.exception = error
        log.critical("Got invalid message, %s: %s", error, abbreviate(context.message.raw))
        context.status, context.reason = REJECT, f"invalid body: {error}"
        return Outcome(context, _verdict(context))

    def _failed(self, context: Context, error: BaseException) -> Outcome:
        """The handler raised: nothing that it sent goes out."""
        handler = context.handler
        assert handler is not None
        context.session.discard()
        context.exception = error
        if context.message.lost or _is_of(error, context):
            log.warning("%s failed after its lease was lost: %s", handler.name, text_of(error))
            return Outcome(context, None)
        last = context.last_attempt
        if last:
            try:
                handler.last_attempt_failed(context, error)
            except Exception:
                log.exception("the last-attempt hook of %s failed", handler.name)
        verdict = handler.verdict_of(context, error)
        if handler.fails_consumer and context.status is None:
            context.status = REQUEUE
        self._log_failure(context, verdict, error)
        return Outcome(context, verdict, error if handler.fails_consumer else None)

    def _log_failure(self, context: Context, verdict: Verdict, error: BaseException) -> None:
        handler, message = context.handler, context.message
        assert handler is not None
        if context.last_attempt:
            then = "it was the last attempt; the message becomes a dead letter"
        elif verdict.verb == "requeue":
            then = "a copy goes to the end of the queue"
        else:
            then = f"attempt {context.attempt} failed; the next comes in {verdict.delay:g} s"
        log.error("%s failed on %s: %s", handler.name, message, then, exc_info=error)


def _is_of(error: BaseException, context: Context) -> bool:
    """Whether an error says that the lease of this message is lost."""
    return isinstance(error, LeaseLost) and error.details.get("message_id") == context.message.id


def _put_off(given: PutOff) -> Verdict:
    if not given.copy:
        return Verdict("release", delay=given.delay or None)
    return Verdict("requeue", None, given.delay, headers=given.headers, uncounted=True)


_ACK = Verdict("ack")


def _verdict(context: Context) -> Verdict:
    """Return the verdict for the status of a message."""
    handler, reason = context.handler, context.reason
    if context.status is ACK:
        return _ACK
    if context.status is REJECT:
        rejected = "rejected" if handler is None else f"rejected by {handler.name}"
        return Verdict("reject", reason or rejected)
    if handler is not None and handler.counts_failures:
        # The turn of a redelivered task is not put off, because its back-off has done that.
        return Verdict("requeue", reason, context.worker.redelivery_delay or None)
    return Verdict("requeue", reason)


def abbreviate(raw: bytes, most: int = 500) -> str:
    """The start of a body, for a log."""
    text = raw[:most].decode(errors="replace")
    return f'"{text}"' + ("…" if len(raw) > most else "")
