"""How long settled messages, unread messages and the history of leases are kept."""

from collections.abc import Callable

import pytest

import ackflow
from ackflow import Session, VirtualClock
from ackflow.broker.broker import Broker
from ackflow.broker.upkeep import UpkeepRunner
from ackflow.errors import Gone, LeaseExpired, LeaseLost, NotFound

DAY = 24 * 3600.0


def keep(q: Session, clock: VirtualClock, seconds: float = 0.0) -> None:
    """Let time pass and do all upkeep there is to do then."""
    clock.advance(seconds)
    while q.upkeep().total:
        pass


def stored(q: Session, queue: str = "orders") -> list[object]:
    return [m.data for m in q.browse(queue).items]


# keep_seconds: what every group has settled


@pytest.mark.every_store
@pytest.mark.parametrize(
    ("kept", "age", "stays"),
    [
        (None, 0, True),
        (None, DAY - 1, True),
        (None, DAY, False),
        (60, 59, True),
        (60, 60, False),
        (7 * DAY, 6 * DAY, True),
        (7 * DAY, 7 * DAY, False),
        (0, 0, False),
    ],
)
def test_what_is_settled_is_kept_for_keep_seconds(
    q: Session, clock: VirtualClock, kept: float | None, age: float, stays: bool
) -> None:
    if kept is not None:
        q.configure("orders", keep_seconds=kept)
    q.push("orders", [1, 2])
    q.pop("orders", batch=2, auto_ack=True)
    keep(q, clock, age)
    assert stored(q) == ([1, 2] if stays else [])
    counts = q.group_stats("orders").counts
    assert (counts.done, counts.pushed) == (2, 2)
    assert q.queue_stats("orders").messages == (2 if stays else 0)
    assert (q.queue_stats("orders").bytes > 0) is stays


def test_upkeep_tells_that_it_trimmed_something(q: Session, clock: VirtualClock) -> None:
    q.push("orders", 1)
    q.pop("orders", auto_ack=True)
    assert q.upkeep().trimmed == 0
    clock.advance(DAY)
    assert q.upkeep().trimmed == 1
    assert q.upkeep().trimmed == 0


def test_only_what_is_old_enough_goes(q: Session, clock: VirtualClock) -> None:
    q.push("orders", "old")
    clock.advance(DAY / 2)
    q.push("orders", "young")
    q.pop("orders", batch=2, auto_ack=True)
    keep(q, clock, DAY / 2)
    assert stored(q) == ["young"]


def leave_unread(q: Session) -> None:
    pass


def leave_leased(q: Session) -> None:
    q.pop("orders", group="slow", batch=9, lease_seconds=90 * DAY)


def leave_waiting(q: Session) -> None:
    q.nack(q.pop("orders", group="slow", batch=9), delay=90 * DAY)


def leave_released(q: Session) -> None:
    q.release(q.pop("orders", group="slow", batch=9))


def leave_the_last_unread(q: Session) -> None:
    q.pop("orders", group="slow", batch=2, auto_ack=True)


@pytest.mark.every_store
@pytest.mark.parametrize(
    "leave", [leave_unread, leave_leased, leave_waiting, leave_released, leave_the_last_unread]
)
def test_nothing_goes_while_a_group_needs_it(
    q: Session, clock: VirtualClock, leave: Callable[[Session], None]
) -> None:
    q.push("orders", [1, 2, 3])
    q.group("orders", "slow")
    q.pop("orders", group="fast", batch=9, auto_ack=True)
    leave(q)
    keep(q, clock, 30 * DAY)
    assert stored(q) == [1, 2, 3]
    q.seek("orders", "slow", to="end")
    keep(q, clock, DAY)
    assert stored(q) == []


def test_what_is_settled_goes_although_a_delayed_message_before_it_waits(
    q: Session, clock: VirtualClock
) -> None:
    q.push("orders", "later", delay=30 * DAY)
    q.push("orders", "now")
    assert len(q.pop("orders", batch=9, auto_ack=True)) == 1
    keep(q, clock, 20 * DAY)
    assert stored(q) == ["later"]
    clock.advance(10 * DAY)
    assert [m.data for m in q.pop("orders", batch=9, auto_ack=True)] == ["later"]
    keep(q, clock, DAY)
    assert stored(q) == []


def stuck(q: Session, clock: VirtualClock) -> list[str]:
    """Ten messages, of which the first and the sixth are held and all others were trimmed."""
    ids = [q.push("orders", n)[0] for n in range(10)]
    batch = q.pop("orders", batch=10, lease_seconds=90 * DAY)
    q.ack([batch[n] for n in (1, 2, 3, 4, 6, 7, 8, 9)])
    keep(q, clock, DAY)
    assert stored(q) == [0, 5]
    return ids


