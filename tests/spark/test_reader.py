"""Readers without Spark: numbers, epochs, taking back, keeping alive."""

import pytest

from ackflow import Item, Session, VirtualClock
from ackflow.errors import Gone, InvalidArgument, LeaseLost

from .planner import LEASE, Planner, commit, done, popped, stage

# numbers


def test_numbers_count_up_and_settle_what_is_before_them(q: Session) -> None:
    q.push("orders", list(range(5)))
    planner = Planner(q)
    assert planner.latest(0, rows=2) == 1
    assert planner.data(0, 1) == [0, 1]
    assert done(q) == 0
    assert planner.latest(1, rows=2) == 2
    assert done(q) == 2
    assert planner.data(1, 2) == [2, 3]


def test_nothing_new_answers_with_the_start_and_settles_the_last_batch(q: Session) -> None:
    q.push("orders", [1])
    planner = Planner(q)
    assert planner.latest(0) == 1
    assert not planner.idle(1)
    assert planner.latest(1) == 1
    assert done(q) == 1
    assert planner.idle(1)
    q.push("orders", [2])
    assert not planner.idle(1)


def test_a_repeated_question_leases_nothing_twice(q: Session) -> None:
    q.push("orders", [1, 2])
    planner = Planner(q)
    assert planner.latest(0, rows=1) == 1
    assert planner.latest(0, rows=1) == 1
    assert planner.data(0, 1) == [1]
    assert q.group_stats("orders", "g").counts.leased == 1


def test_a_hand_out_that_spark_never_noted_is_given_by_the_next_run(q: Session) -> None:
    q.push("orders", [1, 2])
    assert Planner(q).latest(0, rows=1) == 1
    planner = Planner(q)
    assert planner.latest(0, rows=2) == 1
    assert planner.data(0, 1) == [1]


def test_a_number_above_the_counter_moves_the_counter(q: Session) -> None:
    q.push("orders", [1, 2])
    planner = Planner(q, 41)
    assert planner.latest(41, rows=1) == 42
    again = Planner(q, 42)
    assert again.latest(42, rows=1) == 43


def test_rows_are_limited_over_many_lanes(q: Session) -> None:
    for n in range(10):
        q.push("orders", list(range(10)), partition=f"p{n}")
    planner = Planner(q)
    assert planner.latest(0, rows=25) == 1
    assert len(planner.messages(0, 1)) == 25


def test_bytes_are_limited_and_one_message_always_fits(q: Session) -> None:
    for _ in range(4):
        q.push("orders", ["x" * 98] * 10)
    planner = Planner(q)
    assert planner.latest(0, size=1_500) == 1
    assert len(planner.messages(0, 1)) == 15
    assert planner.latest(1, size=1) == 2
    assert len(planner.messages(1, 2)) == 1


def test_a_reader_cannot_change_its_group(q: Session) -> None:
    Planner(q)
    with pytest.raises(InvalidArgument, match="new checkpoint"):
        Planner(q, group="other")


def test_a_window_limits_a_batch(q: Session) -> None:
    q.push("orders", list(range(9)))
    q.group("orders", "g", max_ack_pending=4)
    planner = Planner(q)
    planner.latest(0)
    assert planner.data(0, 1) == [0, 1, 2, 3]


def test_two_readers_of_a_group_share_its_messages(q: Session) -> None:
    q.push("orders", list(range(4)))
    one, two = Planner(q), Planner(q, reader="r2")
    assert (one.latest(0, rows=2), two.latest(0, rows=2)) == (1, 1)
    assert (one.data(0, 1), two.data(0, 1)) == ([0, 1], [2, 3])
    one.latest(1)
    assert done(q) == 2


def test_a_time_limit_leaves_out_what_was_pushed_later(q: Session, clock: VirtualClock) -> None:
    """Also where it would be served first, and where nothing else is in its lane."""
    q.push("orders", [1, 2], partition="a", priority=5)
    q.push("orders", [3], partition="b", priority=5)
    planner = Planner(q)
    until = planner.lag().at
    clock.advance(1)
    q.push("orders", [4, 5], partition="a", priority=5)
    q.push("orders", [6], partition="c", priority=0)
    assert planner.latest(0, rows=2, until=until) == 1
    first = planner.data(0, 1)
    assert planner.latest(1, rows=9, until=until) == 2
    assert sorted([*first, *planner.data(1, 2)]) == [1, 2, 3]  # type: ignore[type-var]
    assert planner.latest(2, until=until) == 2
    assert planner.latest(2) == 3
    assert sorted(planner.data(2, 3)) == [4, 5, 6]  # type: ignore[type-var]


