"""Staged pushes: written early and invisible, published all at once and once only."""

from typing import Any

import pytest

from ackflow import Item, Session, VirtualClock
from ackflow.errors import InvalidArgument, QueueNotFound, StageMissing, TransactionFailed

pytestmark = pytest.mark.every_store

DAY = 24 * 3600.0


def stored(q: Session, queue: str = "out") -> list[Any]:
    try:
        return [m.data for m in q.browse(queue).items]
    except QueueNotFound:
        return []


def stages_left(q: Session, clock: VirtualClock) -> int:
    """How many stages upkeep finds to drop once a day has gone; for a store with nothing else."""
    clock.advance(DAY)
    return q.upkeep().pruned


def test_a_stage_is_invisible(q: Session) -> None:
    q.stage("job", 1, "out", [1, 2, 3])
    assert q.queues() == []
    q.push("out", "pushed")
    assert stored(q) == ["pushed"]
    assert [m.data for m in q.pop("out", batch=10)] == ["pushed"]
    assert q.queue_stats("out").messages == 1
    assert q.queue_stats("out").bytes == len(b'"pushed"')
    assert q.group_stats("out").counts.pushed == 1


def test_every_stage_has_a_name_of_its_own(q: Session) -> None:
    names = {q.stage("job", 1, "out", [1]) for _ in range(20)}
    assert len(names) == 20


def test_publishing_shows_everything_at_once_in_the_order_of_the_stages(q: Session) -> None:
    a = q.stage("job", 1, "out", ["a1", "a2"])
    b = q.stage("job", 1, "out", ["b1"])
    assert q.publish("job", 1, [b, a]) == 3
    assert stored(q) == ["b1", "a1", "a2"]
    assert [m.data for m in q.pop("out", batch=10)] == ["b1", "a1", "a2"]


