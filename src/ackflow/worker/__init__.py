"""Workers: run a function for every message, and settle it by what the function returns.

from ackflow.worker import ACK, REJECT, Worker

worker = Worker("orders.db")

@worker.processor("orders", group="billing")
def bill(message, session):
    session.push("invoices", {"order": message.data["id"]})
    return ACK
"""

from .consumer import Counts
from .context import Context, RunState
from .errors import (
    ConsumerDied,
    InvalidStatus,
    ProcessorExited,
    SoftTimeLimitExceeded,
    TimeLimitExceeded,
    WorkerNotFound,
)
from .extensions.limits import MemoryLimit, MessageLimit, TimeLimit
from .extensions.redelivery import RedeliveryDelay
from .hooks import Extension, Middleware
from .job_records import Job, JobCannotBeStarted, JobNotFound, JobStale, JobStatus
from .jobs import Jobs, RunningJob
from .modes import MODES
from .sending import ProcessorSession, Push, current
from .status import ACK, REJECT, REQUEUE, Reject, Requeue, Retry, Status
from .tasks import Handle, Task
from .worker import Worker

__all__ = [
    "ACK",
    "MODES",
    "REJECT",
    "REQUEUE",
    "ConsumerDied",
    "Context",
    "Counts",
    "Extension",
    "Handle",
    "InvalidStatus",
    "Job",
    "JobCannotBeStarted",
    "JobNotFound",
    "JobStale",
    "JobStatus",
    "Jobs",
    "MemoryLimit",
    "MessageLimit",
    "Middleware",
    "ProcessorExited",
    "ProcessorSession",
    "Push",
    "RedeliveryDelay",
    "Reject",
    "Requeue",
    "Retry",
    "RunState",
    "RunningJob",
    "SoftTimeLimitExceeded",
    "Status",
    "Task",
    "TimeLimit",
    "TimeLimitExceeded",
    "Worker",
    "WorkerNotFound",
    "current",
]