def test_the_lag_of_a_reader_says_what_is_left_by_lane(q: Session, clock: VirtualClock) -> None:
    q.push("orders", [1, 2, 3], partition="a")
    q.push("orders", [4], partition="b")
    planner = Planner(q)
    clock.advance(10)
    lag = planner.lag()
    assert (lag.ready, lag.leased, lag.done, lag.oldest_seconds) == (4, 0, 0, 10.0)
    assert (lag.lanes, lag.least_behind, lag.most_behind, lag.behind) == (2, 1, 3, 4)
    planner.latest(0, rows=3)
    lag = planner.lag()
    assert (lag.ready, lag.leased, lag.least_behind, lag.most_behind) == (1, 3, 0, 1)
    planner.latest(1)
    assert planner.lag().done == 3


# reading


def test_a_batch_is_read_in_pages(q: Session) -> None:
    for n in range(50):
        q.push("orders", n)
    planner = Planner(q)
    planner.latest(0)
    lots = planner.partitions(0, 1)
    assert [m.data for m in planner.read(lots, size=10)] == list(range(50))


def test_a_part_of_a_lane_can_be_read_alone(q: Session) -> None:
    q.push("orders", list(range(10)))
    planner = Planner(q)
    planner.latest(0)
    (lot,) = planner.partitions(0, 1)
    lot.ranges = [3, 5, 8, 9]
    assert [m.data for m in planner.read([lot])] == [3, 4, 8]


@pytest.mark.every_store
def test_what_is_read_brings_everything_a_message_has(q: Session) -> None:
    q.push("orders", [Item(data=b"\x00", headers={"h": "v"}, transaction_id="t")], priority=3)
    planner = Planner(q)
    planner.latest(0)
    (message,) = planner.messages(0, 1)
    assert (message.data, message.headers, message.transaction_id) == (b"\x00", {"h": "v"}, "t")
    assert (message.deliveries, message.redelivered, message.priority) == (1, False, 3)
    assert message.token is not None


def test_a_batch_is_the_same_after_it_was_acked(q: Session) -> None:
    q.push("orders", list(range(5)))
    planner = Planner(q)
    planner.latest(0)
    message = planner.messages(0, 1)[2]
    message.ack()
    assert planner.data(0, 1) == [0, 1, 2, 3, 4]


def test_a_batch_with_a_message_that_is_not_stored_fails(q: Session, clock: VirtualClock) -> None:
    q.configure("orders", retention_seconds=10)
    q.push("orders", [1])
    planner = Planner(q)
    planner.latest(0)
    lots = planner.partitions(0, 1)
    planner.messages(0, 1)[0].ack()
    clock.advance(20)
    q.upkeep()
    with pytest.raises(Gone):
        planner.read(lots)


def test_what_is_still_stored_of_a_batch_can_be_asked(q: Session, clock: VirtualClock) -> None:
    q.configure("orders", retention_seconds=10)
    q.push("orders", [1])
    clock.advance(5)
    q.push("orders", [2])
    planner = Planner(q)
    planner.latest(0)
    (lot,) = planner.partitions(0, 1)
    planner.messages(0, 1)[0].ack()
    assert planner.stored(lot) == [0, 2]
    clock.advance(7)
    q.upkeep()
    assert planner.stored(lot) == [1, 2]


def test_an_open_batch_is_not_trimmed_though_it_is_acked(q: Session, clock: VirtualClock) -> None:
    q.configure("orders", keep_seconds=1)
    q.push("orders", [1, 2])
    planner = Planner(q)
    planner.latest(0)
    for message in planner.messages(0, 1):
        message.ack()
    clock.advance(3600)
    q.upkeep()
    assert Planner(q).data(0, 1) == [1, 2]
    Planner(q).latest(1)
    q.upkeep()
    assert q.queue_stats("orders").messages == 0


def test_an_unknown_batch_fails(q: Session) -> None:
    with pytest.raises(Gone, match="new checkpoint"):
        Planner(q, 5).partitions(5, 6)


