"""JetStream's interface: consumer configuration and the verbs of messages."""

import threading
from typing import Any

import pytest

from ackflow import AlreadySettled, Batch, LeaseLost, Message, Session, VirtualClock, aio
from ackflow.errors import InvalidArgument
from ackflow.jetstream import Consumer, ConsumerConfig, awaited_consumer, consumer
from ackflow.model import Sequences

from .conftest import Run
from .waiting import until, until_awaited


def make(q: Session, **config: Any) -> Consumer:
    return consumer(q, "orders", "workers", ConsumerConfig(**config))


def rules(q: Session) -> Any:
    return q.group_stats("orders", "workers").settings


def counts(q: Session) -> Any:
    return q.group_stats("orders", "workers").counts


def data(batch: Batch[Any]) -> list[Any]:
    return [message.data for message in batch]


# the configuration


def test_a_consumer_is_a_shared_group_with_the_defaults_of_jetstream(q: Session) -> None:
    made = consumer(q, "orders", "workers")
    assert (made.queue, made.name) == ("orders", "workers")
    found = rules(q)
    assert (found.ordering, found.policy) == ("shared", "explicit")
    assert (found.lease_seconds, found.max_ack_pending) == (30, 1000)
    assert (found.max_deliver, found.retry_limit, found.backoff) == (None, None, ())


def test_every_setting_reaches_the_group(q: Session) -> None:
    make(q, ack_policy="all", ack_wait=7, max_deliver=5, backoff=[1, 5, 30], max_ack_pending=2)
    found = rules(q)
    assert (found.policy, found.lease_seconds, found.max_deliver) == ("all", 7, 5)
    assert (found.backoff, found.max_ack_pending) == ((1, 5, 30), 2)


def test_a_consumer_made_again_is_changed_and_keeps_its_place(q: Session) -> None:
    q.push("orders", [1, 2])
    make(q, ack_wait=7).fetch(1, wait=0)[0].ack()
    again = make(q, ack_wait=9, max_ack_pending=-1)
    assert (rules(q).lease_seconds, rules(q).max_ack_pending) == (9, None)
    assert data(again.fetch(5, wait=0)) == [2]


@pytest.mark.parametrize(
    "config",
    [
        {"ack_policy": "sometimes"},
        {"ack_wait": 0},
        {"ack_wait": "30"},
        {"max_deliver": 0},
        {"backoff": [1, -1]},
        {"max_ack_pending": 0},
    ],
)
def test_a_setting_that_cannot_be_is_refused_and_no_group_is_made(
    q: Session, config: dict[str, Any]
) -> None:
    q.push("orders", 1)
    with pytest.raises(InvalidArgument):
        make(q, **config)
    assert q.queue_stats("orders").groups == []


def test_limits_of_before_do_not_end_what_max_deliver_lets_live(q: Session) -> None:
    q.configure("orders", retry_limit=1)
    q.group("orders", "workers", retry_limit=2)
    q.push("orders", 1)
    workers = make(q)
    for _ in range(30):
        workers.fetch(1, wait=0)[0].nack("not yet")
    assert counts(q).dead == 0


# fetching


def test_a_fetch_brings_up_to_n_in_order(q: Session) -> None:
    q.push("orders", list(range(5)))
    workers = make(q)
    assert data(workers.fetch(wait=0)) == [0]
    assert data(workers.fetch(3, wait=0)) == [1, 2, 3]
    assert data(workers.fetch(100, wait=0)) == [4]
    assert data(workers.fetch(100, wait=0)) == []


def test_a_fetch_waits_for_the_first_message(q: Session) -> None:
    workers, found = make(q), list[Any]()
    fetching = threading.Thread(target=lambda: found.extend(data(workers.fetch(10, wait=20))))
    fetching.start()
    q.push("orders", "late")
    fetching.join()
    assert found == ["late"]


def test_fetches_of_many_never_share_a_message(q: Session) -> None:
    q.push("orders", list(range(40)))
    workers = make(q)
    found = [n for _ in range(8) for n in data(workers.fetch(5, wait=0))]
    assert found == list(range(40))


def test_the_consume_loop_follows_the_configuration(q: Session) -> None:
    q.push("orders", [1, 2, 3])
    workers, seen = make(q, max_deliver=2), list[int]()

    def handle(message: Message) -> None:
        seen.append(message.data)
        if message.data == 2:
            raise ValueError("bad order")
        message.ack()

    with workers.consume(handle, wait=0):
        until(lambda: counts(q).lag == 0)
    assert sorted(seen) == [1, 2, 2, 3]
    assert [letter.data for letter in q.dead_letters("orders").items] == [2]


