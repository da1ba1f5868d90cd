"""The Queen dialect with tokens: a token is good for its queues, wherever a call names them."""

from typing import Any

import httpx
import pytest

from ackflow import ids
from ackflow.broker import access_tokens
from ackflow.server import authn

from ..running import Running
from .queen_calls import Queen, data, named


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a server look at the tokens with every request."""
    monkeypatch.setattr(authn, "RELOAD_SECONDS", 0.0)


@pytest.fixture
def queen(served: Running, http: httpx.Client) -> Queen:
    """A caller who may use the queues of the shop alone; there are others."""
    for queue in ("shop.orders", "bank.orders"):
        served.session.push(queue, queue)
    wanted = [access_tokens.grant("read-write:shop.*")]
    secret = served.session.broker.do(access_tokens.create, True, "one", wanted, None)
    http.headers["authorization"] = f"Bearer {secret}"
    return Queen(http)


@pytest.fixture
def foreign(served: Running) -> dict[str, Any]:
    """The ack of a message that is not the caller's to settle."""
    (message,) = served.session.pop("bank.orders", dialect="queen")
    home = served.session.broker.do(
        lambda tx: int(tx.partition(tx.queue("bank.orders").id, "Default").id), False
    )
    store = served.session.broker.store.id
    return {
        "transactionId": message.id,
        "partitionId": ids.partition_uuid(store, home),
        "leaseId": ids.token_uuid(ids.parse_token(message.token or "")),
    }


def test_its_own_queues_are_served(queen: Queen) -> None:
    queen.push("shop.mails", 1)
    (message,) = queen.pop("shop.mails")
    assert queen.extend(message["leaseId"])["success"]
    assert queen.transact({"type": "ack", **named(message)})["success"]


@pytest.mark.parametrize("shape", ["push", "transaction"])
def test_a_push_to_another_queue_is_forbidden_as_a_whole(queen: Queen, shape: str) -> None:
    items = [{"queue": "shop.new", "payload": 1}, {"queue": "bank.new", "payload": 2}]
    body: dict[str, Any] = {"items": items}
    if shape == "transaction":
        body = {"operations": [{"type": "push", "items": [item]} for item in items]}
    answer = queen.http.post(f"/api/v1/{shape}", json=body)
    assert answer.status_code == 403
    assert isinstance(answer.json()["error"], str)
    assert queen.pop("shop.new") == []


def test_another_queue_is_not_popped(queen: Queen) -> None:
    assert queen.http.get("/api/v1/pop/queue/bank.orders").status_code == 403
    assert data(queen.pop_path("/api/v1/pop", task="orders", batch=9)) == ["shop.orders"]
    assert queen.pop_path("/api/v1/pop", task="orders") == []
    assert queen.pop_path("/api/v1/pop", namespace="bank") == []


def test_messages_of_another_queue_are_not_settled(
    queen: Queen, served: Running, foreign: dict[str, Any]
) -> None:
    by_name = {k: v for k, v in foreign.items() if k != "leaseId"}
    for ack in (foreign, by_name):
        for path, body in (
            ("ack", ack),
            ("ack/batch", {"acknowledgments": [ack]}),
            ("transaction", {"operations": [{"type": "ack", **ack}]}),
        ):
            assert queen.http.post(f"/api/v1/{path}", json=body).status_code == 403
    assert queen.http.post(f"/api/v1/lease/{foreign['leaseId']}/extend").status_code == 403
    assert served.session.group_stats("bank.orders", "__QUEUE_MODE__").counts.leased == 1
