"""Jobs: work that is known by a name, runs once at a time, and may have many parts.

    jobs = Jobs(session)

    def reindex(job):
        for part in parts:
            job.create_delayed(f"part {part}", lambda t, child: t.push("parts", {"job": child.id}))
        return True

    jobs.run_unique(message, "reindex", reindex)     # None: it runs already

    jobs.run_delayed(message.data["job"], work, message=message)     # in another worker

A root job is as far as its children are. A child succeeds if its function returns a true value, fails
if it returns a false one, and is to be run again if it raises. With `message`, the end of the job and
the ack (or reject) of the message are one transaction, and a child whose worker died can be started
again as soon as the lease of its message is over.

In a handler of a worker, the status that the handler returns settles its message. What the function of
the job sends through the worker is committed with the end of the job, so that it is sent once: a
redelivered message finds its job ended, and does not run it again.
"""

import hashlib
import inspect
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct

from ... import validate
from ...errors import AckflowError, InvalidArgument, LeaseLost
from ...session.messages import Delivery
from ...session.session import Session
from ...session.transaction import Operations
from ...validate import Duration
from ..hooks import Hooks
from ..sending import Apart, ProcessorSession, current
from .job_records import (
    ACTIVE,
    CHILD_HEADER,
    MOST_NAME,
    NAME,
    OWNER,
    ROOT,
    RUN,
    STARTABLE,
    STATUS,
    STATUSES,
    Dependent,
    Job,
    JobCannotBeStarted,
    JobRecords,
    JobStale,
    JobStatus,
    Loaded,
    StaleRule,
    checked_name,
    dependent_headers,
    key_of,
    loaded,
    new_id,
    seconds_since,
)
from .running_job import JobRun, RunningJob, Send

T = TypeVar("T")
log = logging.getLogger("ackflow.worker")
DAY = 86_400.0
KEEP_SUCCESS, KEEP_FAILED = 14 * DAY, 30 * DAY
SLICE = 200  # children that one transaction changes
PAGE = 200
ASYNC = "the function of a job must not be asynchronous: nothing would await it"


class Cleaned(Struct):
    """How many root jobs and children a cleanup removed, or would remove."""

    roots: int = 0
    children: int = 0


