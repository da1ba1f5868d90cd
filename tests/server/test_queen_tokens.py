"""The Queen dialect under tokens: each sees and changes the queues it is good for, and no others."""

from typing import Any

import httpx
import pytest

from ackflow.broker import access_tokens
from ackflow.server import authn

from ..running import Running

MINE, OTHER = "mine.a", "other.b"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a server look at the tokens with every request."""
    monkeypatch.setattr(authn, "RELOAD_SECONDS", 0.0)


@pytest.fixture
def partitions(served: Running, http: httpx.Client) -> dict[str, str]:
    """Two queues with a group, a dead letter and a trace each; the ids of their partitions."""
    homes = {}
    for queue in (MINE, OTHER):
        q = served.session
        q.push(queue, [1, 2])
        q.pop(queue, group="workers")[0].reject("bad")
        found = http.get(f"/api/v1/resources/queues/{queue}").json()
        homes[queue] = found["partitions"][0]["id"]
        id = q.browse(queue).items[0].id
        body = {"transactionId": id, "partitionId": homes[queue], "data": {}, "traceNames": queue}
        assert http.post("/api/v1/traces", json=body).status_code == 201
    return homes


@pytest.fixture
def mine(served: Running, http: httpx.Client, partitions: dict[str, str]) -> httpx.Client:
    """A client whose token is good for one of the queues only."""
    grants = [access_tokens.grant(f"admin:{MINE}")]
    token = served.session.broker.do(access_tokens.create, True, "mine", grants, None)
    http.headers["authorization"] = f"Bearer {token}"
    return http


def get(http: httpx.Client, path: str) -> Any:
    answer = http.get(f"/api/v1/{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_lists_show_only_the_queues_of_the_token(mine: httpx.Client) -> None:
    assert [q["name"] for q in get(mine, "resources/queues")["queues"]] == [MINE]
    assert [q["name"] for q in get(mine, "status/queues")["queues"]] == [MINE]
    assert [n["namespace"] for n in get(mine, "resources/namespaces")["namespaces"]] == ["mine"]
    assert [p["queue"] for p in get(mine, "resources/partitions")["partitions"]] == [MINE]
    assert get(mine, "resources/overview")["messages"]["total"] == 2
    assert get(mine, "status")["queues"] == 1
    assert {m["queue"] for m in get(mine, "messages")["messages"]} == {MINE}
    assert [m["queue"] for m in get(mine, "dlq")["messages"]] == [MINE]
    assert [g["topics"] for g in get(mine, "consumer-groups")["groups"]] == [[MINE]]
    assert list(get(mine, "consumer-groups/workers")) == [MINE]
    assert sum(p["messages"] for p in get(mine, "status/analytics")["dataPoints"]) == 2


def test_the_queues_of_others_are_refused(mine: httpx.Client, partitions: dict[str, str]) -> None:
    home = partitions[OTHER]
    for method, path, body in [
        ("GET", f"dlq?queue={OTHER}", None),
        ("GET", f"messages?queue={OTHER}", None),
        ("GET", f"resources/queues/{OTHER}", None),
        ("GET", f"status/queues/{OTHER}", None),
        ("GET", f"messages/{home}/t", None),
        ("DELETE", f"messages/{home}/t", None),
        ("POST", f"messages/{home}/t/retry", None),
        ("GET", f"traces/{home}/t", None),
        ("POST", "traces", {"partitionId": home, "transactionId": "t", "data": {}}),
        ("POST", "configure", {"queue": OTHER}),
        ("DELETE", f"resources/queues/{OTHER}", None),
        ("DELETE", f"queues/{OTHER}/clear", None),
        ("DELETE", f"consumer-groups/workers/queues/{OTHER}", None),
        ("POST", f"consumer-groups/workers/queues/{OTHER}/seek", {"toEnd": True}),
    ]:
        answer = mine.request(method, f"/api/v1/{path}", json=body)
        assert answer.status_code == 403, (method, path, answer.text)
        assert answer.json()["error"] == "Insufficient permissions"


def test_what_touches_every_queue_needs_a_token_for_every_queue(
    mine: httpx.Client, partitions: dict[str, str]
) -> None:
    subscription = {"subscriptionTimestamp": "2023-01-01"}
    for method, path, body in [
        ("DELETE", "consumer-groups/workers", None),
        ("POST", "consumer-groups/workers/subscription", subscription),
        ("POST", "system/maintenance", {"enabled": True}),
        ("POST", "system/maintenance/pop", {"enabled": True}),
        ("GET", "traces/names", None),
        ("GET", f"traces/by-name/{MINE}", None),
    ]:
        answer = mine.request(method, f"/api/v1/{path}", json=body)
        assert answer.status_code == 403, (method, path, answer.text)


def test_the_queue_of_the_token_is_served(mine: httpx.Client, partitions: dict[str, str]) -> None:
    assert get(mine, f"dlq?queue={MINE}")["total"] == 1
    assert mine.post("/api/v1/configure", json={"queue": MINE}).status_code == 200
    path = f"/api/v1/consumer-groups/workers/queues/{MINE}"
    assert mine.post(f"{path}/seek", json={"toEnd": True}).status_code == 200
    assert mine.delete(path).status_code == 200
    assert mine.delete(f"/api/v1/resources/queues/{MINE}").status_code == 200


def test_a_stream_reads_and_writes_only_queues_of_the_token(
    mine: httpx.Client, partitions: dict[str, str]
) -> None:
    def register(source: str, sink: str | None) -> httpx.Response:
        body = {"name": "q", "source_queue": source, "config_hash": "h", "sink_queue": sink}
        return mine.post("/streams/v1/queries", json=body)

    assert register(OTHER, None).status_code == 403
    assert register(MINE, OTHER).status_code == 403
    query = register(MINE, None).json()["query_id"]
    for home, push in [(OTHER, MINE), (MINE, OTHER)]:
        items = [{"queue": push, "payload": 1}]
        body = {"query_id": query, "partition_id": partitions[home], "push_items": items}
        assert mine.post("/streams/v1/cycle", json=body).status_code == 403
