"""The sentences of the seed on message acknowledgement, each a test by name."""

import logging
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import ackflow
from ackflow import Message, VirtualClock
from ackflow.testing import Harness
from ackflow.worker import ACK, REJECT, REQUEUE, InvalidStatus, ProcessorSession, Status, Worker

from .conftest import SRC, Process, until

EXAMPLES = SRC.parent / "examples"


def total(h: Harness, queue: str = "orders") -> int:
    """What the queue still has for its group."""
    return h.session.group_stats(queue, "__QUEUE_MODE__").counts.lag


def returns(worker: Worker, status: object, queue: str = "orders") -> None:
    @worker.processor(queue)
    def process(message: Message, session: ProcessorSession) -> object:
        return status


# Processing statuses


def test_process_returns_one_of_three_statuses(h: Harness) -> None:
    h.worker.processor("orders")(lambda message, session: Status[message.data])
    for name in ("ACK", "REJECT", "REQUEUE"):
        h.worker.push("orders", name)
    statuses = [one.status for one in h.drain() if not one.put_off]
    assert statuses == [ACK, REJECT, REQUEUE]


def test_the_statuses_are_the_constants_of_oro() -> None:
    assert [status.value for status in (ACK, REJECT, REQUEUE)] == [
        "oro.message_queue.consumption.ack",
        "oro.message_queue.consumption.reject",
        "oro.message_queue.consumption.requeue",
    ]


def test_or_throws_an_exception_in_case_of_an_unexpected_error(h: Harness) -> None:
    @h.worker.processor("orders")
    def process(message: Message, session: ProcessorSession) -> Status:
        raise RuntimeError("unexpected")

    h.worker.push("orders", 1)
    with pytest.raises(RuntimeError, match="unexpected"):
        h.drain()


def test_ack_message_processed_successfully_is_removed_from_the_queue(h: Harness) -> None:
    returns(h.worker, ACK)
    h.worker.push("orders", 1)
    h.drain()
    assert total(h) == 0
    assert not list(h.session.dead_letters("orders"))


@pytest.mark.parametrize(("result", "status"), [(True, ACK), (False, REJECT)])
def test_ack_if_the_created_job_returns_true_reject_if_false(
    h: Harness, result: bool, status: Status
) -> None:
    h.worker.job("orders")(lambda message: result)
    h.worker.push("orders", 1)
    h.drain()
    h.assert_processed_status(status)


def test_reject_removes_the_message_because_it_will_never_become_processable(h: Harness) -> None:
    returns(h.worker, REJECT)
    h.worker.push("orders", 1)
    h.drain()
    assert total(h) == 0
    (dead,) = h.session.dead_letters("orders")  # kept to look at, never delivered again
    assert (dead.kind, dead.data) == ("rejected", 1)
    h.clock.advance(3600)
    assert h.drain() == []


# The workflow of re-queuing


def test_requeue_sends_a_copy_to_the_end_with_the_redelivery_flag(h: Harness) -> None:
    seen: list[tuple[int, bool]] = []

    @h.worker.processor("orders")
    def process(message: Message, session: ProcessorSession) -> Status:
        seen.append((message.data, message.redelivered))
        return REQUEUE if message.data == 1 and not message.redelivered else ACK

    for n in (1, 2, 3):
        h.worker.push("orders", n)
    h.drain(3)
    assert seen == [(1, False), (2, False), (3, False)]  # the consumer continues, 1 is at the end
    stored = [one.data for one in h.session.browse("orders").items]
    assert stored == [1, 2, 3, 1]
    h.drain(advance=True)
    assert seen[3:] == [(1, True)]


def test_a_redelivered_message_is_delayed_when_its_turn_comes_and_then_processed(
    h: Harness, clock: VirtualClock
) -> None:
    @h.worker.processor("orders")
    def process(message: Message, session: ProcessorSession) -> Status:
        return ACK if message.redelivered else REQUEUE

    h.worker.push("orders", 1)
    first, turn = h.drain()
    assert (first.status, turn.put_off) == (REQUEUE, True)  # its turn comes, it is put off
    clock.advance(9.9)
    assert h.drain() == []
    clock.advance(0.2)  # 10 s by default
    (processed,) = h.drain()
    assert processed.status is ACK
    assert processed.message.headers == {"oro-redeliver-count": "1"}


def test_the_redeliver_count_grows_with_each_redelivery(h: Harness) -> None:
    counts: list[str | None] = []

    @h.worker.processor("orders")
    def process(message: Message, session: ProcessorSession) -> Status:
        counts.append(message.headers.get("oro-redeliver-count"))
        return REQUEUE if len(counts) < 4 else ACK

    h.worker.push("orders", 1)
    h.drain(advance=True)
    assert counts == [None, "1", "2", "3"]


def test_the_delay_can_be_chosen_or_turned_off(clock: VirtualClock) -> None:
    for delay, puts_off in ((0, False), (3, True)):
        with Harness(Worker(":memory:", redelivery_delay=delay), clock) as h:
            h.worker.processor("orders")(lambda m, s: ACK if m.redelivered else REQUEUE)
            h.worker.push("orders", 1)
            assert [one.put_off for one in h.drain()][1:] == [puts_off]


