"""Pages of other origins: allowed when told so, refused otherwise."""

from collections.abc import Iterator

import httpx
import pytest

from ackflow import VirtualClock, connect
from ackflow.server.cors import Cors

from ..running import Running

PAGE = {"origin": "https://app.example"}
ASKS = {**PAGE, "access-control-request-method": "POST"}


@pytest.fixture
def crossed(clock: VirtualClock) -> Iterator[httpx.Client]:
    with connect(":memory:", clock=clock, upkeep=False) as session:
        running = Running(session, cors=Cors(["https://app.example/"]))
        with httpx.Client(base_url=running.url) as client:
            yield client
        running.stop()


def test_an_allowed_origin_may_ask_and_read(crossed: httpx.Client) -> None:
    asked = crossed.options("/queue/orders/push", headers=ASKS)
    assert asked.status_code == 204
    assert asked.headers["access-control-allow-origin"] == "https://app.example"
    assert "POST" in asked.headers["access-control-allow-methods"]
    assert "authorization" in asked.headers["access-control-allow-headers"]
    assert asked.headers["access-control-max-age"] == "86400"
    answer = crossed.post("/queue/orders/push", json={"item": 1}, headers=PAGE)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert answer.headers["vary"] == "origin"


def test_errors_can_be_read_by_an_allowed_origin(crossed: httpx.Client) -> None:
    answer = crossed.get("/nowhere", headers=PAGE)
    assert answer.status_code == 404
    assert answer.headers["access-control-allow-origin"] == "https://app.example"


def test_another_origin_is_refused_and_changes_nothing(crossed: httpx.Client) -> None:
    foreign = {"origin": "https://evil.example"}
    answer = crossed.post("/queue/orders/push", json={"item": 1}, headers=foreign)
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers
    assert crossed.get("/queue/orders").status_code == 404


def test_without_origins_a_page_of_this_server_may_call(
    served: Running, http: httpx.Client
) -> None:
    assert http.get("/metrics", headers={"origin": served.url}).status_code == 200
    assert http.get("/metrics", headers={"origin": "null"}).status_code == 403


@pytest.mark.parametrize("served", [{"cors": Cors(hosts=["queue.example"])}], indirect=True)
def test_a_page_behind_a_proxy_may_call_by_an_allowed_host_name(http: httpx.Client) -> None:
    behind = {"origin": "https://queue.example", "host": "queue.example"}
    assert http.get("/metrics", headers=behind).status_code == 200
    other = {"origin": "https://other.example", "host": "other.example"}
    assert http.get("/metrics", headers=other).status_code == 403


def test_every_origin_may_be_allowed(clock: VirtualClock) -> None:
    with connect(":memory:", clock=clock, upkeep=False) as session:
        running = Running(session, cors=Cors(["*"]))
        answer = httpx.get(running.url + "/livez", headers={"origin": "https://any.example"})
        assert answer.headers["access-control-allow-origin"] == "*"
        running.stop()


def test_options_tells_what_a_path_takes(http: httpx.Client) -> None:
    answer = http.options("/livez")
    assert (answer.status_code, answer.headers["allow"]) == (204, "GET, HEAD, OPTIONS")
    assert http.options("/nowhere").status_code == 404
