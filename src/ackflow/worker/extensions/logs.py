"""A log line when the consumer is started, and one for each processed message."""

import logging

from ..context import Context, RunState
from ..hooks import Extension

log = logging.getLogger("ackflow.worker")


class StartedLog(Extension):
    """Log a line once signals stop the consumer."""

    def __init__(self, line: str) -> None:
        self._line = line

    def on_start(self, run: RunState) -> None:
        """Log the line."""
        log.info("%s", self._line)


class ProcessedLog(Extension):
    """Log status and execution time of each message, once it is settled."""

    def post_received(self, context: Context) -> None:
        """Log a message that has a status; an exception has been logged by itself."""
        if context.status is None or context.failed:
            return
        if log.isEnabledFor(logging.INFO):
            log.info(
                "Message processed: %s. Execution time: %d ms", context.status,
                round(context.elapsed * 1000), extra={"message_id": context.message.id,
                "queue": context.message.queue, "processor": None if context.handler is None else context.handler.name},
            )  # fmt: skip
