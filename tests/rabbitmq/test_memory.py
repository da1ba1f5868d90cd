"""What clients can make the server hold is bounded, and given back when they read or leave."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from pamqp import commands, frame
from pika.exceptions import ConnectionClosedByBroker

from ackflow.dialects.rabbitmq.protocol import MAX_QUEUED_BYTES
from ackflow.dialects.rabbitmq.unread import MAX_UNREAD

from .conftest import Amqp
from .test_fuzz import alive, content, frame_of, opened, wait_until_closed

MB = 1024 * 1024
PIECE = 128_000


def bodies(channel: int, size: int) -> bytes:
    """The frames of a body."""
    pieces = [b"x" * min(PIECE, size - at) for at in range(0, size, PIECE)]
    return b"".join(frame_of(3, channel, piece) for piece in pieces)


def publication(key: str, size: int, channel: int = 1, mandatory: bool = False) -> bytes:
    method = frame.marshal(commands.Basic.Publish(0, "", key, mandatory), channel)
    header = content(size)
    return method + header[:1] + channel.to_bytes(2, "big") + header[3:] + bodies(channel, size)


class Sender:
    """Sends in a thread, because the server may stop reading."""

    def __init__(self, sock: socket.socket, data: bytes) -> None:
        sock.settimeout(60)
        self.thread = threading.Thread(target=sock.sendall, args=(data,))
        self.thread.start()


def unread(amqp: Amqp) -> int:
    """The bytes that wait in the server to be read by clients."""
    transports = [one._transport for one in list(amqp.server.connections)]
    return sum(one.get_write_buffer_size() for one in transports if one is not None)


def settled(measure: Callable[[], int]) -> int:
    """A number above 0, once it stays the same; the largest one that was seen."""
    most, seen = 0, list[int]()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and len(seen) < 20:
        now = measure()
        seen = [*seen, now] if now and set(seen) <= {now} else []
        most = max(most, now)
        time.sleep(0.02)
    return most


def received(sock: socket.socket, count: int) -> int:
    """Read until so many bodies of a size have arrived; returns the bytes of all bodies."""
    data, total = b"", 0
    while total < count:
        data += sock.recv(MB)
        at = 0
        while len(data) - at >= 8 and len(data) - at >= (
            size := int.from_bytes(data[at + 3 : at + 7], "big") + 8
        ):
            total += size - 8 if data[at] == 3 else 0
            at += size
        data = data[at:]
    return total


def test_messages_returned_to_a_client_that_reads_nothing_are_limited(amqp: Amqp) -> None:
    with opened(amqp.port) as sock:
        sender = Sender(sock, publication("nowhere", MB, mandatory=True) * 60)
        most = settled(lambda: unread(amqp))
        assert most < MAX_UNREAD + 12 * MB
        alive(amqp)
        assert received(sock, 60 * MB) == 60 * MB
        sender.thread.join()
    wait_until_closed(amqp)


def test_a_consumer_that_reads_nothing_is_sent_little(amqp: Amqp, channel: Any) -> None:
    channel.queue_declare("large")
    for _ in range(16):
        channel.basic_publish("", "large", b"x" * 4 * MB)
    with opened(amqp.port) as sock:
        sock.sendall(frame.marshal(commands.Basic.Consume(0, "large", "tag"), 1))
        assert settled(lambda: unread(amqp)) < 12 * MB
        assert received(sock, 64 * MB) == 64 * MB
    channel.connection.close()
    wait_until_closed(amqp)


@pytest.mark.parametrize("returned", [False, True])
def test_a_consumer_of_small_messages_is_sent_few_large_ones(
    amqp: Amqp, channel: Any, returned: bool
) -> None:
    channel.queue_declare("mixed")
    for size in [10] * 600 + [4 * MB] * 16:
        channel.basic_publish("", "mixed", b"x" * size)
    channel.queue_declare("mixed", passive=True)
    if returned:
        amqp.session.release(amqp.session.pop("mixed", batch=1_000))
    seen: list[int] = []
    channel.basic_consume("mixed", lambda _, __, ___, body: seen.append(len(body)))
    deadline = time.monotonic() + 30
    while len(seen) < 600 and time.monotonic() < deadline:
        channel.connection.process_data_events(0.01)
    assert settled(lambda: unread(amqp)) < 12 * MB
    while len(seen) < 616 and time.monotonic() < deadline:
        channel.connection.process_data_events(0.01)
    assert seen == [10] * 600 + [4 * MB] * 16
    channel.connection.close()


def test_messages_got_by_a_client_that_reads_nothing_are_limited(amqp: Amqp, channel: Any) -> None:
    channel.queue_declare("large")
    for _ in range(12):
        channel.basic_publish("", "large", b"x" * 4 * MB)
    with opened(amqp.port) as sock:
        for number in range(2, 13):
            sock.sendall(frame.marshal(commands.Channel.Open(), number))
            sock.recv(100)
        for number in range(1, 13):
            sock.sendall(frame.marshal(commands.Basic.Get(0, "large", True), number))
        assert settled(lambda: unread(amqp)) < MAX_UNREAD + 8 * MB
        assert received(sock, 48 * MB) == 48 * MB
    channel.connection.close()
    wait_until_closed(amqp)


@contextlib.contextmanager
def blocked(amqp: Amqp) -> Iterator[None]:
    """Nothing is written to the store in the block."""
    began, goes_on = threading.Event(), threading.Event()

    def block(tx: Any) -> None:
        began.set()
        goes_on.wait(30)

    holder = threading.Thread(target=amqp.session.broker.do, args=(block, False))
    holder.start()
    began.wait(30)
    try:
        yield
    finally:
        goes_on.set()
        holder.join()


def test_publications_count_until_they_are_on_disk(amqp: Amqp) -> None:
    with opened(amqp.port) as sock:
        for number in range(2, 21):
            sock.sendall(frame.marshal(commands.Channel.Open(), number))
            sock.recv(100)
        everything = b"".join(publication("nowhere", 3 * MB, number) for number in range(1, 21))
        with blocked(amqp):
            sender = Sender(sock, everything)
            most = settled(lambda: amqp.app.in_transit.bytes)
        assert 3 * MB <= most <= MAX_QUEUED_BYTES + 6 * MB
        sender.thread.join(30)
        assert not sender.thread.is_alive()
    wait_until_closed(amqp)


def publish_and_commit(channel: Any, count: int) -> None:
    for _ in range(count):
        channel.basic_publish("", "q", b"x" * 100_000)
    channel.tx_commit()


def test_a_transaction_without_end_is_refused(amqp: Amqp, connect: Callable[..., Any]) -> None:
    amqp.app.in_transit.most = 2 * MB
    connection = connect()
    channel = connection.channel()
    channel.queue_declare("q")
    channel.tx_select()
    with pytest.raises(ConnectionClosedByBroker) as closed:
        publish_and_commit(channel, 40)
    assert closed.value.reply_code == 506
    wait_until_closed(amqp)
    channel = connect().channel()
    channel.tx_select()
    for _ in range(3):  # each has all the room again
        publish_and_commit(channel, 10)
    assert channel.queue_declare("q", passive=True).method.message_count == 30


def test_a_client_that_reads_nothing_is_ended_when_others_need_the_memory(
    amqp: Amqp, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ackflow.dialects.rabbitmq.unread.STALLED_SECONDS", 0.5)
    channel.queue_declare("large")
    for _ in range(16):
        channel.basic_publish("", "large", b"x" * 4 * MB)
    channel.queue_declare("large", passive=True)
    amqp.app.in_transit.most = MB
    with opened(amqp.port) as sock:
        sock.sendall(frame.marshal(commands.Basic.Consume(0, "large", "tag"), 1))
        deadline = time.monotonic() + 30
        while len(amqp.connections) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    alive(amqp)
    channel.connection.close()
    wait_until_closed(amqp)


def test_a_direct_reply_to_a_client_that_reads_nothing_is_dropped(amqp: Amqp, channel: Any) -> None:
    channel.queue_declare("requests")
    with opened(amqp.port) as sock:
        replies = commands.Basic.Consume(0, "amq.rabbitmq.reply-to", "r", False, True)
        sock.sendall(frame.marshal(replies, 1))
        properties = b"\x02\x00" + b"\x15amq.rabbitmq.reply-to"
        header = content(1, properties)
        request = frame.marshal(commands.Basic.Publish(0, "", "requests"), 1)
        sock.sendall(request + header + frame_of(3, 1, b"?"))
        deadline = time.monotonic() + 10
        method = None
        while method is None and time.monotonic() < deadline:
            method, found, _ = channel.basic_get("requests", auto_ack=True)
        for _ in range(60):
            channel.basic_publish("", found.reply_to, b"x" * MB, pika.BasicProperties())
            channel.queue_declare("requests", passive=True)
        assert unread(amqp) < MAX_UNREAD + 4 * MB
        alive(amqp)
    channel.connection.close()
    wait_until_closed(amqp)
