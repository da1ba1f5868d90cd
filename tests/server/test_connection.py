"""HTTP/1.1 on the wire: pipelining, keep-alive, chunks, HEAD, upgrades, smuggling."""

import socket
import time
from urllib.parse import urlsplit

import pytest

from ..running import Running
from .raw import exchange, response

HOST = b"host: localhost\r\n"


def connected(served: Running) -> socket.socket:
    where = urlsplit(served.url)
    return socket.create_connection((where.hostname or "", where.port or 0), timeout=5)


def push(item: int, more: bytes = b"") -> bytes:
    body = b'{"item":%d}' % item
    return (
        b"POST /queue/q/push HTTP/1.1\r\n" + HOST + more
        + b"content-length: %d\r\n\r\n%b" % (len(body), body)
    )  # fmt: skip


def items(served: Running) -> list[object]:
    return [message.data for message in served.session.pop("q", batch=1000)]


def test_pipelined_requests_are_answered_in_their_order(served: Running) -> None:
    pop = b"POST /queue/q/pop HTTP/1.1\r\n" + HOST + b"content-length: 0\r\n\r\n"
    with connected(served) as sock:
        sock.sendall(push(1) + b"GET /nowhere HTTP/1.1\r\n" + HOST + b"\r\n" + pop + push(2))
        assert response(sock).startswith(b"HTTP/1.1 200 ")
        assert response(sock).startswith(b"HTTP/1.1 404 ")
        assert b'"items":[1]' in response(sock)
        assert response(sock).startswith(b"HTTP/1.1 200 ")
    assert items(served) == [2]


def test_hundreds_of_pipelined_requests_are_all_answered(served: Running) -> None:
    with connected(served) as sock:
        sock.sendall(b"".join(push(n) for n in range(500)))
        got = b""
        while got.count(b"HTTP/1.1 200 ") < 500:
            got += sock.recv(65536)
    assert items(served) == list(range(500))


def test_a_request_that_arrives_byte_by_byte_is_understood(served: Running) -> None:
    with connected(served) as sock:
        for byte in push(7):
            sock.sendall(bytes([byte]))
        assert response(sock).startswith(b"HTTP/1.1 200 ")
    assert items(served) == [7]


def test_chunks_are_joined(served: Running) -> None:
    head = b"POST /queue/q/push HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n"
    assert exchange(
        served.url, head, b'4\r\n{"it\r\n', b'6\r\nem":5}\r\n', b"0\r\n\r\n"
    ).startswith(b"HTTP/1.1 200 ")
    assert items(served) == [5]


