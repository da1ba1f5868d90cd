"""Jobs: unique roots, children, statuses, progress, dependents, stale jobs, interrupt, cleanup."""

import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ackflow
from ackflow import Session, VirtualClock
from ackflow.errors import AckflowError, InvalidArgument
from ackflow.worker import (
    JobCannotBeStarted,
    JobNotFound,
    JobRun,
    Jobs,
    JobStale,
    Middleware,
    RunningJob,
)
from ackflow.worker.coordination.job_records import root_progress, root_status


@pytest.fixture
def jobs(q: Session) -> Jobs:
    return Jobs(q)


# Oro's calculator: what is left decides before what has ended.
STATUS = [
    ({"new": 2}, "new"),
    ({"new": 1, "success": 1}, "running"),
    ({"running": 1}, "running"),
    ({"failed_redelivered": 1}, "running"),
    ({"failed_redelivered": 1, "failed": 3}, "running"),
    ({"success": 3}, "success"),
    ({"success": 3, "failed": 1}, "failed"),
    ({"success": 3, "failed": 1, "cancelled": 1}, "cancelled"),
    ({"success": 1, "stale": 1}, "running"),
    ({"success": 3, "running": 0}, "success"),
]


@pytest.mark.parametrize(("counts", "status"), STATUS)
def test_the_status_of_a_root_follows_from_its_children(
    counts: dict[str, int], status: str
) -> None:
    assert root_status(counts) == status


@pytest.mark.parametrize(
    ("counts", "progress"),
    [({}, 0), ({"new": 3}, 0), ({"success": 1, "failed": 1, "new": 1}, 0.6667), ({"failed": 2}, 1)],
)
def test_progress_is_the_part_that_succeeded_or_failed(
    counts: dict[str, int], progress: float
) -> None:
    assert root_progress(counts) == progress


@pytest.mark.parametrize(("result", "status"), [(True, "success"), ("x", "success"), (0, "failed")])
def test_a_true_result_is_success_and_a_false_one_is_failure(
    jobs: Jobs, result: object, status: str
) -> None:
    assert jobs.run_unique("owner", "import", lambda job: result) == result
    (root,) = jobs.roots()
    assert (root.status, root.progress) == (status, 1.0)
    assert root.stopped_at is not None
    assert jobs.children(root.id)[0].status == status


def test_a_job_that_raises_is_to_be_run_again_by_the_same_owner(jobs: Jobs) -> None:
    def fail(job: RunningJob) -> bool:
        job.progress(0.4, {"page": 7})
        raise KeyError("broken")

    with pytest.raises(KeyError):
        jobs.run_unique("owner", "import", fail)
    (root,) = jobs.roots()
    child = jobs.children(root.id)[0]
    assert (root.status, root.stopped_at) == ("running", None)
    assert (child.status, child.progress, child.stopped_at) == ("failed_redelivered", 0.4, None)
    assert jobs.run_unique("other", "import", lambda job: True) is None
    assert jobs.run_unique("owner", "import", lambda job: job.data["page"]) == 7
    assert jobs.get(root.id).status == "success"


def test_a_name_is_free_again_when_its_root_has_stopped(jobs: Jobs) -> None:
    def nested(job: RunningJob) -> bool:
        assert jobs.run_unique("b", "import", lambda job: True) is None
        assert jobs.create_unique("b", "import") is None
        return True

    assert jobs.run_unique("a", "import", nested) is True
    assert jobs.run_unique("b", "import", lambda job: True) is True
    assert {root.owner for root in jobs.roots()} == {"a", "b"}


def test_an_owner_whose_job_has_ended_does_not_run_it_again(jobs: Jobs) -> None:
    ran: list[int] = []
    for result, expected in ((True, True), (False, False)):
        name = f"job {result}"
        jobs.run_unique(name, name, lambda job, result=result: result)
        assert jobs.run_unique(name, name, lambda job: ran.append(1) or True) is expected
    assert ran == []
    with pytest.raises(InvalidArgument, match="has a job already"):
        jobs.run_unique("job True", "another", lambda job: True)


