"""The Queen dialect, looked after: dead letters and groups."""

from typing import Any

import httpx
import pytest

from ackflow import VirtualClock

from ..running import Running
from .queen_calls import Queen, data, get, post

DAY = 86_400.0
NOBODY = "01234567-89ab-8cde-8f01-23456789abcd"


@pytest.fixture
def queen(http: httpx.Client) -> Queen:
    return Queen(http)


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


def test_a_member_is_a_consumer_not_a_connection(
    queen: Queen, served: Running, http: httpx.Client, clock: VirtualClock
) -> None:
    queen.push("orders", *range(9))

    def pop(client: httpx.Client) -> None:
        Queen(client).pop("orders", consumerGroup="workers", autoAck=True)

    def members() -> int:
        (group,) = get(http, "consumer-groups")["groups"]
        assert group["queues"]["orders"]["members"] == group["members"]
        return int(group["members"])

    for _ in range(3):  # one after the other, each on a connection of its own
        with httpx.Client(base_url=served.url) as client:
            pop(client)
            clock.advance(1)
            pop(client)
        clock.advance(1)
    assert members() == 1
    with httpx.Client(base_url=served.url) as one, httpx.Client(base_url=served.url) as other:
        for _ in range(2):  # at the same time
            pop(one)
            pop(other)
            clock.advance(1)
    assert members() == 2
    served.session.pop("orders", group="workers", consumer="named")
    assert members() == 3
    clock.advance(61)
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
    assert get(http, "consumer-groups/lagging", minLagSeconds=1 << 53) == []


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
