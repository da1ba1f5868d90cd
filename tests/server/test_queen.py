"""The Queen dialect: push and pop."""

import socket
import statistics
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import httpx
import pytest

from ackflow import VirtualClock

from ..running import Running
from .conftest import Process
from .queen_calls import Queen, data


@pytest.fixture
def queen(http: httpx.Client) -> Queen:
    return Queen(http)


# push


def test_a_push_answers_every_item_in_its_order(queen: Queen) -> None:
    answers = queen.push_items(
        {"queue": "a", "payload": 1, "transactionId": "t1"},
        {"queue": "b", "partition": "p", "payload": 2},
        {"queue": "a", "payload": 3, "traceId": "0c9b4cf0-7d0a-4b43-9a0e-0a9a3f1c7a55"},
    )
    assert [a["index"] for a in answers] == [0, 1, 2]
    assert [a["queueName"] for a in answers] == ["a", "b", "a"]
    assert {a["status"] for a in answers} == {"queued"}
    assert answers[0]["transaction_id"] == "t1"
    assert answers[1]["transaction_id"] == answers[1]["message_id"]
    assert answers[2]["trace_id"] == "0c9b4cf0-7d0a-4b43-9a0e-0a9a3f1c7a55"
    assert answers[0]["partition_id"] == answers[2]["partition_id"] != answers[1]["partition_id"]
    assert all(UUID(a["message_id"]) and UUID(a["partition_id"]) for a in answers)


def test_a_duplicate_says_so_with_the_first_id_also_within_one_request(queen: Queen) -> None:
    first, again = queen.push("q", 1, 2, transactionId="same")
    (later,) = queen.push("q", 3, transactionId="same")
    (elsewhere,) = queen.push("q", 4, transactionId="same", partition="other")
    assert [a["status"] for a in (first, again, later, elsewhere)] == [
        "queued", "duplicate", "duplicate", "queued"
    ]  # fmt: skip
    assert first["message_id"] == again["message_id"] == later["message_id"]
    assert data(queen.pop("q", batch=9, partitions=9)) == [1, 4]


def test_a_transaction_id_is_known_as_long_as_its_message_is_kept(
    queen: Queen, clock: VirtualClock, served: Running
) -> None:
    queen.push("q", 1, transactionId="t")
    queen.ack(queen.pop("q")[0])
    clock.advance(400 * 86_400)
    served.session.upkeep()
    assert queen.push("q", 2, transactionId="t")[0]["status"] == "duplicate"
    assert served.session.queue_stats("q").messages == 1


@pytest.mark.parametrize(
    "raw", ['{"b" : 1,\n "a":1.0}', "1e999", '"\\u00e9"', "12345678901234567890123", "null", "[ ]"]
)
def test_payloads_go_through_byte_for_byte(http: httpx.Client, raw: str) -> None:
    body = '{"items":[{"queue":"q","payload":' + raw + "}]}"
    assert http.post("/api/v1/push", content=body).status_code == 201
    assert f'"data":{raw},' in http.get("/api/v1/pop/queue/q").text


def test_data_is_taken_for_payload_and_neither_is_null(queen: Queen) -> None:
    queen.push_items({"queue": "q", "data": {"a": 1}}, {"queue": "q"})
    assert data(queen.pop("q", batch=2)) == [{"a": 1}, None]


def test_a_pushed_message_may_be_delayed(queen: Queen, clock: VirtualClock) -> None:
    queen.push_items({"queue": "q", "payload": 1, "delaySeconds": 60}, {"queue": "q", "payload": 2})
    assert data(queen.pop("q", batch=9)) == [2]
    clock.advance(61)
    queen.http.get("/api/v1/pop/queue/q")
    assert data(queen.pop("q", consumerGroup="g", batch=9)) == [1, 2]


def test_priority_and_headers_come_with_the_message(queen: Queen) -> None:
    queen.push("q", "late", priority=9)
    queen.push("q", "first", headers={"kind": "urgent"})
    first, late = queen.pop("q", batch=2)
    assert (first["data"], first["priority"], first["headers"]) == ("first", 0, {"kind": "urgent"})
    assert (late["data"], late["priority"], "headers" in late) == ("late", 9, False)


