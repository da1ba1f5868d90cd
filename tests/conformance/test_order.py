"""Rule 5: priority first, the returned before the new, fair over partitions, places kept."""

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ackflow import Batch, Item, Message, Session, VirtualClock

pytestmark = pytest.mark.every_store

LEASE = 300


def counts(q: Session, group: str = "g") -> dict[str, int]:
    """The counts of a group, without those that are 0."""
    found = msgspec.structs.asdict(q.group_stats("q", group).counts)
    return {name: n for name, n in found.items() if n}


def pop(q: Session, n: int = 100, group: str = "g") -> Batch[Message]:
    return q.pop("q", group=group, batch=n)


def pop_data(q: Session, n: int = 100, group: str = "g") -> list[Any]:
    return [m.data for m in pop(q, n, group)]


def one_by_one(q: Session, n: int) -> list[Any]:
    """What n pops of one message bring; nothing is settled."""
    return [value for _ in range(n) for value in pop_data(q, 1)]


# the ways back


def by_nack(q: Session, clock: VirtualClock, some: list[Message]) -> None:
    q.nack(some)


def by_release(q: Session, clock: VirtualClock, some: list[Message]) -> None:
    q.release(some)


def by_delay(q: Session, clock: VirtualClock, some: list[Message]) -> None:
    q.nack(some, delay=5)
    clock.advance(5)


def by_expiry(q: Session, clock: VirtualClock, some: list[Message]) -> None:
    clock.advance(LEASE)


Back = Callable[[Session, VirtualClock, list[Message]], None]
WAYS_BACK: list[Back] = [by_nack, by_release, by_delay, by_expiry]


# priorities


@pytest.mark.parametrize("n", [1, 7, 256])
def test_a_lower_priority_number_is_served_first(q: Session, n: int) -> None:
    numbers = list(range(256))
    random.Random(5).shuffle(numbers)
    q.push("q", [Item(data=i, priority=i) for i in numbers])
    given: list[int] = []
    while batch := pop_data(q, n):
        given += batch
    assert given == list(range(256))


def test_priorities_may_be_sparse_and_large(q: Session) -> None:
    numbers = [2**31 - 1, 0, 1_000_000, 256, 255, 70_000]
    q.push("q", [Item(data=i, priority=i) for i in numbers])
    given = [(m.data, m.priority) for m in pop(q)]
    assert given == [(i, i) for i in sorted(numbers)]


def test_priority_goes_before_age_and_partition(q: Session) -> None:
    q.push("q", ["old", "old too"], priority=5, partition="a")
    q.push("q", "new", priority=4, partition="b")
    q.push("q", "newest", priority=0, partition="a")
    assert pop_data(q) == ["newest", "new", "old", "old too"]


def test_a_push_of_high_priority_goes_before_what_waits_already(q: Session) -> None:
    q.push("q", [1, 2, 3], priority=9)
    assert one_by_one(q, 1) == [1]
    q.push("q", "urgent", priority=1)
    assert one_by_one(q, 3) == ["urgent", 2, 3]


@pytest.mark.parametrize("back", WAYS_BACK)
def test_what_comes_back_keeps_its_priority(q: Session, clock: VirtualClock, back: Back) -> None:
    q.push("q", "low", priority=9)
    q.push("q", "high", priority=1)
    high, low = pop(q)
    back(q, clock, [low, high])
    q.push("q", "urgent", priority=0)
    q.push("q", "middle", priority=5)
    again = pop(q)
    assert [(m.data, m.priority) for m in again] == [
        ("urgent", 0), ("high", 1), ("middle", 5), ("low", 9),
    ]  # fmt: skip


def test_partitions_of_one_priority_are_served_before_any_of_the_next(q: Session) -> None:
    for partition in "abc":
        q.push("q", [0, 0], priority=0, partition=partition)
        q.push("q", [1, 1], priority=1, partition=partition)
    assert one_by_one(q, 12) == [0] * 6 + [1] * 6


# within a lane


def test_a_lane_is_served_in_the_order_of_the_pushes(q: Session) -> None:
    for i in range(0, 20, 2):
        q.push("q", [i, i + 1])
    assert one_by_one(q, 20) == list(range(20))


