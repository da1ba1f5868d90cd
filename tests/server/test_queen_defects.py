"""Defects of Queen that this server must not have; each test has the name of one."""

import threading
from typing import Any

import httpx
import pytest

from ..running import Running
from .queen_calls import Queen, data, named


@pytest.fixture
def queen(http: httpx.Client) -> Queen:
    return Queen(http)


def letters(served: Running, queue: str = "q") -> list[Any]:
    return sorted(letter.data for letter in served.session.dead_letters(queue).items)


def test_a_mixed_batch_ack_loses_the_failed_message(queen: Queen) -> None:
    queen.push("q", *range(4))
    messages = queen.pop("q", batch=4)
    statuses = ["completed", "failed", "completed", "completed"]
    answers = queen.ack_batch([named(m, s) for m, s in zip(messages, statuses, strict=True)])
    assert [a["message"] for a in answers] == [
        "acknowledged", "failed_retry", "acknowledged", "acknowledged"
    ]  # fmt: skip
    assert data(queen.pop("q", batch=9)) == [1]


@pytest.mark.parametrize("limit", [1, 3])
def test_a_batch_that_always_fails_loses_its_first_message(
    queen: Queen, served: Running, limit: int
) -> None:
    served.session.configure("q", retry_limit=limit)
    queen.push("q", 1, 2, 3)
    for _ in range(limit):
        messages = queen.pop("q", batch=3)
        assert data(messages) == [1, 2, 3]
        queen.ack_batch([named(message, "failed") for message in messages])
    assert queen.pop("q", batch=3) == []
    assert letters(served) == [1, 2, 3]


def test_after_a_dead_letter_the_next_message_dies_on_its_first_failure(
    queen: Queen, served: Running
) -> None:
    queen.push("q", 1)
    for _ in range(3):
        queen.ack(queen.pop("q")[0], "failed")
    queen.push("q", 2)
    for attempt in range(3):
        (message,) = queen.pop("q")
        assert (message["data"], message["retryCount"]) == (2, attempt)
        queen.ack(message, "failed")
    assert letters(served) == [1, 2]


def test_an_ack_of_an_older_message_moves_the_cursor_back(queen: Queen, served: Running) -> None:
    queen.push("q", 1, 2, 3)
    one, two, three = queen.pop("q", batch=3)
    assert queen.ack(three)["success"]
    assert queen.ack(one)["success"]
    served.session.lease(three["leaseId"]).release()
    assert data(queen.pop("q", batch=9)) == [2]
    assert two["data"] == 2


@pytest.mark.parametrize("mode", ["new-only", "new"])
def test_new_only_delivers_history(queen: Queen, mode: str) -> None:
    queen.push("q", 1)
    assert queen.pop("q", consumerGroup="g", subscriptionMode=mode) == []
    queen.push("q", 2)
    assert data(queen.pop("q", consumerGroup="g", batch=9)) == [2]


def test_pushes_that_commit_late_are_passed_by_a_group_at_the_head(
    queen: Queen, served: Running
) -> None:
    producers, each = 8, 40
    confirmed: list[str] = []

    def produce(name: int) -> None:
        with httpx.Client(base_url=served.url) as http:
            for n in range(each):
                (one,) = Queen(http).push("q", n, transactionId=f"{name}-{n}")
                confirmed.append(one["transaction_id"])

    threads = [threading.Thread(target=produce, args=(n,)) for n in range(producers)]
    for thread in threads:
        thread.start()
    seen: list[str] = []
    while len(seen) < producers * each:
        messages = queen.pop("q", consumerGroup="g", batch=7, wait=True, timeout=20_000)
        seen += [message["transactionId"] for message in messages]
        queen.ack_batch([named(message) for message in messages])
    for thread in threads:
        thread.join()
    assert sorted(seen) == sorted(confirmed)


def test_an_out_of_order_ack_gives_two_live_leases_on_one_partition(queen: Queen) -> None:
    queen.push("q", *range(5))
    messages = queen.pop("q", batch=3)
    queen.ack(messages[2])
    queen.ack(messages[0])
    assert queen.pop("q", batch=9) == []
    queen.ack(messages[1])
    assert data(queen.pop("q", batch=9)) == [3, 4]


def test_messages_die_before_the_limit_because_the_partition_shares_a_counter(
    queen: Queen, served: Running
) -> None:
    queen.push("q", 1, 2, 3)
    for data_failed in (1, 2, 3):
        for message in queen.pop("q", batch=9):
            failed = message["data"] == data_failed
            queen.ack(message, "failed" if failed else "retry")
    messages = queen.pop("q", batch=9)
    assert [(m["data"], m["retryCount"]) for m in messages] == [(1, 1), (2, 1), (3, 1)]
    assert letters(served) == []


def test_an_empty_batch_ack_is_never_answered(queen: Queen) -> None:
    assert queen.ack_batch([]) == []


def test_status_codes_are_lost(http: httpx.Client) -> None:
    pushed = http.post("/api/v1/push", json={"items": [{"queue": "q", "payload": 1}]})
    assert pushed.status_code == 201
    assert http.get("/api/v1/pop/queue/none").status_code == 204
    assert http.post("/api/v1/push", json={}).status_code == 400


def test_required_leases_are_ignored(queen: Queen) -> None:
    queen.push("q", 1)
    (message,) = queen.pop("q")
    queen.ack(message, "retry")
    (held,) = queen.pop("q")
    stale = {"type": "ack", **named(message, lease=False)}
    assert queen.transact(stale, requiredLeases=[message["leaseId"]])["success"] is False
    assert queen.ack(held)["noop"] is False


def test_a_failure_in_a_transaction_is_a_dead_letter_at_once(queen: Queen, served: Running) -> None:
    queen.push("q", 1)
    (message,) = queen.pop("q")
    queen.transact({"type": "ack", **named(message, "failed")})
    assert letters(served) == []
    assert data(queen.pop("q")) == [1]


def test_a_wildcard_pop_misses_what_was_just_pushed(queen: Queen) -> None:
    for n in range(50):
        queen.push("q", n, partition=str(n))
        assert data(queen.pop("q", autoAck=True)) == [n]


def test_a_namespace_cannot_be_popped(queen: Queen) -> None:
    queen.push("shop.orders", 1)
    assert data(queen.pop_path("/api/v1/pop", namespace="shop")) == [1]
