"""The records of jobs: keyed values, changed in transactions that expect the versions they read.

    jobs/root/ROOT             a root job: its status, and how many children have each status
    jobs/child/ROOT/NUMBER     a child job
    jobs/status/STATUS/ROOT    an index of the roots by status
    jobs/owner/OWNER           the root of an owner, as long as the root exists
    jobs/name/NAME             the root that runs under a name now
    jobs/run/JOB               the run of a child, bound to the lease of its message

Ids begin with the time, so that roots are listed in the order of their creation. A change reads a
root and one child, whatever the number of children.
"""

import random
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct, field

from ... import validate
from ...clock import AHEAD, SECOND
from ...errors import AckflowError, InvalidArgument, NotFound, StorageBusy, TransactionFailed
from ...model import Value
from ...session.session import Session
from ...session.transaction import Operations
from ...validate import Duration
from ..status import Reject

T = TypeVar("T")
JobStatus = Literal[
    "new", "running", "success", "failed", "failed_redelivered", "cancelled", "stale"
]
STATUSES: tuple[JobStatus, ...] = (
    "new", "running", "success", "failed", "failed_redelivered", "cancelled", "stale"
)  # fmt: skip
STARTABLE = ("new", "failed_redelivered")
ACTIVE = ("new", "running", "failed_redelivered")
ROOT, CHILD, STATUS = "jobs/root/", "jobs/child/", "jobs/status/"
OWNER, NAME, RUN = "jobs/owner/", "jobs/name/", "jobs/run/"
CHILD_HEADER = "ackflow-child-job"  # of a message that runs a child: its id
MOST_NAME = 200  # bytes: a key has room for a prefix and a name
RETRY_SECONDS = 30.0
DEFAULT = "default"  # the entry of `stale_after` for all other names


class JobNotFound(NotFound):
    """There is no such job."""

    code = "job_not_found"


class JobCannotBeStarted(AckflowError):
    """The job is running elsewhere."""

    code = "job_cannot_be_started"
    status = 409


class JobStale(AckflowError, Reject):
    """The job was replaced, because it was not active for too long; its result is not recorded."""

    # A Reject: in a handler of a worker, the message is rejected, and the consumer continues.
    code = "job_stale"
    status = 409


class Dependent(Struct, frozen=True):
    """A message that is pushed when the root stops, whatever its status."""

    queue: str
    data: Any
    priority: int = 0
    headers: dict[str, str] = {}


class Job(Struct, kw_only=True):
    """A root job or a child job. Times are microseconds since 1970.

    `counts` (roots only) is the number of children by status; `progress` of a root is the part of
    its children that ended. `properties` (roots only) are sent as headers of its dependents.
    """

    id: str
    name: str
    status: JobStatus = "new"
    owner: str | None = None
    interrupted: bool = False
    created_at: int = 0
    started_at: int | None = None
    last_active_at: int = 0
    stopped_at: int | None = None
    progress: float = 0.0
    data: dict[str, Any] = {}
    counts: dict[str, int] = field(default_factory=dict)
    properties: dict[str, str] = {}
    dependents: list[Dependent] = field(default_factory=list)
    run: str | None = None  # which run of the child this is; None: it never started
    leased: bool = False  # the run is bound to the lease of a message

    @property
    def is_root(self) -> bool:
        """Whether it is a root job."""
        return "." not in self.id

    @property
    def root_id(self) -> str:
        """The id of its root; that of a root is its own."""
        return self.id.partition(".")[0]

    @property
    def active(self) -> bool:
        """Whether the job has not ended."""
        return self.stopped_at is None and self.status in ACTIVE


def root_status(counts: dict[str, int]) -> JobStatus:
    """The status of a root, by the number of its children in each status."""
    some = {name for name, count in counts.items() if count}
    if some.isdisjoint(ACTIVE) and "stale" not in some:
        return "cancelled" if "cancelled" in some else "failed" if "failed" in some else "success"
    return "running" if some - {"new"} else "new"


def root_progress(counts: dict[str, int]) -> float:
    """The part of the children that succeeded or failed, with four digits."""
    total = sum(counts.values())
    return round((counts.get("success", 0) + counts.get("failed", 0)) / total, 4) if total else 0.0


def dependent_headers(root: Job, one: Dependent, status: str = "cancelled") -> dict[str, str]:
    """The headers of a dependent: the properties of its root, its own, and what became of the root.

    Headers that are too large are an error here, and not when the root stops.
    """
    of_root = {"ackflow-job-status": status, "ackflow-job": root.id}
    return validate.headers({**root.properties, **one.headers, **of_root})


def new_id(now: int) -> str:
    return f"{now:014x}{secrets.token_hex(4)}"


def key_of(id: str) -> str:
    root, _, number = id.partition(".")
    return f"{CHILD}{root}/{number}" if number else ROOT + root


def checked_name(value: object, what: str) -> str:
    name = validate.name(value, what)
    if len(name.encode()) > MOST_NAME:
        raise InvalidArgument(f"{what} must have 1 to {MOST_NAME} bytes")
    return name


class Loaded:
    """A job as it was read, with the version that a change expects."""

    def __init__(self, job: Job, version: int) -> None:
        self.job = job
        self.version = version
        self.was: JobStatus | None = job.status if version else None

    def put(self, t: Operations) -> None:
        t.put(key_of(self.job.id), msgspec.to_builtins(self.job), expect=self.version)