@pytest.mark.parametrize("back", WAYS_BACK)
def test_what_comes_back_comes_before_what_is_new_and_in_its_old_order(
    q: Session, clock: VirtualClock, back: Back
) -> None:
    q.push("q", list(range(5)))
    batch = pop(q, 4)
    back(q, clock, [batch[3], batch[0], batch[2], batch[1]])
    q.push("q", 5)
    assert one_by_one(q, 6) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("back", WAYS_BACK)
def test_a_hole_in_a_batch_comes_back_to_its_place(
    q: Session, clock: VirtualClock, back: Back
) -> None:
    q.push("q", list(range(6)))
    batch = pop(q, 5)
    q.ack([batch[0], batch[2], batch[4]])
    back(q, clock, [batch[3], batch[1]])
    assert pop_data(q) == [1, 3, 5]


def test_messages_nacked_one_by_one_come_by_sequence_not_by_time_of_nack(q: Session) -> None:
    q.push("q", list(range(5)))
    batch = pop(q)
    for index in (3, 0, 4, 1, 2):
        batch[index].nack()
    assert pop_data(q) == [0, 1, 2, 3, 4]


def test_a_hundred_messages_come_in_order_round_after_round(
    q: Session, clock: VirtualClock
) -> None:
    q.push("q", list(range(100)))
    for _ in range(5):
        assert pop_data(q) == list(range(100))
        clock.advance(LEASE)


def test_messages_with_different_counters_come_by_sequence_one_by_one(q: Session) -> None:
    q.push("q", list(range(6)))
    batch = pop(q)
    q.nack(batch[::2])
    q.release(batch[1::2])
    assert one_by_one(q, 6) == [0, 1, 2, 3, 4, 5]


def test_messages_with_different_counters_come_by_sequence_also_in_one_batch(q: Session) -> None:
    q.push("q", list(range(6)))
    batch = pop(q)
    q.nack(batch[::2])
    q.release(batch[1::2])
    again = pop(q)
    assert [m.data for m in again] == [0, 1, 2, 3, 4, 5]
    assert [m.failures for m in again] == [1, 0, 1, 0, 1, 0]


def test_many_leases_that_ran_out_together_come_back_in_their_old_order(
    q: Session, clock: VirtualClock
) -> None:
    q.push("q", list(range(600)))
    for _ in range(600):
        pop(q, 1)
    q.push("q", ["new"] * 100)
    clock.advance(LEASE)
    assert pop_data(q, 600) == list(range(600))


def test_priority_holds_also_among_many_leases_that_ran_out(
    q: Session, clock: VirtualClock
) -> None:
    q.push("q", ["low"] * 600, priority=9)
    for _ in range(600):
        pop(q, 1)
    q.push("q", "urgent", priority=0)
    clock.advance(1)
    pop(q, 1)
    clock.advance(LEASE)
    assert pop_data(q, 1) == ["urgent"]


def test_a_delayed_message_takes_its_old_place_when_it_is_due(
    q: Session, clock: VirtualClock
) -> None:
    q.push("q", [Item(data="a", delay=10), Item(data="b", delay=5), "c", "d"])
    assert one_by_one(q, 1) == ["c"]
    clock.advance(10)
    assert one_by_one(q, 3) == ["a", "b", "d"]


# fairness over partitions


def test_one_busy_partition_and_nine_with_one_message_ten_pops_reach_all_ten(q: Session) -> None:
    q.push("q", list(range(1000)), partition="busy")
    for i in range(9):
        q.push("q", i, partition=f"quiet {i}")
    reached = {m.partition for _ in range(10) for m in pop(q, 1)}
    assert len(reached) == 10


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("n", [1, 2])
def test_partitions_are_served_in_turn(
    q: Session, clock: VirtualClock, n: int, step: float
) -> None:
    for partition in "abc":
        q.push("q", list(range(12)), partition=partition)
    served = []
    for _ in range(9):
        batch = q.pop("q", group="g", batch=n, partitions=1)
        served += sorted({m.partition for m in batch})
        clock.advance(step)
    assert served == ["a", "b", "c"] * 3


def test_a_partition_that_is_new_comes_before_those_served_already(q: Session) -> None:
    for partition in "ab":
        q.push("q", list(range(10)), partition=partition)
    one_by_one(q, 2)
    q.push("q", "fresh", partition="new")
    assert one_by_one(q, 1) == ["fresh"]


