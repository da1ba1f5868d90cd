"""The middleware on every kind of address: a file, Ackflow's AMQP, and in the outer ring RabbitMQ."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ackflow
from ackflow.broker import access_tokens
from ackflow.errors import InvalidArgument, NotFound, Unauthenticated
from ackflow.middleware import (
    Channel,
    EofGate,
    MessageMiddlewareExchange,
    MessageMiddlewareQueue,
    Repeats,
    ack_together,
)

from ..docs.blocks import blocks, run_python
from ..rabbitmq.conftest import Amqp
from ..rabbitmq.real import RabbitMQ, found

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    if not found():
        assert os.environ.get("CI") != "true", "CI needs rabbitmq-server: run `make setup`"
        pytest.skip("rabbitmq-server is not installed")
    server = RabbitMQ(tmp_path_factory.mktemp("rabbitmq"))
    yield server
    server.stop()


OUTER = [pytest.param(name, marks=pytest.mark.outer) for name in ("postgres", "rabbitmq")]


@pytest.fixture(params=["file", "ackflow", *OUTER])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "file":
        yield str(tmp_path / "queues.db")
    elif request.param == "postgres":
        yield str(request.getfixturevalue("postgres_url"))
    elif request.param == "rabbitmq":
        port = request.getfixturevalue("rabbitmq").port
        yield f"amqp://guest:guest@127.0.0.1:{port}/"
    else:
        with ackflow.connect(tmp_path / "served.db") as session:
            running = Amqp(session)
            yield f"amqp://guest:guest@127.0.0.1:{running.port}/"
            running.stop()


class Consumer:
    """A consumer in a thread, which is stopped at the end of the block."""

    def __init__(self, queue: MessageMiddlewareQueue, callback: Callable[..., Any]) -> None:
        self._queue = queue
        self._thread = threading.Thread(target=queue.start_consuming, args=(callback,))

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._queue.stop_consuming()
        self._thread.join(60)
        assert not self._thread.is_alive()


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not come true"
        time.sleep(0.01)


def test_true_and_none_acknowledge_and_a_callback_may_take_only_a_body(
    address: str,
) -> None:
    seen: list[bytes] = []
    with MessageMiddlewareQueue(address, "simple") as queue:
        for n in range(5):
            queue.send(b"%d" % n)
        with Consumer(queue, lambda body: seen.append(body)):
            until(lambda: len(seen) == 5)
        again: list[bytes] = []
        with Consumer(queue, lambda body, redelivered: again.append(body) or True):
            time.sleep(0.3)
        queue.delete()
    assert (seen, again) == ([b"%d" % n for n in range(5)], [])


def test_false_delays_the_ack_which_any_thread_may_send(address: str) -> None:
    held: list[tuple[Channel, int]] = []
    flags: list[bool] = []

    def hold(body: bytes, channel: Channel, delivery_tag: int, redelivered: bool) -> bool:
        held.append((channel, delivery_tag))
        flags.append(redelivered)
        return False

    with MessageMiddlewareQueue(address, "delayed", prefetch=2) as queue:
        for n in range(6):  # more than the prefetch: what is held does not fill the window
            queue.send(b"%d" % n)
        with Consumer(queue, hold):
            until(lambda: len(held) == 6)
            assert queue.held == 6
            for channel, tag in held[:4]:
                channel.basic_ack(tag)
            until(lambda: queue.held == 2)
            time.sleep(0.3)
        with Consumer(queue, hold):
            until(lambda: len(held) == 8)
            for channel, tag in held[6:]:
                channel.basic_ack(tag)
            time.sleep(0.3)
        queue.delete()
    assert flags == [False] * 6 + [True] * 2


def test_an_exception_requeues_and_a_poison_message_goes_to_the_dead_letters(address: str) -> None:
    calls: dict[bytes, int] = {}

    def fail(body: bytes) -> None:
        calls[body] = calls.get(body, 0) + 1
        if body == b"poison":
            raise TypeError("inside")

    with MessageMiddlewareQueue(address, "failing", limit=3) as queue:
        queue.send(b"poison")
        queue.send(b"good")
        with Consumer(queue, fail):
            until(lambda: calls == {b"poison": 3, b"good": 1})
            time.sleep(0.3)
        assert calls == {b"poison": 3, b"good": 1}
        dead: list[bytes] = []
        with (
            MessageMiddlewareQueue(address, "failing.dead") as letters,
            Consumer(letters, lambda body: dead.append(body)),
        ):
            until(lambda: dead == [b"poison"])
        queue.delete()


def test_an_exchange_routes_by_pattern(address: str) -> None:
    seen: list[bytes] = []
    with (
        MessageMiddlewareExchange(address, "logs") as sender,
        MessageMiddlewareExchange(address, "logs", queue="errors", keys=["*.error"]) as receiver,
    ):
        sender.send(b"1", "app.info")
        sender.send(b"2", "app.error")
        with Consumer(receiver, lambda body: seen.append(body)):
            until(lambda: seen)
        receiver.delete()
        with pytest.raises(InvalidArgument):
            sender.start_consuming(print)
    assert seen == [b"2"]


def test_a_deleted_queue_refuses_messages(address: str) -> None:
    with MessageMiddlewareQueue(address, "gone") as queue:
        queue.delete()
        with pytest.raises(NotFound):
            queue.send(b"lost")


WORKER = """
import sys
from ackflow.middleware import MessageMiddlewareQueue

