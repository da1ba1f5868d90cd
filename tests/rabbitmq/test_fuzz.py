"""Nothing that a client sends stops the server, leaks memory, or disturbs another client."""

import contextlib
import random
import socket
import struct
import time
from typing import Any

import psutil
import pytest
from pamqp import commands, frame

from ackflow.dialects.rabbitmq.frames import PROTOCOL_HEADER

from .conftest import Amqp

START_OK = commands.Connection.StartOk({"capabilities": {}}, "PLAIN", "\0guest\0guest", "en_US")
OPENING = [
    PROTOCOL_HEADER,
    frame.marshal(START_OK, 0),
    frame.marshal(commands.Connection.TuneOk(2047, 131072, 0), 0)
    + frame.marshal(commands.Connection.Open("/"), 0),
    frame.marshal(commands.Channel.Open(), 1),
]


def raw(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def opened(port: int) -> socket.socket:
    """A connection with an open channel 1."""
    sock = raw(port)
    for part in OPENING:
        sock.sendall(part)
        assert sock.recv(65536)
    return sock


def send(sock: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # the server may have closed it already
        sock.sendall(data)


def reply_code(sock: socket.socket) -> int | None:
    """The code of the close that the server sends; None if it only ends the connection."""
    data = b""
    with contextlib.suppress(OSError):
        while more := sock.recv(65536):
            data += more
            at = 0
            while len(data) - at >= 8:
                size, _, method = frame.unmarshal(data[at:])
                at += size
                if isinstance(method, commands.Connection.Close | commands.Channel.Close):
                    return int(method.reply_code)
            data = data[at:]
    return None


def frame_of(kind: int, channel: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + end


PUBLISH = frame.marshal(commands.Basic.Publish(0, "", "q"), 1)


def content(size: int, properties: bytes = b"\0\0") -> bytes:
    return frame_of(2, 1, struct.pack(">HHQ", 60, 0, size) + properties)


NESTED = b""
for _ in range(200):
    NESTED = struct.pack(">I", len(NESTED) + 3) + b"\x01aF" + NESTED if NESTED else b"\0\0\0\0"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x09\x00\x01\x00\x00\x00\x01x\xce", 501),
        (frame_of(1, 1, b"\0\x3c\0\x0a", b"x"), 501),
        (struct.pack(">BHI", 1, 1, 1 << 31), 501),
        (frame_of(1, 1, b"\0"), 501),
        (frame_of(1, 1, b"\xff\xff\xff\xff"), 540),
        (frame_of(1, 1, b"\0\x32\0\x0a\0\0\xffab"), 502),
        (frame.marshal(commands.Queue.Declare(0, "q"), 7), 504),
        (frame_of(3, 1, b"body"), 505),
        (content(5), 505),
        (PUBLISH + PUBLISH, 505),
        (PUBLISH + content(1 << 40), 406),
        (PUBLISH + content(2) + frame_of(3, 1, b"abc"), 501),
        (PUBLISH + content(0, b"\xff\xff"), 502),
        (PUBLISH + content(0, b"\x20\x00" + NESTED), 502),
        (PUBLISH + content(0, b"\x20\x00\xff\xff\xff\xff"), 502),
        (PUBLISH + content(0, b"\x80\x00\xffshort"), 502),
        (frame.marshal(commands.Channel.Open(), 1), 504),
        (frame.marshal(commands.Basic.Ack(1 << 62), 1), 406),
        (frame.marshal(commands.Basic.GetEmpty(), 1), 503),
        (frame.marshal(commands.Connection.Start(), 0), 503),
        (frame.marshal(commands.Channel.Open(), 60000), 530),
        (frame_of(1, 1, b"\0\x32\0\x0a" + b"\0" * 100_000), 501),
    ],
    ids=map(str, range(22)),
)  # fmt: skip
def test_a_wrong_frame_is_answered_with_its_code(amqp: Amqp, data: bytes, code: int) -> None:
    with opened(amqp.port) as sock:
        send(sock, data)
        assert reply_code(sock) == code
    alive(amqp)


def alive(amqp: Amqp) -> None:
    """Another client still publishes and consumes."""
    connection = amqp.connect()
    channel = connection.channel()
    channel.queue_declare("alive")
    channel.confirm_delivery()
    channel.basic_publish("", "alive", b"x")
    assert channel.basic_get("alive", auto_ack=True)[2] == b"x"
    connection.close()


@pytest.mark.parametrize("closes", [True, False])
def test_what_was_published_before_the_end_is_stored(amqp: Amqp, closes: bool) -> None:
    body = frame.marshal(frame.body.ContentBody(b"hello"), 1)
    with opened(amqp.port) as sock:
        sock.sendall(frame.marshal(commands.Queue.Declare(0, "q"), 1))
        assert sock.recv(1000)
        end = frame.marshal(commands.Connection.Close(200, "bye", 0, 0), 0) if closes else b""
        sock.sendall((PUBLISH + content(5) + body) * 500 + end)
        if closes:
            assert frame.unmarshal(sock.recv(1000))[2].name == "Connection.CloseOk"
    deadline = time.monotonic() + 10
    while amqp.session.queue_stats("q").messages < 500 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert amqp.session.queue_stats("q").messages == 500


@pytest.mark.parametrize(
    "first", [b"GET / HTTP/1.1\r\n\r\n", b"AMQP\x00\x01\x00\x00", b"\x16\x03\x01"]
)
def test_another_protocol_gets_the_version_that_is_spoken(amqp: Amqp, first: bytes) -> None:
    with raw(amqp.port) as sock:
        send(sock, first)
        assert sock.recv(100) == PROTOCOL_HEADER
        assert sock.recv(100) == b""


def test_a_handshake_that_stops_anywhere_is_ended(amqp: Amqp) -> None:
    everything = b"".join(OPENING)
    socks = []
    for cut in range(0, len(everything), 7):
        socks.append(raw(amqp.port))
        send(socks[-1], everything[:cut])
    alive(amqp)
    for sock in socks:
        sock.close()
    wait_until_closed(amqp)


def wait_until_closed(amqp: Amqp) -> None:
    deadline = time.monotonic() + 10
    while len(amqp.connections) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(amqp.connections) == 0
    assert amqp.app.in_transit.bytes == 0
    assert amqp.server.connections == set()


def mutated(rng: random.Random, data: bytes) -> bytes:
    """Change, drop or repeat some bytes."""
    found = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(found))
        match rng.randrange(4):
            case 0:
                found[at] = rng.randrange(256)
            case 1:
                del found[at : at + rng.randint(1, 4)]
            case 2:
                found[at:at] = rng.randbytes(rng.randint(1, 8))
            case _:
                found[at:at] = found[at : at + rng.randint(1, 30)]
        if not found:
            found = bytearray(b"\0")
    return bytes(found)