@pytest.mark.every_store
def test_what_every_group_has_settled_goes_from_between_what_is_held(
    q: Session, clock: VirtualClock
) -> None:
    ids = stuck(q, clock)
    assert q.queue_stats("orders").messages == 2
    assert [p.messages for p in q.partitions("orders")] == [2]
    assert [m.data for m in q.browse("orders").items] == [0, 5]
    assert q.message("orders", ids[5]).data == 5
    with pytest.raises(NotFound):
        q.message("orders", ids[3])
    assert q.why("orders", ids[3]).state == "acked"
    assert q.why("orders", ids[0]).state == "leased"
    assert not q.delete_message("orders", ids[3])
    q.push("orders", 10)
    assert [m.data for m in q.pop("orders", batch=9, auto_ack=True)] == [10]
    counts = q.group_stats("orders").counts
    assert (counts.leased, counts.done, counts.ready, counts.pushed) == (2, 9, 0, 11)


@pytest.mark.parametrize("how", ["new group", "seek", "peek", "purge", "delete"])
def test_a_lane_with_gaps_is_read_as_any_other(q: Session, clock: VirtualClock, how: str) -> None:
    ids = stuck(q, clock)
    q.push("orders", [10, 11])
    if how == "new group":
        assert [m.data for m in q.peek("orders", group="new", limit=9)] == [0, 5, 10, 11]
        assert [m.data for m in q.pop("orders", group="new", batch=2)] == [0, 5]
        counts = q.group_stats("orders", "new").counts
        assert (counts.leased, counts.ready, counts.purged, counts.pushed) == (2, 2, 8, 12)
        assert [m.data for m in q.pop("orders", group="new", batch=9)] == [10, 11]
    elif how == "seek":
        q.seek("orders", "__QUEUE_MODE__", to="start")
        counts = q.group_stats("orders").counts
        assert (counts.ready, counts.purged, counts.pushed) == (4, 8, 12)
        assert [m.data for m in q.pop("orders", batch=9)] == [0, 5, 10, 11]
        q.seek("orders", "__QUEUE_MODE__", sequence=3)
        assert [m.data for m in q.pop("orders", batch=1)] == [5]
    elif how == "peek":
        assert [m.data for m in q.peek("orders", limit=9)] == [10, 11]
    elif how == "purge":
        assert q.purge("orders") == 4
        assert stored(q) == []
    else:
        assert [q.delete_message("orders", ids[n]) for n in (0, 0, 5, 7)] == [
            True,
            False,
            True,
            False,
        ]
        assert q.queue_stats("orders").messages == 2
        keep(q, clock, DAY)
        assert stored(q) == [10, 11]
    counts = q.group_stats("orders").counts
    assert counts.pushed == 12


def test_a_gap_at_the_end_of_a_lane_is_passed(q: Session, clock: VirtualClock) -> None:
    stuck(q, clock)
    assert [m.data for m in q.pop("orders", group="new", batch=9)] == [0, 5]
    assert len(q.pop("orders", group="new", batch=9)) == 0
    assert q.group_stats("orders", "new").counts.purged == 8
    q.seek("orders", "new", to="start")
    assert [m.data for m in q.pop("orders", group="new", batch=9, auto_ack=True)] == [0, 5]
    q.seek("orders", "__QUEUE_MODE__", to="end")
    keep(q, clock, DAY)
    assert q.queue_stats("orders").messages == 0
    q.push("orders", 10)
    assert [m.data for m in q.pop("orders", group="new", batch=9)] == [10]


def test_a_gap_of_copies_for_a_group_stays_hidden_from_the_others(
    q: Session, clock: VirtualClock
) -> None:
    q.group("orders", "other")
    q.push("orders", 1)
    q.pop("orders", group="other", lease_seconds=90 * DAY)
    q.requeue(q.pop("orders"))
    q.push("orders", 2)
    assert [m.data for m in q.pop("orders", group="other", batch=9, auto_ack=True)] == [2]
    q.pop("orders", batch=9, auto_ack=True)
    keep(q, clock, DAY)
    assert stored(q) == [1]
    q.seek("orders", "other", to="start")
    counts = q.group_stats("orders", "other").counts
    assert (counts.ready, counts.purged, counts.skipped, counts.pushed) == (1, 1, 0, 2)
    assert [m.data for m in q.pop("orders", group="other", batch=9)] == [1]
    counts = q.group_stats("orders", "other").counts
    assert (counts.leased, counts.purged, counts.pushed) == (1, 1, 2)


