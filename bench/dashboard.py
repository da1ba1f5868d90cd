"""The dashboard beside a loaded server: how long its pages take, and what they cost the pushes.

The database has many queues, messages and dead letters. Every endpoint is asked in turn, as open pages
do, while another client pushes; the pushes are counted with and without the pages.
"""

import http.client
import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from typing import Any

import ackflow

from .measure import Json, Plan, folder
from .report import Row, Table, Target

FAST = Target(1.0, at_least=False)
KEPT = Target(0.9)
LIMIT_MS = 1_000.0
DEAD = "dead.letters"
LARGE = "large"
PUSH_SECONDS = 6.0
PAUSE = 2.0  # a page is read again so much later


def run(messages: list[Json], plan: Plan) -> list[Table]:
    whole = plan.deep >= 1_000_000
    sizes = (5_000_000, 10_000, 100_000) if whole else (300_000, 1_000, 10_000)
    with folder() as path:
        fill(path / "board.db", messages, *sizes)
        with served(path / "board.db") as url:
            return [latencies(url, sizes, 40 if whole else 15), pushes(url, messages, plan.rounds)]


def fill(path: Path, messages: list[Json], total: int, queues: int, dead: int) -> None:
    """A large queue, many small ones with a group each, and dead letters of a hundred errors."""
    with ackflow.connect(path, may_lose="everything") as q:
        q.configure(DEAD, history_seconds=300)
        for at in range(0, dead, 1_000):
            q.push(DEAD, messages[:1_000])
            for n, message in enumerate(q.pop(DEAD, batch=1_000)):
                message.reject(f"error {n % 100:03}x: order {at + n} failed")
        each = 5
        for n in range(queues):
            q.push(f"shop.{n:05}", messages[:each])
            q.pop(f"shop.{n:05}", batch=1)
        left = total - dead - each * queues
        while left > 0:
            some = min(left, len(messages), 50_000)
            q.push(LARGE, messages[:some])
            left -= some
        q.ack(q.pop(LARGE, batch=50_000))
        q.pop(LARGE, batch=1_000)


@contextmanager
def served(path: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "ackflow", "serve", "--db", str(path), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().split()[-1]
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield url
    finally:
        process.terminate()
        process.wait()


def pages(url: str) -> dict[str, list[str]]:
    """What each page reads."""
    large = f"/v1/queues/{LARGE}"
    stored = get(url, f"{large}/messages?limit=1")["items"][0]["id"]
    return {
        "overview": ["/v1/overview", "/v1/series?step=60&count=60"],
        "queues": ["/v1/queues?limit=100&sort=oldest&descending=true&sparks=true"],
        "queue": [large, f"/v1/series?queue={LARGE}&step=60&count=1440"],
        "messages, leased": [f"{large}/messages?group=__QUEUE_MODE__&state=leased&seconds=1"],
        "messages, ready": [f"{large}/messages?group=__QUEUE_MODE__&state=ready&seconds=1"],
        "message": [f"{large}/messages/{stored}"],
        "dead letters by error": ["/v1/dead?seconds=1"],
        "dead letters": [f"/v1/queues/{DEAD}/dead?limit=50"],
        "groups": ["/v1/groups?limit=100"],
        "group": [f"{large}/groups/__QUEUE_MODE__/partitions"],
        "leases": ["/v1/leases?limit=200&seconds=0.5"],
        "audit": ["/v1/audit"],
        "search that finds nothing": [f"{large}/messages?text=nothing-like-it&seconds=0.7"],
    }


def get(url: str, path: str) -> Any:
    with urllib.request.urlopen(url + path, timeout=60) as answer:
        return json.load(answer)


def latencies(url: str, sizes: Sequence[int], count: int) -> Table:
    """The time of each page, as the 95th percentile."""
    total, queues, dead = sizes
    title = f"Dashboard: {total:,} messages, {queues:,} queues, {dead:,} dead letters"
    table = Table(title, ("p95", "limit"))
    for what, paths in pages(url).items():
        times = []
        for _ in range(count):
            start = time.perf_counter()
            for path in paths:
                get(url, path)
            times.append((time.perf_counter() - start) * 1e3)
        table.rows.append(Row(what, "ms", [quantiles(times, n=20)[-1]], [LIMIT_MS], FAST))
    return table


def pushes(url: str, messages: list[Json], rounds: int) -> Table:
    """Single pushes per second while every page is open, and while none is."""
    table = Table("Dashboard: pushes beside it", ("pages open", "no page"))
    beside, alone = [], []
    for _ in range(rounds):
        alone.append(push_rate(url, messages))
        stop = threading.Event()
        readers = [
            threading.Thread(target=keep_reading, args=(url, paths, stop))
            for paths in pages(url).values()
        ]
        for reader in readers:
            reader.start()
        try:
            beside.append(push_rate(url, messages))
        finally:
            stop.set()
            for reader in readers:
                reader.join()
    table.rows.append(Row("pushes of one message", "per s", beside, alone, KEPT))
    return table


def keep_reading(url: str, paths: list[str], stop: threading.Event) -> None:
    """Read a page as the browser does: two seconds after the last time, or later if it is slow."""
    while not stop.is_set():
        start = time.perf_counter()
        for path in paths:
            get(url, path)
        stop.wait(max(PAUSE, 4 * (time.perf_counter() - start)))


def push_rate(url: str, messages: list[Json]) -> float:
    connection = http.client.HTTPConnection(url.removeprefix("http://"))
    body = json.dumps({"items": [{"queue": "pushed", "payload": messages[0]}]})
    headers = {"content-type": "application/json"}
    end, count = time.perf_counter() + PUSH_SECONDS, 0
    start = time.perf_counter()
    while time.perf_counter() < end:
        connection.request("POST", "/api/v1/push", body, headers)
        connection.getresponse().read()
        count += 1
    connection.close()
    return count / (time.perf_counter() - start)
