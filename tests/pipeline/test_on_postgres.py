"""A whole run on PostgreSQL, whose server dies on the way as everything else may."""

import time
from pathlib import Path

import pytest

from ackflow.pipeline.run import Run

from ..postgres import server as postgres
from .conftest import generate
from .test_end_to_end import check, kill_jvm, settings

APART = 2.0
pytestmark = [pytest.mark.outer, pytest.mark.spark, pytest.mark.timeout(600)]


class Killer:
    """Kills a worker, the server when something is folded, and then Spark."""

    def __init__(self, server: postgres.Server) -> None:
        self.server = server
        self.kills = [self.kill_worker, self.kill_server, self.kill_spark]
        self.last = time.monotonic()

    def __call__(self, run: Run) -> None:
        if self.kills and time.monotonic() - self.last > APART and self.kills[0](run):
            self.kills.pop(0)
            self.last = time.monotonic()

    def kill_worker(self, run: Run) -> bool:
        run.kill("worker-0")
        return True

    def kill_server(self, run: Run) -> bool:
        if not run.progress():
            return False
        self.server.kill()
        self.server.start()
        return True

    def kill_spark(self, run: Run) -> bool:
        kill_jvm(run.processes["spark"].pid)
        return True


def test_a_run_on_postgres_answers_as_plain_python_does_whatever_is_killed(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    generate(data, transactions=300, clients=2, seed=5)
    with postgres.running() as server:
        killer = Killer(server)
        assert Run(settings(data, out, db=server.url), print).run(each=killer) is True
        assert len(killer.kills) < 2
        check(data, out)
        assert not (out / "pipeline.db").exists()
        assert Run(settings(data, out, db=server.url), print).run() is False
