"""The broker a query works with is killed and started again while batches run."""

import contextlib
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import pytest
from pyspark.errors import AnalysisException

from ..server.conftest import free_port
from .conftest import Lab


class Served:
    """A server process on a database that can be killed and started again on its port."""

    def __init__(self, db: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [sys.executable, "-m", "ackflow", "serve", "--db", db]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [*self._command, "--port", str(self.port), "--log-level", "error"]
        )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"{self.url}/livez", timeout=5),
            ):
                return
            time.sleep(0.05)
        raise AssertionError("the server did not start")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def served(lab: Lab) -> Iterator[Served]:
    found = Served(lab.url)
    yield found
    found.kill()


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param([300], id="once"),
        pytest.param([300, 1500], id="twice", marks=pytest.mark.outer),
    ],
)
def test_a_broker_that_is_killed_and_restarted_is_ridden_out(
    lab: Lab, served: Served, kills: list[int]
) -> None:
    """Each kill comes when so many messages are done."""
    rows = 1500 * len(kills)
    lab.q.push("in", list(range(rows)))
    lab.q.group("in", "g")
    file, lab.url = lab.url, served.url
    frame = lab.read(maxRowsPerTrigger=300, payload="string").select("payload")
    writer = frame.writeStream.format("ackflow").option("url", lab.url).option("queue", "out")
    writer = writer.option("checkpointLocation", lab.checkpoint("query"))
    query = writer.trigger(availableNow=True).start()
    for done in kills:
        deadline = time.monotonic() + 120
        while lab.counts().done < done and time.monotonic() < deadline:
            time.sleep(0.02)
        served.kill()
        served.start()
    query.awaitTermination()
    lab.url = file
    assert sorted(lab.out()) == list(range(rows))  # type: ignore[type-var]
    assert lab.counts().done == rows


def test_a_broker_that_is_not_there_is_named_when_the_stream_is_loaded(lab: Lab) -> None:
    lab.url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(AnalysisException, match=r"127\.0\.0\.1.* cannot be reached"):
        lab.read(retrySeconds=0.1)
