"""The Queen dialect: what client-side streaming needs of a server."""

from typing import Any

import httpx
import pytest

from ackflow import VirtualClock

from ..running import Running
from .queen_calls import Queen, data


@pytest.fixture
def queen(http: httpx.Client) -> Queen:
    return Queen(http)


def post(http: httpx.Client, path: str, status: int = 200, **body: Any) -> dict[str, Any]:
    answer = http.post(f"/streams/v1/{path}", json=body)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


def register(http: httpx.Client, name: str = "totals", hash: str = "h1", **more: Any) -> str:
    body = {"name": name, "source_queue": "orders", "config_hash": hash, **more}
    return str(post(http, "queries", **body)["query_id"])


def state(http: httpx.Client, query: str, partition: str, *keys: str) -> dict[str, Any]:
    found = post(http, "state/get", query_id=query, partition_id=partition, keys=list(keys))
    return {row["key"]: row["value"] for row in found["rows"]}


def last(messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    message = messages[-1]
    return {
        "transactionId": message["transactionId"],
        "leaseId": message["leaseId"],
        "status": "completed",
        "count": len(messages),
        **more,
    }


def upsert(key: str, value: Any) -> dict[str, Any]:
    return {"type": "upsert", "key": key, "value": value}


# queries


def test_a_query_is_made_once_and_found_again(http: httpx.Client) -> None:
    body = {"name": "totals", "source_queue": "orders", "config_hash": "h1"}
    first = post(http, "queries", **body, sink_queue="sums")
    assert (first["success"], first["name"], first["config_hash"]) == (True, "totals", "h1")
    assert (first["fresh"], first["reset"]) == (True, False)
    again = post(http, "queries", **body)
    assert (again["fresh"], again["query_id"]) == (False, first["query_id"])


def test_a_query_with_another_configuration_is_refused_unless_it_is_reset(
    queen: Queen, http: httpx.Client
) -> None:
    query = register(http)
    home = queen.push("orders", 1)[0]["partition_id"]
    post(http, "cycle", query_id=query, partition_id=home, state_ops=[upsert("k", 1)])
    body = {"name": "totals", "source_queue": "orders", "config_hash": "h2"}
    refused = post(http, "queries", 409, **body)
    assert refused["success"] is False
    assert "config_hash mismatch" in refused["error"]
    assert state(http, query, home) == {"k": 1}
    found = post(http, "queries", **body, reset=True)
    assert (found["reset"], found["fresh"], found["query_id"]) == (True, False, query)
    assert state(http, query, home) == {}


# state


def test_state_is_kept_by_query_partition_and_key(queen: Queen, http: httpx.Client) -> None:
    one, two = register(http, "one"), register(http, "two")
    a = queen.push("orders", 1, partition="a")[0]["partition_id"]
    b = queen.push("orders", 1, partition="b")[0]["partition_id"]
    ops = [upsert("x", {"n": 1}), upsert("y/z", [1]), upsert("nothing", None)]
    done = post(http, "cycle", query_id=one, partition_id=a, state_ops=ops)
    assert (done["success"], done["state_ops_applied"], done["ack_result"]) == (True, 3, None)
    assert state(http, one, a) == {"x": {"n": 1}, "y/z": [1], "nothing": None}
    assert state(http, one, a, "x", "unknown") == {"x": {"n": 1}}
    assert state(http, one, b) == state(http, two, a) == {}
    ops = [{"type": "delete", "key": "x"}, upsert("y/z", [2])]
    post(http, "cycle", query_id=one, partition_id=a, state_ops=ops)
    assert state(http, one, a) == {"y/z": [2], "nothing": None}


WINDOWS: dict[str, Any] = {
    "tumb:60\u001fa": {"acc": 1, "windowEnd": 1_000},
    "tumb:60\u001fb": {"acc": 2, "windowEnd": 2_000},
    "tumb:60\u001fopen": {"acc": 3, "windowEnd": 2_001},
    "tumb:60\u001fno end": {"acc": 4},
    "tumb:60\u001ftext": {"windowEnd": "1000"},
    "tumb:60\u001fnumber": 7,
    "tumb:600\u001fa": {"acc": 5, "windowEnd": 1_000},
    "sess\u001fa": {"acc": 6, "windowEnd": 500},
}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, list(WINDOWS)),
        ({"key_prefix": ""}, list(WINDOWS)),
        ({"ripe_at_or_before": None}, list(WINDOWS)),
        ({"key_prefix": "tumb:60\u001f"}, list(WINDOWS)[:6]),
        ({"key_prefix": "tumb:6_"}, []),
        ({"key_prefix": "tumb:60\u001f", "ripe_at_or_before": 2_000}, list(WINDOWS)[:2]),
        ({"ripe_at_or_before": 999.5}, ["sess\u001fa"]),
        ({"ripe_at_or_before": 0}, []),
        ({"keys": ["sess\u001fa", "tumb:60\u001fa"], "key_prefix": "sess"}, ["sess\u001fa"]),
        ({"keys": ["tumb:60\u001fb", "sess\u001fa"], "ripe_at_or_before": 1_999}, ["sess\u001fa"]),
    ],
)
def test_state_is_asked_for_by_prefix_and_by_the_end_of_its_window(
    queen: Queen, http: httpx.Client, asked: dict[str, Any], expected: list[str]
) -> None:
    query, home = register(http), queen.push("orders", 1)[0]["partition_id"]
    ops = [upsert(key, value) for key, value in WINDOWS.items()]
    post(http, "cycle", query_id=query, partition_id=home, state_ops=ops)
    found = post(http, "state/get", query_id=query, partition_id=home, **asked)
    assert {row["key"]: row["value"] for row in found["rows"]} == {
        key: WINDOWS[key] for key in expected
    }


