"""The Queen dialect: settling messages, one or many, and keeping leases alive."""

from typing import Any

import httpx
import pytest

from ackflow import VirtualClock

from ..running import Running
from .queen_calls import Queen, data, named


@pytest.fixture
def queen(http: httpx.Client) -> Queen:
    return Queen(http)


def letters(served: Running, queue: str = "q") -> list[tuple[Any, str, str | None]]:
    found = served.session.dead_letters(queue).items
    return [(letter.data, letter.kind, letter.reason) for letter in found]


def said(answer: dict[str, Any]) -> tuple[bool, str]:
    return answer["success"], answer["message"]


# one message


def test_an_ack_is_answered_with_an_object(queen: Queen) -> None:
    queen.push("q", 1, transactionId="t")
    answer = queen.ack(queen.pop("q")[0])
    assert answer == {
        "success": True, "message": "acknowledged", "error": None, "transactionId": "t",
        "queueName": "q", "partitionName": "Default", "leaseReleased": True, "dlq": False,
        "noop": False, "reason": None, "leaseExpiresAt": None,
    }  # fmt: skip


@pytest.mark.parametrize("status", [None, "completed", "success"])
def test_what_is_completed_does_not_come_again(queen: Queen, status: str | None) -> None:
    queen.push("q", 1, 2)
    assert said(queen.ack(queen.pop("q")[0], status)) == (True, "acknowledged")
    assert data(queen.pop("q", batch=9)) == [2]


def test_the_same_ack_again_is_a_success_without_effect(queen: Queen) -> None:
    queen.push("q", 1)
    (message,) = queen.pop("q")
    assert queen.ack(message)["noop"] is False
    assert queen.ack(message)["noop"] is True
    assert said(queen.ack(message, "failed")) == (False, "invalid_lease")


def test_a_failure_comes_again_until_the_third_is_a_dead_letter(
    queen: Queen, served: Running
) -> None:
    queen.push("q", 1)
    for attempt in range(3):
        (message,) = queen.pop("q")
        assert (message["retryCount"], message["deliveries"]) == (attempt, attempt + 1)
        answer = queen.ack(message, "failed", error="invalid data")
        assert said(answer) == (True, "failed_retry" if attempt < 2 else "failed_dlq")
        assert answer["dlq"] is (attempt == 2)
    assert queen.pop("q") == []
    assert letters(served) == [(1, "failed", "invalid data")]


@pytest.mark.parametrize("served", [{"retry_limit_counts": "redeliveries"}], indirect=True)
def test_a_server_may_count_redeliveries(queen: Queen, served: Running) -> None:
    queen.push("q", 1)
    words = [queen.ack(queen.pop("q")[0], "failed")["message"] for _ in range(4)]
    assert words == ["failed_retry"] * 3 + ["failed_dlq"]
    assert letters(served) == [(1, "failed", None)]


def test_a_failure_may_wait(queen: Queen, clock: VirtualClock) -> None:
    queen.push("q", 1)
    queen.ack(queen.pop("q")[0], "failed", delaySeconds=30)
    clock.advance(29)
    assert queen.pop("q") == []
    clock.advance(1)
    assert data(queen.pop("q")) == [1]


def test_an_empty_pop_leaves_the_rest_of_a_batch_with_its_holder(
    queen: Queen, http: httpx.Client, clock: VirtualClock
) -> None:
    http.post("/api/v1/configure", json={"queue": "q", "options": {"retryDelay": 5000}})
    queen.push("q", 1, 2, 3)
    first, second, third = queen.pop("q", batch=3)
    assert said(queen.ack(first, "failed")) == (True, "failed_retry")
    assert queen.pop("q", batch=3) == []
    assert said(queen.ack(third)) == (True, "acknowledged")
    clock.advance(5)
    assert data(queen.pop("q", batch=3)) == [1, 2]
    assert said(queen.ack(second)) == (False, "invalid_lease")


@pytest.mark.parametrize("status", ["failed", "dlq"])
def test_a_dead_letter_leaves_the_rest_of_a_batch_with_its_holder(
    queen: Queen, http: httpx.Client, status: str
) -> None:
    http.post("/api/v1/configure", json={"queue": "q", "options": {"retryLimit": 1}})
    queen.push("q", 1, 2, 3)
    first, second, third = queen.pop("q", batch=3)
    assert queen.ack(first, status)["dlq"] is True
    assert queen.pop("q", batch=3) == []
    assert said(queen.ack(second)) == said(queen.ack(third)) == (True, "acknowledged")


