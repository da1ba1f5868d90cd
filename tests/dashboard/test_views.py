"""What the pages read: partitions and priorities, positions, dead letters by number, kept copies."""

import os
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import ackflow
from ackflow import Session, VirtualClock
from ackflow.broker import access_tokens
from ackflow.broker.core.by_hand import dead_select
from ackflow.server.console import queues

from ..running import Running


@pytest.fixture
def q(clock: VirtualClock) -> Iterator[Session]:
    with ackflow.connect(":memory:", clock=clock, upkeep=False) as session:
        yield session


@pytest.fixture
def http(q: Session) -> Iterator[httpx.Client]:
    running = Running(q)
    with httpx.Client(base_url=running.url, timeout=30) as client:
        yield client
    running.stop()


def get(http: httpx.Client, path: str, **query: Any) -> Any:
    answer = http.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_queue_lists_its_partitions_and_priorities(
    q: Session, http: httpx.Client, clock: VirtualClock
) -> None:
    q.push("orders", [1, 2, 3], partition="eu")
    clock.advance(60)
    q.push("orders", [4], partition="eu", priority=5)
    q.push("orders", [5, 6], partition="us")
    q.delete_message("orders", next(iter(q.browse("orders"))).id)
    page = get(http, "/v1/queues/orders/partitions", limit=2)
    rest = get(http, "/v1/queues/orders/partitions", limit=2, after=page["next"])
    assert rest["next"] is None
    shown = [
        (one["partition"], one["priority"], one["stored"], one["next"])
        for one in page["items"] + rest["items"]
    ]
    assert shown == [("eu", 0, 2, 3), ("eu", 5, 1, 1), ("us", 0, 2, 2)]
    times = [(one["oldest_at"], one["newest_at"]) for one in page["items"]]
    assert times[0] < times[1]
    assert http.get("/v1/queues/none/partitions").status_code == 404


def test_a_group_shows_its_position_and_lag_in_each_partition(
    q: Session, http: httpx.Client
) -> None:
    q.push("orders", list(range(10)))
    q.push("orders", [0], priority=7)
    q.ack(q.pop("orders", group="g", batch=4))
    (one,) = get(http, "/v1/queues/orders/groups/g/partitions")["items"]
    assert one["positions"] == [
        {"priority": 0, "next": 4, "end": 10}, {"priority": 7, "next": 0, "end": 1},
    ]  # fmt: skip
    assert one["lag"] == 7


def test_a_queue_with_many_groups_lists_the_first_and_any_that_is_asked_for(
    q: Session, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "MOST_GROUPS", 2)
    q.push("orders", 1)
    for name in "abc":
        q.group("orders", name)
    page = get(http, "/v1/queues/orders")
    assert [one["group"] for one in page["groups"]] == ["a", "b"]
    assert [one["name"] for one in page["details"]["groups"]] == ["a", "b"]
    assert page["more_groups"]
    one = get(http, "/v1/queues/orders", group="c")
    assert [group["group"] for group in one["groups"]] == ["c"]
    assert not one["more_groups"]


def test_queues_are_sorted_by_the_lag_of_the_group_furthest_behind(
    q: Session, http: httpx.Client
) -> None:
    for name, count in (("small", 2), ("large", 9)):
        q.push(name, list(range(count)))
        q.ack(q.pop(name, group="fast", batch=count))
        q.group(name, "slow")
    page = get(http, "/v1/queues", sort="lag", descending="true")
    assert [(one["name"], one["lag"]) for one in page["items"]] == [("large", 9), ("small", 2)]


def test_the_overview_names_the_version_of_the_database(http: httpx.Client) -> None:
    assert get(http, "/v1/overview")["health"]["version"].startswith("SQLite 3.")


def test_the_history_of_a_message_names_its_last_error(q: Session, http: httpx.Client) -> None:
    (id,) = q.push("orders", 1)
    for error in ("first", "second"):
        q.pop("orders")[0].nack(error, delay=0)
    (group,) = get(http, f"/v1/queues/orders/messages/{id}")["groups"]
    failed = [one.get("details") for one in group["events"] if one["kind"] == "nack"]
    assert failed == [None, "second"]


def test_a_dead_letter_shows_the_payload_that_its_queue_has_dropped(
    q: Session, http: httpx.Client, clock: VirtualClock
) -> None:
    q.configure("orders", keep_seconds=0, history_seconds=300)
    (id,) = q.push("orders", {"n": 1}, headers={"tenant": "eu"})
    q.pop("orders")[0].reject("broken")
    clock.advance(3_600)
    q.upkeep()
    assert list(q.browse("orders")) == []
    page = get(http, f"/v1/queues/orders/messages/{id}")
    assert page["stored"] is False
    assert page["message"]["payload"] == '{"n":1}'
    assert page["message"]["headers"] == {"tenant": "eu"}
    assert get(http, f"/v1/queues/orders/messages/{id}/payload") == {"n": 1}
    (why,) = [group["why"] for group in page["groups"]]
    assert why["state"] == "dead"
    assert why["dead_letter"] == next(iter(q.dead_letters("orders"))).id
    q.redrive("orders")
    assert get(http, f"/v1/queues/orders/messages/{id}")["message"] is None


def test_dead_letters_chosen_by_number_are_changed_in_steps_of_the_limit(
    q: Session, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_select, "SLICE", 2)
    monkeypatch.setattr(dead_select, "STEP_SECONDS", 0.0)  # a step reads one slice at most
    q.push("orders", list(range(40)))
    for message in q.pop("orders", batch=40):
        message.reject("broken")
    numbers = [one.id for one in q.dead_letters("orders")]
    chosen = [numbers[0], numbers[20], numbers[39], 987_654]
    body: dict[str, Any] = {"ids": chosen, "limit": 2}
    first = http.post("/v1/queues/orders/dead/purge", json=body).json()
    assert first["done"] == 2
    rest = http.post("/v1/queues/orders/dead/purge", json=body | {"after": first["next"]}).json()
    assert (rest["done"], rest["next"]) == (1, None)
    assert sorted(first["items"] + rest["items"]) == sorted(chosen[:3])
    assert len(list(q.dead_letters("orders"))) == 37


def test_brokers_and_workers_are_listed(
    q: Session, http: httpx.Client, clock: VirtualClock
) -> None:
    assert get(http, "/v1/brokers") == get(http, "/v1/workers") == []
    clock.advance(2)
    q.broker._round()  # type: ignore[attr-defined]
    (broker,) = get(http, "/v1/brokers")
    assert (broker["pid"], broker["version"]) == (os.getpid(), ackflow.__version__)
    clock.advance(60)
    assert get(http, "/v1/brokers") == []
    clock.advance(5)
    q.broker._round()  # type: ignore[attr-defined]
    clock.advance(5)  # the overview takes a new snapshot
    found = get(http, "/v1/overview")["brokers"]
    assert [one["pid"] for one in found] == [os.getpid()]


def test_the_overview_of_some_queues_names_no_brokers(
    q: Session, http: httpx.Client, clock: VirtualClock
) -> None:
    clock.advance(2)
    q.broker._round()  # type: ignore[attr-defined]
    token = q.broker.do(
        lambda tx: access_tokens.create(tx, "t", [access_tokens.grant("read-only:orders")], None),
        True,
    )
    clock.advance(5)
    http.headers["authorization"] = f"Bearer {token}"
    assert get(http, "/v1/overview")["brokers"] == []
    assert http.get("/v1/brokers").status_code == 403
    assert http.get("/v1/workers").status_code == 403
