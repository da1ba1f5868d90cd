"""Wrong options of `ackflow pipeline`: a sentence, an exit code, and nothing is made."""

import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from ackflow.cli.main import app
from ackflow.errors import InvalidArgument, Unavailable
from ackflow.pipeline import preflight
from ackflow.pipeline.stages import Settings

from .conftest import SHOP

USAGE, NOTHING, UNREACHABLE = 2, 3, 4


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "data" / "ann").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    (tmp_path / "afile").write_text("x" * 100)
    (tmp_path / "wrong.py").write_text("pipeline = Pipeline(\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(line: str) -> Result:
    return CliRunner().invoke(app, ["pipeline", *shlex.split(line)])


def inside(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("generate --out new --transactions -1", "--transactions"),
        ("generate --out new --clients 0", "--clients"),
        ("generate --out afile", "cannot create folder afile/client1: Not a directory"),
        ("run --out new", "--data is required: a folder with one sub-folder per client"),
        ("run --out new --stage worker", "--data is required"),
        ("run --data nowhere --out new", "data folder not found: nowhere"),
        ("run --data afile --out new", "data folder not found: afile"),
        ("run --data empty --out new", "data folder empty has no sub-folder for a client"),
        ("run --data data --out afile", "afile: File exists"),
        ("run --data data --out afile/new --db new.db", "afile/new: Not a directory"),
        ("run --data data --out new --workers 0", "--workers"),
        ("run --data data --out new --parts 0", "--parts"),
        ("run --data data --out new --eof-alarm-after 0", "--eof-alarm-after"),
        ("run --data data --out new --db nope://x", "unknown scheme nope://"),
        (
            "run --data data --out new --master nonsense",
            "master must be local[2], spark://host:port",
        ),
        ("run --out new --stage spark --master local[0]", "got 'local[0]'"),
        (
            "run --data data --out new --stage nix",
            "--stage must be one of worker, spark, got 'nix'",
        ),
        (
            "run --data data --out new --stage worker --worker 3",
            "--worker must be an integer from 0 to 2, got 3",
        ),
        ("run --data nowhere --out new --stage worker", "data folder not found: nowhere"),
        ("run --data data --out new --pipeline new.py", "pipeline declaration not found: new.py"),
        ("run --data data --out new --pipeline wrong.py", "wrong.py, line 1: '(' was never closed"),
        ("run --out new --stage spark --pipeline wrong.py", "wrong.py, line 1:"),
        ("status --out new --pipeline wrong.py", "wrong.py, line 1:"),
        ("cancel ann --out new --db nope://x", "unknown scheme nope://"),
        ("check new.py", "pipeline declaration not found: new.py"),
        ("check wrong.py", "wrong.py, line 1: '(' was never closed"),
        ("run --data data --out new --results xml", "--results"),
        ("run --data data --out new --conf cores=1", "--conf must be spark.NAME=VALUE"),
        ("run --data data --out new --conf spark.cores.max", "got 'spark.cores.max'"),
        (
            "run --data data --out new --conf spark.sql.ansi.enabled=false",
            "--conf cannot change spark.sql.ansi.enabled",
        ),
    ],
)
def test_what_is_wrong_is_told_and_nothing_is_made(folder: Path, line: str, told: str) -> None:
    before = inside(folder)
    found = invoke(line)
    assert (found.exit_code, told in " ".join(found.output.split())) == (USAGE, True), found.output
    assert "Traceback" not in found.output
    assert inside(folder) == before


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("status --out new", UNREACHABLE),
        ("cancel ann --out empty", UNREACHABLE),
        ("answers --so-far ann --out empty --to new", UNREACHABLE),
        pytest.param(
            "run --data data --out new --db http://127.0.0.1:1",
            UNREACHABLE,
            marks=pytest.mark.outer,
        ),
        ("run --data data --out new --db empty", 1),
        ("run --data data --out new --db afile", 1),
    ],
)
def test_a_database_that_is_not_there_is_told_and_not_made(
    folder: Path, line: str, code: int
) -> None:
    before = inside(folder)
    found = invoke(line)
    assert found.exit_code == code, found.output
    assert found.output.startswith("ackflow: ")
    assert inside(folder) == before


