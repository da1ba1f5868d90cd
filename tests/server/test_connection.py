"""HTTP/1.1 on the wire: pipelining, keep-alive, chunks, HEAD, upgrades, smuggling."""

import contextlib
import socket
import threading
import time
from urllib.parse import urlsplit

import pytest

from ackflow.broker import access_tokens

from ..running import Running
from .raw import exchange, response
from .test_auth import make

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
    served.app.in_transit.most = 1_000_000
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
    served.app.in_transit.most = 1_000_000
    head = b"POST /queue/q/push HTTP/1.1\r\n" + HOST + b"content-length: 10000000\r\n\r\n"
    with connected(served) as first, connected(served) as second:
        first.sendall(head + b"x" * 900_000)
        until(lambda: served.app.in_transit.bytes == 900_000)
        second.sendall(head + b"x" * 200_000)
        assert response(second).startswith(b"HTTP/1.1 503 ")
        assert served.app.in_transit.bytes == 900_000
        assert exchange(served.url, push(1)).startswith(b"HTTP/1.1 200 ")
    until(lambda: served.app.in_transit.bytes == 0)


def test_a_repeated_head_is_parsed_once_and_its_bodies_are_told_apart(served: Running) -> None:
    with connected(served) as sock:
        for item in (1, 2, 3):
            sock.sendall(push(item))
            assert response(sock).startswith(b"HTTP/1.1 200 ")
        assert len(served.app.known_heads) == 1
        sock.sendall(push(10))  # another length is another head
        assert response(sock).startswith(b"HTTP/1.1 200 ")
        assert len(served.app.known_heads) == 2
    assert items(served) == [1, 2, 3, 10]


def test_a_known_head_is_understood_in_every_division_of_the_bytes(served: Running) -> None:
    whole = push(5)
    with connected(served) as sock:
        for cut in (0, 1, 10, whole.index(b"\r\n\r\n") + 2, len(whole) - 10, len(whole) - 1):
            sock.sendall(whole[:cut])
            time.sleep(0.01)
            sock.sendall(whole[cut:])
            assert response(sock).startswith(b"HTTP/1.1 200 ")
        sock.sendall(whole * 3 + whole[:20])
        time.sleep(0.01)
        sock.sendall(whole[20:])
        for _ in range(4):
            assert response(sock).startswith(b"HTTP/1.1 200 ")
    assert items(served) == [5] * 10


@pytest.mark.parametrize(
    "pop", [b"GET /api/v1/pop/queue/q?batch=2 ", b"POST /queue/q/pop?count=2&require_ack=1 "]
)
def test_pops_with_a_known_head_have_the_consumers_of_their_connections(
    served: Running, pop: bytes
) -> None:
    head = pop + b"HTTP/1.1\r\n" + HOST + b"content-length: 0\r\n\r\n"
    consumers = []
    for _ in range(3):
        served.session.push("q", [1, 2])
        with connected(served) as sock:
            sock.sendall(head)
            answer = response(sock)
            assert answer.startswith(b"HTTP/1.1 200 ")
            (lease,) = served.session.leases("q")
            host, port = sock.getsockname()
            consumers.append((lease.consumer, f"{host}:{port}"))
            assert served.session.purge("q") == 2
    assert all(consumer == client for consumer, client in consumers), consumers
    assert len(served.app.known_heads) == 1


def test_a_known_head_does_not_outlive_the_token_in_it(served: Running) -> None:
    secret = make(served, "read-write")
    with connected(served) as sock:
        for _ in range(3):
            sock.sendall(push(1, b"authorization: Bearer %b\r\n" % secret.encode()))
            assert response(sock).startswith(b"HTTP/1.1 200 ")
        sock.sendall(push(2))
        assert response(sock).startswith(b"HTTP/1.1 401 ")
        served.session.broker.do(access_tokens.revoke, True, "one")
        served.app.auth._stale_at = 0.0
        sock.sendall(push(3, b"authorization: Bearer %b\r\n" % secret.encode()))
        assert response(sock).startswith(b"HTTP/1.1 401 ")
    assert items(served) == [1, 1, 1]


