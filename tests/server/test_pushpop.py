"""The PushPop dialect: one lock per queue, its edge cases and every status it answers with."""

from typing import Any

import httpx
import pytest

from ackflow import VirtualClock

from .conftest import Running
from .pushpop_calls import START, conforms, items, lock, pop, push, settle_lock


@pytest.fixture(autouse=True)
def _every_answer_is_as_declared(http: httpx.Client) -> None:
    http.event_hooks["response"] = [conforms]


# the fifteen lock tests


def test_a_pop_with_acknowledgement_makes_a_lock(http: httpx.Client) -> None:
    push(http, {"id": 1})
    answer = pop(http, require_ack="true")
    assert answer.status_code == 200
    lock_id = answer.json()["lock_id"]
    assert len(lock_id) == 11
    assert answer.json() == {
        "items": [{"id": 1}], "count": 1, "locked": True,
        "lock_id": lock_id, "lock_expires_at": START + 30,
    }  # fmt: skip


def test_an_acknowledged_lock_is_gone_with_its_items(
    http: httpx.Client, clock: VirtualClock
) -> None:
    push(http, {"id": 1})
    answer = settle_lock(http, lock(http)["lock_id"])
    assert (answer.status_code, answer.json()) == (
        200,
        {"success": True, "message": "Items acknowledged successfully", "items_acknowledged": 1},
    )
    clock.advance(31)
    assert items(http) == []


def test_a_wrong_id_is_refused_and_the_lock_stays(http: httpx.Client) -> None:
    push(http, 1)
    held = lock(http)["lock_id"]
    answer = settle_lock(http, "AAAAAAAAAAA")
    assert answer.status_code == 400
    assert answer.json() == {
        "success": False, "message": "Invalid lock_id", "error_code": "INVALID_LOCK_ID"
    }  # fmt: skip
    assert pop(http).status_code == 423
    assert settle_lock(http, held).status_code == 200


@pytest.mark.parametrize("body", ["{}", '{"lock_id": ""}', '{"lock_id": null}', "", "[]", "{"])
def test_an_acknowledge_without_an_id_is_refused(http: httpx.Client, body: str) -> None:
    push(http, 1)
    held = lock(http)["lock_id"]
    answer = http.post("/queue/q/acknowledge", content=body)
    assert answer.status_code == 400
    assert answer.json()["success"] is False
    assert settle_lock(http, held).status_code == 200


@pytest.mark.parametrize("require_ack", ["true", "false"])
def test_a_locked_queue_hands_out_nothing(
    http: httpx.Client, clock: VirtualClock, require_ack: str
) -> None:
    push(http, 1)
    push(http, 2)
    lock(http)
    clock.advance(9.5)
    answer = pop(http, require_ack=require_ack)
    assert answer.status_code == 423
    assert answer.json() == {
        "message": "Queue is locked pending acknowledgement", "lock_expires_at": START + 30
    }  # fmt: skip
    assert answer.headers["retry-after"] == "21"


def test_an_expired_lock_gives_its_items_back(http: httpx.Client, clock: VirtualClock) -> None:
    push(http, 1)
    first = lock(http, ttl_seconds=5)
    clock.advance(5)
    again = lock(http)
    assert again["items"] == [1]
    assert again["lock_id"] != first["lock_id"]


def test_a_lock_is_live_until_its_last_moment(http: httpx.Client, clock: VirtualClock) -> None:
    push(http, 1)
    held = lock(http, ttl_seconds=5)["lock_id"]
    clock.advance(4.999_999)
    assert pop(http).status_code == 423
    assert settle_lock(http, held).status_code == 200


def test_items_of_an_expired_lock_come_before_what_was_pushed_since(
    http: httpx.Client, clock: VirtualClock
) -> None:
    push(http, "old")
    lock(http, ttl_seconds=5)
    push(http, "new")
    clock.advance(6)
    assert items(http) == ["old"]
    assert items(http) == ["new"]


