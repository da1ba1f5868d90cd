"""Whole runs, every stage a process: undisturbed, with random kills, and with another pipeline."""

import contextlib
import json
import random
import signal
import time
from pathlib import Path

import psutil
import pytest

from ackflow.errors import InvalidArgument
from ackflow.pipeline import example
from ackflow.pipeline.run import Run
from ackflow.pipeline.stages import Settings

from .conftest import generate
from .expected import answers

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

EXAMPLES = Path(__file__).parents[2] / "examples"
KINDS = ("worker", "spark", "jvm", "python", "everything")
KILLS = 4
FIRST, SPAN = 8.0, 25.0  # seconds; also the fastest machine is hit once


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shops") / "data"
    generate(folder, transactions=300, clients=2, seed=5)
    return folder


def settings(data: Path, out: Path, **more: object) -> Settings:
    # Blocks of a few rows, so that there is much to be killed in between.
    given = {"declaration": str(example("coffee_shop")), **more}
    return Settings(
        data=str(data), out=str(out), block_bytes=4_000, messages=16, parts=2, **given,  # type: ignore[arg-type]
    )  # fmt: skip


def results(out: Path, client: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (out / client).glob("*_results.json")}


def check(data: Path, out: Path) -> None:
    """Compare with answers that were computed without any of this."""
    for folder in data.iterdir():
        for name, expected in answers(folder).items():
            found = (out / folder.name / f"{name}_results.json").read_text()
            assert json.loads(found) == expected, (folder.name, name)


