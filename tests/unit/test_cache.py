"""The writer's cache stays within its limits, however small its entries are."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import ackflow
from ackflow import Session
from ackflow.store import cache
from ackflow.store.cache import Cache


@pytest.fixture
def q(tmp_path: Path) -> Iterator[Session]:
    with ackflow.connect(tmp_path / "a.db", upkeep=False) as session:
        yield session


def cache_of(q: Session) -> Cache:
    return q._broker.store._cache  # type: ignore[attr-defined,no-any-return]


def test_tiny_bodies_count_for_what_they_take_beside_their_payload(
    q: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MAX_BODY_BYTES", 20 * cache.BODY_COST)
    for number in range(50):
        q.push("q", number)
    assert len(cache_of(q)._bodies) < 20
    assert [message.data for message in q.pop("q", batch=50)] == list(range(50))


def test_more_lanes_than_are_remembered_are_served_all_the_same(
    q: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MAX_CURSORS", 5)
    q.group("q", "g")
    for number in range(20):
        q.push("q", number, partition=str(number))
        assert len(cache_of(q).cursors) <= 6
    popped = [q.pop("q", group="g")[0] for _ in range(20)]
    assert sorted(message.data for message in popped) == list(range(20))
    q.ack(popped)
    assert q.group_stats("q", "g").counts.done == 20


def test_clearing_a_queue_leaves_nothing_that_others_may_have_changed(q: Session) -> None:
    for queue in ("mine", "other"):
        q.group(queue, "ordered", ordering="ordered")
        q.group(queue, "shared", max_ack_pending=10)
        for number in range(4):
            q.push(queue, number, partition=str(number % 2))
        q.pop(queue, group="ordered", batch=2)[0].nack("again", delay=60)
        q.pop(queue, group="shared", batch=3)
    kept = cache_of(q)
    mine = kept.queues[kept.queue_ids["mine"]].id
    lanes = {lane.id for lane in kept.lanes.values() if lane.queue == mine}
    partitions = {lane.partition for lane in kept.lanes.values() if lane.queue == mine}
    groups = {group.id for group in kept.groups.values() if group.queue == mine}
    of_lanes = ("segments", "gone_after", "expiring", "cursors", "nothing_due", "nothing_returned")
    of_groups = (
        "next_times",
        "work_from",
        "alone",
        "work_ahead",
        "in_window",
        "room_known",
        "leased",
    )

    def first(key: object) -> object:
        return key[0] if isinstance(key, tuple) else key

    def found() -> dict[str, int]:
        return {
            **{name: sum(first(key) in lanes for key in getattr(kept, name)) for name in of_lanes},
            **{
                name: sum(first(key) in groups for key in getattr(kept, name)) for name in of_groups
            },
            "lanes": sum(lane.queue == mine for lane in kept.lanes.values()),
            "lanes_in": sum(partition in partitions for partition in kept.lanes_in),
            "leases": sum(lease.group_id in groups for lease, _ in kept.leases.values()),
        }

    before = found()
    assert all(before[name] for name in ("leased", "cursors", "work_ahead", "leases", "lanes_in"))
    others = len(kept.cursors) - before["cursors"]
    kept.clear_queue(mine)
    assert not any(found().values()), found()
    assert len(kept.cursors) == others > 0