def test_a_push_of_nothing_is_answered_with_nothing(http: httpx.Client) -> None:
    answer = http.post("/api/v1/push", json={"items": []})
    assert (answer.status_code, answer.json()) == (201, [])


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "Empty request body"),
        (b"{", "body"),
        (b"[1]", "body"),
        (b"{}", "items array is required"),
        (b'{"items":{}}', "items"),
        (b'{"items":[{"payload":1}]}', "queue"),
        (b'{"items":[{"queue":7,"payload":1}]}', "queue"),
        (b'{"items":[{"queue":"q","transactionId":7}]}', "transactionId"),
        (b'{"items":[{"queue":"q","partition":7}]}', "partition"),
        (b'{"items":[{"queue":"q","priority":2147483648}]}', "priority"),
        (b'{"items":[{"queue":"q","delaySeconds":-1}]}', "delay"),
        (b'{"items":[{"queue":"","payload":1}]}', "queue"),
        (b'{"items":[{"queue":"q","payload":"\xff"}]}', "UTF-8"),
        (b'{"items":[{"queue":"q","payload":{"a":}}]}', "body"),
    ],
)
def test_a_push_that_cannot_be_understood_is_refused_whole(
    http: httpx.Client, served: Running, body: bytes, says: str
) -> None:
    answer = http.post("/api/v1/push", content=body)
    assert answer.status_code == 400
    assert says in answer.json()["error"]
    assert served.session.queues() == []


def test_one_bad_item_undoes_the_whole_push(http: httpx.Client, queen: Queen) -> None:
    items = [{"queue": "q", "payload": 1}, {"queue": "q", "payload": 2, "priority": -1}]
    assert http.post("/api/v1/push", json={"items": items}).status_code == 400
    assert queen.pop("q") == []


# pop


def test_a_message_has_the_fields_of_every_version(queen: Queen) -> None:
    (pushed,) = queen.push("shop.orders", {"n": 1}, transactionId="t1", partition="p1")
    answer = queen.http.get("/api/v1/pop/queue/shop.orders", params={"consumerGroup": "g"}).json()
    (message,) = answer["messages"]
    assert {k: v for k, v in answer.items() if k != "messages"} == {
        "success": True, "queue": "shop.orders", "partition": "p1",
        "partitionId": pushed["partition_id"], "leaseId": message["leaseId"],
        "consumerGroup": "g", "partitionsClaimed": 1,
    }  # fmt: skip
    assert message == {
        "id": pushed["message_id"], "messageId": pushed["message_id"], "transactionId": "t1",
        "traceId": None, "queue": "shop.orders", "partition": "p1",
        "partitionId": pushed["partition_id"], "data": {"n": 1}, "producerSub": None,
        "retryCount": 0, "deliveries": 1, "redelivered": False, "priority": 0,
        "createdAt": "2023-11-14T22:13:20.000000Z", "consumerGroup": "g",
        "leaseId": message["leaseId"],
    }  # fmt: skip
    assert UUID(message["leaseId"])


def test_an_empty_pop_is_204_and_an_unknown_queue_no_error(queen: Queen) -> None:
    assert queen.pop("unknown") == []
    assert queen.pop("unknown", "partition") == []


def test_bytes_pushed_by_another_dialect_come_as_base64(queen: Queen, served: Running) -> None:
    served.session.push("q", b"\xff\x00")
    (message,) = queen.pop("q")
    assert (message["data"], message["encoding"]) == ("/wA=", "base64")


def test_a_partition_is_asked_alone(queen: Queen) -> None:
    queen.push("q", 1, partition="a")
    queen.push("q", 2, partition="b/c d")
    assert data(queen.pop("q", "b%2Fc%20d", batch=9)) == [2]
    assert data(queen.pop("q", "a", batch=9)) == [1]


def test_a_pop_takes_one_partition_unless_it_asks_for_more(queen: Queen) -> None:
    for partition in "abc":
        queen.push("q", partition + "1", partition + "2", partition=partition)
    assert data(queen.pop("q", batch=9)) == ["a1", "a2"]
    two = queen.pop("q", batch=3, partitions=5)
    assert data(two) == ["b1", "b2", "c1"]
    assert len({message["leaseId"] for message in two}) == 1


def test_a_leased_partition_is_served_to_nobody_else_of_the_group(queen: Queen) -> None:
    queen.push("q", 1, 2)
    (held,) = queen.pop("q")
    assert queen.pop("q") == []
    assert data(queen.pop("q", consumerGroup="other")) == [1]
    queen.ack(held)
    assert data(queen.pop("q")) == [2]


