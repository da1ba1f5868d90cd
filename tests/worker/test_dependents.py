"""The messages that are sent when a root job stops, and the properties of the root."""

import pytest

from ackflow import Session
from ackflow.errors import InvalidArgument, PayloadTooLarge
from ackflow.options import MAX_HEADERS
from ackflow.worker import JobCannotBeStarted, Jobs, RunningJob


@pytest.fixture
def jobs(q: Session) -> Jobs:
    return Jobs(q)


@pytest.mark.one_database
def test_dependents_are_sent_in_the_transaction_that_stops_the_root(q: Session, jobs: Jobs) -> None:
    def first(job: RunningJob) -> bool:
        job.add_dependent("after", {"n": 1}, priority=1, headers={"a": "b"})
        job.create_delayed("part")
        return True

    jobs.run_unique("owner", "import", first)
    assert not q.pop("after")
    (root,) = jobs.roots()
    jobs.run_delayed(f"{root.id}.000002", lambda job: False)
    (message,) = q.pop("after")
    assert (message.data, message.priority) == ({"n": 1}, 1)
    assert message.headers == {
        "a": "b", "ackflow-job-status": "failed", "ackflow-job": root.id,
    }  # fmt: skip
    with pytest.raises(JobCannotBeStarted):
        jobs.create_child(root.id, "too late")


def test_dependents_have_the_properties_of_the_root(q: Session, jobs: Jobs) -> None:
    def run(job: RunningJob) -> bool:
        job.add_dependent("after", 1)
        assert job.properties == {"user": "7"}
        job.set_properties({"user": "8", "locale": "de"})
        job.add_dependent("after", 2, headers={"locale": "fr", "own": "x"})
        return False

    assert jobs.run_unique("owner", "import", run, properties={"user": "7"}) is False
    (root,) = jobs.roots()
    assert root.properties == {"user": "8", "locale": "de"}
    of_root = {"ackflow-job-status": "failed", "ackflow-job": root.id, "user": "8"}
    assert [(m.data, m.headers) for m in q.pop("after", batch=9)] == [
        (1, {**of_root, "locale": "de"}),
        (2, {**of_root, "locale": "fr", "own": "x"}),
    ]
    with pytest.raises(JobCannotBeStarted, match="has stopped"):
        jobs.set_properties(root.id, {})


def test_a_root_that_exists_keeps_its_properties(jobs: Jobs) -> None:
    first = jobs.create_unique("owner", "import", properties={"user": "7"})
    again = jobs.create_unique("owner", "import", properties={"user": "8"})
    assert first is not None
    assert again is not None
    assert again.properties == {"user": "7"}


def test_properties_that_do_not_fit_are_refused_before_the_root_stops(
    q: Session, jobs: Jobs
) -> None:
    large = {"a": "x" * (MAX_HEADERS - 10)}

    def run(job: RunningJob) -> bool:
        with pytest.raises(InvalidArgument, match="must be text"):
            job.set_properties({"user": 7})  # type: ignore[dict-item]
        job.add_dependent("after", 1)
        with pytest.raises(PayloadTooLarge):
            job.set_properties(large)
        assert job.properties == {"user": "7"}
        with pytest.raises(PayloadTooLarge):
            job.add_dependent("after", 2, headers=large)
        return True

    assert jobs.run_unique("owner", "import", run, properties={"user": "7"})
    assert [m.data for m in q.pop("after", batch=9)] == [1]
    with pytest.raises(PayloadTooLarge):
        jobs.create_unique("other", "export", properties={"a": "x" * (MAX_HEADERS + 1)})
    assert [job.name for job in jobs.roots()] == ["import"]