def test_a_partition_whose_message_comes_back_waits_for_its_turn(
    q: Session, clock: VirtualClock
) -> None:
    for partition in "abc":
        q.push("q", [f"{partition}0", f"{partition}1"], partition=partition)
    (first,) = pop(q, 1)
    clock.advance(1)
    first.nack()
    assert one_by_one(q, 2) == ["b0", "c0"]
    clock.advance(1)
    assert one_by_one(q, 1) == ["a0"]


def test_a_pop_of_one_partition_takes_its_priorities_in_order(q: Session) -> None:
    for priority in (3, 1, 2):
        q.push("q", priority, partition="p", priority=priority)
    batch = q.pop("q", group="g", batch=10, partition="p")
    assert [m.data for m in batch] == [1, 2, 3]


# requeue


def test_requeue_sends_to_the_end_of_its_lane(q: Session) -> None:
    q.push("q", [0, 1, 2])
    (first,) = pop(q, 1)
    first.requeue()
    assert pop_data(q) == [1, 2, 0]


def test_a_requeued_batch_keeps_its_order_at_the_end(q: Session) -> None:
    q.push("q", list(range(5)))
    q.requeue(pop(q, 3))
    assert pop_data(q) == [3, 4, 0, 1, 2]


def test_a_delayed_copy_holds_nothing_back_in_an_ordered_group(
    q: Session, clock: VirtualClock
) -> None:
    q.group("q", "g", ordering="ordered")
    q.push("q", [0, 1, 2])
    (first,) = q.pop("q", group="g")
    first.requeue(delay=40)
    q.ack(q.pop("q", group="g", batch=2))
    q.push("q", 3)
    assert [m.data for m in q.pop("q", group="g", batch=9)] == [3]
    assert "Delayed until" in q.why("q", str(q.browse("q").items[3].id), group="g").sentence


def test_a_delayed_copy_is_not_settled_by_an_ack_of_what_follows_it(
    q: Session, clock: VirtualClock
) -> None:
    q.group("q", "g", policy="all")
    q.push("q", [0, 1])
    (first,) = q.pop("q", group="g")
    first.requeue(delay=40)
    q.push("q", 2)
    q.pop("q", group="g", batch=9)[-1].ack()
    assert q.pop("q", group="g", batch=9) == ()
    clock.advance(40)
    (copy,) = q.pop("q", group="g", batch=9)
    assert (copy.data, copy.redelivered, copy.deliveries) == (0, True, 2)


def test_a_lane_that_had_nothing_to_give_keeps_its_turn(q: Session, clock: VirtualClock) -> None:
    q.group("q", "g", ordering="shared")
    ids = {name: q.push("q", name, partition=name)[0] for name in "abc"}
    q.delete_message("q", ids["b"])
    q.ack(q.pop("q", group="g", batch=9))
    clock.advance(1)
    for name in "abc":
        q.push("q", name, partition=name)
    assert [q.pop("q", group="g")[0].data for _ in range(3)] == ["b", "a", "c"]


def test_a_copy_keeps_everything_but_its_id_place_and_time(q: Session, clock: VirtualClock) -> None:
    item = Item(data={"a": [1]}, headers={"h": "v"}, transaction_id="t")
    q.push("q", ["before", item, b"\x00\xff"], partition="p", priority=3)
    batch = pop(q)
    clock.advance(5)
    q.requeue(batch[1:])
    text, binary = pop(q)
    assert (text.data, text.headers, text.transaction_id) == ({"a": [1]}, {"h": "v"}, "t")
    assert binary.data == b"\x00\xff"
    assert (text.partition, text.priority, text.sequence) == ("p", 3, 3)
    assert text.id != batch[1].id
    assert text.created_at > batch[1].created_at


def test_a_copy_keeps_the_counters_of_its_message(q: Session) -> None:
    q.push("q", "a")
    pop(q)[0].nack("boom")
    pop(q)[0].requeue()
    (copy,) = pop(q)
    assert (copy.deliveries, copy.failures, copy.redelivered) == (3, 1, True)
    copy.nack()
    assert q.dead_letters("q").items == []
    pop(q)[0].nack()
    assert [(d.kind, d.failures) for d in q.dead_letters("q").items] == [("failed", 3)]