def test_a_retry_is_never_charged(queen: Queen) -> None:
    queen.push("q", 1)
    for _ in range(9):
        (message,) = queen.pop("q")
        assert (message["retryCount"], message["deliveries"]) == (0, 1)
        assert said(queen.ack(message, "retry")) == (True, "released")


def test_a_lease_that_runs_out_is_never_charged(queen: Queen, clock: VirtualClock) -> None:
    queen.push("q", 1)
    for attempt in range(9):
        (message,) = queen.pop("q")
        assert (message["retryCount"], message["deliveries"]) == (0, attempt + 1)
        clock.advance(300)


@pytest.mark.parametrize(
    ("status", "more", "letter"),
    [
        ("dlq", {"error": "no use"}, (1, "failed", "no use")),
        ("rejected", {"reason": "not ours"}, (1, "rejected", "not ours")),
        ("rejected", {"error": "not ours"}, (1, "rejected", "not ours")),
    ],
)
def test_what_is_given_up_is_a_dead_letter_at_once(
    queen: Queen, served: Running, status: str, more: dict[str, str], letter: Any
) -> None:
    queen.push("q", 1)
    answer = queen.ack(queen.pop("q")[0], status, **more)
    assert (answer["success"], answer["dlq"]) == (True, True)
    assert letters(served) == [letter]


def test_in_progress_keeps_the_lease_alive(queen: Queen, clock: VirtualClock) -> None:
    queen.push("q", 1)
    (message,) = queen.pop("q")
    clock.advance(200)
    answer = queen.ack(message, "in_progress")
    assert said(answer) == (True, "extended")
    assert answer["leaseExpiresAt"] == "2023-11-14T22:21:40.000000Z"
    clock.advance(299)
    assert said(queen.ack(message)) == (True, "acknowledged")
    assert said(queen.ack(message, "in_progress")) == (False, "invalid_lease")


def test_an_ack_up_to_a_message_settles_all_before_it(queen: Queen) -> None:
    queen.push("q", 1, 2, 3)
    messages = queen.pop("q", batch=3)
    assert queen.ack(messages[1], upTo=True)["success"]
    answers = [queen.ack(message) for message in messages]
    assert [answer["noop"] for answer in answers] == [True, True, False]


def test_a_confirmed_ack_is_on_disk_when_it_is_answered(queen: Queen, served: Running) -> None:
    queen.push("q", 1)
    assert said(queen.ack(queen.pop("q")[0], confirm=True)) == (True, "acknowledged")


# leases


def test_an_expired_a_released_and_a_foreign_lease_are_invalid(
    queen: Queen, clock: VirtualClock
) -> None:
    queen.push("q", 1)
    (late,) = queen.pop("q", leaseSeconds=5)
    clock.advance(5)
    refusal = queen.ack(late)
    assert said(refusal) == (False, "invalid_lease")
    assert refusal["error"] == "Lease validation failed"
    (given_back,) = queen.pop("q")
    queen.ack(given_back, "retry")
    assert said(queen.ack(given_back)) == (False, "invalid_lease")
    (held,) = queen.pop("q")
    for lease in (late["leaseId"], "nonsense", "00000000-0000-4000-8000-000000000000"):
        assert said(queen.ack({**held, "leaseId": lease})) == (False, "invalid_lease")
    assert said(queen.ack(held)) == (True, "acknowledged")


def test_an_ack_without_a_lease_works_after_expiry(queen: Queen, clock: VirtualClock) -> None:
    queen.push("q", 1)
    (late,) = queen.pop("q", leaseSeconds=5)
    clock.advance(6)
    assert said(queen.ack(late)) == (False, "invalid_lease")
    assert said(queen.ack(late, lease=False)) == (True, "acknowledged")
    assert queen.pop("q") == []


def test_without_a_lease_a_verb_acts_on_the_message_as_it_stands(queen: Queen) -> None:
    queen.push("q", "leased", transactionId="a")
    (held,) = queen.pop("q")
    assert said(queen.ack(held, "failed", lease=False)) == (True, "failed_retry")
    assert said(queen.ack(held, lease=False)) == (True, "acknowledged")
    assert queen.ack(held, lease=False)["noop"] is True
    again = queen.ack(held, "failed", lease=False)
    assert said(again) == (False, "already_settled")
    assert "already committed" in again["error"]


