"""Rule 6: what a group is given depends on its ordering, its window, its policy and its start."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from ackflow import Batch, Item, Message, Session, VirtualClock
from ackflow.errors import AlreadySettled, GroupNotFound, InvalidArgument, UnknownOption
from ackflow.model import when

LEASE = 300


def counts(q: Session, group: str = "g") -> dict[str, int]:
    """The counts of a group, without those that are 0."""
    found = msgspec.structs.asdict(q.group_stats("q", group).counts)
    return {name: n for name, n in found.items() if n}


def pop(q: Session, n: int = 100, **options: Any) -> Batch[Message]:
    return q.pop("q", **{"group": "g", "batch": n, **options})


def pop_data(q: Session, n: int = 100, **options: Any) -> list[Any]:
    return [m.data for m in pop(q, n, **options)]


# groups are independent


@pytest.mark.every_store
def test_every_group_is_given_every_message(q: Session) -> None:
    q.push("q", [1, 2, 3])
    for group in ("one", "two"):
        q.ack(pop(q, group=group))
    assert pop_data(q, group="three") == [1, 2, 3]
    assert counts(q, "one") == counts(q, "two") == {"done": 3}


def test_a_pop_without_a_group_is_a_group_too(q: Session) -> None:
    q.push("q", 1)
    (message,) = q.pop("q")
    assert message.group == "__QUEUE_MODE__"
    message.ack()
    assert not q.pop("q", group="__QUEUE_MODE__")
    assert pop_data(q) == [1]


@pytest.mark.parametrize("verb", ["ack", "nack", "release", "requeue", "reject", "dead_letter"])
def test_what_one_group_does_changes_nothing_for_another(q: Session, verb: str) -> None:
    q.push("q", [1, 2])
    getattr(pop(q)[0], verb)()
    other = pop(q, group="other")
    assert [(m.data, m.deliveries, m.failures) for m in other] == [(1, 1, 0), (2, 1, 0)]
    assert not any(m.redelivered for m in other)


def test_a_token_settles_for_its_own_group_only(q: Session) -> None:
    q.push("q", 1)
    (mine,), (theirs,) = pop(q), pop(q, group="other")
    assert mine.id == theirs.id
    assert mine.token != theirs.token
    mine.ack()
    assert counts(q, "other") == {"leased": 1}


def test_settings_of_one_group_are_not_those_of_another(q: Session, clock: VirtualClock) -> None:
    q.group("q", "g", lease_seconds=5, retry_limit=1)
    q.push("q", 1)
    pop(q)
    (other,) = pop(q, group="other")
    clock.advance(5)
    assert len(pop(q)) == 1
    other.nack()
    assert q.dead_letters("q").items == []


def test_settling_an_unknown_message_says_so(q: Session) -> None:
    q.push("q", 1)
    with pytest.raises(GroupNotFound):
        q.group_stats("q", "never made")
    with pytest.raises(UnknownOption):
        q.group("q", "g", max_ack_pendnig=3)
    for bad in ({"ordering": "random"}, {"policy": "some"}, {"max_ack_pending": 0}):
        with pytest.raises(InvalidArgument):
            q.group("q", "g", **bad)


# where a group starts


def test_a_group_made_by_its_first_pop_gets_everything_there_is(q: Session) -> None:
    q.push("q", [1, 2])
    q.ack(pop(q))
    q.push("q", 3)
    assert pop_data(q, group="late") == [1, 2, 3]


def test_a_group_that_starts_new_gets_only_what_comes_later(q: Session) -> None:
    q.push("q", "old")
    q.push("q", "old", partition="p", priority=3)
    q.group("q", "g", start="new")
    assert pop_data(q) == []
    assert counts(q) == {"skipped": 2}
    q.push("q", "new")
    q.push("q", "new in a new partition", partition="r")
    assert sorted(pop_data(q)) == ["new", "new in a new partition"]


@pytest.mark.parametrize("as_datetime", [True, False])
def test_a_group_that_starts_at_a_time_gets_what_came_at_that_time_or_later(
    q: Session, clock: VirtualClock, as_datetime: bool
) -> None:
    begin = when(clock.now())
    for second in range(6):
        q.push("q", second, partition=f"p{second % 2}")
        clock.advance(1)
    start = begin + timedelta(seconds=3)
    q.group("q", "g", start=start if as_datetime else start.timestamp())
    assert sorted(pop_data(q)) == [3, 4, 5]
    assert counts(q) == {"skipped": 3, "leased": 3}


def test_where_a_group_starts_is_decided_once(q: Session) -> None:
    q.push("q", [1, 2])
    q.group("q", "g", start="all")
    q.group("q", "g", start="new")
    assert pop_data(q) == [1, 2]


@pytest.mark.parametrize("start", ["yesterday", -1])
def test_a_group_cannot_start_nowhere(q: Session, start: Any) -> None:
    with pytest.raises(InvalidArgument):
        q.group("q", "g", start=start)


# shared


def test_a_shared_group_has_many_leases_at_once(q: Session) -> None:
    q.push("q", list(range(10)))
    assert [pop_data(q, 3) for _ in range(4)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert len(q.leases("q")) == 4


def test_a_shared_group_goes_on_while_an_earlier_message_waits(q: Session) -> None:
    q.push("q", [1, 2, 3])
    pop(q, 1)[0].nack(delay=100)
    assert pop_data(q) == [2, 3]


# ordered


def ordered(q: Session, *partitions: str, n: int = 3) -> None:
    q.group("q", "g", ordering="ordered")
    for partition in partitions or ("p",):
        q.push("q", [f"{partition}{i}" for i in range(n)], partition=partition)


@pytest.mark.every_store
def test_an_ordered_group_has_one_live_lease_per_partition(q: Session) -> None:
    ordered(q, "a", "b")
    assert sorted(pop_data(q, 1) + pop_data(q, 1)) == ["a0", "b0"]
    assert pop_data(q) == []


def test_an_ordered_batch_comes_from_one_partition_unless_asked_for_more(q: Session) -> None:
    ordered(q, "a", "b", "c")
    assert pop_data(q) == ["a0", "a1", "a2"]
    assert len({m.partition for m in pop(q, partitions=2)}) == 2
    assert pop_data(q) == []


def test_a_lease_over_two_partitions_holds_the_one_in_which_it_is_not_done(q: Session) -> None:
    ordered(q, "a", "b", n=2)
    batch = pop(q, 3, partitions=2)
    assert [m.data for m in batch] == ["a0", "a1", "b0"]
    q.ack(batch[:2])
    assert pop_data(q, partition="b") == []
    batch[2].ack()
    assert pop_data(q, partition="b") == ["b1"]


@pytest.mark.every_store
@pytest.mark.parametrize("verb", ["ack", "reject", "dead_letter", "requeue"])
def test_the_settle_that_empties_a_lease_frees_its_partition(q: Session, verb: str) -> None:
    ordered(q)
    first, second = pop(q, 2)
    getattr(first, verb)()
    assert pop_data(q) == []
    getattr(second, verb)()
    assert pop_data(q, 1) == ["p2"]


@pytest.mark.parametrize("verb", ["nack", "release"])
def test_what_comes_back_to_an_ordered_group_comes_before_the_rest(q: Session, verb: str) -> None:
    ordered(q)
    first, second = pop(q, 2)
    getattr(first, verb)()
    assert pop_data(q) == []
    second.ack()
    assert pop_data(q) == ["p0", "p2"]


@pytest.mark.every_store
def test_nothing_of_a_lane_is_handed_out_while_an_earlier_delivered_message_waits(
    q: Session, clock: VirtualClock
) -> None:
    ordered(q)
    batch = pop(q, 2)
    batch[0].nack(delay=10)
    batch[1].release()
    clock.advance(10 - 0.000001)
    assert pop_data(q) == []
    clock.advance(0.000001)
    assert pop_data(q) == ["p0", "p1", "p2"]


def test_what_lies_before_a_waiting_message_is_handed_out(q: Session) -> None:
    ordered(q)
    batch = pop(q)
    batch[1].nack(delay=10)
    q.release([batch[0], batch[2]])
    assert pop_data(q) == ["p0"]


def test_an_expiry_with_back_off_holds_an_ordered_lane_too(q: Session, clock: VirtualClock) -> None:
    q.group("q", "g", ordering="ordered", backoff=[60])
    ordered(q)
    pop(q, 1)
    clock.advance(LEASE + 59)
    assert pop_data(q) == []
    clock.advance(1)
    assert pop_data(q) == ["p0", "p1", "p2"]


def test_a_waiting_message_holds_only_its_own_lane(q: Session) -> None:
    ordered(q)
    q.push("q", "other partition", partition="r")
    q.push("q", "other priority", partition="p", priority=7)
    pop(q, 1, partition="p")[0].nack(delay=10)
    assert pop_data(q, partition="r") == ["other partition"]
    assert pop_data(q, partition="p") == ["other priority"]


def test_a_message_that_waits_for_its_first_delivery_holds_back_no_other(
    q: Session, clock: VirtualClock
) -> None:
    q.group("q", "g", ordering="ordered")
    q.push("q", [Item(data="delayed", delay=10), 1, 2, 3])
    for value in (1, 2):
        (message,) = pop(q, 1)
        assert message.data == value
        message.ack()
    clock.advance(10)
    assert pop_data(q) == ["delayed", 3]


def test_a_dead_letter_holds_back_no_message(q: Session) -> None:
    ordered(q)
    q.group("q", "g", retry_limit=1)
    pop(q, 1)[0].nack("boom", delay=100)
    assert pop_data(q) == ["p1", "p2"]


def test_a_live_lease_holds_every_priority_of_its_partition(q: Session) -> None:
    ordered(q)
    (first,) = pop(q, 1)
    q.push("q", "urgent", partition="p", priority=0)
    q.push("q", "new lane", partition="p", priority=200)
    assert pop_data(q) == []
    first.ack()
    assert pop_data(q) == ["p1", "p2", "urgent", "new lane"]


def test_an_extended_lease_goes_on_holding_its_partition(q: Session, clock: VirtualClock) -> None:
    ordered(q)
    (first,) = pop(q, 1)
    first.extend(1000)
    clock.advance(999)
    assert pop_data(q) == []
    clock.advance(1)
    assert pop_data(q, 1) == ["p0"]


def purge(q: Session, message: Message) -> None:
    q.purge("q", partition="p")
    q.push("q", "p1", partition="p")


def delete(q: Session, message: Message) -> None:
    q.delete_message("q", message.id)


def seek(q: Session, message: Message) -> None:
    q.seek("q", "g", sequence=1)


@pytest.mark.parametrize("end", [purge, delete, seek])
def test_whatever_ends_a_lease_frees_its_partition(
    q: Session, end: Callable[[Session, Message], None]
) -> None:
    ordered(q)
    end(q, pop(q, 1)[0])
    assert pop_data(q, 1) == ["p1"]


@pytest.mark.every_store
def test_an_ordered_lane_is_given_strictly_in_order_whatever_fails(
    q: Session, clock: VirtualClock
) -> None:
    q.group("q", "g", ordering="ordered", retry_limit=None, max_deliver=None, backoff=[7])
    q.push("q", list(range(12)))
    done: list[int] = []
    for round in range(200):
        batch = pop(q, 3)
        if batch and round % 4 == 0:
            batch[-1].nack()
            q.ack(batch[:-1])
            done += [m.data for m in batch[:-1]]
        elif batch and round % 4 == 1:
            batch[0].nack(rest=True)
        elif batch and round % 4 == 2:
            clock.advance(LEASE)
        else:
            q.ack(batch)
            done += [m.data for m in batch]
        clock.advance(3)
    assert done == list(range(12))


def test_an_ordered_group_made_shared_is_served_again_at_once(q: Session) -> None:
    ordered(q)
    pop(q, 1)
    q.group("q", "g", ordering="shared")
    assert pop_data(q) == ["p1", "p2"]


def test_a_shared_group_made_ordered_waits_for_its_live_leases(q: Session) -> None:
    q.push("q", [1, 2, 3, 4])
    leases = [pop(q, 1)[0] for _ in range(2)]
    q.group("q", "g", ordering="ordered")
    leases[0].ack()
    assert pop_data(q) == []
    leases[1].ack()
    assert pop_data(q, 1) == [3]


# exclusive


@pytest.mark.every_store
def test_an_exclusive_group_has_one_live_lease_and_says_until_when(q: Session) -> None:
    q.group("q", "g", ordering="exclusive")
    for partition in "ab":
        q.push("q", [1, 2], partition=partition)
    held = pop(q, 3)
    for options in ({}, {"partition": "b"}, {"auto_ack": True}):
        batch = pop(q, **options)
        assert (len(batch), batch.why, batch.retry_at) == (0, "locked", held.expires_at)
    assert len(pop(q, group="other")) == 4


@pytest.mark.parametrize("verb", ["ack", "nack", "release", "requeue", "reject", "dead_letter"])
def test_an_exclusive_group_is_free_when_its_lease_is_settled(q: Session, verb: str) -> None:
    q.group("q", "g", ordering="exclusive")
    q.push("q", [1, 2, 3])
    batch = pop(q, 2)
    getattr(batch[0], verb)()
    assert pop(q).why == "locked"
    getattr(batch[1], verb)()
    assert len(pop(q)) == {"ack": 1, "reject": 1, "dead_letter": 1}.get(verb, 3)


def test_an_exclusive_group_is_free_when_its_lease_runs_out(
    q: Session, clock: VirtualClock
) -> None:
    q.group("q", "g", ordering="exclusive")
    q.push("q", [1, 2, 3])
    pop(q, 2)
    clock.advance(LEASE)
    assert pop_data(q) == [1, 2, 3]


# the window


@pytest.mark.every_store
def test_a_window_limits_what_is_leased_at_once(q: Session) -> None:
    q.group("q", "g", max_ack_pending=4)
    q.push("q", list(range(10)))
    assert pop_data(q, 3) == [0, 1, 2]
    batch = pop(q, 3)
    assert [m.data for m in batch] == [3]
    full = pop(q, 3)
    assert (len(full), full.why) == (0, "window")
    batch[0].ack()
    assert pop_data(q) == [4]


@pytest.mark.parametrize("verb", ["ack", "requeue", "reject", "dead_letter"])
def test_every_settle_makes_room_in_the_window(q: Session, verb: str) -> None:
    q.group("q", "g", max_ack_pending=1)
    q.push("q", [0, 1])
    getattr(pop(q)[0], verb)()
    assert pop_data(q) == [1]


def test_waiting_messages_do_not_use_the_window(q: Session) -> None:
    q.group("q", "g", max_ack_pending=2)
    q.push("q", list(range(6)))
    q.push("q", "delayed", delay=50)
    q.nack(pop(q), delay=100)
    q.nack(pop(q), delay=100)
    assert pop_data(q) == [4, 5]
    assert counts(q) == {"waiting": 5, "leased": 2}


def test_what_comes_back_needs_room_like_the_new(q: Session, clock: VirtualClock) -> None:
    q.group("q", "g", max_ack_pending=1)
    q.push("q", [0, 1])
    pop(q)[0].nack(delay=10)
    (held,) = pop(q)
    clock.advance(10)
    assert pop(q).why == "window"
    held.ack()
    assert pop_data(q) == [0]


def test_a_lease_that_runs_out_makes_room(q: Session, clock: VirtualClock) -> None:
    q.group("q", "g", max_ack_pending=2, backoff=[1000])
    q.push("q", list(range(4)))
    assert pop_data(q) == [0, 1]
    clock.advance(LEASE)
    assert pop_data(q) == [2, 3]


def test_a_deleted_message_makes_room(q: Session) -> None:
    q.group("q", "g", max_ack_pending=1)
    q.push("q", [0, 1])
    q.delete_message("q", pop(q)[0].id)
    assert pop_data(q) == [1]


def test_with_a_window_of_one_the_same_message_comes_until_it_is_settled(q: Session) -> None:
    q.group("q", "g", max_ack_pending=1)
    q.push("q", [0, 1])
    for delivery in (1, 2):
        (message,) = pop(q)
        assert (message.data, message.deliveries) == (0, delivery)
        message.nack()


def test_the_window_is_shared_by_all_consumers_of_a_group(q: Session) -> None:
    q.group("q", "g", max_ack_pending=1)
    q.push("q", [0, 1])
    assert len(pop(q, consumer="one")) == 1
    assert len(pop(q, consumer="two")) == 0
    assert len(pop(q, group="other")) == 2


@pytest.mark.parametrize("none", [None, -1])
def test_a_window_may_be_taken_away(q: Session, none: int | None) -> None:
    q.group("q", "g", max_ack_pending=1)
    q.push("q", [0, 1, 2])
    pop(q)
    q.group("q", "g", max_ack_pending=none)
    assert pop_data(q) == [1, 2]


# policies


def test_under_policy_explicit_an_ack_settles_its_own_message_only(q: Session) -> None:
    q.push("q", [0, 1, 2])
    pop(q)[2].ack()
    assert counts(q) == {"done": 1, "leased": 2}


@pytest.mark.every_store
def test_under_policy_all_an_ack_settles_all_before_it_for_every_holder(q: Session) -> None:
    q.group("q", "g", policy="all")
    q.push("q", list(range(8)))
    one, two, three = pop(q, 2), pop(q, 3), pop(q, 2)
    two[1].ack()
    assert counts(q) == {"done": 4, "leased": 3, "ready": 1}
    assert q.ack(one).noop == 2
    with pytest.raises(AlreadySettled):
        two[0].nack()
    three[1].ack()
    assert counts(q) == {"done": 7, "ready": 1}


def test_under_policy_all_an_ack_settles_what_waits_before_it_too(
    q: Session, clock: VirtualClock
) -> None:
    q.group("q", "g", policy="all")
    q.push("q", list(range(4)))
    batch = pop(q)
    batch[0].nack(delay=10)
    batch[1].release()
    batch[3].ack()
    clock.advance(1000)
    assert pop_data(q) == []
    assert counts(q) == {"done": 4}


def test_under_policy_all_a_refused_neighbour_does_not_narrow_an_ack(q: Session) -> None:
    q.group("q", "g", policy="all")
    q.push("q", list(range(4)))
    pop(q, 2)
    batch = pop(q, 2)
    batch[0].release()
    answer = q.ack(list(batch))
    assert [refusal.message_id for refusal in answer.refused] == [batch[0].id]
    assert counts(q) == {"done": 4}


def test_under_policy_all_an_ack_stays_in_its_lane_and_its_group(q: Session) -> None:
    q.group("q", "g", policy="all")
    for partition in "ab":
        q.push("q", [0, 1], partition=partition)
    q.push("q", [0, 1], partition="a", priority=3)
    mine, theirs = pop(q), pop(q, group="other")
    next(m for m in mine if (m.partition, m.priority, m.data) == ("a", 0, 1)).ack()
    assert counts(q) == {"done": 2, "leased": 4}
    assert q.ack(theirs).settled == 6


@pytest.mark.parametrize("verb", ["nack", "release", "reject"])
def test_under_policy_all_other_verbs_settle_their_own_message_only(q: Session, verb: str) -> None:
    q.group("q", "g", policy="all")
    q.push("q", [0, 1, 2])
    getattr(pop(q)[2], verb)()
    assert counts(q)["leased"] == 2


def test_under_policy_all_a_repeated_ack_is_success(q: Session) -> None:
    q.group("q", "g", policy="all")
    q.push("q", [0, 1, 2])
    batch = pop(q)
    batch[1].ack()
    for message in batch[:2]:
        message.ack()
    assert counts(q) == {"done": 2, "leased": 1}


def test_under_policy_none_a_hand_out_is_the_end_of_it(q: Session, clock: VirtualClock) -> None:
    q.group("q", "g", policy="none")
    q.push("q", [0, 1])
    batch = pop(q, 1)
    assert batch.token is None
    batch[0].ack()
    clock.advance(10_000)
    assert pop_data(q) == [1]
    assert counts(q) == {"done": 2}


# first contact


def test_first_contact_decides_and_a_later_dialect_changes_nothing(q: Session) -> None:
    q.pop("q", group="g", dialect="queen")
    q.pop("q", group="g", dialect="pushpop")
    q.pop("q", group="g")
    stats = q.group_stats("q", "g")
    assert (stats.dialect, stats.settings.ordering) == ("queen", "ordered")


def test_a_group_may_be_changed_afterwards(q: Session) -> None:
    q.pop("q", group="g", dialect="queen")
    assert q.group("q", "g", ordering="shared").settings.ordering == "shared"
    assert q.group("q", "g", dialect="pushpop").settings.lease_seconds == 30
    assert q.group_stats("q", "g").settings.ordering == "shared"


def test_a_changed_lease_time_holds_from_the_next_hand_out_on(
    q: Session, clock: VirtualClock
) -> None:
    q.push("q", [0, 1])
    (first,) = pop(q, 1)
    q.group("q", "g", lease_seconds=5)
    pop(q, 1)
    clock.advance(5)
    assert pop_data(q) == [1]
    first.ack()
