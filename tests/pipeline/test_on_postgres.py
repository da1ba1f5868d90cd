"""A whole run on PostgreSQL, whose server dies on the way as everything else may."""

import time
from pathlib import Path

import pytest

from ackflow.pipeline.run import Run

from ..postgres import server as postgres
from .conftest import generate
from .test_end_to_end import check, kill_jvm, settings

pytestmark = [pytest.mark.outer, pytest.mark.spark, pytest.mark.timeout(600)]


class Killer:
    """Kills a worker, the server and Spark, each after some time."""

    def __init__(self, server: postgres.Server) -> None:
        self.server = server
        self.due = [(2.0, "worker"), (14.0, "server"), (22.0, "jvm")]
        self.began = time.monotonic()
        self.killed: list[str] = []

    def __call__(self, run: Run) -> None:
        if not self.due or time.monotonic() - self.began < self.due[0][0]:
            return
        _, kind = self.due.pop(0)
        self.killed.append(kind)
        if kind == "server":
            self.server.kill()
            self.server.start()
        elif kind == "jvm":
            kill_jvm(run.processes["spark"].pid)
        else:
            run.kill(next(name for name in run.processes if name.startswith(kind)))


def test_a_run_on_postgres_answers_as_plain_python_does_whatever_is_killed(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    generate(data, transactions=300, clients=2, seed=5)
    with postgres.running() as server:
        killer = Killer(server)
        assert Run(settings(data, out, db=server.url), print).run(each=killer) is True
        assert "server" in killer.killed
        check(data, out)
        assert not (out / "pipeline.db").exists()
        assert Run(settings(data, out, db=server.url), print).run() is False
