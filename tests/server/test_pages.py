"""Web pages that must not use the server: other sites, chosen host names, repeated headers."""

import httpx
import pytest

from ackflow.server.cors import Cors

from ..running import Running
from .raw import exchange

POP = "/api/v1/pop/queue/orders?autoAck=true&batch=50"


@pytest.mark.parametrize(
    "site", ["cross-site", "same-site", "Cross-Site", "same-origin, cross-site"]
)
def test_an_image_of_another_site_takes_no_messages(
    served: Running, http: httpx.Client, site: str
) -> None:
    served.session.push("orders", [1, 2, 3])
    answer = http.get(POP, headers={"sec-fetch-site": site, "sec-fetch-dest": "image"})
    assert answer.status_code == 403
    assert len(served.session.pop("orders", batch=10)) == 3


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_a_page_of_this_server_or_the_address_bar_may_call(http: httpx.Client, site: str) -> None:
    assert http.get("/metrics", headers={"sec-fetch-site": site}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example",
                                  "localhost.evil.example", "10.0.0.1", "[::2]", "0x7f.1", "\xff",
                                  "localhost:evil.example", "[::1]evil.example", "evil@localhost"])  # fmt: skip
def test_a_host_name_that_a_page_chose_is_refused_without_a_token(
    served: Running, host: str
) -> None:
    served.session.push("orders", 1)
    head = f"DELETE /api/v1/resources/queues/orders HTTP/1.1\r\nhost: {host}\r\n"
    origin = f"origin: http://{host}\r\n"
    answer = exchange(served.url, (head + origin + "\r\n").encode("latin-1"))
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert len(served.session.pop("orders")) == 1


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "app.localhost", "127.0.0.1:1",
                                  "127.9.9.9", "[::1]", "[::1]:8000"])  # fmt: skip
def test_names_of_this_machine_are_accepted(served: Running, host: str) -> None:
    answer = exchange(served.url, f"GET /metrics HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 200 ")


def test_with_tokens_any_host_name_is_accepted(served: Running, http: httpx.Client) -> None:
    secret = served.session.broker.do(_token, True)
    headers = {"host": "queue.example", "authorization": f"Bearer {secret}"}
    served.app.auth.has_tokens()
    assert http.get("/metrics", headers=headers).status_code == 200


def _token(tx):  # type: ignore[no-untyped-def]
    from ackflow.broker import access_tokens

    return access_tokens.create(tx, "t", [access_tokens.grant("admin")], None)


@pytest.mark.parametrize("served", [{"cors": Cors(["https://app.example"])}], indirect=True)
def test_each_of_repeated_origins_is_judged(served: Running) -> None:
    head = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n"
    evil, fine = b"origin: https://evil.example\r\n", b"origin: https://app.example\r\n"
    assert exchange(served.url, head + fine + b"\r\n").startswith(b"HTTP/1.1 200 ")
    for both in (evil + fine, fine + evil):
        assert exchange(served.url, head + both + b"\r\n").startswith(b"HTTP/1.1 403 ")


def test_an_allowed_origin_of_another_site_may_call(served: Running, http: httpx.Client) -> None:
    served.app.cors = Cors(["https://app.example"])
    headers = {"origin": "https://app.example", "sec-fetch-site": "cross-site"}
    assert http.get("/metrics", headers=headers).status_code == 200
    mine = {"origin": served.url, "sec-fetch-site": "cross-site"}
    assert http.get("/metrics", headers=mine).status_code == 403
