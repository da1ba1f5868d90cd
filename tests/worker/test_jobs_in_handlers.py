"""Jobs that the handlers of a worker run, and the messages of child jobs in a worker."""

import contextlib
import logging
import threading
from typing import Any

import pytest

import ackflow
from ackflow import Message
from ackflow.errors import TransactionFailed
from ackflow.testing import Harness
from ackflow.worker import (
    ACK,
    REJECT,
    REQUEUE,
    Jobs,
    ProcessorSession,
    RunningJob,
    Status,
    Worker,
)


@pytest.fixture
def jobs(h: Harness) -> Jobs:
    return Jobs(h.session)


def popped(h: Harness, queue: str) -> list[Any]:
    return [message.data for message in h.session.pop(queue, batch=100)]


def test_what_a_processor_sends_beside_its_job_goes_out_with_the_acknowledgement(
    worker: Worker, h: Harness, jobs: Jobs
) -> None:
    @worker.processor("work")
    def process(message: Message, session: ProcessorSession) -> Status:
        session.push("sent", "before")
        done = jobs.run_unique(message, "import", lambda job: session.push("sent", "job") or True)
        session.push("sent", "after")
        return ACK if done else REJECT

    worker.push("work", 1)
    h.drain()
    h.assert_job_status("import", "success")
    h.assert_unique_jobs_processed()
    assert sorted(popped(h, "sent")) == ["after", "before", "job"]
    counts = h.session.group_stats("work").counts
    assert (counts.done, counts.leased) == (1, 0)


def test_what_a_job_sends_goes_out_once_though_its_message_comes_again(
    worker: Worker, h: Harness, jobs: Jobs
) -> None:
    @worker.processor("work")
    def process(message: Message, session: ProcessorSession) -> Status:
        done = jobs.run_unique(message, "import", lambda job: session.push("sent", "job") or True)
        if not message.redelivered:
            h.clock.advance(60)  # the lease is over before the acknowledgement
        session.push("sent", "after")
        return ACK if done else REJECT

    worker.push("work", 1)
    h.drain(advance=True)
    h.assert_processed_status(ACK)
    assert sorted(popped(h, "sent")) == ["after", "job"]
    assert h.session.group_stats("work").counts.lag == 0


def test_what_a_job_of_another_owner_sends_goes_out_once_as_well(
    worker: Worker, h: Harness
) -> None:
    @worker.processor("work")
    def process(message: Message, session: ProcessorSession) -> Status:
        done = worker.jobs().run_unique(
            f"order {message.data}", "import", lambda job: session.push("sent", "job") or True
        )
        if not message.redelivered:
            h.clock.advance(60)
        return ACK if done else REJECT

    worker.push("work", 1)
    h.drain(advance=True)
    h.assert_processed_status(ACK)
    assert popped(h, "sent") == ["job"]


def test_jobs_of_another_database_leave_what_was_sent_to_the_acknowledgement(
    worker: Worker, h: Harness
) -> None:
    with ackflow.connect(":memory:") as other:

        @worker.processor("work")
        def process(message: Message, session: ProcessorSession) -> Status:
            Jobs(other).run_unique("me", "import", lambda job: session.push("sent", "job") or True)
            return ACK

        worker.push("work", 1)
        h.drain()
        assert other.queues() == []
    assert popped(h, "sent") == ["job"]


def test_a_conflict_of_what_a_job_sends_is_raised_at_once_and_the_job_is_run_again(
    worker: Worker, h: Harness, jobs: Jobs
) -> None:
    @worker.processor("work")
    def process(message: Message, session: ProcessorSession) -> Status:
        def work(job: RunningJob) -> bool:
            session.put("key", message.deliveries, expect=0 if message.redelivered else 7)
            return True

        return ACK if jobs.run_unique(message, "import", work) else REJECT

    worker.push("work", 1)
    with pytest.raises(TransactionFailed, match="version"):
        h.drain()
    h.drain(advance=True)
    h.assert_processed_status(ACK)
    h.assert_job_status("import", "success")
    value = h.session.value("key")
    assert value is not None
    assert value.data == 2


def test_a_job_that_lost_its_lease_sends_nothing(worker: Worker, h: Harness, jobs: Jobs) -> None:
    @worker.processor("work")
    def process(message: Message, session: ProcessorSession) -> Status:
        def slow(job: RunningJob) -> bool:
            session.push("sent", message.deliveries)
            if not message.redelivered:
                h.clock.advance(60)
            return True

        return ACK if jobs.run_unique(message, "import", slow) else REJECT

    worker.push("work", 1)
    h.drain(advance=True)  # and the consumer goes on
    h.assert_job_status("import", "success")
    assert popped(h, "sent") == [2]


def test_a_job_that_raises_sends_nothing_and_is_run_again(
    worker: Worker, h: Harness, jobs: Jobs
) -> None:
    @worker.processor("work")
    def process(message: Message, session: ProcessorSession) -> Status:
        def work(job: RunningJob) -> bool:
            session.push("sent", message.redelivered)
            if not message.redelivered:
                raise OSError("no route")
            return True

        return ACK if jobs.run_unique(message, "import", work) else REJECT

    worker.push("work", 1)
    with pytest.raises(OSError, match="no route"):
        h.drain()
    assert not h.session.pop("sent")
    h.drain(advance=True)
    h.assert_processed_status(ACK)
    assert popped(h, "sent") == [True]


