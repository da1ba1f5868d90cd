"""Operator verbs: configure, pause, seek, purge and delete."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from ackflow import Batch, Message, Session, VirtualClock
from ackflow.errors import Gone, GroupNotFound, LeaseLost, NotFound, QueueNotFound, UnknownOption

START = 1_700_000_000.0


def data(batch: Batch[Message]) -> list[Any]:
    return [m.data for m in batch]


# options of a queue


def test_configure_creates_a_queue_with_defaults(q: Session) -> None:
    options = q.configure("orders")
    assert options.keep_seconds == 86_400
    assert options == q.queue_stats("orders").options
    assert [s.name for s in q.queues()] == ["orders"]


@pytest.mark.every_store
def test_configure_changes_only_what_is_given(q: Session) -> None:
    q.configure("orders", lease_seconds=10, retry_limit=5, backoff=[1, 2], namespace="shop")
    options = q.configure("orders", lease_seconds=20, dedup_seconds=None)
    assert options.lease_seconds == 20
    assert options.retry_limit == 5
    assert options.backoff == (1.0, 2.0)
    assert options.namespace == "shop"
    assert options.dedup_seconds is None
    assert options.keep_seconds == 86_400
    assert q.queue_stats("orders").options == options


@pytest.mark.parametrize("none", [None, -1])
def test_a_limit_of_none_or_minus_one_is_no_limit(q: Session, none: int | None) -> None:
    options = q.configure("orders", retry_limit=none, max_deliver=none)
    assert (options.retry_limit, options.max_deliver) == (None, None)
    q.push("orders", 1)
    for _ in range(30):
        q.pop("orders")[0].nack()
    assert len(q.pop("orders")) == 1


def test_an_unknown_option_is_refused_and_the_known_ones_are_named(q: Session) -> None:
    with pytest.raises(UnknownOption, match=r"unknown option 'leese_seconds'.*lease_seconds"):
        q.configure("orders", leese_seconds=5)
    assert q.queues() == []


def test_options_reach_groups_that_exist_already(q: Session, clock: VirtualClock) -> None:
    q.push("orders", [1, 2])
    q.pop("orders", group="g")
    q.configure("orders", lease_seconds=7)
    assert q.group_stats("orders", "g").settings.lease_seconds == 7
    batch = q.pop("orders", group="g")
    assert batch.expires_at is not None
    assert batch.expires_at.timestamp() == START + 7


def test_options_stay_after_other_writes(q: Session) -> None:
    q.configure("orders", delay_seconds=9)
    q.push("orders", 1)
    q.pause("orders")
    q.resume("orders")
    assert q.queue_stats("orders").options.delay_seconds == 9


# options of a group


def test_group_creates_a_group_that_follows_the_queue(q: Session) -> None:
    q.configure("orders", lease_seconds=42)
    stats = q.group("orders", "g", retry_limit=9)
    assert (stats.queue, stats.name, stats.dialect) == ("orders", "g", "native")
    assert (stats.settings.lease_seconds, stats.settings.retry_limit) == (42, 9)
    assert stats.settings.ordering == "shared"


@pytest.mark.every_store
def test_group_changes_only_what_is_given(q: Session) -> None:
    q.group("orders", "g", lease_seconds=5, ordering="ordered", max_ack_pending=7)
    stats = q.group("orders", "g", lease_seconds=6, max_ack_pending=None)
    assert (stats.settings.lease_seconds, stats.settings.ordering) == (6, "ordered")
    assert stats.settings.max_ack_pending is None


def test_a_group_has_its_own_settings(q: Session) -> None:
    q.group("orders", "a", lease_seconds=5)
    q.group("orders", "b")
    q.push("orders", 1)
    assert q.pop("orders", group="a").expires_at != q.pop("orders", group="b").expires_at


def test_a_group_may_change_its_dialect_and_keeps_its_own_options(q: Session) -> None:
    q.group("orders", "g", lease_seconds=5)
    stats = q.group("orders", "g", dialect="queen")
    assert stats.dialect == "queen"
    assert (stats.settings.ordering, stats.settings.max_deliver) == ("ordered", None)
    assert stats.settings.lease_seconds == 5


def test_making_a_group_ordered_holds_partitions_with_a_live_lease(q: Session) -> None:
    q.push("orders", [1, 2])
    (first,) = q.pop("orders", group="g")
    q.group("orders", "g", ordering="ordered")
    assert list(q.pop("orders", group="g")) == []
    first.ack()
    assert data(q.pop("orders", group="g")) == [2]


def test_making_a_group_shared_frees_its_partitions(q: Session) -> None:
    q.group("orders", "g", ordering="ordered")
    q.push("orders", [1, 2])
    q.pop("orders", group="g")
    assert list(q.pop("orders", group="g")) == []
    q.group("orders", "g", ordering="shared")
    assert data(q.pop("orders", group="g")) == [2]


@pytest.mark.parametrize(
    ("start", "wanted"),
    [
        ("all", [1, 2, 3]),
        ("new", []),
        (START + 10, [2, 3]),
        (START + 10.5, [3]),
        (datetime.fromtimestamp(START + 20, UTC), [3]),
        (START + 21, []),
        (START - 5, [1, 2, 3]),
    ],
)
def test_a_new_group_starts_where_its_option_says(
    q: Session, clock: VirtualClock, start: Any, wanted: list[int]
) -> None:
    for n in (1, 2, 3):
        q.push("orders", n)
        clock.advance(10)
    stats = q.group("orders", "g", start=start)
    assert (stats.counts.skipped, stats.counts.ready) == (3 - len(wanted), len(wanted))
    q.push("orders", 4)
    assert data(q.pop("orders", group="g", batch=9)) == [*wanted, 4]


def test_where_a_group_starts_is_decided_once(q: Session) -> None:
    q.push("orders", [1, 2])
    q.group("orders", "g")
    q.group("orders", "g", start="new")
    assert data(q.pop("orders", group="g", batch=9)) == [1, 2]


# pauses


@pytest.mark.every_store
@pytest.mark.parametrize("group", [None, "g"])
def test_a_pause_hands_out_nothing_and_settling_goes_on(q: Session, group: str | None) -> None:
    q.push("orders", [1, 2, 3])
    batch = q.pop("orders", group="g", batch=2)
    q.pause("orders", group)
    empty = q.pop("orders", group="g")
    assert (list(empty), empty.why) == ([], "paused")
    batch[0].ack()
    batch[1].nack("no")
    assert q.group_stats("orders", "g").counts.done == 1
    q.push("orders", 4)
    assert list(q.pop("orders", group="g")) == []
    q.resume("orders", group)
    assert data(q.pop("orders", group="g", batch=9)) == [2, 3, 4]


def test_a_paused_group_does_not_hold_others(q: Session) -> None:
    q.push("orders", 1)
    q.group("orders", "a")
    q.pause("orders", "a")
    assert q.group_stats("orders", "a").paused
    assert not q.queue_stats("orders").paused
    assert list(q.pop("orders", group="a")) == []
    assert len(q.pop("orders", group="b")) == 1


def test_a_paused_queue_holds_every_group_and_says_so(q: Session) -> None:
    q.push("orders", 1)
    q.group("orders", "a")
    q.pause("orders")
    assert q.queue_stats("orders").paused
    assert list(q.pop("orders", group="a")) == list(q.pop("orders", group="b")) == []


def test_leases_run_out_during_a_pause(q: Session, clock: VirtualClock) -> None:
    q.push("orders", 1)
    (message,) = q.pop("orders")
    q.pause("orders")
    clock.advance(300)
    with pytest.raises(LeaseLost):
        message.ack()
    q.resume("orders")
    assert q.pop("orders")[0].deliveries == 2


def test_pausing_twice_is_pausing_once(q: Session) -> None:
    q.push("orders", 1)
    q.pause("orders")
    q.pause("orders")
    q.resume("orders")
    assert len(q.pop("orders")) == 1


def test_queue_and_group_are_paused_apart(q: Session) -> None:
    q.push("orders", 1)
    q.group("orders", "g")
    q.pause("orders")
    q.pause("orders", "g")
    q.resume("orders")
    assert list(q.pop("orders", group="g")) == []
    q.resume("orders", "g")
    assert len(q.pop("orders", group="g")) == 1


# seek


@pytest.fixture
def half_read(q: Session, clock: VirtualClock) -> Session:
    """Messages 0 to 5, ten seconds apart; group g has done 0, 1 and 2."""
    for n in range(6):
        q.push("orders", n)
        clock.advance(10)
    q.ack(q.pop("orders", group="g", batch=3))
    return q


@pytest.mark.every_store
@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ({"to": "start"}, [0, 1, 2, 3, 4, 5]),
        ({"to": "end"}, []),
        ({"sequence": 0}, [0, 1, 2, 3, 4, 5]),
        ({"sequence": 1}, [1, 2, 3, 4, 5]),
        ({"sequence": 3}, [3, 4, 5]),
        ({"sequence": 5}, [5]),
        ({"sequence": 6}, []),
        ({"sequence": 1_000_000}, []),
        ({"time": START}, [0, 1, 2, 3, 4, 5]),
        ({"time": START - 1000}, [0, 1, 2, 3, 4, 5]),
        ({"time": START + 20}, [2, 3, 4, 5]),
        ({"time": START + 20.000001}, [3, 4, 5]),
        ({"time": datetime.fromtimestamp(START + 40, UTC)}, [4, 5]),
        ({"time": START + 51}, []),
    ],
)
def test_a_group_reads_from_where_it_was_sought_to(
    half_read: Session, where: dict[str, Any], wanted: list[int]
) -> None:
    assert half_read.seek("orders", "g", **where) == 1
    counts = half_read.group_stats("orders", "g").counts
    assert (counts.ready, counts.pushed) == (len(wanted), 6)
    assert data(half_read.pop("orders", group="g", batch=9)) == wanted


def test_what_is_skipped_going_forward_is_counted_and_done_stays_done(half_read: Session) -> None:
    half_read.seek("orders", "g", sequence=5)
    counts = half_read.group_stats("orders", "g").counts
    assert (counts.done, counts.skipped, counts.ready) == (3, 2, 1)


def test_seeking_moves_no_other_group(half_read: Session) -> None:
    half_read.pop("orders", group="other", batch=1, auto_ack=True)
    half_read.seek("orders", "g", to="end")
    assert data(half_read.pop("orders", group="other", batch=9)) == [1, 2, 3, 4, 5]


def test_messages_sought_back_to_start_with_fresh_counters(q: Session) -> None:
    q.push("orders", 1)
    q.pop("orders", group="g")[0].nack()
    q.pop("orders", group="g")[0].ack()
    q.seek("orders", "g", to="start")
    (message,) = q.pop("orders", group="g")
    assert (message.deliveries, message.failures) == (1, 0)


def test_a_seek_moves_every_lane_or_those_of_one_partition(q: Session) -> None:
    for partition, priority in (("a", 0), ("a", 1), ("b", 0)):
        q.push("orders", f"{partition}{priority}", partition=partition, priority=priority)
    q.pop("orders", group="g", batch=9, auto_ack=True)
    assert q.seek("orders", "g", to="start", partition="a") == 2
    assert sorted(data(q.pop("orders", group="g", batch=9))) == ["a0", "a1"]
    assert q.seek("orders", "g", to="start") == 3


def test_seeking_after_a_trim_starts_at_what_is_left(q: Session, clock: VirtualClock) -> None:
    q.push("orders", 1)
    q.ack(q.pop("orders", group="g"))
    clock.advance(2 * 86_400)
    q.push("orders", 2)
    q.upkeep()
    q.upkeep()
    q.seek("orders", "g", sequence=0)
    assert data(q.pop("orders", group="g", batch=9)) == [2]
    assert q.group_stats("orders", "g").counts.pushed == 2


def test_seek_counts_no_copies_made_for_other_groups(q: Session) -> None:
    q.push("orders", ["a", "b", "c"])
    q.group("orders", "g")
    q.requeue(q.pop("orders", group="other", batch=3))
    assert q.group_stats("orders", "g").counts.pushed == 3
    for sequence in (4, 6, 5, 2, 4, 0):
        q.seek("orders", "g", sequence=sequence)
        counts = q.group_stats("orders", "g").counts
        assert (counts.pushed, counts.ready) == (3, max(0, 3 - sequence))
    assert data(q.pop("orders", group="g", batch=9)) == ["a", "b", "c"]


# purge and delete


@pytest.mark.every_store
def test_a_purge_removes_everything_and_counts_it(q: Session) -> None:
    q.push("orders", [1, 2, 3, 4])
    leased = q.pop("orders", group="g", batch=2)
    leased[0].ack()
    leased[1].nack(delay=60)
    q.pop("orders", group="g")
    assert q.purge("orders") == 4
    assert q.queue_stats("orders").messages == 0
    assert q.browse("orders").items == []
    counts = q.group_stats("orders", "g").counts
    assert (counts.done, counts.purged, counts.lag, counts.pushed) == (1, 3, 0, 4)
    assert list(q.pop("orders", group="g")) == []
    q.push("orders", 5)
    assert data(q.pop("orders", group="g", batch=9)) == [5]


def test_purged_messages_are_never_read_again(q: Session) -> None:
    ids = q.push("orders", [1, 2, 3])
    batch = q.pop("orders", batch=2)
    assert batch.token is not None
    q.purge("orders")
    with pytest.raises(Gone):
        q.read(batch.token)
    with pytest.raises(Gone):
        q.pop("orders", token=batch.token)
    for id in ids:
        with pytest.raises(NotFound):
            q.message("orders", id)


def test_a_purge_of_a_partition_leaves_the_others(q: Session) -> None:
    q.push("orders", [1, 2], partition="a")
    q.push("orders", 3, partition="b")
    assert q.purge("orders", "a") == 2
    assert [m.data for m in q.browse("orders").items] == [3]
    assert q.purge("orders", "a") == 0


@pytest.mark.every_store
def test_deleting_a_queue_removes_everything_of_it(q: Session) -> None:
    (id,) = q.push("orders", 1, partition="p")
    q.pop("orders", group="g")[0].reject("no")
    assert q.delete_queue("orders") is True
    assert q.delete_queue("orders") is False
    assert q.queues() == []
    with pytest.raises(QueueNotFound):
        q.dead_letters("orders")
    (new,) = q.push("orders", 2)
    assert new != id
    assert [m.data for m in q.browse("orders").items] == [2]
    assert q.queue_stats("orders").groups == []
    assert q.why("orders", id).state == "unknown"


@pytest.mark.every_store
def test_deleting_a_group_removes_its_leases_and_dead_letters_only(q: Session) -> None:
    q.push("orders", [1, 2])
    for group in ("a", "b"):
        first, _ = q.pop("orders", group=group, batch=2)
        first.reject(group)
    assert q.delete_group("orders", "a") is True
    assert q.delete_group("orders", "a") is False
    assert [d.group for d in q.dead_letters("orders").items] == ["b"]
    assert [lease.group for lease in q.leases("orders")] == ["b"]
    with pytest.raises(GroupNotFound):
        q.group_stats("orders", "a")


def test_a_group_of_a_deleted_name_starts_anew(q: Session) -> None:
    q.push("orders", [1, 2])
    q.pop("orders", group="a", batch=2, auto_ack=True)
    q.delete_group("orders", "a")
    assert data(q.pop("orders", group="a", batch=9)) == [1, 2]


@pytest.mark.every_store
def test_a_deleted_message_is_gone_for_every_group(q: Session) -> None:
    ids = q.push("orders", [1, 2, 3])
    assert data(q.pop("orders", group="early")) == [1]
    assert q.delete_message("orders", ids[1]) is True
    assert q.delete_message("orders", ids[1]) is False
    assert data(q.pop("orders", group="early", batch=9)) == [3]
    assert data(q.pop("orders", group="late", batch=9)) == [1, 3]
    assert [m.data for m in q.browse("orders").items] == [1, 3]
    with pytest.raises(NotFound):
        q.message("orders", ids[1])
    assert q.queue_stats("orders").messages == 2


def test_a_deleted_message_counts_as_purged_where_it_was_not_settled(q: Session) -> None:
    ids = q.push("orders", [1, 2])
    q.pop("orders", group="done", batch=2, auto_ack=True)
    q.pop("orders", group="waiting")[0].nack(delay=99)
    q.group("orders", "unread")
    q.delete_message("orders", ids[0])
    for group, purged in (("done", 0), ("waiting", 1), ("unread", 1)):
        counts = q.group_stats("orders", group).counts
        assert (counts.purged, counts.pushed) == (purged, 2)


def test_deleting_a_copy_made_for_one_group_changes_no_count_of_another(q: Session) -> None:
    q.push("orders", "x")
    q.group("orders", "g")
    q.pop("orders", group="other")[0].requeue()
    copy = q.browse("orders").items[1].id
    assert q.delete_message("orders", copy) is True
    counts = q.group_stats("orders", "g").counts
    assert (counts.ready, counts.purged, counts.pushed) == (1, 0, 1)
    q.seek("orders", "g", to="end")
    counts = q.group_stats("orders", "g").counts
    assert (counts.skipped, counts.purged, counts.pushed) == (1, 0, 1)


def test_what_is_not_stored_cannot_be_deleted(q: Session) -> None:
    (id,) = q.push("orders", 1)
    q.push("bills", 1)
    assert q.delete_message("bills", id) is False
    q.purge("orders")
    assert q.delete_message("orders", id) is False


# rule 9: seek, purge and delete end every claim they touch


ENDS: dict[str, Callable[[Session, Batch[Message]], object]] = {
    "seek to start": lambda q, b: q.seek("orders", "g", to="start"),
    "seek to end": lambda q, b: q.seek("orders", "g", to="end"),
    "seek to the cursor": lambda q, b: q.seek("orders", "g", sequence=3),
    "seek to a time": lambda q, b: q.seek("orders", "g", time=START),
    "seek in the partition": lambda q, b: q.seek("orders", "g", to="start", partition="Default"),
    "purge": lambda q, b: q.purge("orders"),
    "purge of the partition": lambda q, b: q.purge("orders", "Default"),
    "delete of the messages": lambda q, b: [q.delete_message("orders", m.id) for m in b],
    "delete of the group": lambda q, b: q.delete_group("orders", "g"),
    "delete of the queue": lambda q, b: q.delete_queue("orders"),
}


@pytest.mark.every_store
@pytest.mark.parametrize("end", list(ENDS.values()), ids=list(ENDS))
def test_live_leases_answer_lease_lost_afterwards(
    q: Session, end: Callable[[Session, Batch[Message]], object]
) -> None:
    q.push("orders", [1, 2, 3, 4])
    batch = q.pop("orders", group="g", batch=3)
    end(q, batch)
    verbs: list[Callable[[], object]] = [
        batch[0].ack,
        batch[1].nack,
        batch[2].release,
        batch[0].requeue,
        batch[1].reject,
        batch[2].dead_letter,
    ]
    for verb in verbs:
        with pytest.raises(LeaseLost) as lost:
            verb()
        assert type(lost.value) is LeaseLost, verb


@pytest.mark.parametrize("end", list(ENDS.values()), ids=list(ENDS))
def test_extending_a_lease_that_was_ended_does_not_say_it_was_settled(
    q: Session, end: Callable[[Session, Batch[Message]], object]
) -> None:
    q.push("orders", [1, 2, 3])
    batch = q.pop("orders", group="g", batch=3)
    end(q, batch)
    with pytest.raises(LeaseLost) as lost:
        batch[0].extend()
    assert type(lost.value) is LeaseLost


@pytest.mark.parametrize("end", list(ENDS.values()), ids=list(ENDS))
def test_settling_the_whole_batch_tells_of_every_lost_message(
    q: Session, end: Callable[[Session, Batch[Message]], object]
) -> None:
    q.push("orders", [1, 2, 3])
    batch = q.pop("orders", group="g", batch=3)
    end(q, batch)
    answer = q.ack(batch)
    assert (answer.settled, answer.noop) == (0, 0)
    assert [r.message_id for r in answer.refused] == [m.id for m in batch]
    assert {r.code for r in answer.refused} == {"invalid_lease"}


def test_an_unknown_token_is_refused_and_not_ignored(q: Session) -> None:
    lease: Any = q.lease("AAAAAAAAAAA")
    for verb in (lease.ack, lease.nack, lease.release, lease.reject, lease.extend, lease.read):
        with pytest.raises(LeaseLost):
            verb()


def test_only_what_was_sought_is_lost_of_a_lease_over_two_partitions(q: Session) -> None:
    q.push("orders", ["a1", "a2"], partition="a")
    q.push("orders", ["b1"], partition="b")
    batch = q.pop("orders", group="g", batch=9)
    q.seek("orders", "g", to="end", partition="a")
    answer = q.ack(batch)
    assert answer.settled == 1
    assert len(answer.refused) == 2
    counts = q.group_stats("orders", "g").counts
    assert (counts.done, counts.skipped) == (1, 2)


def test_waiting_messages_are_skipped_by_a_seek_too(q: Session, clock: VirtualClock) -> None:
    q.push("orders", [1, 2])
    q.pop("orders", group="g")[0].nack(delay=60)
    q.seek("orders", "g", to="end")
    clock.advance(60)
    assert list(q.pop("orders", group="g")) == []
    assert q.group_stats("orders", "g").counts.skipped == 2


@pytest.mark.parametrize("end", ["seek", "purge", "delete"])
def test_an_ordered_group_is_served_again_when_its_lease_was_ended(q: Session, end: str) -> None:
    q.group("orders", "g", ordering="ordered")
    (id,) = q.push("orders", 1)
    q.pop("orders", group="g")
    if end == "seek":
        q.seek("orders", "g", to="end")
    elif end == "purge":
        q.purge("orders")
    else:
        q.delete_message("orders", id)
    q.push("orders", 2)
    assert data(q.pop("orders", group="g", batch=9)) == [2]


def test_leases_of_other_groups_survive_a_seek(q: Session) -> None:
    q.push("orders", 1)
    batch = q.pop("orders", group="other")
    q.group("orders", "g")
    q.seek("orders", "g", to="end")
    assert q.ack(batch).settled == 1


# what is not there


@pytest.mark.every_store
def test_unknown_queues_groups_and_partitions_are_named(q: Session) -> None:
    calls: list[tuple[type[NotFound], Callable[[], object]]] = [
        (QueueNotFound, lambda: q.pause("nowhere")),
        (QueueNotFound, lambda: q.resume("nowhere")),
        (QueueNotFound, lambda: q.seek("nowhere", "g", to="end")),
        (QueueNotFound, lambda: q.purge("nowhere")),
        (QueueNotFound, lambda: q.delete_group("nowhere", "g")),
        (QueueNotFound, lambda: q.delete_message("nowhere", id)),
        (GroupNotFound, lambda: q.pause("orders", "nobody")),
        (GroupNotFound, lambda: q.seek("orders", "nobody", to="end")),
        (NotFound, lambda: q.seek("orders", "g", to="end", partition="mars")),
        (NotFound, lambda: q.purge("orders", "mars")),
    ]
    (id,) = q.push("orders", 1)
    q.group("orders", "g")
    for error, call in calls:
        with pytest.raises(NotFound) as missing:
            call()
        assert type(missing.value) is error
    assert [s.name for s in q.queues()] == ["orders"]


def test_a_pop_that_ends_at_a_deleted_message_leaves_none_out(q: Session) -> None:
    for first in (0, 6, 12):
        ids = q.push("orders", list(range(first, first + 6)))
        if first == 6:
            q.delete_message("orders", ids[0])
    assert data(q.pop("orders", group="g", batch=7)) == [0, 1, 2, 3, 4, 5, 7]
    assert data(q.pop("orders", group="g", batch=99)) == [8, 9, 10, 11, 12, 13, 14, 15, 16, 17]
