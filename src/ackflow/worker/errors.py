"""The errors of a worker."""

from ..errors import AckflowError


class InvalidStatus(AckflowError):
    """A processor must return ACK, REJECT or REQUEUE."""

    code = "invalid_status"


class ProcessorExited(AckflowError):
    """A processor called sys.exit; it must return a status or raise an exception."""

    code = "processor_exited"


class TimeLimitExceeded(AckflowError):
    """The time limit was exceeded."""

    code = "time_limit_exceeded"


class SoftTimeLimitExceeded(Exception):
    """Raised inside a handler when its soft time limit is over; it may clean up and return."""


class WorkerNotFound(AckflowError):
    """The worker could not be imported."""

    code = "worker_not_found"


class ConsumerDied(AckflowError):
    """A consumer process ended with an error."""

    code = "consumer_died"
