"""What the PushPop dialect has beyond its origin: count, extend, release, dead letters, a look."""

import socket
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest

from ackflow import VirtualClock
from ackflow.dialects.pushpop.http import ROUTES

from .conftest import Running
from .pushpop_calls import START, conforms, items, lock, pop, push, settle_lock


@pytest.fixture(autouse=True)
def _every_answer_is_as_declared(http: httpx.Client) -> None:
    http.event_hooks["response"] = [conforms]


# count


def test_a_pop_brings_up_to_as_many_as_asked_by_priority(http: httpx.Client) -> None:
    for n in range(120):
        push(http, n, priority=n % 2)
    first = items(http, count=100)
    assert first == [*range(0, 120, 2), *range(1, 80, 2)]
    assert items(http, count=100) == [*range(81, 120, 2)]


# extend-lock


def test_an_extended_lock_lives_on(http: httpx.Client, clock: VirtualClock) -> None:
    push(http, 1)
    held = lock(http, ttl_seconds=10)["lock_id"]
    clock.advance(9)
    answer = settle_lock(http, held, "extend-lock", ttl_seconds=60)
    assert answer.json() == {
        "success": True, "message": "Lock extended successfully",
        "lock_id": held, "lock_expires_at": START + 69,
    }  # fmt: skip
    clock.advance(59)
    assert pop(http).json()["lock_expires_at"] == START + 69
    assert settle_lock(http, held).status_code == 200


def test_an_extension_never_shortens_a_lock(http: httpx.Client) -> None:
    push(http, 1)
    held = lock(http, ttl_seconds=100)["lock_id"]
    answer = settle_lock(http, held, "extend-lock", ttl_seconds=10)
    assert answer.json()["lock_expires_at"] == START + 100


@pytest.mark.parametrize(
    ("asked", "given"), [({}, 30), ({"ttl_seconds": None}, 30), ({"ttl_seconds": 10**6}, 300)]
)
def test_an_extension_is_as_long_as_a_lock_may_be(
    http: httpx.Client, asked: dict[str, object], given: int
) -> None:
    push(http, 1)
    held = lock(http, ttl_seconds=1)["lock_id"]
    assert (
        settle_lock(http, held, "extend-lock", **asked).json()["lock_expires_at"] == START + given
    )


def test_an_expired_or_settled_lock_is_not_extended(
    http: httpx.Client, clock: VirtualClock
) -> None:
    push(http, 1)
    held = lock(http, ttl_seconds=5)["lock_id"]
    clock.advance(5)
    assert settle_lock(http, held, "extend-lock").status_code == 410
    held = lock(http)["lock_id"]
    settle_lock(http, held)
    answer = settle_lock(http, held, "extend-lock")
    assert (answer.status_code, answer.json()["error_code"]) == (409, "already_settled")


# release


def test_released_items_are_back_at_once_in_their_places(http: httpx.Client) -> None:
    for item, priority in [("b", 1), ("a", 0), ("c", 1)]:
        push(http, item, priority)
    held = lock(http, count=2)
    assert held["items"] == ["a", "b"]
    answer = settle_lock(http, held["lock_id"], "release")
    assert answer.json() == {
        "success": True, "message": "Items released successfully", "items_released": 2
    }  # fmt: skip
    assert items(http, count=10) == ["a", "b", "c"]


def test_a_released_lock_is_not_taken_for_an_expired_one(http: httpx.Client) -> None:
    push(http, 1)
    held = lock(http)["lock_id"]
    assert settle_lock(http, held, "release").status_code == 200
    assert settle_lock(http, "short123").status_code == 404
    assert settle_lock(http, held, "release").json()["items_released"] == 1
    answer = settle_lock(http, held)
    assert (answer.status_code, answer.json()["error_code"]) == (409, "already_settled")
    assert items(http) == [1]


# deadletter


def test_dead_items_are_kept_with_the_reason_and_not_popped_again(
    served: Running, http: httpx.Client
) -> None:
    push(http, {"id": 1}, priority=4)
    push(http, {"id": 2}, priority=4)
    held = lock(http)["lock_id"]
    answer = settle_lock(http, held, "deadletter", reason="no such customer")
    assert answer.json() == {
        "success": True, "message": "Items moved to the dead letters", "items_dead_lettered": 1
    }  # fmt: skip
    assert items(http, count=10) == [{"id": 2}]
    (dead,) = served.session.dead_letters("q").items
    assert (dead.data, dead.priority, dead.reason) == ({"id": 1}, 4, "no such customer")
    assert settle_lock(http, held, "deadletter").json()["items_dead_lettered"] == 1


@pytest.mark.parametrize("verb", ["extend-lock", "release", "deadletter"])
def test_every_verb_on_a_lock_refuses_as_acknowledge_does(
    http: httpx.Client, clock: VirtualClock, verb: str
) -> None:
    assert settle_lock(http, "AAAAAAAAAAA", verb).status_code == 404
    push(http, 1)
    held = lock(http, ttl_seconds=5)["lock_id"]
    assert settle_lock(http, "AAAAAAAAAAA", verb).status_code == 400
    assert settle_lock(http, "", verb).status_code == 400
    assert pop(http).status_code == 423
    clock.advance(6)
    assert settle_lock(http, held, verb).status_code == 410
    assert items(http) == [1]


