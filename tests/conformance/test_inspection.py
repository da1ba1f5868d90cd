"""Statistics, progress, browsing and searching are read-only."""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from ackflow import Item, Session, VirtualClock
from ackflow.errors import GroupNotFound, NotFound, QueueNotFound

START = 1_700_000_000.0


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(START + seconds, UTC)


# queues, groups, partitions


def test_an_empty_store_has_no_queues(q: Session) -> None:
    assert q.queues() == []
    with pytest.raises(QueueNotFound):
        q.queue_stats("orders")
    with pytest.raises(QueueNotFound):
        q.group_stats("orders")


@pytest.mark.every_store
def test_queue_statistics_tell_options_sizes_and_groups(q: Session, clock: VirtualClock) -> None:
    q.configure("shop.orders", keep_seconds=5)
    clock.advance(10)
    q.push("shop.orders", ["a", "bb"], partition="eu")
    q.push("shop.orders", b"ccc", partition="us", priority=3)
    q.push("shop.orders", 1, partition="us")
    q.pop("shop.orders", group="g", partition="eu")[0].reject()
    stats = q.queue_stats("shop.orders")
    assert stats.name == "shop.orders"
    assert stats.created_at == at(0)
    assert stats.paused is False
    assert (stats.options.namespace, stats.options.task) == ("shop", "orders")
    assert stats.options.keep_seconds == 5
    assert (stats.partitions, stats.messages, stats.bytes) == (2, 4, 3 + 4 + 3 + 1)
    assert stats.dead_letters == 1
    assert [g.name for g in stats.groups] == ["g"]
    assert stats.groups == [q.group_stats("shop.orders", "g")]


def test_queues_are_listed_by_name(q: Session) -> None:
    for name in ("b", "a", "c"):
        q.push(name, 1)
    assert [s.name for s in q.queues()] == ["a", "b", "c"]
    assert q.queues()[1] == q.queue_stats("b")


@pytest.mark.every_store
def test_group_statistics_count_every_state(q: Session, clock: VirtualClock) -> None:
    q.group("orders", "g", lease_seconds=60)
    q.push("orders", list(range(9)))
    q.push("orders", "later", delay=500)
    clock.advance(5)
    batch = q.pop("orders", group="g", batch=6)
    batch[0].ack()
    batch[1].nack("no", delay=100)
    batch[2].release()
    batch[3].reject("bad")
    batch[4].requeue()
    stats = q.group_stats("orders", "g")
    counts = stats.counts
    assert (counts.ready, counts.leased, counts.waiting) == (3 + 1 + 1, 1, 2)
    assert (counts.dead, counts.done) == (1, 2)
    assert (counts.skipped, counts.purged, counts.expired) == (0, 0, 0)
    assert (counts.pushed, counts.lag) == (11, 8)
    assert (stats.queue, stats.name, stats.paused) == ("orders", "g", False)
    assert stats.settings.lease_seconds == 60
    assert stats.dead_letters == 1
    assert (stats.delivered, stats.consumed, stats.failed) == (6, 1, 1)


def test_the_age_of_a_group_is_that_of_its_oldest_unsettled_message(
    q: Session, clock: VirtualClock
) -> None:
    q.group("orders", "g")
    assert q.group_stats("orders", "g").oldest_seconds is None
    q.push("orders", 1)
    clock.advance(10)
    q.push("orders", 2)
    clock.advance(5)
    assert q.group_stats("orders", "g").oldest_seconds == 15
    first, second = q.pop("orders", group="g", batch=2)
    assert q.group_stats("orders", "g").oldest_seconds == 15
    first.ack()
    assert q.group_stats("orders", "g").oldest_seconds == 5
    second.nack(delay=100)
    clock.advance(7)
    assert q.group_stats("orders", "g").oldest_seconds == 12


def test_all_settled_means_no_age(q: Session) -> None:
    q.push("orders", 1)
    q.ack(q.pop("orders"))
    assert q.group_stats("orders").oldest_seconds is None


def test_a_lease_past_its_end_is_not_counted_as_leased(q: Session, clock: VirtualClock) -> None:
    q.push("orders", [1, 2])
    q.pop("orders", batch=2)
    clock.advance(300)
    counts = q.group_stats("orders").counts
    assert (counts.leased, counts.ready, counts.pushed) == (0, 2, 2)
    assert {m.state for m in q.browse("orders", group="__QUEUE_MODE__").items} == {"ready"}
    assert q.leases("orders") == []