def test_retention_removes_what_is_old_from_between_what_is_held(
    q: Session, clock: VirtualClock
) -> None:
    q.configure("orders", retention_seconds=100)
    for n in range(4):
        q.push("orders", n)
    batch = q.pop("orders", batch=3, lease_seconds=DAY)
    q.ack(batch[1])
    keep(q, clock, 100)
    assert stored(q) == [0, 2]
    assert q.group_stats("orders").counts.expired == 1
    q.ack([batch[0], batch[2]])
    keep(q, clock, 1)
    assert stored(q) == []


def test_a_queue_without_groups_keeps_everything(q: Session, clock: VirtualClock) -> None:
    q.configure("orders", keep_seconds=0)
    q.push("orders", [1, 2])
    keep(q, clock, 1000 * DAY)
    assert stored(q) == [1, 2]
    assert len(q.pop("orders", batch=9)) == 2


def test_a_new_group_starts_at_what_is_still_kept(q: Session, clock: VirtualClock) -> None:
    q.push("orders", 1)
    q.pop("orders", auto_ack=True)
    keep(q, clock, DAY)
    q.push("orders", 2)
    assert [m.data for m in q.pop("orders", group="new", batch=9)] == [2]
    counts = q.group_stats("orders", "new").counts
    assert (counts.skipped, counts.leased, counts.pushed) == (1, 1, 2)


def test_the_history_of_a_lease_outlives_its_messages(q: Session, clock: VirtualClock) -> None:
    q.configure("orders", keep_seconds=0, history_seconds=600)
    q.push("orders", [1, 2])
    batch = q.pop("orders", batch=2)
    assert batch.token is not None
    q.ack(batch)
    keep(q, clock, 1)
    assert stored(q) == []
    with pytest.raises(Gone):
        q.read(batch.token)
    assert q.ack(batch).noop == 2


def test_messages_are_counted_right_when_a_deleted_one_is_trimmed(
    q: Session, clock: VirtualClock
) -> None:
    ids = list(q.push("orders", [0, 1, 2]))
    clock.advance(DAY / 2)
    ids += q.push("orders", [3, 4, 5])
    q.delete_message("orders", ids[0])
    q.delete_message("orders", ids[4])
    assert q.queue_stats("orders").messages == 4
    q.pop("orders", batch=9, auto_ack=True)
    keep(q, clock, DAY / 2)
    assert stored(q) == [3, 5]
    assert q.queue_stats("orders").messages == 2
    assert [p.messages for p in q.partitions("orders")] == [2]
    assert q.group_stats("orders").counts.pushed == 6


# retention_seconds: by age, read or not


@pytest.mark.every_store
@pytest.mark.parametrize(("age", "stays"), [(0, True), (99.999, True), (100, False), (DAY, False)])
@pytest.mark.parametrize("upkeep", [False, True])
def test_what_is_unread_goes_at_the_age_of_retention(
    q: Session, clock: VirtualClock, age: float, stays: bool, upkeep: bool
) -> None:
    q.configure("orders", retention_seconds=100)
    q.group("orders", "g")
    q.push("orders", [1, 2])
    clock.advance(age)
    if upkeep:
        q.upkeep()
    assert [m.data for m in q.pop("orders", group="g", batch=9)] == ([1, 2] if stays else [])
    counts = q.group_stats("orders", "g").counts
    assert (counts.leased, counts.expired, counts.pushed) == ((2, 0, 2) if stays else (0, 2, 2))
    assert stored(q) == ([1, 2] if stays else [])


def test_only_what_is_too_old_is_removed(q: Session, clock: VirtualClock) -> None:
    q.configure("orders", retention_seconds=100)
    q.group("orders", "g")
    for n in range(4):
        q.push("orders", n)
        clock.advance(40)
    keep(q, clock)
    assert stored(q) == [2, 3]
    counts = q.group_stats("orders", "g").counts
    assert (counts.expired, counts.ready) == (2, 2)


def test_retention_works_without_groups(q: Session, clock: VirtualClock) -> None:
    q.configure("orders", retention_seconds=100)
    q.push("orders", [1, 2])
    keep(q, clock, 100)
    assert stored(q) == []
    assert list(q.pop("orders")) == []
    assert q.group_stats("orders").counts.pushed == 2