def test_a_plain_pop_makes_no_lock(http: httpx.Client) -> None:
    push(http, 1)
    push(http, 2)
    answer = pop(http)
    assert (answer.status_code, answer.json()) == (200, {"items": [1], "count": 1})
    assert items(http) == [2]
    assert pop(http).json() == {"items": [], "count": 0}


def test_an_empty_queue_is_not_locked(http: httpx.Client) -> None:
    answer = pop(http, require_ack="true")
    assert answer.status_code == 200
    assert answer.json() == {"items": [], "count": 0, "locked": False}
    push(http, 1)
    assert items(http) == [1]


def test_without_a_lock_an_acknowledge_finds_none(http: httpx.Client) -> None:
    push(http, 1)
    for queue in ("q", "never-used"):
        answer = http.post(f"/queue/{queue}/acknowledge", json={"lock_id": "abc123def456"})
        assert answer.status_code == 404
        assert answer.json() == {
            "success": False, "message": "No active lock found", "error_code": "LOCK_NOT_FOUND"
        }  # fmt: skip


def test_one_lock_covers_all_that_was_popped_together(http: httpx.Client) -> None:
    for n in range(4):
        push(http, n)
    held = lock(http, count=3)
    assert (held["items"], held["count"]) == ([0, 1, 2], 3)
    assert settle_lock(http, held["lock_id"]).json()["items_acknowledged"] == 3
    assert items(http, count=10) == [3]


def test_a_lock_lasts_as_long_as_was_asked(http: httpx.Client, clock: VirtualClock) -> None:
    push(http, 1)
    assert lock(http, ttl_seconds=120)["lock_expires_at"] == START + 120
    clock.advance(119)
    assert pop(http).status_code == 423
    clock.advance(1)
    assert items(http) == [1]


@pytest.mark.parametrize(
    ("asked", "given"),
    [(0, 1), (-7, 1), (1, 1), (300, 300), (301, 300), (10**30, 300), (-(10**30), 1), ("", 30)],
)
def test_a_time_to_live_is_clamped(http: httpx.Client, asked: object, given: int) -> None:
    push(http, 1)
    assert lock(http, ttl_seconds=asked)["lock_expires_at"] == START + given


def test_an_expired_item_returns_to_its_own_priority(
    http: httpx.Client, clock: VirtualClock
) -> None:
    push(http, "low", 2)
    lock(http, ttl_seconds=5)
    push(http, "high", 0)
    push(http, "lower", 3)
    clock.advance(6)
    assert items(http, count=10) == ["high", "low", "lower"]


def test_several_expired_items_return_each_to_its_priority_in_their_old_order(
    http: httpx.Client, clock: VirtualClock
) -> None:
    for item, priority in [("a1", 1), ("b1", 0), ("a2", 1), ("b2", 0)]:
        push(http, item, priority)
    assert lock(http, count=3, ttl_seconds=5)["items"] == ["b1", "b2", "a1"]
    push(http, "b3", 0)
    clock.advance(6)
    assert items(http, count=10) == ["b1", "b2", "b3", "a1", "a2"]


# edge cases


def test_a_late_acknowledge_loses_nothing_and_is_told_so(
    http: httpx.Client, clock: VirtualClock
) -> None:
    push(http, {"id": 1})
    held = lock(http, ttl_seconds=5)["lock_id"]
    clock.advance(6)
    answer = settle_lock(http, held)
    assert answer.status_code == 410
    assert answer.json() == {
        "success": False, "message": "Lock has expired", "error_code": "LOCK_EXPIRED"
    }  # fmt: skip
    assert items(http) == [{"id": 1}]


def test_a_late_acknowledge_is_still_410_once_others_have_the_items(
    http: httpx.Client, clock: VirtualClock
) -> None:
    push(http, 1)
    late = lock(http, ttl_seconds=5)["lock_id"]
    clock.advance(6)
    held = lock(http)["lock_id"]
    assert settle_lock(http, late).status_code == 410
    assert pop(http).status_code == 423
    assert settle_lock(http, held).status_code == 200
    assert settle_lock(http, late).status_code == 410