def test_what_is_due_counts_as_ready(q: Session, clock: VirtualClock) -> None:
    q.push("orders", [1, 2])
    q.pop("orders")[0].nack(delay=10)
    q.push("orders", 3, delay=10)
    assert q.group_stats("orders").counts.waiting == 2
    clock.advance(10)
    counts = q.group_stats("orders").counts
    assert (counts.waiting, counts.ready) == (0, 3)


@pytest.mark.every_store
def test_partition_statistics_tell_priorities_and_sizes(q: Session, clock: VirtualClock) -> None:
    q.push("orders", ["a", "b"], partition="eu", priority=2)
    clock.advance(5)
    q.push("orders", 1, partition="us")
    (id,) = q.push("orders", 1, partition="eu", priority=0)
    q.delete_message("orders", id)
    eu, us = q.partitions("orders")
    assert (eu.queue, eu.name, eu.created_at) == ("orders", "eu", at(0))
    assert (eu.priorities, eu.messages) == ([0, 2], 2)
    assert (us.name, us.created_at, us.priorities) == ("us", at(5), [0])
    assert (us.messages, us.bytes) == (1, 1)


@pytest.mark.every_store
def test_lease_statistics_show_consumer_messages_and_end(q: Session, clock: VirtualClock) -> None:
    q.push("orders", [1, 2], partition="us")
    q.push("orders", [3], partition="eu")
    clock.advance(3)
    batch = q.pop("orders", group="g", batch=9, consumer="worker", lease_seconds=60)
    q.ack(batch[:1])
    q.nack(batch[1:2], delay=9)
    (lease,) = q.leases("orders")
    assert lease.token == batch.token
    assert (lease.queue, lease.group, lease.consumer) == ("orders", "g", "worker")
    assert (lease.acquired_at, lease.expires_at) == (at(3), at(63))
    assert (lease.batch, lease.acked, lease.held) == (3, 1, 1)
    assert lease.partitions == ["eu", "us"]


def test_live_leases_are_listed_until_they_end(q: Session, clock: VirtualClock) -> None:
    q.push("orders", [1, 2, 3])
    first = q.pop("orders", group="g", lease_seconds=10)
    clock.advance(1)
    second = q.pop("orders", group="g", lease_seconds=100)
    third = q.pop("orders", group="h")
    assert [x.token for x in q.leases("orders", "g")] == [first.token, second.token]
    assert {x.token for x in q.leases("orders")} == {first.token, second.token, third.token}
    clock.advance(9)
    assert [x.token for x in q.leases("orders", "g")] == [second.token]
    q.extend(second, 500)
    assert q.leases("orders", "g")[0].expires_at == at(510)
    q.ack(second)
    assert q.leases("orders", "g") == []
    with pytest.raises(GroupNotFound):
        q.leases("orders", "nobody")


@pytest.mark.every_store
def test_progress_tells_how_far_a_group_is_in_each_partition(
    q: Session, clock: VirtualClock
) -> None:
    ids = q.push("orders", [1, 2, 3], partition="eu")
    q.push("orders", [4], partition="us")
    clock.advance(10)
    one, two = q.pop("orders", group="g", batch=2, partition="eu")
    one.ack()
    two.nack("no", delay=60)
    held = q.pop("orders", group="g", partition="eu")
    eu, us = q.progress("orders", "g")
    assert (eu.queue, eu.partition, eu.group) == ("orders", "eu", "g")
    assert (eu.last_id, eu.last_created_at, eu.last_at) == (ids[0], at(0), at(10))
    assert (eu.consumed, eu.failed) == (1, 1)
    assert (eu.counts.done, eu.counts.waiting, eu.counts.leased, eu.counts.pushed) == (1, 1, 1, 3)
    assert [lease.token for lease in eu.leases] == [held.token]
    assert (us.partition, us.last_id, us.last_at, us.leases) == ("us", None, None, [])
    assert (us.counts.ready, us.counts.pushed) == (1, 1)
    assert q.progress("orders", "g", "us") == [us]


# one message


