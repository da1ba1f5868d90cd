"""Tests that start Spark are in two groups, each in one test process; others may run in any."""

import os

import pytest
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession


@pytest.mark.spark
def test_a_test_with_the_marker_is_in_the_group(request: pytest.FixtureRequest) -> None:
    assert in_group(request.node, "spark processes")
    assert "SPARK_HOME" not in os.environ


def test_a_test_with_the_shared_session_is_in_the_group(
    request: pytest.FixtureRequest, spark: SparkSession
) -> None:
    assert in_group(request.node, "spark")


def test_another_test_is_not_in_the_group_and_cannot_start_spark(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert request.node.get_closest_marker("xdist_group") is None
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    with pytest.raises(FileNotFoundError, match="this-test-needs-the-marker-spark"):
        launch_gateway()


def in_group(item: pytest.Item, name: str) -> bool:
    spread = getattr(item.config.option, "loadgroup", False)
    assert item.nodeid.endswith(f"@{name}") == spread
    marker = item.get_closest_marker("xdist_group")
    return marker is not None and marker.args == (name,)
