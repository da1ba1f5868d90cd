"""The Queen dialect, looked after: queues, status, maintenance."""

import random
from typing import Any

import httpx
import pytest

from ackflow import VirtualClock

from ..running import Running
from .queen_calls import Queen, data, get, named, post

DAY = 86_400.0
NOBODY = "01234567-89ab-8cde-8f01-23456789abcd"


@pytest.fixture
def queen(http: httpx.Client) -> Queen:
    return Queen(http)


# queues


def fill(queen: Queen) -> None:
    """Two completed, one dead, one held, one failed, one unread; all of partition `a` but the last."""
    queen.push("shop.billing", 1, 2, 3, 4, 5, partition="a")
    queen.push("shop.billing", 6, partition="b")
    messages = queen.pop("shop.billing", "a", batch=4)
    queen.ack_batch([named(m) for m in messages[:2]])
    queen.ack(messages[2], "dlq")


def test_counts_lag_behind(queen: Queen, http: httpx.Client) -> None:
    fill(queen)
    (queue,) = get(http, "resources/queues")["queues"]
    assert (queue["name"], queue["namespace"], queue["task"]) == ("shop.billing", "shop", "billing")
    assert queue["partitions"] == 2
    figures = queue["messages"]
    assert (figures["total"], figures["pending"], figures["processing"]) == (6, 2, 1)
    assert (figures["completed"], figures["deadLetter"]) == (2, 1)


def test_the_counts_of_a_queue_are_the_sum_of_those_of_its_partitions(
    queen: Queen, http: httpx.Client, served: Running
) -> None:
    """Counted in SQL for the queue, and lane by lane for a page of partitions."""
    q, chance = served.session, random.Random(7)
    q.configure("orders", retry_limit=5, keep_seconds=0)
    for group in ("a", "b"):
        q.group("orders", group)
    for step in range(150):
        where = f"p{chance.randrange(12)}"
        ids = list(
            q.push("orders", [1, 2, 3], partition=where, delay=chance.choice([None, None, 60]))
        )
        for message in q.pop("orders", group=chance.choice("ab"), batch=chance.randrange(1, 6)):
            verb = chance.choice(["ack", "ack", "ack", "nack", "reject", "requeue", "hold"])
            getattr(message, verb)() if verb != "hold" else None
        if step % 10 == 0:
            q.delete_message("orders", chance.choice(ids))
            q.upkeep()
    pages = [
        get(http, "resources/partitions", queue="orders", limit=5, offset=at)["partitions"]
        for at in (0, 5, 10, 15)
    ]
    assert [len(page) for page in pages] == [5, 5, 2, 0]
    parts = [part for page in pages for part in page]
    assert len({part["name"] for part in parts}) == 12
    (queue,) = get(http, "resources/queues")["queues"]
    sums = {key: sum(part["stats"][key] for part in parts) for key in queue["messages"]}
    assert queue["messages"] == sums
    assert all(sums.values()), "every state occurs"
    assert get(http, "status")["messages"] == sums
    detail = get(http, "resources/queues/orders", limit=3, offset=2)
    assert detail["partitions"] == parts[2:5]
    assert detail["totals"] == sums


def test_a_dead_letter_is_not_completed(queen: Queen, http: httpx.Client, served: Running) -> None:
    def figures() -> tuple[int, int, int]:
        totals = get(http, "resources/queues/orders")["totals"]
        return totals["pending"], totals["completed"], totals["deadLetter"]

    served.session.group("orders", "other", start="all")
    queen.push("orders", 1, 2, 3, 4)
    one, two, three, four = queen.pop("orders", batch=4)
    queen.ack_batch([named(one), named(two, "dlq"), named(three, "dlq"), named(four)])
    assert figures() == (4, 0, 2), "the other group has read none of them"
    for message in served.session.pop("orders", group="other", batch=3):
        message.reject("no") if message.data == 3 else message.ack()
    assert figures() == (1, 1, 2)
    served.session.purge("orders")
    assert figures()[:2] == (0, 0), "what is no longer stored counts nowhere"


def test_a_queue_is_shown_partition_by_partition(queen: Queen, http: httpx.Client) -> None:
    fill(queen)
    found = get(http, "resources/queues/shop.billing")
    a, b = found["partitions"]
    assert (a["name"], a["stats"]["processing"], b["name"]) == ("a", 1, "b")
    assert b["stats"]["pending"] == b["stats"]["total"] == 1
    assert b["oldestMessage"] == b["newestMessage"] == "2023-11-14T22:13:20.000000Z"
    assert found["totals"]["total"] == 6


def test_an_unknown_queue_is_answered_with_200(http: httpx.Client) -> None:
    answer = http.get("/api/v1/resources/queues/nothing")
    assert (answer.status_code, answer.json()["error"]) == (404, "Queue not found")
    assert http.get("/api/v1/status/queues/nothing").status_code == 404


def test_a_queue_may_be_deleted_twice(queen: Queen, http: httpx.Client) -> None:
    queen.push("orders", 1)
    for existed in (True, False):
        answer = http.delete("/api/v1/resources/queues/orders")
        assert answer.json() == {"deleted": True, "queue": "orders", "existed": existed}
    assert get(http, "resources/queues")["queues"] == []


def test_a_queue_is_cleared(queen: Queen, http: httpx.Client) -> None:
    queen.push("orders", 1, 2, partition="a")
    queen.push("orders", 3, partition="b")
    answer = http.delete("/api/v1/queues/orders/clear", params={"partition": "a"})
    assert answer.json()["count"] == 2
    assert data(queen.pop("orders", batch=9, partitions=9)) == [3]


