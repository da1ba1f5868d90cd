"""Queue options for size, message age and window."""

import random

import pytest

from ackflow import Item, Session, VirtualClock
from ackflow.errors import QueueFull, TransactionFailed

DAY = 24 * 3600.0


def keep(q: Session, clock: VirtualClock, seconds: float = 0.0) -> None:
    """Let time pass and do all upkeep there is to do then."""
    clock.advance(seconds)
    while q.upkeep().total:
        pass


def stored(q: Session, queue: str = "orders") -> list[object]:
    return [m.data for m in q.browse(queue).items]


# max_size


@pytest.mark.every_store
def test_a_push_over_the_size_of_a_queue_is_refused_whole(q: Session) -> None:
    q.configure("orders", max_size=3)
    q.push("orders", [1, 2])
    with pytest.raises(QueueFull, match="may hold 3 messages and has 2; nothing was pushed"):
        q.push("orders", [3, 4])
    assert stored(q) == [1, 2]
    q.push("orders", [3])
    assert stored(q) == [1, 2, 3]


def test_all_partitions_and_priorities_of_a_queue_count_together(q: Session) -> None:
    q.configure("orders", max_size=3)
    q.push("orders", 1, partition="a")
    q.push("orders", 2, partition="b")
    q.push("orders", 3, partition="b", priority=4)
    with pytest.raises(QueueFull):
        q.push("orders", 4, partition="c")
    assert q.push("other", 4)


def test_settling_makes_room(q: Session) -> None:
    q.configure("orders", max_size=2)
    q.push("orders", [1, 2])
    first, second = q.pop("orders", batch=2)
    with pytest.raises(QueueFull):
        q.push("orders", 3)
    first.ack()
    q.push("orders", 3)
    second.nack(delay=60)
    with pytest.raises(QueueFull):
        q.push("orders", 4)
    assert [m.data for m in q.pop("orders", batch=9)] == [3]


def test_a_dead_letter_makes_room(q: Session) -> None:
    q.configure("orders", max_size=1)
    q.push("orders", 1)
    q.pop("orders")[0].reject("bad")
    q.push("orders", 2)
    assert q.redrive("orders") == 1
    with pytest.raises(QueueFull, match="has 2"):
        q.push("orders", 3)


def test_what_one_group_has_not_settled_takes_room(q: Session) -> None:
    q.configure("orders", max_size=2)
    q.group("orders", "slow")
    q.push("orders", [1, 2])
    q.pop("orders", group="fast", batch=2, auto_ack=True)
    with pytest.raises(QueueFull):
        q.push("orders", 3)
    q.pop("orders", group="slow", auto_ack=True)
    q.push("orders", 3)


def test_what_two_groups_have_not_settled_takes_room_once(q: Session) -> None:
    q.configure("orders", max_size=4)
    q.group("orders", "a")
    q.group("orders", "b")
    q.push("orders", [0, 1, 2, 3])
    a = q.pop("orders", group="a", batch=4)
    b = q.pop("orders", group="b", batch=4)
    a[0].ack()
    b[3].ack()
    with pytest.raises(QueueFull, match="has 4"):
        q.push("orders", 4)
    b[0].ack()
    q.push("orders", 4)


def test_a_new_group_and_a_seek_back_take_room_again(q: Session) -> None:
    q.configure("orders", max_size=2)
    q.push("orders", [1, 2])
    q.pop("orders", group="g", batch=2, auto_ack=True)
    q.push("orders", 3)
    q.pop("orders", group="g", auto_ack=True)
    q.seek("orders", "g", to="start")
    with pytest.raises(QueueFull, match="has 3"):
        q.push("orders", 4)
    q.seek("orders", "g", to="end")
    q.push("orders", 4)
    q.group("orders", "late")
    with pytest.raises(QueueFull, match="has 4"):
        q.push("orders", 5)


def test_deleting_and_purging_make_room(q: Session) -> None:
    q.configure("orders", max_size=2)
    ids = q.push("orders", [1, 2])
    q.delete_message("orders", ids[0])
    q.push("orders", 3)
    with pytest.raises(QueueFull):
        q.push("orders", 4)
    q.purge("orders")
    q.push("orders", [5, 6])


def test_a_requeued_copy_takes_the_place_of_its_original(q: Session) -> None:
    q.configure("orders", max_size=2)
    q.group("orders", "other")
    q.push("orders", 1)
    q.pop("orders", group="other", auto_ack=True)
    q.pop("orders")[0].requeue()
    q.push("orders", 2)
    with pytest.raises(QueueFull, match="has 2"):
        q.push("orders", 3)


