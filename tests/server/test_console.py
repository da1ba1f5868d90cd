"""The routes of the dashboard under attack: names, patterns, tails, sessions, deep payloads, many queues."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import httpx
import msgspec
import pytest

from ackflow import ids
from ackflow.server.console import tails, ui
from ackflow.server.console.masking import MASK, Masking
from ackflow.server.console.tails import Tails
from ackflow.server.console.ui import Sessions, UiSettings
from ackflow.server.limits import ServerBusy

from ..running import Running
from .test_auth import at_once as at_once
from .test_auth import bearer, make


def test_the_id_of_a_message_does_not_tell_another_tenant_its_queue(
    served: Running, http: httpx.Client
) -> None:
    """Ids can be counted up: only the store, the lane and the sequence are in them."""
    (id,) = served.session.push("secret-plans", 1)
    place = ids.parse_message_id(id)
    unknown = ids.message_id(place.store, place.lane + 1000, 0)
    tenant, owner = (
        make(served, "read-only:other.*"),
        make(served, "read-only:secret-*", name="owner"),
    )
    seen = http.get("/v1/locate", params={"id": id}, headers=bearer(tenant))
    nothing = http.get("/v1/locate", params={"id": unknown}, headers=bearer(tenant))
    assert seen.status_code == nothing.status_code == 404
    assert seen.text.replace(id, "") == nothing.text.replace(unknown, "")
    found = http.get("/v1/locate", params={"id": id}, headers=bearer(owner))
    assert found.json() == {"queue": "secret-plans"}


@pytest.mark.parametrize("path", ["/v1/queues?filter=", "/metrics?queue="])
def test_a_pattern_of_names_is_limited_and_not_kept(
    served: Running, http: httpx.Client, path: str
) -> None:
    served.session.push("orders", 1)
    assert http.get(f"{path}{'*a' * 200}").status_code == 400
    assert http.get(f"{path}[a-o]rders").status_code == 200
    assert "orders" in http.get(f"{path}[a-o]r*s").text


def test_only_so_many_tails_are_followed_at_a_time() -> None:
    kept = Tails()
    with contextlib.ExitStack() as stack:
        for _ in range(tails.MOST_FOLLOWING):
            stack.enter_context(kept.following())
        with pytest.raises(ServerBusy), kept.following():
            pass
    with kept.following():
        pass


def test_the_positions_of_tails_take_bounded_memory() -> None:
    kept = Tails()
    large = dict.fromkeys(range(tails.MOST_POSITIONS // 2), 1)
    keys = [kept.keep(large.copy()) for _ in range(4)]
    assert [kept.after(key) is not None for key in keys] == [False, False, True, True]
    small = [kept.keep({1: 1}) for _ in range(tails.MOST_KEPT + 10)]
    assert kept.after(small[0]) is None
    assert kept.after(small[-1]) == {1: 1}
    assert kept._positions == sum(map(len, kept._kept.values()))


def test_one_token_cannot_end_the_sessions_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ui, "MOST_SESSIONS", ui.MOST_OF_TOKEN + 5)
    sessions = Sessions()
    mine = sessions.begin(b"mine")
    flood = [sessions.begin(b"evil") for _ in range(3 * ui.MOST_OF_TOKEN)]
    assert sessions.token(mine) == b"mine"
    assert sessions.token(flood[0]) is None
    assert sessions.token(flood[-1]) == b"evil"


def test_what_is_nested_too_deeply_to_be_searched_is_masked() -> None:
    """As a whole or from a depth on: how deep the decoder goes depends on the recursion limit."""
    deep = b"[" * 5_000 + b'{"password":1}' + b"]" * 5_000
    masked = Masking(["password"]).payload(deep)
    assert masked.strip(b"[]") == msgspec.json.encode(MASK)


@pytest.mark.parametrize("served", [{"ui": UiSettings(mask=("password",))}], indirect=True)
def test_a_deep_payload_does_not_break_the_page_of_its_queue(
    served: Running, http: httpx.Client
) -> None:
    depth, stored = 1_000, 0
    while not stored:  # as deep as the server takes it
        depth -= 10
        payload = b"[" * depth + b'{"password":"secret"}' + b"]" * depth
        pushed = http.post("/queue/q/push", content=b'{"item":%b}' % payload)
        stored = pushed.status_code == 200
    assert depth > 200
    for path in ("messages", "tail"):
        answer = http.get(f"/v1/queues/q/{path}")
        assert answer.status_code == 200, answer.text
        assert "secret" not in answer.text


def test_pages_over_many_queues_are_made_beside_the_loop(
    served: Running, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sorting and filtering thousands of queues would hold up every push."""
    monkeypatch.setattr("ackflow.server.app.FEW_ITEMS", 3)
    for n in range(10):
        served.session.push(f"q{n}", 1)
        served.session.pop(f"q{n}")
    token = make(served, "read-only:q*")
    threads = set[str]()
    original = served.app.thread

    def noted(call: object) -> object:
        threads.add(threading.current_thread().name)
        return original(call)  # type: ignore[arg-type]

    monkeypatch.setattr(served.app, "thread", noted)
    for path in ("/v1/overview", "/v1/queues?filter=q&show=busy&sort=ready&descending=true",
                 "/v1/groups?filter=q", "/v1/leases"):  # fmt: skip
        threads.clear()
        answer = http.get(path, headers=bearer(token))
        assert answer.status_code == 200, answer.text
        assert threads, path
    page = http.get("/v1/queues?filter=q&show=busy&limit=4", headers=bearer(token)).json()
    assert [row["name"] for row in page["items"]] == ["q0", "q1", "q2", "q3"]
    assert page["total"] == 10


