"""Delay of redelivered messages."""

from ... import validate
from ...validate import Duration
from ..consumer.processing import REDELIVER_COUNT
from ..context import Context
from ..hooks import Extension

DELAY_SECONDS = 10.0


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


def count_of(headers: dict[str, str]) -> int:
    """How often a message was redelivered and put off; 0 if the header is not a number."""
    text = headers.get(REDELIVER_COUNT, "0")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
