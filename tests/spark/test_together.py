"""Tests that start Spark are not run beside each other."""

import pytest


def test_what_starts_spark_runs_in_one_of_the_test_processes(
    request: pytest.FixtureRequest,
) -> None:
    spread = getattr(request.config.option, "loadgroup", False)
    assert request.node.nodeid.endswith("@spark") == spread
    assert request.node.get_closest_marker("xdist_group").args == ("spark",)
