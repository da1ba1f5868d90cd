"""The dashboard beside a loaded server: how long its pages take, and what they cost the pushes.

The database has many queues, messages and dead letters. Every endpoint is asked in turn, as open pages
do, while another client pushes; the pushes are counted with and without the pages. A browser opens the
overview with an empty cache. To make the database takes minutes: `ACKFLOW_BENCH_BOARD` names a file that
is made by the first run and used again by later ones.
"""

import http.client
import json
import os
import shutil
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
PAINT_MS = 500.0
OPENED = 11  # times that the overview is opened
READINGS = 40  # of each page
KEPT_ANSWERS = "overview", "dead letters by error"  # computed once for several readings
KEPT_FILE = os.environ.get("ACKFLOW_BENCH_BOARD")
PAINTED = """
const done = arguments[arguments.length - 1], until = performance.now() + 30000;
(function look() {
  const paint = performance.getEntriesByName("first-contentful-paint")[0];
  const value = document.querySelectorAll(".stat-value")[3]?.textContent;
  if (paint && value && value !== "\u2013") return done([paint.startTime, performance.now()]);
  performance.now() > until ? done(null) : setTimeout(look, 5);
})();"""


def run(messages: list[Json], plan: Plan) -> list[Table]:
    whole = plan.deep >= 1_000_000
    sizes = (5_000_000, 10_000, 100_000) if whole else (300_000, 1_000, 10_000)
    with folder() as path:
        file = Path(KEPT_FILE) if KEPT_FILE else path / "board.db"
        if not file.exists():
            fill(file, messages, *sizes)
        with served(file) as url:
            return [
                latencies(url, sizes),
                first_paint(url, path),
                pushes(url, messages, plan.rounds),
            ]


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
        "queue": [
            large,
            f"/v1/series?queue={LARGE}&step=60&count=1440",
            f"{large}/partitions?limit=20",
        ],
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


def latencies(url: str, sizes: Sequence[int]) -> Table:
    """The time of each page as the 95th percentile, and the first one where the answer is kept."""
    total, queues, dead = sizes
    title = f"Dashboard: {total:,} messages, {queues:,} queues, {dead:,} dead letters"
    table = Table(title, ("p95", "limit"))
    for what, paths in pages(url).items():
        times = []
        for _ in range(READINGS):
            start = time.perf_counter()
            for path in paths:
                get(url, path)
            times.append((time.perf_counter() - start) * 1e3)
        table.rows.append(Row(what, "ms", [quantiles(times, n=20)[-1]], [LIMIT_MS], FAST))
        if what in KEPT_ANSWERS:
            table.rows.append(Row(f"{what}, first time", "ms", times[:1], [LIMIT_MS], FAST))
    return table


def first_paint(url: str, path: Path) -> Table:
    """The time until a browser with an empty cache shows the overview, and until its figures."""
    table = Table("Dashboard: the overview in Chromium", ("opened", "limit"))
    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in programs:
        table.notes.append("not measured: Chromium is missing")
        return table
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = programs[0] or ""
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={path}/profile"):
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options, service=Service(programs[1]))
    painted, filled = [], []
    try:
        browser.execute_cdp_cmd("Network.enable", {})
        browser.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": True})
        for _ in range(OPENED):
            browser.get("about:blank")
            browser.get(url + "/ui/")
            found = browser.execute_async_script(PAINTED)
            if found is None:
                raise RuntimeError("the overview showed no figures within 30 s")
            painted.append(found[0])
            filled.append(found[1])
    finally:
        browser.quit()
    bound = [PAINT_MS] * OPENED
    table.rows.append(Row("first paint", "ms", painted, bound, FAST))
    table.rows.append(Row("with its figures", "ms", filled, bound))
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
            with urllib.request.urlopen(url + path, timeout=60) as answer:
                answer.read()
        stop.wait(max(PAUSE, 10 * (time.perf_counter() - start)))


def push_rate(url: str, messages: list[Json]) -> float:
    """The rate of a client in a process of its own, so that it does not wait for those that read."""
    command = [sys.executable, "-m", "bench.dashboard", url, json.dumps(messages[0])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return float(done.stdout)


def push_for_a_while(url: str, message: Json) -> float:
    connection = http.client.HTTPConnection(url.removeprefix("http://"))
    body = json.dumps({"items": [{"queue": "pushed", "payload": message}]})
    headers = {"content-type": "application/json"}
    end, count = time.perf_counter() + PUSH_SECONDS, 0
    start = time.perf_counter()
    while time.perf_counter() < end:
        connection.request("POST", "/api/v1/push", body, headers)
        connection.getresponse().read()
        count += 1
    connection.close()
    return count / (time.perf_counter() - start)


if __name__ == "__main__":
    print(push_for_a_while(sys.argv[1], json.loads(sys.argv[2])))