@pytest.mark.parametrize("path", ["state/get", "cycle"])
def test_a_query_or_partition_nobody_knows_is_not_found(
    queen: Queen, http: httpx.Client, path: str
) -> None:
    home = queen.push("orders", 1)[0]["partition_id"]
    post(http, path, 404, query_id="nobody", partition_id=home)
    post(http, path, 404, query_id=register(http), partition_id="nonsense")


# cycles


def test_a_cycle_changes_state_pushes_and_acks_at_once(
    queen: Queen, http: httpx.Client, served: Running
) -> None:
    query = register(http)
    queen.push("orders", 1, 2, 3, partition="eu")
    messages = queen.pop("orders", batch=3, consumerGroup="totals")
    done = post(
        http, "cycle", query_id=query, partition_id=messages[0]["partitionId"],
        consumer_group="totals", state_ops=[upsert("sum", 6)],
        push_items=[{"queue": "sums", "partition": "eu", "payload": {"sum": 6}}],
        ack=last(messages),
    )  # fmt: skip
    assert done["ack_result"] == {"success": True, "lease_released": True, "dlq": False}
    assert [one["status"] for one in done["push_results"]] == ["queued"]
    (sums,) = queen.pop("sums")
    assert (sums["data"], sums["partition"]) == ({"sum": 6}, "eu")
    assert served.session.group_stats("orders", "totals").counts.done == 3


def test_a_cycle_with_a_lost_lease_does_nothing_at_all(
    queen: Queen, http: httpx.Client, clock: VirtualClock
) -> None:
    query = register(http)
    queen.push("orders", 1)
    messages = queen.pop("orders", consumerGroup="totals")
    clock.advance(300)
    home = messages[0]["partitionId"]
    refused = post(
        http, "cycle", 409, query_id=query, partition_id=home, state_ops=[upsert("sum", 1)],
        push_items=[{"queue": "sums", "payload": 1}], ack=last(messages),
    )  # fmt: skip
    assert refused["success"] is False
    assert state(http, query, home) == {}
    assert queen.pop("sums") == []
    assert data(queen.pop("orders", consumerGroup="totals")) == [1]


def test_a_cycle_repeated_does_nothing_twice(queen: Queen, http: httpx.Client) -> None:
    query = register(http)
    queen.push("orders", 1, 2)
    messages = queen.pop("orders", batch=2, consumerGroup="totals")
    body = {
        "query_id": query, "partition_id": messages[0]["partitionId"],
        "push_items": [{"queue": "sums", "payload": 1}], "ack": last(messages),
    }  # fmt: skip
    post(http, "cycle", **body)
    post(http, "cycle", 409, **body)
    assert data(queen.pop("sums", batch=9)) == [1]


def test_a_cycle_acks_what_came_before_and_gives_back_the_rest(
    queen: Queen, http: httpx.Client
) -> None:
    query = register(http)
    queen.push("orders", 1, 2, 3)
    messages = queen.pop("orders", batch=3, consumerGroup="totals")
    home = messages[0]["partitionId"]
    done = post(http, "cycle", query_id=query, partition_id=home, ack=last(messages[:2]))
    assert done["ack_result"]["lease_released"] is True
    assert data(queen.pop("orders", batch=9, consumerGroup="totals")) == [3]