def test_what_was_never_handed_out_or_never_was_is_not_found(queen: Queen) -> None:
    (pushed,) = queen.push("q", 1, transactionId="a")
    fresh = {"transactionId": "a", "partitionId": pushed["partition_id"], "consumerGroup": "g"}
    assert said(queen.ack(fresh, lease=False)) == (False, "not_found")
    queen.pop("q", consumerGroup="other")
    assert said(queen.ack(fresh, lease=False)) == (False, "not_found")
    (held,) = queen.pop("q", consumerGroup="g")
    assert said(queen.ack({**held, "transactionId": "b"})) == (False, "not_found")
    assert said(queen.ack({**held, "transactionId": "b"}, lease=False)) == (False, "not_found")
    other = {**held, "partitionId": queen.push("q", 2, partition="p")[0]["partition_id"]}
    assert said(queen.ack(other, lease=False)) == (False, "not_found")


@pytest.mark.parametrize(
    "partition", ["nonsense", "partition-uuid", "00000000-0000-4000-8000-000000000000"]
)
def test_a_partition_that_cannot_be_is_not_found(queen: Queen, partition: str) -> None:
    queen.push("q", 1)
    (held,) = queen.pop("q")
    wrong = {**held, "partitionId": partition}
    assert said(queen.ack(wrong)) == (False, "not_found")
    assert said(queen.ack(wrong, lease=False)) == (False, "not_found")


def test_a_group_settles_for_itself_alone(queen: Queen) -> None:
    queen.push("q", 1)
    (mine,) = queen.pop("q", consumerGroup="a")
    (other,) = queen.pop("q", consumerGroup="b")
    assert queen.ack(mine, lease=False)["success"]
    assert queen.ack(other, "retry")["success"]
    assert queen.pop("q", consumerGroup="a") == []
    assert data(queen.pop("q", consumerGroup="b")) == [1]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"partitionId": "p"}, "transactionId is required"),
        ({"transactionId": ""}, "transactionId is required"),
        ({"transactionId": "t"}, "partitionId is required to ensure message uniqueness"),
        ({"transactionId": "t", "partitionId": "p", "status": "done"}, "status must be one of"),
        ({"transactionId": 7, "partitionId": "p"}, "transactionId"),
        (
            {"transactionId": "t", "partitionId": "p", "status": "failed", "delaySeconds": -1},
            "delay",
        ),
        ([], "body"),
    ],
)
def test_an_ack_that_cannot_be_understood_is_refused(
    http: httpx.Client, body: Any, says: str
) -> None:
    answer = http.post("/api/v1/ack", json=body)
    assert answer.status_code == 400
    assert says in answer.json()["error"]


# many messages


def test_a_batch_answers_each_ack_in_its_order(queen: Queen) -> None:
    queen.push("q", *range(4))
    messages = queen.pop("q", batch=4)
    answers = queen.ack_batch([named(m) for m in reversed(messages)])
    assert [a["index"] for a in answers] == [0, 1, 2, 3]
    assert [a["transactionId"] for a in answers] == [m["id"] for m in reversed(messages)]
    assert [said(a) for a in answers] == [(True, "acknowledged")] * 4
    assert [a["leaseReleased"] for a in answers] == [False, False, False, True]


def test_an_empty_batch_is_answered_with_nothing(queen: Queen) -> None:
    assert queen.ack_batch([]) == []


def test_one_stale_ack_does_not_undo_the_others(queen: Queen, clock: VirtualClock) -> None:
    queen.push("q", 1, partition="a")
    queen.push("q", 2, partition="b")
    (late,) = queen.pop("q", leaseSeconds=5)
    (held,) = queen.pop("q")
    clock.advance(6)
    wrong = {**named(held), "partitionId": "nonsense"}
    answers = queen.ack_batch([named(late), named(held), wrong])
    assert [said(a) for a in answers] == [
        (False, "invalid_lease"), (True, "acknowledged"), (False, "not_found")
    ]  # fmt: skip


