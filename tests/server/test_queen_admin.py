"""The Queen dialect, looked after: dead letters, groups, resources, status, maintenance."""

from typing import Any

import httpx
import pytest

from ackflow import VirtualClock

from ..running import Running
from .queen_calls import Queen, data, named

DAY = 86_400.0
NOBODY = "01234567-89ab-8cde-8f01-23456789abcd"


@pytest.fixture
def queen(http: httpx.Client) -> Queen:
    return Queen(http)


def get(http: httpx.Client, path: str, **query: Any) -> Any:
    answer = http.get(f"/api/v1/{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def post(http: httpx.Client, path: str, body: Any) -> Any:
    answer = http.post(f"/api/v1/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


# dead letters


def die(queen: Queen, *payloads: Any, queue: str = "orders", group: str = "workers") -> None:
    queen.push(queue, *payloads)
    for message in queen.pop(queue, batch=100, consumerGroup=group):
        queen.ack(message, "dlq", error=f"bad: {message['data']}")


def test_dead_letters_have_the_fields_of_every_version(
    queen: Queen, http: httpx.Client, clock: VirtualClock
) -> None:
    queen.push("orders", {"orderId": "12345"}, transactionId="tx-123", partition="eu")
    clock.advance(300)
    (message,) = queen.pop("orders", consumerGroup="workers")
    queen.ack(message, "dlq", error="Processing failed: invalid data")
    found = get(http, "dlq", queue="orders", limit=50)
    (letter,) = found["messages"]
    assert (found["total"], found["limit"], found["offset"]) == (1, 50, 0)
    assert found["pagination"] == {"limit": 50, "offset": 0}
    assert letter["messageId"] == message["id"]
    assert letter["id"] != letter["messageId"]
    assert letter["partitionId"] == message["partitionId"]
    assert letter["transactionId"] == "tx-123"
    assert letter["consumerGroup"] == "workers"
    assert letter["errorMessage"] == "Processing failed: invalid data"
    assert letter["originalCreatedAt"] == letter["createdAt"] == "2023-11-14T22:13:20.000000Z"
    assert letter["movedToDlqAt"] == letter["failedAt"] == "2023-11-14T22:18:20.000000Z"
    assert letter["queueName"] == letter["queue"] == "orders"
    assert letter["partition"] == letter["partitionName"] == "eu"
    assert letter["data"] == {"orderId": "12345"}


def test_retry_count_is_how_often_a_message_failed(queen: Queen, http: httpx.Client) -> None:
    queen.push("orders", 1)
    while messages := queen.pop("orders"):
        queen.ack(messages[0], "failed", error="boom")
    (letter,) = get(http, "dlq", queue="orders")["messages"]
    assert (letter["retryCount"], letter["consumerGroup"]) == (3, "__QUEUE_MODE__")


def test_dead_letters_come_in_pages_newest_first_with_their_total(
    queen: Queen, http: httpx.Client
) -> None:
    die(queen, *range(5))
    seen = []
    for offset in (0, 2, 4, 6):
        page = get(http, "dlq", queue="orders", limit=2, offset=offset)
        assert page["total"] == 5
        seen.append(data(page["messages"]))
    assert seen == [[4, 3], [2, 1], [0], []]


def test_the_dlq_ignores_partition_from_and_to(
    queen: Queen, http: httpx.Client, clock: VirtualClock
) -> None:
    """The clock begins on 2023-11-14 at 22:13:20."""
    die(queen, "first")
    clock.advance(6400)
    die(queen, "midnight")
    clock.advance(DAY / 2)
    die(queen, "noon")

    def between(**query: str) -> list[Any]:
        return sorted(data(get(http, "dlq", queue="orders", **query)["messages"]))

    assert between(**{"from": "2023-11-15"}) == ["midnight", "noon"]
    assert between(to="2023-11-14") == ["first"]
    assert between(**{"from": "2023-11-14", "to": "2023-11-15"}) == ["first", "midnight", "noon"]
    assert between(**{"from": "2023-11-15T00:00:00Z", "to": "2023-11-15T11:00:00Z"}) == ["midnight"]
    assert between(**{"from": "2023-11-15T00:00:00.000001"}) == ["noon"]
    assert between(to="2023-11-15T00:00:00") == ["first", "midnight"]
    assert between(**{"from": "2023-11-15T01:00:00+01:00"}) == ["midnight", "noon"]
    assert between(**{"from": "2024-01-01"}) == []
    assert between(to="9999-12-30") == ["first", "midnight", "noon"]


def test_a_filter_by_time_counts_the_time_of_death(
    queen: Queen, http: httpx.Client, clock: VirtualClock
) -> None:
    queen.push("orders", 1)
    clock.advance(2 * DAY)
    queen.ack(queen.pop("orders")[0], "dlq")
    assert get(http, "dlq", queue="orders", to="2023-11-15")["total"] == 0
    assert get(http, "dlq", queue="orders", **{"from": "2023-11-16"})["total"] == 1


@pytest.mark.parametrize("name", ["from", "to"])
@pytest.mark.parametrize(
    "bad", ["yesterday", "2024-13-01", "1700000000", "2024-01-01T99:00", "9999-99"]
)
def test_what_is_no_time_is_refused(http: httpx.Client, name: str, bad: str) -> None:
    answer = http.get("/api/v1/dlq", params={"queue": "orders", name: bad})
    assert answer.status_code == 400
    assert name in answer.json()["error"]


def test_dead_letters_are_found_by_group_and_partition(queen: Queen, http: httpx.Client) -> None:
    queen.push("orders", "a", partition="a")
    queen.push("orders", "b", partition="b")
    for group in ("one", "two"):
        for message in queen.pop("orders", batch=9, partitions=9, consumerGroup=group):
            queen.ack(message, "dlq")
    assert get(http, "dlq", queue="orders")["total"] == 4
    assert get(http, "dlq", queue="orders", consumerGroup="one")["total"] == 2
    one = get(http, "dlq", queue="orders", consumerGroup="one", partition="b")
    assert data(one["messages"]) == ["b"]


@pytest.mark.parametrize("query", [{"queue": "no"}, {"consumerGroup": "no"}, {"partition": "no"}])
def test_a_filter_that_fits_nothing_finds_nothing(
    queen: Queen, http: httpx.Client, query: dict[str, str]
) -> None:
    die(queen, 1)
    assert get(http, "dlq", **{"queue": "orders", **query})["messages"] == []


def test_without_a_queue_the_dead_letters_of_all_are_listed(
    queen: Queen, http: httpx.Client
) -> None:
    die(queen, 1, 2, queue="orders")
    die(queen, 3, queue="jobs")
    page = get(http, "dlq", limit=2)
    assert (data(page["messages"]), page["total"]) == ([3, 2], 3)


def test_bytes_are_told_as_base64(http: httpx.Client, served: Running) -> None:
    served.session.push("orders", b"\x00\xff")
    served.session.pop("orders")[0].reject("bad")
    assert data(get(http, "dlq", queue="orders")["messages"]) == ["AP8="]


# consumer groups


def test_a_group_is_one_entry_over_all_its_queues(queen: Queen, http: httpx.Client) -> None:
    for queue in ("orders", "jobs"):
        queen.push(queue, 1, 2, 3)
        queen.ack(queen.pop(queue, consumerGroup="workers")[0])
    queen.pop("jobs")
    found = {one["name"]: one for one in get(http, "consumer-groups")["groups"]}
    assert sorted(found) == ["__QUEUE_MODE__", "workers"]
    assert sorted(found["workers"]["topics"]) == ["jobs", "orders"]
    assert found["workers"]["totalLag"] == 4
    assert found["workers"]["queues"]["orders"]["totalLag"] == 2
    assert found["__QUEUE_MODE__"]["topics"] == ["jobs"]


def test_the_total_lag_is_null(queen: Queen, http: httpx.Client, clock: VirtualClock) -> None:
    queen.push("orders", 1)
    clock.advance(50)
    queen.push("orders", 2, 3)
    clock.advance(70)
    messages = queen.pop("orders", batch=2, consumerGroup="workers")
    (group,) = get(http, "consumer-groups")["groups"]
    assert (group["totalLag"], group["maxTimeLag"]) == (3, 120)
    queen.ack(messages[0])
    (group,) = get(http, "consumer-groups")["groups"]
    assert (group["totalLag"], group["maxTimeLag"]) == (2, 70)
    queen.ack(messages[1], "dlq")
    queen.ack(queen.pop("orders", consumerGroup="workers")[0])
    (group,) = get(http, "consumer-groups")["groups"]
    assert (group["totalLag"], group["maxTimeLag"], group["state"]) == (0, 0, "Stable")


def test_members_are_partition_cursors_not_consumers(
    queen: Queen, served: Running, http: httpx.Client, clock: VirtualClock
) -> None:
    for n in range(5):
        queen.push("orders", n, partition=f"p{n}")
    q = served.session
    q.pop("orders", group="workers", consumer="a")
    q.pop("orders", group="workers", consumer="b")
    q.pop("orders", group="workers", consumer="b")
    q.pop("orders", group="workers", partition="none", consumer="idle")

    def members() -> int:
        (group,) = get(http, "consumer-groups")["groups"]
        assert isinstance(group["members"], int)
        return group["members"]

    assert members() == 3
    clock.advance(59)
    q.pop("orders", group="workers", consumer="b")
    clock.advance(2)
    assert members() == 1
    clock.advance(60)
    assert members() == 0


@pytest.mark.parametrize(
    ("age", "consumes", "state"),
    [(300, True, "Stable"), (301, True, "Lagging"), (0, False, "Dead"), (301, False, "Lagging")],
)
def test_a_group_is_stable_lagging_or_dead(
    queen: Queen, served: Running, http: httpx.Client, clock: VirtualClock,
    age: float, consumes: bool, state: str,
) -> None:  # fmt: skip
    served.session.group("orders", "workers")
    queen.push("orders", 1, 2)
    if consumes:
        queen.ack(queen.pop("orders", consumerGroup="workers")[0])
    clock.advance(age)
    (group,) = get(http, "consumer-groups")["groups"]
    assert group["state"] == state


def test_where_a_group_began_is_told(queen: Queen, http: httpx.Client) -> None:
    queen.push("orders", 1)
    queen.pop("orders", consumerGroup="all")
    queen.pop("orders", consumerGroup="new", subscriptionMode="new")
    queen.pop("orders", consumerGroup="since", subscriptionFrom="2020-01-01T00:00:00Z")
    found = {g["name"]: g["queues"]["orders"] for g in get(http, "consumer-groups")["groups"]}
    assert found["all"]["subscriptionMode"] == "all"
    assert found["all"]["subscriptionTimestamp"] is None
    assert found["new"]["subscriptionMode"] == "new"
    assert found["new"]["subscriptionTimestamp"] == "2023-11-14T22:13:20.000000Z"
    assert found["since"]["subscriptionTimestamp"] == "2020-01-01T00:00:00.000000Z"


def test_a_group_is_shown_partition_by_partition(
    queen: Queen, http: httpx.Client, clock: VirtualClock
) -> None:
    queen.push("orders", 1, 2, partition="a")
    queen.push("orders", 3, partition="b")
    clock.advance(10)
    messages = queen.pop("orders", "a", batch=2, consumerGroup="workers")
    queen.ack(messages[0])
    found = get(http, "consumer-groups/workers")["orders"]["partitions"]
    a, b = sorted(found, key=lambda part: str(part["partition"]))
    assert (a["partition"], a["offsetLag"], a["totalConsumed"]) == ("a", 1, 1)
    assert (a["leaseActive"], a["workerId"]) == (True, messages[0]["leaseId"])
    assert a["partitionId"] == messages[0]["partitionId"]
    assert a["lastConsumedAt"] == "2023-11-14T22:13:30.000000Z"
    assert (b["offsetLag"], b["timeLagSeconds"], b["leaseActive"]) == (1, 10, False)
    assert (b["workerId"], b["lastConsumedAt"]) == (None, None)


def test_a_group_nobody_knows_is_not_found(http: httpx.Client) -> None:
    answer = http.get("/api/v1/consumer-groups/nobody")
    assert answer.status_code == 404
    assert answer.json()["error"] == "Consumer group not found"


def test_lagging_partitions_are_listed_worst_first(
    queen: Queen, http: httpx.Client, clock: VirtualClock
) -> None:
    queen.push("orders", 1, partition="old")
    clock.advance(3000)
    queen.push("orders", 2, partition="young")
    clock.advance(1000)
    queen.pop("orders", "none", consumerGroup="workers")
    (only,) = get(http, "consumer-groups/lagging")
    assert (only["consumer_group"], only["partition_name"]) == ("workers", "old")
    assert (only["offset_lag"], only["time_lag_seconds"], only["lag_hours"]) == (1, 4000, 1.11)
    both = get(http, "consumer-groups/lagging", minLagSeconds=60)
    assert [one["partition_name"] for one in both] == ["old", "young"]
    assert get(http, "consumer-groups/lagging", minLagSeconds=4000) == []


def test_a_deleted_group_starts_over(queen: Queen, http: httpx.Client) -> None:
    queen.push("orders", 1, partition="a")
    queen.push("orders", 2, partition="b")
    for message in queen.pop("orders", batch=9, partitions=9, consumerGroup="workers"):
        queen.ack(message)
    answer = http.delete("/api/v1/consumer-groups/workers")
    assert answer.json() == {
        "success": True, "consumerGroup": "workers", "deletedPartitions": 2, "metadataDeleted": True,
    }  # fmt: skip
    assert get(http, "consumer-groups")["groups"] == []
    assert len(queen.pop("orders", batch=9, partitions=9, consumerGroup="workers")) == 2


def test_a_group_may_be_deleted_twice_and_in_one_queue(queen: Queen, http: httpx.Client) -> None:
    for queue in ("orders", "jobs"):
        queen.push(queue, 1)
        queen.pop(queue, consumerGroup="workers")
    answer = http.delete("/api/v1/consumer-groups/workers/queues/jobs")
    assert (answer.json()["queueName"], answer.json()["deletedPartitions"]) == ("jobs", 1)
    (group,) = get(http, "consumer-groups")["groups"]
    assert group["topics"] == ["orders"]
    for _ in range(2):
        answer = http.delete("/api/v1/consumer-groups/nobody")
        assert (answer.status_code, answer.json()["success"]) == (200, True)


def test_a_group_deleted_without_its_metadata_begins_where_it_began(
    queen: Queen, http: httpx.Client, clock: VirtualClock
) -> None:
    queen.push("orders", "before")
    clock.advance(1)
    queen.pop("orders", consumerGroup="workers", subscriptionMode="new")
    queen.push("orders", "after")
    queen.ack(queen.pop("orders", consumerGroup="workers")[0])
    answer = http.delete("/api/v1/consumer-groups/workers", params={"deleteMetadata": "false"})
    assert answer.json()["metadataDeleted"] is False
    assert data(queen.pop("orders", batch=9, consumerGroup="workers")) == ["after"]


def test_a_lease_of_a_deleted_group_is_lost(queen: Queen, http: httpx.Client) -> None:
    queen.push("orders", 1)
    (message,) = queen.pop("orders", consumerGroup="workers")
    http.delete("/api/v1/consumer-groups/workers")
    assert queen.ack(message)["message"] == "invalid_lease"


def test_a_subscription_is_moved_where_nothing_was_read_yet(
    queen: Queen, http: httpx.Client, clock: VirtualClock
) -> None:
    queen.push("orders", "a1", "a2", partition="a")
    queen.push("orders", "old", partition="b")
    clock.advance(60)
    queen.push("orders", "new", partition="b")
    queen.ack(queen.pop("orders", "a", consumerGroup="workers")[0])
    path = "consumer-groups/workers/subscription"
    found = post(http, path, {"subscriptionTimestamp": "2023-11-14T22:14:00Z"})
    assert found["success"] is True
    assert (found["rowsUpdated"], found["newTimestamp"]) == (1, "2023-11-14T22:14:00.000000Z")
    assert data(queen.pop("orders", "a", batch=9, consumerGroup="workers")) == ["a2"]
    assert data(queen.pop("orders", "b", batch=9, consumerGroup="workers")) == ["new"]


@pytest.mark.parametrize("body", [{}, {"subscriptionTimestamp": ""}])
def test_a_subscription_needs_a_time(http: httpx.Client, body: dict[str, str]) -> None:
    answer = http.post("/api/v1/consumer-groups/workers/subscription", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"] == "Missing subscriptionTimestamp in request body"


def test_a_group_is_moved_to_the_end_and_its_leases_end(queen: Queen, http: httpx.Client) -> None:
    queen.push("orders", 1, 2)
    (message,) = queen.pop("orders", consumerGroup="workers")
    path = "consumer-groups/workers/queues/orders/seek"
    found = post(http, path, {"toEnd": True})
    assert (found["seekToEnd"], found["partitionsUpdated"]) == (True, 1)
    assert (found["consumerGroup"], found["queueName"]) == ("workers", "orders")
    assert queen.ack(message)["message"] == "invalid_lease"
    assert queen.pop("orders", consumerGroup="workers") == []


def test_a_group_is_moved_to_what_came_after_a_time(
    queen: Queen, http: httpx.Client, clock: VirtualClock
) -> None:
    for n in range(3):
        queen.push("orders", n)
        clock.advance(10)
    for message in queen.pop("orders", batch=9, consumerGroup="workers"):
        queen.ack(message)
    path = "consumer-groups/workers/queues/orders/seek"
    found = post(http, path, {"timestamp": "2023-11-14T22:13:20Z"})
    assert found["targetTimestamp"] == "2023-11-14T22:13:20.000000Z"
    assert data(queen.pop("orders", batch=9, consumerGroup="workers")) == [1, 2]


def test_one_partition_may_be_moved_alone(queen: Queen, http: httpx.Client) -> None:
    queen.push("orders", "a", partition="a")
    queen.push("orders", "b", partition="b")
    queen.pop("orders", "none", consumerGroup="workers")
    path = "/api/v1/consumer-groups/workers/queues/orders/partitions/a/seek"
    assert http.post(path).json()["partitionsUpdated"] == 1
    assert data(queen.pop("orders", batch=9, partitions=9, consumerGroup="workers")) == ["b"]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("workers/queues/orders", {}, 400),
        ("workers/queues/orders", {"timestamp": "soon"}, 400),
        ("nobody/queues/orders", {"toEnd": True}, 404),
        ("workers/queues/nothing", {"toEnd": True}, 404),
    ],
)
def test_a_seek_that_makes_no_sense_is_refused(
    queen: Queen, http: httpx.Client, path: str, body: dict[str, Any], status: int
) -> None:
    queen.push("orders", 1)
    queen.pop("orders", consumerGroup="workers")
    answer = http.post(f"/api/v1/consumer-groups/{path}/seek", json=body)
    assert (answer.status_code, "error" in answer.json()) == (status, True)


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
