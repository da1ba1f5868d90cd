"""What the own tests of clients found: the methods that errors name, and the order of frames."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from amqp.exceptions import AMQPError

import ackflow
import amqp as py_amqp

from .conftest import Amqp
from .real import RabbitMQ, found

MESSAGE = py_amqp.Message("x")
FAILING: dict[str, tuple[Callable[[Any], Any], str]] = {
    "declare": (lambda c: c.queue_declare("missing", passive=True), "Queue.declare"),
    "bind": (lambda c: c.queue_bind("missing", "amq.direct"), "Queue.bind"),
    "consume": (lambda c: c.basic_consume("missing"), "Basic.consume"),
    "ack": (lambda c: (c.basic_ack(7), c.queue_declare()), "Basic.ack"),
    "publish": (
        lambda c: c.basic_publish_confirm(MESSAGE, exchange="missing"), "Basic.publish"
    ),
    "immediate": (
        lambda c: c.basic_publish_confirm(MESSAGE, routing_key="q", immediate=True),
        "Basic.publish",
    ),
}  # fmt: skip


@pytest.fixture(
    params=["ackflow", pytest.param("rabbitmq", marks=pytest.mark.outer)], scope="module"
)
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    if request.param == "ackflow":
        with ackflow.connect(":memory:") as session:
            served = Amqp(session)
            yield served.port
            served.stop()
        return
    if not found():
        assert os.environ.get("CI") != "true", "CI needs rabbitmq-server: run `make setup`"
        pytest.skip("rabbitmq-server is not installed")
    folder: Path = tmp_path_factory.mktemp("rabbitmq")
    server = RabbitMQ(folder)
    yield server.port
    server.stop()


@pytest.mark.parametrize("what", FAILING)
def test_an_error_names_the_method_that_failed(port: int, what: str) -> None:
    call, name = FAILING[what]
    with py_amqp.Connection(f"127.0.0.1:{port}", confirm_publish=True) as connection:
        channel = connection.channel()
        with pytest.raises(AMQPError) as failed:
            call(channel)
    assert failed.value.method_name == name


def test_a_count_of_zero_comes_after_the_messages_it_does_not_count(port: int) -> None:
    for _ in range(20):
        with py_amqp.Connection(f"127.0.0.1:{port}") as connection:
            channel = connection.channel()
            queue = channel.queue_declare(exclusive=True).queue
            for _ in range(2):
                channel.basic_publish(MESSAGE, routing_key=queue)
            got: list[Any] = []
            channel.basic_consume(queue, callback=got.append, no_ack=True)
            while channel.queue_declare(queue, passive=True).message_count:
                pass
            assert len(got) == 2


def test_a_consumer_that_is_cancelled_at_once_gets_what_was_ready(port: int) -> None:
    with py_amqp.Connection(f"127.0.0.1:{port}", confirm_publish=True) as connection:
        channel = connection.channel()
        queue = channel.queue_declare(exclusive=True).queue
        for _ in range(3):
            channel.basic_publish_confirm(MESSAGE, routing_key=queue)
        got: list[Any] = []
        tag = channel.basic_consume(queue, callback=got.append)
        connection.drain_events(timeout=5)  # returns after the first one
        channel.basic_cancel(tag)
        assert len(got) == 3


def test_a_consumer_is_cancelled_after_the_answer_to_the_delete(port: int) -> None:
    with py_amqp.Connection(f"127.0.0.1:{port}") as connection:
        channel = connection.channel()
        seen: list[str] = []
        queue = channel.queue_declare().queue
        channel.basic_consume(queue, on_cancel=lambda tag: seen.append("cancelled"))
        channel.queue_delete(queue)
        seen.append("deleted")
        connection.drain_events(timeout=5)
        assert seen == ["deleted", "cancelled"]


def test_a_consumer_is_cancelled_after_the_answer_also_if_the_disk_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(file: int) -> None:
        time.sleep(0.1)
        os.fsync(file)

    with ackflow.connect(tmp_path / "q.db") as session:
        served = Amqp(session)
        monkeypatch.setattr("ackflow.store.sqlite.wal_sync._sync", slowly)
        test_a_consumer_is_cancelled_after_the_answer_to_the_delete(served.port)
        monkeypatch.undo()
        served.stop()