# the words on a message


def test_ack_is_the_end_of_a_message(q: Session, clock: VirtualClock) -> None:
    q.push("orders", [1, 2])
    first, second = make(q).fetch(2, wait=0)
    first.ack()
    assert (counts(q).done, counts(q).leased) == (1, 1)
    clock.advance(31)
    assert data(make(q).fetch(2, wait=0)) == [second.data]


def test_a_confirmed_ack_is_seen_at_once_and_may_be_repeated(q: Session) -> None:
    q.push("orders", 1)
    (message,) = make(q).fetch(1, wait=0)
    message.ack(confirm=True)
    assert counts(q).done == 1
    message.ack(confirm=True)  # as by someone whose first answer was lost
    assert counts(q).done == 1


def test_a_confirmed_ack_that_comes_too_late_says_so(q: Session, clock: VirtualClock) -> None:
    q.push("orders", 1)
    (message,) = make(q, ack_wait=5).fetch(1, wait=0)
    clock.advance(6)
    with pytest.raises(LeaseLost):
        message.ack(confirm=True)
    assert data(make(q).fetch(1, wait=0)) == [1]


def test_nack_brings_a_message_again_at_once_and_before_the_new(q: Session) -> None:
    q.push("orders", [1, 2])
    workers = make(q)
    workers.fetch(1, wait=0)[0].nack()
    again = workers.fetch(2, wait=0)
    assert data(again) == [1, 2]
    assert [message.metadata.num_delivered for message in again] == [2, 1]


def test_nack_with_a_delay_is_exact_on_every_attempt(q: Session, clock: VirtualClock) -> None:
    q.push("orders", 1)
    workers = make(q, backoff=[1, 20, 60])
    for _ in range(4):
        workers.fetch(1, wait=0)[0].nack(delay=5)
        clock.advance(4.9)
        assert data(workers.fetch(1, wait=0)) == []
        clock.advance(0.1)


def test_nack_without_a_delay_follows_the_back_off_whose_last_step_repeats(
    q: Session, clock: VirtualClock
) -> None:
    q.push("orders", 1)
    workers = make(q, backoff=[1, 5, 30])
    for pause in (1, 5, 30, 30):
        workers.fetch(1, wait=0)[0].nack()
        clock.advance(pause - 0.1)
        assert data(workers.fetch(1, wait=0)) == []
        clock.advance(0.1)
    assert workers.fetch(1, wait=0)[0].metadata.num_delivered == 5


def test_what_runs_out_follows_the_back_off_too(q: Session, clock: VirtualClock) -> None:
    q.push("orders", 1)
    workers = make(q, ack_wait=10, backoff=[3])
    workers.fetch(1, wait=0)
    clock.advance(12.9)
    assert data(workers.fetch(1, wait=0)) == []
    clock.advance(0.1)
    assert data(workers.fetch(1, wait=0)) == [1]


def test_in_progress_starts_the_ack_wait_anew_as_often_as_it_is_said(
    q: Session, clock: VirtualClock
) -> None:
    q.push("orders", 1)
    workers = make(q)
    (message,) = workers.fetch(1, wait=0)
    for _ in range(5):
        clock.advance(29)
        message.in_progress()
        assert data(workers.fetch(1, wait=0)) == []
    clock.advance(31)
    assert data(workers.fetch(1, wait=0)) == [1]


def test_in_progress_after_the_ack_wait_takes_nothing_from_the_next_holder(
    q: Session, clock: VirtualClock
) -> None:
    q.push("orders", 1)
    workers = make(q)
    (slow,) = workers.fetch(1, wait=0)
    clock.advance(31)
    (held,) = workers.fetch(1, wait=0)
    with pytest.raises(LeaseLost):
        slow.in_progress()
    clock.advance(29)
    held.ack()


def test_term_is_the_end_of_a_message_and_keeps_the_reason(q: Session, clock: VirtualClock) -> None:
    q.push("orders", [1, 2])
    first, second = make(q).fetch(2, wait=0)
    first.term("invalid message format")
    second.term()
    clock.advance(60)
    assert data(make(q).fetch(2, wait=0)) == []
    letters = {letter.data: letter for letter in q.dead_letters("orders").items}
    assert (letters[1].reason, letters[1].kind) == ("invalid message format", "rejected")
    assert letters[2].reason is None


def test_after_one_word_another_is_refused(q: Session) -> None:
    q.push("orders", 1)
    (message,) = make(q).fetch(1, wait=0)
    message.nack(delay=60)
    with pytest.raises(AlreadySettled):
        message.ack()
    with pytest.raises(AlreadySettled):
        message.term()
    assert counts(q).waiting == 1