def test_http_1_0_closes_unless_asked_to_stay(served: Running) -> None:
    with connected(served) as sock:
        sock.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
        assert b"connection: close" in response(sock)
        assert sock.recv(10) == b""
    with connected(served) as sock:
        for _ in range(2):
            sock.sendall(b"GET /livez HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
            assert b"connection: keep-alive" in response(sock)


def test_connection_close_is_honoured(served: Running) -> None:
    with connected(served) as sock:
        sock.sendall(b"GET /livez HTTP/1.1\r\n" + HOST + b"connection: close\r\n\r\n")
        assert b"connection: close" in response(sock)
        assert sock.recv(10) == b""


def test_head_answers_probes_without_a_body_and_nothing_else(served: Running) -> None:
    served.session.push("q", 1)
    with connected(served) as sock:
        sock.sendall(b"HEAD /livez HTTP/1.1\r\n" + HOST + b"\r\n")
        head = sock.recv(65536)
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"content-length: 15" in head
        assert head.endswith(b"\r\n\r\n")
        sock.sendall(b"HEAD /api/v1/pop/queue/q?autoAck=true HTTP/1.1\r\n" + HOST + b"\r\n")
        assert sock.recv(65536).startswith(b"HTTP/1.1 405 ")
    assert items(served) == [1]


def test_a_client_that_waits_for_continue_gets_it_or_the_refusal(served: Running) -> None:
    with connected(served) as sock:
        body = b'{"item":3}'
        head = b"POST /queue/q/push HTTP/1.1\r\n" + HOST + b"expect: 100-continue\r\n"
        sock.sendall(head + b"content-length: %d\r\n\r\n" % len(body))
        assert sock.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(body)
        assert response(sock).startswith(b"HTTP/1.1 200 ")
    with connected(served) as sock:
        sock.sendall(head + b"content-length: 99999999999\r\n\r\n")
        assert response(sock).startswith(b"HTTP/1.1 413 ")
    assert items(served) == [3]


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
def test_an_upgrade_is_ignored_and_the_request_answered(served: Running, protocol: bytes) -> None:
    upgrade = b"connection: upgrade\r\nupgrade: " + protocol + b"\r\n"
    with connected(served) as sock:
        sock.sendall(b"GET /livez HTTP/1.1\r\n" + HOST + upgrade + b"\r\n")
        assert response(sock).startswith(b"HTTP/1.1 200 ")
        sock.sendall(push(1))
        assert response(sock).startswith(b"HTTP/1.1 200 ")
        sock.sendall(push(2, upgrade))
        assert response(sock).startswith(b"HTTP/1.1 200 ")
    assert items(served) == [1, 2]


def test_an_absolute_target_is_understood(served: Running) -> None:
    target = b"GET http://localhost/livez HTTP/1.1\r\n" + HOST + b"\r\n"
    assert exchange(served.url, target).startswith(b"HTTP/1.1 200 ")


HIDDEN = b"POST /queue/hidden/push HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n"


@pytest.mark.parametrize(
    "headers",
    [
        b"content-length: 5\r\ntransfer-encoding: chunked\r\n",
        b"transfer-encoding: chunked\r\ncontent-length: 5\r\n",
        b"content-length: 0\r\ncontent-length: 5\r\n",
        b"content-length: 0, 5\r\n",
        b"content-length: +5\r\n",
        b"content-length: 0x5\r\n",
        b"content-length : 5\r\n",
        b"transfer-encoding: xchunked\r\n",
        b"transfer-encoding: chunked, identity\r\n",
        b"transfer-encoding:\x0bchunked\r\n",
        b" content-length: 5\r\n",
        b"x: y\ncontent-length: 5\r\n\r\n",
        b"transfer-encoding: gzip, chunked\r\n",
        b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
        b"transfer-encoding: chunked;x=1\r\n",
        b"transfer-encoding:\r\n chunked\r\n",
        b"connection: upgrade\r\nupgrade: x\r\ntransfer-encoding: gzip, chunked\r\n",
        b"content-length: 18446744073709551621\r\n",
    ],
)
def test_a_body_whose_length_is_ambiguous_smuggles_no_request(
    served: Running, headers: bytes
) -> None:
    """Whatever a proxy before the server reads, the hidden request is never run."""
    head = b"POST /queue/q/push HTTP/1.1\r\n" + HOST + headers + b"\r\n"
    with connected(served) as sock:
        sock.sendall(head + b"0\r\n\r\n" + HIDDEN + b'{"item":1}')
        sock.settimeout(1)
        got = b""
        try:
            while data := sock.recv(65536):
                got += data
        except (TimeoutError, ConnectionResetError):
            pass
    assert got == b"" or got.startswith(b"HTTP/1.1 4")
    assert [queue.name for queue in served.session.queues()] == []


@pytest.mark.parametrize("hosts", [b"", b"host: localhost\r\nhost: localhost\r\n"])
def test_a_request_must_have_one_host(served: Running, hosts: bytes) -> None:
    answer = exchange(served.url, b"GET /livez HTTP/1.1\r\n" + hosts + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "head",
    [
        b"POST /queue/q/push HTTP/1.0\r\nconnection: keep-alive\r\ntransfer-encoding: chunked\r\n",
        b"CONNECT localhost:80 HTTP/1.1\r\n",
        b"CONNECT localhost:80 HTTP/1.1\r\ncontent-length: 5\r\n",
        b"GET /livez HTTP/2.0\r\nconnection: keep-alive\r\n",
    ],
)
def test_what_follows_a_request_that_proxies_frame_differently_is_not_read(
    served: Running, head: bytes
) -> None:
    with connected(served) as sock:
        sock.sendall(head + HOST + b"\r\n0\r\n\r\n" + HIDDEN + b'{"item":1}')
        assert response(sock).startswith(b"HTTP/1.1 400 ")
        assert sock.recv(1) == b""
    assert served.session.queues() == []


def test_bytes_after_the_last_request_of_a_connection_are_dropped(
    served: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer to the request is the last thing that is written, and nothing fails in the log."""
    last = b"GET /livez HTTP/1.1\r\n" + HOST + b"connection: close\r\n\r\n"
    for _ in range(2):  # the second is answered at once, without reading the tokens
        with connected(served) as sock:
            sock.sendall(last + HIDDEN)
            assert response(sock).startswith(b"HTTP/1.1 200 ")
            assert sock.recv(1) == b""
    assert caplog.records == []


@pytest.mark.parametrize(
    "target", [b"http://evil.example/metrics", b"http://evil.example:80/metrics"]
)
def test_the_host_of_an_absolute_target_counts_not_the_header(
    served: Running, target: bytes
) -> None:
    answer = exchange(served.url, b"GET " + target + b" HTTP/1.1\r\n" + HOST + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 403 ")
    local = b"GET http://[::1]:80/metrics HTTP/1.1\r\nhost: evil.example\r\n\r\n"
    assert exchange(served.url, local).startswith(b"HTTP/1.1 200 ")


def test_a_client_that_reads_nothing_holds_up_no_other(served: Running) -> None:
    served.session.push("big", ["x" * 1_000_000] * 20)
    pop = b"GET /api/v1/pop/queue/big?batch=20&consumerGroup=g HTTP/1.1\r\n" + HOST + b"\r\n"
    with connected(served) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(pop)
        until(lambda: served.app.in_transit.bytes > 10_000_000)
        assert exchange(served.url, push(1)).startswith(b"HTTP/1.1 200 ")
        sock.close()
    until(lambda: served.app.in_transit.bytes == 0)
    until(lambda: served.session.group_stats("big", "g").counts.leased == 0)


def test_slow_clients_may_hold_only_so_many_bytes(served: Running) -> None:
    """A new large pop is refused while others do not read; nothing is leased for it."""
    served.app.in_transit._most = 1_000_000
    served.session.push("big", ["x" * 1_000_000] * 20)
    pop = b"GET /api/v1/pop/queue/big?batch=100&consumerGroup=%b HTTP/1.1\r\n" + HOST + b"\r\n"
    with connected(served) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(pop % b"a")
        until(lambda: served.app.in_transit.bytes > 1_000_000)
        answer = exchange(served.url, pop % b"b")
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in answer
        assert b"server_busy" in answer
    until(lambda: served.app.in_transit.bytes == 0)
    assert b"HTTP/1.1 200 " in exchange(served.url, pop % b"b")


def test_partial_uploads_may_hold_only_so_many_bytes(served: Running) -> None:
    served.app.in_transit._most = 1_000_000
    head = b"POST /queue/q/push HTTP/1.1\r\n" + HOST + b"content-length: 10000000\r\n\r\n"
    with connected(served) as first, connected(served) as second:
        first.sendall(head + b"x" * 900_000)
        until(lambda: served.app.in_transit.bytes == 900_000)
        second.sendall(head + b"x" * 200_000)
        assert response(second).startswith(b"HTTP/1.1 503 ")
        assert served.app.in_transit.bytes == 900_000
        assert exchange(served.url, push(1)).startswith(b"HTTP/1.1 200 ")
    until(lambda: served.app.in_transit.bytes == 0)


def until(true) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)