def test_an_empty_stretch_has_nothing(q: Session) -> None:
    assert Planner(q, 5).partitions(5, 5) == []


# epochs


def test_an_older_run_is_refused_everything(q: Session) -> None:
    q.push("orders", [1, 2])
    old = Planner(q)
    old.latest(0, rows=1)
    lots = old.partitions(0, 1)
    new = Planner(q)
    for refused in (
        lambda: old.latest(1), lambda: old.partitions(0, 1), lambda: old.settle(1), old.keep,
        lambda: old.read(lots), lambda: old.bind(0, 1, 0), old.lag,
    ):  # fmt: skip
        with pytest.raises(LeaseLost):
            refused()
    assert not old.idle(1)
    assert new.data(0, 1) == [1]


def test_a_seek_ends_the_run_of_a_reader(q: Session) -> None:
    q.push("orders", [1, 2])
    planner = Planner(q)
    planner.latest(0)
    q.seek("orders", "g", to="start")
    with pytest.raises(LeaseLost, match="sought"):
        planner.latest(1)
    again = Planner(q, 0)
    assert again.partitions(0, 1) == []
    assert again.latest(1) == 2
    assert again.data(1, 2) == [1, 2]


def test_a_purge_leaves_the_batch_empty(q: Session) -> None:
    q.push("orders", [1, 2])
    Planner(q).latest(0)
    q.purge("orders")
    assert Planner(q).partitions(0, 1) == []


def test_a_deleted_group_ends_its_readers(q: Session) -> None:
    q.push("orders", [1])
    planner = Planner(q)
    planner.latest(0)
    q.delete_group("orders", "g")
    with pytest.raises(LeaseLost, match="deleted"):
        planner.latest(1)


# taking back


def test_a_run_after_the_lease_ran_out_gets_the_same_uncounted(
    q: Session, clock: VirtualClock
) -> None:
    q.push("orders", [1, 2, 3])
    planner = Planner(q)
    planner.latest(0)
    before = planner.messages(0, 1)
    clock.advance(LEASE)
    q.upkeep()
    after = Planner(q).messages(0, 1)
    assert [m.data for m in after] == [1, 2, 3]
    assert {(m.deliveries, m.failures, m.redelivered) for m in after} == {(1, 0, True)}
    assert after[0].token != before[0].token
    with pytest.raises(LeaseLost):
        before[0].ack()
    after[0].ack()


def test_a_run_before_the_lease_ran_out_gets_the_same_for_a_whole_lease_and_flagged(
    q: Session, clock: VirtualClock
) -> None:
    q.push("orders", [1, 2, 3])
    planner = Planner(q)
    planner.latest(0)
    before = planner.messages(0, 1)
    assert not before[0].redelivered
    clock.advance(LEASE - 1)
    again = Planner(q)
    lots = again.partitions(0, 1)
    clock.advance(LEASE - 1)
    assert again.keep() == 0
    after = again.read(lots)
    assert {(m.deliveries, m.failures, m.redelivered) for m in after} == {(1, 0, True)}
    assert after[0].token == before[0].token
    after[0].ack()


def test_what_somebody_else_was_given_is_left_out(q: Session, clock: VirtualClock) -> None:
    q.push("orders", [1, 2, 3])
    Planner(q).latest(0)
    clock.advance(LEASE)
    assert popped(q, batch=1) == [1]
    planner = Planner(q)
    assert planner.data(0, 1) == [2, 3]
    assert planner.latest(1) == 1
    assert done(q) == 2


def test_a_batch_that_spark_finished_is_acked_though_its_lease_ran_out(
    q: Session, clock: VirtualClock
) -> None:
    q.push("orders", [1, 2, 3])
    Planner(q).latest(0)
    clock.advance(10 * LEASE)
    q.upkeep()
    assert Planner(q, 1).latest(1) == 1
    assert done(q) == 3


def test_expiry_does_not_use_up_deliveries_of_an_open_batch(
    q: Session, clock: VirtualClock
) -> None:
    q.group("orders", "g", max_deliver=3, backoff=[5])
    q.push("orders", [1])
    Planner(q).latest(0)
    for _ in range(10):
        clock.advance(LEASE)
        assert [m.deliveries for m in Planner(q).messages(0, 1)] == [1]