def test_children_are_created_with_their_messages_and_the_root_waits_for_them(
    q: Session, jobs: Jobs
) -> None:
    def split(job: RunningJob) -> bool:
        for part in range(3):
            job.create_delayed(f"part {part}", lambda t, child: t.push("parts", {"job": child.id}))
        return True

    jobs.run_unique("owner", "import", split)
    (root,) = jobs.roots()
    assert (root.status, root.progress) == ("running", 0.25)
    assert root.counts["new"] == 3
    for message, result in zip(q.pop("parts", batch=9)[::-1], (True, True, False), strict=True):
        id = message.data["job"]
        assert jobs.run_delayed(id, lambda job, result=result: result, message=message) is result
    root = jobs.get(root.id)
    assert (root.status, root.progress) == ("failed", 1.0)
    assert q.group_stats("parts").counts.done == 2
    assert q.group_stats("parts").counts.dead == 1


def test_a_child_that_could_not_be_sent_does_not_exist(q: Session, jobs: Jobs) -> None:
    def split(job: RunningJob) -> bool:
        with pytest.raises(InvalidArgument):
            job.create_delayed("part", lambda t, child: t.push("", child.id))
        return True

    jobs.run_unique("owner", "import", split)
    assert jobs.roots()[0].counts == {"new": 0, "running": 0, "success": 1}


def test_a_job_starts_from_new_or_failed_redelivered_only(jobs: Jobs) -> None:
    def again(job: RunningJob) -> bool:
        with pytest.raises(JobCannotBeStarted):
            jobs.run_delayed(job.id, lambda job: True)
        return True

    jobs.run_unique("owner", "import", again)
    with pytest.raises(JobNotFound):
        jobs.run_delayed("nothing.000001", lambda job: True)
    with pytest.raises(InvalidArgument, match="is a root"):
        jobs.run_delayed(jobs.roots()[0].id, lambda job: True)


def test_interrupt_cancels_what_has_not_begun_and_running_children_go_on(jobs: Jobs) -> None:
    seen: list[bool] = []

    def run(job: RunningJob) -> bool:
        for part in range(3):
            job.create_delayed(f"part {part}")
        seen.append(job.interrupted)
        jobs.interrupt(job.root_id)
        seen.append(job.interrupted)
        assert jobs.get(job.root_id).stopped_at is None
        assert jobs.run_unique("other", "import", lambda job: True) is None
        assert job.create_delayed("too late").status == "cancelled"
        return True

    assert jobs.run_unique("owner", "import", run) is True
    (root,) = jobs.roots()
    assert seen == [False, True]
    assert (root.status, root.interrupted) == ("cancelled", True)
    assert root.stopped_at is not None
    assert [c.status for c in jobs.children(root.id)] == ["success", *["cancelled"] * 4]
    assert jobs.run_delayed(f"{root.id}.000002", lambda job: True) is None
    assert jobs.run_unique("other", "import", lambda job: True) is True


def test_a_message_that_never_ran_its_job_cancels_it(jobs: Jobs) -> None:
    jobs.create_unique("owner", "import")
    assert jobs.cancel_if_new("owner")
    assert not jobs.cancel_if_new("owner")
    assert not jobs.cancel_if_new("nobody")
    assert jobs.roots()[0].status == "cancelled"
    assert jobs.run_unique("owner", "import", lambda job: True) is None


def test_a_rejected_message_fails_its_child(jobs: Jobs) -> None:
    jobs.create_unique("owner", "import")
    (root,) = jobs.roots()
    assert jobs.fail(f"{root.id}.000001").status == "failed"
    assert jobs.get(root.id).status == "failed"


STALE: list[tuple[Any, str, bool]] = [
    (100, "import", True),
    (None, "import", False),
    ({"default": 100}, "import", True),
    ({"import": 100}, "import", True),
    ({"import": 100}, "import.users", True),
    ({"import": 100}, "import:users.eu", True),
    ({"import": 100}, "imports", False),
    ({"import": 100, "import.users": None}, "import.users.eu", False),
    ({"default": 1, "import": 1000}, "import.users", False),
]