@pytest.mark.parametrize("verb", ["acknowledge", "release", "deadletter", "extend-lock"])
def test_an_unknown_id_is_told_of_the_expired_lock_as_long_as_its_items_wait(
    http: httpx.Client, clock: VirtualClock, verb: str
) -> None:
    push(http, 1)
    lock(http, ttl_seconds=5)
    assert settle_lock(http, "short123", verb).status_code == 400
    clock.advance(6)
    assert settle_lock(http, "short123", verb).status_code == 410
    assert items(http) == [1]
    assert settle_lock(http, "short123", verb).status_code == 404


def test_the_id_of_another_queue_is_unknown(http: httpx.Client) -> None:
    push(http, 1, queue="other")
    theirs = lock(http, "other")["lock_id"]
    assert settle_lock(http, theirs).status_code == 404
    push(http, 1)
    lock(http)
    assert settle_lock(http, theirs).status_code == 400
    assert pop(http, "other").status_code == 423


def test_an_acknowledge_said_again_answers_the_same(http: httpx.Client) -> None:
    push(http, 1)
    push(http, 2)
    held = lock(http, count=2)["lock_id"]
    first = settle_lock(http, held)
    again = settle_lock(http, held)
    assert (again.status_code, again.json()) == (200, first.json())


def test_a_pushed_item_does_not_wait_for_the_lock(http: httpx.Client) -> None:
    push(http, 1)
    held = lock(http)["lock_id"]
    push(http, 2)
    assert settle_lock(http, held).status_code == 200
    assert items(http) == [2]


def test_a_lock_outlives_the_server(start_process: Any) -> None:
    server = start_process()
    with httpx.Client(base_url=server.url) as http:
        push(http, 1)
        held = lock(http, ttl_seconds=300)
    server.kill()
    server = start_process()
    with httpx.Client(base_url=server.url) as http:
        answer = pop(http)
        assert answer.status_code == 423
        assert answer.json()["lock_expires_at"] == held["lock_expires_at"]
        assert settle_lock(http, held["lock_id"]).json()["items_acknowledged"] == 1
        assert items(http) == []


def test_queues_have_locks_of_their_own(http: httpx.Client) -> None:
    push(http, 1)
    push(http, 2, queue="other")
    lock(http)
    assert items(http, "other") == [2]


# pushing


def test_a_push_says_where_the_item_went(http: httpx.Client) -> None:
    answer = http.post("/queue/my-queue/push", json={"item": {"a": 1}, "priority": 3})
    assert answer.status_code == 200
    assert answer.json() == {
        "success": True, "message": "Item pushed to queue my-queue at priority 3"
    }  # fmt: skip


def test_a_lower_number_is_served_first_and_equals_in_order(http: httpx.Client) -> None:
    for item, priority in [("c", 7), ("a", None), ("d", 7), ("b", 0), ("f", 2**31 - 1), ("e", 256)]:
        push(http, item, priority)
    assert [items(http)[0] for _ in range(6)] == ["a", "b", "c", "d", "e", "f"]


def test_a_whole_number_may_be_written_with_a_point(http: httpx.Client) -> None:
    http.post("/queue/q/push", content='{"item": "b", "priority": 2.0}')
    http.post("/queue/q/push", content='{"item": "a", "priority": 1e0}')
    assert items(http, count=2) == ["a", "b"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{}", "`item`"),
        (b'{"item": null}', "item is required"),
        (b'{"item": 1, "priority": -1}', "Priority must be non-negative"),
        (b'{"item": 1, "priority": -' + b"9" * 30 + b"}", ""),
        (b'{"item": 1, "priority": 2147483648}', "from 0 to 2147483647"),
        (b'{"item": 1, "priority": "high"}', "priority"),
        (b'{"item": 1, "priority": 1.5}', "must be an integer"),
        (b'{"item": 1, "priority": 1e999}', "range"),
        (b'{"item": 01}', "malformed"),
        (b'{"item": NaN}', "malformed"),
        (b'{"item": "\xff"}', "UTF-8"),
        (b"", "truncated"),
        (b"item=1", "malformed"),
        (b'{"item":' + b"[" * 100_000, "recursion"),
        (b'{"item":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "recursion"),
    ],
)
def test_a_bad_push_is_refused_with_a_reason(http: httpx.Client, body: bytes, says: str) -> None:
    answer = http.post("/queue/q/push", content=body)
    assert answer.status_code == 400
    assert set(answer.json()) == {"success", "message", "error_code"}
    assert says in answer.json()["message"]
    assert items(http) == []