# the look at a queue


def test_a_queue_shows_what_is_left_by_priority(http: httpx.Client) -> None:
    for priority in (0, 5, 5, 2):
        push(http, 1, priority)
    answer = http.get("/queue/q")
    assert answer.json() == {
        "queue": "q", "count": 4, "priorities": {"0": 1, "2": 1, "5": 2},
        "delayed": 0, "dead_letters": 0, "locked": False,
    }  # fmt: skip
    items(http)
    assert http.get("/queue/q").json()["priorities"] == {"2": 1, "5": 2}


def test_a_queue_shows_its_live_lock(http: httpx.Client, clock: VirtualClock) -> None:
    for priority in (0, 1, 1):
        push(http, 1, priority)
    clock.advance(1)
    held = lock(http, count=2, ttl_seconds=5)["lock_id"]
    assert http.get("/queue/q").json() == {
        "queue": "q", "count": 1, "priorities": {"1": 1}, "delayed": 0, "dead_letters": 0,
        "locked": True,
        "lock": {
            "lock_id": held, "created_at": START + 1, "lock_expires_at": START + 6, "count": 2,
            "priorities": {"0": 1, "1": 1},
        },
    }  # fmt: skip


def test_an_expired_lock_is_shown_as_items_that_are_back(
    http: httpx.Client, clock: VirtualClock
) -> None:
    push(http, 1, 3)
    lock(http, ttl_seconds=5)
    clock.advance(5)
    shown = http.get("/queue/q").json()
    assert (shown["priorities"], shown["locked"]) == ({"3": 1}, False)


@pytest.mark.parametrize("read_before", [True, False])
def test_a_queue_shows_what_is_delayed_deleted_and_dead(
    served: Running, http: httpx.Client, read_before: bool
) -> None:
    if read_before:
        assert items(http) == []
    ids = served.session.push("q", [1, 2, 3])
    served.session.push("q", [4], delay=60)
    served.session.delete_message("q", ids[2])
    shown = http.get("/queue/q").json()
    assert (shown["priorities"], shown["delayed"], shown["dead_letters"]) == ({"0": 2}, 1, 0)
    settle_lock(http, lock(http)["lock_id"], "deadletter")
    shown = http.get("/queue/q").json()
    assert (shown["priorities"], shown["delayed"], shown["dead_letters"]) == ({"0": 1}, 1, 1)


def test_a_queue_that_is_not_there_is_not_found(http: httpx.Client) -> None:
    answer = http.get("/queue/nothing")
    assert (answer.status_code, answer.json()["error_code"]) == (404, "queue_not_found")
    assert http.get("/queue/nothing").status_code == 404


def test_a_lock_partly_taken_away_is_acknowledged_for_the_rest(
    served: Running, http: httpx.Client
) -> None:
    ids = served.session.push("q", [1, 2])
    held = lock(http, count=2)["lock_id"]
    served.session.delete_message("q", ids[0])
    assert settle_lock(http, held).json()["items_acknowledged"] == 1


def test_a_purge_takes_the_lock_too(served: Running, http: httpx.Client) -> None:
    push(http, 1)
    held = lock(http)["lock_id"]
    served.session.purge("q")
    answer = settle_lock(http, held)
    assert (answer.status_code, answer.json()["error_code"]) == (409, "invalid_lease")
    push(http, 2)
    assert items(http) == [2]


def test_a_paused_queue_hands_out_nothing_and_is_not_locked(
    served: Running, http: httpx.Client
) -> None:
    push(http, 1)
    served.session.pause("q")
    assert pop(http, require_ack="true").json() == {"items": [], "count": 0, "locked": False}
    served.session.resume("q")
    assert items(http) == [1]


def test_a_queue_configured_with_a_lease_time_locks_that_long(
    served: Running, http: httpx.Client
) -> None:
    served.session.configure("q", lease_seconds=45)
    push(http, 1)
    assert lock(http)["lock_expires_at"] == START + 45


def test_a_lock_names_the_address_that_holds_it(served: Running, http: httpx.Client) -> None:
    push(http, 1)
    lock(http)
    (lease,) = served.session.leases("q")
    assert lease.consumer.startswith("127.0.0.1:")


def test_every_route_can_be_described(http: httpx.Client) -> None:
    for route in ROUTES:
        assert route.summary
        assert route.tag == "pushpop"
        types = [type for type in (route.body, *route.responses.values()) if type is not None]
        msgspec.json.schema_components(types)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_client_that_left_before_its_answer_leaves_no_lock(
    served: Running, http: httpx.Client
) -> None:
    push(http, 1)
    where, before = urlsplit(served.url), len(served.connections)
    with served.session.broker.writer.exclusively():  # nothing is answered meanwhile
        with socket.create_connection((where.hostname or "", where.port or 0)) as sock:
            sock.sendall(b"POST /queue/q/pop?require_ack=true HTTP/1.1\r\nHost: localhost\r\n\r\n")
            until(lambda: served.connections.busy > 0)
        until(lambda: len(served.connections) <= before)
    until(lambda: pop(http).json().get("items") == [1])