def hold(body, channel, delivery_tag, redelivered):
    print(body.decode(), "REDELIVERED" if redelivered else "first", flush=True)
    return False

MessageMiddlewareQueue(sys.argv[1], "killed").start_consuming(hold)
"""


@pytest.mark.outer
def test_what_a_killed_process_held_comes_back_flagged_within_ten_seconds(address: str) -> None:
    with MessageMiddlewareQueue(address, "killed") as queue:
        for n in range(3):
            queue.send(b"%d" % n)
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, address], stdout=subprocess.PIPE, cwd=ROOT
        )
        assert worker.stdout is not None
        first = [worker.stdout.readline().split()[1] for _ in range(3)]
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
        worker.stdout.close()
        began, flags = time.monotonic(), []
        with Consumer(queue, lambda body, redelivered: flags.append(redelivered)):
            until(lambda: len(flags) == 3)
        assert time.monotonic() - began < 10
        queue.delete()
    assert (first, flags) == ([b"first"] * 3, [True] * 3)


def test_it_connects_again_and_the_messages_come_again(tmp_path: Path) -> None:
    held: list[tuple[bytes, Channel, int, bool]] = []

    def hold(body: bytes, channel: Channel, delivery_tag: int, redelivered: bool) -> bool:
        held.append((body, channel, delivery_tag, redelivered))
        return False

    with ackflow.connect(tmp_path / "q.db") as session:
        running = Amqp(session)
        address = f"amqp://guest:guest@127.0.0.1:{running.port}/"
        with MessageMiddlewareQueue(address, "q") as queue:
            queue.send(b"m")
            with Consumer(queue, hold):
                until(lambda: len(held) == 1)

                async def cut() -> None:
                    for connection in list(running.server.connections):
                        connection.abort()

                running.call(cut())
                until(lambda: len(held) == 2)
                (_, old, old_tag, _), (_, new, tag, redelivered) = held
                assert (old.is_open, new.is_open, redelivered) == (False, True, True)
                old.basic_ack(old_tag)  # has no effect
                queue.send(b"after")
                until(lambda: len(held) == 3)
                assert queue.held == 2
                new.basic_ack(tag)
                until(lambda: session.group_stats("q").counts.done == 1)
        running.stop()


def test_a_queue_that_somebody_deletes_is_declared_and_consumed_again(address: str) -> None:
    seen: list[bytes] = []

    def fail_once(body: bytes) -> None:
        seen.append(body)
        if body == b"poison":
            raise ValueError("poison")

    with (
        MessageMiddlewareExchange(address, "x", queue="lost", keys=["k"], limit=2) as queue,
        MessageMiddlewareQueue(address, "lost", limit=2) as other,
    ):
        with Consumer(queue, fail_once):
            queue.send(b"before", "k")
            until(lambda: seen == [b"before"])
            other.delete()
            until(lambda: sent(queue, b"after"))
            until(lambda: seen[1:2] == [b"after"])
            queue.send(b"poison", "k")  # it has its arguments again
            until(lambda: seen.count(b"poison") == 2)
            time.sleep(0.2)
        assert seen.count(b"poison") == 2
        queue.delete()


def sent(exchange: MessageMiddlewareExchange, body: bytes) -> bool:
    with contextlib.suppress(NotFound):
        exchange.send(body, "k", mandatory=True)
        return True
    return False


def test_a_message_for_no_queue_is_refused_if_it_is_mandatory(address: str) -> None:
    with MessageMiddlewareExchange(address, "nobody") as exchange:
        exchange.send(b"dropped", "k")
        with pytest.raises(NotFound):
            exchange.send(b"kept", "k", mandatory=True)


def test_a_callback_may_close_its_queue(address: str) -> None:
    seen: list[bytes] = []
    queue = MessageMiddlewareQueue(address, "closing")

    def close(body: bytes) -> None:
        seen.append(body)
        queue.close()

    for body in (b"1", b"2"):
        queue.send(body)
    began = time.monotonic()
    queue.start_consuming(close)
    assert time.monotonic() - began < 30
    with MessageMiddlewareQueue(address, "closing") as again:
        with Consumer(again, lambda body: seen.append(body)):
            until(lambda: len(seen) == 2)
        again.delete()
    assert seen == [b"1", b"2"]  # the first one is acknowledged


def test_a_forward_that_fails_brings_its_end_again_and_settles_nothing_twice(address: str) -> None:
    tries: list[str] = []

    def forward(key: str) -> None:
        tries.append(key)
        if len(tries) < 3:
            raise OSError("away")

    ends = EofGate[str](lambda _, sources: len(sources) == 2, forward)

    def hold(body: bytes, channel: Channel, delivery_tag: int) -> bool:
        ends.hold("t", body, channel, delivery_tag)
        return False

    with MessageMiddlewareQueue(address, "ends") as queue:
        channels: set[object] = set()
        with Consumer(queue, hold):
            for body in (b"w1", b"w2"):
                queue.send(body)
            until(lambda: len(tries) == 3 and queue.held == 0)
            channels.add(getattr(queue._transport, "_channel", None))
            time.sleep(0.3)
            channels.add(getattr(queue._transport, "_channel", None))
        assert len(channels) == 1  # the broker had no reason to close it
        again: list[bytes] = []
        with Consumer(queue, again.append):
            time.sleep(0.3)
        queue.delete()
    assert (tries, ends.held, again) == (["t"] * 3, {}, [])


def test_the_ends_of_a_key_are_acknowledged_in_one_transaction(tmp_path: Path) -> None:
    seen: list[int] = []
    with MessageMiddlewareQueue(str(tmp_path / "q.db"), "ends") as queue:
        writer = queue._transport._broker.writer  # type: ignore[attr-defined]
        ends = EofGate[str](lambda _, sources: len(sources) == 5, lambda _: seen.append(commits()))

        def commits() -> int:
            return int(writer.commits)

        def hold(body: bytes, channel: Channel, delivery_tag: int) -> bool:
            if ends.hold("t", body, channel, delivery_tag):
                seen.append(commits())
            return False

        for n in range(5):
            queue.send(b"%d" % n)
        with Consumer(queue, hold):
            until(lambda: len(seen) == 2 and queue.held == 0)
    before, after = seen
    assert after - before <= 2  # one more than that of the ends: leases are extended at any time


def test_a_wrong_password_is_refused_at_once(tmp_path: Path) -> None:
    with ackflow.connect(tmp_path / "q.db") as session:
        session.broker.do(access_tokens.create, True, "c", [access_tokens.grant("admin")], None)
        running = Amqp(session)
        with pytest.raises(Unauthenticated):
            MessageMiddlewareQueue(f"amqp://c:wrong@127.0.0.1:{running.port}/", "q")
        running.stop()


def test_one_of_two_threads_settles_and_what_it_settles_is_not_held(tmp_path: Path) -> None:
    """Also if one acknowledges while the consumer counts the message as held."""
    settled: list[int] = []
    with MessageMiddlewareQueue(str(tmp_path / "q.db"), "q") as queue:

        class Late(set[Any]):
            """The held messages; another thread is faster than the one that adds."""

            def add(self, one: Any) -> None:
                (channel, tag) = acks.pop()
                channel.basic_ack(tag)
                channel.basic_ack(tag)
                settled.append(tag)
                super().add(one)

        acks: list[tuple[Channel, int]] = []

        def hold(body: bytes, channel: Channel, delivery_tag: int) -> bool:
            acks.append((channel, delivery_tag))
            return False

        queue._held = Late()
        queue.send(b"x")
        with Consumer(queue, hold):
            until(lambda: settled and not queue.held, 5)


# the rule of delayed acknowledgements


class Acks:
    """A channel that records what is acknowledged."""

    def __init__(self) -> None:
        self.is_open = True
        self.acked: list[int] = []

    def basic_ack(self, delivery_tag: int) -> None:
        self.acked.append(delivery_tag)

    def basic_nack(self, delivery_tag: int, requeue: bool = True) -> None:
        raise AssertionError


def gate(forwarded: list[str], workers: int = 2, **options: Any) -> EofGate[str]:
    return EofGate(lambda _, sources: len(sources) >= workers, forwarded.append, **options)


def test_ends_are_acknowledged_when_every_source_is_there() -> None:
    forwarded: list[str] = []
    ends, channel = gate(forwarded), Acks()
    assert not ends.hold("menu", "w1", channel, 1)
    assert not ends.hold("menu", "w1", channel, 2)  # the same source again
    assert ends.held == {"menu": 2}
    assert ends.hold("menu", "w2", channel, 3)
    assert (forwarded, channel.acked, ends.held) == (["menu"], [1, 2, 3], {})


def test_an_end_waits_for_what_is_pending() -> None:
    forwarded: list[str] = []
    ends, channel = gate(forwarded, 1), Acks()
    ends.begin("t", "batch 1")
    assert not ends.hold("t", "w1", channel, 1)
    assert ends.end("t", "batch 1")
    assert forwarded == ["t"]


def test_ends_of_a_lost_connection_do_not_count() -> None:
    forwarded: list[str] = []
    ends, old, new = gate(forwarded), Acks(), Acks()
    ends.hold("t", "w1", old, 1)
    old.is_open = False
    assert not ends.hold("t", "w2", new, 1)
    assert ends.hold("t", "w1", new, 2)
    assert (old.acked, new.acked) == ([], [1, 2])


def test_ends_of_a_lost_connection_raise_no_alarm() -> None:
    alarms: list[str] = []
    ends = gate([], stuck_seconds=300, on_stuck=lambda key, _: alarms.append(key))
    channel = Acks()
    ends.hold("t", "w1", channel, 1)
    channel.is_open = False
    assert "ackflow_eof_held 0" in ends.metrics()
    ends.hold("t", "w1", channel, 1)
    assert ends.held == {}
    ends.hold("kept", "w1", Acks(), 1)
    ends._stuck_seconds = 0.0
    assert ends.stuck() == ["kept"]
    ends._report()
    assert alarms == ["kept"]


def test_an_alarm_that_fails_does_not_keep_the_others_silent() -> None:
    alarms: list[str] = []

    def on_stuck(key: str, _: int) -> None:
        alarms.append(key)
        raise OSError(key)

    ends = gate([], stuck_seconds=300, on_stuck=on_stuck)
    for key in ("a", "b"):
        ends.hold(key, "w1", Acks(), 1)
    ends._stuck_seconds = 0.0
    ends._report()
    assert alarms == ["a", "b"]


def test_an_ack_that_fails_on_one_channel_is_made_on_the_others() -> None:
    class Together(Acks):
        def __init__(self, fails: bool = False) -> None:
            super().__init__()
            self.fails = fails

        def ack_all(self, delivery_tags: list[int]) -> None:
            if self.fails:
                raise OSError("away")
            self.acked += delivery_tags

    channels = Together(), Together(fails=True), Together()
    with pytest.raises(OSError, match="away"):
        ack_together([(channel, 1) for channel in channels])
    assert [channel.acked for channel in channels] == [[1], [], [1]]


def test_nothing_is_acknowledged_if_forwarding_fails() -> None:
    tries: list[str] = []

    def forward(key: str) -> None:
        tries.append(key)
        if len(tries) == 1:
            raise OSError("away")

    ends, channel = EofGate[str](lambda _, sources: True, forward), Acks()
    with pytest.raises(OSError, match="away"):
        ends.hold("t", "w", channel, 1)
    assert (channel.acked, ends.held) == ([], {"t": 1})
    assert ends.check("t")
    assert channel.acked == [1]


def test_a_stuck_key_is_named_and_repeats_are_recognised() -> None:
    ends = gate([], stuck_seconds=0.0)
    ends.hold("t", "w1", Acks(), 1)
    assert ends.stuck() == ["t"]
    repeats = Repeats(most=2)
    assert [repeats.seen(one) for one in (1, 1, 2, 3, 1)] == [False, True, False, False, False]


def test_an_alarm_names_each_stuck_key_once() -> None:
    alarms: list[tuple[str, int]] = []
    rang = threading.Event()

    def on_stuck(key: str, held: int) -> None:
        alarms.append((key, held))
        rang.set()

    ends, channel = gate([], stuck_seconds=0.05, on_stuck=on_stuck), Acks()
    ends.hold("a", "w1", channel, 1)
    assert rang.wait(30)
    assert alarms == [("a", 1)]
    rang.clear()
    ends.hold("b", "w1", channel, 2)
    assert rang.wait(30)
    assert alarms == [("a", 1), ("b", 1)]
    assert "ackflow_eof_stuck 2" in ends.metrics()
    ends.hold("a", "w2", channel, 3)
    ends.hold("b", "w2", channel, 4)
    assert "ackflow_eof_held 0" in ends.metrics()
    assert "ackflow_eof_forwarded_total 2" in ends.metrics()


def test_a_gate_forgets_the_keys_that_are_over() -> None:
    ends, channel = gate([], 1), Acks()
    for key in ("a", "b"):
        ends.begin(key, 1)
        ends.end(key, 1)
        ends.check(key)
        ends.hold(key, "w", channel, 1)
        ends.begin(key, "late")
        ends.end(key, "late")
    assert (ends._held, ends._pending, ends._reported) == ({}, {}, set())


def test_the_blocks_of_the_page_print_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks(ROOT / "docs" / "middleware.md"):
        assert run_python(block.code, {}, block.place) == block.output