@pytest.mark.parametrize(("limits", "name", "stale"), STALE)
def test_a_root_that_is_not_active_any_more_is_replaced(
    q: Session, clock: VirtualClock, limits: Any, name: str, stale: bool
) -> None:
    jobs = Jobs(q, stale_after=limits)
    found: list[object] = []

    def hang(job: RunningJob) -> bool:
        clock.advance(100)  # the new root is created later
        found.append(jobs.run_unique("new", name, lambda job: True))
        return True

    if stale:
        with pytest.raises(JobStale):
            jobs.run_unique("old", name, hang)
        old = jobs.roots()[1]
        assert (old.status, jobs.children(old.id)[0].status) == ("stale", "stale")
    else:
        jobs.run_unique("old", name, hang)
    assert found == [True if stale else None]


def test_a_root_that_was_active_under_a_clock_that_was_ahead_becomes_stale_in_time(
    q: Session, clock: VirtualClock
) -> None:
    jobs, years = Jobs(q, stale_after=100), 10 * 365 * 86_400.0
    found: list[object] = []

    def hang(job: RunningJob) -> bool:
        clock.step(-years)
        for _ in range(2):
            found.append(jobs.run_unique("new", "import", lambda job: True))
            clock.advance(101)
        return True

    clock.step(years)
    with pytest.raises(JobStale):
        jobs.run_unique("old", "import", hang)
    assert found == [None, True]


def test_a_root_with_children_that_are_new_is_never_stale(q: Session, clock: VirtualClock) -> None:
    jobs = Jobs(q, stale_after=10)
    jobs.create_unique("old", "import")
    clock.advance(1_000)
    assert jobs.run_unique("new", "import", lambda job: True) is None


def test_a_root_that_is_run_again_and_again_is_replaced(q: Session, clock: VirtualClock) -> None:
    jobs = Jobs(q, max_redelivery_seconds=50)
    for _ in range(3):
        with pytest.raises(KeyError):
            jobs.run_unique("old", "import", lambda job: {}["x"])
        clock.advance(30)
    assert jobs.run_unique("new", "import", lambda job: True) is True
    with pytest.raises(JobStale):
        jobs.run_unique("old", "import", lambda job: True)


@pytest.mark.one_database
def test_a_child_whose_worker_died_starts_again_when_the_lease_is_over(
    q: Session, jobs: Jobs, clock: VirtualClock
) -> None:
    jobs.create_unique("owner", "import")
    id = jobs.roots()[0].id + ".000001"
    q.push("work", id)
    (dead,) = q.pop("work", lease_seconds=10)
    jobs._start(id, dead)  # and its process is killed here
    with pytest.raises(JobCannotBeStarted):
        jobs.run_delayed(id, lambda job: True)
    clock.advance(10)
    (message,) = q.pop("work")
    assert jobs.run_delayed(id, lambda job: True, message=message) is True
    assert q.group_stats("work").counts.done == 1


@pytest.mark.one_database
def test_a_run_whose_lease_was_lost_records_nothing(
    q: Session, jobs: Jobs, clock: VirtualClock
) -> None:
    q.push("work", 1)

    def slow(job: RunningJob) -> bool:
        clock.advance(10)
        (again,) = q.pop("work")
        jobs.run_unique(again, "import", lambda job: True)
        return False

    (message,) = q.pop("work", lease_seconds=10)
    with pytest.raises(JobStale):
        jobs.run_unique(message, "import", slow)
    assert jobs.roots()[0].status == "success"
    assert q.group_stats("work").counts.done == 1


@pytest.mark.one_database
def test_a_requeued_message_is_the_same_owner(q: Session, jobs: Jobs) -> None:
    q.push("work", 1)
    (message,) = q.pop("work")
    with pytest.raises(KeyError):
        jobs.run_unique(message, "import", lambda job: {}["x"])
    message.requeue()
    (again,) = q.pop("work")
    assert again.id != message.id
    assert jobs.run_unique(again, "import", lambda job: True) is True
    assert len(jobs.roots()) == 1