def test_waiting_messages_are_cut(q: Session, clock: VirtualClock) -> None:
    q.configure("orders", retention_seconds=100)
    q.push("orders", [1, 2, 3])
    batch = q.pop("orders", batch=3)
    batch[0].ack()
    batch[1].nack(delay=1000)
    batch[2].release()
    keep(q, clock, 100)
    counts = q.group_stats("orders").counts
    assert (counts.done, counts.expired, counts.lag, counts.pushed) == (1, 2, 0, 3)
    clock.advance(1000)
    assert list(q.pop("orders")) == []


@pytest.mark.every_store
def test_what_is_leased_can_be_settled_although_too_old(q: Session, clock: VirtualClock) -> None:
    q.configure("orders", retention_seconds=100)
    q.push("orders", [1, 2])
    first, second = q.pop("orders", batch=2, lease_seconds=1000)
    keep(q, clock, 500)
    assert q.group_stats("orders").counts.leased == 2
    first.ack()
    second.reject("bad")
    keep(q, clock)
    counts = q.group_stats("orders").counts
    assert (counts.done, counts.dead, counts.expired, counts.pushed) == (1, 1, 0, 2)
    assert [d.data for d in q.dead_letters("orders").items] == [2]
    assert stored(q) == []


@pytest.mark.parametrize("upkeep", [False, True])
def test_what_is_leased_goes_after_its_lease(q: Session, clock: VirtualClock, upkeep: bool) -> None:
    q.configure("orders", retention_seconds=100)
    q.push("orders", [1, 2])
    batch = q.pop("orders", batch=2, lease_seconds=300)
    clock.advance(299)
    q.upkeep()
    assert q.group_stats("orders").counts.leased == 2
    clock.advance(1)
    if upkeep:
        keep(q, clock)
    assert list(q.pop("orders", batch=9)) == []
    counts = q.group_stats("orders").counts
    assert (counts.expired, counts.lag, counts.pushed) == (2, 0, 2)
    with pytest.raises(LeaseExpired):
        batch[0].ack()


def test_what_is_too_old_goes_although_hundreds_before_it_are_leased(clock: VirtualClock) -> None:
    with ackflow.connect(":memory:", clock=clock, upkeep=False) as q:
        q.configure("orders", retention_seconds=60)
        for number in range(250):
            q.push("orders", number)
        q.pop("orders", batch=249, lease_seconds=3_000)
        clock.advance(61)
        assert isinstance(q.broker, Broker)
        runner = UpkeepRunner(q.broker.read, q.broker.write)
        for _ in range(5):
            runner.run_once()
        assert [m.data for m in q.browse("orders", limit=1_000).items] == list(range(249))
        assert q.group_stats("orders").counts.expired == 1


def test_what_comes_back_too_old_is_not_handed_out_again(q: Session, clock: VirtualClock) -> None:
    q.configure("orders", retention_seconds=100)
    q.push("orders", [1, 2])
    first, second = q.pop("orders", batch=2)
    clock.advance(100)
    first.nack("late")
    second.release()
    assert list(q.pop("orders", batch=9)) == []
    counts = q.group_stats("orders").counts
    assert (counts.expired, counts.pushed) == (2, 2)


def test_retention_is_counted_for_each_group(q: Session, clock: VirtualClock) -> None:
    q.configure("orders", retention_seconds=100)
    q.push("orders", [1, 2, 3])
    q.pop("orders", group="fast", batch=9, auto_ack=True)
    q.pop("orders", group="slow", auto_ack=True)
    q.group("orders", "idle")
    keep(q, clock, 100)
    expired = {g.name: g.counts.expired for g in q.queue_stats("orders").groups}
    assert expired == {"fast": 0, "slow": 2, "idle": 3}


def test_dead_letters_outlive_retention(q: Session, clock: VirtualClock) -> None:
    q.configure("orders", retention_seconds=100)
    q.push("orders", 1)
    q.pop("orders")[0].reject("bad")
    keep(q, clock, 10 * DAY)
    assert stored(q) == []
    assert q.dead_letters("orders").total == 1
    assert q.redrive("orders") == 1
    assert [m.data for m in q.pop("orders")] == [1]


def test_messages_are_counted_right_when_a_deleted_one_grows_too_old(
    q: Session, clock: VirtualClock
) -> None:
    q.configure("orders", retention_seconds=100)
    ids = q.push("orders", [1, 2, 3])
    q.delete_message("orders", ids[1])
    keep(q, clock, 100)
    assert q.queue_stats("orders").messages == 0
    q.push("orders", 4)
    assert q.queue_stats("orders").messages == 1


# history_seconds: what ended a lease