def test_messages_requeued_together_keep_each_their_own_counters(q: Session) -> None:
    q.push("q", [0, 1, 2])
    pop(q)[1].nack()
    q.push("q", 3)
    q.requeue(pop(q, 2))
    assert {m.data: (m.deliveries, m.failures) for m in pop(q)} == {1: (3, 1), 3: (2, 0)}


def test_a_copy_is_for_its_group_alone(q: Session) -> None:
    q.group("q", "before")
    q.push("q", [0, 1])
    pop(q, 1)[0].requeue()
    assert pop_data(q) == [1, 0]
    assert pop_data(q, group="before") == [0, 1]
    assert pop_data(q, group="made later") == [0, 1]


def test_a_copy_hides_nothing_behind_it_from_other_groups(q: Session) -> None:
    q.push("q", 0)
    pop(q)[0].requeue()
    q.push("q", 1)
    assert pop_data(q, group="other") == [0, 1]
    assert counts(q, "other") == {"leased": 2}


def test_a_requeued_message_is_done_and_its_copy_is_one_more(q: Session) -> None:
    q.push("q", "a")
    pop(q)[0].requeue()
    assert counts(q) == {"done": 1, "ready": 1}
    q.ack(pop(q))
    assert counts(q) == {"done": 2}
    assert not pop(q)


def test_a_copy_that_fails_keeps_its_new_place(q: Session) -> None:
    q.push("q", [0, 1, 2])
    pop(q, 1)[0].requeue()
    q.push("q", 3)
    batch = pop(q)
    assert [m.data for m in batch] == [1, 2, 0, 3]
    q.nack(batch[::-1])
    assert pop_data(q) == [1, 2, 0, 3]


# redrive


def test_a_redriven_message_is_a_copy_for_its_group_with_counters_at_zero(q: Session) -> None:
    q.push("q", ["dead", "alive"])
    (message, _) = pop(q)
    message.nack()
    pop(q)[0].reject("bad")
    assert q.redrive("q") == 1
    (copy,) = pop(q)
    assert (copy.data, copy.deliveries, copy.failures) == ("dead", 1, 0)
    assert copy.id != message.id
    assert q.dead_letters("q").items == []
    assert pop_data(q, group="other") == ["dead", "alive"]


def test_redriven_messages_come_at_the_end_in_their_old_order(q: Session) -> None:
    q.push("q", list(range(4)))
    batch = pop(q, 3)
    for index in (2, 0, 1):
        batch[index].reject()
    q.redrive("q")
    assert pop_data(q) == [3, 0, 1, 2]


def test_what_is_redriven_to_another_queue_is_for_all_its_groups(q: Session) -> None:
    q.push("q", "a", partition="p", priority=4)
    pop(q)[0].reject()
    assert q.redrive("q", to="r") == 1
    for group in ("one", "two"):
        (message,) = q.pop("r", group=group)
        assert (message.data, message.partition, message.priority) == ("a", "p", 4)
    assert not pop(q)


def test_a_lane_that_was_alone_gives_way_after_one_hand_out_more(q: Session) -> None:
    q.push("q", list(range(10)), partition="a")
    assert [m.data for _ in range(3) for m in q.pop("q")] == [0, 1, 2]
    q.push("q", ["b", "b"], partition="b")
    served = [q.pop("q")[0].data for _ in range(4)]
    assert served in ([3, "b", 4, "b"], ["b", 3, "b", 4])


# a batch of few partitions


@pytest.mark.parametrize("ordering", ["shared", "ordered"])
def test_a_batch_of_few_partitions_is_filled_from_all_their_priorities(
    q: Session, ordering: str
) -> None:
    q.group("q", "g", ordering=ordering)
    for partition in ("a", "b", "c"):
        q.push("q", [f"{partition}{i}" for i in range(2)], partition=partition, priority=1)
    q.push("q", ["a urgent"], partition="a", priority=0)
    q.push("q", ["a late"], partition="a", priority=9)
    q.push("q", ["b late"], partition="b", priority=2)
    first = [m.data for m in q.pop("q", group="g", batch=5, partitions=1)]
    assert first == ["a urgent", "a0", "a1", "a late"]
    second = [m.data for m in q.pop("q", group="g", batch=9, partitions=2)]
    assert second == ["b0", "b1", "c0", "c1", "b late"]
    assert not q.pop("q", group="g", batch=9, partitions=9)