def valid_frames() -> bytes:
    properties = commands.Basic.Properties("text/plain", None, {"a": 1, "b": [{"c": "d"}]}, 2, 3)
    header = frame.header.ContentHeader(0, 5, properties)
    methods: list[Any] = [
        commands.Queue.Declare(0, "fuzz", False, True, arguments={"x-max-length": 5}),
        commands.Exchange.Declare(0, "fx", "topic"),
        commands.Queue.Bind(0, "fuzz", "fx", "a.#", arguments={"k": "v"}),
        commands.Confirm.Select(),
        commands.Basic.Qos(0, 10, False),
        commands.Basic.Consume(0, "fuzz", "tag"),
        commands.Basic.Publish(0, "fx", "a.b", True),
        header,
        frame.body.ContentBody(b"hello"),
        commands.Basic.Ack(1, True),
        commands.Basic.Nack(2, False, True),
        commands.Basic.Get(0, "fuzz"),
        commands.Basic.Cancel("tag"),
        commands.Queue.Purge(0, "fuzz"),
        commands.Queue.Delete(0, "fuzz"),
        commands.Channel.Close(200, "bye", 0, 0),
    ]
    return b"".join(frame.marshal(one, 1) for one in methods)


def fuzz(amqp: Amqp, rounds: int, seed: int) -> None:
    rng = random.Random(seed)
    valid = valid_frames()
    for _ in range(rounds):
        with opened(amqp.port) as sock:
            send(sock, mutated(rng, valid))
            if rng.random() < 0.5:
                sock.shutdown(socket.SHUT_WR)
                sock.settimeout(5)
                with contextlib.suppress(OSError):
                    while sock.recv(65536):
                        pass


def test_mutated_frames_do_no_harm(amqp: Amqp) -> None:
    fuzz(amqp, 500, 1)
    wait_until_closed(amqp)
    alive(amqp)


@pytest.mark.soak
def test_memory_stays_flat_under_mutated_frames(amqp: Amqp) -> None:
    fuzz(amqp, 2_000, 2)
    before = psutil.Process().memory_info().rss
    fuzz(amqp, 10_000, 3)
    wait_until_closed(amqp)
    assert psutil.Process().memory_info().rss - before < 16 * 1024 * 1024


@pytest.mark.outer
def test_a_thousand_idle_connections(amqp: Amqp) -> None:
    socks = [opened(amqp.port) for _ in range(1_000)]
    assert len(amqp.connections) == 1_000
    alive(amqp)
    for sock in socks:
        sock.close()
    wait_until_closed(amqp)


def test_a_client_that_does_not_read_what_it_gets_is_given_no_more(amqp: Amqp) -> None:
    """Else a few bytes for each basic.get would fill the memory with the messages of a queue."""
    with opened(amqp.port) as sock:
        sock.sendall(frame.marshal(commands.Queue.Declare(0, "q"), 1))
        assert sock.recv(65536)
        amqp.session.push("q", ["x" * 1_000_000] * 60)
        sock.sendall(frame.marshal(commands.Basic.Get(0, "q"), 1) * 60)
        leased = [0]
        while not leased[-1] or len(set(leased[-3:])) > 1:
            time.sleep(0.2)
            leased.append(amqp.session.group_stats("q").counts.leased)
        assert 1 <= leased[-1] < 30
        alive(amqp)
        received = 0
        while received < 60_000_000:
            received += len(sock.recv(1 << 20))
        assert amqp.session.group_stats("q").counts.leased == 60