def test_a_head_known_without_tokens_needs_one_as_soon_as_there_is_one(served: Running) -> None:
    with connected(served) as sock:
        for item in (1, 2):
            sock.sendall(push(item))
            assert response(sock).startswith(b"HTTP/1.1 200 ")
        make(served, "read-write")
        served.app.auth._stale_at = 0.0
        sock.sendall(push(3))
        assert response(sock).startswith(b"HTTP/1.1 401 ")
    assert items(served) == [1, 2]


def test_nothing_is_run_after_a_request_that_closes(served: Running) -> None:
    with connected(served) as sock:
        sock.sendall(push(1))
        assert response(sock).startswith(b"HTTP/1.1 200 ")
        sock.sendall(push(2, b"connection: close\r\n") + push(3))
        assert b"connection: close" in response(sock)
        sock.settimeout(5)
        assert sock.recv(100) == b""
    assert items(served) == [1, 2]


@pytest.mark.parametrize("end", [b"\n\n", b"\n\r\n", b"\r\n\n"])
def test_a_head_with_other_line_ends_never_swallows_the_next(served: Running, end: bytes) -> None:
    """Whatever the parser makes of such a head, bytes that follow it are not taken for a part."""
    odd = b"GET /livez HTTP/1.1\r\nhost: localhost" + end + push(1)
    for _ in range(2):
        answer = exchange(served.url, odd)
        assert answer.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 400 "))
    assert exchange(served.url, push(7)).startswith(b"HTTP/1.1 200 ")
    assert 7 in items(served)
    assert all(head.count(b"HTTP/1.1") == 1 for head in served.app.known_heads)


def test_the_known_heads_are_limited(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackflow.server.app.MAX_KNOWN_HEADS", 10)
    with connected(served) as sock:
        for number in range(50):
            sock.sendall(b"GET /livez?n=%d HTTP/1.1\r\n" % number + HOST + b"\r\n")
            assert response(sock).startswith(b"HTTP/1.1 200 ")
        sock.sendall(b"GET /livez HTTP/1.1\r\n" + HOST + b"x: " + b"y" * 2000 + b"\r\n\r\n")
        assert response(sock).startswith(b"HTTP/1.1 200 ")
    assert len(served.app.known_heads) <= 10
    assert all(len(head) < 1100 for head in served.app.known_heads)


def test_a_head_with_too_many_headers_is_refused(served: Running) -> None:
    head = b"GET /livez HTTP/1.1\r\n" + HOST + b"a: b\r\n" * 200 + b"\r\n"
    assert exchange(served.url, head).startswith(b"HTTP/1.1 431 ")


def test_a_flood_of_pipelined_requests_leaves_others_their_turn(served: Running) -> None:
    """Each turn parses and answers a few requests of a connection, however many it has sent."""
    probe = b"GET /livez HTTP/1.1\r\n" + HOST + b"\r\n"
    number = 4_000
    got = [0] * 4

    def flood(index: int, sock: socket.socket) -> None:
        sending = threading.Thread(target=sock.sendall, args=(probe * number,))
        sending.start()
        answers = b""
        while got[index] < number:
            answers += sock.recv(1 << 20)
            got[index] = answers.count(b"HTTP/1.1 200 ")
        sending.join()

    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(connected(served)) for _ in got]
        floods = [threading.Thread(target=flood, args=pair) for pair in enumerate(socks)]
        with served.measured_turns() as turns:
            hold = threading.Thread(target=served.call, args=(lambda: time.sleep(0.3),))
            hold.start()  # until then much arrives for one turn
            for thread in floods:
                thread.start()
            for thread in (hold, *floods):
                thread.join()
    assert got == [number] * 4
    assert max(turns) < 0.05


def until(true) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)
