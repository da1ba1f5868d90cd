"""Delay of redelivered messages, and a hint for those that come again without limit."""

import logging

from ... import validate
from ...validate import Duration
from ..consumer.processing import REDELIVER_COUNT
from ..context import Context
from ..hooks import Extension, Middleware

log = logging.getLogger("ackflow.worker")
DELAY_SECONDS = 10.0
HINT_AFTER = 5  # redeliveries


class RedeliveryDelay(Extension):
    """Put off a redelivered message when its turn comes; after the delay it is processed.

    The header `oro-redeliver-count` of the delayed copy says how often the message was redelivered.
    A message that has been put off for its last redelivery is processed.
    """

    def __init__(self, seconds: Duration = DELAY_SECONDS) -> None:
        self._seconds = validate.seconds(seconds, "redelivery_delay")

    def pre_received(self, context: Context) -> None:
        """Put the message off, unless that was done for this redelivery."""
        message = context.message
        if not message.redelivered or self._seconds == 0:
            return
        redelivered = message.deliveries - 1
        handler = context.binding.handler_of(message)
        if handler is not None and handler.counts_failures:
            return  # a task has a back-off of its own
        # Counts that differ: those of a redriven dead letter began anew, and its header did not.
        if redelivered and redelivered != count_of(message.headers):
            context.requeue_later(self._seconds, {REDELIVER_COUNT: str(redelivered)})


class DeliveryHint(Middleware):
    """Recommend `max_deliver` when a message comes again and again and nothing limits that.

    It is logged before the handler is called, which may end the process: after 5, 10, 20, 40
    redeliveries and so on. Failures of a task are limited by `retries` and are not counted.
    """

    def before_process(self, context: Context) -> None:
        """Log the hint."""
        message, handler = context.message, context.handler
        if context.binding.max_deliver is not None or handler is None:
            return
        again = message.deliveries - 1 - (message.failures if handler.counts_failures else 0)
        times, rest = divmod(again, HINT_AFTER)
        if rest or times < 1 or times & (times - 1):
            return
        log.warning(
            "%s has been redelivered %d times, and nothing limits that: a message that kills its "
            "worker comes again for ever. Set a limit: max_deliver=20 at %s",
            message, again, handler.name,
        )  # fmt: skip


def count_of(headers: dict[str, str]) -> int:
    """How often a message was redelivered and put off; 0 if the header is not a number."""
    text = headers.get(REDELIVER_COUNT, "0")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
