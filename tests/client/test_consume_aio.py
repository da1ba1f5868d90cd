"""The consume loop for asyncio: the same rules, and handlers that are cancelled."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ackflow import VirtualClock, aio
from ackflow.aio import Message
from ackflow.broker.requests import PopRequest
from ackflow.errors import InvalidArgument, SessionClosed, Unavailable
from ackflow.session import consumer_aio
from ackflow.session.consumer import ConsumerCounts

from .waiting import until, until_awaited

Test = Callable[[aio.Session], Coroutine[Any, Any, None]]
Run = Callable[[Test], None]
NOW: dict[str, Any] = {"wait": 0}


@pytest.fixture
def run(run: Run) -> Run:
    """Run a test with an awaitable session, and the group that the tests consume as."""

    def with_group(test: Test) -> None:
        async def main(q: aio.Session) -> None:
            await q.group("orders", "g")
            await test(q)

        run(main)

    return with_group


async def counts(q: aio.Session) -> Any:
    return (await q.group_stats("orders", "g")).counts


def test_a_handler_is_awaited_for_every_message(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        await q.push("orders", [1, 2, 3])
        seen: list[int] = []

        async def handle(message: Message) -> None:
            await asyncio.sleep(0)
            seen.append(message.data)
            await message.ack()

        async with q.consume("orders", handle, group="g", **NOW) as consumer:
            await until_awaited(lambda: consumer.counts.succeeded == 3)
        assert seen == [1, 2, 3]
        assert consumer.counts == ConsumerCounts(received=3, succeeded=3)
        assert (await counts(q)).done == 3

    run(test)


def test_awaiting_a_consumer_waits_until_it_is_stopped(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        await q.push("orders", [1, 2])
        running: list[consumer_aio.Consumer] = []

        async def handle(messages: list[Message]) -> None:
            await q.ack(messages)
            running[0].stop()

        running.append(q.consume("orders", handle, group="g", batch=2, **NOW))
        assert (await running[0]).succeeded == 2

    run(test)


def test_a_plain_function_may_be_a_handler(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        await q.push("orders", 1)
        seen: list[Message] = []
        async with q.consume("orders", seen.append, group="g", auto_ack=True, **NOW):
            await until_awaited(lambda: len(seen) == 1)

    run(test)


def test_with_auto_ack_handled_messages_are_acked_with_the_next_pop(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        await q.push("orders", [1, 2, 3])
        before: list[int] = []

        async def handle(message: Message) -> None:
            before.append((await q.group_stats("orders", "g")).counts.done)
            if message.data == 3:
                consumer.stop()

        consumer = q.consume("orders", handle, group="g", auto_ack="handled", **NOW)
        assert (await consumer).succeeded == 3
        now = (await q.group_stats("orders", "g")).counts
        assert (before, now.done, now.leased) == ([0, 1, 2], 3, 0)

    run(test)


def test_tasks_handle_at_once(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        await q.push("orders", [1, 2, 3])
        together = asyncio.Barrier(3)

        async def handle(message: Message) -> None:
            await together.wait()
            await message.ack()

        async with q.consume("orders", handle, group="g", concurrency=3, **NOW) as consumer:
            await until_awaited(lambda: consumer.counts.succeeded == 3)

    run(test)


def test_an_error_is_nacked_with_its_text_until_the_message_is_dead(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        await q.push("orders", 1)

        async def handle(_: Message) -> None:
            raise ValueError("no such order")

        async with q.consume("orders", handle, group="g", **NOW) as consumer:
            await until_awaited(lambda: consumer.counts.failed == 3)
        (letter,) = (await q.dead_letters("orders")).items
        assert letter.reason == "ValueError: no such order"

    run(test)


def test_callbacks_may_follow_the_call(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        await q.push("orders", [1, 2])
        bad: list[tuple[int, str]] = []

        async def handle(message: Message) -> None:
            if message.data == 2:
                raise ValueError("two")

        async def note(message: Message, error: Exception) -> None:
            bad.append((message.data, str(error)))

        consumer = (
            q.consume("orders", handle, group="g", **NOW)
            .on_success(lambda message: message.ack())
            .on_error(note)
        )
        async with consumer:
            await until_awaited(lambda: len(bad) == 1)
        found = await counts(q)
        assert (bad, found.done, found.leased) == ([(2, "two")], 1, 1)

    run(test)


def test_a_stop_returns_what_was_not_started_uncounted(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        await q.push("orders", [1, 2, 3])
        begun, go = asyncio.Event(), asyncio.Event()

        async def handle(message: Message) -> None:
            begun.set()
            await go.wait()
            await message.ack()

        async with q.consume("orders", handle, group="g", batch=3, each=True, **NOW) as consumer:
            await begun.wait()
            consumer.stop()
            go.set()
        assert consumer.counts == ConsumerCounts(received=3, succeeded=1, returned=2)
        again = await q.pop("orders", group="g", batch=9)
        assert [(m.data, m.deliveries) for m in again] == [(2, 1), (3, 1)]

    run(test)


def test_cancelling_the_waiting_task_stops_gracefully(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        await q.push("orders", [1, 2])
        begun, go = asyncio.Event(), asyncio.Event()

        async def handle(message: Message) -> None:
            begun.set()
            await go.wait()
            await message.ack()

        consumer = q.consume("orders", handle, group="g", batch=2, each=True, **NOW)
        waiting = asyncio.ensure_future(consumer.join())
        await begun.wait()
        waiting.cancel()
        await asyncio.sleep(0.01)
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert consumer.counts == ConsumerCounts(received=2, succeeded=1, returned=1)

    run(test)


def test_closing_the_session_stops_its_loops_first(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        await q.push("orders", [1, 2])
        begun = asyncio.Event()

        async def handle(message: Message) -> None:
            begun.set()
            await asyncio.sleep(0.01)
            await message.ack()

        consumer = q.consume("orders", handle, group="g", batch=2, each=True, **NOW)
        await begun.wait()
        await q.close()
        assert consumer.counts == ConsumerCounts(received=2, succeeded=1, returned=1)
        with pytest.raises(SessionClosed):
            await q.pop("orders")

    run(test)


def test_an_event_stops_a_pop_that_waits(tmp_path: Path) -> None:
    async def test() -> None:
        async with await aio.connect(tmp_path / "real.db") as q:
            stop = asyncio.Event()
            consumer = q.consume("orders", print, wait=30, stop=stop)
            await asyncio.sleep(0.05)
            began = time.monotonic()
            stop.set()
            await consumer
            assert time.monotonic() - began < 5

    asyncio.run(test())


def test_what_ends_the_loop_is_raised(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(q: aio.Session) -> None:
        async def take(request: PopRequest, wait: float) -> Any:
            raise InvalidArgument("nothing of the kind")

        monkeypatch.setattr(q, "take", take)
        with pytest.raises(InvalidArgument, match="nothing of the kind"):
            await q.consume("orders", print, concurrency=2, **NOW)

    run(test)


def test_a_lease_is_renewed_while_the_handler_blocks_the_loop(
    run: Run, clock: VirtualClock
) -> None:
    async def test(q: aio.Session) -> None:
        await q.push("orders", 1)

        def blocking() -> None:
            for _ in range(3):
                clock.advance(150)
                deadline = time.monotonic() + 20
                while renewed[-1] != clock.now():
                    assert time.monotonic() < deadline
                    time.sleep(0.001)

        renewed: list[int] = [0]
        lifelines: list[Any] = []

        async def handle(message: Message) -> None:
            extend = lifelines[0]._renewal._extend

            def noted(token: int) -> None:
                now = clock.now()
                extend(token)
                renewed.append(now)

            lifelines[0]._renewal._extend = noted
            blocking()
            await message.ack()

        consumer = q.consume("orders", handle, group="g", **NOW)
        lifelines.append(consumer._lease_keeper)
        async with consumer:
            await until_awaited(lambda: consumer.counts.received == 1)
            await until_awaited(lambda: consumer.counts.succeeded == 1)
        assert len(renewed) == 4
        assert (await counts(q)).done == 1

    run(test)


def test_a_lost_lease_cancels_its_handler(run: Run, clock: VirtualClock) -> None:
    async def test(q: aio.Session) -> None:
        await q.push("orders", [1, 2])
        begun = asyncio.Event()
        cancelled: list[bool] = []

        async def handle(message: Message) -> None:
            begun.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(message.lost)
                raise

        async with q.consume("orders", handle, group="g", batch=2, each=True, **NOW) as consumer:
            await begun.wait()
            await q.seek("orders", "g", to="end")
            clock.advance(150)
            await until_awaited(lambda: consumer.counts.lost == 2)
            # The loop lives on.
            begun.clear()
            await q.push("orders", 3)
            await begun.wait()
            await q.seek("orders", "g", to="end")
            clock.advance(150)
            await until_awaited(lambda: consumer.counts.lost == 3)
        assert cancelled == [True, True]

    run(test)


def test_a_server_that_goes_away_is_waited_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackflow.session.consumer.PAUSES", (0.0,))

    async def test(q: aio.Session) -> None:
        await q.push("orders", 1)
        take, asked = q.take, list[PopRequest]()

        async def flaky(request: PopRequest, wait: float) -> Any:
            asked.append(request)
            if len(asked) < 4:
                if len(asked) == 2:
                    await take(request, wait)  # it was done, and the answer was lost
                raise Unavailable()
            return await take(request, wait)

        monkeypatch.setattr(q, "take", flaky)
        async with q.consume("orders", q.ack, group="g", **NOW) as consumer:
            await until_awaited(lambda: consumer.counts.succeeded == 1)
        assert len({request.token for request in asked[:4]}) == 1

    run(test)


# handlers that forget, hang or end the loop


def test_a_handler_that_returns_without_settling_is_warned_of_once_and_counted(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(q: aio.Session) -> None:
        await q.push("orders", [1, 2])

        async def handle(_: Message) -> None:
            pass

        async with q.consume("orders", handle, group="g", **NOW) as consumer:
            await until_awaited(lambda: consumer.counts.unsettled == 2)
        assert (await counts(q)).leased == 2

    run(test)
    assert caplog.text.count("did not settle") == 1


def test_a_handler_that_hangs_is_cancelled_after_the_timeout_and_its_message_nacked(
    run: Run, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(q: aio.Session) -> None:
        await q.push("orders", [1, 2])
        begun = asyncio.Event()

        async def handle(message: Message) -> None:
            if message.deliveries > 1 or message.data == 2:
                await message.ack()
                return
            begun.set()
            await asyncio.Event().wait()

        options: dict[str, Any] = {"batch": 2, "each": True, "timeout": timedelta(seconds=30)}
        async with q.consume("orders", handle, group="g", **options, **NOW) as consumer:
            await begun.wait()
            clock.advance(30)
            await until_awaited(lambda: consumer.counts.succeeded == 2)
        assert consumer.counts == ConsumerCounts(received=4, succeeded=2, returned=1, timed_out=1)
        assert (await counts(q)).done == 2

    run(test)
    assert "did not end within 30 s" in caplog.text


def test_a_handler_that_blocks_the_loop_for_too_long_is_not_renewed_and_its_message_comes_again(
    run: Run, clock: VirtualClock
) -> None:
    async def test(q: aio.Session) -> None:
        await q.push("orders", 1)

        def handle(message: Message) -> None:
            if message.deliveries == 1:
                clock.advance(30)
                until(lambda: message.lost)

        async with q.consume("orders", handle, group="g", timeout=30, auto_ack=False,
                             on_success=lambda message: message.ack(),
                             on_error=lambda message, error: message.nack(str(error)),
                             **NOW) as consumer:  # fmt: skip
            await until_awaited(lambda: consumer.counts.succeeded == 1)
        assert (consumer.counts.timed_out, (await counts(q)).done) == (1, 1)

    run(test)


def test_a_loop_that_an_exit_ends_says_so_and_nacks_its_message(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(q: aio.Session) -> None:
        await q.push("orders", 1)

        async def handle(_: Message) -> None:
            raise SystemExit(3)

        consumer = q.consume("orders", handle, group="g", concurrency=2, **NOW)
        assert consumer.running
        await until_awaited(lambda: not consumer.running)
        (message,) = await q.pop("orders", group="g")
        assert message.failures == 1
        with pytest.raises(SystemExit):
            await consumer
        assert "ended" in repr(consumer)

    run(test)
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR and r.name == "ackflow"]
    assert record.getMessage() == "the consume loop of orders has ended: SystemExit: 3"


def test_what_was_handled_before_an_exit_ended_the_loop_is_acked(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        await q.push("orders", [1, 2, 3])

        async def handle(message: Message) -> None:
            if message.data == 3:
                raise SystemExit(3)

        consumer = q.consume(
            "orders", handle, group="g", batch=3, each=True, auto_ack="handled", **NOW
        )
        with pytest.raises(SystemExit):
            await consumer
        now = await counts(q)
        assert (now.done, now.leased) == (2, 0)

    run(test)


def test_a_handler_may_close_its_own_loop(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        await q.push("orders", [1, 2])

        async def handle(message: Message) -> None:
            await message.ack()
            await consumer.close()

        consumer = q.consume("orders", handle, group="g", batch=2, each=True, **NOW)
        async with asyncio.timeout(10):
            assert (await consumer).succeeded == 1

    run(test)


def test_a_loop_cancelled_while_it_stops_cancels_its_handlers_and_returns_their_messages(
    run: Run,
) -> None:
    async def test(q: aio.Session) -> None:
        await q.push("orders", [1, 2, 3])
        begun = asyncio.Event()

        async def handle(_: Message) -> None:
            begun.set()
            await asyncio.Event().wait()

        consumer = q.consume("orders", handle, group="g", batch=3, each=True, **NOW)
        waiting = asyncio.ensure_future(consumer.join())
        await begun.wait()
        for _ in range(2):
            waiting.cancel()
            await asyncio.sleep(0.01)
        async with asyncio.timeout(10):
            await asyncio.wait([waiting])
        assert waiting.cancelled()
        assert not consumer.running
        found = await counts(q)
        assert (found.ready, found.leased) == (3, 0)

    run(test)