def test_a_cycle_that_keeps_its_lease_lets_the_tail_come_again_after_it(
    queen: Queen, http: httpx.Client, clock: VirtualClock
) -> None:
    query = register(http)
    queen.push("orders", 1, 2, 3)
    messages = queen.pop("orders", batch=3, consumerGroup="totals")
    done = post(
        http, "cycle", query_id=query, partition_id=messages[0]["partitionId"],
        ack=last(messages[:1]), release_lease=False,
    )  # fmt: skip
    assert done["ack_result"]["lease_released"] is False
    assert queen.pop("orders", batch=9, consumerGroup="totals") == []
    clock.advance(300)
    assert data(queen.pop("orders", batch=9, consumerGroup="totals")) == [2, 3]


def test_a_cycle_of_one_partition_leaves_the_others_of_its_lease_alone(
    queen: Queen, http: httpx.Client, served: Running
) -> None:
    query = register(http)
    queen.push("orders", "a", partition="a")
    queen.push("orders", "b", partition="b")
    messages = queen.pop("orders", batch=2, partitions=2, consumerGroup="totals")
    for message in messages:
        counts = served.session.group_stats("orders", "totals").counts
        assert counts.leased == 2 - counts.done
        post(
            http, "cycle", query_id=query, partition_id=message["partitionId"], ack=last([message])
        )
    assert served.session.group_stats("orders", "totals").counts.done == 2


def test_a_cycle_acks_what_was_served_first_by_its_priority(
    queen: Queen, http: httpx.Client, served: Running
) -> None:
    query = register(http)
    queen.push("orders", "later", priority=5)
    queen.push("orders", "first", priority=0)
    messages = queen.pop("orders", batch=2, consumerGroup="totals")
    assert data(messages) == ["first", "later"]
    post(http, "cycle", query_id=query, partition_id=messages[0]["partitionId"], ack=last(messages))
    assert served.session.group_stats("orders", "totals").counts.done == 2


def test_a_cycle_acks_all_it_counts_though_it_names_the_newest_and_not_the_last(
    queen: Queen, http: httpx.Client, served: Running, clock: VirtualClock
) -> None:
    query = register(http)
    queen.push("orders", "older", priority=5)
    clock.advance(1)
    queen.push("orders", "newer", priority=0)
    messages = queen.pop("orders", batch=2, consumerGroup="totals")
    by_time = sorted(messages, key=lambda message: message["createdAt"])  # as clients do
    assert data(by_time) == ["older", "newer"]
    post(http, "cycle", query_id=query, partition_id=messages[0]["partitionId"], ack=last(by_time))
    assert served.session.group_stats("orders", "totals").counts.done == 2


def test_a_failed_cycle_counts_as_a_failure_of_its_messages(
    queen: Queen, http: httpx.Client
) -> None:
    query = register(http)
    queen.push("orders", 1)
    for attempt in range(3):
        messages = queen.pop("orders", consumerGroup="totals")
        assert messages[0]["retryCount"] == attempt
        ack = last(messages, status="failed", error="boom")
        done = post(http, "cycle", query_id=query, partition_id=messages[0]["partitionId"], ack=ack)
        assert done["ack_result"]["dlq"] is (attempt == 2)


@pytest.mark.parametrize(
    "more",
    [
        {"state_ops": [{"type": "replace", "key": "k"}]},
        {"ack": {"transactionId": "t", "leaseId": "nonsense"}},
        {"ack": {"transactionId": "t", "leaseId": "AAAAAAAAAAA", "status": "odd"}},
    ],
)
def test_a_cycle_that_makes_no_sense_is_refused(
    queen: Queen, http: httpx.Client, more: dict[str, Any]
) -> None:
    home = queen.push("orders", 1)[0]["partition_id"]
    post(http, "cycle", 400, query_id=register(http), partition_id=home, **more)


# a window that two cycles want to close


WINDOW = {"acc": 2, "windowEnd": 1_000}
EMIT = [{"queue": "sums", "payload": 2}]
CLOSE: dict[str, Any] = {"state_ops": [{"type": "delete", "key": "w"}], "push_items": EMIT}


def opened(queen: Queen, http: httpx.Client) -> tuple[str, str]:
    """A query with a window that is ripe."""
    query, home = register(http), queen.push("orders", 1)[0]["partition_id"]
    post(http, "cycle", query_id=query, partition_id=home, state_ops=[upsert("w", WINDOW)])
    return query, home