def test_auto_ack_hands_out_without_a_lease(queen: Queen) -> None:
    queen.push("q", 1, 2)
    messages = queen.pop("q", batch=9, autoAck=True)
    assert [m["leaseId"] for m in messages] == ["", ""]
    assert queen.pop("q") == []
    again = queen.ack(messages[0], lease=False)
    assert (again["success"], again["noop"]) == (True, True)


def test_a_lease_lasts_as_long_as_the_pop_asks(queen: Queen, clock: VirtualClock) -> None:
    queen.push("q", 1)
    queen.pop("q", leaseSeconds=5)
    clock.advance(5)
    (again,) = queen.pop("q")
    assert again["redelivered"] is True
    clock.advance(299)
    assert queen.pop("q") == []
    clock.advance(1)
    assert queen.pop("q")


@pytest.mark.parametrize(
    ("query", "read"),
    [
        ({}, [1, 2, 3]),
        ({"subscriptionMode": "all"}, [1, 2, 3]),
        ({"subscriptionMode": "from_beginning"}, [1, 2, 3]),
        ({"subscriptionMode": "new"}, [3]),
        ({"subscriptionFrom": "now"}, [3]),
        ({"subscriptionFrom": "1970-01-01"}, [1, 2, 3]),
        ({"subscriptionFrom": "2023-11-14T22:13:25Z"}, [2, 3]),
        ({"subscriptionFrom": "2023-11-14T23:13:25+01:00"}, [2, 3]),
        ({"subscriptionFrom": "2023-11-14T22:13:25.5"}, [2, 3]),
        ({"subscriptionMode": "all", "subscriptionFrom": "now"}, [3]),
    ],
)
def test_the_first_contact_decides_where_a_group_begins(
    queen: Queen, clock: VirtualClock, query: dict[str, str], read: list[int]
) -> None:
    queen.push("q", 1)
    clock.advance(10)
    queen.push("q", 2)
    seen = queen.pop("q", batch=9, consumerGroup="g", autoAck=True, **query)
    queen.push("q", 3)
    other = {"subscriptionMode": "all" if read == [3] else "new"}
    seen += queen.pop("q", batch=9, consumerGroup="g", autoAck=True, **other)
    assert data(seen) == read


def test_without_a_group_the_subscription_is_ignored(queen: Queen) -> None:
    queen.push("q", 1)
    assert data(queen.pop("q", subscriptionMode="new")) == [1]


def test_mode_new_delivers_all_of_partitions_born_later(queen: Queen) -> None:
    queen.push("q", 1)
    assert queen.pop("q", consumerGroup="g", subscriptionMode="new") == []
    queen.push("q", 2, partition="later")
    assert data(queen.pop("q", consumerGroup="g")) == [2]


@pytest.mark.parametrize(
    "query",
    [
        "batch=0", "batch=x", "batch=999999999", "partitions=0", "timeout=-1", "timeout=soon",
        "conflation=true", "subscriptionMode=latest", "subscriptionFrom=yesterday", "leaseSeconds=-1",
        "leaseSeconds=nan",
    ],
)  # fmt: skip
def test_a_pop_that_cannot_be_understood_is_refused(http: httpx.Client, query: str) -> None:
    answer = http.get(f"/api/v1/pop/queue/q?{query}")
    assert answer.status_code == 400
    assert query.split("=")[0] in answer.json()["error"]


def test_a_client_that_leaves_the_batch_to_the_server_is_told_what_it_chose(queen: Queen) -> None:
    queen.push("q", 1, 2, 3)
    answer = queen.http.get("/api/v1/pop/queue/q?autopilot=true&wait=false").json()
    assert len(answer["messages"]) == 3
    assert answer["autopilot"] == {"partitions": 1, "batch": 200}


# pop by namespace and task


def test_queues_are_found_by_namespace_and_task_also_when_only_pushed_to(queen: Queen) -> None:
    queen.push("shop.orders", 1)
    queen.push("shop.bills", 2)
    queen.push("mail.orders", 3)
    popped = [queen.pop_path("/api/v1/pop", namespace="shop", batch=9) for _ in range(3)]
    assert sorted(data(popped[0]) + data(popped[1])) == [1, 2]
    assert popped[2] == []
    (message,) = queen.pop_path("/api/v1/pop", task="orders")
    assert (message["data"], message["queue"]) == (3, "mail.orders")
    assert queen.pop_path("/api/v1/pop", namespace="shop", task="none") == []