@pytest.fixture
def held(served: Running) -> Iterator[socket.socket]:
    """A client that asks for much and reads nothing."""
    served.app.in_transit.most = 1_000_000
    served.session.push("big", ["x" * 1_000_000] * 20)
    where = httpx.URL(served.url)
    pop = b"GET /api/v1/pop/queue/big?batch=100&consumerGroup=a HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with socket.create_connection((where.host, where.port or 0)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(pop)
        _until(lambda: served.app.in_transit.bytes > 1_000_000)
        yield sock


def _until(true: object) -> None:
    deadline = time.monotonic() + 20
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


READS = [
    ("POST", "/v1/verbs/browse", [False, [{"queue": "big"}]]),
    ("POST", "/v1/verbs/ack_and_pop", [True, [{}, {"queue": "big", "group": "b", "consumer": "c"}]]),
    ("GET", "/api/v1/messages?queue=big", None), ("GET", "/v1/queues/big/messages", None),
]  # fmt: skip


def test_what_a_slow_client_would_have_to_wait_for_is_refused_before_it_is_read(
    served: Running, http: httpx.Client, held: socket.socket
) -> None:
    """Not only pops: while clients that do not read hold much, no large answer is made."""
    for method, path, body in READS:
        answer = http.request(method, path, json=body)
        assert (path, answer.status_code) == (path, 503)
        assert answer.headers["retry-after"] == "1"
    assert http.post("/queue/q/push", json={"item": 1}).status_code == 200
    for path in ("/readyz", "/v1/overview", "/v1/queues", "/v1/leases"):  # to see who holds it
        assert http.get(path).status_code == 200
    held.close()
    _until(lambda: served.app.in_transit.bytes == 0)
    for method, path, body in READS:
        assert http.request(method, path, json=body).status_code == 200, path
    _until(lambda: served.app.in_transit.bytes == 0)


def test_what_ack_and_pop_hands_out_counts_until_it_is_read(
    served: Running, http: httpx.Client
) -> None:
    served.app.in_transit.most = 1_000_000
    served.session.push("big", ["x" * 1_000_000] * 20)
    body = msgspec.json.encode(
        [True, [{}, {"queue": "big", "group": "b", "consumer": "c", "batch": 9}]]
    )
    head = b"POST /v1/verbs/ack_and_pop HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
    where = httpx.URL(served.url)
    with socket.create_connection((where.host, where.port or 0)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(head % len(body) + body)
        _until(lambda: served.app.in_transit.bytes > 1_000_000)
        again = http.post("/v1/verbs/ack_and_pop", content=body)
        assert again.status_code == 503
    _until(lambda: served.app.in_transit.bytes == 0)
    _until(lambda: served.session.group_stats("big", "b").counts.leased == 0)


def test_no_route_of_the_dashboard_gives_a_tenant_what_belongs_to_another(
    served: Running, http: httpx.Client
) -> None:
    """Ids, tokens and numbers of another queue, named under the tenant's own."""
    session = served.session
    session.push("mine", ["secret-payload"] * 3, headers={"h": "secret-header"})
    message, dead = session.pop("mine", batch=2)
    dead.reject("secret-reason")
    number = session.dead_letters("mine")[0].id
    session.push("own", 1)
    session.pop("own")
    tenant = bearer(make(served, "admin:own"))
    token = message.token
    base = "/v1/queues/own"
    calls: list[tuple[str, str, object]] = [
        ("GET", f"{base}/messages/{message.id}", None),
        ("GET", f"{base}/messages/{message.id}/payload", None),
        ("GET", f"{base}/messages?id={message.id}", None),
        ("POST", f"{base}/messages/{message.id}/settle", {"verdict": "ack"}),
        ("DELETE", f"{base}/messages/{message.id}", None),
        ("POST", f"{base}/leases/{token}/release", None),
        ("POST", f"{base}/leases/{token}/extend", {"seconds": 60}),
        ("POST", f"{base}/dead/redrive", {"ids": [number]}),
        ("POST", f"{base}/dead/purge", {"ids": [number]}),
        ("POST", f"{base}/dead/redrive", {"ids": [number], "to": "mine"}),
        ("GET", "/v1/leases", None), ("GET", "/v1/dead", None), ("GET", "/v1/overview", None),
        ("GET", "/v1/queues", None), ("GET", "/v1/groups", None), ("GET", "/v1/tokens", None),
        ("GET", "/v1/audit", None), ("GET", "/v1/values", None), ("GET", "/v1/series", None),
        ("GET", "/v1/jobs", None), ("GET", "/v1/schedules", None), ("GET", "/v1/pipelines", None),
        ("GET", f"{base}/tail", None), ("GET", "/v1/leases?queue=mine", None),
    ]  # fmt: skip
    for method, path, body in calls:
        answer = http.request(method, path, json=body, headers=tenant)
        assert answer.status_code < 500, answer.text
        assert "secret-" not in answer.text, path
        assert '"mine"' not in answer.text or answer.status_code == 403, (path, answer.text)
    stats = session.group_stats("mine")
    assert (stats.counts.leased, stats.counts.dead, stats.counts.ready) == (1, 1, 1)
    message.ack()