def test_the_status_of_the_processor_settles_the_message_of_its_job(
    worker: Worker, h: Harness, jobs: Jobs
) -> None:
    @worker.processor("work")
    def process(message: Message, session: ProcessorSession) -> Status:
        return ACK if jobs.run_unique(message, "import", lambda job: False) is None else REQUEUE

    worker.push("work", 1)
    h.drain()
    h.assert_job_status("import", "failed")
    assert h.session.group_stats("work").counts.lag == 1  # the copy


def test_a_task_that_runs_a_job_has_its_result(worker: Worker, h: Harness, jobs: Jobs) -> None:
    @worker.task("work", result=True, unique=True)
    def reindex() -> bool | None:
        return jobs.run_unique(worker.current().message, "reindex", lambda job: True)

    handle = reindex.push()
    h.drain()
    assert handle.result(timeout=0) is True
    assert not reindex.push().duplicate


def test_a_processor_whose_job_was_replaced_is_rejected_and_the_consumer_goes_on(
    worker: Worker, h: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = Jobs(h.session, stale_after=10)

    @worker.processor("work")
    def process(message: Message, session: ProcessorSession) -> Status:
        def slow(job: RunningJob) -> bool:
            h.clock.advance(11)
            return bool(jobs.run_unique("other", "import", lambda job: True))

        return ACK if jobs.run_unique(message, "import", slow) else REJECT

    worker.push("work", 1)
    h.drain()
    h.assert_processed_status(REJECT)
    assert any("was replaced" in r.message or "stale" in r.message for r in caplog.records)
    assert all(r.levelno < logging.ERROR for r in caplog.records)


# the messages of children


def split(jobs: Jobs, *, queue: str = "parts") -> str:
    """A root whose second child waits in a queue; returns the id of the root."""

    def run(job: RunningJob) -> bool:
        job.create_delayed("part", lambda t, child: t.push(queue, {"job": child.id}))
        return True

    jobs.run_unique("owner", "import", run)
    return jobs.roots()[0].id


def test_a_rejected_message_of_a_child_fails_the_child_so_that_its_root_stops(
    worker: Worker, h: Harness, jobs: Jobs
) -> None:
    worker.processor("parts")(lambda message, session: REJECT)
    root = split(jobs)
    h.drain()
    assert jobs.get(root).status == "failed"
    assert jobs.run_unique("next", "import", lambda job: True) is True  # the name is free


def test_a_child_whose_message_has_become_a_dead_letter_has_failed(
    worker: Worker, h: Harness, jobs: Jobs
) -> None:
    @worker.processor("parts", max_deliver=2)
    def process(message: Message, session: ProcessorSession) -> Status:
        raise OSError("no route")

    root = split(jobs)
    h.drain(advance=True, keep_going=True, most=2)
    assert jobs.get(root).status == "running"  # the copy comes again
    h.drain(advance=True, keep_going=True)
    assert jobs.get(root).status == "failed"


def test_a_child_that_ran_keeps_its_status_whatever_becomes_of_its_message(
    worker: Worker, h: Harness, jobs: Jobs
) -> None:
    @worker.processor("parts")
    def process(message: Message, session: ProcessorSession) -> Status:
        jobs.run_delayed(message.data["job"], lambda job: True, message=message)
        return REJECT

    root = split(jobs)
    h.drain()
    assert jobs.get(root).status == "success"


@pytest.mark.untraced
def test_a_child_whose_handler_never_returns_fails_with_its_message() -> None:
    release, returned = threading.Event(), threading.Event()
    errors: list[str] = []
    with ackflow.connect(":memory:") as q:
        worker, jobs = Worker(q), Jobs(q)

        @worker.processor("parts", time_limit=0.2, max_deliver=1)
        def process(message: Message, session: ProcessorSession) -> Status:
            def stuck(job: RunningJob) -> bool:
                session.push("sent", 1)
                with contextlib.suppress(BaseException):
                    release.wait(30)
                return True

            try:
                jobs.run_delayed(message.data["job"], stuck, message=message)
            except BaseException as error:
                errors.append(type(error).__name__)
            returned.set()
            return ACK

        root = split(jobs)
        worker.run(message_limit=1, keep_going=True)
        assert len(list(q.dead_letters("parts"))) == 1
        assert jobs.get(root).status == "failed"
        release.set()
        assert returned.wait(30)
        assert errors in (["JobStale"], ["GivenUp"])
        assert jobs.get(root).status == "failed"
        assert not q.pop("sent")


def test_a_message_of_a_child_that_was_cleaned_up_is_settled(
    worker: Worker, h: Harness, jobs: Jobs
) -> None:
    worker.processor("parts")(lambda message, session: REJECT)
    worker.push("parts", {}, headers={"ackflow-child-job": "00000000000000aa.000002"})
    h.drain()
    h.assert_processed_status(REJECT)
    assert h.session.group_stats("parts").counts.lag == 0
