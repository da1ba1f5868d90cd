"""Much data: 200,000 transactions of each of three clients, undisturbed, killed, and on a cluster."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from ackflow.pipeline import example
from ackflow.pipeline.run import Run
from ackflow.pipeline.stages import Settings
from tests.server.conftest import Process, free_port
from tests.spark.test_cluster import Cluster

from .conftest import generate
from .test_end_to_end import check, kill_jvm, results

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(1800)]

APART = 2.0
EXECUTOR = "CoarseGrainedExecutorBackend"
STAGES = ("worker", "spark")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many") / "data"
    generate(folder, transactions=200_000, clients=3, seed=7)
    return folder


def many(data: Path, out: Path, **more: str) -> Settings:
    """Batches small enough that there are moments in between to kill something."""
    declaration = str(example("coffee_shop"))
    return Settings(
        data=str(data), out=str(out), declaration=declaration, batch_bytes=8 << 20, **more,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed")
    assert Run(many(data, out), print).run() is True
    return out


def test_much_data_is_answered_as_plain_python_does(data: Path, undisturbed: Path) -> None:
    check(data, undisturbed)


class Kills:
    """Kills one thing after the other, each when something more is handled after some seconds."""

    def __init__(self, *kills: Callable[[Run], None]) -> None:
        self.left = list(kills)
        self._seen, self._due = 0, 0.0

    def __call__(self, run: Run) -> None:
        handled = sum(run.progress().values())
        if self.left and handled > self._seen and time.monotonic() > self._due:
            self._seen, self._due = handled, time.monotonic() + APART
            self.left.pop(0)(run)


def kill(stage: str) -> Callable[[Run], None]:
    return lambda run: run.kill(next(name for name in run.processes if name.startswith(stage)))


def same(data: Path, out: Path, undisturbed: Path) -> None:
    for folder in data.iterdir():
        assert results(out, folder.name) == results(undisturbed, folder.name), folder.name


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Process]:
    server = Process(tmp_path / "broker.db", free_port())
    yield server
    server.stop()
    assert server.process.stdout is not None
    server.process.stdout.close()


def test_a_kill_of_every_kind_of_process_changes_not_a_byte(
    data: Path, undisturbed: Path, tmp_path: Path, broker: Process
) -> None:
    def restart(run: Run) -> None:
        run.note("kill", stage="broker")
        broker.restart()

    jvm = lambda run: kill_jvm(run.processes["spark"].pid)  # noqa: E731
    kills = Kills(*[kill(stage) for stage in STAGES], restart, jvm)
    Run(many(data, tmp_path / "out", db=broker.url), print).run(each=kills)
    assert not kills.left
    same(data, tmp_path / "out", undisturbed)


def line_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has ended
        return ""


def test_on_a_cluster_an_executor_that_is_killed_changes_not_a_byte(
    data: Path, undisturbed: Path, tmp_path: Path
) -> None:
    def executor(run: Run) -> None:
        run.note("kill", stage="executor")
        next(p for p in cluster.started() if EXECUTOR in line_of(p)).kill()

    cluster = Cluster(tmp_path)
    kills = Kills(executor, kill("spark"))
    try:
        out = tmp_path / "out"
        Run(many(data, out, master=cluster.url), print).run(each=kills)
    finally:
        cluster.stop()
    assert not kills.left
    same(data, out, undisturbed)
