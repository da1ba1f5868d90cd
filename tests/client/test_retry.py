"""Retries of the HTTP client: when, how long it waits, and when the circuit breaker opens."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import ackflow
from ackflow import Session
from ackflow.broker.aio import spawn
from ackflow.broker.core import settle
from ackflow.broker.core.admin import admin
from ackflow.broker.requests import PopRequest, PushRequest
from ackflow.errors import CircuitOpen, InvalidArgument, Unavailable
from ackflow.remote import protocol, retry, transport_asyncio, transport_threads
from ackflow.remote.connections import NotAnswered, NotSent
from ackflow.remote.retry import Breaker, RetryPolicy

pytestmark = pytest.mark.every_store

SAFE = protocol.about()
UNSAFE = protocol.push(PushRequest([]))


def refused() -> Exception:
    return NotSent("refused")


def unanswered() -> Exception:
    return NotAnswered("read timed out")


class Time:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(retry, "time", time)
    return time


def test_the_defaults_are_those_of_the_document() -> None:
    p = RetryPolicy()
    assert (p.pauses, p.failures, p.open_seconds) == ((1.0, 2.0, 4.0), 5, 60.0)
    assert str(CircuitOpen()) == "Circuit breaker is open"


@pytest.mark.parametrize(
    ("request_", "attempt", "sent", "pause"),
    [
        (SAFE, 0, True, 1.0),
        (SAFE, 1, True, 2.0),
        (SAFE, 2, False, 4.0),
        (SAFE, 3, False, None),
        (UNSAFE, 0, True, None),
        (UNSAFE, 0, False, 1.0),
        (UNSAFE, 3, False, None),
    ],
)
def test_what_is_not_safe_is_repeated_only_when_it_was_not_sent(
    request_: protocol.Request, attempt: int, sent: bool, pause: float | None
) -> None:
    assert RetryPolicy().pause(request_, attempt, sent) == pause


def test_what_a_session_sends_can_be_repeated() -> None:
    assert protocol.pop(PopRequest("q", "g", "c", token=1), 0).safe
    assert not protocol.pop(PopRequest("q", "g", "c", auto_ack=True), 0).safe
    assert protocol.push(PushRequest([], "key")).safe
    assert protocol.verb(settle.settle, False, (1, [])).safe


# the breaker


def test_the_breaker_opens_after_five_failures_in_a_row_for_a_minute(time: Time) -> None:
    breaker = Breaker(RetryPolicy())
    for _ in range(4):
        breaker.failed()
    breaker.check()
    breaker.failed()
    with pytest.raises(CircuitOpen):
        breaker.check()
    time.now += 59.9
    with pytest.raises(CircuitOpen):
        breaker.check()
    time.now += 0.1
    breaker.check()


def test_a_success_in_between_keeps_the_breaker_closed(time: Time) -> None:
    breaker = Breaker(RetryPolicy())
    for _ in range(3):
        for _ in range(4):
            breaker.failed()
        breaker.worked()
    breaker.check()


def test_after_the_minute_one_call_tries_for_all(time: Time) -> None:
    breaker = Breaker(RetryPolicy())
    for _ in range(5):
        breaker.failed()
    time.now += 60
    breaker.check()
    with pytest.raises(CircuitOpen):
        breaker.check()
    breaker.worked()
    breaker.check()


# the transports


class Tries:
    """Answers of a server, one after the other; the last repeats."""

    def __init__(self, *answers: Any) -> None:
        self.answers = answers
        self.made = 0

    def __call__(self, request: protocol.Request) -> Any:
        answer = self.answers[min(self.made, len(self.answers) - 1)]
        self.made += 1
        if isinstance(answer, Exception):
            raise answer
        return answer


Send = Callable[[Tries, protocol.Request, int], Any]


@pytest.fixture(params=["sync", "async"])
def send(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, time: Time) -> Send:
    """Send one request so many times through a transport whose pauses are counted, not slept."""
    slept: list[float] = []

    def plain(tries: Tries, what: protocol.Request, times: int = 1) -> Any:
        transport = transport_threads.ThreadTransport(
            ["http://one", "http://two"], {}, RetryPolicy()
        )
        monkeypatch.setattr(transport, "_once", tries)
        monkeypatch.setattr(transport._closed, "wait", lambda pause: slept.append(pause))
        return [caught(lambda: transport.send(what)) for _ in range(times)][-1]

    def awaited(tries: Tries, what: protocol.Request, times: int = 1) -> Any:
        transport = transport_asyncio.AsyncioTransport(
            ["http://one", "http://two"], {}, RetryPolicy()
        )

        async def once(what: protocol.Request) -> Any:
            try:
                return tries(what)
            except NotSent:
                raise connector_error() from None
            except NotAnswered:
                raise TimeoutError from None

        async def sleep(pause: float) -> None:
            slept.append(pause)

        async def main() -> Any:
            answers = []
            for _ in range(times):
                try:
                    answers.append(await spawn(lambda: transport.send(what)))
                except Exception as error:
                    answers.append(error)
            return answers[-1]

        monkeypatch.setattr(transport, "_once", once)
        monkeypatch.setattr(transport, "_sleep", sleep)
        return asyncio.run(main())

    def run(tries: Tries, what: protocol.Request, times: int = 1) -> Any:
        slept.clear()
        return (plain if request.param == "sync" else awaited)(tries, what, times), slept

    return run


def caught(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return error


def connector_error() -> Exception:
    from types import SimpleNamespace

    import aiohttp

    key = SimpleNamespace(host="one", port=80, ssl=True, is_ssl=False)
    return aiohttp.ClientConnectorError(key, OSError(111, "refused"))  # type: ignore[arg-type]


def near(slept: list[float], expected: list[float]) -> bool:
    """Whether the pauses are these, give or take the jitter."""
    pairs = zip(slept, expected, strict=True)
    return all(0.75 * want <= got <= 1.25 * want for got, want in pairs)


def test_a_safe_call_is_repeated_with_growing_pauses(send: Send) -> None:
    tries = Tries(refused(), unanswered(), Unavailable(), "done")
    answer, slept = send(tries, SAFE, 1)
    assert answer == "done"
    assert near(slept, [1, 2, 4])


def test_a_call_fails_when_its_repeats_do(send: Send) -> None:
    tries = Tries(unanswered())
    answer, slept = send(tries, SAFE, 1)
    assert isinstance(answer, Unavailable)
    assert (tries.made, near(slept, [1, 2, 4])) == (4, True)


def test_an_unsafe_call_that_may_have_been_done_is_not_repeated(send: Send) -> None:
    tries = Tries(unanswered(), "done")
    answer, slept = send(tries, UNSAFE, 1)
    assert isinstance(answer, Unavailable)
    assert slept == []


def test_the_circuit_opens_for_calls_that_failed_not_for_attempts(send: Send) -> None:
    tries = Tries(refused())
    answer, _ = send(tries, SAFE, 4)
    assert isinstance(answer, Unavailable)
    tries = Tries(refused())
    answer, _ = send(tries, SAFE, 6)
    assert isinstance(answer, CircuitOpen)
    assert tries.made == 5 * 4


def test_a_refusal_is_an_answer_and_no_failure(send: Send) -> None:
    tries = Tries(InvalidArgument("no"))
    answer, slept = send(tries, SAFE, 9)
    assert isinstance(answer, InvalidArgument)
    assert (tries.made, slept) == (9, [])


def test_a_server_that_shuts_down_is_tried_again_and_not_taken_for_a_closed_session() -> None:
    body = b'{"error":{"code":"session_closed","message":"closed"}}'
    with pytest.raises(Unavailable, match="shutting down"):
        protocol.result(SAFE, 503, {"content-type": "application/json"}, body)


def test_a_transaction_whose_answer_was_lost_is_done_once(
    open_session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    q = open_session()
    if not hasattr(q.broker, "transport"):
        pytest.skip("there is no answer to be lost")
    q.push("in", 1)
    (message,) = q.pop("in")
    transport = q.broker.transport
    once, sent = transport._once, list[str]()

    def lossy(request: protocol.Request) -> Any:
        answer = once(request)
        if "transact" in request.path:
            sent.append(request.path)
            if len(sent) == 1:
                raise unanswered()
        return answer

    monkeypatch.setattr(transport, "_once", lossy)
    monkeypatch.setattr(transport._closed, "wait", lambda pause: False)
    with q.transaction() as t:
        t.ack(message).push("out", 2)
    assert len(sent) == 2
    assert [m.data for m in q.pop("out", batch=9)] == [2]


def test_a_closed_session_does_not_wait_for_its_repeats() -> None:
    q = ackflow.connect("http://127.0.0.1:9", retry=RetryPolicy(pauses=(60.0,)))
    transport = q.broker.transport  # type: ignore[attr-defined]
    transport._closed.set()
    with pytest.raises(ackflow.errors.SessionClosed):
        q.push("orders", 1)


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        (admin.seek, ("q", "g", "end")), (admin.purge, ("q",)), (admin.delete_queue, ("q",)),
        (admin.delete_group, ("q", "g")),
    ],
)  # fmt: skip
def test_a_seek_purge_or_delete_is_waited_for_longer_than_other_calls(
    verb: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    """A seek that was sent again after half a minute would skip what was pushed meanwhile."""
    assert protocol.verb(verb, True, arguments).wait >= 3_600
    assert protocol.verb(admin.pause, True, ("q", None, True)).wait == 0