def test_namespaces_tasks_and_partitions_are_listed(queen: Queen, http: httpx.Client) -> None:
    queen.push("shop.billing", 1)
    queen.push("shop.mail", 2, partition="eu")
    queen.push("plain", 3)
    (space,) = get(http, "resources/namespaces")["namespaces"]
    assert (space["namespace"], space["queues"], space["messages"]["total"]) == ("shop", 2, 2)
    assert [t["task"] for t in get(http, "resources/tasks")["tasks"]] == ["billing", "mail"]
    found = get(http, "resources/partitions", queue="shop.mail")["partitions"]
    assert [(p["queue"], p["name"]) for p in found] == [("shop.mail", "eu")]
    named = get(http, "resources/queues", namespace="shop", task="mail")["queues"]
    assert [q["name"] for q in named] == ["shop.mail"]


def test_the_overview_sums_everything_up(
    queen: Queen, http: httpx.Client, clock: VirtualClock
) -> None:
    fill(queen)
    clock.advance(30)
    queen.push("orders", *range(60))
    for path in ("resources/overview", "status"):
        found = get(http, path)
        assert (found["queues"], found["partitions"], found["namespaces"]) == (2, 3, 1)
        assert found["messages"]["total"] == 66
        assert found["lag"]["time"]["max"] == 30
        assert found["lag"]["offset"]["max"] == 3
        assert found["throughput"]["ingestedPerSecond"] == 1.1


# status, health, maintenance


def test_the_status_of_queues_comes_in_pages(queen: Queen, http: httpx.Client) -> None:
    for n in range(3):
        queen.push(f"q{n}", n)
    page = get(http, "status/queues", limit=2, offset=1)
    assert [q["name"] for q in page["queues"]] == ["q1", "q2"]
    assert page["pagination"] == {"limit": 2, "offset": 1}
    assert page["queues"][0]["config"]["leaseTime"] == 300


def test_the_status_of_a_queue_tells_what_was_consumed(queen: Queen, http: httpx.Client) -> None:
    fill(queen)
    found = get(http, "status/queues/shop.billing")
    assert found["partitions"][0]["cursor"]["totalConsumed"] == 2
    assert found["totals"]["total"] == 6


def test_pushes_are_counted_by_time(queen: Queen, http: httpx.Client, clock: VirtualClock) -> None:
    queen.push("orders", 1, 2)
    clock.advance(3600)
    queen.push("orders", 3)
    queen.push("jobs", 4)
    found = get(http, "status/analytics")
    assert [p["messages"] for p in found["dataPoints"]] == [2, 2]
    assert found["dataPoints"][0]["timestamp"] == "2023-11-14T22:00:00.000000Z"
    assert found["interval"] == "hour"
    only = get(http, "status/analytics", queue="orders", interval="minute")
    assert [p["messages"] for p in only["dataPoints"]] == [1]
    assert http.get("/api/v1/status/analytics?interval=century").status_code == 400


def test_health_is_told_in_queens_words(http: httpx.Client) -> None:
    found = http.get("/health")
    assert found.status_code == 200
    assert (found.json()["status"], found.json()["database"]) == ("healthy", "connected")


def test_pop_maintenance_pauses_every_pop_and_nothing_else(
    queen: Queen, http: httpx.Client
) -> None:
    queen.push("orders", 1, 2)
    (message,) = queen.pop("orders", consumerGroup="g")
    assert post(http, "system/maintenance/pop", {"enabled": True})["popMaintenanceMode"] is True
    assert queen.pop("orders", consumerGroup="other") == []
    queen.push("jobs", 3)
    assert queen.pop("jobs") == []
    assert queen.ack(message)["success"] is True
    assert get(http, "system/maintenance/pop")["popMaintenanceMode"] is True
    assert post(http, "system/maintenance/pop", {"enabled": False})["popMaintenanceMode"] is False
    assert data(queen.pop("jobs")) == [3]
    assert data(queen.pop("orders", consumerGroup="g")) == [2]


def test_a_waiting_pop_is_woken_when_maintenance_ends(queen: Queen, http: httpx.Client) -> None:
    import threading

    queen.push("orders", 1)
    post(http, "system/maintenance/pop", {"enabled": True})
    got: list[Any] = []
    waiting = threading.Thread(
        target=lambda: got.extend(
            httpx.get(f"{http.base_url}/api/v1/pop/queue/orders?wait=true&timeout=20000").json()[
                "messages"
            ]
        )
    )
    waiting.start()
    post(http, "system/maintenance/pop", {"enabled": False})
    waiting.join(timeout=10)
    assert data(got) == [1]


def test_maintenance_holds_back_what_is_pushed_and_counts_it(
    queen: Queen, http: httpx.Client, clock: VirtualClock
) -> None:
    queen.push("orders", 1)
    clock.advance(1)
    found = post(http, "system/maintenance", {"enabled": True})
    assert (found["maintenanceMode"], found["bufferedMessages"]) == (True, 0)
    queen.push("orders", 2, 3)
    assert queen.pop("orders") == []
    assert get(http, "system/maintenance")["bufferedMessages"] == 2
    assert get(http, "status/buffers") == {"bufferedMessages": 2, "bufferHealthy": True}
    found = post(http, "system/maintenance", {"enabled": False})
    assert (found["maintenanceMode"], found["bufferedMessages"]) == (False, 0)
    assert data(queen.pop("orders", batch=9)) == [1, 2, 3]


def test_a_switch_needs_to_know_which_way(http: httpx.Client) -> None:
    for path in ("system/maintenance", "system/maintenance/pop"):
        answer = http.post(f"/api/v1/{path}", json={})
        assert answer.status_code == 400
        assert answer.json()["error"] == "enabled (boolean) is required"


def test_statistics_are_always_fresh(http: httpx.Client) -> None:
    assert post(http, "stats/refresh", {})["success"] is True
