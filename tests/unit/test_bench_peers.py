"""The benchmarks leave out a peer that is not installed completely, and say what is missing."""

from collections.abc import Callable
from pathlib import Path

import pytest
from bench import client, peers, pipeline, server, spark
from bench.measure import QUICK
from bench.report import Table


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def hide(package: str) -> None:
        there = peers.find_spec
        monkeypatch.setattr(
            peers, "find_spec", lambda name: None if name == package else there(name)
        )

    return hide


@pytest.mark.parametrize("part", ["client", "server"])
def test_redis_without_its_python_client_is_left_out(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hide: Callable[[str], None],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    program = tmp_path / "redis-server"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    hide("redis")
    found: list[Table] = (
        client._against_redis([], QUICK, tmp_path)
        if part == "client"
        else server._against_redis([], QUICK)
    )
    assert found == []
    assert "Redis is left out: the Python client of Redis is not" in capsys.readouterr().out


@pytest.mark.parametrize("package", ["pyspark", "pyarrow"])
def test_spark_without_a_package_is_left_out(
    package: str, hide: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    hide(package)
    assert spark.run([], QUICK) == pipeline.run([], QUICK) == []
    assert capsys.readouterr().out.count(f"{package} is not installed") == 2