def test_a_repeated_push_is_answered_although_the_queue_is_full(q: Session) -> None:
    q.configure("orders", max_size=2)
    first = q.push("orders", [1, 2], key="k")
    assert list(q.push("orders", [1, 2], key="k")) == list(first)
    with pytest.raises(QueueFull):
        q.push("orders", 3, key="other")


def test_known_transaction_ids_need_no_room(q: Session) -> None:
    q.configure("orders", max_size=2)
    q.push("orders", [Item(data=1, transaction_id="a"), Item(data=2, transaction_id="b")])
    q.push("orders", [Item(data=1, transaction_id="a"), Item(data=2, transaction_id="b")])
    with pytest.raises(QueueFull):
        q.push("orders", [Item(data=1, transaction_id="a"), Item(data=3, transaction_id="c")])
    assert stored(q) == [1, 2]


@pytest.mark.every_store
def test_a_full_queue_refuses_a_whole_transaction(q: Session) -> None:
    q.configure("orders", max_size=1)
    q.push("jobs", 1)
    (job,) = q.pop("jobs")
    with pytest.raises(TransactionFailed, match="may hold 1") as refused, q.transaction() as t:
        t.ack(job).push("orders", [1, 2])
    assert refused.value.details["code"] == "queue_full"
    assert q.group_stats("jobs").counts.leased == 1


def test_a_full_queue_refuses_to_publish(q: Session) -> None:
    q.configure("orders", max_size=1)
    stage = q.stage("p", 1, "orders", [1, 2])
    with pytest.raises(QueueFull):
        q.publish("p", 1, [stage])
    q.configure("orders", max_size=2)
    assert q.publish("p", 1, [stage]) == 2


def test_the_limit_may_be_changed_and_lifted(q: Session) -> None:
    q.configure("orders", max_size=5)
    q.push("orders", [1, 2, 3])
    q.configure("orders", max_size=2)
    with pytest.raises(QueueFull):
        q.push("orders", 4)
    q.configure("orders", max_size=None)
    q.push("orders", list(range(100)))


@pytest.mark.every_store
def test_the_room_of_a_queue_agrees_with_a_recount(q: Session, clock: VirtualClock) -> None:
    rng = random.Random(7)
    q.configure("orders", max_size=12, retention_seconds=500)
    groups = ["a", "b"]
    for name in groups:
        q.group("orders", name, lease_seconds=20)
    for _ in range(300):
        group = rng.choice(groups)
        match rng.randrange(6):
            case 0 | 1:
                n = rng.randrange(1, 4)
                unsettled: set[str] = set()
                for name in groups:
                    page = q.browse("orders", group=name)
                    unsettled |= {
                        m.id for m in page.items if m.state in ("ready", "leased", "waiting")
                    }
                try:
                    q.push("orders", list(range(n)), partition=rng.choice("xy"))
                    assert len(unsettled) + n <= 12
                except QueueFull:
                    assert len(unsettled) + n > 12
            case 2:
                for message in q.pop("orders", group=group, batch=3):
                    getattr(message, rng.choice(["ack", "ack", "nack", "release", "reject"]))()
            case 3:
                q.pop("orders", group=group, batch=2)
            case 4:
                clock.advance(rng.choice([1, 15, 30]))
            case 5:
                if rng.random() < 0.2:
                    q.redrive("orders")
    assert q.group_stats("orders", "a").counts.pushed > 30


# ttl_seconds


@pytest.mark.parametrize(("age", "stays"), [(99.999, True), (100, False), (DAY, False)])
@pytest.mark.parametrize("upkeep", [False, True])
def test_what_is_unread_at_the_end_of_its_life_goes(
    q: Session, clock: VirtualClock, age: float, stays: bool, upkeep: bool
) -> None:
    q.configure("orders", ttl_seconds=100)
    q.group("orders", "g")
    q.push("orders", [1, 2])
    clock.advance(age)
    if upkeep:
        assert q.upkeep().expired == (0 if stays else 2)
    assert [m.data for m in q.pop("orders", group="g", batch=9)] == ([1, 2] if stays else [])
    counts = q.group_stats("orders", "g").counts
    assert (counts.leased, counts.expired, counts.pushed) == ((2, 0, 2) if stays else (0, 2, 2))
    assert stored(q) == ([1, 2] if stays else [])