class Jobs:
    """Jobs on the database of a session; every worker may have its own.

    `stale_after`: a root that was inactive for this time is replaced by the next one of its name,
    instead of blocking it: seconds for all jobs, or by name or by a prefix that ends before a `.` or
    `:`; `default` is for the others. `max_redelivery_seconds` does the same for a root whose
    children are run again and again.

    `middleware`: parts with the hooks `before_job` and `after_job`; `worker.jobs()` gives those of
    the worker.
    """

    def __init__(
        self,
        session: Session,
        *,
        stale_after: Duration | Mapping[str, Duration | None] | None = None,
        max_redelivery_seconds: Duration | None = None,
        middleware: Sequence[Any] = (),
    ) -> None:
        self._records = JobRecords(session)
        self._hooks = Hooks(middleware)
        self._stale = StaleRule(stale_after, max_redelivery_seconds)

    # running

    def create_unique(
        self, owner: str | Delivery, name: str, *, properties: Mapping[str, str] | None = None
    ) -> Job | None:
        """Create a root with one child, or return that of this owner; None: the name is taken."""
        root = self._find_or_create(_owner(owner), checked_name(name, "name"), properties)
        return None if root is None else root.job

    def run_unique(
        self,
        owner: str | Delivery,
        name: str,
        run: Callable[[RunningJob], T],
        *,
        message: Delivery | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> T | bool | None:
        """Run a function as a job of which there is one at a time under its name.

        Returns what the function returned, or None if it did not run: another owner has the name, or
        the job was cancelled. For an owner whose job has ended already, returns True if it succeeded
        and False if it failed. A message as `owner` is also used as `message`. The messages that
        depend on the job get its `properties` as headers; those of a root that exists stay.
        """
        if inspect.iscoroutinefunction(run):
            raise InvalidArgument(ASYNC)
        if isinstance(owner, Delivery) and message is None:
            message = owner
        root = self._find_or_create(_owner(owner), checked_name(name, "name"), properties)
        if root is None:
            return None
        return self.run_delayed(f"{root.job.id}.000001", run, message=message)

    def run_delayed(
        self, id: str, run: Callable[[RunningJob], T], *, message: Delivery | None = None
    ) -> T | bool | None:
        """Run a function as a child job that exists.

        Returns what the function returned; None if the job was cancelled; True or False if it has
        ended already. Raises JobCannotBeStarted while it runs elsewhere, JobStale if it was replaced.
        With `message`, a result that is true acks it and one that is false rejects it, in the
        transaction that ends the job. The message of the handler that is running in a worker is
        left to the status that the handler returns.
        """
        if inspect.iscoroutinefunction(run):
            raise InvalidArgument(ASYNC)
        child = self._start(id, message)
        if child.status != "running":
            return {"success": True, "failed": False}.get(child.status)
        one = JobRun(RunningJob(self, child))
        try:
            return self._run(child, one, run, message)
        finally:
            self._hooks.call("after_job", one)

    def create_child(self, root_id: str, name: str, send: Send | None = None) -> Job:
        """Create a child of a root that has not stopped; see `RunningJob.create_delayed`."""
        checked_name(name, "name")

        def attempt(t: Operations) -> Job:
            root = self._records.get(_root(root_id))
            if root.job.stopped_at is not None:
                raise JobCannotBeStarted(f"job {root_id} has stopped and takes no more children")
            number = sum(root.job.counts.values()) + 1
            now = self._records.now()
            child = Job(
                id=f"{root.job.id}.{number:06}", name=name, created_at=now, last_active_at=now
            )
            if root.job.interrupted:
                self._records.move(t, root, Loaded(child, 0), "cancelled")
                return child
            self._records.move(t, root, Loaded(child, 0), "new")
            if send is not None:
                with t.headers({CHILD_HEADER: child.id}):
                    send(t, child)
            return child

        return self._records.change(attempt)

    def record_progress(self, job: Job, part: float, data: Mapping[str, Any] | None) -> None:
        """Write the progress of a running child."""
        if isinstance(part, bool) or not isinstance(part, int | float) or not 0 <= part <= 1:
            raise InvalidArgument(f"progress must be from 0 to 1, got {part!r}")

        def attempt(t: Operations) -> None:
            child = self._running(job)
            child.job.progress = round(float(part), 4)
            child.job.last_active_at = self._records.now()
            if data is not None:
                child.job.data = dict(data)
            child.put(t)

        self._records.change(attempt)

    def add_dependent(self, root_id: str, dependent: Dependent) -> None:
        """Add a message that is pushed when a root stops."""

        def attempt(t: Operations) -> None:
            root = self._records.get(_root(root_id))
            if root.job.stopped_at is not None:
                raise JobCannotBeStarted(f"job {root_id} has stopped; push the message itself")
            Operations(None).push(
                dependent.queue, dependent.data, priority=dependent.priority,
                headers=dependent.headers or None,
            )  # fmt: skip
            dependent_headers(root.job, dependent)
            root.job.dependents.append(dependent)
            root.put(t)

        self._records.change(attempt)

    def set_properties(self, root_id: str, properties: Mapping[str, str]) -> None:
        """Replace the properties of a root that has not stopped."""
        given = validate.headers(properties)

        def attempt(t: Operations) -> None:
            root = self._records.get(_root(root_id))
            if root.job.stopped_at is not None:
                raise JobCannotBeStarted(f"job {root_id} has stopped; its dependents are sent")
            root.job.properties = given
            for one in root.job.dependents:
                dependent_headers(root.job, one)
            root.put(t)

        self._records.change(attempt)

    # ending from outside

    def interrupt(self, id: str) -> Job:
        """Cancel a root: children that have not started are cancelled, running ones continue."""
        root_id = _root(id)

        def mark(t: Operations) -> Job:
            root = self._records.get(root_id)
            if root.job.stopped_at is None and not root.job.interrupted:
                root.job.interrupted = True
                self._records.save_root(t, root)
            return root.job

        self._records.change(mark)
        self._move_children(root_id, STARTABLE, "cancelled")
        return self.get(root_id)

    def fail(self, id: str, *, running: bool = True) -> Job:
        """Mark a child as failed that will not be run: its message was rejected.

        Without `running`, a child that is being run stays as it is.
        """
        which = ACTIVE if running else STARTABLE

        def attempt(t: Operations) -> Job:
            child, root = self._records.get(id), self._records.get(_root(id))
            if child.job.is_root:
                raise InvalidArgument(f"job {id} is a root; interrupt it instead")
            if child.job.status in which:
                self._records.move(t, root, child, "failed")
            return child.job

        return self._records.change(attempt)

    def cancel_if_new(self, owner: str | Delivery) -> bool:
        """Cancel the job of an owner that never began; returns whether there was one."""
        root_id, _ = self._records.pointer(OWNER + _owner(owner))
        found = None if root_id is None else self._records.find(root_id)
        if found is None or found.job.status != "new":
            return False
        self.interrupt(found.job.id)
        return True

    # looking

    def get(self, id: str) -> Job:
        """One job by its id, root or child."""
        return self._records.get(id).job

    def roots(
        self, *, status: JobStatus | None = None, limit: int = 100, after: str | None = None
    ) -> list[Job]:
        """Root jobs, the newest first; `after` is the id of the last one of the page before."""
        if status is None:
            start = None if after is None else key_of(_root(after))
            page = self._records.page(ROOT, limit, start, True)
            return [loaded(value).job for value in page]
        prefix = f"{STATUS}{validate.one_of(status, 'status', STATUSES)}/"
        start = None if after is None else prefix + _root(after)
        page = self._records.page(prefix, limit, start, True)
        found = [self._records.find(value.key[len(prefix) :]) for value in page]
        return [one.job for one in found if one is not None]

    def children(self, root_id: str, *, limit: int = 100, after: str | None = None) -> list[Job]:
        """The children of a root, in order of creation."""
        start = None if after is None else key_of(after)
        page = self._records.page(f"jobs/child/{_root(root_id)}/", limit, start, False)
        return [loaded(value).job for value in page]

    def counts(self) -> dict[str, int]:
        """The number of root jobs by status."""
        return {
            status: sum(1 for _ in self._pages(f"{STATUS}{status}/", 1_000)) for status in STATUSES
        }

    def cleanup(
        self,
        *,
        success: Duration = KEEP_SUCCESS,
        failed: Duration = KEEP_FAILED,
        dry_run: bool = False,
    ) -> Cleaned:
        """Remove roots that stopped so long ago, with their children: those that succeeded after 14
        days, all others after 30."""
        keep = validate.seconds(success, "success"), validate.seconds(failed, "failed")
        now, cleaned = self._records.now(), Cleaned()
        for value in self._pages(ROOT, PAGE):
            job = loaded(value).job
            if seconds_since(job.created_at, now) < min(keep):
                break  # roots come in the order of their creation
            if job.stopped_at is None:
                continue
            if seconds_since(job.stopped_at, now) >= keep[job.status != "success"]:
                cleaned.roots += 1
                cleaned.children += sum(job.counts.values())
                if not dry_run:
                    self._remove(job)
        return cleaned

    # inside

    def _find_or_create(
        self, owner: str, name: str, properties: Mapping[str, str] | None
    ) -> Loaded | None:
        given = validate.headers(properties or {})
        while True:
            found = self._records.change(partial(self._try_create, owner, name, given))
            if not isinstance(found, str):
                return found
            self._replace_stale(found)

    def _try_create(
        self, owner: str, name: str, properties: dict[str, str], t: Operations
    ) -> Loaded | str | None:
        """The root of an owner, found or made; None: the name is taken; an id: by a stale root."""
        known, owner_version = self._records.pointer(OWNER + owner)
        if known is not None and (root := self._records.find(known)) is not None:
            if root.job.name != name:
                raise InvalidArgument(f"the owner {owner} has a job already: {root.job.name}")
            return root
        taken, name_version = self._records.pointer(NAME + name)
        if taken is not None and (other := self._records.find(taken)) is not None:
            if other.job.active:
                self._records.correct_times(t, other)
                return other.job.id if self._stale.applies(other.job, self._records.now()) else None
            if other.job.stopped_at is None:
                return None  # interrupted, and some children still run
        now = self._records.now()
        job = Job(
            id=new_id(now), name=name, owner=owner, created_at=now, last_active_at=now,
            properties=properties,
        )  # fmt: skip
        root = Loaded(job, 0)
        child = Job(id=f"{root.job.id}.000001", name=name, created_at=now, last_active_at=now)
        t.put(OWNER + owner, root.job.id, expect=owner_version)
        t.put(NAME + name, root.job.id, expect=name_version)
        self._records.move(t, root, Loaded(child, 0), "new")
        return root

    def _replace_stale(self, id: str) -> None:
        def attempt(t: Operations) -> None:
            root = self._records.get(id)
            if root.job.active:
                root.job.status = "stale"
                self._records.save_root(t, root)

        self._records.change(attempt)
        self._move_children(id, ACTIVE, "stale")

    def _start(self, id: str, message: Delivery | None) -> Job:
        """Start a child, or return it as it is if it has ended or is cancelled."""

        def attempt(t: Operations) -> Job:
            child, root = self._records.get(id), self._records.get(_root(id))
            job = child.job
            if job.is_root:
                raise InvalidArgument(f"job {id} is a root; its children are run")
            if job.status == "stale" or root.job.status == "stale":
                raise JobStale(f"job {id} was replaced, because it was not active for too long")
            if job.status in ("success", "failed", "cancelled"):
                return job
            if root.job.interrupted and job.status in STARTABLE:
                self._records.move(t, root, child, "cancelled")
                return job
            if job.status == "running" and not self._abandoned(job):
                raise JobCannotBeStarted(f"job {id} ({job.name}) is running")
            job.run, job.leased = secrets.token_hex(8), message is not None
            job.started_at, job.stopped_at = self._records.now(), None
            if message is not None:
                t.put(RUN + id, job.run, expect=0, lease=message)
            self._records.move(t, root, child, "running")
            return job

        return self._records.change(attempt)

    def _run(
        self, child: Job, one: JobRun, run: Callable[[RunningJob], T], message: Delivery | None
    ) -> T:
        """Run the function of a child that was started, and record how it ended."""
        began = time.perf_counter()
        session, own = self._in_handler(message)
        try:
            self._hooks.call("before_job", one)
            began = time.perf_counter()
            with nullcontext(Apart()) if session is None else session.apart() as sent:
                result = run(one.job)
            if inspect.iscoroutine(result):
                result.close()
                raise InvalidArgument(ASYNC)
        except BaseException as error:
            one.elapsed, one.exception = time.perf_counter() - began, error
            try:
                self._end(child, "failed_redelivered")
                one.status = "failed_redelivered"
            except AckflowError as reason:  # what the function raised is more important
                one.error = reason
                log.warning(
                    "job %s could not be marked as failed_redelivered: %s", child.id, reason
                )
            raise
        one.elapsed = time.perf_counter() - began
        status: JobStatus = "success" if result else "failed"
        try:
            self._end(child, status, None if own else message, sent.operations)
        except BaseException as error:
            one.error = error
            if own and message is not None and isinstance(error, LeaseLost):
                error.details["message_id"] = message.id
            raise
        one.status = status
        return result

    def _in_handler(self, message: Delivery | None) -> tuple[ProcessorSession | None, bool]:
        """The session of the handler of a worker that runs the job, if it is on this database; and
        whether the message is the handler's own, which the handler settles."""
        context = current()
        if context is None:
            return None, False
        own = context.message is message  # its lease was found on this database
        here = own or context.session.outside is self._records.session
        return (context.session if here else None), own

    def _abandoned(self, job: Job) -> bool:
        """Whether the lease under which a child was started is over."""
        return job.leased and self._records.session.value(RUN + job.id) is None

    def _lease_of(self, job: Job) -> int:
        """The version of the value that ends with the lease of a run; LeaseLost if it has ended."""
        found = self._records.session.value(RUN + job.id)
        if found is None:
            raise LeaseLost(f"the lease of the message that runs job {job.id} is over")
        return found.version

    def _running(self, job: Job) -> Loaded:
        """A child that is still in the same run, or JobStale."""
        child = self._records.get(job.id)
        if (child.job.status, child.job.run) != ("running", job.run):
            raise JobStale(f"job {job.id} is {child.job.status}, and this run of it is over")
        return child

    def _end(
        self,
        job: Job,
        status: JobStatus,
        message: Delivery | None = None,
        sent: Operations | None = None,
    ) -> None:
        """Record how a run ended, with what it sent, and settle its message if one is given."""

        def attempt(t: Operations) -> None:
            child, root = self._running(job), self._records.get(job.root_id)
            if sent is not None:
                t.include(sent)
            if job.leased:
                t.delete(RUN + job.id, expect=self._lease_of(job))
            if message is not None and status == "success":
                t.ack(message)
            elif message is not None:
                t.reject(message, f"job {job.id} ({job.name}) returned a false value")
            self._records.move(t, root, child, status)

        self._records.change(attempt, given=0 if sent is None else sent.count)

    def _move_children(self, root_id: str, which: tuple[str, ...], status: JobStatus) -> None:
        """Move all children of some statuses to another one, in slices."""
        after: str | None = None
        while page := self._records.page(f"jobs/child/{root_id}/", SLICE, after, False):
            after = page[-1].key
            some = [loaded(value).job.id for value in page]
            self._records.change(partial(self._move_some, root_id, some, which, status))

    def _move_some(
        self, root_id: str, ids: list[str], which: tuple[str, ...], status: JobStatus, t: Operations
    ) -> None:
        root, changed = self._records.get(root_id), False
        counts = root.job.counts
        for id in ids:
            child = self._records.get(id)
            if child.job.status in which:
                counts[child.job.status] -= 1
                counts[status] = counts.get(status, 0) + 1
                child.job.status, child.job.stopped_at = status, self._records.now()
                child.put(t)
                changed = True
        if changed:
            self._records.save_root(t, root)

    def _remove(self, root: Job) -> None:
        while page := self._records.page(f"jobs/child/{root.id}/", SLICE, None, False):
            with self._records.session.transaction() as t:
                for value in page:
                    t.delete(value.key)
        with self._records.session.transaction() as t:
            t.delete(ROOT + root.id).delete(f"{STATUS}{root.status}/{root.id}")
            if root.owner is not None:
                t.delete(OWNER + root.owner)

    def _pages(self, prefix: str, size: int) -> Iterator[Any]:
        after: str | None = None
        while page := self._records.page(prefix, size, after, False):
            yield from page
            after = page[-1].key


def _owner(owner: str | Delivery) -> str:
    """The name of an owner; a message is one by its transaction id, which a requeued copy keeps."""
    if isinstance(owner, Delivery):
        id = owner.transaction_id
        long = len(id.encode()) > MOST_NAME
        return hashlib.blake2b(id.encode(), digest_size=16).hexdigest() if long else id
    return checked_name(owner, "owner")


def _root(id: str) -> str:
    return validate.name(id, "job id").partition(".")[0]
