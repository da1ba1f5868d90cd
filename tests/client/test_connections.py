"""The HTTP/1.1 of the blocking client, against a server that sends bytes as written."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ackflow.remote.connections import Connections, NotAnswered, NotSent

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
Serve = Callable[[socket.socket], None]


@contextmanager
def served(*each: Serve) -> Iterator[Connections]:
    """A server that treats its first connection by the first function, and so on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)

        def run() -> None:
            for serve in each:
                sock, _ = listening.accept()
                with sock:
                    serve(sock)

        thread = threading.Thread(target=run)
        thread.start()
        connections = Connections(
            f"http://127.0.0.1:{listening.getsockname()[1]}/base", {"x-one": "1"}, 5.0
        )
        try:
            yield connections
        finally:
            connections.close()
            thread.join()


def request(sock: socket.socket) -> bytes:
    """Read a request with a short body."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += sock.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    size = int(head.rpartition(b"content-length: ")[2])
    while len(body) < size:
        body += sock.recv(65536)
    return head + b"\r\n\r\n" + body


def answering(*answers: bytes) -> Serve:
    def serve(sock: socket.socket) -> None:
        for answer in answers:
            request(sock)
            sock.sendall(answer)

    return serve


def test_a_request_is_sent_whole_with_its_headers_below_the_path_of_the_url() -> None:
    seen = []

    def serve(sock: socket.socket) -> None:
        seen.append(request(sock))
        sock.sendall(OK)

    with served(serve) as connections:
        answer = connections.request("POST", "/v1/push", b"body", 5.0)
    assert (answer.status, answer.body) == (200, b"ok")
    first, host, *more = seen[0].split(b"\r\n")
    assert first == b"POST /base/v1/push HTTP/1.1"
    assert host.startswith(b"host: 127.0.0.1:")
    assert more == [b"x-one: 1", b"content-length: 4", b"", b"body"]


def test_a_connection_is_used_again() -> None:
    with served(answering(OK, OK, OK)) as connections:
        for _ in range(3):
            assert connections.request("GET", "/", b"", 5.0).body == b"ok"


def test_an_answer_may_come_in_pieces() -> None:
    def serve(sock: socket.socket) -> None:
        request(sock)
        for at in range(len(OK)):
            sock.sendall(OK[at : at + 1])

    with served(serve) as connections:
        assert connections.request("GET", "/", b"", 5.0).body == b"ok"


def test_chunks_of_a_proxy_are_joined_and_the_connection_is_used_again() -> None:
    chunked = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\ntrailer: 1\r\n\r\n"
    )
    with served(answering(chunked, OK)) as connections:
        assert connections.request("GET", "/", b"", 5.0).body == b"abc0123456789"
        assert connections.request("GET", "/", b"", 5.0).body == b"ok"


def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    with served(answering(b"HTTP/1.0 200 OK\r\n\r\nall of it"), answering(OK)) as connections:
        assert connections.request("GET", "/", b"", 5.0).body == b"all of it"
        assert connections.request("GET", "/", b"", 5.0).body == b"ok"


def test_answers_without_a_body_and_announcements_are_known() -> None:
    announced = b"HTTP/1.1 100 Continue\r\n\r\n" + OK
    empty = b"HTTP/1.1 204 No Content\r\n\r\n"
    with served(answering(announced, empty, OK)) as connections:
        assert connections.request("GET", "/", b"", 5.0).body == b"ok"
        assert connections.request("GET", "/", b"", 5.0) == (204, {}, b"")
        assert connections.request("GET", "/", b"", 5.0).body == b"ok"


@pytest.mark.parametrize(
    "first",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\ncontent-length: 2\r\n\r\nok",
        OK,  # and the server closes the connection, as when it was idle for long
        OK + b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nwrong",
    ],
)
def test_a_connection_that_is_closed_or_out_of_step_is_not_used_again(first: bytes) -> None:
    closed = threading.Event()

    def serve(sock: socket.socket) -> None:
        answering(first)(sock)
        sock.close()
        closed.set()

    with served(serve, answering(OK)) as connections:
        assert connections.request("GET", "/", b"", 5.0).body == b"ok"
        assert closed.wait(5)
        assert connections.request("GET", "/", b"", 5.0).body == b"ok"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b"AMQP\x00\x00\x09\x01\r\n\r\n",
        b"HTTP/1.1 many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nmany\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"x" * 200_000,
    ],
)
def test_what_is_no_complete_answer_is_none(answer: bytes) -> None:
    with served(answering(answer)) as connections, pytest.raises(NotAnswered):
        connections.request("GET", "/", b"", 5.0)


def test_a_server_that_does_not_answer_in_time_ends_the_request() -> None:
    def serve(sock: socket.socket) -> None:
        while sock.recv(65536):
            pass

    with served(serve) as connections, pytest.raises(NotAnswered, match="timed out"):
        connections.request("GET", "/", b"", 0.05)


def test_a_request_without_a_connection_was_not_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(NotSent, match="refused"):
        Connections(f"http://127.0.0.1:{port}", {}, 5.0).request("GET", "/", b"", 5.0)


def test_an_early_refusal_of_a_large_request_is_read() -> None:
    refused = b"HTTP/1.1 413 Too Large\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno"

    def serve(sock: socket.socket) -> None:
        sock.recv(100)
        sock.sendall(refused)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1 << 20):
            pass

    with served(serve) as connections:
        answer = connections.request("POST", "/", b"x" * 10_000_000, 5.0)
    assert (answer.status, answer.body) == (413, b"no")


def test_close_ends_the_wait_of_another_thread() -> None:
    reached = threading.Event()

    def serve(sock: socket.socket) -> None:
        request(sock)
        reached.set()
        sock.recv(1)

    with served(serve) as connections:
        failed = []

        def ask() -> None:
            try:
                connections.request("GET", "/", b"", 60.0)
            except NotAnswered as error:
                failed.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        assert reached.wait(5)
        connections.close()
        thread.join(5)
        assert failed
