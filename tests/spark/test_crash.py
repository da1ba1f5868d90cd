"""Applications are killed, frozen and restarted; the output holds each input exactly once."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

import ackflow
from ackflow import Session

from .application import queue_to_queue
from .killing import STEPS

ROOT = Path(__file__).parents[2]
MESSAGES = 2_000
LEASE = 3.0

pytestmark = pytest.mark.timeout(600)


class Application:
    """Runs of one application on one database."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.spark = spark
        self.url, self.checkpoint = str(folder / "queue.db"), folder / "checkpoint"
        self.log = folder / "log"
        self.q: Session = ackflow.connect(self.url)
        self.running: list[subprocess.Popen[bytes]] = []
        for n in range(4):
            part = list(range(n * MESSAGES // 4, (n + 1) * MESSAGES // 4))
            self.q.push("in", part, partition=f"p{n}")

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.spark.application", self.url, str(self.checkpoint)]
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [*command, *arguments], cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )
        self.running.append(process)
        return process

    def run(self, *arguments: str) -> int:
        code = self.start(*arguments).wait(timeout=300)
        self.stop()
        return code

    def tree(self) -> list[psutil.Process]:
        found = []
        for process in self.running:
            if process.poll() is None:
                root = psutil.Process(process.pid)
                found += [root, *root.children(recursive=True)]
        return found

    def stop(self) -> None:
        for process in self.tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for started in self.running:
            started.wait()
        self.running.clear()

    def wake(self, process: subprocess.Popen[bytes]) -> int:
        """Let it go on to its end; every task of the batch stops the application once more."""
        deadline = time.monotonic() + 300
        while process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                for member in reversed(self.tree()):
                    os.kill(member.pid, signal.SIGCONT)
            time.sleep(0.2)
        return process.wait(timeout=1)

    def die(self, point: str) -> None:
        """Run until the point, where the application kills itself."""
        code = self.run("--point", point, "--lease", str(LEASE))
        assert code == -signal.SIGKILL, self.log.read_text()[-3000:]

    def lose_checkpoint(self) -> None:
        """Lose it, and wait until the leases of the reader in it are over."""
        shutil.rmtree(self.checkpoint)
        self.wait_for(lambda: self.q.group_stats("in", "g").counts.leased == 0)

    def finish(self) -> None:
        """Run the query to its end in the session of the tests, which saves the start of another."""
        writer = queue_to_queue(self.spark, self.url, str(self.checkpoint), MESSAGES, LEASE)
        writer.trigger(availableNow=True).start().awaitTermination()

    def check(self, taken: int = 0) -> None:
        """Everything is done, and `out` holds each message exactly once."""
        counts = self.q.group_stats("in", "g").counts
        assert counts.done == MESSAGES, counts
        found = Counter(
            message.data["n"]
            for batch in iter(lambda: self.q.pop("out", group="checking", batch=10_000), ())
            for message in batch
        )
        assert max(found.values()) == 1, found.most_common(3)
        assert len(found) == MESSAGES - taken

    def wait_for(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not what():
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            time.sleep(0.05)


@pytest.fixture
def application(spark: SparkSession, tmp_path: Path) -> Iterator[Application]:
    found = Application(tmp_path, spark)
    yield found
    found.stop()
    found.q.close()


@pytest.mark.outer
def test_killed_again_and_again_each_message_counts_once(application: Application) -> None:
    """Three kill points in a row, and the checkpoint lost before the last of them.

    The second is between the publishing transaction and Spark's commit log.
    """
    application.die("after write@1")
    application.die("after publish@1")
    application.lose_checkpoint()
    application.die("before settle@1")
    application.finish()
    application.check()


@pytest.mark.soak
@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_point_each_message_counts_once(
    application: Application, step: str, batch: int
) -> None:
    application.die(f"{step}@{batch}")
    application.finish()
    application.check()


@pytest.mark.soak
def test_killed_while_idle_each_message_counts_once(application: Application) -> None:
    application.start("--stay")
    application.wait_for(lambda: counted(application.q) == MESSAGES)
    application.stop()
    application.q.push("in", [MESSAGES])
    application.finish()
    assert application.q.group_stats("in", "g").counts.done == MESSAGES + 1
    assert application.q.queue_stats("out").messages == MESSAGES + 1


def counted(q: Session) -> int:
    groups = {group.name: group for group in q.queue_stats("in").groups}
    return groups["g"].counts.done if "g" in groups else 0


@pytest.mark.soak
@pytest.mark.parametrize("step", STEPS)
def test_a_lost_checkpoint_at_any_point(application: Application, step: str) -> None:
    application.die(f"{step}@1")
    application.lose_checkpoint()
    application.finish()
    application.check()


@pytest.mark.outer
def test_an_application_that_slept_publishes_nothing_that_was_given_away(
    application: Application,
) -> None:
    process = application.start("--point", "stop@1", "--lease", str(LEASE))
    q = application.q
    root = psutil.Process(process.pid)
    application.wait_for(lambda: root.status() == psutil.STATUS_STOPPED)
    application.wait_for(lambda: q.group_stats("in", "g").counts.leased == 0)
    taken = q.pop("in", group="g", partition="p1", batch=100)
    assert len(taken) == 100
    assert all(message.redelivered for message in taken)
    assert application.wake(process) == 1
    assert "no longer held" in application.log.read_text()
    application.stop()
    q.ack(taken)
    application.finish()
    application.check(taken=100)


@pytest.mark.soak
def test_an_application_that_slept_alone_goes_on_or_is_started_again(
    application: Application,
) -> None:
    process = application.start("--point", "stop@1", "--lease", str(LEASE))
    root = psutil.Process(process.pid)
    application.wait_for(lambda: root.status() == psutil.STATUS_STOPPED)
    time.sleep(2 * LEASE)
    application.wake(process)
    application.stop()
    application.finish()
    application.check()
