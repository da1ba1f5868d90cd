"""`ackflow serve --amqp-port` as a process: restarts, kills, leases that live on, TLS, tokens."""

import contextlib
import signal
import ssl
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest
from pika.exceptions import AMQPError, ConnectionClosedByBroker

import ackflow
from ackflow.broker import access_tokens
from ackflow.dialects.rabbitmq import consumers, server

from ..server.conftest import Process, free_port
from ..server.test_tls import certificate, command, failed
from .conftest import Amqp

Start = Callable[..., Process]
__all__ = ["certificate"]  # a fixture


def connect(port: int, **options: Any) -> Any:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, **options))


def closed_with(connection: Any) -> int | None:
    """Wait until the server closes a connection; returns the code."""
    deadline = time.monotonic() + 20
    try:
        while time.monotonic() < deadline:
            connection.process_data_events(0.1)
    except ConnectionClosedByBroker as closed:
        return int(closed.reply_code)
    return None


def test_queues_exchanges_and_messages_survive_a_kill(start_process: Start) -> None:
    port = free_port()
    process = start_process("--amqp-port", str(port))
    killed = connect(port)
    channel = killed.channel()
    channel.exchange_declare("x", "topic", durable=True)
    channel.queue_declare("q", durable=True, arguments={"x-max-priority": 3})
    channel.queue_bind("q", "x", "a.*")
    channel.confirm_delivery()
    for n in range(20):
        channel.basic_publish("x", "a.b", b"%d" % n)
    process.restart()
    with contextlib.suppress(AMQPError):
        killed.close()
    connection = connect(port)
    channel = connection.channel()
    method = channel.queue_declare("q", durable=True, arguments={"x-max-priority": 3}).method
    assert method.message_count == 20
    channel.confirm_delivery()
    channel.basic_publish("x", "a.c", b"20", mandatory=True)
    found = [channel.basic_get("q", auto_ack=True)[2] for _ in range(21)]
    assert found == [b"%d" % n for n in range(21)]
    assert httpx.get(process.url + "/livez").status_code == 200
    connection.close()


def test_a_stopped_server_closes_its_connections_with_320(start_process: Start) -> None:
    port = free_port()
    process = start_process("--amqp-port", str(port))
    connection = connect(port)
    process.process.send_signal(signal.SIGTERM)
    assert closed_with(connection) == 320
    assert process.process.wait(30) == 0


@pytest.mark.outer
def test_amqp_over_tls(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    port = free_port()
    line = command(
        tmp_path, "--port", 0, "--amqp-tls-port", port, "--tls-cert", cert, "--tls-key", key
    )
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL)
    context = ssl.create_default_context(cafile=str(cert))
    options = pika.SSLOptions(context, "127.0.0.1")
    connection = connect(port, ssl_options=options, connection_attempts=60, retry_delay=0.5)
    channel = connection.channel()
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"secret")
    assert channel.basic_get("q", auto_ack=True)[2] == b"secret"
    connection.close()
    process.terminate()
    assert process.wait(30) == 0


def test_a_message_that_is_held_for_long_stays_with_its_consumer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (consumers, server):
        monkeypatch.setattr(module, "LEASE_SECONDS", 1.5)
    monkeypatch.setattr("ackflow.dialects.rabbitmq.channel.LEASE_SECONDS", 1.5)
    monkeypatch.setattr(server, "TICK_SECONDS", 0.1)
    with ackflow.connect(":memory:") as session:
        running = Amqp(session)
        connection = running.connect(heartbeat=1)
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.basic_publish("", "q", b"m")
        method, _, _ = channel.basic_get("q")
        time.sleep(4)  # the client sends no heartbeats meanwhile
        assert not session.pop("q")
        channel.basic_ack(method.delivery_tag)
        assert channel.queue_declare("q", passive=True).method.message_count == 0
        assert session.group_stats("q").counts.done == 1
        connection.close()
        running.stop()


def test_a_revoked_token_ends_its_connections() -> None:
    with ackflow.connect(":memory:") as session:
        do = session.broker.do
        secret = do(access_tokens.create, True, "c", [access_tokens.grant("read-write")], None)
        running = Amqp(session)
        connection = running.connect("c", secret)
        channel = connection.channel()
        channel.queue_declare("q")
        channel.basic_consume("q", lambda *_: None)
        do(access_tokens.revoke, True, "c")
        assert closed_with(connection) == 320
        running.stop()


@pytest.mark.outer
def test_tls_needs_a_certificate(tmp_path: Path) -> None:
    assert "--amqp-tls-port needs --tls-cert" in failed(tmp_path, "--amqp-tls-port", 0)