def test_an_item_that_is_too_large_is_refused(http: httpx.Client) -> None:
    body = b'{"item":"' + b"x" * (16 * 1024 * 1024) + b'"}'
    answer = http.post("/queue/q/push", content=body)
    assert answer.status_code == 413
    assert answer.json()["error_code"] == "payload_too_large"


@pytest.mark.parametrize(
    "item",
    [
        b'{"b" : 1,  "a":[ 1.0, 1e5, -0 ],\n\t"a": 2}',
        b"1e999",
        b"123456789012345678901234567890.1234567890123456789",
        b'"\\u00e9\\/ \xc3\xa9"',
        b"[" * 500 + b"]" * 500,
        b"false",
        b'""',
    ],
)
def test_an_item_comes_back_byte_for_byte(http: httpx.Client, item: bytes) -> None:
    http.post("/queue/q/push", content=b'{ "priority":1, "item" :  ' + item + b" }")
    assert pop(http).content == b'{"items":[' + item + b'],"count":1}'


@pytest.mark.parametrize("type", [None, "text/plain", "application/x-www-form-urlencoded", "x"])
def test_a_body_is_json_whatever_its_content_type(http: httpx.Client, type: str | None) -> None:
    headers = {} if type is None else {"content-type": type}
    answer = http.post("/queue/q/push", content='{"item": 1}', headers=headers)
    assert answer.status_code == 200
    held = lock(http)["lock_id"]
    answer = http.post("/queue/q/acknowledge", content=f'{{"lock_id": "{held}"}}', headers=headers)
    assert answer.status_code == 200


@pytest.mark.parametrize("name", ["a%20b", "a%2Fb", "%C3%A9", "a.b.c", "push"])
def test_a_queue_may_have_any_printable_name(http: httpx.Client, name: str) -> None:
    assert http.post(f"/queue/{name}/push", content='{"item": 1}').status_code == 200
    assert http.post(f"/queue/{name}/pop").json()["items"] == [1]


@pytest.mark.parametrize("path", ["push", "pop", "acknowledge", "extend-lock", "release", ""])
def test_a_name_no_queue_can_have_is_refused(http: httpx.Client, path: str) -> None:
    method = "POST" if path else "GET"
    for name in ("%00", "x" * 256):
        body = {"item": 1, "lock_id": "a"}
        answer = http.request(method, f"/queue/{name}/{path}".rstrip("/"), json=body)
        assert (answer.status_code, answer.json()["success"]) == (400, False)


@pytest.mark.parametrize(
    "query",
    ["require_ack=maybe", "ttl_seconds=5.5", "ttl_seconds=soon", "count=0", "count=101", "count=x"],
)
def test_a_pop_that_cannot_be_understood_is_refused_and_takes_nothing(
    http: httpx.Client, query: str
) -> None:
    push(http, 1)
    answer = http.post(f"/queue/q/pop?{query}")
    assert (answer.status_code, answer.json()["success"]) == (400, False)
    assert items(http) == [1]


@pytest.mark.parametrize(("given", "locked"), [("True", True), ("1", True), ("FALSE", False)])
def test_a_flag_is_read_in_its_usual_spellings(
    http: httpx.Client, given: str, locked: bool
) -> None:
    push(http, 1)
    assert pop(http, require_ack=given).json().get("locked", False) is locked


def test_what_another_dialect_pushed_as_bytes_is_base64(
    served: Running, http: httpx.Client
) -> None:
    served.session.push("q", b"\x00\xff")
    assert items(http) == ["AP8="]


def test_a_queue_first_read_otherwise_keeps_its_ways(served: Running, http: httpx.Client) -> None:
    push(http, 1)
    push(http, 2)
    assert [message.data for message in served.session.pop("q")] == [1]
    assert lock(http)["items"] == [2]
