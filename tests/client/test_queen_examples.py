"""The examples for those who come from Queen do what its documentation says of each."""

import inspect
import runpy
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ackflow
from ackflow import Item, Session, VirtualClock
from ackflow.errors import CircuitOpen, InvalidArgument, LeaseLost, TransactionFailed, Unavailable
from ackflow.options import DEFAULTS, QUEUE_MODE
from ackflow.remote import retry, transport_threads
from ackflow.remote.connections import NotSent

from . import queen
from .queen import ASYNC, EXAMPLES, FILES, HEADINGS, LOADED, Example, Proof, Work, data, shown
from .queen import url as url
from .waiting import until

PATIENCE = ("Exponential Backoff", "Circuit Breaker")
SHOWN = {heading: f for name in FILES for heading, f in shown(LOADED[name]).items()}
PROOFS: dict[str, Proof] = {}
proves = partial(queen.proves, proofs=PROOFS)


@pytest.fixture
def q(url: str, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    with ackflow.connect(url, clock=clock, upkeep=False) as session:
        # The virtual clock does not move while a pop waits.
        monkeypatch.setattr(session, "consume", partial(session.consume, wait=0))
        yield session


def test_every_example_of_the_documentation_has_its_twin_and_its_proof() -> None:
    assert len(HEADINGS) == len(set(HEADINGS)) == 25
    assert sum(len(shown(LOADED[name])) for name in FILES) == len(SHOWN)
    assert sorted(SHOWN) == sorted(PROOFS) == sorted(HEADINGS)
    assert {path.stem for path in EXAMPLES.glob("queen_*.py")} == {*FILES, ASYNC}


def test_the_numbers_of_the_documentation_are_the_defaults() -> None:
    def default(method: Callable[..., Any], name: str) -> Any:
        return inspect.signature(method).parameters[name].default

    calm = retry.RetryPolicy()
    assert (calm.pauses, calm.failures, calm.open_seconds) == ((1, 2, 4), 5, 60)
    assert str(CircuitOpen()) == "Circuit breaker is open"
    assert default(Session.buffer, "size") == 100
    assert default(Session.alert_dead, "above") == 100
    assert default(Session.consume, "auto_ack") is False
    assert default(Session.consume, "group") == "__QUEUE_MODE__"
    for dialect in ("native", "queen"):
        assert (DEFAULTS[dialect].lease_seconds, DEFAULTS[dialect].retry_limit) == (300, 3)


@pytest.mark.parametrize("heading", [h for h in HEADINGS if h not in PATIENCE])
def test_an_example_does_what_the_documentation_says(
    q: Session, clock: VirtualClock, heading: str
) -> None:
    PROOFS[heading](q, clock, SHOWN[heading])


@pytest.mark.parametrize("heading", PATIENCE)
def test_a_session_stands_by_a_server_that_fails(
    url: str, clock: VirtualClock, heading: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SHOWN[heading](url) as session:
        PROOFS[heading](session, Fails(session, monkeypatch))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("queen_acks", "settled=3"),
        ("queen_dead_letters", "120 reprocessed"),
        ("queen_speed_and_errors", "252 processed and acked"),
        ("queen_patterns", "success rate 100.00%"),
        ("queen_async", "settled=3"),
    ],
)
def test_every_file_runs_on_a_throw_away_database(
    name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](str(tmp_path))
    assert said in capsys.readouterr().out


def counts(q: Session, queue: str, group: str = QUEUE_MODE) -> Any:
    return q.group(queue, group).counts  # a loop that has begun may not have made it yet


# the models


@proves("Manual ACK (Default)")
def what_fails_is_nacked_and_comes_again(q: Session, clock: VirtualClock, example: Example) -> None:
    q.push("orders", [1, 2])
    work = Work(fails_on=[2])
    with example(q, work):
        until(lambda: len(work.seen) == 4)
    assert work.seen == [1, 2, 2, 2]
    assert counts(q, "orders", "processors").done == 1
    assert [letter.reason for letter in q.dead_letters("orders").items] == ["Invalid: 2"]