@pytest.mark.every_store
def test_one_message_is_seen_as_it_lies(q: Session, clock: VirtualClock) -> None:
    item = Item(data={"n": 1}, transaction_id="t", headers={"h": "v"})
    ids = q.push("orders", ["x", item], partition="eu", priority=7, delay=30)
    found = q.message("orders", ids[1])
    assert (found.id, found.queue, found.partition) == (ids[1], "orders", "eu")
    assert (found.priority, found.sequence) == (7, 1)
    assert (found.created_at, found.due_at) == (at(0), at(30))
    assert (found.data, found.raw, found.is_json) == ({"n": 1}, b'{"n":1}', True)
    assert (found.transaction_id, found.headers) == ("t", {"h": "v"})
    assert found.state is None
    assert q.message("orders", ids[0]).transaction_id == ids[0]


@pytest.mark.timeout(20)
def test_a_message_that_is_not_there_is_not_found(q: Session) -> None:
    (id,) = q.push("orders", 1)
    q.push("bills", 1)
    for call in (
        lambda: q.message("bills", id),
        lambda: q.message("orders", "00000000-0000-8000-8000-000000000000"),
        lambda: q.message("orders", id[:-1] + "1"),
    ):
        with pytest.raises(NotFound, match="does not store a message"):
            call()
    with pytest.raises(GroupNotFound):
        q.message("orders", id, group="nobody")


# browse and search


@pytest.mark.every_store
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 9, 100])
def test_pages_of_a_browse_follow_each_other(q: Session, limit: int) -> None:
    for n in range(8):
        q.push("orders", n, partition=f"p{n % 2}", priority=n // 4)
    found: list[Any] = []
    after = None
    for _ in range(20):
        page = q.browse("orders", limit=limit, after=after)
        assert len(page.items) <= limit
        found += [m.data for m in page.items]
        after = page.next
        if after is None:
            break
    assert after is None
    assert sorted(found) == list(range(8))
    by_lane: dict[tuple[str, int], list[int]] = {}
    for m in q.browse("orders").items:
        by_lane.setdefault((m.partition, m.priority), []).append(m.sequence)
    assert all(seen == [0, 1] for seen in by_lane.values())


@pytest.mark.parametrize(
    ("which", "wanted"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"since": START + 20}, [2, 3, 4, 5]),
        ({"until": START + 20}, [0, 1]),
        ({"since": at(10), "until": at(40)}, [1, 2, 3]),
        ({"since": START + 51}, []),
        ({"partition": "even"}, [0, 2, 4]),
        ({"partition": "odd", "since": START + 20}, [3, 5]),
        ({"limit": 2, "partition": "odd"}, [1, 3]),
    ],
)
def test_a_browse_is_narrowed_by_partition_and_time(
    q: Session, clock: VirtualClock, which: dict[str, Any], wanted: list[int]
) -> None:
    for n in range(6):
        q.push("orders", n, partition=("even", "odd")[n % 2])
        clock.advance(10)
    assert sorted(m.data for m in q.browse("orders", **which).items) == wanted


def test_a_browse_tells_the_state_in_a_group(q: Session) -> None:
    q.push("orders", ["acked", "waiting", "released", "dead", "leased", "ready"])
    q.push("orders", "delayed", delay=60)
    batch = q.pop("orders", group="g", batch=5)
    batch[0].ack()
    batch[1].nack(delay=60)
    batch[2].release()
    batch[3].reject()
    found = {m.data: m.state for m in q.browse("orders", group="g").items}
    assert found == {
        "acked": "settled",
        "waiting": "waiting",
        "released": "ready",
        "dead": "dead",
        "leased": "leased",
        "ready": "ready",
        "delayed": "waiting",
    }


def test_a_message_acked_after_it_was_sought_back_is_settled(q: Session) -> None:
    q.push("orders", 1)
    q.pop("orders", group="g")[0].reject("no")
    q.seek("orders", "g", to="start")
    q.ack(q.pop("orders", group="g"))
    assert [m.state for m in q.browse("orders", group="g").items] == ["settled"]


def test_a_copy_for_another_group_is_hidden(q: Session) -> None:
    q.push("orders", 1)
    q.group("orders", "h")
    q.pop("orders", group="g")[0].requeue()
    assert [m.state for m in q.browse("orders", group="h").items] == ["ready", "hidden"]
    assert [m.state for m in q.browse("orders", group="g").items] == ["settled", "ready"]