def test_roots_are_listed_by_status_in_pages_and_counted(jobs: Jobs, clock: VirtualClock) -> None:
    for n in range(5):
        jobs.run_unique(f"o{n}", f"job {n}", lambda job, n=n: n % 2)
        clock.advance(1)
    jobs.create_unique("last", "last")
    assert [job.name for job in jobs.roots(limit=2)] == ["last", "job 4"]
    second = jobs.roots(limit=2)[-1].id
    assert [job.name for job in jobs.roots(limit=2, after=second)] == ["job 3", "job 2"]
    failed = jobs.roots(status="failed", limit=2)
    assert [job.name for job in failed] == ["job 4", "job 2"]
    more = jobs.roots(status="failed", limit=2, after=failed[-1].id)
    assert [job.name for job in more] == ["job 0"]
    counts = {name: n for name, n in jobs.counts().items() if n}
    assert counts == {"new": 1, "failed": 3, "success": 2}
    with pytest.raises(InvalidArgument):
        jobs.roots(status="done")  # type: ignore[arg-type]


def test_cleanup_removes_old_roots_with_everything_of_theirs(
    q: Session, jobs: Jobs, clock: VirtualClock
) -> None:
    jobs.run_unique("a", "good", lambda job: bool(job.create_delayed("part")))
    jobs.run_delayed(jobs.roots()[0].id + ".000002", lambda job: True)
    jobs.run_unique("b", "bad", lambda job: False)
    jobs.create_unique("c", "waits")
    day = 86_400
    clock.advance(13 * day)
    assert jobs.cleanup().roots == 0
    clock.advance(1 * day)
    dry = jobs.cleanup(dry_run=True)
    assert (dry.roots, dry.children) == (1, 2)
    assert jobs.cleanup().roots == 1
    clock.advance(16 * day)
    assert jobs.cleanup().roots == 1
    assert [job.name for job in jobs.roots()] == ["waits"]
    assert len(q.values("jobs/")) == 5  # the root, its child, its status, its name, its owner


def test_an_asynchronous_function_is_refused_and_not_taken_for_success(
    q: Session, jobs: Jobs
) -> None:
    async def run(job: RunningJob) -> bool:
        return True

    with pytest.raises(InvalidArgument, match="asynchronous"):
        jobs.run_unique("owner", "import", run)
    assert jobs.roots() == []
    with pytest.raises(InvalidArgument, match="asynchronous"):
        jobs.run_unique("owner", "import", lambda job: run(job))
    assert jobs.roots()[0].status == "running"


class Notes(Middleware):
    """Writes down what the hooks of jobs are told."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        self.seen: list[tuple[Any, ...]] = []

    def before_job(self, run: JobRun) -> None:
        run.notes["stored"] = self.jobs.get(run.job.id).status
        self.seen.append(("before", run.job.name, run.status))

    def after_job(self, run: JobRun) -> None:
        stored = run.notes["stored"], self.jobs.get(run.job.id).status
        raised = None if run.exception is None else type(run.exception)
        assert run.elapsed >= 0
        self.seen.append(("after", run.status, stored, raised))


class Broken(Middleware):
    def before_job(self, run: JobRun) -> None:
        raise OSError("before")

    def after_job(self, run: JobRun) -> None:
        raise OSError("after")


def test_hooks_are_called_when_a_job_was_started_and_when_its_end_is_stored(
    q: Session, jobs: Jobs, caplog: pytest.LogCaptureFixture
) -> None:
    notes = Notes(jobs)
    hooked = Jobs(q, middleware=[Broken(), notes])

    def fail(job: RunningJob) -> bool:
        raise KeyError("broken")

    hooked.run_unique("a", "good", lambda job: True)
    hooked.run_unique("b", "bad", lambda job: False)
    with pytest.raises(KeyError):
        hooked.run_unique("c", "raises", fail)
    hooked.run_unique("a", "good", lambda job: True)  # has ended: it is not run again
    hooked.run_unique("d", "raises", lambda job: True)  # the name is taken
    assert notes.seen == [
        ("before", "good", None), ("after", "success", ("running", "success"), None),
        ("before", "bad", None), ("after", "failed", ("running", "failed"), None),
        ("before", "raises", None),
        ("after", "failed_redelivered", ("running", "failed_redelivered"), KeyError),
    ]  # fmt: skip
    assert caplog.text.count("before_job of") == caplog.text.count("after_job of") == 3


@pytest.mark.one_database
def test_the_hook_after_a_run_that_lost_its_lease_is_told_so(
    q: Session, clock: VirtualClock
) -> None:
    runs: list[JobRun] = []

    class Keep(Middleware):
        def after_job(self, run: JobRun) -> None:
            runs.append(run)

    q.push("imports", {})
    (message,) = q.pop("imports", lease_seconds=10)

    def slow(job: RunningJob) -> bool:
        clock.advance(11)
        return True

    with pytest.raises(AckflowError) as raised:
        Jobs(q, middleware=[Keep()]).run_unique(message, "import", slow)
    assert [(run.status, run.error) for run in runs] == [(None, raised.value)]


@pytest.mark.parametrize("bad", ["", "x" * 201, 7, None, "a\nb"])
def test_a_bad_name_or_owner_changes_nothing(q: Session, jobs: Jobs, bad: Any) -> None:
    with pytest.raises(InvalidArgument):
        jobs.run_unique(bad, "name", lambda job: True)
    with pytest.raises(InvalidArgument):
        jobs.run_unique("owner", bad, lambda job: True)
    assert q.values("jobs/") == []


RACE = """
import sys, ackflow
from ackflow.worker import Jobs
with ackflow.connect(sys.argv[1], upkeep=False) as q:
    jobs = Jobs(q)
    ran = jobs.run_unique(sys.argv[2], "import", lambda job: sys.stdin.readline() or True)
    print("no" if ran is None else "ran", flush=True)