@proves("Auto-ACK")
@proves("Use auto-ACK for non-critical messages")
def nothing_comes_again(q: Session, clock: VirtualClock, example: Example) -> None:
    for queue in ("events", "logs"):
        q.push(queue, [1, 2])
    work = Work(fails_on=[2])
    with example(q, work) as consumer:
        until(lambda: consumer.counts.failed)
        assert work.seen == [1, 2]
        clock.advance(3600)
    (group,) = [group for queue in q.queues() for group in queue.groups]
    assert (work.seen, group.counts.done, group.dead_letters) == ([1, 2], 2, 0)


@proves("Callback-based ACK")
def callbacks_settle(q: Session, clock: VirtualClock, example: Example) -> None:
    q.push("tasks", [1, 2])
    work = Work(fails_on=[2])
    with example(q, work):
        until(lambda: len(work.seen) == 4)
    assert (counts(q, "tasks", "workers").done, counts(q, "tasks", "workers").dead) == (1, 1)


@proves("Required Parameters")
def exactly_one_message_is_meant(q: Session, clock: VirtualClock, example: Example) -> None:
    for partition in ("A", "B"):
        q.push("orders", Item(data=partition, transaction_id="tx-123"), partition=partition)
    batch = q.pop("orders", batch=2, lease_seconds=10)
    (meant,) = [message for message in batch if message.partition == "A"]
    assert example(q, meant.id, meant.token).settled == 1
    clock.advance(11)
    assert data(q.pop("orders", batch=2)) == ["B"]


@proves("Batch ACK")
def all_are_settled_or_none(q: Session, clock: VirtualClock, example: Example) -> None:
    q.push("orders", [1, 2, 3])
    assert example(q, *q.pop("orders", batch=3)).settled == 3
    (third,) = q.pop("orders", batch=3)
    assert (third.data, third.failures) == (3, 1)
    q.push("orders", [4, 5])
    fourth, fifth = q.pop("orders", batch=2)
    fifth.reject()
    assert len(example(q, third, fourth, fifth).refused) == 3
    assert counts(q, "orders").leased == 2


@proves("Lease Renewal")
def work_may_take_longer_than_the_lease(q: Session, clock: VirtualClock, example: Example) -> None:
    q.push("long-tasks", 1)
    done: list[bool] = []

    def end() -> Any:
        return q.leases("long-tasks")[0].expires_at

    def ten_minutes(_: Any) -> None:
        for _ in range(3):
            before = end()
            clock.advance(200)
            until(lambda before=before: end() > before)  # type: ignore[misc]
        done.append(True)

    with example(q, ten_minutes):
        until(lambda: done)
    assert counts(q, "long-tasks", "workers").done == 1


@proves("Queue Mode (Default)")
def consumers_compete(q: Session, clock: VirtualClock, example: Example) -> None:
    q.push("tasks", list(range(20)))
    work = Work()
    with example(q, work), example(q, work):
        until(lambda: len(work.seen) == 20)
    assert sorted(work.seen) == list(range(20))
    assert counts(q, "tasks", "__QUEUE_MODE__").done == 20


@proves("Named Consumer Groups")
def every_group_gets_every_message(q: Session, clock: VirtualClock, example: Example) -> None:
    q.push("user-events", [1, 2, 3])
    mail, analytics = Work(), Work(fails_on=[3])
    first, second = example(q, mail, analytics)
    with first, second:
        until(lambda: not counts(q, "user-events", "email-sender").lag)
        until(lambda: not counts(q, "user-events", "analytics").lag)
    assert (mail.seen, analytics.seen) == ([1, 2, 3], [1, 2, 3, 3, 3])
    assert counts(q, "user-events", "email-sender").done == 3
    assert counts(q, "user-events", "analytics").done == 2


# dead letters


@proves("Max retries exceeded")
def the_third_failure_makes_a_dead_letter(
    q: Session, clock: VirtualClock, example: Example
) -> None:
    example(q)
    q.push("orders", 1)
    for failures in range(3):
        assert q.dead_letters("orders").total == 0
        (message,) = q.pop("orders")
        assert message.failures == failures
        message.nack("Processing failed: invalid data")
    assert not q.pop("orders")
    (letter,) = q.dead_letters("orders").items
    assert (letter.kind, letter.failures) == ("failed", 3)


