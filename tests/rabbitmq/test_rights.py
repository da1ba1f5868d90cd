"""Who may remove messages, and what becomes of queues and channels that end in unusual ways."""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pamqp import commands, frame
from pika.exceptions import AMQPError, ChannelClosedByBroker

import ackflow
from ackflow.broker import access_tokens
from ackflow.dialects.rabbitmq.channel import Channel
from ackflow.dialects.rabbitmq.verbs import (
    OWNER_SECONDS,
    QueueRequest,
    consume_queue,
    declare_queue,
    new_server_id,
    remove_abandoned,
    use_queues,
)

from ..server.conftest import Process, free_port
from .conftest import Amqp
from .test_fuzz import opened
from .test_serving import connect as connect_to


@pytest.fixture
def limited() -> Iterator[tuple[Amqp, Any]]:
    """A connection of a client that may read and write, and is no admin."""
    with ackflow.connect(":memory:") as session:
        grant = access_tokens.grant("read-write")
        secret = session.broker.do(access_tokens.create, True, "c", [grant], None)
        session.push("orders", 1)
        running = Amqp(session)
        connection = running.connect("c", secret)
        yield running, connection
        connection.close()
        running.stop()


def refusal(act: Callable[[], Any]) -> int:
    with pytest.raises(ChannelClosedByBroker) as closed:
        act()
    return int(closed.value.reply_code)


def test_to_ask_for_a_queue_as_exclusive_gives_no_right_to_remove_it(
    limited: tuple[Amqp, Any],
) -> None:
    amqp, connection = limited
    channel = connection.channel()
    assert refusal(lambda: channel.queue_declare("orders", exclusive=True)) == 405
    assert refusal(lambda: connection.channel().queue_purge("orders")) == 403
    assert refusal(lambda: connection.channel().queue_delete("orders")) == 403
    assert amqp.session.queue_stats("orders").messages == 1


def test_an_exclusive_queue_gives_no_right_to_the_exchange_of_its_name(
    limited: tuple[Amqp, Any],
) -> None:
    _, connection = limited
    channel = connection.channel()
    channel.exchange_declare("same")
    channel.queue_declare("same", exclusive=True)
    channel.queue_purge("same")
    assert refusal(lambda: channel.exchange_delete("same")) == 403
    connection.channel().queue_delete("same")


def test_recover_leaves_the_transaction_as_it_is(channel: Any) -> None:
    channel.queue_declare("q")
    channel.queue_declare("out")
    for body in (b"acked", b"held"):
        channel.basic_publish("", "q", body)
    channel.tx_select()
    first, _, _ = channel.basic_get("q")
    channel.basic_get("q")
    channel.basic_publish("", "out", b"out")
    channel.basic_ack(first.delivery_tag)
    channel.basic_recover(requeue=True)
    channel.tx_commit()
    assert channel.basic_get("out", auto_ack=True)[2] == b"out"
    again, _, body = channel.basic_get("q")
    assert (body, again.redelivered) == (b"held", True)
    assert channel.basic_get("q")[0] is None


def test_queues_that_end_with_their_consumers_do_not_outlive_a_kill_of_the_server(
    start_process: Callable[..., Process],
) -> None:
    port = free_port()
    process = start_process("--amqp-port", str(port))
    killed = connect_to(port)
    channel = killed.channel()
    for name in ("consumed", "never consumed"):
        channel.queue_declare(name, auto_delete=True)
    channel.queue_declare("durable", durable=True, auto_delete=True)
    channel.queue_declare("owned", exclusive=True)
    for name in ("consumed", "durable"):
        channel.basic_consume(name, lambda *_: None)
    process.restart()
    with contextlib.suppress(AMQPError):
        killed.close()
    connection = connect_to(port)

    def exists(name: str) -> bool:
        with contextlib.suppress(ChannelClosedByBroker):
            connection.channel().queue_declare(name, passive=True)
            return True
        return False

    found = {name: exists(name) for name in ("consumed", "never consumed", "durable", "owned")}
    connection.close()
    assert found == {"consumed": False, "never consumed": True, "durable": True, "owned": False}


def test_a_killed_server_is_recognised_though_another_process_has_its_number() -> None:
    killed = f"{new_server_id().rpartition(':')[0]}:before"
    assert str(os.getpid()) in killed
    with ackflow.connect(":memory:") as q:
        do = q.broker.do
        do(declare_queue, True, QueueRequest("own", False, False, "conn", killed, {}), "conn")
        do(remove_abandoned, False, "this")
        assert [one.name for one in q.queues()] == []


def test_consumers_on_another_server_keep_a_queue(clock: ackflow.VirtualClock) -> None:
    killed = f"{new_server_id().rpartition(':')[0]}:before"
    with ackflow.connect(":memory:", clock=clock) as q:
        do = q.broker.do
        do(declare_queue, True, QueueRequest("q", False, True, None, killed, {}), "conn")
        do(consume_queue, False, "q", "conn", killed)
        do(remove_abandoned, False, "this")
        for _ in range(5):  # the other server records it as used
            clock.advance(OWNER_SECONDS / 2)
            do(use_queues, False, ["q"])
            do(remove_abandoned, False, "this")
        assert [one.name for one in q.queues()] == ["q"]
        clock.advance(OWNER_SECONDS)
        do(remove_abandoned, False, "this")
        assert q.queues() == []


def test_a_channel_closed_from_both_sides_can_be_opened_again(
    amqp: Amqp, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def make() -> asyncio.Event:
        return asyncio.Event()

    goes_on = amqp.call(make())

    async def slowly(*_: Any) -> None:
        await goes_on.wait()

    def call(sock: socket.socket, method: Any) -> str:
        sock.sendall(frame.marshal(method, 1))
        return str(frame.unmarshal(sock.recv(1000))[2].name)

    with opened(amqp.port) as sock:
        monkeypatch.setattr(Channel, "_release", slowly)
        sock.sendall(frame.marshal(commands.Basic.Ack(99), 1))  # an error, which takes its time
        while not any(one._closing_channels for one in list(amqp.server.connections)):
            pass
        assert call(sock, commands.Channel.Close(200, "", 0, 0)) == "Channel.CloseOk"
        assert call(sock, commands.Channel.Open()) == "Channel.OpenOk"
        amqp.loop.call_soon_threadsafe(goes_on.set)
        assert call(sock, commands.Queue.Declare(0, "q")) == "Queue.DeclareOk"
        monkeypatch.undo()


def test_what_a_server_remembers_about_queues_is_forgotten_with_them(
    amqp: Amqp, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (connection,) = amqp.server.connections
    for _ in range(3):
        queue = channel.queue_declare("", exclusive=True, auto_delete=True).method.queue
        channel.basic_cancel(channel.basic_consume(queue, lambda *_: None))
        channel.queue_declare("other")
    assert connection.owned == set()
    amqp.server._used = {"long ago": 0.0}
    channel.queue_declare("own", exclusive=True)
    amqp.call(amqp.server._end_unused(time.monotonic() + 1000))
    assert set(amqp.server._used) == {"own"}