@pytest.mark.every_store
@pytest.mark.parametrize(
    ("history", "age", "known"),
    [(None, 599, True), (None, 600, False), (300, 299, True), (300, 300, False), (DAY, 7200, True)],
)
def test_the_history_of_a_lease_is_kept_after_its_end(
    q: Session, clock: VirtualClock, history: float | None, age: float, known: bool
) -> None:
    if history is not None:
        q.configure("orders", history_seconds=history)
    (id,) = q.push("orders", 1)
    batch = q.pop("orders", lease_seconds=3600)
    clock.advance(1000)
    q.ack(batch)
    keep(q, clock, age)
    assert batch.token is not None
    if known:
        assert q.why("orders", id).state == "acked"
        assert [m.id for m in q.read(batch.token)] == [id]
        assert q.ack(batch).noop == 1
    else:
        why = q.why("orders", id)
        assert why.state == "done"
        assert "Done before" in why.sentence
        with pytest.raises(LeaseLost):
            q.read(batch.token)
        with pytest.raises(LeaseLost):
            batch[0].ack()


def test_after_the_history_why_says_before_when(q: Session, clock: VirtualClock) -> None:
    (id,) = q.push("orders", 1)
    q.ack(q.pop("orders"))
    keep(q, clock, 700)
    why = q.why("orders", id)
    assert why.until is not None
    assert why.until.timestamp() == 1_700_000_100
    assert why.sentence.startswith("Done before 2023-11-14 22:15:00")


def test_a_live_lease_is_never_pruned(q: Session, clock: VirtualClock) -> None:
    (id,) = q.push("orders", 1)
    batch = q.pop("orders", lease_seconds=30 * DAY)
    keep(q, clock, 29 * DAY)
    assert q.why("orders", id).state == "leased"
    assert q.ack(batch).settled == 1


def test_upkeep_tells_how_many_leases_it_forgot(q: Session, clock: VirtualClock) -> None:
    q.push("orders", [1, 2, 3])
    for _ in range(3):
        q.ack(q.pop("orders"))
    clock.advance(599)
    assert q.upkeep().pruned == 0
    clock.advance(1)
    assert q.upkeep().pruned == 3


def test_a_long_history_of_one_queue_does_not_keep_that_of_another(
    q: Session, clock: VirtualClock
) -> None:
    q.configure("audit", history_seconds=30 * DAY)
    q.push("audit", 1)
    q.ack(q.pop("audit"))
    (id,) = q.push("orders", 1)
    q.ack(q.pop("orders"))
    keep(q, clock, 3600)
    assert q.why("orders", id).state == "done"


def test_a_lease_whose_messages_are_gone_cannot_be_read_again(
    q: Session, clock: VirtualClock
) -> None:
    q.configure("orders", retention_seconds=100)
    q.push("orders", 1)
    batch = q.pop("orders")
    q.ack(batch)
    keep(q, clock, 100)
    assert batch.token is not None
    with pytest.raises(Gone):
        q.read(batch.token)


def test_upkeep_tells_how_many_leases_ran_out(q: Session, clock: VirtualClock) -> None:
    q.push("orders", [1, 2, 3])
    for _ in range(3):
        q.pop("orders")
    assert q.upkeep().leases_expired == 0
    clock.advance(300)
    assert q.upkeep().leases_expired == 3
    assert q.upkeep().leases_expired == 0


@pytest.mark.parametrize("option", ["retention_seconds", "ttl_seconds"])
@pytest.mark.parametrize(("held", "behind"), [(1, 120), (100, 1), (1, 0)])
@pytest.mark.parametrize("upkeep", [True, False])
def test_what_is_too_old_is_not_handed_out_whatever_others_hold_before_it(
    q: Session, clock: VirtualClock, option: str, held: int, behind: int, upkeep: bool
) -> None:
    q.configure("orders", **{option: 10})
    q.group("orders", "other")
    for number in range(held + behind):
        q.push("orders", number)
    assert len(q.pop("orders", group="slow", batch=held)) == held
    clock.advance(20)
    if upkeep:
        q.upkeep()
    assert not q.pop("orders", group="slow", batch=1000)
    assert not q.pop("orders", group="other", batch=1000)
    counts = q.group_stats("orders", "slow").counts
    assert (counts.leased, counts.expired) == (held, behind)
    assert q.group_stats("orders", "other").counts.expired == held + behind


@pytest.mark.parametrize("option", ["retention_seconds", "ttl_seconds"])
def test_upkeep_tells_how_many_messages_grew_too_old(
    q: Session, clock: VirtualClock, option: str
) -> None:
    q.configure("orders", **{option: 10})
    q.group("orders", "g")
    deleted, *_ = q.push("orders", list(range(5)))
    q.delete_message("orders", deleted)
    clock.advance(20)
    assert q.upkeep().expired == 4
