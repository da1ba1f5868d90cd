"""Consume loops whose handlers forget to settle, hang or stop the loop, on files and over HTTP."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ackflow
from ackflow import Message, Session, VirtualClock
from ackflow.broker import access_tokens
from ackflow.errors import QueueNotFound, Unauthenticated
from ackflow.session.consumer import ConsumerCounts

from ..running import Running
from .test_consume import NOW, Gate, counts
from .test_consume import group as group
from .waiting import until

pytestmark = pytest.mark.every_store


def test_a_handler_that_returns_without_settling_is_warned_of_once_and_counted(
    q: Session, caplog: pytest.LogCaptureFixture
) -> None:
    q.push("orders", [1, 2, 3])
    with q.consume("orders", lambda message: None, group="g", **NOW) as consumer:
        until(lambda: consumer.counts.unsettled == 3)
    assert consumer.counts.succeeded == 3
    assert caplog.text.count("did not settle") == 1
    assert counts(q).leased == 3


@pytest.mark.parametrize(
    "settle",
    [
        lambda q, some: [message.ack() for message in some],
        lambda q, some: q.ack(some),
        lambda q, some: q.settle([(message, "reject") for message in some]),
        lambda q, some: some[-1].ack(up_to=True),
        lambda q, some: some[0].nack(rest=True),
        lambda q, some: q.transaction().ack(some).push("next", 1).commit(),
        lambda q, some: q.lease(some[0].token).ack(),
        lambda q, some: q.seek("orders", "g", to="end"),
    ],
    ids=["each", "list", "settle", "up to", "rest", "transaction", "by token", "lost"],
)
def test_a_handler_that_settles_in_any_way_is_not_warned_of(
    q: Session, settle: Callable[[Session, Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    q.push("orders", [1, 2, 3])
    with q.consume("orders", lambda some: settle(q, some), group="g", batch=3, **NOW) as consumer:
        until(lambda: consumer.counts.succeeded >= 3)
    assert consumer.counts.unsettled == 0
    assert "did not settle" not in caplog.text


def test_what_a_handler_of_a_batch_leaves_unsettled_is_counted_alone(q: Session) -> None:
    q.push("orders", [1, 2, 3])
    with q.consume("orders", lambda some: some[1].ack(), group="g", batch=3, **NOW) as consumer:
        until(lambda: consumer.counts.unsettled == 2)
    assert (counts(q).done, counts(q).leased) == (1, 2)


def test_what_a_buffer_is_to_ack_is_not_warned_of(
    q: Session, caplog: pytest.LogCaptureFixture
) -> None:
    q.push("orders", 1)
    with (
        q.buffer() as buffer,
        q.consume("orders", buffer.ack, group="g", **NOW) as consumer,
    ):
        until(lambda: consumer.counts.succeeded == 1)
    assert (consumer.counts.unsettled, counts(q).done) == (0, 1)
    assert "did not settle" not in caplog.text


def test_a_handler_that_hangs_loses_its_message_after_the_timeout(
    q: Session, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    q.push("orders", [1, 2, 3])
    gate = Gate(lambda message: message.ack())
    consumer = q.consume("orders", gate, group="g", batch=3, each=True, timeout=30, **NOW)
    gate.begun.wait(20)
    clock.advance(29)
    assert not gate.given[0].lost
    clock.advance(1)
    until(lambda: counts(q).ready == 3)
    assert consumer.counts == ConsumerCounts(received=3, returned=2, timed_out=1)
    assert gate.given[0].lost
    assert "did not end within 30 s" in caplog.text
    consumer.close()  # does not wait for it
    assert not consumer.running
    again = q.pop("orders", group="g", batch=3)
    assert [(m.data, m.deliveries, m.failures) for m in again] == [(1, 2, 1), (2, 1, 0), (3, 1, 0)]
    gate.open.set()
    until(lambda: not consumer._threads[0].is_alive())
    assert counts(q).leased == 3  # its late ack changed nothing
    assert consumer.counts.succeeded == consumer.counts.lost == consumer.counts.failed == 0


def test_a_thread_whose_handler_returns_after_its_timeout_goes_on(
    q: Session, clock: VirtualClock
) -> None:
    q.push("orders", 1)
    gate = Gate()
    with q.consume("orders", gate, group="g", timeout=5, **NOW) as consumer:
        gate.begun.wait(20)
        clock.advance(5)
        until(lambda: counts(q).ready == 1)
        gate.open.set()
        until(lambda: consumer.counts.succeeded == 1)
        assert consumer.running
    assert not consumer.running


def test_a_handler_that_hangs_until_its_message_is_dead_says_so_in_the_dead_letter(
    q: Session, clock: VirtualClock
) -> None:
    q.group("orders", "g", retry_limit=1)
    q.push("orders", 1)
    gate = Gate()
    with q.consume("orders", gate, group="g", timeout=5, **NOW):
        gate.begun.wait(20)
        clock.advance(5)
        until(lambda: counts(q).dead == 1)
        gate.open.set()
    (letter,) = q.dead_letters("orders").items
    assert letter.error == "TimeoutError: the handler did not end in time"


def test_with_a_callback_for_errors_a_timeout_is_one(q: Session, clock: VirtualClock) -> None:
    q.push("orders", 1)
    gate = Gate()
    seen: list[Any] = []

    def on_error(message: Message, error: Exception) -> None:
        message.reject(str(error))
        seen.append(error)

    with q.consume("orders", gate, group="g", timeout=5, on_error=on_error, **NOW):
        gate.begun.wait(20)
        clock.advance(5)
        until(lambda: seen)
        gate.open.set()
    assert isinstance(seen[0], TimeoutError)
    assert counts(q).dead == 1


def test_a_loop_that_an_exit_ends_says_so_and_nacks_its_message(
    q: Session, caplog: pytest.LogCaptureFixture
) -> None:
    q.push("orders", 1)

    def handle(_: Message) -> None:
        raise SystemExit(3)

    consumer = q.consume("orders", handle, group="g", concurrency=2, **NOW)
    until(lambda: not consumer.running)
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert record.getMessage() == "the consume loop of orders has ended: SystemExit: 3"
    with pytest.raises(SystemExit):
        consumer.join()
    (message,) = q.pop("orders", group="g")
    assert message.failures == 1


def test_a_loop_that_is_refused_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    running = Running(ackflow.connect(tmp_path / "test.db", upkeep=False))
    with ackflow.connect(running.url) as q:
        consumer = q.consume("orders", print, group="g", wait=0)
        grants = [access_tokens.grant("admin")]
        running.session.broker.do(access_tokens.create, True, "operator", grants, None)
        until(lambda: not consumer.running)
        (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
        assert "the consume loop of orders has ended: Unauthenticated" in record.getMessage()
        with pytest.raises(Unauthenticated, match="token="):
            consumer.join()
    running.stop()
    running.session.close()


def test_a_loop_of_a_queue_that_does_not_exist_ends_if_it_may_not_create_it(q: Session) -> None:
    consumer = q.consume("ordres", print, group="g", create=False, **NOW)
    with pytest.raises(QueueNotFound):
        consumer.join()
    assert [queue.name for queue in q.queues()] == ["orders"]


def test_a_consumer_says_what_it_does(q: Session) -> None:
    q.push("orders", 1)
    with q.consume("orders", lambda message: message.ack(), group="g", **NOW) as consumer:
        until(lambda: consumer.counts.succeeded == 1)
        shown = repr(consumer)
    assert shown == "<Consumer of orders as g, running: {'received': 1, 'succeeded': 1}>"
    assert "ended" in repr(consumer)