def test_a_pop_of_every_queue_is_refused(http: httpx.Client) -> None:
    answer = http.get("/api/v1/pop")
    assert (answer.status_code, answer.json()["error"]) == (400, "namespace or task is required")


# waiting


def _later(seconds: float, act: Any) -> threading.Thread:
    def run() -> None:
        time.sleep(seconds)
        act()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("path", "queue"),
    [
        ("/api/v1/pop/queue/shop.orders", "shop.orders"),
        ("/api/v1/pop/queue/shop.orders/partition/Default", "shop.orders"),
        ("/api/v1/pop?namespace=shop", "shop.born.later"),
    ],
)
def test_a_waiting_pop_wakes_with_a_push(queen: Queen, path: str, queue: str) -> None:
    times = {}

    def push() -> None:
        with httpx.Client(base_url=queen.http.base_url) as other:
            Queen(other).push(queue, 1)
            times["pushed"] = time.perf_counter()

    thread = _later(0.1, push)
    query = {"wait": "true", "timeout": "30000"}
    answer = queen.http.get(path, params={**httpx.URL(path).params, **query})
    woken = time.perf_counter()
    thread.join()
    assert data(answer.json()["messages"]) == [1]
    assert woken - times["pushed"] < 5


def test_a_waiting_pop_wakes_within_ten_milliseconds_of_a_push(
    start_process: Callable[..., Process],
) -> None:
    server = start_process()
    late: list[float] = []
    with httpx.Client(base_url=server.url) as one, httpx.Client(base_url=server.url) as other:
        for n in range(21):
            times: dict[str, float] = {}

            def push(n: int = n, times: dict[str, float] = times) -> None:
                Queen(other).push("q", n)
                times["pushed"] = time.perf_counter()

            thread = _later(0.02, push)
            assert data(Queen(one).pop("q", wait=True, autoAck=True)) == [n]
            woken = time.perf_counter()
            thread.join()
            late.append(woken - times["pushed"])
    assert statistics.median(late) < 0.010


def test_a_waiting_pop_ends_empty_at_its_timeout(queen: Queen, clock: VirtualClock) -> None:
    thread = _later(0.1, lambda: clock.advance(6))
    assert queen.pop("q", wait=True, timeout=5000) == []
    thread.join()


def test_a_waiting_pop_gets_what_becomes_due(queen: Queen, clock: VirtualClock) -> None:
    queen.push("q", 1, delaySeconds=3)
    thread = _later(0.1, lambda: clock.advance(3))
    assert data(queen.pop("q", wait=True, timeout=9000)) == [1]
    thread.join()


def test_empty_polls_while_a_partition_is_leased_strand_nothing(
    queen: Queen, clock: VirtualClock
) -> None:
    queen.push("q", 1, 2)
    queen.pop("q", leaseSeconds=5)
    for _ in range(5):
        assert queen.pop("q") == []
    clock.advance(6)
    assert data(queen.pop("q", batch=9)) == [1, 2]


@pytest.mark.parametrize("wait", ["true", "false"])
def test_a_client_that_goes_away_strands_no_lease(queen: Queen, served: Running, wait: str) -> None:
    host, port = queen.http.base_url.host, queen.http.base_url.port
    assert port is not None
    if wait == "false":
        queen.push("q", "x" * 4_000_000)
    with socket.create_connection((host, port)) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # reset on close
        raw.sendall(
            f"GET /api/v1/pop/queue/q?wait={wait}&timeout=60000 HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        )
        time.sleep(0.2)  # long enough for the pop to wait, or for its answer to be half sent
    if wait == "true":
        time.sleep(0.1)
        queen.push("q", "x" * 10)
    deadline = time.monotonic() + 10
    while not (found := queen.pop("q")):
        assert time.monotonic() < deadline, "the lease is stranded"
        time.sleep(0.02)
    assert found[0]["deliveries"] == 1


def test_created_at_is_when_it_was_pushed(queen: Queen, clock: VirtualClock) -> None:
    clock.advance(0.123456)
    queen.push("q", 1)
    created = datetime.fromisoformat(queen.pop("q")[0]["createdAt"])
    assert created == datetime.fromtimestamp(clock.now() / 1e6, UTC)
