"""Who may do what: tokens, sessions, read-only mode, masking, other pages, a path prefix."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from ackflow.broker import access_tokens
from ackflow.broker.broker import Broker
from ackflow.worker.coordination import schedules

from .conftest import Board, Browser
from .seed import SECRET_CARD

pytestmark = pytest.mark.xdist_group("dashboard")
OWN = {"x-ackflow-ui": "1", "sec-fetch-site": "same-origin"}


@pytest.fixture
def tokens(board: Board) -> Iterator[dict[str, str]]:
    """A token of each kind; afterwards the server is open again."""
    broker = board.session.broker
    assert isinstance(broker, Broker)
    grants = {
        "boss": ["admin"], "reader": ["read-only"], "shop": ["read-write:orders"],
    }  # fmt: skip
    made = {
        name: broker.do(
            access_tokens.create, True, name, [access_tokens.grant(one) for one in some], None
        )
        for name, some in grants.items()
    }
    board.serve()
    yield made
    broker.do(access_tokens.forget_all, True)
    board.serve()


def log_in(browser: Browser, token: str) -> None:
    browser.driver.get(browser.base + "/ui/")
    browser.forget()
    browser.driver.get(browser.base + "/ui/")
    browser.sees("Log in to Ackflow")
    field = browser.driver.find_element("name", "token")
    field.send_keys(token)
    browser.click("Log in")


@contextmanager
def client(board: Board, token: str) -> Iterator[httpx.Client]:
    """A client with a session of this token."""
    with httpx.Client(base_url=board.url, timeout=30) as made:
        answer = made.post("/v1/session", json={"token": token}, headers=OWN)
        assert answer.status_code == 200, answer.text
        yield made


def test_a_token_logs_in_and_a_wrong_one_does_not(
    board: Board, browser: Browser, tokens: dict[str, str]
) -> None:
    log_in(browser, "ackflow_wrong")
    browser.sees("The token is unknown, expired or revoked.")
    browser.shot("login-light")
    log_in(browser, tokens["boss"])
    browser.sees("Queues in trouble", "boss", "Tokens", "Audit")
    cookie = browser.driver.get_cookie("ackflow_session")
    assert cookie is not None
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert tokens["boss"] not in cookie["value"]
    assert browser.js("return document.cookie") == ""
    browser.click("Log out")
    browser.sees("Log in to Ackflow")
    again = httpx.get(board.url + "/v1/overview", cookies={"ackflow_session": cookie["value"]})
    assert again.status_code == 401
    browser.forget()


def test_a_reader_sees_everything_and_is_offered_no_change(
    browser: Browser, tokens: dict[str, str]
) -> None:
    log_in(browser, tokens["reader"])
    browser.sees("Queues in trouble")
    assert "Audit" not in browser.text()
    browser.open("queues/payments/dead", "amount is negative")
    assert "Redrive" not in browser.text()
    browser.open("queues/orders", "billing")
    assert "Purge" not in browser.text()
    browser.forget()


def test_the_server_decides_whatever_the_page_offers(board: Board, tokens: dict[str, str]) -> None:
    with client(board, tokens["reader"]) as reader:
        for method, path in (
            ("POST", "/v1/queues/orders/pause"), ("DELETE", "/v1/queues/orders"),
            ("PATCH", "/v1/queues/orders"), ("POST", "/v1/queues/orders/messages"),
            ("POST", "/v1/queues/payments/dead/redrive"), ("POST", "/v1/tokens"),
            ("GET", "/v1/tokens"), ("GET", "/v1/audit"),
        ):  # fmt: skip
            body = None if method == "GET" else {"paused": True, "options": {}, "items": []}
            answer = reader.request(method, path, json=body, headers=OWN)
            assert answer.status_code == 403, (method, path, answer.text)
    assert not board.session.queue_stats("orders").paused


def test_a_token_for_some_queues_sees_only_these(
    board: Board, browser: Browser, tokens: dict[str, str]
) -> None:
    log_in(browser, tokens["shop"])
    browser.sees("orders")
    browser.open("queues", "1 to 1 of 1")
    assert "payments" not in browser.text()
    browser.open("queues/payments")
    browser.sees("Insufficient permissions")
    browser.forget()
    with client(board, tokens["shop"]) as shop:
        assert [one["name"] for one in shop.get("/v1/queues").json()["items"]] == ["orders"]
        assert {one["queue"] for one in shop.get("/v1/groups").json()["items"]} == {"orders"}
        assert {one["queue"] for one in shop.get("/v1/leases").json()["items"]} == {"orders"}
        assert shop.get("/v1/dead").json()["items"] == []
        assert shop.get("/v1/overview").json()["totals"]["queues"] == 1
        letter = board.session.dead_letters("payments")[0]
        for path in ("/v1/series", "/v1/values", "/v1/queues/payments", "/v1/series?queue=payments",
                     "/v1/queues/payments/messages", "/v1/leases?queue=payments",
                     "/v1/dead?queue=payments"):  # fmt: skip
            assert shop.get(path).status_code == 403, path
        hidden = shop.get(f"/v1/locate?id={letter.message_id}")  # 403 would name the queue
        assert hidden.status_code == 404
        assert "payments" not in hidden.text
        body = {"to": "payments", "dry_run": False}
        answer = shop.post("/v1/queues/orders/dead/redrive", json=body, headers=OWN)
        assert answer.status_code == 403


def test_a_session_is_no_key_to_the_rest_of_the_server(
    board: Board, tokens: dict[str, str]
) -> None:
    with client(board, tokens["boss"]) as boss:
        assert boss.get("/v1/overview").status_code == 200
        assert boss.get("/metrics").status_code == 401
        push = boss.post("/v1/push", json={"chunks": []}, headers=OWN)
        assert push.status_code == 401


def test_other_pages_change_nothing(board: Board, tokens: dict[str, str]) -> None:
    path, body = "/v1/queues/orders/pause", {"paused": True}
    refused = (
        {}, {"x-ackflow-ui": "1", "sec-fetch-site": "cross-site"},
        {"x-ackflow-ui": "1", "sec-fetch-site": "same-site"}, {"sec-fetch-site": "same-origin"},
        {"x-ackflow-ui": "1", "sec-fetch-site": "same-origin", "origin": "https://evil.example"},
    )  # fmt: skip
    with client(board, tokens["boss"]) as boss:
        for headers in refused:
            assert boss.post(path, json=body, headers=headers).status_code == 403, headers
        assert not board.session.queue_stats("orders").paused
        assert boss.post(path, json=body, headers=OWN).status_code == 200
        assert boss.post(path, json={"paused": False}, headers=OWN).status_code == 200


def test_other_pages_change_nothing_without_tokens_either(board: Board) -> None:
    path, body = board.url + "/v1/queues/orders/pause", {"paused": True}
    for headers in ({"origin": board.url}, {"sec-fetch-site": "cross-site", "x-ackflow-ui": "1"}):
        assert httpx.post(path, json=body, headers=headers).status_code == 403
    assert not board.session.queue_stats("orders").paused


def test_a_revoked_token_ends_its_sessions(board: Board, tokens: dict[str, str]) -> None:
    broker = board.session.broker
    assert isinstance(broker, Broker)
    with client(board, tokens["shop"]) as shop:
        assert shop.get("/v1/queues").status_code == 200
        broker.do(access_tokens.revoke, True, "shop")
        board.host.app.auth._stale_at = 0.0  # type: ignore[union-attr]
        assert shop.get("/v1/queues").status_code == 401


def test_the_audit_says_who_and_from_where(
    board: Board, browser: Browser, tokens: dict[str, str]
) -> None:
    with client(board, tokens["boss"]) as boss:
        boss.post("/v1/queues/reports/pause", json={"paused": True}, headers=OWN)
        boss.post("/v1/queues/reports/pause", json={"paused": False}, headers=OWN)
        first, second, *_ = boss.get("/v1/audit").json()
    assert [one["action"] for one in (first, second)] == ["resume", "pause"]
    assert (first["who"], first["origin"], first["queue"]) == ("boss", "127.0.0.1", "reports")
    verb = {"authorization": f"Bearer {tokens['boss']}"}
    call = f"{board.url}/v1/verbs/pause"
    assert httpx.post(call, json=[True, ["reports", None, False]], headers=verb).status_code == 200
    log_in(browser, tokens["boss"])
    browser.sees("Queues in trouble")
    browser.open("audit", "resume")
    browser.sees("boss", "127.0.0.1")
    browser.open("tokens", "New token")
    browser.click("New token")
    browser.fill("name", "robot")
    browser.fill("grants", "read-write:orders.*")
    browser.click("Create")
    browser.sees("It is shown only now")
    browser.click("Close", "footer")
    browser.sees("read-write:orders.*")
    browser.click("Revoke robot")
    browser.click("Revoke robot")
    browser.sees("revoked")
    browser.forget()


def test_a_read_only_dashboard_refuses_every_change(board: Board, browser: Browser) -> None:
    board.serve(read_only=True)
    try:
        browser.open("queues/orders", "Read-only")
        assert "Pause" not in browser.text().replace("Paused", "")
        for method, path, body in (
            ("POST", "/v1/queues/orders/pause", {"paused": True}),
            ("POST", "/v1/queues/orders/messages", {"items": [{"data": 1}]}),
            ("POST", "/v1/queues/payments/dead/purge", {}), ("DELETE", "/v1/queues/orders", None),
            ("POST", "/v1/tokens", {"name": "x"}),
        ):  # fmt: skip
            answer = httpx.request(method, board.url + path, json=body)
            assert answer.status_code == 403, (path, answer.text)
    finally:
        board.serve()


def test_masked_fields_do_not_leave_the_server(board: Board, browser: Browser) -> None:
    board.serve(mask=("password", "card.*", "tenant"))
    try:
        id = next(iter(board.session.browse("orders", limit=1))).id
        message = f"/v1/queues/orders/messages/{id}"
        for path in (message, f"{message}/payload", "/v1/queues/orders/messages",
                     "/v1/queues/orders/tail"):  # fmt: skip
            answer = httpx.get(board.url + path).text
            assert SECRET_CARD not in answer, path
            assert "hunter2" not in answer, path
            assert "90071992547409931234567890" in answer, path
        search = httpx.get(f"{board.url}/v1/queues/orders/messages", params={"text": "4111"})
        assert search.status_code == 400
        headers = board.get("/v1/queues/invoices.eu/messages")["items"][0]["headers"]
        assert headers == {"tenant": "••••"}
        t = board.session.transaction()
        t.put("settings/one", {"password": "hunter2", "n": 1}).commit()
        (value,) = board.get("/v1/values", prefix="settings/")
        assert value["data"] == {"password": "••••", "n": 1}
        browser.open(f"queues/orders/messages/{id}", "••••")
        browser.sees("Copy id")
        assert "Duplicate" not in browser.text(), "the mask would be pushed"
        assert SECRET_CARD not in browser.text()
    finally:
        board.serve()


def test_stored_data_never_becomes_an_element_of_the_page(board: Board, browser: Browser) -> None:
    """An object where a text is expected looks like what the page makes its elements from."""
    planted = {"tag": "meta", "props": {"id": "planted"}, "children": []}
    key = schedules.PREFIX + "evil"
    stored = {"spec": planted, "last": 0, "paused": True}
    board.session.transaction().put(key, stored).commit()
    try:
        browser.open("work", "evil")
        browser.sees('"id":"planted"')
        assert browser.js("return document.getElementById('planted')") is None
    finally:
        board.session.transaction().delete(key).commit()


def test_it_works_behind_a_prefix(board: Board, browser: Browser) -> None:
    board.serve(prefix="/tools/ackflow")
    try:
        assert httpx.get(board.url + "/tools/ackflow/ui").headers["location"] == "ui/"
        browser.requests()
        browser.open("queues", "mails.welcome", path="/tools/ackflow/ui/")
        called = [url for url in browser.requests() if url.startswith(board.url)]
        assert called
        assert [url for url in called if "/tools/ackflow/" not in url] == []
        browser.click("Pause mails.welcome")
        browser.until(lambda: board.session.queue_stats("mails.welcome").paused)
        board.session.resume("mails.welcome")
    finally:
        board.serve()


def test_it_can_be_left_out(board: Board) -> None:
    board.serve(enabled=False)
    try:
        assert httpx.get(board.url + "/ui/").status_code == 404
        assert httpx.get(board.url + "/v1/overview").status_code == 200
    finally:
        board.serve()


def test_the_page_allows_only_its_own_scripts(board: Board) -> None:
    answer = httpx.get(board.url + "/ui/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    tag = answer.headers["etag"]
    again = httpx.get(board.url + "/ui/", headers={"if-none-match": tag})
    assert (again.status_code, again.content) == (304, b"")
    for path in ("/ui/nothing.js", "/ui/pages/..%2findex.html", "/ui/%2e%2e/app.py"):
        assert httpx.get(board.url + path).status_code == 404, path
