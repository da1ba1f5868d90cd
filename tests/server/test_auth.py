"""Tokens: who is asked for one, what it is good for, and when it ends."""

import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

import ackflow
from ackflow import VirtualClock
from ackflow.broker import access_tokens
from ackflow.broker.access_tokens import Grant, Token
from ackflow.broker.requests import Chunk, PushRequest
from ackflow.errors import Forbidden, InvalidArgument, NotFound, Unauthenticated
from ackflow.remote import wire
from ackflow.server import authn
from ackflow.server.http import Call, Response, Route, json
from ackflow.server.openapi import document
from ackflow.server.routes import all_routes

from ..running import Running
from .conftest import Process

Start = Callable[..., Process]
DAY = 86_400.0


def make(running: Running, *grants: str, name: str = "one", days: float | None = None) -> str:
    seconds = None if days is None else days * DAY
    wanted = [access_tokens.grant(text) for text in grants]
    return running.session.broker.do(access_tokens.create, True, name, wanted, seconds)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a server look at the tokens with every request."""
    monkeypatch.setattr(authn, "RELOAD_SECONDS", 0.0)


def push(http: httpx.Client, queue: str, token: str | None = None) -> httpx.Response:
    headers = bearer(token) if token else {}
    return http.post(f"/queue/{queue}/push", json={"item": 1}, headers=headers)


def test_without_tokens_nobody_is_asked(http: httpx.Client) -> None:
    assert push(http, "orders").status_code == 200


def test_the_first_token_closes_the_server(served: Running, http: httpx.Client) -> None:
    token = make(served, "read-write")
    refused = push(http, "orders")
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == 'Bearer realm="ackflow"'
    assert push(http, "orders", token).status_code == 200


def test_open_routes_stay_open(served: Running, http: httpx.Client) -> None:
    make(served, "read-write")
    for path in ("/livez", "/readyz", "/openapi.json", "/docs"):
        assert http.get(path).status_code == 200


def test_a_refusal_is_written_in_the_shape_of_its_dialect(
    served: Running, http: httpx.Client
) -> None:
    make(served, "read-write")
    assert push(http, "orders").json() == {
        "success": False, "message": "Authentication required", "error_code": "unauthenticated",
    }  # fmt: skip
    assert http.get("/metrics").json()["error"]["code"] == "unauthenticated"


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer nonsense", "Basic Zm9vOmJhcg==", "Bearer \xff\xfe"]
)
def test_what_is_no_token_is_refused(served: Running, http: httpx.Client, header: str) -> None:
    make(served, "admin")
    answer = http.get("/metrics", headers={"authorization": header.encode("latin-1")})
    assert answer.status_code == 401


@pytest.mark.parametrize(
    ("role", "reads", "writes"),
    [("read-only", 200, 403), ("read-write", 200, 200), ("admin", 200, 200)],
)
def test_a_role_is_good_for_itself_and_what_is_below(
    served: Running, http: httpx.Client, role: str, reads: int, writes: int
) -> None:
    served.session.push("orders", 1)
    token = make(served, role)
    assert http.get("/queue/orders", headers=bearer(token)).status_code == reads
    refused = push(http, "orders", token)
    assert refused.status_code == writes
    if writes == 403:
        assert "insufficient_scope" in refused.headers["www-authenticate"]
        assert refused.json()["message"] == "Insufficient permissions"


def test_a_pattern_limits_a_token_to_its_queues(served: Running, http: httpx.Client) -> None:
    token = make(served, "read-write:orders.*", "read-only:bills")
    assert push(http, "orders.new", token).status_code == 200
    assert push(http, "orders", token).status_code == 403
    assert push(http, "bills", token).status_code == 403
    served.session.push("bills", 1)
    assert http.get("/queue/bills", headers=bearer(token)).status_code == 200


def test_a_queue_name_cannot_escape_its_pattern_by_encoding(
    served: Running, http: httpx.Client
) -> None:
    token = make(served, "read-write:orders")
    assert push(http, "or%64ers", token).status_code == 200
    assert push(http, "orders%2F..%2Fbills", token).status_code == 403


def test_a_revoked_token_is_refused(served: Running, http: httpx.Client) -> None:
    token = make(served, "admin")
    served.session.broker.do(access_tokens.revoke, True, "one")
    answer = push(http, "orders", token)
    assert answer.status_code == 401
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]


def test_revoking_the_last_token_opens_nothing(served: Running, http: httpx.Client) -> None:
    make(served, "admin")
    served.session.broker.do(access_tokens.revoke, True, "one")
    assert push(http, "orders").status_code == 401


def test_removing_all_tokens_opens_the_server_again(served: Running, http: httpx.Client) -> None:
    make(served, "admin")
    assert push(http, "orders").status_code == 401
    assert served.session.broker.do(access_tokens.forget_all, True) == 1
    assert push(http, "orders").status_code == 200


def test_a_token_ends_when_its_days_are_over(
    served: Running, http: httpx.Client, clock: VirtualClock
) -> None:
    token = make(served, "read-write", days=1)
    clock.advance(DAY - 1)
    assert push(http, "orders", token).status_code == 200
    clock.advance(1)
    assert push(http, "orders", token).status_code == 401


def test_only_the_digest_of_a_token_is_stored(served: Running) -> None:
    token = make(served, "admin")
    (stored,) = served.session.broker.look(access_tokens.tokens)
    assert stored.digest == access_tokens.digest(token)
    assert token not in repr(stored)


def test_a_name_is_free_again_once_its_token_is_revoked(served: Running) -> None:
    first = make(served, "admin")
    with pytest.raises(InvalidArgument, match="already"):
        make(served, "admin")
    served.session.broker.do(access_tokens.revoke, True, "one")
    assert make(served, "admin") != first
    with pytest.raises(NotFound):
        served.session.broker.do(access_tokens.revoke, True, "two")


@pytest.mark.parametrize("text", ["", "owner", "read-write:\n", "READ-ONLY"])
def test_a_grant_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        access_tokens.grant(text)


def test_metrics_show_only_the_queues_a_token_may_see(served: Running, http: httpx.Client) -> None:
    served.session.push("orders", 1)
    served.session.push("bills", 1)
    token = make(served, "read-only:orders")
    shown = http.get("/metrics", headers=bearer(token)).text
    assert 'queue="orders"' in shown
    assert "bills" not in shown


def test_a_token_may_be_required_before_one_is_made(clock: VirtualClock) -> None:
    with ackflow.connect(":memory:", clock=clock, upkeep=False) as session:
        running = Running(session, require_token=True)
        assert httpx.get(running.url + "/metrics").status_code == 401
        running.stop()


# every route


def open_routes() -> list[Route]:
    return [route for route in all_routes() if route.role == "open"]


def test_only_what_shows_no_data_is_open() -> None:
    paths = {route.path for route in open_routes()}
    assert {"/livez", "/readyz", "/openapi.json", "/docs", "/docs/{file}"} <= paths
    for route in open_routes():
        if route.path == "/v1/session":  # to log in and out, and to ask whether that is needed
            continue
        assert route.method == "GET", route.path
        assert "{queue}" not in route.path, route.path


def test_every_route_asks_for_a_token_once_there_is_one(
    served: Running, http: httpx.Client
) -> None:
    make(served, "admin")
    for route in all_routes():
        if route.role != "open":
            path = route.path.replace("{", "").replace("}", "")
            answer = http.request(route.method, path, content=b"{}")
            assert answer.status_code == 401, (route.method, route.path)


def test_a_token_for_other_queues_changes_and_sees_nothing_of_a_queue(
    served: Running, http: httpx.Client
) -> None:
    """Whatever a route does, with a token for one queue the name of another does not come back."""
    served.session.push("secret-queue", {"secret": "payload"})
    served.session.pop("secret-queue", group="secret-group")
    token = make(served, "admin:mine")
    for route in all_routes():
        if route.role == "open":
            continue
        path = route.path.replace("{queue}", "secret-queue")
        path = path.replace("{group}", "secret-group").replace("{", "").replace("}", "")
        body = {"queue": "secret-queue", "items": [{"queue": "secret-queue", "payload": 1}]}
        answer = http.request(
            route.method, path, params={"queue": "secret-queue"}, json=body, headers=bearer(token)
        )
        assert "payload" not in answer.text, (route.method, route.path, answer.text)
        if not 400 <= answer.status_code < 500:
            assert "secret" not in answer.text, (route.method, route.path, answer.text)
    assert served.session.queue_stats("secret-queue").messages == 1


async def _nothing(_: Call) -> Response:
    return json({})


def test_the_document_says_which_operations_need_a_token() -> None:
    made = document([Route("GET", "/a", _nothing, "open"), Route("GET", "/b", _nothing, "admin")])
    assert "security" not in made["paths"]["/a"]["get"]
    assert {"bearer": []} in made["paths"]["/b"]["get"]["security"]


# what a token may do


def token_with(*grants: Grant) -> Token:
    return Token(1, "t", b"", list(grants), 0)


def test_a_grant_is_for_the_queues_that_match_as_in_a_shell() -> None:
    token = token_with(Grant("read-write", "orders.*"), Grant("read-only", "[ab]"))
    assert token.may("read-write", "orders.new")
    assert token.may("read-only", "orders.new")
    assert not token.may("admin", "orders.new")
    assert not token.may("read-only", "ORDERS.new")
    assert token.may("read-only", "a")
    assert not token.may("read-write", "a")
    assert not token.may("read-only", "ab")
    assert token.may_somewhere("read-write")
    assert not token.may_somewhere("admin")
    assert not token.may_everywhere("read-only")
    assert token_with(Grant("admin")).may_everywhere("read-write")


# the command line, against a server that runs


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ackflow", *arguments], capture_output=True, text=True, timeout=60
    )


def test_the_command_line_makes_lists_and_revokes(tmp_path: Path) -> None:
    db = str(tmp_path / "tokens.db")
    made = command("token", "create", "ci", "--grant", "read-only:orders.*", "--db", db)
    assert made.stdout.startswith("ackflow_")
    listed = command("token", "list", "--db", db).stdout
    assert "read-only:orders.*" in listed
    assert made.stdout.strip() not in listed
    assert command("token", "revoke", "ci", "--yes", "--db", db).returncode == 0
    assert "revoked" in command("token", "list", "--db", db).stdout
    again = command("token", "revoke", "ci", "--yes", "--db", db)
    assert again.returncode == 3
    assert "there is no token 'ci'" in again.stderr
    assert "1 token removed" in command("token", "disable", "--yes", "--db", db).stdout


def test_a_running_server_learns_of_new_and_revoked_tokens_within_a_second(
    start_process: Start,
) -> None:
    server = start_process()
    url = server.url + "/metrics"
    assert httpx.get(url).status_code == 200
    token = command("token", "create", "ci", "--db", str(server.db)).stdout.strip()
    time.sleep(1.1)
    assert httpx.get(url).status_code == 401
    assert httpx.get(url, headers=bearer(token)).status_code == 200
    command("token", "revoke", "ci", "--yes", "--db", str(server.db))
    time.sleep(1.1)
    assert httpx.get(url, headers=bearer(token)).status_code == 401


def test_without_tokens_it_listens_to_this_machine_only(tmp_path: Path) -> None:
    failed = command("serve", "--host", "0.0.0.0", "--port", "0", "--db", str(tmp_path / "a.db"))
    assert failed.returncode == 1
    assert failed.stderr.count("\n") == 1
    assert "--allow-open" in failed.stderr


@pytest.mark.parametrize("option", ["--allow-open", "--require-token"])
def test_it_listens_to_other_machines_when_told_so(start_process: Start, option: str) -> None:
    server = start_process("--host", "0.0.0.0", option)
    expected = 200 if option == "--allow-open" else 401
    assert httpx.get(server.url + "/metrics").status_code == expected


def test_with_a_token_it_listens_to_other_machines(start_process: Start, tmp_path: Path) -> None:
    db = tmp_path / "tokens.db"
    command("token", "create", "ci", "--db", str(db))
    server = start_process("--host", "0.0.0.0", db=db)
    assert httpx.get(server.url + "/metrics").status_code == 401
    command("token", "disable", "--yes", "--db", str(db))
    assert httpx.get(server.url + "/metrics").status_code == 401


# the verbs of the native dialect


def sessions(served: Running, *grants: str) -> ackflow.Session:
    """A session over HTTP with a token."""
    token = make(served, *grants)
    return ackflow.connect(served.url, token=token)


def test_a_session_shows_its_token(served: Running) -> None:
    with sessions(served, "admin") as q:
        q.push("orders", 1)
        assert q.queue_stats("orders").messages == 1
    with ackflow.connect(served.url) as q, pytest.raises(Unauthenticated):
        q.push("orders", 1)


def test_a_list_of_queues_shows_those_the_token_may_see(served: Running) -> None:
    served.session.push("mine", 1)
    served.session.push("theirs", 1)
    with sessions(served, "read-only:mine") as q:
        assert [queue.name for queue in q.queues()] == ["mine"]
        with pytest.raises(Forbidden):
            q.queue_stats("theirs")


def test_a_lease_seen_in_a_list_cannot_be_settled_from_another_queue(served: Running) -> None:
    served.session.push("theirs", 1)
    (held,) = served.session.pop("theirs")
    with sessions(served, "read-write:mine", "read-only:theirs") as q:
        (seen,) = q.leases("theirs")
        with pytest.raises(Forbidden):
            q.read(seen.token)
    held.ack()


def test_a_transaction_is_held_against_the_token_as_a_whole(served: Running) -> None:
    with sessions(served, "read-write:mine") as q:
        q.push("mine", 1)
        (one,) = q.pop("mine")
        work = q.transaction()
        work.ack(one)
        work.push("theirs", 1)
        with pytest.raises(Forbidden):
            work.commit()
        work = q.transaction()
        work.ack(one)
        work.push("mine", 2)
        work.commit()
        work = q.transaction()
        work.put("key", 1)
        with pytest.raises(Forbidden) as refused:
            work.commit()
        assert refused.value.details == {"role": "read-write", "queue": access_tokens.EVERY_QUEUE}


def test_dead_letters_cannot_be_sent_to_a_queue_the_token_is_not_good_for(served: Running) -> None:
    with sessions(served, "admin:mine") as q:
        q.push("mine", 1)
        q.pop("mine")[0].reject("bad")
        with pytest.raises(Forbidden):
            q.redrive("mine", to="theirs")
        assert q.redrive("mine") == 1


def test_of_several_pushes_only_those_the_token_is_good_for_are_made(
    served: Running, http: httpx.Client
) -> None:
    token = make(served, "read-write:orders")
    some = [
        PushRequest([Chunk(queue, "p", 0, None, array("i", [1]), b"1")])
        for queue in ("orders", "others")
    ]
    headers = bearer(token) | {"content-type": wire.MSGPACK}
    answer = http.post("/v1/pushes", content=wire.write(some, wire.MSGPACK), headers=headers)
    made, refused = answer.json()
    assert made["places"][0][0][2] == 1
    assert refused["error"]["code"] == "forbidden"
    assert [queue.name for queue in served.session.queues()] == ["orders"]