def test_what_every_group_has_read_outlives_the_time_to_live(
    q: Session, clock: VirtualClock
) -> None:
    q.configure("orders", ttl_seconds=100, keep_seconds=1000)
    q.push("orders", ["read", "unread"])
    q.pop("orders", auto_ack=True)
    keep(q, clock, 100)
    assert stored(q) == ["read"]
    counts = q.group_stats("orders").counts
    assert (counts.done, counts.expired, counts.pushed) == (1, 1, 2)
    keep(q, clock, 900)
    assert stored(q) == []


def test_what_one_group_has_not_read_goes_for_that_group(q: Session, clock: VirtualClock) -> None:
    q.configure("orders", ttl_seconds=100)
    q.group("orders", "slow")
    q.push("orders", [1, 2])
    q.pop("orders", group="fast", batch=9, auto_ack=True)
    keep(q, clock, 100)
    assert stored(q) == []
    counts = {g.name: (g.counts.done, g.counts.expired) for g in q.queue_stats("orders").groups}
    assert counts == {"fast": (2, 0), "slow": (0, 2)}


def test_what_is_held_lives_until_its_lease_is_over(q: Session, clock: VirtualClock) -> None:
    q.configure("orders", ttl_seconds=100)
    q.push("orders", [1, 2])
    first, _ = q.pop("orders", batch=2, lease_seconds=300)
    keep(q, clock, 200)
    assert q.group_stats("orders").counts.leased == 2
    first.ack()
    keep(q, clock, 100)
    assert list(q.pop("orders")) == []
    counts = q.group_stats("orders").counts
    assert (counts.done, counts.expired, counts.lag, counts.pushed) == (1, 1, 0, 2)


def test_what_waits_to_come_again_may_grow_too_old(q: Session, clock: VirtualClock) -> None:
    q.configure("orders", ttl_seconds=100)
    (id,) = q.push("orders", 1)
    q.pop("orders")[0].nack("busy", delay=50)
    clock.advance(100)
    assert list(q.pop("orders")) == []
    assert q.group_stats("orders").counts.expired == 1
    assert "retention" in q.why("orders", id).sentence


def test_a_time_to_live_works_without_groups(q: Session, clock: VirtualClock) -> None:
    q.configure("orders", ttl_seconds=100)
    q.push("orders", [1, 2])
    clock.advance(50)
    q.push("orders", 3)
    keep(q, clock, 50)
    assert stored(q) == [3]
    assert [m.data for m in q.pop("orders", batch=9)] == [3]
    assert q.queue_stats("orders").messages == 1


@pytest.mark.every_store
def test_everything_adds_up_whatever_grows_too_old(q: Session, clock: VirtualClock) -> None:
    rng = random.Random(3)
    q.configure("orders", ttl_seconds=60, keep_seconds=300)
    groups = ["a", "b"]
    for name in groups:
        q.group("orders", name, lease_seconds=25)
    pushed = 0
    for _ in range(400):
        group = rng.choice(groups)
        match rng.randrange(5):
            case 0:
                q.push("orders", [clock.now()] * rng.randrange(1, 4))
                pushed = q.group_stats("orders", "a").counts.pushed
            case 1:
                for message in q.pop("orders", group=group, batch=4):
                    assert clock.now() - message.data < 60_000_000
                    verb = rng.choice(["ack", "ack", "nack", "release", "requeue", "reject"])
                    getattr(message, verb)()
                    pushed = q.group_stats("orders", "a").counts.pushed
            case 2:
                q.pop("orders", group=group, batch=2)
            case 3:
                clock.advance(rng.choice([1, 7, 26, 61]))
            case 4:
                q.upkeep()
        counts = q.group_stats("orders", "a").counts
        assert counts.pushed == pushed
        assert min(counts.ready, counts.waiting, counts.leased, counts.expired) >= 0
    assert q.group_stats("orders", "b").counts.expired > 10


# window_seconds


@pytest.mark.every_store
def test_a_partition_is_handed_out_when_its_last_message_is_old_enough(
    q: Session, clock: VirtualClock
) -> None:
    q.configure("orders", window_seconds=10)
    q.push("orders", 1)
    clock.advance(9)
    q.push("orders", 2)
    clock.advance(9.999)
    assert list(q.pop("orders", batch=9)) == []
    clock.advance(0.001)
    assert [m.data for m in q.pop("orders", batch=9)] == [1, 2]


def test_a_push_to_another_partition_does_not_matter(q: Session, clock: VirtualClock) -> None:
    q.configure("orders", window_seconds=10)
    q.push("orders", "a", partition="a")
    clock.advance(5)
    q.push("orders", "b", partition="b")
    clock.advance(5)
    assert [m.data for m in q.pop("orders", batch=9)] == ["a"]
    clock.advance(5)
    assert [m.data for m in q.pop("orders", batch=9)] == ["b"]