@pytest.mark.one_database
def test_a_stage_may_reach_several_lanes_and_stages_several_queues(q: Session) -> None:
    items = [Item(data=n, partition="ab"[n % 2], priority=n // 2) for n in range(4)]
    stages = [q.stage("job", 1, "out", items), q.stage("job", 1, "log", "done", partition="x")]
    assert q.publish("job", 1, stages) == 5
    found = {(m.partition, m.priority): m.data for m in q.browse("out").items}
    assert found == {("a", 0): 0, ("b", 0): 1, ("a", 1): 2, ("b", 1): 3}
    assert stored(q, "log") == ["done"]


def test_published_messages_keep_headers_and_bytes(q: Session) -> None:
    stage = q.stage("job", 1, "out", [b"\x00raw", Item(data=1, headers={"h": "v"})])
    q.publish("job", 1, [stage])
    first, second = q.pop("out", batch=2)
    assert first.data == b"\x00raw"
    assert second.headers == {"h": "v"}


def test_published_messages_come_after_what_was_pushed_before_the_publishing(q: Session) -> None:
    stage = q.stage("job", 1, "out", "staged first")
    q.push("out", "pushed second")
    q.publish("job", 1, [stage])
    assert [m.data for m in q.pop("out", batch=2)] == ["pushed second", "staged first"]


def test_a_message_is_as_old_as_its_publishing(q: Session, clock: VirtualClock) -> None:
    stage = q.stage("job", 1, "out", 1)
    clock.advance(100)
    q.publish("job", 1, [stage])
    (message,) = q.pop("out")
    assert message.created_at.timestamp() == 1_700_000_100


def test_the_delay_of_a_stage_counts_from_its_publishing(q: Session, clock: VirtualClock) -> None:
    stage = q.stage("job", 1, "out", 1, delay=10)
    clock.advance(100)
    q.publish("job", 1, [stage])
    assert list(q.pop("out")) == []
    clock.advance(10)
    assert len(q.pop("out")) == 1


def test_other_stages_of_the_batch_are_dropped(q: Session, clock: VirtualClock) -> None:
    failed = q.stage("job", 1, "out", "failed attempt")
    good = q.stage("job", 1, "out", "good attempt")
    q.publish("job", 1, [good])
    with pytest.raises(StageMissing):
        q.publish("job", 2, [failed])
    assert stored(q) == ["good attempt"]
    assert stages_left(q, clock) == 0


def test_stages_of_other_batches_and_producers_stay(q: Session, clock: VirtualClock) -> None:
    one = q.stage("job", 1, "out", 1)
    two = q.stage("job", 2, "out", 2)
    other = q.stage("other", 1, "out", 3)
    q.publish("job", 1, [one])
    q.publish("job", 2, [two])
    q.publish("other", 1, [other])
    assert stored(q) == [1, 2, 3]


def test_publishing_no_stage_drops_all_of_the_batch(q: Session, clock: VirtualClock) -> None:
    q.stage("job", 1, "out", 1)
    assert q.publish("job", 1, []) == 0
    assert stored(q) == []
    assert stages_left(q, clock) == 0


def test_a_missing_stage_fails_the_whole(q: Session) -> None:
    stage = q.stage("job", 1, "out", 1)
    with pytest.raises(StageMissing, match=r"no stage 'nowhere' of 'job' batch 1"):
        q.publish("job", 1, [stage, "nowhere"])
    assert stored(q) == []
    assert q.publish("job", 1, [stage]) == 1
    assert stored(q) == [1]


@pytest.mark.parametrize(("producer", "batch"), [("job", 2), ("other", 1)])
def test_a_stage_of_another_batch_or_producer_is_missing(
    q: Session, producer: str, batch: int
) -> None:
    stage = q.stage("job", 1, "out", 1)
    with pytest.raises(StageMissing):
        q.publish(producer, batch, [stage])
    assert stored(q) == []
    assert q.publish("job", 1, [stage]) == 1


def test_a_stage_named_twice_is_published_once(q: Session) -> None:
    stage = q.stage("job", 1, "out", 1)
    assert q.publish("job", 1, [stage, stage]) == 1
    assert stored(q) == [1]


@pytest.mark.one_database
def test_a_stage_of_nothing_can_be_published(q: Session) -> None:
    empty = q.stage("job", 1, "out", [])
    full = q.stage("job", 1, "out", [1])
    assert q.publish("job", 1, [empty, full]) == 1
    assert stored(q) == [1]


def test_a_batch_published_before_publishes_nothing_and_succeeds(q: Session) -> None:
    stage = q.stage("job", 5, "out", [1, 2])
    assert q.publish("job", 5, [stage]) == 2
    q.publish("job", 5, [stage])
    again = q.stage("job", 5, "out", [1, 2])
    q.publish("job", 5, [again])
    assert stored(q) == [1, 2]


@pytest.mark.parametrize(
    ("batch", "published"), [(0, False), (4, False), (5, False), (6, True), (1 << 40, True)]
)
def test_only_a_batch_above_the_highest_publishes(
    q: Session, clock: VirtualClock, batch: int, published: bool
) -> None:
    q.publish("job", 5, [q.stage("job", 5, "out", "five")])
    stage = q.stage("job", batch, "out", "more")
    q.publish("job", batch, [stage])
    assert stored(q) == (["five", "more"] if published else ["five"])
    assert stages_left(q, clock) == 0


def test_an_old_batch_succeeds_also_when_its_stages_are_gone(q: Session) -> None:
    q.publish("job", 5, [q.stage("job", 5, "out", "five")])
    q.publish("job", 4, ["gone"])
    q.publish("job", 5, ["gone"])
    assert stored(q) == ["five"]


def test_a_batch_that_failed_to_publish_is_not_the_highest(q: Session) -> None:
    with pytest.raises(StageMissing):
        q.publish("job", 7, ["nowhere"])
    q.publish("job", 6, [q.stage("job", 6, "out", 1)])
    assert stored(q) == [1]


def test_each_producer_has_a_highest_batch_of_its_own(q: Session) -> None:
    q.publish("job", 5, [q.stage("job", 5, "out", "job")])
    q.publish("other", 1, [q.stage("other", 1, "out", "other")])
    assert stored(q) == ["job", "other"]


# with acks in one commit


@pytest.mark.one_database
def test_publishing_and_acking_are_one_commit(q: Session) -> None:
    q.push("in", [1, 2])
    batch = q.pop("in", batch=2)
    stage = q.stage("job", 1, "out", "result")
    also = q.transaction().ack(batch).put("offset", 1)
    assert q.publish("job", 1, [stage], also) == 1
    assert stored(q) == ["result"]
    assert q.group_stats("in").counts.done == 2
    assert q.value("offset") is not None


def test_what_is_published_with_a_stage_is_not_committed_again(q: Session) -> None:
    with q.transaction() as also:
        also.push("log", "once")
        q.publish("job", 1, [q.stage("job", 1, "out", 1)], also)
    assert stored(q, "log") == ["once"]
    with pytest.raises(InvalidArgument, match="already committed"):
        q.publish("job", 2, [q.stage("job", 2, "out", 2)], also)
    assert (stored(q), stored(q, "log")) == ([1], ["once"])


def test_a_known_transaction_id_does_not_count_as_published(q: Session) -> None:
    q.push("out", Item(data="first", transaction_id="t"))
    again = [Item(data="again", transaction_id="t"), Item(data="new", transaction_id="u")]
    assert q.publish("job", 1, [q.stage("job", 1, "out", again)]) == 1
    assert stored(q) == ["first", "new"]


@pytest.mark.one_database
def test_an_ack_no_longer_held_undoes_the_publishing(q: Session, clock: VirtualClock) -> None:
    q.push("in", [1, 2])
    batch = q.pop("in", batch=2)
    stage = q.stage("job", 1, "out", "result")
    clock.advance(300)
    with pytest.raises(TransactionFailed):
        q.publish("job", 1, [stage], q.transaction().ack(batch))
    assert stored(q) == []
    assert "out" not in [s.name for s in q.queues()]
    fresh = q.pop("in", batch=2)
    assert q.publish("job", 1, [stage], q.transaction().ack(fresh)) == 1
    assert stored(q) == ["result"]
    assert q.group_stats("in").counts.done == 2


def test_a_missing_stage_undoes_the_acks(q: Session) -> None:
    q.push("in", 1)
    batch = q.pop("in")
    with pytest.raises(StageMissing):
        q.publish("job", 1, ["nowhere"], q.transaction().ack(batch))
    assert q.group_stats("in").counts.leased == 1


@pytest.mark.one_database
def test_a_repeated_publishing_does_not_ack_again(q: Session) -> None:
    q.push("in", 1)
    batch = q.pop("in")
    stage = q.stage("job", 1, "out", "result")
    q.publish("job", 1, [stage], q.transaction().ack(batch).put("offset", 1))
    q.publish("job", 1, [stage], q.transaction().ack(batch).put("offset", 1))
    offset = q.value("offset")
    assert offset is not None
    assert offset.version == 1
    assert stored(q) == ["result"]


# unpublished stages


@pytest.mark.parametrize(("seconds", "dropped"), [(0, 0), (DAY - 1, 0), (DAY, 2), (5 * DAY, 2)])
def test_unpublished_stages_are_dropped_after_a_day(
    q: Session, clock: VirtualClock, seconds: float, dropped: int
) -> None:
    stages = [q.stage("job", 1, "out", n) for n in range(2)]
    clock.advance(seconds)
    assert q.upkeep().pruned == dropped
    if dropped:
        with pytest.raises(StageMissing):
            q.publish("job", 1, stages)
    else:
        assert q.publish("job", 1, stages) == 2


def test_what_was_published_outlives_the_day(q: Session, clock: VirtualClock) -> None:
    q.publish("job", 1, [q.stage("job", 1, "out", [1, 2])])
    q.stage("job", 2, "out", "never published")
    clock.advance(3 * DAY)
    q.upkeep()
    assert [m.data for m in q.pop("out", batch=9)] == [1, 2]
    q.publish("job", 1, ["gone"])
    assert stored(q) == [1, 2]
