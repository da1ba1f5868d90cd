"""Pushes in the native dialect: what a client may send, in MessagePack and in JSON."""

import base64
from array import array
from typing import Any

import httpx
import pytest

from ackflow.broker.requests import (
    BatchCommit,
    Chunk,
    PushOperation,
    PushRequest,
    TransactionRequest,
)
from ackflow.options import MAX_PUSHES
from ackflow.remote import wire
from ackflow.store.records import Rest

from ..running import Running

NOT_JSON = [
    b'1},{"id":"forged"', b"\xff", b'"\xff"', b"", b"NaN", b"[1,]", b'"\x00"', b"[" * 5_000,
    '"\xe9"'.encode("latin-1"), b"1 2",
]  # fmt: skip


def post(http: httpx.Client, path: str, body: Any) -> httpx.Response:
    return http.post(path, content=wire.write(body, wire.MSGPACK),
                     headers={"content-type": wire.MSGPACK})  # fmt: skip


def chunk(*payloads: bytes, rest: Rest | None = None) -> Chunk:
    ends = [sum(map(len, payloads[: n + 1])) for n in range(len(payloads))]
    return Chunk("orders", "p", 0, None, array("i", ends), b"".join(payloads), rest)


def test_flags_of_the_store_have_no_effect_in_a_push(served: Running, http: httpx.Client) -> None:
    """A body that is marked as encrypted and is not would make every pop that reaches it fail."""
    sent = {"queue": "orders", "partition": "p", "priority": 0, "delay": None,
            "ends": array("i", [1]).tobytes(), "data": b"1",
            "rest": {"sealed": True, "txids": {0: "t"}}}  # fmt: skip
    assert post(http, "/v1/push", {"chunks": [sent]}).status_code == 200
    assert post(http, "/v1/verbs/stage", (True, ("producer", 1, [sent]))).status_code == 200
    served.session.broker.store._cache.clear()  # read from the store, as after a restart
    assert [message.data for message in served.session.pop("orders")] == [1]


@pytest.mark.parametrize("payload", NOT_JSON, ids=range(len(NOT_JSON)))
def test_a_payload_that_is_not_json_is_refused_by_every_verb_that_pushes(
    served: Running, http: httpx.Client, payload: bytes
) -> None:
    for bad in (
        chunk(payload),
        chunk(b"1", payload),
        chunk(b"\xff", payload, rest=Rest(binary=[0, 1])),
    ):
        request = PushRequest([bad])
        push = PushOperation(request)
        for path, body in (
            ("push", request),
            ("verbs/stage", (True, ("producer", 1, [bad]))),
            ("verbs/transact", (True, (TransactionRequest([push]),))),
            ("verbs/publish", (True, ("producer", 1, [], TransactionRequest([push])))),
            ("verbs/commit_batch", (True, (BatchCommit("producer", 1, also=[push]),))),
        ):
            answer = post(http, f"/v1/{path}", body)
            assert answer.status_code == 400, path
            assert answer.json()["error"]["code"] == "invalid_argument"
        (outcome,) = post(http, "/v1/pushes", [request]).json()
        assert outcome["error"]["code"] == "invalid_argument"
    assert served.session.queues() == []


def test_payloads_that_together_are_json_but_not_one_by_one_are_refused(http: httpx.Client) -> None:
    assert post(http, "/v1/push", PushRequest([chunk(b"[1", b"2]")])).status_code == 400


def test_bytes_are_not_checked_to_be_json(served: Running, http: httpx.Client) -> None:
    mixed = chunk(b"\xff\x00", '"é"'.encode(), rest=Rest(binary=[0, 1]))
    assert post(http, "/v1/push", PushRequest([mixed])).status_code == 200
    found = served.session.pop("orders", batch=2)
    assert [message.data for message in found] == [b"\xff\x00", "é"]


@pytest.mark.parametrize("ends", [[1, 4], base64.b64encode(array("i", [1, 4]).tobytes()).decode()])
def test_json_carries_a_whole_push(served: Running, http: httpx.Client, ends: object) -> None:
    sent = {"queue": "orders", "partition": "p", "priority": 0, "delay": None, "ends": ends,
            "data": base64.b64encode(b'1"b"').decode(),
            "rest": {"txids": {"0": "t"}, "headers": {"1": {"a": "b"}}}}  # fmt: skip
    answer = http.post("/v1/push", json={"chunks": [sent], "key": "k"})
    assert answer.status_code == 200, answer.text
    assert http.post("/v1/pushes", json=[{"chunks": [sent], "key": "k"}]).json()[0]["places"]
    first, second = served.session.pop("orders", batch=3)
    assert (first.data, first.transaction_id) == (1, "t")
    assert (second.data, second.headers) == ("b", {"a": "b"})


@pytest.mark.parametrize("ends", [[1, 1 << 31], [1.5], ["1"], "AAA", "!", 4, None, {}, [None]])
def test_offsets_in_json_that_are_none_are_refused(http: httpx.Client, ends: object) -> None:
    sent = {"queue": "q", "partition": "p", "priority": 0, "delay": None, "ends": ends, "data": ""}
    assert http.post("/v1/push", json={"chunks": [sent]}).status_code == 400


def test_a_request_with_too_many_pushes_is_refused_before_any_is_made(
    served: Running, http: httpx.Client
) -> None:
    empty: list[Any] = [PushRequest([])] * MAX_PUSHES
    assert post(http, "/v1/pushes", empty).status_code == 200
    refused = post(http, "/v1/pushes", [*empty, PushRequest([chunk(b"1")])])
    assert refused.status_code == 400
    assert served.session.queues() == []


def test_large_bodies_are_read_off_the_event_loop(served: Running, http: httpx.Client) -> None:
    """Each is pushed, or refused, like a small one."""
    filler = b'"' + b"x" * 300_000 + b'"'
    assert post(http, "/v1/push", PushRequest([chunk(filler)])).status_code == 200
    assert post(http, "/v1/push", PushRequest([chunk(filler, b"1,")])).status_code == 400
    staged = post(http, "/v1/verbs/stage", (True, ("producer", 1, [chunk(filler)])))
    assert staged.status_code == 200
    items = [
        {"queue": "orders", "payload": "x" * 200, "transactionId": str(n)} for n in range(2_000)
    ]
    pushed = http.post("/api/v1/push", json={"items": items})
    assert [one["transaction_id"] for one in pushed.json()] == [str(n) for n in range(2_000)]
    assert http.post("/api/v1/push", content=b'{"items": [' + filler).status_code == 400
    assert served.session.queue_stats("orders").messages == 2_001