def test_an_atomic_batch_is_undone_by_one_that_is_refused(queen: Queen) -> None:
    queen.push("q", 1, 2)
    one, two = queen.pop("q", batch=2)
    wrong = {**named(two), "transactionId": "none"}
    answers = queen.ack_batch([named(one), wrong], atomic=True)
    assert [said(a) for a in answers] == [(False, "rolled_back"), (False, "not_found")]
    answers = queen.ack_batch([named(one), named(two)], atomic=True)
    assert [said(a) for a in answers] == [(True, "acknowledged")] * 2


def test_the_group_of_a_batch_holds_for_all_its_acks(queen: Queen) -> None:
    queen.push("q", 1, 2)
    messages = queen.pop("q", batch=2, consumerGroup="g")
    acks = [{k: m[k] for k in ("transactionId", "partitionId")} for m in messages]
    assert {a["message"] for a in queen.ack_batch(acks)} == {"not_found"}
    assert {a["message"] for a in queen.ack_batch(acks, consumerGroup="g")} == {"acknowledged"}


def test_a_batch_of_all_statuses_does_each(queen: Queen, served: Running) -> None:
    queen.push("q", *range(6))
    messages = queen.pop("q", batch=6)
    statuses = ["completed", "failed", "retry", "dlq", "rejected", "in_progress"]
    answers = queen.ack_batch([named(m, s) for m, s in zip(messages, statuses, strict=True)])
    assert [a["message"] for a in answers] == [
        "acknowledged", "failed_retry", "released", "dead_lettered", "rejected", "extended"
    ]  # fmt: skip
    assert sorted(letter[0] for letter in letters(served)) == [3, 4]
    assert data(queen.pop("q", batch=9)) == [1, 2, 5]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "acknowledgments array is required"),
        ({"acknowledgments": [{}]}, "Each acknowledgment must have a valid transactionId string"),
        ({"acknowledgments": [{"transactionId": "t"}]}, "valid partitionId string"),
        (
            {"acknowledgments": [{"transactionId": "t", "partitionId": "p", "status": "?"}]},
            "status",
        ),
        ({"acknowledgments": 7}, "acknowledgments"),
    ],
)
def test_a_batch_that_cannot_be_understood_is_refused_whole(
    http: httpx.Client, body: Any, says: str
) -> None:
    answer = http.post("/api/v1/ack/batch", json=body)
    assert answer.status_code == 400
    assert says in answer.json()["error"]


# keeping a lease alive


@pytest.mark.parametrize(("body", "seconds"), [({}, 60), ({"seconds": 90}, 90)])
def test_a_lease_is_extended_from_now(
    queen: Queen, clock: VirtualClock, body: dict[str, int], seconds: int
) -> None:
    queen.push("q", 1)
    (message,) = queen.pop("q", leaseSeconds=10)
    clock.advance(5)
    answer = queen.extend(message["leaseId"], **body)
    assert (answer["success"], answer["renewed"], answer["error"]) == (True, 1, None)
    assert answer["newExpiresAt"] == answer["expiresAt"] == answer["lease_expires_at"]
    clock.advance(seconds - 1)
    assert queen.pop("q") == []
    clock.advance(1)
    assert data(queen.pop("q")) == [1]


def test_a_lease_is_never_shortened(queen: Queen, clock: VirtualClock) -> None:
    queen.push("q", 1)
    (message,) = queen.pop("q")
    assert (
        queen.extend(message["leaseId"], seconds=1)["newExpiresAt"] == "2023-11-14T22:18:20.000000Z"
    )


def test_an_extend_may_come_without_a_body(queen: Queen, http: httpx.Client) -> None:
    queen.push("q", 1)
    (message,) = queen.pop("q")
    assert http.post(f"/api/v1/lease/{message['leaseId']}/extend").json()["success"] is True


def test_a_lease_that_is_over_is_not_extended(queen: Queen, clock: VirtualClock) -> None:
    queen.push("q", 1)
    (message,) = queen.pop("q", leaseSeconds=5)
    clock.advance(5)
    for lease in (message["leaseId"], "LEASE_ID", "00000000-0000-8000-8000-000000000000"):
        answer = queen.extend(lease)
        assert (answer["success"], answer["renewed"]) == (False, 0)
        assert answer["error"]


def test_an_extension_is_a_number_of_seconds(queen: Queen, http: httpx.Client) -> None:
    for seconds in (0, -1, "soon"):
        answer = http.post("/api/v1/lease/x/extend", json={"seconds": seconds})
        assert (answer.status_code, "seconds" in answer.json()["error"]) == (400, True)
