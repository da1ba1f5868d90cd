"""What dies is started again, as long as that can help; then the run ends with the reason."""

from pathlib import Path

import pytest

import ackflow
from ackflow.errors import InvalidArgument
from ackflow.pipeline import preflight, supervisor
from ackflow.pipeline.run import Run
from ackflow.pipeline.stages import Settings
from ackflow.pipeline.state import recoveries
from ackflow.pipeline.supervisor import (
    EXIT_NO_RESTART,
    MAX_ERRORS,
    MAX_KILLS,
    PipelineFailed,
    RestartPolicy,
)

EXAMPLES = Path(__file__).parents[2] / "examples"


class Stage:
    """A stage that dies at once, and what was done by it and by all."""

    def __init__(self, log: Path) -> None:
        self.log, self.own, self.all = log, 0, 0
        self.policy = RestartPolicy("spark", log, lambda: self.own, lambda: self.all)

    def dies(self, code: int, words: str = "") -> None:
        self.policy.started()
        with self.log.open("a") as file:
            file.write(words)
        self.policy.exited(code)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "spark.log")


def test_errors_in_a_row_without_progress_end_the_run_with_the_last_words(stage: Stage) -> None:
    for _ in range(MAX_ERRORS - 1):
        stage.dies(1, "a traceback\nValueError: what?\n")
    stage.all += 1  # the others go on, which does not help this one
    with pytest.raises(PipelineFailed) as caught:
        stage.dies(1, "ackflow pipeline spark: no answer\nand some noise of Java\n")
    assert caught.value.message == (
        f"spark exited {MAX_ERRORS} times without making progress, last error: no answer; "
        f"see its log {stage.log}"
    )


def test_the_last_line_of_the_log_is_told_when_a_stage_says_no_sentence(stage: Stage) -> None:
    for words in ("ackflow pipeline spark: of an earlier start\n", *["x\n"] * (MAX_ERRORS - 2)):
        stage.dies(1, words)
    with pytest.raises(PipelineFailed, match=r"last error: ValueError: what\?; see its log"):
        stage.dies(1, "a traceback\nValueError: what?\n\n")


def test_a_stage_that_gets_something_done_may_fail_for_ever(stage: Stage) -> None:
    for _ in range(4 * MAX_ERRORS):
        stage.own += 1
        stage.dies(1)


def test_kills_are_forgiven_for_ever_while_anything_moves(stage: Stage) -> None:
    for _ in range(4 * MAX_KILLS):
        stage.all += 1
        stage.dies(-9)
    for _ in range(MAX_KILLS - 2):
        stage.dies(-9)
    with pytest.raises(PipelineFailed, match=rf"exited {MAX_KILLS} times .* last error: no output"):
        stage.dies(-9)


def test_a_stage_that_lived_long_begins_anew(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "LONG_RUN", -1.0)
    for _ in range(4 * MAX_ERRORS):
        stage.dies(1)


def test_a_stage_that_cannot_work_is_not_started_again(stage: Stage) -> None:
    with pytest.raises(InvalidArgument) as caught:
        stage.dies(EXIT_NO_RESTART, "ackflow pipeline spark: where of route 'a' is 'b': no\n")
    assert caught.value.message == "where of route 'a' is 'b': no"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("An exception was raised by the Python Proxy. Return Message: Traceback:\n"
         '  File "router.py", line 9, in batch\n'
         "py4j.protocol.Py4JJavaError: An error occurred while calling o1.collect\n"
         ": org.apache.spark.SparkException: Job aborted: too bad\n"
         "\tat org.apache.spark.Some.where(Some.scala:1)",
         "Job aborted: too bad"),
        ("pyspark.errors.exceptions.captured.NumberFormatException: [CAST_INVALID_INPUT] The value "
         "'city' is no int. SQLSTATE: 22018\n== SQL ==", "[CAST_INVALID_INPUT] The value 'city' is no int."),
        ("[PARSE_SYNTAX_ERROR] Syntax error.\n\n^^^", "[PARSE_SYNTAX_ERROR] Syntax error."),
        ("", "ValueError"),
    ],
)  # fmt: skip
def test_the_line_that_matters_is_taken_of_what_spark_says(said: str, told: str) -> None:
    assert supervisor.error_summary(ValueError(said)) == told


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "check_spark", lambda _: None)


def run(tmp_path: Path, declared: str) -> tuple[Run, list[str]]:
    """A run of a library whose Spark application does what `declared` says, without Spark."""
    (tmp_path / "data" / "north").mkdir(parents=True)
    file = tmp_path / "declared.py"
    library = (EXAMPLES / "pipeline_library.py").read_text()
    waits = (
        "import os, signal, sys, time\n"
        "if sys.argv[1:2] == ['spark']:\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_DFL)\n"
    )
    body = "".join(f"    {line}\n" for line in declared.splitlines())
    file.write_text(f"{library}\n{waits}{body}    time.sleep(60)\n")
    told: list[str] = []
    settings = Settings(
        data=str(tmp_path / "data"), out=str(tmp_path / "out"), declaration=str(file), workers=1,
        db=str(tmp_path / "queue.db"),
    )  # fmt: skip
    return Run(settings, told.append), told


def test_a_run_gives_up_a_stage_that_dies_at_once_again_and_again(tmp_path: Path) -> None:
    found, told = run(tmp_path, "print('out of luck', flush=True)\nos._exit(3)")
    with pytest.raises(
        PipelineFailed, match=r"spark exited 5 times .* last error: out of luck; see its log .*"
    ):
        found.run()
    assert told.count("spark exited with 3; it is restarted") == MAX_ERRORS - 1
    assert all(process.poll() is not None for process in found.processes.values())


def test_a_run_ends_when_a_stage_says_that_it_cannot_work(tmp_path: Path) -> None:
    found, told = run(tmp_path, "raise ValueError('no')")
    with pytest.raises(InvalidArgument, match=r"declared.py, line .*: ValueError: no"):
        found.run()
    assert not [text for text in told if "restarted" in text]


def test_a_killed_stage_is_restarted_and_its_recovery_time_is_reported(tmp_path: Path) -> None:
    working = (
        "import msgspec, ackflow\n"
        "from ackflow.pipeline.supervisor import report_working\n"
        "with ackflow.connect(msgspec.json.decode(os.environ['ACKFLOW_PIPELINE'])['db']) as q:\n"
        "    report_working(q, pipeline, 'spark')"
    )
    found, told = run(tmp_path, working)
    kills = ["spark"]

    def each(run: Run) -> None:
        if kills and "spark" in str(run._q.values(run.pipeline.state_key("working"))):
            run.kill(kills.pop())
        elif not kills and [text for text in told if "working again" in text]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        found.run(each=each)
    (event,) = [event for event in found.events if event["what"] == "recovered"]
    assert event["stage"] == "spark"
    assert event["seconds"] < 30
    with ackflow.connect(tmp_path / "queue.db", upkeep=False) as q:
        (kept,) = recoveries(q, found.pipeline)
    assert (kept.stage, kept.seconds) == ("spark", event["seconds"])


def test_a_client_whose_query_failed_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    found, _ = run(tmp_path, "")
    t = found._q.transaction()
    t.put(found.pipeline.state_key("done", "north"), "query 'owed' failed: too much")
    t.commit()
    with pytest.raises(PipelineFailed, match="north: query 'owed' failed: too much"):
        found.run()