"""
CHILDREN = """
import sys, ackflow
from ackflow.worker import Jobs
with ackflow.connect(sys.argv[1], upkeep=False) as q:
    jobs = Jobs(q)
    while batch := q.pop("parts"):
        for message in batch:
            jobs.run_delayed(message.data, lambda job: True, message=message)
"""


def test_of_several_processes_one_runs_the_job(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    ackflow.connect(path).close()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, path, f"owner {n}"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )
        for n in range(3)
    ]  # fmt: skip
    said: list[str] = []
    losers = []
    with ackflow.connect(path, upkeep=False) as q:
        pipes = {p.stdout.fileno(): p for p in processes if p.stdout}
        while len(losers) < 2:
            ready, _, _ = select.select(list(pipes), [], [], 60)
            assert ready
            for one in ready:
                losers.append(pipes.pop(one))
        (winner,) = pipes.values()
        assert len(Jobs(q).roots()) == 1
        for process in (*losers, winner):
            said.append(process.communicate("go\n", timeout=60)[0].strip())
    assert said == ["no", "no", "ran"]


@pytest.mark.outer
def test_children_that_end_at_the_same_time_are_all_counted(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    with ackflow.connect(path, upkeep=False) as q:
        jobs = Jobs(q)

        def split(job: RunningJob) -> bool:
            for part in range(60):
                job.create_delayed(f"part {part}", lambda t, child: t.push("parts", child.id))
            job.add_dependent("after", "done")
            return True

        jobs.run_unique("owner", "import", split)
        processes = [subprocess.Popen([sys.executable, "-c", CHILDREN, path]) for _ in range(3)]
        assert [process.wait(120) for process in processes] == [0, 0, 0]
        (root,) = jobs.roots()
        assert (root.status, root.counts["success"], root.progress) == ("success", 61, 1.0)
        assert [m.data for m in q.pop("after", batch=9)] == ["done"]


KILLED = """
import sys, time, ackflow
from ackflow.worker import Jobs
q = ackflow.connect(sys.argv[1], upkeep=False)
(message,) = q.pop("work", lease_seconds=2)

def run(job):
    job.progress(0.5, {"page": 3})
    job.add_dependent("after", 1)
    print("runs", flush=True)
    time.sleep(60)

Jobs(q).run_unique(message, "import", run)
"""


def test_a_job_of_a_killed_process_goes_on_in_another(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    with ackflow.connect(path) as q:
        jobs = Jobs(q)
        q.push("work", 1)
        process = subprocess.Popen([sys.executable, "-c", KILLED, path], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"runs\n"
        process.kill()
        process.wait()
        process.stdout.close()
        assert jobs.run_unique("other", "import", lambda job: True) is None
        (message,) = q.pop("work", wait=20)
        assert jobs.run_unique(message, "import", lambda job: job.data["page"]) == 3
        (root,) = jobs.roots()
        assert (root.status, root.counts["success"]) == ("success", 1)
        assert [m.data for m in q.pop("after", batch=9)] == [1]
        assert q.group_stats("work").counts.done == 1
