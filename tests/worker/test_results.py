"""Results and progress, for messages that ask for them."""

import threading

import pytest

from ackflow import Session, VirtualClock
from ackflow.errors import InvalidArgument
from ackflow.session.results import asked_by
from ackflow.worker import Result, ResultFailed, ResultTimeout, ask
from ackflow.worker.results import record, record_failure


def test_a_result_is_written_in_the_transaction_of_the_ack(q: Session) -> None:
    asked = ask(60)
    q.push("work", 20, headers=asked.header)
    result = Result(q, asked.id)
    (message,) = q.pop("work")
    assert not result.ready
    with pytest.raises(ResultTimeout):
        result.result(timeout=0)
    with q.transaction() as t:
        t.ack(message)
        record(t, message, {"n": message.data + 1})
    assert result.result(timeout=0) == {"n": 21}
    assert result.result() == {"n": 21}


def test_an_ack_that_is_refused_leaves_no_result(q: Session, clock: VirtualClock) -> None:
    asked = ask()
    q.push("work", 1, headers=asked.header)
    (message,) = q.pop("work", lease_seconds=1)
    clock.advance(1)
    t = q.transaction().ack(message)
    record(t, message, 1)
    with pytest.raises(Exception, match="refused"):
        t.commit()
    assert not Result(q, asked.id).ready


def test_a_waiting_program_gets_the_result_when_it_is_there(q: Session) -> None:
    asked = ask()
    q.push("work", 1, headers=asked.header)
    (message,) = q.pop("work")

    def work() -> None:
        with q.transaction() as t:
            record(t.ack(message), message, "done")

    timer = threading.Timer(0.05, work)
    timer.start()
    assert Result(q, asked.id).result(timeout=20) == "done"
    timer.join()


def test_a_failure_is_raised_where_the_result_is_wanted(q: Session) -> None:
    asked = ask()
    q.push("work", 1, headers=asked.header)
    (message,) = q.pop("work")
    with q.transaction() as t:
        record_failure(t.reject(message), message, KeyError("x"))
    with pytest.raises(ResultFailed, match="KeyError"):
        Result(q, asked.id).result()


def test_a_result_that_cannot_be_stored_does_not_fail_the_ack(q: Session) -> None:
    for value in (object(), "x" * 2_000_000):
        asked = ask()
        q.push("work", 1, headers=asked.header)
        (message,) = q.pop("work")
        with q.transaction() as t:
            record(t.ack(message), message, value)
        with pytest.raises(ResultFailed, match="could not be stored"):
            Result(q, asked.id).result()
    assert q.group_stats("work").counts.done == 2


def test_a_result_ends_after_its_time(q: Session, clock: VirtualClock) -> None:
    asked = ask(30)
    q.push("work", 1, headers=asked.header)
    (message,) = q.pop("work")
    message.progress(0.5)
    with q.transaction() as t:
        record(t.ack(message), message, 1)
    clock.advance(30)
    assert not Result(q, asked.id).ready
    assert Result(q, asked.id).progress() is None
    q.upkeep()
    assert q.values() == []


def test_progress_is_kept_over_attempts_and_copies(q: Session) -> None:
    asked = ask()
    q.push("work", 1, headers=asked.header)
    result = Result(q, asked.id)
    assert result.progress() is None
    (message,) = q.pop("work")
    message.progress(0.4, {"page": 7})
    message.requeue()
    found = result.progress()
    assert found is not None
    assert (found.progress, found.data, found.attempt) == (0.4, {"page": 7}, 1)
    (again,) = q.pop("work")
    again.progress(1)
    found = result.progress()
    assert found is not None
    assert (found.progress, found.data, found.attempt) == (1, {}, 2)


def test_a_message_that_asks_for_nothing_costs_nothing(q: Session) -> None:
    q.push("work", 1)
    (message,) = q.pop("work")
    with pytest.raises(InvalidArgument, match="does not ask for results"):
        message.progress(0.5)
    with q.transaction() as t:
        record(t.ack(message), message, 1)
        record_failure(t, message, "no")
    assert q.values() == []


@pytest.mark.parametrize("part", [-0.1, 1.1, True, "half", None])
def test_bad_progress_is_refused(q: Session, part: object) -> None:
    q.push("work", 1, headers=ask().header)
    (message,) = q.pop("work")
    with pytest.raises(InvalidArgument, match="from 0 to 1"):
        message.progress(part)  # type: ignore[arg-type]


@pytest.mark.parametrize("header", ["", "id", "id x", "id -1", "id nan", " 5"])
def test_a_header_that_makes_no_sense_asks_for_nothing(q: Session, header: str) -> None:
    q.push("work", 1, headers={"ackflow-result": header} if header else None)
    assert asked_by(q.pop("work")[0]) is None
