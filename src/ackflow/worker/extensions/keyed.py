"""Limits, unique keys, results and child jobs as hooks: a worker adds them by itself.

Limits come first: a message that they put off keeps its unique key as it is.
"""

import contextlib
import logging

from ...errors import AckflowError
from ..context import Context
from ..coordination.job_records import CHILD_HEADER, JobNotFound
from ..coordination.jobs import Jobs
from ..coordination.limits import FAILED_SECONDS, Deferred, Limits, Permit
from ..coordination.unique import HEADER, TAKEN_SECONDS, Unique
from ..errors import TimeLimitExceeded
from ..hooks import Extension, Middleware
from ..results import asked_by, record, record_failure
from ..schema import InvalidBody
from ..status import ACK, REJECT, Status

log = logging.getLogger("ackflow.worker")


class LimitHooks(Extension, Middleware):
    """The options `concurrency`, `concurrency_key` and `rate` of tasks and processors."""

    def pre_received(self, context: Context) -> None:
        """Release a message that is over a limit until its turn comes."""
        handler = context.binding.handler_of(context.message)
        limit = None if handler is None else handler.limit
        if handler is None or limit is None:
            return
        try:
            name = limit.name_for(handler, context.message)
            answer = Limits(context.session.outside).acquire(
                context.message, name, concurrency=limit.concurrency, rate=limit.rate
            )
        except InvalidBody:
            return  # it is going to be rejected
        except Exception as error:  # a limit that cannot be asked must not be exceeded
            log.error(
                "the limit of %s could not be asked, and is asked again: %r", handler.name, error
            )
            answer = Deferred(FAILED_SECONDS)
        if isinstance(answer, Deferred):
            context.release(answer.delay)
        else:
            context.notes[LimitHooks] = answer

    def before_settle(self, context: Context) -> None:
        """Give the slot back in the transaction that settles the message."""
        permit: Permit | None = context.notes.get(LimitHooks)
        if permit is not None and permit.bound:
            permit.release(context.session.operations, context.worker.clock.now())


class UniqueHooks(Extension, Middleware):
    """The keys of messages that were pushed with `unique`."""

    def pre_received(self, context: Context) -> None:
        """Bind the key to the lease; put the message off while another one has the key."""
        if HEADER not in context.message.headers:
            return
        try:
            started = Unique(context.session.outside).start(context.message)
        except AckflowError as error:  # without its key the message must not run
            log.error("the key of %s could not be taken: %s", context.message, error)
            started = False
        if started:
            context.notes[UniqueHooks] = True
        else:
            context.release(TAKEN_SECONDS)

    def before_settle(self, context: Context) -> None:
        """Free the key, unless the message comes again."""
        if UniqueHooks not in context.notes:
            return
        unique = Unique(context.session.outside)
        again = comes_again(context)
        unique.end(context.session.operations, context.message, again=again)


class ResultHooks(Middleware):
    """The results of messages that ask for them."""

    def before_settle(self, context: Context) -> None:
        """Write the result in the transaction that settles the message."""
        message, error = context.message, context.exception
        if asked_by(message) is None or comes_again(context):
            return
        if context.status is ACK:
            value = None if isinstance(context.result, Status) else context.result
            record(context.session.operations, message, value)
        else:
            reason = error or context.reason or "rejected"
            record_failure(context.session.operations, message, reason)


class ChildHooks(Middleware):
    """The messages of child jobs, which `create_delayed` has sent."""

    def before_settle(self, context: Context) -> None:
        """Fail the child of a message that will not come again, so that its root can stop.

        This is a transaction before that of the message: if the worker is killed in between, the
        message comes again and finds that its child has failed.
        """
        id = context.message.headers.get(CHILD_HEADER)
        if id is None or context.status is ACK or comes_again(context):
            return
        # After its time limit, a thread may still run the child, whose end is not recorded then.
        left = isinstance(context.exception, TimeLimitExceeded)
        with contextlib.suppress(JobNotFound):
            Jobs(context.session.outside).fail(id, running=left)


def comes_again(context: Context) -> bool:
    """Whether the message is delivered again, after what was decided about it."""
    if context.put_off is not None:
        return True
    if context.status in (ACK, REJECT):
        return False
    # A task that says REQUEUE has not failed, so no attempt is counted.
    if context.handler is not None and context.handler.counts_failures and not context.failed:
        return not context.last_delivery
    return not context.last_attempt


KEYED: tuple[type[LimitHooks], type[UniqueHooks], type[ResultHooks], type[ChildHooks]] = (
    LimitHooks,
    UniqueHooks,
    ResultHooks,
    ChildHooks,
)
