"""What a processor returns: ACK, REJECT or REQUEUE; or raises, to say the same with a reason."""

from enum import Enum

from .. import validate
from ..validate import Duration


class Status(Enum):
    """The outcome of processing one message. The values are the constants of Oro."""

    ACK = "oro.message_queue.consumption.ack"
    REJECT = "oro.message_queue.consumption.reject"
    REQUEUE = "oro.message_queue.consumption.requeue"

    def __str__(self) -> str:
        return self.name


ACK = Status.ACK
REJECT = Status.REJECT
REQUEUE = Status.REQUEUE


class Reject(Exception):
    """Raised by a processor or a task: REJECT with this reason; the consumer continues."""


class Requeue(Exception):
    """Raised by a processor or a task: REQUEUE; the consumer continues.

    `delay` is the time until the copy is delivered. Without it, the redelivery delay applies.
    """

    def __init__(self, reason: str = "", *, delay: Duration | None = None) -> None:
        super().__init__(reason)
        self.delay = validate.seconds_or_none(delay, "delay")


class Retry(Exception):
    """Raised by a task: the attempt failed, and the next one comes after `delay`."""

    def __init__(self, reason: str = "", *, delay: Duration | None = None) -> None:
        super().__init__(reason)
        self.delay = validate.seconds_or_none(delay, "delay")