class Killer:
    """Kills stages at moments that a seed decides."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        moments = [rng.uniform(1, FIRST if n == 0 else SPAN) for n in range(KILLS)]
        self.due = sorted((moment, rng.choice(KINDS)) for moment in moments)
        self.began = time.monotonic()
        self.killed: list[str] = []

    def __call__(self, run: Run) -> None:
        while self.due and time.monotonic() - self.began > self.due[0][0]:
            kind = self.due[0][1]
            if not self.kill(run, kind):
                return  # what it would kill is about to start; the next poll tries again
            self.killed.append(kind)
            self.due.pop(0)

    def kill(self, run: Run, kind: str) -> bool:
        """Kill something of a kind; return whether there was something."""
        live = [name for name, process in run.processes.items() if process.poll() is None]
        if kind == "worker" and (workers := [name for name in live if name.startswith(kind)]):
            run.kill(workers[0])
            return True
        if "spark" not in live:
            return False
        if kind in CHILDREN:
            return kill_child(run.processes["spark"].pid, CHILDREN[kind])
        for name in live if kind == "everything" else ["spark"]:
            run.kill(name)
        return True


CHILDREN = {"jvm": "java", "python": "python"}


def kill_jvm(driver: int) -> None:
    assert kill_child(driver, "java")


def kill_child(driver: int, name: str) -> bool:
    """Kill a child process of a kind: the JVM, or the youngest Python process that Spark started.

    The JVM is the eldest of its name: the commands that it runs bear its name until they begin.
    """
    gone = contextlib.suppress(psutil.NoSuchProcess)  # a process that ends while it is looked at
    children: list[psutil.Process] = []
    with gone:
        children = psutil.Process(driver).children(recursive=True)
    for child in children if name == "java" else reversed(children):
        with gone:
            if child.name().startswith(name):
                child.kill()
                return True
    return False


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed")
    assert Run(settings(data, out), print).run() is True
    return out


@pytest.mark.inner
def test_an_undisturbed_run_answers_as_plain_python_does(data: Path, undisturbed: Path) -> None:
    check(data, undisturbed)
    told = []
    assert Run(settings(data, undisturbed), told.append).run() is False
    assert "already finished" in told[0]
    log = (undisturbed / "spark.log").read_text()
    assert not (undisturbed / "work" / "partials").exists() or not any(
        (undisturbed / "work" / "partials").iterdir()
    )
    assert "TABLE_EOF -> aggregators: key=(TableName.STORES, 'client1') parts=2" in log


def crash(data: Path, undisturbed: Path, out: Path, seed: int) -> list[str]:
    killer = Killer(seed)
    Run(settings(data, out), print).run(each=killer)
    for folder in data.iterdir():
        assert results(out, folder.name) == results(undisturbed, folder.name), (seed, killer.killed)
    assert killer.killed
    return killer.killed


@pytest.mark.outer
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_kills_at_random_moments_change_not_a_byte(
    data: Path, undisturbed: Path, tmp_path: Path, seed: int
) -> None:
    crash(data, undisturbed, tmp_path, seed)


class Patient:
    """Kills Spark's driver, or its JVM, whenever the standby is ready. A worker that is stopped before it
    sends anything keeps the run from ending sooner."""

    def __init__(self, *kinds: str) -> None:
        self.kinds, self.stopped = list(kinds), False

    def __call__(self, run: Run) -> None:
        worker = run.processes["worker-0"]
        if not self.stopped:
            worker.send_signal(signal.SIGSTOP)
            self.stopped = True
        elif run.standby.ready and self.kinds:
            kind, driver = self.kinds.pop(0), run.processes["spark"]
            if kind == "jvm":
                kill_jvm(driver.pid)
            else:
                run.kill("spark")
            if not self.kinds:
                worker.send_signal(signal.SIGCONT)


@pytest.mark.outer
def test_spark_with_a_standby_is_back_within_seconds_and_not_a_byte_changes(
    data: Path, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ackflow.pipeline.run.STANDBY_AFTER", 0.0)
    told: list[str] = []
    run = Run(settings(data, tmp_path), told.append)
    run.run(each=Patient("spark", "jvm"))
    deaths = [text for text in told if text.startswith("spark exited")]
    assert deaths == [f"spark exited with {code}; its standby takes over" for code in (-9, 1)]
    back = [event["seconds"] for event in run.events if event["what"] == "recovered"]
    first = next(event["at"] for event in run.events if event["what"] == "progress")
    assert len(back) == 2
    assert max(back) < first  # 3 seconds on an idle machine; the first Spark takes 12 there
    for folder in data.iterdir():
        assert results(tmp_path, folder.name) == results(undisturbed, folder.name)
    assert "REDELIVERED (recovering state)" in (tmp_path / "spark.log").read_text()


class Asleep:
    """Stops Spark's processes past their leases, and lets them go on; then the run goes on too."""

    def __init__(self) -> None:
        self.slept = False

    def __call__(self, run: Run) -> None:
        if self.slept or not run.progress():
            return
        self.slept = True
        driver = psutil.Process(run.processes["spark"].pid)
        family = [driver, *driver.children(recursive=True)]
        gone = contextlib.suppress(psutil.NoSuchProcess)  # Spark's start runs some short commands
        for process in family:
            with gone:
                process.suspend()
        time.sleep(12)
        for process in family:
            with gone:
                process.resume()


@pytest.mark.outer
def test_spark_that_slept_past_its_leases_changes_not_a_byte(
    data: Path, undisturbed: Path, tmp_path: Path
) -> None:
    asleep = Asleep()
    Run(settings(data, tmp_path), print).run(each=asleep)
    assert asleep.slept
    for folder in data.iterdir():
        assert results(tmp_path, folder.name) == results(undisturbed, folder.name)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 120))
def test_twenty_runs_with_kills_change_not_a_byte(
    data: Path, undisturbed: Path, tmp_path: Path, seed: int
) -> None:
    crash(data, undisturbed, tmp_path, seed)


def test_an_expression_that_spark_does_not_understand_ends_the_run_with_it(
    data: Path, tmp_path: Path
) -> None:
    declared = tmp_path / "mine.py"
    text = (EXAMPLES / "pipeline_library.py").read_text()
    declared.write_text(text.replace('"fee > 0"', '"fe > 0"'))
    told: list[str] = []
    with pytest.raises(InvalidArgument, match=r"where of route 'owed' is 'fe > 0': .*`fe`"):
        Run(settings(data, tmp_path / "out", declaration=str(declared)), told.append).run()
    assert not [text for text in told if "restarted" in text]
