"""The standby of a router: replaced when it dies, told to take over when the router does."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ackflow.pipeline import preflight
from ackflow.pipeline import run as runs
from ackflow.pipeline.run import Run
from ackflow.pipeline.stages import Settings
from ackflow.pipeline.supervisor import MAX_ERRORS, RestartPolicy, Standby, kill_group

EXAMPLES = Path(__file__).parents[2] / "examples"
WAITS = """
import time
from ackflow.pipeline.supervisor import TakeOverSignal
line = TakeOverSignal()
line.report_ready()
while not line.wait(60): pass
print("the router is", flush=True)
time.sleep(60)
"""


def until(true: Callable[[], object]) -> None:
    """Wait for what must come."""
    end = time.monotonic() + 120
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


class Kept:
    """A standby that runs some code instead of Spark."""

    def __init__(self, folder: Path) -> None:
        self.log, self.code = folder / "spark.log", WAITS
        self.told: list[str] = []
        self.started: list[subprocess.Popen[bytes]] = []
        self.standby = Standby(
            self.spawn,
            lambda moved: RestartPolicy("standby", self.log, moved, moved),
            self.told.append,
        )

    def spawn(self, stdin: int) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            self.started.append(
                subprocess.Popen(
                    [sys.executable, "-c", self.code],
                    stdin=stdin,
                    stdout=log,
                    stderr=log,
                    process_group=0,
                )
            )
        return self.started[-1]

    def is_ready(self) -> bool:
        self.standby.poll()
        return self.standby.ready


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    found = Kept(tmp_path)
    yield found
    found.standby.stop()
    for process in found.started:
        process.kill()
        process.wait()


def test_a_standby_waits_until_it_is_told_and_then_is_nobodys_standby(kept: Kept) -> None:
    assert kept.standby.take_over() is None
    until(kept.is_ready)
    assert kept.told == ["Spark's standby is ready"]
    assert kept.log.read_text() == ""
    assert kept.standby.take_over() is kept.started[0]
    until(lambda: kept.log.read_text() == "the router is\n")
    assert kept.standby.take_over() is None
    until(kept.is_ready)
    assert len(kept.started) == 2


def test_one_that_is_not_ready_yet_takes_over_as_soon_as_it_is(kept: Kept) -> None:
    kept.standby.poll()
    assert kept.standby.take_over() is kept.started[0]
    until(lambda: kept.log.read_text() == "the router is\n")


def test_a_standby_that_is_killed_is_replaced_however_often(kept: Kept) -> None:
    for n in range(1, MAX_ERRORS + 2):
        until(kept.is_ready)
        assert len(kept.started) == n
        kept.started[-1].kill()
        kept.started[-1].wait()
        assert kept.standby.take_over() is None


def test_a_standby_that_never_gets_ready_is_given_up_with_the_reason(kept: Kept) -> None:
    kept.code = "raise SystemExit('out of memory')"

    def given_up() -> bool:
        kept.standby.poll()
        return bool(kept.told)

    until(given_up)
    assert kept.told == [
        "Spark no longer has a standby: "
        f"standby exited {MAX_ERRORS} times without making progress, last error: "
        f"out of memory; see its log {kept.log}"
    ]
    kept.standby.poll()
    assert len(kept.started) == MAX_ERRORS


def test_a_standby_ends_when_the_run_is_gone(kept: Kept) -> None:
    until(kept.is_ready)
    kept.standby._forget()  # closes the line, as the death of the run does
    assert kept.started[0].wait(120) == 0


def test_a_run_that_ends_ends_its_standby_and_all_that_this_started(kept: Kept) -> None:
    kept.code = f"import subprocess; subprocess.Popen(['sleep', '60'])\n{WAITS}"
    assert kept.standby.stop() == []
    until(kept.is_ready)
    assert kept.standby.stop() == [kept.started[0]]
    assert kept.started[0].wait(120) == -signal.SIGTERM
    until(lambda: not group(kept.started[0].pid))


def group(number: int) -> list[str]:
    """Who is in a process group, but for those who are dead and not buried."""
    told = subprocess.run(["ps", "-eo", "pgid=,stat=,comm="], capture_output=True, text=True)
    rows = [line.split() for line in told.stdout.splitlines()]
    return [row[2] for row in rows if row[0] == str(number) and not row[1].startswith("Z")]


def test_a_router_that_died_leaves_no_jvm_behind() -> None:
    code = "import os, subprocess; subprocess.Popen(['sleep', '60']); os.kill(os.getpid(), 9)"
    dead = subprocess.Popen([sys.executable, "-c", code], process_group=0)
    dead.wait()
    assert group(dead.pid) == ["sleep"]
    kill_group(dead)
    assert group(dead.pid) == []
    kill_group(dead)


@pytest.mark.parametrize(
    ("master", "local"),
    [("local", True), ("local[2]", True), ("local[*]", True), ("local-cluster[2,1,1024]", False),
     ("spark://a:7077", False), ("yarn", False), ("k8s://https://a:6443", False)],
)  # fmt: skip
def test_a_cluster_is_not_asked_for_the_cores_of_a_standby(master: str, local: bool) -> None:
    assert preflight.is_local(master) is local


STAGES = """
import sys, time
if sys.argv[1:2] in (["spark"], ["standby"]):
    import msgspec, os, signal, ackflow
    from ackflow.pipeline.supervisor import report_working
    from ackflow.pipeline.supervisor import TakeOverSignal
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.argv[1] == "standby":
        line = TakeOverSignal()
        line.report_ready()
        while not line.wait(60): pass
    with ackflow.connect(msgspec.json.decode(os.environ["ACKFLOW_PIPELINE"])["db"]) as q:
        report_working(q, pipeline, "spark")
    time.sleep(60)