def test_a_delivery_limit_dead_letters_what_is_requeued_for_ever(h: Harness) -> None:
    h.worker.processor("orders", max_deliver=3)(lambda m, s: REQUEUE)
    h.worker.push("orders", 1)
    h.drain(advance=True)
    assert len(h.processed_messages(REQUEUE)) == 3
    (dead,) = h.session.dead_letters("orders")
    assert dead.kind == "max_deliver"


# The workflow of an exception


def failing_once(worker: Worker) -> list[int]:
    seen: list[int] = []

    @worker.processor("orders")
    def process(message: Message, session: ProcessorSession) -> Status:
        seen.append(message.data)
        if message.data == 1 and not message.redelivered:
            raise ValueError("no stock")
        return ACK

    return seen


def test_an_exception_is_logged_requeued_and_fails_the_consumer(
    h: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    seen = failing_once(h.worker)
    h.worker.push("orders", 1)
    h.worker.push("orders", 2)
    with pytest.raises(ValueError, match="no stock"):
        h.drain()
    assert seen == [1]
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert "a copy goes to the end of the queue" in record.message
    assert record.exc_info is not None
    h.drain(advance=True)  # the consumer is run again: the failing message is at the end
    assert seen == [1, 2, 1]


def test_the_failing_message_is_processed_after_the_delay_and_can_fail_again(h: Harness) -> None:
    @h.worker.processor("orders")
    def process(message: Message, session: ProcessorSession) -> Status:
        raise ValueError(str(message.deliveries))

    h.worker.push("orders", 1)
    for attempt in (1, 2, 3):
        with pytest.raises(ValueError, match=str(attempt)):
            h.drain()
        (turn,) = h.drain()
        assert turn.put_off
        h.clock.advance(10)


def test_a_return_value_that_is_no_status_names_the_processor_and_loses_nothing(
    h: Harness,
) -> None:
    returns(h.worker, None)
    h.worker.push("orders", 1)
    with pytest.raises(InvalidStatus, match=r"returns\.process returned None"):
        h.drain()
    assert total(h) == 1


def test_an_exception_of_a_job_requeues(h: Harness) -> None:
    def job(message: Message) -> bool:
        raise ValueError("no stock")

    h.worker.job("orders")(job)
    h.worker.push("orders", 1)
    with pytest.raises(ValueError, match="no stock"):
        h.drain()
    assert total(h) == 1


# The consumer as a process, and the example


def test_the_consumer_fails_with_a_non_zero_exit_code_and_can_be_re_run(
    tmp_path: Path, work: Callable[..., Process]
) -> None:
    (tmp_path / "app.py").write_text(
        "from ackflow.worker import ACK, Worker\n"
        "worker = Worker('q.db', redelivery_delay=0)\n"
        "@worker.processor('orders')\n"
        "def process(message, session):\n"
        "    if not message.redelivered: raise ValueError('no stock')\n"
        "    return ACK\n"
    )
    with ackflow.connect(tmp_path / "q.db") as q:
        q.push("orders", 1)
    first = work("app:worker")
    assert first.end() == 1
    assert "ValueError: no stock" in first.text()
    assert work("app:worker", "--message-limit", "1").end() == 0


@pytest.fixture
def entities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENTITIES", str(tmp_path / "entities.db"))
    monkeypatch.setenv("ENTITIES_QUEUE", str(tmp_path / "queue.db"))
    monkeypatch.setenv("PYTHONPATH", f"{SRC}:{EXAMPLES}")
    return tmp_path


def leased(q: ackflow.Session) -> int:
    """Messages that a consumer holds; the group exists once it has started."""
    groups = q.queue_stats("entities").groups
    return groups[0].counts.leased if groups else 0


def status_of(folder: Path, id: int) -> str:
    with closing(sqlite3.connect(folder / "entities.db")) as connection:
        found = connection.execute("select status from entity where id = ?", (id,)).fetchone()
    return str(found[0])


def test_the_example_has_three_cases(entities: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "oro_processor.py"], cwd=entities, capture_output=True,
        text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == "1 acknowledged, 2 rejected\n"
    assert status_of(entities, 1) == "success"
    assert 'ERROR Cannot find an entity with id: "2"' in done.stderr
    assert 'CRITICAL Got invalid message, id is empty: "{"name":"no id"}"' in done.stderr
    assert "INFO Message processed: ACK. Execution time: " in done.stderr


def test_the_example_killed_in_the_middle_is_processed_when_it_is_run_again(
    entities: Path, work: Callable[..., Process]
) -> None:
    with closing(sqlite3.connect(entities / "entities.db")) as connection:
        connection.execute("create table entity (id integer primary key, status text)")
        connection.execute("insert into entity values (7, 'new')")
        connection.commit()
    path = f"{SRC}:{EXAMPLES}"
    with ackflow.connect(entities / "queue.db") as q:
        q.push("entities", {"id": 7, "seconds": 0.5})
        first = work("oro_processor:worker", PYTHONPATH=path)
        until(lambda: first.text().count("is started") and leased(q) == 1)
        os.kill(first.pid, signal.SIGKILL)
        first.end()
        assert status_of(entities, 7) == "new"
        again = work("oro_processor:worker", "--time-limit", "20s", PYTHONPATH=path)
        again.wait_for("Message processed: ACK")
        again.interrupt()
        assert again.end() == 0
        assert status_of(entities, 7) == "success"
        assert [m.data for m in q.pop("changed", batch=5)] == [7]
