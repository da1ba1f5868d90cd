"""`ackflow work` as a user runs it: signals, errors, supervision."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import ackflow
from ackflow.errors import AckflowError
from ackflow.worker import ACK, Worker
from ackflow.worker.loading import load_worker
from ackflow.worker.supervise import PARENT_PIPE, stop_with_parent

from .conftest import Process, until

APP = """
import logging, os, sys, time
from ackflow.worker import ACK, Worker

worker = Worker("q.db", redelivery_delay=0)

@worker.processor("orders")
def process(message, session):
    logging.getLogger("app").info("begun: %s", message.data)
    match message.data:
        case "sleep": time.sleep(1)
        case "hang": time.sleep(600)
        case "raise" if not message.redelivered: raise ValueError("no stock")
        case "die" if not message.redelivered: os._exit(9)
    return ACK
"""


@pytest.fixture
def q(tmp_path: Path) -> Iterator[ackflow.Session]:
    (tmp_path / "app.py").write_text(APP)
    session = ackflow.connect(tmp_path / "q.db")
    yield session
    session.close()


INTERRUPT = """
import logging, os, signal

class Interrupt(logging.Handler):
    def emit(self, record):
        if "is started" in record.getMessage():
            os.kill(os.getpid(), signal.SIGINT)

logging.getLogger("ackflow.worker").addHandler(Interrupt())
"""


def counts(q: ackflow.Session) -> ackflow.model.Counts:
    groups = q.queue_stats("orders").groups
    return groups[0].counts if groups else ackflow.model.Counts()


def test_ctrl_c_finishes_the_current_message_and_exits_with_0(
    q: ackflow.Session, work: Callable[..., Process]
) -> None:
    q.push("orders", ["sleep", "never begun"])
    process = work("app:worker", "--prefetch", "5")
    until(lambda: counts(q).leased == 2)
    process.wait_for("begun: sleep")
    process.interrupt()
    assert process.end() == 0
    assert (counts(q).done, counts(q).ready) == (1, 1)
    (rest,) = q.pop("orders")
    assert (rest.data, rest.deliveries) == ("never begun", 1)
    assert "Message processed: ACK. Execution time: 10" in process.text()
    assert "1 acked, 1 returned" in process.text()


def test_a_handler_that_never_returns_is_named_and_a_second_ctrl_c_stops_at_once(
    q: ackflow.Session, work: Callable[..., Process]
) -> None:
    q.push("orders", "hang")
    process = work("app:worker")
    process.wait_for("begun: hang")
    process.interrupt()
    process.wait_for("process has been running for")
    process.interrupt()
    assert process.end() == 130
    (message,) = q.pop("orders")  # returned at once, not when its lease ends
    assert message.deliveries == 1


def test_a_supervised_consumer_is_started_again_after_an_exception(
    q: ackflow.Session, work: Callable[..., Process]
) -> None:
    q.push("orders", ["raise", "fine"])
    process = work("app:worker", "--supervise")
    process.wait_for("ended with exit code 1 after")
    process.wait_for("it is started again in 1 s")
    until(lambda: counts(q).done == 3)  # the copy, too
    process.interrupt()
    assert process.end() == 0


@pytest.mark.outer
def test_two_quick_ctrl_c_stop_at_once_and_return_everything(
    q: ackflow.Session, work: Callable[..., Process]
) -> None:
    q.push("orders", ["hang", "not begun"])
    process = work("app:worker", "--prefetch", "5")
    process.wait_for("begun: hang")
    process.interrupt()
    time.sleep(0.05)
    process.interrupt()
    assert process.end(10) == 130
    assert [(m.data, m.deliveries) for m in q.pop("orders", batch=5)] == [
        ("hang", 1),
        ("not begun", 1),
    ]


@pytest.mark.outer
def test_a_supervised_consumer_is_started_again_after_a_kill(
    q: ackflow.Session, work: Callable[..., Process]
) -> None:
    process = work("app:worker", "--supervise")
    process.wait_for("is started, 1 at a time")
    (child,) = psutil.Process(process.pid).children()
    os.kill(child.pid, signal.SIGKILL)
    process.wait_for("was killed by SIGKILL")
    until(lambda: len(psutil.Process(process.pid).children()) == 1)
    q.push("orders", "after")
    until(lambda: counts(q).done == 1)
    process.interrupt()
    assert process.end() == 0


@pytest.mark.outer
def test_processes_run_beside_each_other_and_the_first_failure_ends_all(
    q: ackflow.Session, work: Callable[..., Process]
) -> None:
    process = work("app:worker", "--processes", "2")
    process.wait_for("consumer 2 is started")
    until(lambda: process.text().count("is started, 1 at a time") == 2)
    q.push("orders", "raise")
    assert process.end() == 1
    assert "ended with exit code 1; the others are stopped" in process.text()


@pytest.mark.outer
def test_consumers_stop_when_their_supervisor_is_killed(
    q: ackflow.Session, work: Callable[..., Process]
) -> None:
    process = work("app:worker", "--processes", "2", "--supervise")
    until(lambda: process.text().count("is started, 1 at a time") == 2)
    children = psutil.Process(process.pid).children()
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: not any(child.is_running() for child in children))


def test_a_consumer_whose_supervisor_was_gone_before_it_began_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends = os.pipe()
    os.close(ends[1])  # by the death of the supervisor
    monkeypatch.setenv(PARENT_PIPE, str(ends[0]))
    with Worker(":memory:") as worker:
        worker.processor("orders")(lambda message, session: ACK)
        stop_with_parent(worker)
        worker.run()
    os.close(ends[0])


@pytest.mark.outer
def test_a_change_of_the_code_starts_the_consumer_again(
    q: ackflow.Session, tmp_path: Path, work: Callable[..., Process]
) -> None:
    process = work("app:worker", "--reload")
    process.wait_for("is started, 1 at a time")
    time.sleep(0.1)
    (tmp_path / "app.py").write_text(APP.replace('"orders"', '"mail"'))
    process.wait_for("app.py has changed")
    process.wait_for("<Worker of mail> is started")
    process.interrupt()
    assert process.end() == 0


@pytest.mark.parametrize(
    ("target", "code", "said"),
    [("nothing:worker", "", "there is no module 'nothing'"),
     ("app.py", "", "is a file; name the module instead: ackflow work app:worker"),
     ("app:nobody", "", "module 'app' has no worker 'nobody'; it has: worker"),
     ("bad", "import missing_package", "module 'bad' needs 'missing_package', which is not inst"),
     ("bad", "1 / 0", "'bad' cannot be imported: ZeroDivisionError: division by zero"),
     ("bad", "worker = = 5", "imported: SyntaxError: invalid syntax (/"),
     ("bad", "from ackflow.worker import *; worker = Worker('q.db', delay=5)",
      "Worker has no option delay (/"),
     ("bad", "from ackflow.worker import *\nWorker('q.db').processor('a')(lambda a, b, c: 1)",
      "bad.py, line 2)"),
     ("bad", "worker = 5", "'bad' is of type int; it must be an ackflow.worker.Worker"),
     ("bad", "from ackflow.worker import *; worker = Worker('q.db')", "no processors and no task")],
)  # fmt: skip
def test_a_worker_that_cannot_be_loaded_is_explained_in_one_line(
    q: ackflow.Session, tmp_path: Path, target: str, code: str, said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in ("bad", "app"):
        sys.modules.pop(name, None)
    (tmp_path / "bad.py").write_text(code)
    with pytest.raises(AckflowError) as caught:
        load_worker(target).select(None)
    assert said in caught.value.message
    assert "\n" not in caught.value.message


def test_a_worker_names_the_queues_that_it_serves(
    q: ackflow.Session, tmp_path: Path, work: Callable[..., Process]
) -> None:
    (tmp_path / "app.py").write_text(APP + '\nworker.processor("mail")(lambda message: ACK)\n')
    process = work("app:worker", "--queues", "mail")
    process.wait_for("<Worker of mail> is started, 1 at a time")
    process.interrupt()
    assert process.end() == 0


def test_an_interrupt_as_soon_as_the_worker_is_started_ends_it_with_0(
    q: ackflow.Session, tmp_path: Path, work: Callable[..., Process]
) -> None:
    (tmp_path / "app.py").write_text(APP + INTERRUPT)
    process = work("app:worker")
    assert process.end() == 0, process.text()


def test_a_database_that_is_not_there_is_said_before_the_worker_is_started(
    q: ackflow.Session, work: Callable[..., Process]
) -> None:
    process = work("app:worker", "--url", "missing/q.db")
    assert process.end() == 1
    assert "ackflow: cannot open missing/q.db" in process.text()
    assert "is started" not in process.text()


def test_a_worker_that_cannot_be_loaded_ends_with_1_even_if_supervised(
    q: ackflow.Session, work: Callable[..., Process]
) -> None:
    process = work("nothing:worker", "--supervise")
    assert process.end() == 1
    assert process.text() == (
        f"ackflow: there is no module 'nothing', neither in {Path(process.log).parent} nor on the "
        "Python path\n"
    )
