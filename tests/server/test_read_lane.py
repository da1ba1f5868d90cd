"""Reads whose cost grows with the data have threads and a limit of their own."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import ackflow
from ackflow.server.limits import Limits
from ackflow.store.tx import Tx

from ..running import Running

FEW = {"limits": Limits(waiting_reads=3)}


@pytest.fixture
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    """A server on a file: a database in memory has one connection for all."""
    with ackflow.connect(tmp_path / "q.db") as session:
        running = Running(session, **getattr(request, "param", {}))
        yield running
        running.stop()


@pytest.fixture
def stalled(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Statistics and metrics do not end before this event; others run as always."""
    free = threading.Event()

    def stall(original: Callable[..., Any]) -> Callable[..., Any]:
        def run(tx: Tx, *args: Any) -> Any:
            assert free.wait(30)
            return original(tx, *args)

        return run

    from ackflow.dialects.queen.http import resources
    from ackflow.server import metrics

    monkeypatch.setattr(resources, "queue_views", stall(resources.queue_views))
    monkeypatch.setattr(metrics, "snapshot", stall(metrics.snapshot))
    yield free
    free.set()


def test_probes_pushes_pops_and_acks_run_while_every_heavy_read_is_stalled(
    served: Running, http: httpx.Client, stalled: threading.Event
) -> None:
    with ThreadPoolExecutor(16) as clients:
        reads = [
            clients.submit(httpx.get, served.url + path, timeout=60)
            for path in ["/api/v1/status"] * 5 + ["/metrics"] * 5
        ]
        for path in ("/readyz", "/livez", "/health"):
            assert http.get(path, timeout=5).status_code == 200
        push = {"items": [{"queue": "q", "payload": 1}]}
        assert http.post("/api/v1/push", json=push, timeout=5).status_code == 201
        got = http.get("/api/v1/pop/queue/q?batch=1", timeout=5).json()["messages"]
        ack = {"transactionId": got[0]["transactionId"], "partitionId": got[0]["partitionId"],
               "leaseId": got[0]["leaseId"], "status": "completed"}  # fmt: skip
        assert http.post("/api/v1/ack", json=ack, timeout=5).status_code == 200
        assert not any(read.done() for read in reads)
        stalled.set()
        assert {read.result(30).status_code for read in reads} == {200}


@pytest.mark.parametrize("served", [FEW], indirect=True)
def test_a_heavy_read_above_the_limit_is_refused_with_a_time_to_retry(
    served: Running, http: httpx.Client, stalled: threading.Event
) -> None:
    with ThreadPoolExecutor(16) as clients:
        url = served.url + "/api/v1/resources/queues"
        reads = [clients.submit(httpx.get, url, timeout=60) for _ in range(9)]
        refused = [read.result(10) for read in _done(reads, 4)]
        assert {answer.status_code for answer in refused} == {503}
        assert {answer.headers["retry-after"] for answer in refused} == {"1"}
        assert all("try again later" in answer.text for answer in refused)
        native = http.post("/v1/verbs/queues", json=[False, []], timeout=5)
        assert (native.status_code, native.json()["error"]["code"]) == (503, "server_busy")
        assert http.get("/readyz", timeout=5).status_code == 200
        stalled.set()
        assert sorted(read.result(30).status_code for read in reads) == [200] * 5 + [503] * 4
    assert http.post("/v1/verbs/queues", json=[False, []]).status_code == 200


def _done(reads: list[Any], n: int) -> list[Any]:
    until = threading.Event()
    for _ in range(1_000):
        done = [read for read in reads if read.done()]
        if len(done) >= n:
            return done
        until.wait(0.01)
    raise AssertionError(f"{len(done)} of {n} reads were answered")
