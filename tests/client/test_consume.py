"""The consume loop, on files and through a server, on a clock of the test's own."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ackflow
from ackflow import Message, Session, VirtualClock
from ackflow.broker.requests import PopRequest
from ackflow.errors import (
    AckflowError,
    CircuitOpen,
    InvalidArgument,
    LeaseLost,
    SessionClosed,
    StorageBusy,
    Unavailable,
)
from ackflow.session.consumer import Consumer, ConsumerCounts

from .waiting import until

pytestmark = pytest.mark.every_store

NOW: dict[str, Any] = {"wait": 0}  # the virtual clock does not move while a pop waits


class Gate:
    """A handler that says when it has begun and ends when it is let."""

    def __init__(self, then: Callable[[Any], object] = lambda given: None) -> None:
        self.given: list[Any] = []
        self.begun = threading.Event()
        self.open = threading.Event()
        self._then = then

    def __call__(self, given: Any) -> None:
        self.given.append(given)
        self.begun.set()
        assert self.open.wait(20)
        self._then(given)


def counts(q: Session) -> Any:
    return q.group_stats("orders", "g").counts


@pytest.fixture(autouse=True)
def group(q: Session) -> None:
    """The group is there before its first pop, so that it can be looked at."""
    q.group("orders", "g")


# what the handler gets


def test_a_handler_gets_every_message_and_settles_it(q: Session) -> None:
    q.push("orders", list(range(5)))
    seen: list[int] = []

    def handle(message: Message) -> None:
        seen.append(message.data)
        message.ack()

    with q.consume("orders", handle, group="g", **NOW) as consumer:
        until(lambda: len(seen) == 5)
    assert seen == [0, 1, 2, 3, 4]
    assert consumer.counts == ConsumerCounts(received=5, succeeded=5)
    assert counts(q).done == 5


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0, 1, 2]),
        ({"batch": 1}, [0, 1, 2]),
        ({"batch": 3}, [[0, 1, 2]]),
        ({"batch": 3, "each": True}, [0, 1, 2]),
        ({"batch": 2}, [[0, 1], [2]]),
    ],
)
def test_a_handler_gets_a_list_when_the_batch_is_more_than_one_and_each_is_not_said(
    q: Session, options: dict[str, Any], expected: list[Any]
) -> None:
    q.push("orders", [0, 1, 2])
    seen: list[Any] = []

    def handle(given: Any) -> None:
        seen.append(given.data if isinstance(given, Message) else [m.data for m in given])
        q.ack(given)

    with q.consume("orders", handle, group="g", **options, **NOW):
        until(lambda: counts(q).done == 3)
    assert seen == expected


def test_several_threads_handle_at_once(q: Session) -> None:
    q.push("orders", [1, 2, 3, 4])
    together = threading.Barrier(4)

    def handle(message: Message) -> None:
        together.wait(20)
        message.ack()

    with q.consume("orders", handle, group="g", concurrency=4, **NOW):
        until(lambda: counts(q).done == 4)


# who settles


def test_what_a_handler_leaves_unsettled_when_it_raises_is_nacked_with_the_text(q: Session) -> None:
    q.push("orders", 1)

    def handle(_: Message) -> None:
        raise ValueError("no such order")

    with q.consume("orders", handle, group="g", **NOW) as consumer:
        until(lambda: counts(q).dead == 1)
    (letter,) = q.dead_letters("orders").items
    assert (letter.reason, letter.failures) == ("ValueError: no such order", 3)
    assert consumer.counts.failed == 3


def test_what_a_handler_settled_before_it_raised_stays_settled(q: Session) -> None:
    q.push("orders", [1, 2, 3])
    seen: list[list[int]] = []

    def handle(messages: list[Message]) -> None:
        seen.append([message.data for message in messages])
        messages[0].ack()
        messages[1].reject("bad") if len(messages) > 1 else None
        if len(seen) == 1:
            raise RuntimeError

    with q.consume("orders", handle, group="g", batch=3, **NOW):
        until(lambda: counts(q).lag == 0)
    assert seen == [[1, 2, 3], [3]]
    assert (counts(q).done, counts(q).dead) == (2, 1)


def test_a_handler_that_returns_without_settling_keeps_its_lease(q: Session) -> None:
    q.push("orders", 1)
    with q.consume("orders", lambda message: None, group="g", **NOW) as consumer:
        until(lambda: consumer.counts.succeeded == 1)
    assert counts(q).leased == 1


def test_with_auto_ack_a_message_is_done_before_the_handler_sees_it(q: Session) -> None:
    q.push("orders", 1)
    seen: list[int] = []

    def handle(message: Message) -> None:
        seen.append(counts(q).done)
        raise ValueError("too late")

    with q.consume("orders", handle, group="g", auto_ack=True, **NOW) as consumer:
        until(lambda: consumer.counts.failed == 1)
    assert seen == [1]
    assert counts(q).done == 1


def test_with_auto_ack_a_stop_finishes_what_was_handed_out(q: Session) -> None:
    q.push("orders", [1, 2, 3])
    gate = Gate()
    with q.consume("orders", gate, group="g", auto_ack=True, batch=3, each=True, **NOW) as consumer:
        gate.begun.wait(20)
        consumer.stop()
        gate.open.set()
    assert [message.data for message in gate.given] == [1, 2, 3]


def test_with_auto_ack_handled_a_message_is_acked_with_the_next_pop(q: Session) -> None:
    """What the handler settled itself, or failed on, is not acked; a stop acks what is left."""
    q.push("orders", [1, 2, 3, 4])
    before: list[int] = []
    stop = threading.Event()

    def handle(message: Message) -> None:
        before.append(counts(q).done)
        if message.data == 2:
            raise ValueError("two")
        if message.data == 3:
            message.reject("three")
        if message.data == 4:
            stop.set()

    q.group("orders", "g", retry_limit=1)
    consumer = q.consume("orders", handle, group="g", auto_ack="handled", stop=stop, **NOW)
    assert consumer.join(30).succeeded == 3
    assert before == [0, 1, 1, 1]
    now = counts(q)
    assert (now.done, now.dead, now.leased) == (2, 2, 0)


def test_acks_of_handled_messages_are_repeated_when_their_answer_is_lost(
    q: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.push("orders", [1, 2])
    real, lost = q.exchange, threading.Event()

    def exchange(*given: Any) -> Any:
        answer = real(*given)
        if not lost.is_set():
            lost.set()
            raise Unavailable("the answer is lost")
        return answer

    monkeypatch.setattr(q, "exchange", exchange)
    seen: list[int] = []

    def handle(message: Message) -> None:
        seen.append(message.data)

    with q.consume("orders", handle, group="g", auto_ack="handled", **NOW) as consumer:
        until(lambda: counts(q).done == 2)
    assert (seen, consumer.counts.lost) == ([1, 2], 0)


def test_with_callbacks_the_loop_itself_settles_nothing(q: Session) -> None:
    q.push("orders", [1, 2])
    good: list[int] = []
    bad: list[tuple[int, str]] = []

    def handle(message: Message) -> None:
        if message.data == 2:
            raise ValueError("two")

    with q.consume(
        "orders", handle, group="g", **NOW,
        on_success=lambda message: good.append(message.data),
        on_error=lambda message, error: bad.append((message.data, str(error))),
    ):  # fmt: skip
        until(lambda: good and bad)
    assert (good, bad) == ([1], [(2, "two")])
    assert counts(q).leased == 2


def test_callbacks_settle_a_batch_as_a_list(q: Session) -> None:
    q.push("orders", [1, 2])
    with q.consume("orders", lambda some: None, group="g", batch=2, on_success=q.ack, **NOW):
        until(lambda: counts(q).done == 2)


def test_with_a_callback_for_success_alone_a_failure_settles_nothing(
    q: Session, caplog: pytest.LogCaptureFixture
) -> None:
    q.push("orders", 1)

    def handle(_: Message) -> None:
        raise ValueError("nobody listens")

    with q.consume("orders", handle, group="g", on_success=q.ack, **NOW) as consumer:
        until(lambda: consumer.counts.failed == 1)
    assert counts(q).leased == 1
    assert "nobody listens" in caplog.text


def test_a_callback_that_fails_is_logged_and_the_loop_goes_on(
    q: Session, caplog: pytest.LogCaptureFixture
) -> None:
    q.push("orders", [1, 2])

    def fail(_: Message) -> None:
        raise ValueError("callback")

    with q.consume("orders", print, group="g", on_success=fail, **NOW) as consumer:
        until(lambda: consumer.counts.succeeded == 2)
    assert "callback" in caplog.text


# stopping


def test_a_stop_returns_what_was_not_started_uncounted_and_finishes_what_was(q: Session) -> None:
    q.push("orders", [1, 2, 3, 4, 5])
    gate = Gate(lambda message: message.ack())
    with q.consume("orders", gate, group="g", batch=5, each=True, **NOW) as consumer:
        gate.begun.wait(20)
        consumer.stop()
        gate.open.set()
    assert consumer.counts == ConsumerCounts(received=5, succeeded=1, returned=4)
    assert (counts(q).done, counts(q).ready) == (1, 4)
    again = q.pop("orders", group="g", batch=9)
    assert [(m.data, m.deliveries, m.failures) for m in again] == [
        (n, 1, 0) for n in (2, 3, 4, 5)
    ]  # fmt: skip


def test_an_event_of_the_caller_stops_the_loop(q: Session) -> None:
    stop = threading.Event()
    consumer = q.consume("orders", print, group="g", stop=stop, **NOW)
    assert consumer.running
    stop.set()
    assert consumer.join() == ConsumerCounts()
    assert not consumer.running


def test_a_handler_may_stop_its_own_loop(q: Session) -> None:
    q.push("orders", [1, 2])
    running: list[Consumer] = []

    def handle(message: Message) -> None:
        message.ack()
        running[0].close()

    ready = threading.Event()
    running.append(
        q.consume("orders", lambda m: (ready.wait(20), handle(m)), group="g", batch=2, each=True,
                  **NOW)
    )  # fmt: skip
    ready.set()
    assert running[0].join().succeeded == 1


def test_closing_the_session_stops_its_loops_first(q: Session) -> None:
    q.push("orders", [1, 2])
    gate = Gate(lambda message: message.ack())
    consumer = q.consume("orders", gate, group="g", batch=2, each=True, **NOW)
    gate.begun.wait(20)
    closing = threading.Thread(target=q.close)
    closing.start()
    until(consumer._stop.is_set)
    gate.open.set()
    closing.join()
    assert consumer.counts == ConsumerCounts(received=2, succeeded=1, returned=1)
    with pytest.raises(SessionClosed):
        q.pop("orders")


def test_a_pop_that_waits_does_not_hold_up_a_stop_for_long(tmp_path: Path) -> None:
    with ackflow.connect(tmp_path / "real.db") as q:
        consumer = q.consume("orders", print, group="g", wait=30)
        began = time.monotonic()
        consumer.close()
        assert time.monotonic() - began < 5


def test_what_ends_the_loop_is_raised_by_join(q: Session) -> None:
    q.push("orders", 1)

    def handle(_: Message) -> None:
        raise SystemExit(3)

    consumer = q.consume("orders", handle, group="g", concurrency=2, **NOW)
    with pytest.raises(SystemExit):
        consumer.join()


# renewal


def expires(q: Session) -> float:
    (lease,) = q.leases("orders", "g")
    return lease.expires_at.timestamp()


@pytest.mark.parametrize(
    ("options", "step", "lease"),
    [
        ({}, 150, 300),
        ({"renew": True, "lease_seconds": 60}, 30, 60),
        ({"renew": 2}, 2, 300),
        ({"renew": 20.0, "lease_seconds": 60}, 20, 60),
    ],
)
def test_a_lease_is_renewed_while_the_handler_blocks(
    q: Session, clock: VirtualClock, options: dict[str, Any], step: float, lease: float
) -> None:
    q.push("orders", 1)
    gate = Gate(lambda message: message.ack())
    with q.consume("orders", gate, group="g", **options, **NOW) as consumer:
        gate.begun.wait(20)
        for _ in range(5):
            clock.advance(step)
            until(lambda: expires(q) == clock.now() / 1e6 + lease)
        gate.open.set()
        until(lambda: consumer.counts.succeeded == 1)
    assert counts(q).done == 1


def test_without_renewal_a_lease_ends_when_its_time_is_over(
    q: Session, clock: VirtualClock
) -> None:
    q.push("orders", 1)
    errors: list[Exception] = []

    def ack(message: Message) -> None:
        try:
            message.ack()
        except LeaseLost as error:
            errors.append(error)
            raise

    gate = Gate(ack)
    with q.consume("orders", gate, group="g", renew=False, **NOW) as consumer:
        gate.begun.wait(20)
        clock.advance(301)
        consumer.stop()
        gate.open.set()
    assert len(errors) == 1
    assert consumer.counts.lost == 1
    assert counts(q).ready == 1


def test_nothing_is_renewed_after_the_handler_has_returned(q: Session, clock: VirtualClock) -> None:
    q.push("orders", 1)
    with q.consume("orders", lambda message: None, group="g", **NOW) as consumer:
        until(lambda: consumer.counts.unsettled == 1)
        until(lambda: not consumer._lease_keeper._renewal._kept)  # type: ignore[union-attr]
        end = expires(q)
        clock.advance(200)
        assert expires(q) == end


def test_a_lost_lease_warns_the_handler_and_the_rest_is_left_alone(
    q: Session, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    q.push("orders", [1, 2, 3])
    gate = Gate()
    with q.consume("orders", gate, group="g", batch=3, each=True, **NOW) as consumer:
        gate.begun.wait(20)
        (first,) = gate.given
        assert not first.lost
        q.seek("orders", "g", to="end")
        with caplog.at_level(logging.WARNING):
            clock.advance(150)
            until(lambda: first.lost)
        gate.open.set()
        until(lambda: consumer.counts.lost == 2)
    assert len(gate.given) == 1
    assert "is lost" in caplog.text


def test_a_lease_that_the_handler_settled_is_not_called_lost(
    q: Session, clock: VirtualClock
) -> None:
    q.push("orders", 1)
    gate = Gate()
    settled = threading.Event()

    def handle(message: Message) -> None:
        message.ack()
        settled.set()
        gate(message)

    with q.consume("orders", handle, group="g", renew=1, **NOW) as consumer:
        settled.wait(20)
        renewal = consumer._lease_keeper._renewal
        assert renewal is not None
        clock.advance(5)
        until(lambda: not renewal._kept)
        assert not gate.given[0].lost
        gate.open.set()


# a server that goes away


@pytest.mark.parametrize("error", [Unavailable, CircuitOpen, StorageBusy])
def test_a_server_that_goes_away_is_waited_for(
    q: Session, monkeypatch: pytest.MonkeyPatch, error: type[AckflowError]
) -> None:
    monkeypatch.setattr("ackflow.session.consumer.PAUSES", (0.0,))
    q.push("orders", 1)
    take, asked = q.take, list[PopRequest]()

    def flaky(request: PopRequest, wait: float) -> Any:
        asked.append(request)
        if len(asked) < 4:
            if len(asked) == 2:
                take(request, wait)  # it was done, and the answer was lost
            raise error()
        return take(request, wait)

    monkeypatch.setattr(q, "take", flaky)
    with q.consume("orders", q.ack, group="g", **NOW):
        until(lambda: counts(q).done == 1)
    assert len({request.token for request in asked[:4]}) == 1
    assert asked[3].token != asked[-1].token or len(asked) == 4


def test_a_nack_is_sent_when_the_server_is_back(
    q: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ackflow.session.consumer.PAUSES", (0.0,))
    q.push("orders", 1)
    nack, tried = q.nack, list[object]()

    def flaky(*args: Any) -> Any:
        tried.append(args)
        if len(tried) < 3:
            raise Unavailable()
        return nack(*args)

    monkeypatch.setattr(q, "nack", flaky)

    def handle(_: Message) -> None:
        raise ValueError

    with q.consume("orders", handle, group="g", **NOW):
        until(lambda: counts(q).dead == 1)


def test_a_repeated_pop_gets_nothing_once_its_lease_is_over(q: Session) -> None:
    q.push("orders", 1)
    request = q.pop_request("orders", group="g", token="AAAAAAAAAAA")
    request.live = True
    (message,) = q.take(request, 0)
    assert [m.data for m in q.take(request, 0)] == [1]
    message.release()
    assert list(q.take(request, 0)) == []


# bad input


@pytest.mark.parametrize(
    ("handler", "options", "says"),
    [
        (None, {}, "handler must be a function"),
        (print, {"on_success": 3}, "on_success must be a function"),
        (print, {"on_error": "x"}, "on_error must be a function"),
        (print, {"concurrency": 0}, "concurrency"),
        (print, {"batch": 0}, "batch"),
        (print, {"wait": -1}, "wait"),
        (print, {"renew": 0}, "renew"),
        (print, {"renew": -2.0}, "renew"),
        (print, {"auto_ack": True, "on_success": print}, "nothing left for callbacks"),
        (print, {"auto_ack": "handled", "on_error": print}, "nothing left for callbacks"),
        (print, {"auto_ack": "later"}, "must be True, False or 'handled'"),
        (print, {"auto_ack": 1}, "must be True, False or 'handled'"),
        (print, {"group": ""}, "group"),
    ],
)
def test_a_consumer_that_cannot_work_is_refused(
    q: Session, handler: Any, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidArgument, match=says):
        q.consume("orders", handler, **options)


# functions that would have to be awaited


async def awaited(*_: Any) -> None:
    raise AssertionError("nobody awaits this")


@pytest.mark.parametrize("what", ["handler", "on_success", "on_error"])
def test_a_function_to_be_awaited_is_refused(q: Session, what: str) -> None:
    q.push("orders", 1)
    given: dict[str, Any] = {"handler": lambda message: None, what: awaited}
    with pytest.raises(InvalidArgument, match="is asynchronous"):
        q.consume("orders", **given)
    assert q.pop("orders")[0].data == 1


def test_a_handler_whose_answer_is_to_be_awaited_has_failed(q: Session) -> None:
    q.push("orders", 1)
    failed: list[Exception] = []
    with q.consume(
        "orders", lambda message: awaited(), on_success=lambda message: message.ack(),
        on_error=lambda message, error: failed.append(error), **NOW,
    ):  # fmt: skip
        until(lambda: bool(failed))
    assert isinstance(failed[0], InvalidArgument)
    assert q.group_stats("orders").counts.done == 0
