"""The Queen dialect: transactions are all or nothing."""

from typing import Any

import httpx
import pytest

from ackflow import VirtualClock

from ..running import Running
from .queen_calls import Queen, data, named


@pytest.fixture
def queen(http: httpx.Client) -> Queen:
    return Queen(http)


def ack(message: dict[str, Any], status: str | None = None, **more: Any) -> dict[str, Any]:
    return {"type": "ack", **named(message, status, **more)}


def push(queue: str, *payloads: Any, **more: Any) -> dict[str, Any]:
    return {"type": "push", "items": [{"queue": queue, "payload": p, **more} for p in payloads]}


def test_an_ack_and_a_push_happen_together(queen: Queen) -> None:
    queen.push("in", 1, transactionId="t")
    (message,) = queen.pop("in")
    answer = queen.transact(ack(message), push("out", 2, 3, partition="p"))
    assert answer["success"] is True
    first, *rest = answer["results"]
    assert first == {
        "index": 0, "type": "ack", "success": True, "transactionId": "t", "error": None,
        "dlq": False,
    }  # fmt: skip
    assert [(one["index"], one["type"], one["queueName"]) for one in rest] == [
        (1, "push", "out"), (2, "push", "out")
    ]  # fmt: skip
    popped = queen.pop("out", batch=9)
    assert [one["messageId"] for one in rest] == [m["id"] for m in popped]
    assert {one["partitionId"] for one in rest} == {m["partitionId"] for m in popped}
    assert queen.pop("in") == []


@pytest.mark.parametrize("first", [True, False])
def test_one_refusal_undoes_everything(queen: Queen, clock: VirtualClock, first: bool) -> None:
    queen.push("in", 1)
    (late,) = queen.pop("in", leaseSeconds=5)
    clock.advance(6)
    work = [ack(late), push("out", 2)]
    answer = queen.transact(*(work if first else reversed(work)))
    assert answer["success"] is False
    assert answer["error"] == "ACK operation failed: Lease validation failed"
    assert answer["reason"] == "invalid_lease"
    errors = {one["type"]: one["error"] for one in answer["results"]}
    assert errors == {"ack": "Lease validation failed", "push": "rolled_back"}
    assert queen.pop("out") == []
    assert data(queen.pop("in")) == [1]


def test_an_unknown_message_undoes_everything(queen: Queen) -> None:
    queen.push("in", 1, 2)
    one, two = queen.pop("in", batch=2)
    answer = queen.transact(ack(one), ack({**two, "transactionId": "none"}), push("out", 3))
    assert answer["error"] == "ACK operation failed: Message not found"
    assert [result["error"] for result in answer["results"]] == [
        "rolled_back", "Message not found", "rolled_back"
    ]  # fmt: skip
    assert queen.transact(ack(one), ack(two))["success"] is True


def test_in_a_transaction_an_ack_of_what_is_settled_is_refused(queen: Queen) -> None:
    queen.push("in", 1)
    (message,) = queen.pop("in")
    queen.ack(message)
    for lease in (True, False):
        assert queen.transact(ack(message, lease=lease), push("out", 1))["success"] is False
    assert queen.pop("out") == []


def test_required_leases_fence_acks_that_name_none(queen: Queen, clock: VirtualClock) -> None:
    queen.push("in", 1, partition="a")
    queen.push("in", 2, partition="b")
    (one,) = queen.pop("in", leaseSeconds=5)
    (two,) = queen.pop("in")
    leases = [one["leaseId"], two["leaseId"]]
    wrong = queen.transact(ack(one, lease=False), requiredLeases=[two["leaseId"]])
    assert (wrong["success"], wrong["reason"]) == (False, "invalid_lease")
    assert queen.transact(ack(two, lease=False), requiredLeases=leases)["success"] is True
    clock.advance(6)
    late = queen.transact(ack(one, lease=False), requiredLeases=[one["leaseId"]])
    assert late["success"] is False
    assert queen.transact(ack(one, lease=False))["success"] is True  # as it stands


@pytest.mark.parametrize("lease", ["nonsense", "00000000-0000-8000-8000-000000000000"])
def test_a_required_lease_must_be_live(queen: Queen, lease: str) -> None:
    answer = queen.transact(push("out", 1), requiredLeases=[lease])
    assert answer["success"] is False
    assert "lease" in answer["error"].lower()
    assert queen.pop("out") == []


def test_retry_dlq_and_failed_are_what_they_are_in_a_plain_ack(
    queen: Queen, served: Running
) -> None:
    queen.push("in", *range(4))
    messages = queen.pop("in", batch=4)
    statuses = ["completed", "failed", "retry", "dlq"]
    answer = queen.transact(*(ack(m, s) for m, s in zip(messages, statuses, strict=True)))
    assert [one["dlq"] for one in answer["results"]] == [False, False, False, True]
    assert [letter.data for letter in served.session.dead_letters("in").items] == [3]
    assert [(m["data"], m["retryCount"]) for m in queen.pop("in", batch=9)] == [(1, 1), (2, 0)]


def test_a_push_that_is_already_there_says_so(queen: Queen) -> None:
    (known,) = queen.push("out", 1, transactionId="t")
    (result,) = queen.transact(push("out", 2, transactionId="t"))["results"]
    assert (result["duplicate"], result["messageId"]) == (True, known["message_id"])


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "operations array required"),
        ({"operations": []}, "operations array cannot be empty"),
        ({"operations": [{"type": "pop"}]}, "push or ack"),
        ({"operations": [{"type": "push"}]}, "items"),
        ({"operations": [{"type": "ack", "transactionId": "t"}]}, "partitionId"),
        ({"operations": [{}]}, "type"),
        (
            {"operations": [{"type": "push", "items": [{"queue": "q"}]}], "kv": [{"op": "put"}]},
            "kv",
        ),
    ],
)
def test_a_transaction_that_cannot_be_understood_is_refused(
    http: httpx.Client, served: Running, body: Any, says: str
) -> None:
    answer = http.post("/api/v1/transaction", json=body)
    assert answer.status_code == 400
    assert says in answer.json()["error"]
    assert served.session.queues() == []
