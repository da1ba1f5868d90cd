"""`ackflow bridge` between RabbitMQ or Ackflow's AMQP and a file, with real processes and kills."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pika
import pytest
from pika.exceptions import AMQPError

import ackflow
from ackflow import Item, VirtualClock
from ackflow.broker.core.routing.imports import import_messages
from ackflow.broker.requests import Publication
from ackflow.dialects.rabbitmq.verbs import QueueRequest, declare_queue

from ..rabbitmq.conftest import Amqp
from ..rabbitmq.real import RabbitMQ, found
from ..server.conftest import Process, free_port

SECONDS = 60
COUNT = 1_500
PROPERTIES: dict[str, Any] = {
    "content_type": "application/json", "content_encoding": "utf-8", "priority": 3,
    "correlation_id": "c", "reply_to": "answers", "expiration": "60000", "message_id": "m1",
    "timestamp": 1_700_000_000, "type": "order", "app_id": "shop",
    "headers": {"text": "a", "number": 7, "flag": True, "deep": {"list": [1, "b"]}},
}  # fmt: skip


class Broker(Protocol):
    def restart(self) -> None: ...


class Peer:
    """A broker that speaks AMQP, as a process that can be killed."""

    def __init__(self, broker: Broker, port: int) -> None:
        self.broker = broker
        self.url = f"amqp://guest:guest@127.0.0.1:{port}/"

    @contextlib.contextmanager
    def channel(self) -> Iterator[Any]:
        connection = pika.BlockingConnection(pika.URLParameters(self.url))
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel
        with contextlib.suppress(AMQPError):
            connection.close()

    def publish(self, queue: str, count: int, *, ids: bool = True) -> None:
        with self.channel() as channel:
            channel.queue_declare(queue, durable=True)
            for n in range(count):
                properties = pika.BasicProperties(message_id=f"m{n}" if ids else None)
                properties.delivery_mode = 2
                channel.basic_publish("", queue, str(n).encode(), properties)

    def drain(self, queue: str) -> list[tuple[Any, bytes]]:
        messages = []
        with self.channel() as channel:
            while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
                messages.append((got[1], got[2]))
        return messages

    def count(self, queue: str) -> int:
        with self.channel() as channel:
            return int(channel.queue_declare(queue, durable=True).method.message_count)


@pytest.fixture(params=["ackflow", pytest.param("rabbitmq", marks=pytest.mark.outer)])
def peer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Peer]:
    if request.param == "rabbitmq":
        if not found():
            assert os.environ.get("CI") != "true", "CI needs rabbitmq-server: run `make setup`"
            pytest.skip("rabbitmq-server is not installed")
        server = RabbitMQ(tmp_path)
        yield Peer(server, server.port)
        server.stop()
    else:
        port = free_port()
        process = Process(tmp_path / "served.db", 0, "--amqp-port", str(port))
        yield Peer(process, port)
        process.kill()
        assert process.process.stdout is not None
        process.process.stdout.close()


def start(
    source: str | Path, queue: str, to: str | Path, *options: str, log: Any = subprocess.PIPE
) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ackflow", "bridge", str(source), queue, "--to", str(to)]
    return subprocess.Popen([*command, *options], text=True, stdout=subprocess.PIPE, stderr=log)


def run(source: str | Path, queue: str, to: str | Path, *options: str) -> str:
    """Run a bridge until the queue is empty; returns what it prints."""
    with start(source, queue, to, "--until-empty", *options) as process:
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    return out


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def payloads(db: Path, queue: str) -> list[Any]:
    with ackflow.connect(db) as q:
        return [m.data for m in q.pop(queue, group="all", batch=100_000, auto_ack=True)]


def test_a_message_arrives_with_everything_it_had(peer: Peer, tmp_path: Path) -> None:
    with peer.channel() as channel:
        channel.queue_declare("orders", durable=True)
        body = b'{"id":  1}'
        channel.basic_publish("", "orders", body, pika.BasicProperties(**PROPERTIES))
        channel.basic_publish("", "orders", b"\xff\x00", pika.BasicProperties())
        channel.exchange_declare("shop", "topic")
        channel.queue_bind("orders", "shop", "eu.#")
        channel.basic_publish("shop", "eu.de", b"routed", pika.BasicProperties())
    db = tmp_path / "mid.db"
    assert "3 messages moved, 0 of them known" in run(peer.url, "orders", db)
    assert peer.count("orders") == 0
    with ackflow.connect(db) as q:
        first, second, third = q.pop("orders", group="look", batch=10)
        assert (first.raw, first.data, first.transaction_id) == (body, {"id": 1}, "m1")
        assert first.headers["correlation-id"] == "c"
        assert first.headers["text"] == "a"
        assert second.data == b"\xff\x00"
        assert third.headers["x-routing-key"] == "eu.de"
    assert "3 messages moved" in run(db, "orders", peer.url, "--to-queue", "back")
    (first_back, raw), (second_back, other), _ = peer.drain("back")
    assert (raw, other) == (body, b"\xff\x00")
    for name, value in PROPERTIES.items():
        assert getattr(first_back, name) == value, name
    assert first_back.delivery_mode == 2
    assert second_back.message_id  # consumers recognise a repeat by it


def test_a_known_id_is_stored_once(peer: Peer, tmp_path: Path) -> None:
    db = tmp_path / "known.db"
    with peer.channel() as channel:
        channel.queue_declare("orders", durable=True)
        for id in ("a", "b", "a", None, None):
            channel.basic_publish("", "orders", b"1", pika.BasicProperties(message_id=id))
    assert "5 messages moved, 1 of them known" in run(peer.url, "orders", db)
    assert len(payloads(db, "orders")) == 4


def test_an_imported_message_has_its_time_to_live_and_its_priority() -> None:
    clock = VirtualClock()
    with ackflow.connect(":memory:", clock=clock) as q:
        declared = QueueRequest("orders", True, False, None, "", {"x-max-priority": 5})
        q.broker.do(declare_queue, True, declared, "")
        some = [
            Publication("", ["orders"], b"old", ttl=10.0, txid="1"),
            Publication("", ["orders"], b"high", priority=5, txid="2"),
            Publication("", ["orders"], b"low", priority=1, txid="3"),
        ]
        assert q.broker.do(import_messages, True, "orders", some, "key") == 3
        assert q.broker.do(import_messages, True, "orders", some, "key") == 3  # the same call again
        assert q.broker.do(import_messages, True, "orders", some, "other") == 0
        clock.advance(11)
        assert [m.data for m in q.pop("orders", batch=10)] == [b"high", b"low"]


def test_copies_and_users_of_a_message_are_not_published_again(peer: Peer, tmp_path: Path) -> None:
    db = tmp_path / "copies.db"
    with peer.channel() as channel:
        for queue in ("orders", "copies"):
            channel.queue_declare(queue, durable=True)
        properties = pika.BasicProperties(headers={"CC": ["copies"]}, user_id="guest")
        channel.basic_publish("", "orders", b"1", properties)
    assert len(peer.drain("copies")) == 1
    run(peer.url, "orders", db)
    with ackflow.connect(db) as q:
        q.push("orders", Item(data=2, headers={"user-id": "other", "expiration": "soon"}))
    assert "2 messages moved" in run(db, "orders", peer.url)
    assert [body for _, body in peer.drain("orders")] == [b"1", b"2"]
    assert peer.drain("copies") == []


@pytest.fixture(params=["to a file", "from a file"])
def job(request: pytest.FixtureRequest, peer: Peer, tmp_path: Path) -> "Job":
    return Job(peer, tmp_path / "bridged.db", request.param == "to a file")


class Job:
    """Messages to move between a broker and a file, and how many have arrived."""

    def __init__(self, peer: Peer, db: Path, to_file: bool) -> None:
        self.peer, self.db, self.to_file = peer, db, to_file
        self.ends: tuple[Any, ...] = (
            (peer.url, "orders", db) if to_file else (db, "orders", peer.url)
        )
        if to_file:
            peer.publish("orders", COUNT)
        else:
            with ackflow.connect(db) as q:
                q.push("orders", list(range(COUNT)))

    def arrived(self) -> int:
        return stored(self.db) if self.to_file else self.peer.count("orders")

    def is_over(self) -> bool:
        if self.to_file:
            return stored(self.db) == COUNT
        with ackflow.connect(self.db) as q:
            return q.group_stats("orders", "__QUEUE_MODE__").counts.lag == 0

    def kill_in_the_middle(self, victim: Any) -> None:
        """Call `victim` when a few more messages have arrived, and not all."""
        before = self.arrived()
        wait_for(lambda: self.arrived() >= before + 50)
        victim()
        assert not self.is_over()

    def check(self) -> None:
        if self.to_file:  # the messages have ids, so that none is stored twice
            assert sorted(int(data) for data in payloads(self.db, "orders")) == list(range(COUNT))
        else:
            got = Counter(int(body) for _, body in self.peer.drain("orders"))
            assert sorted(got) == list(range(COUNT))


def test_a_bridge_that_is_killed_loses_nothing(job: Job) -> None:
    for _ in range(3):
        process = start(*job.ends, "--batch", "2")
        job.kill_in_the_middle(lambda process=process: kill(process))
    deadline = time.monotonic() + SECONDS
    while not job.is_over():  # what a killed one had leased comes when the lease is over
        run(*job.ends)
        assert time.monotonic() < deadline
    job.check()


def test_a_broker_that_is_killed_is_waited_for(job: Job, tmp_path: Path) -> None:
    with (tmp_path / "bridge.log").open("w+") as log:
        process = start(*job.ends, "--batch", "2", log=log)
        job.kill_in_the_middle(job.peer.broker.restart)
        wait_for(job.is_over)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=SECONDS)
        log.seek(0)
        lines = log.read()
    assert (process.returncode, "messages moved" in out) == (0, True), lines
    assert "again" in lines
    job.check()


def stored(db: Path) -> int:
    with ackflow.connect(db) as q:
        return sum(one.messages for one in q.queues() if one.name == "orders")


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        with contextlib.suppress(AMQPError):
            if condition():
                return
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_bridge_that_is_stopped_gives_back_what_it_holds(peer: Peer, tmp_path: Path) -> None:
    db = tmp_path / "stopped.db"
    peer.publish("orders", 2_000, ids=False)
    process = start(peer.url, "orders", db, "--batch", "2")
    wait_for(lambda: stored(db) >= 50)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, "messages moved" in out) == (0, True), err
    moved = stored(db)
    assert moved < 2_000
    assert moved + peer.count("orders") == 2_000
    assert f"{moved:,} messages moved" in out


@pytest.mark.parametrize(
    ("source", "to", "said"),
    [
        ("amqp://guest:guest@127.0.0.1:1/", "{tmp}/a.db", "127.0.0.1:1"),
        ("{tmp}/missing.db", "{amqp}", "does not exist"),
        ("{amqp}", "{tmp}/a.db", "no queue 'orders'"),
        ("{amqp}", "{amqp}", "the same queue"),
        ("ftp://x", "{amqp}", "unknown scheme ftp://"),
    ],
)
def test_what_cannot_begin_says_why(tmp_path: Path, source: str, to: str, said: str) -> None:
    with ackflow.connect(":memory:") as session:
        amqp = Amqp(session)
        place = {"tmp": tmp_path, "amqp": f"amqp://guest:guest@127.0.0.1:{amqp.port}/"}
        with start(source.format(**place), "orders", to.format(**place)) as process:
            _, err = process.communicate(timeout=SECONDS)
        amqp.stop()
    assert process.returncode not in (0, None)
    assert said in err
    assert "Traceback" not in err
    assert "guest:guest" not in err