@proves("Max wait time exceeded")
def an_hour_of_waiting_makes_a_dead_letter(
    q: Session, clock: VirtualClock, example: Example
) -> None:
    example(q)
    q.push("time-sensitive", [1, 2])
    clock.advance(3599)
    assert data(q.pop("time-sensitive")) == [1]
    clock.advance(1)
    assert not q.pop("time-sensitive")
    (letter,) = q.dead_letters("time-sensitive").items
    assert (letter.kind, letter.data) == ("max_wait", 2)


@proves("Monitor DLQ regularly")
def more_than_a_hundred_are_told(q: Session, clock: VirtualClock, example: Example) -> None:
    said: list[str] = []
    q.push("orders", list(range(101)))
    q.reject(q.pop("orders", batch=100))
    with example(q, said.append) as alert:
        alert.check()
        assert said == []
        q.reject(q.pop("orders"))
        alert.check()
    assert said == ["High DLQ depth for orders queue"]


@proves("Investigate and fix root causes")
def errors_are_counted_before_the_colon(q: Session, clock: VirtualClock, example: Example) -> None:
    q.push("orders", [1, 2, 3])
    for reason in ("Invalid: no id", "Timeout: 5 s", "Timeout: 7 s"):
        q.reject(q.pop("orders"), reason)
    assert example(q) == {"Timeout": 2, "Invalid": 1}


@proves("Reprocess when appropriate")
def letters_come_again_under_a_new_id(q: Session, clock: VirtualClock, example: Example) -> None:
    q.push("orders", Item(data={"orderId": "12345"}, transaction_id="tx-123"), partition="eu")
    q.reject(q.pop("orders"))
    assert example(q) == 1
    (again,) = q.pop("orders")
    assert (again.data, again.partition) == ({"orderId": "12345"}, "eu")
    assert again.transaction_id == "reprocess-tx-123"
    assert q.dead_letters("orders").total == 0


# speed and errors


@proves("Use batch ACK for high throughput")
def acks_go_together_by_a_hundred(q: Session, clock: VirtualClock, example: Example) -> None:
    q.push("events", list(range(250)))
    work = Work()
    with example(q, work) as consumer:
        until(lambda: consumer.counts.succeeded == 250)
        until(lambda: counts(q, "events").done >= 100)
        clock.advance(1)  # the rest is sent by time
        until(lambda: counts(q, "events").done == 250)
    until(lambda: q.ack_stats().total == 250)  # the buffer counts what it sent once it is done


@proves("Include lease ID to skip validation query")
def the_ack_goes_with_its_lease(q: Session, clock: VirtualClock, example: Example) -> None:
    q.push("orders", [1, 2])
    first, late = q.pop("orders", batch=2, lease_seconds=10)
    example(first)
    clock.advance(11)
    with pytest.raises(LeaseLost):
        example(late)
    assert counts(q, "orders").done == 1


@proves("Invalid Lease")
def a_lost_lease_is_told_and_the_message_comes_again(
    q: Session, clock: VirtualClock, example: Example
) -> None:
    q.push("orders", [1, 2])
    first, late = q.pop("orders", batch=2, lease_seconds=10)
    assert example(first) is True
    clock.advance(11)
    assert example(late) is False
    assert data(q.pop("orders", batch=2)) == [2]


@proves("Missing partitionId")
def an_ambiguous_id_is_refused(q: Session, clock: VirtualClock, example: Example) -> None:
    q.push("orders", Item(data=1, transaction_id="tx-123"))
    (message,) = q.pop("orders")
    with pytest.raises(InvalidArgument, match="'tx-123' is not a message id"):
        q.lease(str(message.token)).ack("tx-123")
    assert example(q, message).settled == 1


@proves("Message Not Found")
def an_ack_may_be_repeated(q: Session, clock: VirtualClock, example: Example) -> None:
    q.push("orders", 1)
    example(q.pop("orders")[0])
    assert counts(q, "orders").done == 1
    assert q.ack_stats().failed == 0


