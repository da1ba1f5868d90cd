"""A whole run on a standalone cluster whose driver is killed: its standby has a core of its own."""

from pathlib import Path

import pytest

from ackflow.pipeline.run import Run
from tests.spark.test_cluster import Cluster

from .conftest import generate
from .test_end_to_end import Patient, check, settings

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(1800)]

# Each of the two workers of the cluster has one core and 1 GB: one for Spark, one for its standby.
SHARE = {
    "spark.cores.max": "1", "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
}  # fmt: skip


def test_on_a_cluster_the_standby_takes_over_and_the_answers_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ackflow.pipeline.run.STANDBY_AFTER", 0.0)
    data, out = tmp_path / "data", tmp_path / "out"
    generate(data, transactions=300, clients=2, seed=5)
    cluster = Cluster(tmp_path)
    told: list[str] = []
    try:
        run = Run(settings(data, out, master=cluster.url, standby=True, conf=SHARE), told.append)
        assert run.run(each=Patient("spark")) is True
    finally:
        cluster.stop()
    deaths = [text for text in told if text.startswith("spark exited")]
    assert deaths == ["spark exited with -9; its standby takes over"], told
    assert "REDELIVERED (recovering state)" in (out / "spark.log").read_text()
    check(data, out)