"""


def run(tmp_path: Path, **more: object) -> tuple[Run, list[str]]:
    """A run whose router and standby do nothing; a batch is handled already."""
    (tmp_path / "data" / "north").mkdir(parents=True)
    file = tmp_path / "declared.py"
    file.write_text((EXAMPLES / "pipeline_library.py").read_text() + STAGES)
    told: list[str] = []
    settings = Settings(
        data=str(tmp_path / "data"), out=str(tmp_path / "out"), db=str(tmp_path / "queue.db"),
        declaration=str(file), workers=1, **more,  # type: ignore[arg-type]
    )  # fmt: skip
    return Run(settings, told.append), told


class Script:
    """Goes through steps, each as soon as what it waits for is so, and then ends the run."""

    def __init__(self, *steps: tuple[Callable[[Run], object], Callable[[Run], object]]) -> None:
        self.steps = list(steps)

    def __call__(self, run: Run) -> None:
        if not self.steps:
            raise KeyboardInterrupt
        if self.steps[0][0](run):
            self.steps.pop(0)[1](run)


def publish(run: Run) -> None:
    t = run._q.transaction()
    t.put(run.pipeline.state_key("handled", "north", "books"), {"blocks": 1})
    t.commit()


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "check_spark", lambda _: None)
    monkeypatch.setattr(runs, "STANDBY_AFTER", 0.0)


def test_a_run_replaces_a_dead_standby_has_it_take_over_and_does_without(tmp_path: Path) -> None:
    found, told = run(tmp_path)
    pids: list[int] = []

    def kill_standby(run: Run) -> None:
        assert run.standby.process is not None
        pids.append(run.standby.process.pid)
        os.kill(pids[-1], signal.SIGKILL)

    def kill_router(run: Run) -> None:
        assert run.standby.process is not None
        pids.append(run.standby.process.pid)
        run.kill("spark")

    def kill_both(run: Run) -> None:
        assert run.processes["spark"].pid == pids[-1]
        standby = run.standby.process
        kill_standby(run)
        assert standby is not None
        standby.wait(120)  # one that is not dead yet would take over
        run.kill("spark")

    def recovered(n: int) -> Callable[[Run], object]:
        return lambda _: sum("spark: working again" in text for text in told) == n

    with pytest.raises(KeyboardInterrupt):
        found.run(
            each=Script(
                (lambda run: run.standby.process is None, publish),
                (lambda run: run.standby.ready, kill_standby),
                (lambda run: run.standby.ready and run.standby.process.pid != pids[0], kill_router),
                (lambda run: recovered(1)(run) and run.standby.ready, kill_both),
                (recovered(2), lambda _: None),
            )
        )
    deaths = [text for text in told if text.startswith("spark exited")]
    assert deaths == [
        "spark exited with -9; its standby takes over",
        "spark exited with -9; it is restarted",
    ]
    assert all(process.poll() is not None for process in found.processes.values())
    assert found.standby.process is None


def test_a_run_that_ends_soon_starts_no_standby(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "STANDBY_AFTER", 60.0)
    found, _ = run(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        found.run(
            each=Script(
                (lambda run: run._recovery.at_work("spark", run.processes["spark"].pid), publish),
                (lambda run: run._published_at, lambda _: None),
            )
        )
    assert found.standby.process is None


def test_a_run_that_is_told_to_do_without_a_standby_does_so(tmp_path: Path) -> None:
    found, told = run(tmp_path, standby=False)
    with pytest.raises(KeyboardInterrupt):
        found.run(
            each=Script(
                (lambda run: run._recovery.at_work("spark", run.processes["spark"].pid), publish),
                (lambda run: run._published_at, lambda _: None),
                (lambda run: True, lambda run: run.kill("spark")),
                (lambda _: any("working again" in text for text in told), lambda _: None),
            )
        )
    assert found.standby.process is None
    assert "spark exited with -9; it is restarted" in told