@pytest.mark.parametrize("word", ["ack", "nack", "term", "in_progress"])
def test_a_word_that_comes_late_changes_nothing_for_the_next_holder(
    q: Session, clock: VirtualClock, word: str
) -> None:
    q.push("orders", 1)
    workers = make(q)
    (slow,) = workers.fetch(1, wait=0)
    clock.advance(31)
    (held,) = workers.fetch(1, wait=0)
    with pytest.raises(LeaseLost):
        getattr(slow, word)()
    assert counts(q).leased == 1
    held.ack()
    assert counts(q).done == 1


def test_metadata_tells_where_a_message_stands(q: Session, clock: VirtualClock) -> None:
    q.push("orders", ["a", "b", "c"])
    workers = make(q)
    pushed = workers.fetch(1, wait=0)[0]
    pushed.nack()
    clock.advance(5)
    first, second = workers.fetch(2, wait=0)
    assert first.metadata.sequence == Sequences(stream=1, consumer=2)
    assert (first.metadata.num_delivered, first.metadata.num_pending) == (2, 2)
    assert first.metadata.timestamp == pushed.created_at
    assert second.metadata.sequence == Sequences(stream=2, consumer=3)
    assert (second.metadata.num_delivered, second.metadata.num_pending) == (1, 1)


def pending(batch: Batch[Any]) -> list[tuple[Any, int]]:
    return [(message.data, message.metadata.num_pending) for message in batch]


def test_pending_is_what_the_consumer_was_not_given_yet(q: Session) -> None:
    workers = make(q)
    q.push("orders", ["a1", "a2"], partition="a")
    q.push("orders", ["b1", "b2", "b3"], partition="b", priority=4)
    given = workers.fetch(1, wait=0)
    assert pending(given) == [("a1", 4)]
    assert pending(workers.fetch(2, wait=0)) == [("a2", 3), ("b1", 2)]
    given[0].nack()
    again = workers.fetch(2, wait=0)
    assert pending(again) == [("a1", 2), ("b2", 1)]
    assert pending(q.read(again.token)) == pending(again)
    other = consumer(q, "orders", "others")
    assert pending(other.fetch(1, wait=0)) == [("a1", 4)]
    q.push("orders", "a3", partition="a")
    assert pending(workers.fetch(9, wait=0)) == [("a3", 1), ("b3", 0)]


def test_a_message_that_comes_again_is_not_pending(q: Session) -> None:
    workers = make(q)
    q.push("orders", [1, 2, 3])
    q.nack(workers.fetch(2, wait=0))
    assert pending(workers.fetch(2, wait=0)) == [(1, 1), (2, 1)]
    assert pending(workers.fetch(2, wait=0)) == [(3, 0)]


def test_a_message_has_a_subject(q: Session) -> None:
    workers = make(q)
    q.push("orders", 1)
    q.push("orders", 2, partition="eu")
    assert sorted(message.subject for message in workers.fetch(2, wait=0)) == [
        "orders", "orders.eu"
    ]  # fmt: skip


# the policies


def test_under_explicit_an_ack_is_for_one_message(q: Session) -> None:
    q.push("orders", [1, 2, 3])
    make(q).fetch(3, wait=0)[-1].ack()
    assert (counts(q).done, counts(q).leased) == (1, 2)


def test_under_all_an_ack_settles_all_before_it_for_every_consumer(q: Session) -> None:
    q.push("orders", list(range(6)))
    workers = make(q, ack_policy="all")
    workers.fetch(2, wait=0)
    workers.fetch(3, wait=0)[1].ack()
    assert (counts(q).done, counts(q).leased, counts(q).ready) == (4, 1, 1)


def test_under_none_what_is_fetched_is_done_and_words_say_nothing(
    q: Session, clock: VirtualClock
) -> None:
    q.push("orders", [1, 2])
    workers = make(q, ack_policy="none")
    (message,) = workers.fetch(1, wait=0)
    assert (counts(q).done, counts(q).leased) == (1, 0)
    message.ack()
    message.nack()
    message.in_progress()
    message.term()
    clock.advance(60)
    assert data(workers.fetch(5, wait=0)) == [2]
    assert counts(q).dead == 0


# the limits