class Fails:
    """Makes the calls of a session on a server fail, and its pauses pass at once."""

    def __init__(self, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paused: list[float] = []
        self.left = 0
        self.now = 0.0
        self._transport = getattr(session.broker, "_transport", None)
        if isinstance(self._transport, transport_threads.ThreadTransport):
            self._once = self._transport._once
            monkeypatch.setattr(self._transport, "_once", self._try)
            monkeypatch.setattr(self._transport._closed, "wait", self.paused.append)
            monkeypatch.setattr(retry, "time", SimpleNamespace(monotonic=lambda: self.now))

    @property
    def possible(self) -> bool:
        """A file has no connection that could fail."""
        return self._transport is not None

    def _try(self, request: Any) -> Any:
        if self.left > 0:
            self.left -= 1
            raise NotSent("refused")
        return self._once(request)


@proves("Exponential Backoff")
def an_ack_is_tried_again_after_1_2_and_4_seconds(q: Session, fails: Fails) -> None:
    q.push("orders", 1)
    (message,) = q.pop("orders", group="g")
    fails.left = 3
    message.ack()
    assert q.group_stats("orders", "g").counts.done == 1
    if fails.possible:
        assert fails.paused == [pytest.approx(seconds, rel=0.25) for seconds in (1, 2, 4)]


@proves("Circuit Breaker")
def five_failures_open_the_circuit_for_a_minute(q: Session, fails: Fails) -> None:
    q.push("orders", 1)
    (message,) = q.pop("orders", group="g")
    if fails.possible:
        fails.left = 1_000
        for _ in range(5):
            with pytest.raises(Unavailable):
                message.ack()
        fails.left = 0
        fails.now = 59.0
        with pytest.raises(CircuitOpen, match="Circuit breaker is open"):
            message.ack()
        fails.now = 60.0
    message.ack()
    assert q.group_stats("orders", "g").counts.done == 1


# patterns


@proves("Transactional ACK + PUSH")
def both_happen_or_neither(q: Session, clock: VirtualClock, example: Example) -> None:
    q.push("orders", [1, 2])
    first, late = q.pop("orders", batch=2, lease_seconds=10)
    assert example(q, first).settled == 1
    clock.advance(11)
    with pytest.raises(TransactionFailed):
        example(q, late)
    (pushed,) = q.pop("next-step", batch=5)
    assert (pushed.data, pushed.partition) == ({"processed": True}, "workflow-1")
    assert data(q.pop("orders", batch=5)) == [2]


@proves("Conditional ACK")
def the_outcome_decides(q: Session, clock: VirtualClock, example: Example) -> None:
    result = LOADED["queen_patterns"].Result
    outcomes = {
        "good": [result(True)],
        "busy": [result(False, True, "Busy: try later"), result(True)],
        "bad": [result(False, False, "Invalid: no id")],
    }
    q.push("tasks", list(outcomes))
    with example(q, lambda name: outcomes[name].pop(0)):
        until(lambda: not counts(q, "tasks").lag)
    assert (counts(q, "tasks").done, counts(q, "tasks").dead) == (2, 1)
    (letter,) = q.dead_letters("tasks").items
    assert (letter.data, letter.reason, letter.deliveries) == ("bad", "Invalid: no id", 1)


@proves("Delayed NACK (Manual Retry)")
def what_is_limited_comes_again_in_a_minute(
    q: Session, clock: VirtualClock, example: Example
) -> None:
    q.push("rate-limited", ["limited", "bad"])
    limited, bad, seen = LOADED["queen_patterns"].RateLimited, ValueError("Bad: 1"), list[str]()

    def call(name: str) -> None:
        seen.append(name)
        if name == "bad":
            raise bad
        if seen.count(name) == 1:
            raise limited

    with example(q, call):
        until(lambda: len(seen) == 4)
        clock.advance(59)
        assert counts(q, "rate-limited").waiting == 1
        clock.advance(1)
        until(lambda: not counts(q, "rate-limited").lag)
    assert seen == ["limited", "bad", "bad", "bad", "limited"]
    assert data(q.dead_letters("rate-limited").items) == ["bad"]


@proves("ACK Metrics")
def acks_are_counted_and_timed(q: Session, clock: VirtualClock, example: Example) -> None:
    q.push("orders", [1, 2, 3, 4])
    *others, late = q.pop("orders", batch=4, lease_seconds=10)
    for message in others:
        message.ack()
    clock.advance(11)
    with pytest.raises(LeaseLost):
        late.ack()
    stats = example(q)
    assert (stats.total, stats.successful, stats.failed) == (4, 3, 1)
    assert stats.success_rate == 0.75
    assert "success rate 75.00%, average latency" in str(stats)
