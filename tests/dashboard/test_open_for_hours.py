"""An hour on the overview beside 2,000 messages a second: neither the tab nor the server grows.

Memory is read once a minute. The first fifth of the hour is compared with the last fifth.
"""

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

import ackflow

from .conftest import Board, Browser

SECONDS = float(os.environ.get("ACKFLOW_SOAK_SECONDS", "3600"))
BATCH, PER_SECOND, SAMPLES = 100, 2_000, 60
MB = 1 << 20


def load(url: str, stop: threading.Event, counts: list[int]) -> None:
    """Push, pop and acknowledge at a steady rate."""
    with ackflow.connect(url) as q:
        began = time.monotonic()
        while not stop.is_set():
            q.push("steady", [{"n": n, "text": "x" * 100} for n in range(BATCH)])
            q.ack(q.pop("steady", batch=BATCH))
            counts[0] += BATCH
            stop.wait(max(0.0, counts[0] / PER_SECOND - (time.monotonic() - began)))


def heap(browser: Browser) -> float:
    """The memory of the scripts of the tab, without garbage, in MB."""
    browser.driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
    found = browser.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return next(one["value"] for one in found if one["name"] == "JSHeapUsedSize") / MB


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 600)
def test_an_open_overview_stays_small(
    board: Board, browser: Browser, start_process: Callable[..., Any]
) -> None:
    server = start_process()
    stop, counts = threading.Event(), [0]
    worker = threading.Thread(target=load, args=(server.url, stop, counts))
    worker.start()
    try:
        browser.base = server.url
        browser.driver.execute_cdp_cmd("Performance.enable", {})
        browser.open("", "Busiest queues")
        browser.sees("steady")
        process = psutil.Process(server.process.pid)
        samples: list[tuple[float, float, float]] = []
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            time.sleep(SECONDS / SAMPLES)
            browser.driver.get_log("performance")  # the driver keeps them until they are read
            samples.append((time.monotonic(), heap(browser), process.memory_info().rss / MB))
            print(f"{samples[-1][1]:.2f}/{samples[-1][2]:.1f}", end=" ", flush=True)
        print(f"\n{counts[0]:,} messages in {SECONDS:g} s; above: heap/RSS in MB")
        browser.sees("steady", "Live")
    finally:
        stop.set()
        worker.join()
    fifth = len(samples) // 5
    for what, column, room in (("tab", 1, 3.0), ("server", 2, 60.0)):
        before = sum(one[column] for one in samples[:fifth]) / fifth
        after = sum(one[column] for one in samples[-fifth:]) / fifth
        print(f"{what}: first fifth {before:.2f} MB, last fifth {after:.2f} MB")
        assert after < before + room, (
            f"the memory of the {what} grows: {before:.1f} to {after:.1f} MB"
        )