class JobRecords:
    """Reads and changes the records of jobs through a session."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def now(self) -> int:
        return self.session.broker.clock.now()

    def find(self, id: str) -> Loaded | None:
        found = self.session.value(key_of(validate.name(id, "job id")))
        return None if found is None else loaded(found)

    def get(self, id: str) -> Loaded:
        found = self.find(id)
        if found is None:
            raise JobNotFound(f"there is no job {id}")
        return found

    def pointer(self, key: str) -> tuple[str | None, int]:
        """The id under an index key, and its version."""
        found = self.session.value(key)
        return (None, 0) if found is None else (str(found.data), found.version)

    def page(self, prefix: str, limit: int, after: str | None, reverse: bool) -> list[Value]:
        return self.session.values(prefix, limit=limit, after=after, reverse=reverse)

    def change(self, attempt: Callable[[Operations], T], given: int = 0) -> T:
        """Read, decide and commit; again from the start if another process was faster.

        The first `given` operations are those of a handler; a conflict of theirs is raised to it.
        """
        until = time.monotonic() + RETRY_SECONDS
        pause = 0.001
        while True:
            t = self.session.transaction()
            result = attempt(t)
            try:
                t.commit()
                return result
            except TransactionFailed as error:
                if (
                    error.details.get("code") != "version_conflict"
                    or error.details.get("index", given) < given
                ):
                    raise
                if time.monotonic() > until:
                    raise StorageBusy("the job is changed by too many processes at once") from error
            time.sleep(random.uniform(0, pause))
            pause = min(2 * pause, 0.1)

    def correct_times(self, t: Operations, root: Loaded) -> None:
        """Let a root that was active under a clock that was ahead be active now."""
        job, now = root.job, self.now()
        if job.last_active_at > now + AHEAD:
            job.last_active_at = now
            job.created_at = min(job.created_at, now)
            if job.started_at is not None:
                job.started_at = min(job.started_at, now)
            root.put(t)

    def save_root(self, t: Operations, root: Loaded) -> None:
        """Write a root after its counts have changed: its status, its indexes, and its end."""
        job, now = root.job, self.now()
        job.last_active_at = now
        if job.status != "stale":
            status = root_status(job.counts)
            job.progress = root_progress(job.counts)
            job.status = "cancelled" if job.interrupted else status
            if status == "running" and job.started_at is None:
                job.started_at = now
        left = sum(job.counts.get(status, 0) for status in ACTIVE)
        if job.stopped_at is None and (job.status == "stale" or not left):
            self._stop(t, job, now)
        if job.status != root.was:
            if root.was is not None:
                t.delete(f"{STATUS}{root.was}/{job.id}")
            t.put(f"{STATUS}{job.status}/{job.id}", job.name)
        root.put(t)

    def _stop(self, t: Operations, job: Job, now: int) -> None:
        """The root has stopped: another may have its name, and what depends on it is sent."""
        job.stopped_at = now
        if self.pointer(NAME + job.name)[0] == job.id:
            t.delete(NAME + job.name)
        if job.status == "stale":
            return
        for one in job.dependents:
            headers = dependent_headers(job, one, job.status)
            t.push(one.queue, one.data, priority=one.priority, headers=headers)

    def move(self, t: Operations, root: Loaded, child: Loaded, status: JobStatus) -> None:
        """Change the status of a child, and write both."""
        before, now, job = child.was, self.now(), child.job
        job.status, job.last_active_at = status, now
        if status not in ACTIVE:
            job.stopped_at = now
        if status == "success":
            job.progress = 1.0
        counts = root.job.counts
        if before is not None:
            counts[before] = counts.get(before, 0) - 1
        counts[status] = counts.get(status, 0) + 1
        child.put(t)
        self.save_root(t, root)


class StaleRule:
    """When a root is not active any more, so that another one may take its name."""

    def __init__(
        self,
        after: Duration | Mapping[str, Duration | None] | None,
        max_redelivery: Duration | None,
    ) -> None:
        given = after if isinstance(after, Mapping) else {DEFAULT: after}
        self._after = {
            name: validate.positive_or_none(seconds, "stale_after")
            for name, seconds in given.items()
        }
        self._max_redelivery = validate.positive_or_none(max_redelivery, "max_redelivery_seconds")

    def applies(self, root: Job, now: int) -> bool:
        """Whether a root was not active for too long, or is only run again and again."""
        if root.counts.get("new"):
            return False
        limit = self._limit(root.name)
        if limit is not None and seconds_since(root.last_active_at, now) >= limit:
            return True
        again = root.counts.get("failed_redelivered", 0)
        ended = again + root.counts.get("success", 0) == sum(root.counts.values())
        runs = seconds_since(root.started_at or root.created_at, root.last_active_at)
        most = self._max_redelivery
        return most is not None and runs >= most and bool(again) and ended

    def _limit(self, name: str) -> float | None:
        """The time for a name: its own, that of its longest prefix, or the default."""
        ends = [len(name), *(at for at, letter in enumerate(name) if letter in ".:")]
        for end in sorted(ends, reverse=True):
            if name[:end] in self._after:
                return self._after[name[:end]]
        return self._after.get(DEFAULT)


def loaded(value: Value) -> Loaded:
    return Loaded(msgspec.convert(value.data, Job), value.version)


def seconds_since(time: int, now: int) -> float:
    return (now - time) / SECOND
