"""The Queen dialect: messages looked at one by one, and traces of them."""

from typing import Any

import httpx
import pytest

from ackflow import VirtualClock

from ..running import Running
from .queen_calls import Queen, data

NOBODY = "01234567-89ab-8cde-8f01-23456789abcd"


@pytest.fixture
def queen(http: httpx.Client) -> Queen:
    return Queen(http)


def get(http: httpx.Client, path: str, **query: Any) -> Any:
    answer = http.get(f"/api/v1/{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def path_of(message: dict[str, Any]) -> str:
    home = message.get("partitionId") or message["partition_id"]
    return f"messages/{home}/{message.get('transactionId') or message['transaction_id']}"


def listed(http: httpx.Client, **query: Any) -> list[str]:
    return [m["transactionId"] for m in get(http, "messages", **query)["messages"]]


# the list


def test_messages_are_listed_newest_first_over_all_queues(
    queen: Queen, http: httpx.Client, clock: VirtualClock
) -> None:
    for n, (queue, partition) in enumerate([("a", "x"), ("b", "x"), ("a", "y"), ("a", "x")]):
        queen.push(queue, n, partition=partition, transactionId=f"t{n}")
        clock.advance(1)
    assert listed(http) == ["t3", "t2", "t1", "t0"]
    assert listed(http, limit=2, offset=1) == ["t2", "t1"]
    assert listed(http, queue="a") == ["t3", "t2", "t0"]
    assert listed(http, queue="a", partition="x") == ["t3", "t0"]
    assert listed(http, queue="nothing") == []


def test_without_a_time_the_last_hour_is_listed(
    queen: Queen, http: httpx.Client, clock: VirtualClock
) -> None:
    queen.push("orders", 1, transactionId="old")
    clock.advance(3601)
    queen.push("orders", 2, transactionId="new")
    assert listed(http) == ["new"]
    assert listed(http, **{"from": "2023-11-14"}) == ["new", "old"]
    assert listed(http, to="2023-11-14T23:00:00") == ["old"]
    assert http.get("/api/v1/messages", params={"from": "then"}).status_code == 400


def test_messages_are_listed_by_label(queen: Queen, http: httpx.Client) -> None:
    queen.push("shop.billing", 1, transactionId="t1")
    queen.push("shop.mail", 2, transactionId="t2")
    assert listed(http, ns="shop", task="mail") == ["t2"]
    assert sorted(listed(http, ns="shop")) == ["t1", "t2"]


def test_a_listed_message_says_how_it_stands(queen: Queen, http: httpx.Client) -> None:
    for n in range(4):
        queen.push("orders", n, transactionId=f"t{n}")
    messages = queen.pop("orders", batch=3)
    queen.ack(messages[0])
    queen.ack(messages[1], "dlq")
    found = get(http, "messages", queue="orders")
    assert {m["transactionId"]: m["status"] for m in found["messages"]} == {
        "t0": "completed", "t1": "dead_letter", "t2": "processing", "t3": "pending",
    }  # fmt: skip
    assert found["mode"] == {"hasQueueMode": True, "busGroupsCount": 0, "type": "queue"}
    for status in ("completed", "dead_letter", "processing", "pending"):
        assert len(listed(http, queue="orders", status=status)) == 1
    held = get(http, "messages", status="processing")["messages"][0]
    assert held["leaseExpiresAt"] == "2023-11-14T22:18:20.000000Z"
    assert held["queuePath"] == "orders/Default"
    assert http.get("/api/v1/messages", params={"status": "odd"}).status_code == 400


def test_named_groups_are_told_apart_from_the_queue(queen: Queen, http: httpx.Client) -> None:
    queen.push("orders", 1)
    queen.ack(queen.pop("orders", consumerGroup="a")[0])
    queen.pop("orders", consumerGroup="b")
    found = get(http, "messages")
    assert found["mode"] == {"hasQueueMode": False, "busGroupsCount": 2, "type": "bus"}
    (message,) = found["messages"]
    assert message["busStatus"] == {"consumedBy": 1, "totalGroups": 2}
    queen.pop("orders")
    assert get(http, "messages")["mode"]["type"] == "hybrid"
    assert get(http, "messages", queue="nothing")["mode"]["type"] == "none"


def test_the_messages_of_a_queue_have_a_path_of_their_own(queen: Queen, http: httpx.Client) -> None:
    queen.push("orders", 1, 2)
    assert len(get(http, "status/queues/orders/messages", limit=1)["messages"]) == 1


# one message


@pytest.mark.parametrize("own", [{}, {"transactionId": "tx-1"}])
def test_everything_about_a_message_is_told(
    queen: Queen, http: httpx.Client, own: dict[str, str]
) -> None:
    (pushed,) = queen.push("shop.billing", {"n": 1}, **own)
    queen.ack(queen.pop("shop.billing", consumerGroup="done")[0])
    (held,) = queen.pop("shop.billing", consumerGroup="held")
    found = get(http, path_of(pushed))
    assert found["id"] == pushed["message_id"]
    assert found["transactionId"] == pushed["transaction_id"]
    assert found["payload"] == found["data"] == {"n": 1}
    assert (found["namespace"], found["task"], found["status"]) == ("shop", "billing", "processing")
    assert found["isEncrypted"] is False
    assert found["queueConfig"]["leaseTime"] == 300
    readers = {one["name"]: one for one in found["consumerGroups"]}
    assert (readers["done"]["consumed"], readers["held"]["consumed"]) == (True, False)
    assert readers["held"]["leaseExpiresAt"] is not None
    assert held["partitionId"] == found["partitionId"]


def test_a_dead_letter_is_told_with_its_error_also_when_its_message_is_gone(
    queen: Queen, http: httpx.Client, served: Running, clock: VirtualClock
) -> None:
    served.session.configure("orders", retention_seconds=60)
    (pushed,) = queen.push("orders", {"n": 1}, transactionId="tx-1")
    queen.ack(queen.pop("orders")[0], "dlq", error="boom")
    for _ in range(2):
        found = get(http, path_of(pushed))
        assert (found["status"], found["errorMessage"]) == ("dead_letter", "boom")
        assert found["payload"] == {"n": 1}
        clock.advance(60)
        served.session.upkeep()
    assert served.session.queue_stats("orders").messages == 0


def test_a_message_is_found_after_its_transaction_id_is_forgotten(
    http: httpx.Client, served: Running, clock: VirtualClock, queen: Queen
) -> None:
    (pushed,) = queen.push("orders", 1, transactionId="tx-1")
    served.session.configure("native", dedup_seconds=10)
    (other,) = queen.push("native", 2, transactionId="tx-2")
    clock.advance(100)
    served.session.upkeep()
    assert get(http, path_of(pushed))["data"] == 1
    assert get(http, path_of(other))["data"] == 2


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize("partition", [NOBODY, "nonsense"])
def test_a_message_nobody_knows_is_not_found(
    http: httpx.Client, method: str, partition: str
) -> None:
    answer = http.request(method, f"/api/v1/messages/{partition}/tx-1")
    assert (answer.status_code, answer.json()["error"]) == (404, "Message not found")


def test_a_deleted_message_is_gone_for_every_group(queen: Queen, http: httpx.Client) -> None:
    first, _ = queen.push("orders", 1, 2)
    path = f"/api/v1/{path_of(first)}"
    answer = http.delete(path)
    assert answer.status_code == 200
    assert (answer.json()["success"], answer.json()["message"]) == (
        True, "Message deleted successfully"
    )  # fmt: skip
    again = http.delete(path)
    assert (again.status_code, again.json()["message"]) == (404, "Message not found")
    assert data(queen.pop("orders", batch=9)) == [2]


def test_a_dead_letter_is_sent_back_to_its_groups(queen: Queen, http: httpx.Client) -> None:
    (pushed,) = queen.push("orders", "again", transactionId="tx-1")
    for group in ("a", "b"):
        queen.ack(queen.pop("orders", consumerGroup=group)[0], "dlq")
    answer = http.post(f"/api/v1/{path_of(pushed)}/retry")
    assert (answer.status_code, answer.json()["retried"]) == (200, 2)
    for group in ("a", "b"):
        (message,) = queen.pop("orders", batch=9, consumerGroup=group)
        assert (message["data"], message["transactionId"]) == ("again", "tx-1")
    assert get(http, "dlq", queue="orders")["total"] == 0
    assert http.post(f"/api/v1/{path_of(pushed)}/retry").status_code == 404


# traces


def record_trace(http: httpx.Client, message: dict[str, Any], **more: Any) -> httpx.Response:
    body = {
        "transactionId": message["transactionId"],
        "partitionId": message["partitionId"],
        "data": {"step": 1},
    }
    return http.post("/api/v1/traces", json={**body, **more})


def test_traces_are_told_and_read_by_message(
    queen: Queen, http: httpx.Client, clock: VirtualClock
) -> None:
    queen.push("orders", 1, 2, transactionId="tx")
    (message,) = queen.pop("orders", consumerGroup="g")
    answer = record_trace(
        http, message, consumerGroup="g", traceNames=["t", "u"], eventType="start"
    )
    assert (answer.status_code, answer.json()["success"]) == (201, True)
    clock.advance(1)
    record_trace(http, message, data={"text": "half"})
    first, second = get(http, path_of(message).replace("messages", "traces"))["traces"]
    assert first["id"] == answer.json()["traceId"]
    assert (first["event_type"], first["data"]) == ("start", {"step": 1})
    assert (first["consumer_group"], first["trace_names"]) == ("g", ["t", "u"])
    assert (second["event_type"], second["trace_names"]) == ("info", [])
    assert second["created_at"] == "2023-11-14T22:13:21.000000Z"


def test_traces_are_read_by_name(queen: Queen, http: httpx.Client) -> None:
    queen.push("orders", {"n": 1})
    queen.push("jobs", {"n": 2}, partition="eu")
    for queue in ("orders", "jobs"):
        record_trace(http, queen.pop(queue)[0], traceNames="order 12/eu")
    path = "/api/v1/traces/by-name/order%2012%2Feu"
    found = http.get(path).json()
    assert (found["total"], found["pagination"]) == (2, {"limit": 100, "offset": 0})
    assert [t["queue_name"] for t in found["traces"]] == ["orders", "jobs"]
    assert [t["message_payload"] for t in found["traces"]] == [{"n": 1}, {"n": 2}]
    assert found["traces"][1]["partition_name"] == "eu"
    assert http.get(path, params={"limit": 1, "offset": 1}).json()["total"] == 2


def test_the_names_of_traces_are_counted(
    queen: Queen, http: httpx.Client, clock: VirtualClock
) -> None:
    queen.push("orders", 1, 2)
    one, two = queen.pop("orders", batch=2)
    record_trace(http, one, traceNames=["a"])
    record_trace(http, one, traceNames=["a"])
    clock.advance(5)
    record_trace(http, two, traceNames=["a", "b"])
    found = get(http, "traces/names")
    assert found["total"] == 2
    assert [(n["trace_name"], n["trace_count"], n["message_count"]) for n in found["trace_names"]] == [
        ("a", 3, 2), ("b", 1, 1),
    ]  # fmt: skip
    assert found["trace_names"][0]["last_seen"] == "2023-11-14T22:13:25.000000Z"


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"data": 1}, 400, "transactionId and partitionId are required"),
        ({"transactionId": "t", "data": 1}, 400, "transactionId and partitionId are required"),
        ({"transactionId": "t", "partitionId": NOBODY}, 400, "data is required"),
        ({"transactionId": "t", "partitionId": NOBODY, "data": {}}, 404, "Message not found"),
    ],
)
def test_a_trace_of_nothing_is_refused(
    http: httpx.Client, body: dict[str, Any], status: int, says: str
) -> None:
    answer = http.post("/api/v1/traces", json=body)
    assert (answer.status_code, answer.json()["error"]) == (status, says)


def test_traces_are_forgotten_after_a_week_and_with_their_queue(
    queen: Queen, http: httpx.Client, served: Running, clock: VirtualClock
) -> None:
    queen.push("orders", 1)
    queen.push("jobs", 1)
    record_trace(http, queen.pop("orders")[0], traceNames="a")
    clock.advance(86_400)
    record_trace(http, queen.pop("jobs")[0], traceNames="b")
    clock.advance(6 * 86_400)
    assert served.session.upkeep().pruned > 0
    assert [n["trace_name"] for n in get(http, "traces/names")["trace_names"]] == ["b"]
    http.delete("/api/v1/resources/queues/jobs")
    assert get(http, "traces/names")["total"] == 0
