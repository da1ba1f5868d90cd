"""Workers: run a function for every message, and settle it by what the function returns.

from ackflow.worker import ACK, REJECT, Worker

worker = Worker("orders.db")

@worker.processor("orders", group="billing")
def bill(message, session):
    session.push("invoices", {"order": message.data["id"]})
    return ACK
"""

from .consumer.consumer import Counts
from .consumer.modes import MODES
from .context import Context, RunState
from .coordination.job_records import Job, JobCannotBeStarted, JobNotFound, JobStale, JobStatus
from .coordination.jobs import Jobs
from .coordination.limits import Deferred, Limits, Permit, Rate
from .coordination.presence import RunningMessage, ServedQueue, WorkerInfo, workers
from .coordination.running_job import JobRun, RunningJob
from .coordination.schedules import Cron, Every, Schedule, Schedules, Tick, cron, every
from .coordination.unique import Unique
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
from .results import Progress, Result, ResultFailed, ResultTimeout, ask
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
    "Cron",
    "Deferred",
    "Every",
    "Extension",
    "Handle",
    "InvalidStatus",
    "Job",
    "JobCannotBeStarted",
    "JobNotFound",
    "JobRun",
    "JobStale",
    "JobStatus",
    "Jobs",
    "Limits",
    "MemoryLimit",
    "MessageLimit",
    "Middleware",
    "Permit",
    "ProcessorExited",
    "ProcessorSession",
    "Progress",
    "Push",
    "Rate",
    "RedeliveryDelay",
    "Reject",
    "Requeue",
    "Result",
    "ResultFailed",
    "ResultTimeout",
    "Retry",
    "RunState",
    "RunningJob",
    "RunningMessage",
    "Schedule",
    "Schedules",
    "ServedQueue",
    "SoftTimeLimitExceeded",
    "Status",
    "Task",
    "Tick",
    "TimeLimit",
    "TimeLimitExceeded",
    "Unique",
    "Worker",
    "WorkerInfo",
    "WorkerNotFound",
    "ask",
    "cron",
    "current",
    "every",
    "workers",
]