@pytest.mark.every_store
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("apple", [0, 3]),
        ("grün", [1]),
        ('"n":2', [2]),
        (b"\x00\x01", [4]),
        ("nothing of the kind", []),
        ("", [0, 1, 2, 3, 4]),
    ],
)
def test_a_search_finds_what_the_payload_contains(
    q: Session, text: str | bytes, wanted: list[int]
) -> None:
    ids = q.push("orders", ["apple", "grün", {"n": 2}, {"fruit": ["apple"]}, b"z\x00\x01z"])
    assert [m.id for m in q.search("orders", text).items] == [ids[n] for n in wanted]


def test_a_search_does_not_match_over_the_border_of_two_messages(q: Session) -> None:
    q.push("orders", [b"ab", b"cd"])
    assert q.search("orders", b"bc").items == []


def test_a_search_goes_on_with_its_token(q: Session) -> None:
    for n in range(40):
        q.push("orders", [f"needle {n}", f"hay {n}"], partition=f"p{n % 3}")
    found, after = [], None
    for _ in range(100):
        page = q.search("orders", "needle", limit=7, after=after)
        found += [m.data for m in page.items]
        after = page.next
        if after is None:
            break
    assert sorted(found) == sorted(f"needle {n}" for n in range(40))


@pytest.mark.parametrize("text", [None, "needle"])
def test_a_look_that_runs_out_of_time_goes_on_where_it_was(q: Session, text: str | None) -> None:
    for n in range(10):
        q.push("orders", f"needle {n}", partition=f"p{n % 2}")
    found, after = [], None
    for _ in range(100):
        if text is None:
            page = q.browse("orders", seconds=0, after=after)
        else:
            page = q.search("orders", text, seconds=0, after=after)
        found += [m.data for m in page.items]
        after = page.next
        if after is None:
            break
    assert sorted(found) == [f"needle {n}" for n in range(10)]


def test_unknown_queues_groups_and_partitions_are_named(q: Session) -> None:
    q.push("orders", 1)
    with pytest.raises(QueueNotFound):
        q.browse("nowhere")
    with pytest.raises(GroupNotFound):
        q.browse("orders", group="nobody")
    with pytest.raises(NotFound, match="no partition 'mars'"):
        q.search("orders", "x", partition="mars")


@pytest.mark.every_store
def test_no_look_changes_anything(q: Session, clock: VirtualClock) -> None:
    ids = q.push("orders", [1, 2, 3])
    q.pop("orders", group="g")[0].nack(delay=5)
    q.pop("orders", group="g")[0].reject()
    q.transaction().put("k", 1).commit()
    clock.advance(2)
    before = q.queues(), q.dead_letters("orders"), q.values()
    q.browse("orders", group="g")
    q.search("orders", "1", group="g")
    q.message("orders", ids[0], group="g")
    q.why("orders", ids[0], group="g")
    q.why("orders", ids[0], group="nobody")
    q.why("nowhere", ids[0])
    q.progress("orders", "g")
    q.partitions("orders")
    q.leases("orders")
    q.dead_summary("orders")
    q.value("other")
    assert (q.queues(), q.dead_letters("orders"), q.values()) == before
    assert [m.data for m in q.pop("orders", group="g", batch=9)] == [3]


# every count is a recount


class Walk:
    """A queue with two groups, and after every step a recount of what the counters tell."""

    def __init__(self, q: Session, clock: VirtualClock) -> None:
        self.q, self.clock = q, clock
        self.pushed = {"a": 0, "b": 0}
        q.group("orders", "a", retry_limit=2, max_deliver=4)
        q.group("orders", "b", ordering="ordered")

    def push(self, n: int, **how: Any) -> None:
        self.q.push("orders", list(range(n)), **how)
        self.pushed = {group: count + n for group, count in self.pushed.items()}

    def settle(self, group: str, batch: int, verb: str, **how: Any) -> None:
        some = self.q.pop("orders", group=group, batch=batch)
        assert some
        getattr(self.q, verb)(some, **how)
        if verb == "requeue":
            self.pushed[group] += len(some)

    def redrive(self, group: str) -> None:
        self.pushed[group] += self.q.redrive("orders", group=group)

    def check(self) -> None:
        stored = len(self.q.browse("orders", limit=10_000).items)
        assert self.q.queue_stats("orders").messages == stored
        for group, pushed in self.pushed.items():
            stats = self.q.group_stats("orders", group)
            seen = Counter(m.state for m in self.q.browse("orders", group=group, limit=9999).items)
            counts = stats.counts
            assert counts.pushed == pushed
            assert (counts.ready, counts.leased) == (seen["ready"], seen["leased"])
            assert counts.waiting == seen["waiting"]
            assert stats.dead_letters == self.q.dead_letters("orders", group=group).total
            assert counts.leased == sum(x.held for x in self.q.leases("orders", group))
            parts = [p.counts for p in self.q.progress("orders", group)]
            assert sum(p.pushed for p in parts) == pushed
            assert sum(p.ready for p in parts) == counts.ready


