"""The dashboard on PostgreSQL, and on several databases as one."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

import ackflow
from ackflow import Session, VirtualClock, ids
from ackflow.broker.sharded.broker import ShardedBroker
from ackflow.errors import NotFound

from .conftest import FLAGS, Board, Browser, need
from .seed import seed
from .test_pages import PAGES

OWN = {"x-ackflow-ui": "1", "sec-fetch-site": "same-origin"}
ONE_DATABASE = ("work", "pipelines")  # a tick or job and its queue are in one database


@pytest.fixture(params=["several", pytest.param("postgres", marks=pytest.mark.outer)])
def board(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Board]:
    """A server on two files, or on PostgreSQL; seeded as that of the other tests."""
    # The ids decide where a queue lives: with these, both files have some.
    stores = chain((5, 6), iter(ids.new_store, None))
    monkeypatch.setattr(ids, "new_store", lambda: next(stores))
    clock = VirtualClock(time.time() - 900)
    place: Any = [str(tmp_path / "one.db"), str(tmp_path / "two.db")]
    if request.param == "postgres":
        place = request.getfixturevalue("postgres_url")
    with ackflow.connect(place, clock=clock, upkeep=False) as session:
        seed(session, clock, history=12)
        yield Board(session, clock)


class Client:
    """Calls the endpoints of the dashboard as its pages do."""

    def __init__(self, board: Board) -> None:
        self._base, self._clock = board.url, board.clock

    def get(self, path: str, **query: Any) -> Any:
        return self._call("GET", path, params=query)

    def post(self, path: str, body: Any = None, **query: Any) -> Any:
        return self._call("POST", path, json=body or {}, params=query)

    def _call(self, method: str, path: str, **more: Any) -> Any:
        self._clock.advance(0.001)  # the audits of two databases are merged by time
        answer = httpx.request(method, self._base + path, headers=OWN, timeout=60, **more)
        assert answer.status_code < 300, (path, answer.text)
        return answer.json() if answer.content else None

    def patch(self, path: str, body: Any) -> Any:
        return self._call("PATCH", path, json=body)

    def delete(self, path: str) -> Any:
        return self._call("DELETE", path)


def test_figures_are_those_of_all_databases(board: Board) -> None:
    q, client = board.session, Client(board)
    queues = {one["name"]: one for one in client.get("/v1/queues", limit=1000)["items"]}
    assert sorted(queues) == sorted(one.name for one in q.queues())
    if isinstance(q.broker, ShardedBroker):
        held = [
            len(one.opened.read(lambda tx: tx.queues())) for one in q.broker.databases if one.opened
        ]
        assert all(held), "both databases have queues"
    for stats in q.queues():
        row = queues[stats.name]
        assert (row["stored"], row["dead"]) == (stats.messages, stats.dead_letters)
    overview = client.get("/v1/overview")
    assert overview["totals"]["ready"] == sum(one["ready"] for one in queues.values())
    assert overview["totals"]["dead"] == 12
    chart = client.get("/v1/series", step=60, count=12)["items"]
    parts = [client.get("/v1/series", queue=name, step=60, count=12)["items"] for name in queues]
    for at, step in enumerate(chart[3:-1], 3):
        rates = sum(one[at]["rates"]["pushed"] for one in parts)
        assert step["rates"]["pushed"] == pytest.approx(rates, abs=0.01)  # each is rounded
    assert sum(step["rates"]["pushed"] for step in chart) > 0
    assert [one["count"] for one in client.get("/v1/dead")["items"]] == [3, 3, 3, 3]
    assert {one["consumer"] for one in client.get("/v1/leases")["items"]} >= {"billing-7f2c"}


def test_every_endpoint_of_the_pages_answers(board: Board) -> None:
    client = Client(board)
    client.get("/v1/groups")
    client.get("/v1/tokens")
    client.get("/v1/jobs")
    client.get("/v1/schedules")
    client.get("/v1/pipelines")
    orders = "/v1/queues/orders"
    assert client.get(orders)["details"]["partitions"] == 5
    waiting = client.get(f"{orders}/messages", group="billing", state="waiting")["items"]
    failed = next(one for one in waiting if "later" not in one["payload"])
    fate = client.get(f"{orders}/messages/{failed['id']}")
    assert (
        next(one for one in fate["groups"] if one["group"] == "billing")["why"]["state"]
        == "waiting"
    )
    assert client.get("/v1/locate", id=failed["id"])["queue"] == "orders"
    assert client.get(f"{orders}/messages/{failed['id']}/payload")["password"] == "hunter2"
    page = client.get(f"{orders}/groups/shipping/partitions", limit=2)
    rest = client.get(f"{orders}/groups/shipping/partitions", after=page["next"])
    assert len({one["partition"] for one in page["items"] + rest["items"]}) == 5
    assert client.get(f"{orders}/groups/billing/seek", to="start")["again"] > 0
    dead = client.get("/v1/queues/payments/dead", limit=5)
    older = client.get("/v1/queues/payments/dead", after=dead["next"])
    assert len({one["id"] for one in dead["items"] + older["items"]}) == 12


def test_actions_change_the_database_of_the_queue_and_are_in_the_audit(board: Board) -> None:
    q, client = board.session, Client(board)
    made = client.post("/v1/queues/made/messages", {"items": [{"data": n} for n in range(5)]})
    assert [q.message("made", id).data for id in made["ids"]] == list(range(5))
    client.post("/v1/queues/made/pause", {"paused": True})
    assert q.queue_stats("made").paused
    client.post("/v1/queues/made/pause", {"paused": False})
    client.patch("/v1/queues/made", {"options": {"max_size": 77}})
    assert q.queue_stats("made").options.max_size == 77
    client.patch("/v1/queues/made/groups/g", {"options": {"retry_limit": 3}})
    first, second, third = q.pop("made", group="g", batch=3)
    lease = client.get("/v1/leases", queue="made")["items"][0]
    client.post(f"/v1/queues/made/leases/{lease['token']}/extend", {"seconds": 900})
    settle = {"group": "g", "verdict": "reject", "reason": "by hand"}
    client.post(f"/v1/queues/made/messages/{first.id}/settle", settle)
    client.delete(f"/v1/queues/made/messages/{second.id}")
    assert client.post(f"/v1/queues/made/leases/{lease['token']}/release")["done"] == 1
    assert q.why("made", third.id, group="g").state == "ready"
    redrive = "/v1/queues/made/dead/redrive"
    assert client.post(redrive, {"dry_run": True})["done"] == 1
    assert client.post(redrive)["done"] == 1
    assert not list(q.dead_letters("made"))
    client.post("/v1/queues/made/groups/g/seek", to="end")
    assert q.group_stats("made", "g").counts.ready == 0
    assert client.post("/v1/queues/payments/dead/purge", {"kind": "rejected"})["done"] == 3
    client.post("/v1/queues/made/purge")
    client.delete("/v1/queues/made/groups/g")
    client.delete("/v1/queues/made")
    with pytest.raises(NotFound):
        q.queue_stats("made")
    found = client.get("/v1/audit")
    assert [one["action"] for one in found] == [
        "delete queue", "delete group", "purge", "purge dead letters", "seek", "redrive",
        "release lease", "delete message", "reject", "extend lease", "configure group", "configure",
        "resume", "pause", "push",
    ]  # fmt: skip
    seen, before = [], {}
    while page := client.get("/v1/audit", limit=4, **before):
        seen += page
        before = {"before": page[-1]["id"]}
    assert seen == found
    secret = client.post("/v1/tokens", {"name": "reader"})["token"]
    assert secret.startswith("ackflow_")
    board.serve()  # a server looks for tokens when it starts, and every second
    assert httpx.get(f"{board.url}/v1/tokens", headers=OWN).status_code == 401


def spread(tmp_path: Path, clock: VirtualClock) -> Session:
    q = ackflow.connect([str(tmp_path / "a.db"), str(tmp_path / "b.db")], clock=clock, upkeep=False)
    q.configure("wide", spread=True)
    for n in range(40):
        q.push("wide", {"n": n}, partition=f"p{n % 8}")
    for message in [m for _ in range(8) for m in q.pop("wide", batch=3)]:
        message.reject(f"error {message.data['n']}")
    return q


def test_a_queue_that_is_spread_is_shown_as_one(tmp_path: Path, clock: VirtualClock) -> None:
    with spread(tmp_path, clock) as q:
        board = Board(q, clock)
        client = Client(board)
        stats = q.queue_stats("wide")
        assert client.get("/v1/queues/wide")["details"]["messages"] == stats.messages == 40
        assert client.get("/v1/queues/wide")["details"]["partitions"] == 8
        seen, after = [], {}
        while True:
            page = client.get("/v1/queues/wide/messages", limit=7, **after)
            seen += [one["id"] for one in page["items"]]
            if page["next"] is None:
                break
            after = {"after": page["next"]}
        assert len(seen) == len(set(seen)) == 40
        group = "/v1/queues/wide/groups/__QUEUE_MODE__"
        names, query = set(), {}
        while True:
            page = client.get(f"{group}/partitions", limit=3, **query)
            names |= {one["partition"] for one in page["items"]}
            if page["next"] is None:
                break
            query = {"after": page["next"]}
        assert names == {f"p{n}" for n in range(8)}
        (dead,) = client.get("/v1/dead")["items"]
        assert (dead["error"], dead["count"]) == ("error #", stats.dead_letters)
        answer = httpx.get(f"{board.url}/v1/queues/wide/dead")
        assert answer.status_code == 400
        assert "spread over several databases" in answer.json()["error"]["message"]


@pytest.mark.outer
def test_every_page_shows_what_is_there(board: Board) -> None:
    several = isinstance(board.session.broker, ShardedBroker)
    waiting = board.get("/v1/queues/orders/messages", group="billing", state="waiting")["items"]
    failed = next(one for one in waiting if "later" not in one["payload"])
    options = Options()
    options.binary_location = need(shutil.which("chromium"), "Chromium")
    driver = need(shutil.which("chromedriver"), "ChromeDriver")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
        started = webdriver.Chrome(options=options, service=Service(driver))
        try:
            browser = Browser(started, board.url)
            for name, (path, texts) in PAGES.items():
                browser.open(path.format(message=failed["id"]))
                browser.sees(*(["No "] if several and name in ONE_DATABASE else texts))
                assert browser.problems() == []
            browser.open("", "2 databases" if several else "PostgreSQL")
        finally:
            started.quit()
