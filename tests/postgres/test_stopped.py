"""PostgreSQL: a broker whose process is stopped inside a verb blocks others only for a while."""

import os
import signal
import subprocess
import sys
import time
from urllib.parse import quote

import psutil
import pytest

import ackflow

from . import stopped

# The server terminates a stopped broker after 0.4 seconds; others wait twice 1.5 seconds.
TIMES = "-c idle_in_transaction_session_timeout=400ms -c lock_timeout=1500ms"


@pytest.mark.parametrize("point", stopped.POINTS)
def test_a_stopped_broker_is_cut_off_and_goes_on_when_it_is_continued(
    postgres_url: str, point: str
) -> None:
    url = f"{postgres_url}?options={quote(TIMES)}"
    command = [sys.executable, "-m", stopped.__name__, f"{url}&without=functions", point]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as broker:
        try:
            wait_until_stopped(broker)
            with ackflow.connect(url, upkeep=False) as q:
                q.push("jobs", 3)  # waits, and does not fail
                os.kill(broker.pid, signal.SIGCONT)
                said, _ = broker.communicate(timeout=30)
                assert (broker.returncode, said) == (0, "done\n")
                found = [message.data for message in q.pop("jobs", batch=10)]
                assert sorted(found) == [1, 2, 3], "each is there once"
        finally:
            broker.kill()


def wait_until_stopped(broker: subprocess.Popen[str]) -> None:
    process = psutil.Process(broker.pid)
    deadline = time.monotonic() + 30
    while process.status() != psutil.STATUS_STOPPED:
        assert broker.poll() is None, "it ended"
        assert time.monotonic() < deadline, "it did not stop"
        time.sleep(0.01)