STEPS: list[Callable[[Walk], object]] = [
    lambda w: w.push(5),
    lambda w: w.push(3, partition="p", priority=2),
    lambda w: w.push(2, delay=50),
    lambda w: w.settle("a", 3, "ack"),
    lambda w: w.settle("a", 2, "nack", delay=20),
    lambda w: w.settle("a", 1, "release"),
    lambda w: w.settle("b", 2, "requeue"),
    lambda w: w.settle("b", 1, "reject", reason="bad"),
    lambda w: w.settle("b", 1, "dead_letter"),
    lambda w: w.q.pop("orders", group="a", batch=2, lease_seconds=1000),
    lambda w: w.q.pop("orders", group="b", batch=1, auto_ack=True),
    lambda w: w.clock.advance(50),
    lambda w: w.q.upkeep(),
    lambda w: w.settle("a", 3, "nack"),
    lambda w: w.settle("a", 2, "requeue"),
    lambda w: w.redrive("b"),
    lambda w: w.q.delete_message("orders", w.q.browse("orders").items[0].id),
    lambda w: w.q.delete_message("orders", w.q.browse("orders").items[-1].id),
    lambda w: w.q.purge_dead("orders", group="a"),
    lambda w: w.push(4),
    lambda w: w.q.seek("orders", "b", sequence=2),
    lambda w: w.settle("b", 2, "ack"),
    lambda w: w.q.seek("orders", "a", to="start"),
    lambda w: w.settle("a", 4, "reject"),
    lambda w: w.q.seek("orders", "a", to="end"),
    lambda w: w.q.purge("orders", "p"),
    lambda w: w.push(3, partition="p"),
    lambda w: w.settle("a", 1, "ack"),
    lambda w: w.q.purge("orders"),
    lambda w: w.push(2),
    lambda w: w.q.configure("orders", retention_seconds=10),
    lambda w: w.clock.advance(10),
    lambda w: w.q.upkeep(),
    lambda w: w.push(2),
    lambda w: w.settle("a", 2, "ack"),
]


@pytest.mark.every_store
@pytest.mark.parametrize("last", range(len(STEPS)))
def test_counts_add_up_to_pushed_after_every_operation(
    q: Session, clock: VirtualClock, last: int
) -> None:
    walk = Walk(q, clock)
    for step in STEPS[: last + 1]:
        step(walk)
    walk.check()


def test_progress_tells_of_a_lease_only_what_lies_in_the_partition(q: Session) -> None:
    q.push("orders", ["a", "b"], partition="eu")
    q.push("orders", "x", partition="us")
    q.push("orders", "y", partition="asia")
    batch = q.pop("orders", group="g", batch=9)
    q.ack([m for m in batch if m.data in ("a", "x")])
    found = {
        p.partition: [(lease.batch, lease.acked, lease.held) for lease in p.leases]
        for p in q.progress("orders", "g")
    }
    assert found == {"eu": [(2, 1, 1)], "us": [], "asia": [(1, 0, 1)]}
    assert [p.partition for p in q.progress("orders", "g", "eu")] == ["eu"]
    with pytest.raises(NotFound):
        q.progress("orders", "g", "nowhere")


def test_browsing_ends_at_its_time_also_where_lanes_are_empty(q: Session) -> None:
    q.push("orders", [Item(data=n, partition=f"p{n}") for n in range(60)])
    q.purge("orders")
    q.push("orders", "last", partition="p59")
    found, after, pages = [], None, 0
    while True:
        page = q.browse("orders", seconds=0, after=after)
        found += [m.data for m in page.items]
        pages += 1
        if (after := page.next) is None:
            break
    assert found == ["last"]
    assert pages >= 60