def test_a_push_of_another_priority_does(q: Session, clock: VirtualClock) -> None:
    q.configure("orders", window_seconds=10)
    q.push("orders", "low", priority=9)
    clock.advance(9)
    q.push("orders", "high", priority=0)
    clock.advance(9)
    assert list(q.pop("orders", batch=9)) == []
    clock.advance(1)
    assert [m.data for m in q.pop("orders", batch=9)] == ["high", "low"]


def test_a_named_partition_is_no_exception(q: Session, clock: VirtualClock) -> None:
    q.configure("orders", window_seconds=10)
    q.push("orders", 1, partition="a")
    assert list(q.pop("orders", partition="a")) == []
    clock.advance(10)
    assert [m.data for m in q.pop("orders", partition="a")] == [1]


def test_a_pop_knows_when_to_look_again(q: Session, clock: VirtualClock) -> None:
    q.configure("orders", window_seconds=10)
    q.push("orders", 1)
    clock.advance(4)
    told = q.broker.pop(q.pop_request("orders"))
    assert told.retry_at == clock.now() + 6_000_000


def test_what_came_back_waits_for_the_window_too(q: Session, clock: VirtualClock) -> None:
    q.configure("orders", window_seconds=10)
    q.push("orders", 1)
    clock.advance(10)
    (message,) = q.pop("orders")
    q.push("orders", 2)
    message.release()
    assert list(q.pop("orders")) == []
    clock.advance(10)
    assert [m.data for m in q.pop("orders", batch=2)] == [1, 2]


# keep_seconds and the rest


def test_settled_messages_may_be_kept_for_ever(q: Session, clock: VirtualClock) -> None:
    q.configure("orders", keep_seconds=None)
    q.push("orders", 1)
    q.pop("orders", auto_ack=True)
    keep(q, clock, 1000 * DAY)
    assert stored(q) == [1]
    q.configure("orders", keep_seconds=DAY)
    keep(q, clock)
    assert stored(q) == []


def test_a_queue_never_configured_loses_nothing(q: Session, clock: VirtualClock) -> None:
    q.group("orders", "g")
    q.push("orders", list(range(1000)))
    keep(q, clock, 1000 * DAY)
    assert len(q.pop("orders", group="g", batch=2000)) == 1000


def test_the_priority_of_a_queue_is_kept(q: Session) -> None:
    assert q.configure("orders", priority=7).priority == 7
    assert q.queue_stats("orders").options.priority == 7


def test_an_option_given_alone_leaves_the_others(q: Session) -> None:
    q.configure("orders", max_size=5, ttl_seconds=60, window_seconds=3, priority=1)
    options = q.configure("orders", ttl_seconds=None)
    assert (options.max_size, options.ttl_seconds) == (5, None)
    assert (options.window_seconds, options.priority) == (3, 1)


def test_a_deleted_message_behind_an_expired_one_is_passed_at_the_right_time(
    q: Session, clock: VirtualClock
) -> None:
    q.configure("orders", ttl_seconds=5)
    q.group("orders", "g")
    q.push("orders", "old")
    clock.advance(4)
    (id,) = q.push("orders", "deleted")
    q.delete_message("orders", id)
    keep(q, clock, 2)
    assert list(q.pop("orders", group="g")) == []
    q.push("orders", "new")
    assert [m.data for m in q.pop("orders", group="g", batch=9)] == ["new"]
    counts = q.group_stats("orders", "g").counts
    assert (counts.expired, counts.purged, counts.leased, counts.pushed) == (1, 1, 1, 3)


def test_a_repeat_within_a_push_needs_no_room(q: Session) -> None:
    q.configure("orders", max_size=2)
    q.push("orders", 1)
    items = [Item(data=n, transaction_id="same", delay=n) for n in range(3)]
    assert q.push("orders", items).duplicates == [1, 2]
    assert stored(q) == [1, 0]


def test_what_one_of_two_groups_settles_makes_no_room(q: Session) -> None:
    q.configure("orders", max_size=3)
    q.push("orders", [1, 2, 3])
    held = q.pop("orders", group="a", batch=3)
    with pytest.raises(QueueFull):
        q.push("orders", 4)
    q.group("orders", "b")
    with pytest.raises(QueueFull):
        q.push("orders", 4)
    q.ack(held)
    with pytest.raises(QueueFull):
        q.push("orders", 4)
    q.ack(q.pop("orders", group="b", batch=1))
    q.push("orders", 4)
    with pytest.raises(QueueFull):
        q.push("orders", 5)
