"""The fluent style: options are chained, and the last call acts."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from ackflow import Item, Message, Session, VirtualClock, aio
from ackflow.errors import InvalidArgument, TransactionFailed, UnknownOption
from ackflow.session.fluent import QueueBuilder

from .conftest import Run
from .waiting import until, until_awaited


def data(messages: Any) -> list[Any]:
    return [message.data for message in messages]


# choosing


def test_a_choice_changes_nothing_of_what_it_was_made_from(q: Session) -> None:
    q.push("orders", [1, 2, 3])
    orders = q.queue("orders").group("workers")
    many = orders.batch(2)
    assert data(orders.pop()) == [1]
    assert data(many.pop()) == [2, 3]


def test_the_last_choice_of_a_kind_counts(q: Session) -> None:
    q.push("orders", [1, 2, 3])
    assert data(q.queue("orders").batch(1).batch(3).pop()) == [1, 2, 3]


def test_every_choice_is_an_option_of_the_session() -> None:
    def call(*_: Any) -> None: ...

    chosen = (
        QueueBuilder(None, "orders").group("g").partition("p").priority(2).delay(3).batch(4).each()
        .auto_ack().lease(5).concurrency(6).wait(7).on_success(call).on_error(call)
    )  # fmt: skip
    assert chosen._chosen == {
        "group": "g", "partition": "p", "priority": 2, "delay": 3, "batch": 4, "each": True,
        "auto_ack": True, "lease_seconds": 5, "concurrency": 6, "wait": 7, "on_success": call,
        "on_error": call,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "renew"),
    [((), True), ((True,), True), ((True, 2.0), 2.0), ((False,), False), ((False, 2.0), False)],
)
def test_leases_are_renewed_at_half_time_or_every_so_many_seconds_or_not(
    given: tuple[Any, ...], renew: bool | float
) -> None:
    assert QueueBuilder(None, "orders").renew_lease(*given)._chosen == {"renew": renew}


# producing and popping


def test_a_push_goes_where_it_was_chosen_to_go(q: Session, clock: VirtualClock) -> None:
    receipt = q.queue("orders").partition("eu").priority(3).delay(60).push([1, 2])
    assert len(receipt) == 2
    assert not q.pop("orders", batch=2)
    clock.advance(60)
    batch = q.pop("orders", batch=2)
    assert [(m.data, m.partition, m.priority) for m in batch] == [(1, "eu", 3), (2, "eu", 3)]


def test_a_push_takes_items_and_a_key(q: Session) -> None:
    orders = q.queue("orders")
    first = orders.push(Item(data=1, transaction_id="t"), key="once")
    assert list(orders.push(Item(data=1, transaction_id="t"), key="once")) == list(first)
    (message,) = orders.batch(10).pop()
    assert message.transaction_id == "t"


def test_a_pop_asks_for_what_was_chosen(q: Session) -> None:
    q.queue("orders").partition("eu").push([1, 2])
    q.queue("orders").partition("us").push(3)
    batch = q.queue("orders").group("g").partition("eu").batch(10).lease(7).pop()
    assert data(batch) == [1, 2]
    (lease,) = q.leases("orders", "g")
    assert (lease.expires_at - lease.acquired_at).total_seconds() == 7


def test_without_a_group_everybody_shares_the_queue(q: Session) -> None:
    q.push("orders", [1, 2])
    assert data(q.queue("orders").pop()) == [1]
    assert data(q.pop("orders")) == [2]


def test_an_automatic_ack_hands_out_as_done(q: Session) -> None:
    q.push("orders", 1)
    (message,) = q.queue("orders").group("g").auto_ack().pop()
    assert message.token is None
    assert q.group_stats("orders", "g").counts.done == 1


def test_what_does_not_fit_the_last_word_is_left_out(q: Session) -> None:
    q.queue("orders").group("g").batch(5).concurrency(2).push(1)
    assert data(q.queue("orders").priority(9).delay(60).each().pop()) == [1]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda q: q.queue("").push(1),
        lambda q: q.queue("orders").batch(0).pop(),
        lambda q: q.queue("orders").priority(2**31).push(1),
        lambda q: q.queue("orders").concurrency(0).consume(print),
        lambda q: q.queue("orders").renew_lease(True, 0).consume(print),
        lambda q: q.queue("orders").consume("print"),
        lambda q: q.queue("orders").auto_ack().on_success(print).consume(print),
    ],
)
def test_a_wrong_choice_is_refused_by_the_last_word(
    q: Session, wrong: Callable[[Session], Any]
) -> None:
    with pytest.raises(InvalidArgument):
        wrong(q)


# queues


def test_a_queue_is_made_with_the_options_given_to_config(q: Session) -> None:
    made = q.queue("orders").config(retry_limit=2).config(max_wait_seconds=3600).create()
    assert (made.retry_limit, made.max_wait_seconds) == (2, 3600)
    assert q.queue_stats("orders").options == made


def test_a_queue_may_be_made_without_options(q: Session) -> None:
    q.queue("orders").create()
    assert [queue.name for queue in q.queues()] == ["orders"]


def test_an_unknown_option_is_named(q: Session) -> None:
    with pytest.raises(UnknownOption, match="retryLimit"):
        q.queue("orders").config(retryLimit=2).create()


# consuming


def test_a_chain_ends_in_a_consume_loop(q: Session) -> None:
    q.push("orders", [1, 2, 3])
    seen: list[Any] = []

    def handle(messages: list[Message]) -> None:
        seen.append(data(messages))
        q.ack(messages)

    with q.queue("orders").group("g").batch(100).wait(0).consume(handle) as consumer:
        until(lambda: consumer.counts.succeeded == 3)
    assert seen == [[1, 2, 3]]


def test_each_and_callbacks_are_called(q: Session) -> None:
    q.push("orders", [1, 2])
    failed: list[str] = []

    def handle(message: Message) -> None:
        if message.data == 2:
            raise ValueError("two")

    def on_error(message: Message, error: Exception) -> None:
        failed.append(str(error))
        message.reject(str(error))

    chain = q.queue("orders").group("g").batch(2).each().on_success(q.ack).on_error(on_error)
    with chain.wait(0).consume(handle):
        until(lambda: failed)
    counts = q.group_stats("orders", "g").counts
    assert (counts.done, counts.dead, failed) == (1, 1, ["two"])


def test_workers_of_a_chain_work_at_once(q: Session) -> None:
    q.push("orders", [1, 2, 3])
    together = threading.Barrier(3)

    def handle(message: Message) -> None:
        together.wait(20)
        message.ack()

    with q.queue("orders").concurrency(3).wait(0).consume(handle) as consumer:
        until(lambda: consumer.counts.succeeded == 3)


def test_an_event_from_outside_ends_the_loop_of_a_chain(q: Session) -> None:
    stop = threading.Event()
    consumer = q.queue("orders").wait(0).consume(print, stop=stop)
    stop.set()
    assert consumer.join(20).received == 0
    assert not consumer.running


# transactions


def test_a_chained_transaction_acks_and_pushes_together(q: Session) -> None:
    q.push("orders", {"id": 1})
    (message,) = q.pop("orders", group="g")
    done = q.transaction().ack(message).queue("next").partition("p").push([{"step": 2}]).commit()
    (pushed,) = q.pop("next")
    assert (pushed.data, pushed.partition) == ({"step": 2}, "p")
    assert done.settled == 1
    assert list(done.receipts[0]) == [pushed.id]
    assert q.group_stats("orders", "g").counts.done == 1


def test_a_chained_transaction_does_nothing_when_one_part_is_refused(
    q: Session, clock: VirtualClock
) -> None:
    q.push("orders", 1)
    (message,) = q.pop("orders", lease_seconds=10)
    clock.advance(11)
    with pytest.raises(TransactionFailed):
        q.transaction().ack(message).queue("next").partition("p").push([1]).commit()
    assert "next" not in [queue.name for queue in q.queues()]
    assert data(q.pop("orders")) == [1]


def test_a_chained_transaction_goes_on_to_other_queues(q: Session, clock: VirtualClock) -> None:
    q.push("orders", 1)
    (
        q.transaction()
        .queue("a").priority(2).push(1)
        .queue("b").delay(60).push([2, 3])
        .ack(q.pop("orders"))
        .put("last", 1)
        .commit()
    )  # fmt: skip
    assert [(m.data, m.priority) for m in q.pop("a")] == [(1, 2)]
    assert not q.pop("b")
    clock.advance(60)
    assert data(q.pop("b", batch=5)) == [2, 3]
    value = q.value("last")
    assert value is not None
    assert value.data == 1


def test_nothing_is_done_before_the_commit(q: Session) -> None:
    q.transaction().queue("next").partition("p").push([1])
    assert q.queues() == []


# the same, awaited


def test_the_last_word_of_an_awaitable_chain_is_awaited(run: Run, clock: VirtualClock) -> None:
    async def test(q: aio.Session) -> None:
        made = await q.queue("orders").config(retry_limit=2).create()
        assert made.retry_limit == 2
        await q.queue("orders").partition("eu").priority(1).push([1, 2])
        batch = await q.queue("orders").group("g").partition("eu").batch(2).pop()
        assert [(m.data, m.priority) for m in batch] == [(1, 1), (2, 1)]
        await batch[0].ack()
        assert (await q.group_stats("orders", "g")).counts.done == 1

    run(test)


def test_an_awaitable_chain_ends_in_a_consume_loop(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        await q.push("orders", [1, 2])
        failed: list[str] = []

        async def handle(message: aio.Message) -> None:
            if message.data == 2:
                raise ValueError("two")

        async def on_error(message: aio.Message, error: Exception) -> None:
            await message.reject(str(error))
            failed.append(str(error))

        chain = q.queue("orders").group("g").batch(2).each().on_success(q.ack).on_error(on_error)
        async with chain.wait(0).consume(handle):
            await until_awaited(lambda: failed)
        counts = (await q.group_stats("orders", "g")).counts
        assert (counts.done, counts.dead) == (1, 1)

    run(test)


def test_an_awaitable_chained_transaction_is_all_or_nothing(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        await q.push("orders", 1)
        batch = await q.pop("orders")
        again = q.transaction().ack(batch).queue("next").push([3])
        first = q.transaction().ack(batch).queue("next").partition("p").push([2])
        assert (await first.commit()).settled == 1
        with pytest.raises(TransactionFailed):
            await again.commit()
        assert data(await q.pop("next", batch=9)) == [2]

    run(test)


def test_a_second_commit_of_an_awaitable_transaction_is_refused(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        transaction = q.transaction().queue("next").push(1)
        await transaction.commit()
        with pytest.raises(InvalidArgument, match="already committed"):
            await transaction.commit()
        assert data(await q.pop("next", batch=9)) == [1]

    run(test)
