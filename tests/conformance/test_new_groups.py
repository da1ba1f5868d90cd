"""A new group gets its cursors in slices, and reads as if it had them all at once."""

import pytest
from tests.stateful.recount import Rows, check_rows

from ackflow import Item, Session, VirtualClock
from ackflow.broker.broker import Broker
from ackflow.broker.core import topology


@pytest.fixture(autouse=True)
def _two_lanes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "LANES_AT_ONCE", 2)


def filled(q: Session, count: int = 9) -> list[str]:
    """One message in each of so many partitions."""
    return list(q.push("q", [Item(data=n, partition=f"p{n}") for n in range(count)]))


def popped(q: Session, group: str, **options: object) -> list[object]:
    found: list[object] = []
    while batch := q.pop("q", group=group, auto_ack=True, **options):  # type: ignore[arg-type]
        found += [message.data for message in batch]
    return found


def rows_add_up(q: Session) -> None:
    if isinstance(q.broker, Broker):  # behind a server they are out of reach
        q.broker.look(lambda tx: check_rows(Rows(tx)))


def test_all_lanes_are_served_in_turn(q: Session) -> None:
    filled(q)
    assert popped(q, "g", batch=1) == list(range(9))
    counts = q.group_stats("q", "g").counts
    assert (counts.done, counts.pushed) == (9, 9)


def test_a_lane_is_found_behind_many_empty_ones(q: Session) -> None:
    filled(q, 20)
    q.purge("q")
    q.push("q", "there", partition="p17")
    assert popped(q, "g") == ["there"]


@pytest.mark.parametrize("upkeep", [False, True])
def test_a_group_that_starts_at_new_skips_exactly_what_was_there(q: Session, upkeep: bool) -> None:
    filled(q)
    q.group("q", "g", start="new")
    q.push("q", "new", partition="p7")
    if upkeep:
        q.upkeep()
    q.push("q", "newer", partition="p8")
    q.push("q", "of its own", partition="p9")
    assert popped(q, "g") == ["new", "newer", "of its own"]
    counts = q.group_stats("q", "g").counts
    assert (counts.done, counts.skipped, counts.pushed) == (3, 9, 12)


def test_a_group_that_starts_at_a_time_reads_what_came_since(
    q: Session, clock: VirtualClock
) -> None:
    filled(q)
    clock.advance(60)
    since = clock.now() / 1e6
    clock.advance(60)
    q.push("q", "since", partition="p6")
    q.group("q", "g", start=since)
    q.push("q", "later", partition="p8")
    assert sorted(popped(q, "g"), key=str) == ["later", "since"]
    assert q.group_stats("q", "g").counts.skipped == 9


def test_a_lower_priority_number_is_served_first(q: Session) -> None:
    for priority in (9, 5, 7, 1, 3):
        q.push("q", priority, partition=f"p{priority}", priority=priority)
    assert popped(q, "g", batch=1) == [1, 3, 5, 7, 9]


def test_a_partition_that_is_asked_for_is_served(q: Session) -> None:
    filled(q)
    assert [m.data for m in q.pop("q", group="g", partition="p8")] == [8]
    assert popped(q, "g") == list(range(8))


def test_statistics_count_all_lanes(q: Session) -> None:
    filled(q)
    q.pop("q", group="g")
    stats = q.group_stats("q", "g")
    assert (stats.counts.ready, stats.counts.leased, stats.counts.pushed) == (8, 1, 9)
    assert len(q.progress("q", "g")) == 9
    assert len(q.peek("q", group="g", limit=20)) == 8


def test_nothing_that_it_has_still_to_read_is_trimmed(q: Session, clock: VirtualClock) -> None:
    filled(q)
    q.configure("q", keep_seconds=0)
    popped(q, "first")
    q.group("q", "g")
    clock.advance(1)
    q.upkeep()
    assert popped(q, "g") == list(range(9))
    q.upkeep()
    assert q.queue_stats("q").messages == 0


@pytest.mark.parametrize("verb", ["purge", "delete", "seek", "why"])
def test_what_changes_a_lane_counts_for_the_group(q: Session, verb: str) -> None:
    ids = filled(q)
    q.group("q", "g")
    if verb == "purge":
        q.purge("q", "p7")
        assert popped(q, "g") == [0, 1, 2, 3, 4, 5, 6, 8]
        assert q.group_stats("q", "g").counts.purged == 1
    elif verb == "delete":
        assert q.delete_message("q", ids[7])
        assert popped(q, "g") == [0, 1, 2, 3, 4, 5, 6, 8]
        assert q.group_stats("q", "g").counts.purged == 1
    elif verb == "seek":
        q.seek("q", "g", to="end", partition="p7")
        assert popped(q, "g") == [0, 1, 2, 3, 4, 5, 6, 8]
        assert q.group_stats("q", "g").counts.skipped == 1
    else:
        assert q.why("q", ids[7], group="g").state == "ready"
        assert popped(q, "g") == list(range(9))


def test_an_ordered_group_takes_one_lease_of_a_partition(q: Session) -> None:
    q.push("q", [Item(data=n, partition=f"p{n % 3}", priority=n) for n in range(9)])
    q.group("q", "g", ordering="ordered")
    held = [q.pop("q", group="g") for _ in range(3)]
    assert [[m.data for m in batch] for batch in held] == [[0], [1], [2]]
    assert not q.pop("q", group="g", batch=9)
    q.ack(held[0])
    assert [m.data for m in q.pop("q", group="g", batch=9)] == [3, 6]


def test_a_limited_queue_counts_what_the_group_has_still_to_read(q: Session) -> None:
    filled(q)
    popped(q, "first")
    q.group("q", "g")
    q.configure("q", max_size=10)
    q.push("q", 9)
    with pytest.raises(Exception, match="may hold 10 messages and has 10"):
        q.push("q", 10)


@pytest.mark.parametrize("start", ["all", "new", "time"])
def test_copies_for_other_groups_are_hidden(q: Session, clock: VirtualClock, start: str) -> None:
    filled(q)
    q.requeue(q.pop("q", group="other", batch=9))
    clock.advance(60)
    since = clock.now() / 1e6
    q.push("q", [Item(data="since", partition=f"p{n}") for n in range(9)])
    q.requeue(q.pop("q", group="other", batch=9))
    q.group("q", "g", start=since if start == "time" else start)  # type: ignore[arg-type]
    q.push("q", "last", partition="p8")
    rows_add_up(q)
    count = {"all": 19, "time": 10, "new": 1}[start]
    assert q.group_stats("q", "g").counts.ready == count
    assert len(popped(q, "g")) == count
    rows_add_up(q)


def test_what_is_too_old_is_counted_for_the_group(q: Session, clock: VirtualClock) -> None:
    filled(q)
    q.configure("q", retention_seconds=60)
    q.group("q", "first")
    q.group("q", "g")
    clock.advance(60)
    assert not popped(q, "first")
    assert q.group_stats("q", "g").counts.expired == 9


def test_what_died_before_any_group_came_is_found_in_every_lane(
    q: Session, clock: VirtualClock
) -> None:
    q.configure("q", max_wait_seconds=60)
    filled(q)
    clock.advance(61)
    q.push("q", "new", partition="p8")
    assert q.upkeep().max_wait == 9
    assert popped(q, "g", batch=9) == ["new"]
    assert q.group_stats("q", "g").counts.dead == 9