def closes(http: httpx.Client, **body: Any) -> bool:
    """Close the window as a client does for an idle partition; return whether that happened."""
    answer = post(http, "cycle", **body, **CLOSE)
    assert len(answer["push_results"]) == answer["state_ops_applied"]
    assert answer.get("skipped", False) is (answer["state_ops_applied"] == 0)
    return bool(answer["state_ops_applied"])


def ripe(http: httpx.Client, query: str, home: str) -> list[str]:
    asked = {"query_id": query, "partition_id": home, "ripe_at_or_before": 2_000}
    return [row["key"] for row in post(http, "state/get", **asked)["rows"]]


def test_a_cycle_that_closes_a_closed_window_is_refused_and_its_messages_come_again(
    queen: Queen, http: httpx.Client
) -> None:
    query, home = opened(queen, http)
    post(http, "cycle", query_id=query, partition_id=home, **CLOSE)
    messages = queen.pop("orders", consumerGroup="streams.totals")
    body = {"query_id": query, "partition_id": home, "ack": last(messages), **CLOSE}
    refused = post(http, "cycle", 409, **body)
    assert (refused["success"], refused["code"]) == (False, "stale_state")
    assert data(queen.pop("sums", batch=9)) == [2]
    again = queen.pop("orders", consumerGroup="streams.totals")
    assert data(again) == [1]  # at once, to be computed from what is there now
    assert again[0]["deliveries"] == 1


def test_an_idle_close_that_is_repeated_changes_nothing(queen: Queen, http: httpx.Client) -> None:
    query, home = opened(queen, http)
    assert closes(http, query_id=query, partition_id=home)
    assert not closes(http, query_id=query, partition_id=home)
    assert data(queen.pop("sums", batch=9)) == [2]


@pytest.mark.parametrize("group", ["streams.totals", "other"])
def test_an_idle_close_is_skipped_while_messages_of_its_partition_are_held(
    queen: Queen, http: httpx.Client, group: str
) -> None:
    query, home = opened(queen, http)
    messages = queen.pop("orders", consumerGroup=group)
    body = {"query_id": query, "partition_id": home, "consumer_group": group}
    assert not closes(http, **body)
    late = {"acc": 3, "windowEnd": 1_000}
    post(http, "cycle", **body, state_ops=[upsert("w", late)], ack=last(messages))
    assert queen.pop("sums") == []
    assert state(http, query, home) == {"w": late}
    assert closes(http, **body)


def test_an_idle_close_of_state_that_changed_after_it_was_read_is_skipped(
    queen: Queen, http: httpx.Client, clock: VirtualClock
) -> None:
    query, home = opened(queen, http)
    body = {"query_id": query, "partition_id": home}
    clock.advance(1)
    messages = queen.pop("orders", consumerGroup="streams.totals")
    assert state(http, query, home) == {"w": WINDOW}  # read by both
    new = {"acc": 1, "windowEnd": 9_000}
    ops = [upsert("w", new)]  # a new session under the key of the old one
    post(http, "cycle", **body, state_ops=ops, push_items=EMIT, ack=last(messages))
    assert not closes(http, **body)
    assert data(queen.pop("sums", batch=9)) == [2]
    assert state(http, query, home) == {"w": new}
    assert closes(http, **body)  # read again above


def test_ripe_state_is_left_to_the_cycle_that_is_at_work_on_its_partition(
    queen: Queen, http: httpx.Client
) -> None:
    query, home = opened(queen, http)
    assert ripe(http, query, home) == ["w"]
    messages = queen.pop("orders", consumerGroup="streams.totals")
    assert ripe(http, query, home) == []
    assert state(http, query, home) == {"w": WINDOW}
    post(http, "cycle", query_id=query, partition_id=home, ack=last(messages))
    assert ripe(http, query, home) == ["w"]


def test_ripe_state_is_left_to_the_cycle_of_the_messages_that_wait_in_its_partition(
    queen: Queen, http: httpx.Client
) -> None:
    query, home = opened(queen, http)
    group = {"consumerGroup": "streams.totals"}
    body = {"query_id": query, "partition_id": home}
    post(http, "cycle", **body, ack=last(queen.pop("orders", **group)))
    assert ripe(http, query, home) == ["w"]
    queen.push("orders", 2)
    assert ripe(http, query, home) == []
    assert not closes(http, **body)
    messages = queen.pop("orders", **group)
    post(http, "cycle", **body, ack=last(messages, status="retry"))
    assert ripe(http, query, home) == []
    post(http, "cycle", **body, ack=last(queen.pop("orders", **group)))
    assert ripe(http, query, home) == ["w"]
    assert closes(http, **body)
