"""The Grafana dashboard and the alert rules name metrics that the server exports."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

import ackflow
from ackflow import VirtualClock
from ackflow.worker import Jobs

from ..running import Running

DEPLOY = Path(__file__).parents[2] / "deploy"
NAME = re.compile(r"\b(?:ackflow|process)_[a-z_]+\b")


def expressions() -> list[tuple[str, str]]:
    """Every query, with the panel or alert it belongs to."""
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    found = [
        (panel["title"], target["expr"]) for panel in board["panels"] for target in panel["targets"]
    ]
    rules = yaml.safe_load((DEPLOY / "prometheus-alerts.yml").read_text())
    for group in rules["groups"]:
        found += [(rule["alert"], rule["expr"]) for rule in group["rules"]]
    return found


@pytest.fixture
def exported(clock: VirtualClock) -> Iterator[str]:
    with ackflow.connect(":memory:", clock=clock, upkeep=False) as session:
        running = Running(session)
        yield metrics_of(running)
        running.stop()


def metrics_of(served: Running) -> str:
    q = served.session
    q.group("orders", "g", retry_limit=1)
    q.push("orders", [1, 2])
    messages = q.pop("orders", group="g", batch=2)
    messages[0].ack()
    messages[1].nack("broken")
    Jobs(q).run_unique("owner", "import", lambda job: False)
    httpx.get(served.url + "/metrics")  # the second answer has the request of the first
    return httpx.get(served.url + "/metrics").text


def test_every_query_names_metrics_and_labels_that_exist(exported: str) -> None:
    samples = [line for line in exported.splitlines() if not line.startswith("#")]
    names = {re.split(r"[{ ]", line)[0] for line in samples}
    labels = set(re.findall(r'[{,]([a-z_]+)="', exported)) | {"instance", "job"}
    asked = expressions()
    assert len(asked) > 25
    for where, query in asked:
        for name in NAME.findall(re.sub(r'"[^"]*"', '""', query)):
            assert name in names or f"{name}_total" in names or name == "ackflow_info", (
                where,
                name,
            )
        used = re.findall(r"[{,]\s*([a-z_]+)\s*=", query)
        used += [
            one for some in re.findall(r"(?:by|on) \(([^)]*)\)", query) for one in some.split(", ")
        ]
        assert set(used) <= labels, (where, used)


def test_every_panel_has_a_place_and_a_query() -> None:
    panels = json.loads((DEPLOY / "grafana-dashboard.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert panel["targets"]