def test_a_client_that_nobody_knows_is_told_on_the_command_line(folder: Path) -> None:
    assert invoke("run --data data --out out --master spark://127.0.0.1:1").exit_code == UNREACHABLE
    found = invoke("cancel bob --out out")
    assert found.exit_code == NOTHING
    assert found.output == "ackflow: unknown client 'bob'; nothing was cancelled\n"


def test_settings_of_spark_are_handed_to_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    from ackflow.pipeline import application

    given: dict[str, str] = {}
    monkeypatch.setattr("ackflow.spark.spark_session.start", lambda *_, **conf: given.update(conf))
    conf = preflight.parse_conf(["spark.cores.max=1", "spark.executorEnv.A_B=x=y"])
    settings = Settings(data="", out="", declaration="", master="spark://a:7077", conf=conf)
    application.spark_session(settings, SHOP)
    assert conf.items() <= given.items()
    assert given["spark.sql.session.timeZone"] == "UTC"


def test_python_workers_of_a_local_spark_import_the_pyspark_that_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the zip of its sources, which each of them compiles."""
    found = pytest.importorskip("ackflow.spark.spark_session")
    monkeypatch.setenv("SPARK_HOME", "theirs")
    found.use_installed_pyspark(tmp_path / "mine")
    assert os.environ["SPARK_HOME"] == "theirs"
    assert not (tmp_path / "mine").exists()
    monkeypatch.delenv("SPARK_HOME")
    for _ in range(2):
        found.use_installed_pyspark(tmp_path / "mine")
        home = Path(os.environ.pop("SPARK_HOME"))
        assert home == tmp_path / "mine"
        assert (home / "bin" / "spark-submit").is_file()
        assert list((home / "jars").glob("spark-core*.jar"))
        assert not (home / "python").exists()
    (home / "conf").unlink()
    (home / "conf").symlink_to(tmp_path / "of another installation")
    found.use_installed_pyspark(tmp_path / "mine")
    assert (home / "conf").readlink() == (home / "bin").readlink().with_name("conf")
    os.environ.pop("SPARK_HOME")


def test_a_file_system_without_links_does_not_stop_a_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = pytest.importorskip("ackflow.spark.spark_session")

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.delenv("SPARK_HOME", raising=False)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "symlink_to", refuse)
        found.use_installed_pyspark(tmp_path / "mine")
    assert "SPARK_HOME" not in os.environ
    (tmp_path / "a file").touch()
    found.use_installed_pyspark(tmp_path / "a file" / "mine")
    assert "SPARK_HOME" not in os.environ
    monkeypatch.setattr(found.pyspark, "__file__", str(tmp_path / "pyspark" / "__init__.py"))
    found.use_installed_pyspark(tmp_path / "other")
    assert "SPARK_HOME" not in os.environ


@pytest.mark.parametrize(
    "master",
    ["local", "local[*]", "local[2]", "local[2, 3]", "local-cluster[2,1,1024]", "yarn",
     "spark://a:7077", "spark://a:7077,b:7077", "k8s://https://a:6443"],
)  # fmt: skip
def test_what_spark_calls_a_master_is_one(master: str) -> None:
    assert preflight.check_master(master) == master


@pytest.mark.parametrize("master", ["", "nonsense", "local[0]", "local[x]", "spark://a", "a:7077"])
def test_what_spark_does_not_know_is_no_master(master: str) -> None:
    with pytest.raises(InvalidArgument, match="master must be"):
        preflight.check_master(master)


def test_one_master_of_several_must_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        preflight.check_reachable(f"spark://127.0.0.1:1,127.0.0.1:{port}")
    with pytest.raises(Unavailable, match=r"cannot connect to Spark master .*: Connection refused"):
        preflight.check_reachable("spark://127.0.0.1:1")


def test_what_a_run_tells_is_in_a_file_before_the_run_is_killed() -> None:
    told = "import os; from ackflow.pipeline.run import print_line; print_line('client1/stores: 1 batch'); os._exit(9)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (9, "client1/stores: 1 batch\n")
