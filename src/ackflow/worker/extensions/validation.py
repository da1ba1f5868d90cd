"""Validation of bodies before the processor is called."""

import logging

from ..consumer.processing import abbreviate
from ..context import Context
from ..hooks import Extension
from ..processor import Processor
from ..schema import InvalidBody, Schema
from ..status import REJECT

log = logging.getLogger("ackflow.worker")


class BodyValidation(Extension):
    """Reject a message whose body does not match the schema of its processor.

    The processor gets the decoded body; it is decoded once.
    """

    def pre_received(self, context: Context) -> None:
        """Decode and validate the body."""
        handler = context.binding.handler_of(context.message)
        if not isinstance(handler, Processor) or handler.schema is None:
            return
        try:
            context.notes[Schema] = handler.schema.body_of(context.message)
        except InvalidBody as error:
            raw = abbreviate(context.message.raw)
            log.critical("Got invalid message of %s, %s: %s", context.message.queue, error, raw)
            context.reason = f"invalid body: {error}"
            context.status = REJECT