def test_history_of_an_open_batch_is_kept(q: Session, clock: VirtualClock) -> None:
    q.push("orders", [1, 2, 3])
    planner = Planner(q)
    planner.latest(0)
    planner.messages(0, 1)[1].ack()
    for _ in range(5):
        clock.advance(3600)
        q.upkeep()
    assert sorted(Planner(q).data(0, 1)) == [1, 2, 3]  # type: ignore[type-var]
    assert done(q) == 1


def test_taking_back_twice_keeps_what_was_settled_in_between(
    q: Session, clock: VirtualClock
) -> None:
    q.push("orders", list(range(6)))
    Planner(q).latest(0)
    for n in range(3):
        clock.advance(LEASE)
        Planner(q).messages(0, 1)[n].ack()
    clock.advance(LEASE)
    last = Planner(q)
    assert sorted(last.data(0, 1)) == list(range(6))  # type: ignore[type-var]
    assert last.latest(1) == 1
    assert done(q) == 6


def test_an_ordered_partition_held_by_another_is_not_taken_back(
    q: Session, clock: VirtualClock
) -> None:
    q.group("orders", "g", ordering="ordered")
    q.push("orders", [1, 2], partition="a")
    q.push("orders", [3, 4], partition="b")
    planner = Planner(q)
    planner.latest(0)
    assert sorted(planner.data(0, 1)) == [1, 2, 3, 4]  # type: ignore[type-var]
    assert popped(q) == []
    clock.advance(LEASE)
    assert [m.data for m in q.pop("orders", group="g", partition="a", batch=1)] == [1]
    again = Planner(q)
    assert again.data(0, 1) == [3, 4]
    assert popped(q) == []


def test_nothing_is_taken_back_past_a_message_that_waits_in_an_ordered_group(
    q: Session, clock: VirtualClock
) -> None:
    q.group("orders", "g", ordering="ordered")
    q.push("orders", [1, 2, 3])
    Planner(q).latest(0)
    clock.advance(LEASE)
    q.pop("orders", group="g", batch=1)[0].nack("no", delay=100)
    again = Planner(q)
    assert again.data(0, 1) == [1, 2, 3]


def test_an_exclusive_group_held_by_another_is_not_taken_back(
    q: Session, clock: VirtualClock
) -> None:
    q.group("orders", "g", ordering="exclusive")
    q.push("orders", [1, 2])
    Planner(q).latest(0)
    clock.advance(LEASE)
    assert popped(q, batch=1) == [1]
    assert Planner(q).partitions(0, 1) == []


# keeping alive


def test_a_heartbeat_keeps_a_batch(q: Session, clock: VirtualClock) -> None:
    q.push("orders", [1])
    planner = Planner(q)
    planner.latest(0)
    for _ in range(10):
        clock.advance(LEASE / 2)
        assert planner.keep() == 0
    assert popped(q) == []


@pytest.mark.one_database
def test_a_heartbeat_that_comes_late_takes_back_what_is_whole(
    q: Session, clock: VirtualClock
) -> None:
    q.push("orders", [1, 2])
    planner = Planner(q)
    planner.latest(0)
    planner.bind(0, 1, 7)
    clock.advance(2 * LEASE)
    assert planner.keep() == 0
    assert popped(q) == []
    assert commit(q, 7, stage(q, 7, "out")).settled == 2


def test_a_heartbeat_does_not_take_back_a_part(q: Session, clock: VirtualClock) -> None:
    q.push("orders", [1, 2])
    planner = Planner(q)
    planner.latest(0)
    clock.advance(2 * LEASE)
    assert popped(q, batch=1) == [1]
    assert planner.keep() == 1
    assert popped(q, batch=1) == [2]


def test_a_reader_not_seen_for_long_is_forgotten(q: Session, clock: VirtualClock) -> None:
    q.configure("orders", keep_seconds=1)
    q.push("orders", [1])
    planner = Planner(q)
    planner.latest(0)
    planner.messages(0, 1)[0].ack()
    clock.advance(31 * 24 * 3600)
    q.upkeep()
    q.upkeep()
    assert q.queue_stats("orders").messages == 0
    with pytest.raises(Gone):
        Planner(q).partitions(0, 1)