def test_after_max_deliver_nacks_a_message_is_a_dead_letter_and_not_dropped(q: Session) -> None:
    q.push("orders", "poison")
    workers = make(q, max_deliver=5)
    for _ in range(5):
        workers.fetch(1, wait=0)[0].nack("bad format")
    assert data(workers.fetch(1, wait=0)) == []
    (letter,) = q.dead_letters("orders").items
    assert (letter.data, letter.kind, letter.reason) == ("poison", "max_deliver", "bad format")
    assert (letter.deliveries, letter.failures) == (5, 5)


def test_after_max_deliver_silences_a_message_is_a_dead_letter_too(
    q: Session, clock: VirtualClock
) -> None:
    q.push("orders", "poison")
    workers = make(q, max_deliver=2)
    for _ in range(2):
        assert data(workers.fetch(1, wait=0)) == ["poison"]
        clock.advance(31)
    assert data(workers.fetch(1, wait=0)) == []
    assert (counts(q).dead, counts(q).lag) == (1, 0)


def test_max_ack_pending_holds_back_until_something_is_acked(q: Session) -> None:
    q.push("orders", list(range(5)))
    workers = make(q, max_ack_pending=2)
    first, _ = workers.fetch(5, wait=0)
    held = workers.fetch(5, wait=0)
    assert (data(held), held.why) == ([], "window")
    first.ack()
    assert data(workers.fetch(5, wait=0)) == [2]


def test_what_waits_after_a_nack_leaves_room_for_others(q: Session) -> None:
    q.push("orders", [1, 2])
    workers = make(q, max_ack_pending=1)
    workers.fetch(5, wait=0)[0].nack(delay=60)
    assert data(workers.fetch(5, wait=0)) == [2]


# awaited


def test_a_consumer_may_be_awaited(run: Run, clock: VirtualClock) -> None:
    async def test(q: aio.Session) -> None:
        config = ConsumerConfig(ack_wait=10, max_deliver=2, backoff=[3], max_ack_pending=4)
        workers = await awaited_consumer(q, "orders", "workers", config)
        assert (workers.queue, workers.name) == ("orders", "workers")
        found = (await q.group_stats("orders", "workers")).settings
        assert (found.lease_seconds, found.max_deliver, found.backoff) == (10, 2, (3,))
        assert (found.ordering, found.max_ack_pending, found.retry_limit) == ("shared", 4, None)
        await q.push("orders", list(range(6)))
        assert data(await workers.fetch(wait=0)) == [0]
        assert data(await workers.fetch(10, wait=0)) == [1, 2, 3]
        assert data(await workers.fetch(10, wait=0)) == []

    run(test)


def test_every_word_may_be_awaited(run: Run, clock: VirtualClock) -> None:
    async def test(q: aio.Session) -> None:
        workers = await awaited_consumer(q, "orders", "workers")
        await q.push("orders", ["acked", "failed", "poison", "long"])
        acked, failed, poison, long = await workers.fetch(4, wait=0)
        await acked.ack(confirm=True)
        await failed.nack("try later", delay=5)
        await poison.term("invalid message format")
        clock.advance(29)
        await long.in_progress()
        clock.advance(29)
        (again,) = await workers.fetch(4, wait=0)
        assert (again.data, again.metadata.num_delivered) == ("failed", 2)
        assert (again.metadata.sequence.stream, again.metadata.num_pending) == (2, 0)
        assert again.subject == "orders"
        await long.ack()
        letters = (await q.dead_letters("orders")).items
        assert [letter.reason for letter in letters] == ["invalid message format"]
        assert (await q.group_stats("orders", "workers")).counts.done == 2

    run(test)


def test_an_awaited_word_that_comes_late_is_refused(run: Run, clock: VirtualClock) -> None:
    async def test(q: aio.Session) -> None:
        workers = await awaited_consumer(q, "orders", "workers")
        await q.push("orders", 1)
        (slow,) = await workers.fetch(1, wait=0)
        clock.advance(31)
        (held,) = await workers.fetch(1, wait=0)
        for word in (slow.ack, slow.nack, slow.term, slow.in_progress):
            with pytest.raises(LeaseLost):
                await word()
        await held.ack()

    run(test)


def test_an_awaited_consume_loop_follows_the_configuration(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        workers = await awaited_consumer(q, "orders", "workers", ConsumerConfig(max_deliver=3))
        await q.push("orders", "poison")

        async def handle(_: aio.Message) -> None:
            raise ValueError("bad order")

        async with workers.consume(handle, wait=0) as consuming:
            await until_awaited(lambda: consuming.counts.failed == 3)
        (letter,) = (await q.dead_letters("orders")).items
        assert (letter.kind, letter.reason) == ("max_deliver", "ValueError: bad order")

    run(test)
