"""A running job: the argument of its function, and the argument of job hooks."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from ...session.transaction import Operations
from .job_records import Dependent, Job, JobStatus

if TYPE_CHECKING:
    from .jobs import Jobs

Send = Callable[[Operations, Job], Any]


class RunningJob:
    """The job that a function is run for; its only argument."""

    def __init__(self, jobs: "Jobs", job: Job) -> None:
        self._jobs = jobs
        self._job = job

    @property
    def id(self) -> str:
        """The id of the job."""
        return self._job.id

    @property
    def name(self) -> str:
        """The name of the job."""
        return self._job.name

    @property
    def root_id(self) -> str:
        """The id of the root job."""
        return self._job.root_id

    @property
    def interrupted(self) -> bool:
        """Whether the root was interrupted. A long function can check this from time to time."""
        return self._jobs.get(self.root_id).interrupted

    def create_delayed(self, name: str, send: Send | None = None) -> Job:
        """Create another child of the same root.

        `send(t, child)` adds the message that will run it to the transaction that creates it. It is
        called again if another process changed the root meanwhile.
        """
        return self._jobs.create_child(self.root_id, name, send)

    def progress(self, part: float, data: Mapping[str, Any] | None = None) -> None:
        """Record the progress, from 0 to 1, and the data that a later attempt needs to continue."""
        self._jobs.record_progress(self._job, part, data)

    @property
    def data(self) -> dict[str, Any]:
        """What `progress` recorded last, in this attempt or an earlier one."""
        return self._jobs.get(self.id).data

    @property
    def properties(self) -> dict[str, str]:
        """The properties of the root."""
        return self._jobs.get(self.root_id).properties

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Replace the properties of the root: the headers that all its dependents get."""
        self._jobs.set_properties(self.root_id, properties)

    def add_dependent(
        self, queue: str, data: Any, *, priority: int = 0, headers: Mapping[str, str] | None = None
    ) -> None:
        """Push a message when the root stops, whatever its status is then."""
        one = Dependent(queue, data, priority, dict(headers or {}))
        self._jobs.add_dependent(self.root_id, one)


class JobRun(Struct):
    """One run of a child job, as `before_job` and `after_job` see it.

    `status` is what was recorded: `success`, `failed` or `failed_redelivered`. It is None before the
    end, and after a run whose end could not be recorded; `error` then says why. `exception` is what
    the function raised, `elapsed` how many seconds it took.
    """

    job: RunningJob
    status: JobStatus | None = None
    elapsed: float = 0.0
    exception: BaseException | None = None
    error: BaseException | None = None
    notes: dict[Any, Any] = field(default_factory=dict)  # kept by middleware from before to after
