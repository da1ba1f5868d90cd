"""Rules 2 to 4: delays are exact, two counters have two limits, and a limit never drops."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ackflow
from ackflow import Batch, Item, Message, Session, VirtualClock
from ackflow.model import DeadLetter, when

TICK = 0.000001


def counts(q: Session, group: str = "g") -> dict[str, int]:
    """The counts of a group, without those that are 0."""
    found = msgspec.structs.asdict(q.group_stats("q", group).counts)
    return {name: n for name, n in found.items() if n}


def pop(q: Session, **options: Any) -> Batch[Message]:
    return q.pop("q", **{"group": "g", "batch": 100, **options})


def pop_data(q: Session, **options: Any) -> list[Any]:
    return [m.data for m in pop(q, **options)]


def comes_after(q: Session, clock: VirtualClock, seconds: float) -> Message:
    """The message that comes after exactly this time, and not a microsecond before."""
    if seconds > 0:
        clock.advance(seconds - TICK)
        assert not pop(q), f"it came before {seconds} s were over"
        clock.advance(TICK)
    (message,) = pop(q)
    return message


def only_dead(q: Session, **which: Any) -> DeadLetter:
    page = q.dead_letters("q", **which)
    assert page.total == 1
    return page.items[0]


# nack delays


@pytest.mark.every_store
@pytest.mark.parametrize("backoff", [[], [0.3, 0.8, 1.3], [1000]])
@pytest.mark.parametrize("delay", [0, TICK, 0.5, 10, 86_400])
def test_a_nack_delay_is_exact_on_every_attempt_whatever_the_back_off(
    q: Session, clock: VirtualClock, delay: float, backoff: list[float]
) -> None:
    q.group("q", "g", retry_limit=None, backoff=backoff)
    q.push("q", "a")
    (message,) = pop(q)
    for attempt in range(2, 7):
        message.nack(delay=delay)
        message = comes_after(q, clock, delay)
        assert message.deliveries == attempt


def test_each_attempt_may_have_its_own_delay(q: Session, clock: VirtualClock) -> None:
    q.group("q", "g", retry_limit=None)
    q.push("q", "a")
    (message,) = pop(q)
    for delay in (5, 0, 0.25, 60, 0, 1):
        message.nack(delay=delay)
        message = comes_after(q, clock, delay)


def test_a_delay_counts_from_the_nack_not_from_the_hand_out(
    q: Session, clock: VirtualClock
) -> None:
    q.push("q", "a")
    (message,) = pop(q)
    clock.advance(100)
    message.nack(delay=10)
    comes_after(q, clock, 10)


def test_messages_of_one_batch_may_wait_differently(q: Session, clock: VirtualClock) -> None:
    q.push("q", [3, 1, 2])
    for message in pop(q):
        message.nack(delay=message.data)
    assert [comes_after(q, clock, 1).data for _ in range(3)] == [1, 2, 3]


# back-off


BACKOFFS = [
    ([], [0, 0, 0]),
    ([7], [7, 7, 7]),
    ([0], [0, 0]),
    ([1, 5, 30], [1, 5, 30, 30, 30]),
    ([0, 10], [0, 10, 10]),
    ([0.05, 0.25, 1], [0.05, 0.25, 1, 1]),
]


@pytest.mark.parametrize(("backoff", "pauses"), BACKOFFS)
def test_a_nack_without_delay_follows_the_back_off_and_its_last_step_repeats(
    q: Session, clock: VirtualClock, backoff: list[float], pauses: list[float]
) -> None:
    q.group("q", "g", retry_limit=None, backoff=backoff)
    q.push("q", "a")
    (message,) = pop(q)
    for pause in pauses:
        message.nack()
        message = comes_after(q, clock, pause)


@pytest.mark.parametrize(("backoff", "pauses"), BACKOFFS)
def test_an_expiry_follows_the_back_off_from_the_end_of_the_lease(
    q: Session, clock: VirtualClock, backoff: list[float], pauses: list[float]
) -> None:
    q.group("q", "g", lease_seconds=20, backoff=backoff)
    q.push("q", "a")
    (message,) = pop(q)
    for pause in pauses:
        message = comes_after(q, clock, 20 + pause)
        assert message.failures == 0


def test_nacks_and_expiries_share_the_steps(q: Session, clock: VirtualClock) -> None:
    q.group("q", "g", lease_seconds=20, backoff=[1, 5, 30])
    q.push("q", "a")
    (message,) = pop(q)
    message.nack()
    comes_after(q, clock, 1)
    message = comes_after(q, clock, 20 + 5)
    message.nack()
    comes_after(q, clock, 30)


def test_a_release_takes_no_step(q: Session, clock: VirtualClock) -> None:
    q.group("q", "g", backoff=[1, 5])
    q.push("q", "a")
    for _ in range(3):
        pop(q)[0].release()
    (message,) = pop(q)
    message.nack()
    comes_after(q, clock, 1)


def test_a_back_off_never_shortens_a_lease(q: Session, clock: VirtualClock) -> None:
    q.group("q", "g", lease_seconds=30, backoff=[1])
    q.push("q", "a")
    (message,) = pop(q)
    clock.advance(30 - TICK)
    assert not pop(q)
    message.ack()


def by_pop(q: Session, message: Message) -> None:
    assert not pop(q)


def by_upkeep(q: Session, message: Message) -> None:
    q.upkeep()


def by_a_late_ack(q: Session, message: Message) -> None:
    assert q.ack([message]).settled == 0


def by_why(q: Session, message: Message) -> None:
    assert q.why("q", message.id, group="g").state == "waiting"


@pytest.mark.parametrize("late", [TICK, 10, 99])
@pytest.mark.parametrize("notice", [by_pop, by_upkeep, by_a_late_ack, by_why])
def test_the_pause_after_an_expiry_begins_at_the_end_of_the_lease_however_late_that_is_noticed(
    q: Session, clock: VirtualClock, notice: Callable[[Session, Message], None], late: float
) -> None:
    q.group("q", "g", lease_seconds=20, backoff=[100])
    q.push("q", "a")
    (message,) = pop(q)
    clock.advance(20 + late)
    notice(q, message)
    comes_after(q, clock, 100 - late)


def test_a_pause_that_is_over_when_the_expiry_is_noticed_holds_nothing_back(
    q: Session, clock: VirtualClock
) -> None:
    q.group("q", "g", lease_seconds=20, backoff=[100])
    q.push("q", "a")
    pop(q)
    clock.advance(121)
    assert pop_data(q) == ["a"]


@pytest.mark.every_store
def test_leases_and_delays_end_to_the_microsecond_after_opening_the_file_again(
    tmp_path: Path,
) -> None:
    clock, path = VirtualClock(), tmp_path / "q.db"
    with ackflow.connect(path, clock=clock, upkeep=False) as q:
        q.push("q", [1, 2])
        _, nacked = pop(q, lease_seconds=10.000003)
        nacked.nack(delay=5.000007)
    with ackflow.connect(path, clock=clock, upkeep=False) as q:
        assert comes_after(q, clock, 5.000007).data == 2
        assert comes_after(q, clock, 4.999996).data == 1


# retry_limit


@pytest.mark.every_store
@pytest.mark.parametrize("limit", [1, 2, 3, 5])
def test_the_failure_that_reaches_the_retry_limit_dead_letters(q: Session, limit: int) -> None:
    q.group("q", "g", retry_limit=limit)
    q.push("q", "a")
    for failure in range(1, limit):
        pop(q)[0].nack(f"error {failure}")
        assert q.dead_letters("q").items == []
    answer = q.nack(pop(q), f"error {limit}")
    assert (answer.settled, answer.dead) == (1, 1)
    letter = only_dead(q)
    assert (letter.kind, letter.failures, letter.deliveries) == ("failed", limit, limit)
    assert letter.reason == f"error {limit}"
    assert not pop(q)


def test_by_default_the_third_failure_dead_letters(q: Session) -> None:
    q.push("q", "a")
    for _ in range(3):
        pop(q)[0].nack("boom")
    assert (only_dead(q).kind, only_dead(q).failures) == ("failed", 3)
    assert counts(q) == {"dead": 1}


def test_the_failure_that_reaches_the_limit_dead_letters_whatever_its_delay(q: Session) -> None:
    q.group("q", "g", retry_limit=1)
    q.push("q", "a")
    pop(q)[0].nack(delay=1000)
    assert counts(q) == {"dead": 1}


def test_expiries_and_releases_are_not_failures(q: Session, clock: VirtualClock) -> None:
    q.group("q", "g", retry_limit=2)
    q.push("q", "a")
    for _ in range(5):
        pop(q)
        clock.advance(300)
        pop(q)[0].release()
    (message,) = pop(q)
    assert message.failures == 0
    message.nack()
    assert [m.failures for m in pop(q)] == [1]


def test_messages_of_one_batch_fail_each_for_themselves(q: Session) -> None:
    q.group("q", "g", retry_limit=2)
    q.push("q", [1, 2, 3])
    pop(q)[1].nack()
    pop(q)[0].nack()
    assert only_dead(q).data == 2
    assert counts(q) == {"dead": 1, "leased": 2}


@pytest.mark.parametrize("unlimited", [None, -1])
def test_without_limits_a_message_may_fail_for_ever(q: Session, unlimited: int | None) -> None:
    q.group("q", "g", retry_limit=unlimited, max_deliver=unlimited)
    q.push("q", "a")
    for failures in range(50):
        (message,) = pop(q)
        assert (message.deliveries, message.failures) == (failures + 1, failures)
        message.nack()
    assert q.dead_letters("q").items == []


def test_a_raised_limit_holds_for_the_next_failure(q: Session) -> None:
    q.group("q", "g", retry_limit=2)
    q.push("q", "a")
    pop(q)[0].nack()
    q.group("q", "g", retry_limit=4)
    pop(q)[0].nack()
    pop(q)[0].nack()
    assert q.dead_letters("q").items == []
    pop(q)[0].nack()
    assert only_dead(q).failures == 4


# max_deliver


@pytest.mark.every_store
@pytest.mark.parametrize("limit", [1, 2, 3])
def test_max_deliver_dead_letters_when_the_last_lease_runs_out(
    q: Session, clock: VirtualClock, limit: int
) -> None:
    q.group("q", "g", max_deliver=limit, lease_seconds=20)
    q.push("q", "a")
    for delivery in range(1, limit + 1):
        assert [m.deliveries for m in pop(q)] == [delivery]
        clock.advance(20)
    assert not pop(q)
    letter = only_dead(q)
    assert (letter.kind, letter.deliveries, letter.failures) == ("max_deliver", limit, 0)


def test_a_message_dies_at_the_end_of_its_last_lease_however_late_that_is_noticed(
    q: Session, clock: VirtualClock
) -> None:
    q.group("q", "g", max_deliver=1, lease_seconds=20)
    q.push("q", "a")
    pop(q)
    end = when(clock.now()) + timedelta(seconds=20)
    clock.advance(5000)
    q.upkeep()
    assert only_dead(q).died_at == end


def test_the_last_lease_may_still_be_acked(q: Session, clock: VirtualClock) -> None:
    q.group("q", "g", max_deliver=1)
    q.push("q", "a")
    (message,) = pop(q)
    clock.advance(299)
    message.ack()
    assert counts(q) == {"done": 1}


def test_a_nack_of_the_last_delivery_dead_letters_at_once(q: Session) -> None:
    q.group("q", "g", max_deliver=2, retry_limit=None)
    q.push("q", "a")
    pop(q)[0].nack("one")
    pop(q)[0].nack("two", delay=1000)
    letter = only_dead(q)
    assert (letter.kind, letter.deliveries, letter.reason) == ("max_deliver", 2, "two")


def test_by_default_the_twentieth_expiry_dead_letters(q: Session, clock: VirtualClock) -> None:
    q.push("q", "a")
    for _ in range(20):
        assert q.dead_letters("q").items == []
        assert len(pop(q)) == 1
        clock.advance(300)
    assert not pop(q)
    assert (only_dead(q).kind, only_dead(q).deliveries) == ("max_deliver", 20)


def test_a_death_by_expiry_tells_the_last_error(q: Session, clock: VirtualClock) -> None:
    q.group("q", "g", max_deliver=2)
    q.push("q", "a")
    pop(q)[0].nack("disk on fire")
    pop(q, consumer="worker")
    clock.advance(300)
    q.upkeep()
    letter = only_dead(q)
    assert "disk on fire" in (letter.reason or "")
    assert (letter.failures, letter.consumer) == (1, "worker")


def test_release_counts_as_no_delivery(q: Session) -> None:
    q.group("q", "g", max_deliver=1, retry_limit=1)
    q.push("q", "a")
    for _ in range(50):
        (message,) = pop(q)
        assert (message.deliveries, message.failures) == (1, 0)
        message.release()
    assert q.dead_letters("q").items == []


def test_requeue_keeps_both_counters_so_the_limits_hold_over_copies(q: Session) -> None:
    q.group("q", "g", max_deliver=4, retry_limit=None)
    q.push("q", "a")
    pop(q)[0].nack()
    pop(q)[0].requeue()
    (copy,) = pop(q)
    assert (copy.deliveries, copy.failures) == (3, 1)
    copy.requeue()
    pop(q)[0].requeue()
    letter = only_dead(q)
    assert (letter.kind, letter.deliveries, letter.failures) == ("max_deliver", 4, 1)
    assert not pop(q)


def test_a_limit_is_reached_by_each_group_for_itself(q: Session) -> None:
    q.push("q", "a")
    for group in ("g", "h"):
        for _ in range(3):
            q.pop("q", group=group)[0].nack()
    assert sorted(d.group for d in q.dead_letters("q").items) == ["g", "h"]


# max_wait


@pytest.mark.parametrize(("waited", "given"), [(9.999, True), (10.001, False)])
def test_a_pop_never_hands_out_what_waited_longer_than_max_wait(
    q: Session, clock: VirtualClock, waited: float, given: bool
) -> None:
    q.configure("q", max_wait_seconds=10)
    q.group("q", "g")
    q.push("q", "a")
    clock.advance(waited)
    assert bool(pop(q)) is given
    assert [d.kind for d in q.dead_letters("q").items] == ([] if given else ["max_wait"])


def test_what_waited_too_long_dies_at_its_limit_without_a_pop(
    q: Session, clock: VirtualClock
) -> None:
    q.configure("q", max_wait_seconds=10)
    q.group("q", "g")
    q.push("q", "a")
    limit = when(clock.now()) + timedelta(seconds=10)
    clock.advance(500)
    q.upkeep()
    letter = only_dead(q)
    assert (letter.died_at, letter.deliveries, letter.failures) == (limit, 0, 0)
    assert counts(q) == {"dead": 1}


@pytest.mark.parametrize("looked", [True, False])
def test_max_wait_of_a_delayed_message_counts_from_when_it_was_due(
    q: Session, clock: VirtualClock, looked: bool
) -> None:
    q.configure("q", max_wait_seconds=10)
    q.group("q", "g")
    q.push("q", "in time", delay=100)
    q.push("q", "too late", delay=90)
    if looked:
        assert not pop(q)
    clock.advance(109)
    assert pop_data(q) == ["in time"]
    assert only_dead(q).data == "too late"


def test_max_wait_counts_to_the_first_hand_out_only(q: Session, clock: VirtualClock) -> None:
    q.configure("q", max_wait_seconds=10)
    q.push("q", [1, 2, 3])
    nacked, released, _ = pop(q)
    nacked.nack(delay=50)
    released.release()
    clock.advance(1000)
    assert pop_data(q) == [1, 2, 3]


def test_max_wait_counts_for_each_group_by_itself(q: Session, clock: VirtualClock) -> None:
    q.configure("q", max_wait_seconds=10)
    q.group("q", "late")
    q.push("q", "a")
    q.ack(pop(q))
    clock.advance(11)
    assert not pop(q, group="late")
    assert only_dead(q).group == "late"


def test_what_waited_too_long_does_not_hold_back_the_younger(
    q: Session, clock: VirtualClock
) -> None:
    q.configure("q", max_wait_seconds=10)
    q.group("q", "g")
    for second in range(20):
        q.push("q", second)
        clock.advance(1)
    assert pop_data(q) == list(range(11, 20))
    assert counts(q) == {"dead": 11, "leased": 9}


def test_behind_what_waited_too_long_the_waiting_still_come_before_the_new(
    q: Session, clock: VirtualClock
) -> None:
    q.configure("q", max_wait_seconds=10)
    q.push("q", "too late", delay=5)
    q.push("q", "due", delay=12)
    assert not pop(q)
    clock.advance(16)
    q.push("q", "new")
    assert pop_data(q, batch=1) == ["due"]


def delayed(q: Session, clock: VirtualClock) -> None:
    q.push("q", "before", delay=100)


def delayed_and_due(q: Session, clock: VirtualClock) -> None:
    q.push("q", "before", delay=58)


def requeued(q: Session, clock: VirtualClock) -> None:
    q.push("q", "before")
    pop(q)[0].requeue()


def redriven(q: Session, clock: VirtualClock) -> None:
    q.push("q", "before")
    pop(q)[0].reject("no")
    q.redrive("q")


@pytest.mark.parametrize("before", [delayed, delayed_and_due, requeued, redriven])
@pytest.mark.parametrize("notices", ["upkeep", "why", "pop"])
def test_what_waited_too_long_dies_behind_what_may_still_come(
    q: Session, clock: VirtualClock, before: Callable[[Session, VirtualClock], None], notices: str
) -> None:
    q.configure("q", max_wait_seconds=5)
    q.group("q", "g")
    before(q, clock)
    (id,) = q.push("q", "too late")
    clock.advance(60)
    if notices == "upkeep":
        assert q.upkeep().max_wait == 1
        assert q.upkeep().max_wait == 0
    elif notices == "pop":
        assert pop_data(q, batch=9) == ([] if before is delayed else ["before"])
        q.release([m for lease in q.leases("q") for m in q.read(lease.token)])
    assert q.why("q", id, group="g").state == "dead"
    assert only_dead(q).data == "too late"
    clock.advance(1 if before is not delayed else 41)
    assert pop_data(q) == ["before"]


@pytest.mark.every_store
def test_upkeep_dead_letters_everything_that_waited_too_long_in_all_partitions(
    q: Session, clock: VirtualClock
) -> None:
    q.configure("q", max_wait_seconds=5)
    q.group("q", "g")
    for number in range(300):
        q.push("q", number, delay=3 if number % 2 else None)
    q.push("q", [Item(data=0, partition=f"p{number}") for number in range(40)])
    clock.advance(60)
    assert q.upkeep().max_wait == 340
    assert counts(q) == {"dead": 340}


# delays of pushes


@pytest.mark.every_store
@pytest.mark.parametrize(
    ("queue", "push", "item", "seconds"),
    [
        (0, None, None, 0),
        (0, 5, None, 5),
        (0, 5, 7, 7),
        (0, None, 7, 7),
        (9, None, None, 9),
        (9, 5, None, 5),
        (9, 0, None, 0),
        (9, 5, 0, 0),
    ],
)
def test_a_message_is_delayed_by_itself_else_by_its_push_else_by_its_queue(
    q: Session,
    clock: VirtualClock,
    queue: float,
    push: float | None,
    item: float | None,
    seconds: float,
) -> None:
    q.configure("q", delay_seconds=queue)
    q.push("q", Item(data="a", delay=item), delay=push)
    message = comes_after(q, clock, seconds)
    assert (message.deliveries, message.redelivered) == (1, False)


def test_a_delayed_message_holds_back_no_other_and_keeps_its_place(
    q: Session, clock: VirtualClock
) -> None:
    q.push("q", ["first", Item(data="delayed", delay=10), "third"])
    assert pop_data(q) == ["first", "third"]
    q.push("q", "new")
    clock.advance(10)
    assert pop_data(q) == ["delayed", "new"]


def test_every_group_waits_for_a_delayed_message(q: Session, clock: VirtualClock) -> None:
    q.push("q", "a", delay=10)
    assert not pop(q)
    clock.advance(10)
    q.pop("q", group="g")
    assert pop_data(q, group="made later") == ["a"]


def test_a_requeue_may_be_delayed_exactly(q: Session, clock: VirtualClock) -> None:
    q.configure("q", delay_seconds=77)
    q.push("q", "a", delay=0)
    pop(q)[0].requeue(delay=10)
    comes_after(q, clock, 10).requeue()
    assert pop_data(q) == ["a"]
