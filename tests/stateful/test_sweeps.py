"""Seek, purge and delete in slices: what they cover is decided at once, whenever the slices run."""

from collections.abc import Callable
from typing import Any

import pytest

import ackflow
from ackflow import Session, VirtualClock
from ackflow.broker.broker import Broker
from ackflow.broker.core.admin import admin
from ackflow.broker.core.upkeep import sweeps
from ackflow.broker.core.upkeep.sweeps import Unfinished
from ackflow.broker.views.metrics import snapshot
from ackflow.errors import GroupNotFound, LeaseLost, NotFound, QueueNotFound

from ..conftest import Open
from .recount import Rows, check_rows

LANES = 7
EACH = 5


@pytest.fixture(autouse=True)
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice is one lane, or a few rows."""
    monkeypatch.setattr(sweeps, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(sweeps, "LANES_AT_ONCE", 1)
    monkeypatch.setattr(sweeps, "ROWS_AT_ONCE", 2)


@pytest.fixture
def embedded(open_session: Open, request: pytest.FixtureRequest) -> Session:
    """A session on the database itself: the tests stop between two slices."""
    session = open_session()
    if not isinstance(session.broker, Broker):
        pytest.skip("over HTTP the server runs the slices")
    return session


def fill(q: Session) -> None:
    for lane in range(LANES):
        for n in range(EACH):
            q.push("q", f"{lane}.{n}", partition=f"p{lane}")


def begin(q: Session, verb: Callable[..., Any], *args: Any) -> Unfinished:
    """Run the transaction that decides, and none of the slices after it."""
    broker = q.broker
    assert isinstance(broker, Broker)
    answer = broker.writer.run(verb, args, synced=True)
    assert isinstance(answer, Unfinished)
    return answer


def finish(q: Session, begun: Unfinished) -> Any:
    broker = q.broker
    assert isinstance(broker, Broker)
    return broker.finish(begun)


def recount(q: Session) -> None:
    broker = q.broker
    assert isinstance(broker, Broker)
    broker.read(lambda tx: check_rows(Rows(tx)))


def drain(q: Session, group: str = "g") -> list[Any]:
    found: list[Any] = []
    while batch := q.pop("q", group=group, batch=100):
        found += [message.data for message in batch]
        q.ack(batch)
    return found


ALL = sorted(f"{lane}.{n}" for lane in range(LANES) for n in range(EACH))


def test_a_pop_between_the_slices_of_a_purge_gets_only_what_was_pushed_after_it(
    embedded: Session,
) -> None:
    q = embedded
    q.group("q", "g")
    fill(q)
    begun = begin(q, admin.purge, "q")
    q.push("q", "new", partition="p5")
    q.push("q", "newer", partition="p9")
    assert sorted(drain(q)) == ["new", "newer"]
    assert finish(q, begun) == LANES * EACH
    assert drain(q) == []
    assert (q.queue_stats("q").messages, q.group_stats("q", "g").counts.purged) == (2, LANES * EACH)
    recount(q)


def test_a_purge_covers_no_message_of_a_lane_that_was_used_before_its_slice(
    embedded: Session,
) -> None:
    q = embedded
    q.group("q", "g")
    fill(q)
    begun = begin(q, admin.purge, "q")
    kept = [q.push("q", n, partition=f"p{n}") for n in range(LANES)]
    held = q.pop("q", group="g", batch=3)
    assert finish(q, begun) == LANES * EACH
    q.ack(held)
    assert sorted(drain(q) + [m.data for m in held]) == list(range(LANES))
    assert len(kept) == LANES
    recount(q)


@pytest.mark.parametrize("way", ["seek", "purge", "queue", "group"])
def test_tokens_are_lost_at_once_and_stay_lost(embedded: Session, way: str) -> None:
    q = embedded
    fill(q)
    held = q.pop("q", group="g", batch=LANES * EACH)
    begun = start(q, way)
    for message in (held[0], held[-1]):
        with pytest.raises(LeaseLost):
            message.ack()
    finish(q, begun)
    with pytest.raises(LeaseLost):
        held[1].ack()
    recount(q)


def start(q: Session, way: str) -> Unfinished:
    match way:
        case "seek":
            return begin(q, admin.seek, "q", "g", "start")
        case "purge":
            return begin(q, admin.purge, "q")
        case "queue":
            return begin(q, admin.delete_queue, "q")
    return begin(q, admin.delete_group, "q", "g")


def test_a_lease_that_ends_between_the_slices_brings_nothing_back(
    embedded: Session, clock: VirtualClock
) -> None:
    q = embedded
    q.configure("q", lease_seconds=30, max_deliver=1)
    fill(q)
    q.pop("q", group="g", batch=10)
    q.push("q", "late", delay=20, partition="p6")
    begun = begin(q, admin.purge, "q")
    clock.advance(60)
    assert not q.pop("q", group="g", batch=100)
    assert finish(q, begun) == LANES * EACH + 1
    assert q.queue_stats("q").dead_letters == 0
    counts = q.group_stats("q", "g").counts
    assert (counts.purged, counts.dead) == (LANES * EACH + 1, 0)
    recount(q)


@pytest.mark.parametrize(("to", "wanted"), [("start", ALL), ("end", [])])
def test_a_seek_is_decided_at_once(embedded: Session, to: str, wanted: list[str]) -> None:
    q = embedded
    fill(q)
    q.ack(q.pop("q", group="g", batch=LANES * EACH // 2))
    begun = begin(q, admin.seek, "q", "g", to)
    for lane in range(LANES):
        q.push("q", "new", partition=f"p{lane}")
    assert finish(q, begun) == LANES
    assert sorted(drain(q)) == sorted(wanted + ["new"] * LANES)
    recount(q)


def test_the_counts_are_balanced_after_every_slice(embedded: Session) -> None:
    q = embedded
    broker = q.broker
    assert isinstance(broker, Broker)
    q.group("q", "other")
    fill(q)
    q.ack(q.pop("q", group="g", batch=8))
    q.pop("q", group="g", batch=8)
    for way in ("seek", "purge"):
        begun = start(q, way)
        ended = False
        while not ended:
            for group in ("g", "other"):
                assert q.group_stats("q", group).counts.pushed == LANES * EACH
            ended = broker.write(lambda tx: sweeps.run_slice(tx, begun.sweeps[0])).ended  # noqa: B023
        recount(q)


def test_a_queue_made_again_during_the_slices_of_its_delete_is_empty(embedded: Session) -> None:
    q = embedded
    q.group("q", "g")
    fill(q)
    q.pop("q", group="g")[0].reject("bad")
    held = q.pop("q", group="g", batch=3)
    ids = [message.id for message in held]
    begun = begin(q, admin.delete_queue, "q")
    assert q.queues() == []
    with pytest.raises(QueueNotFound):
        q.queue_stats("q")
    with pytest.raises(QueueNotFound):
        q.purge("q")
    q.push("q", "new", partition="p1")
    assert [m.data for m in q.pop("q", group="g", batch=10)] == ["new"]
    assert q.queue_stats("q").dead_letters == 0
    with pytest.raises(NotFound):
        q.message("q", ids[0])
    assert q.why("q", ids[0], group="g").state == "unknown"
    finish(q, begun)
    assert q.queue_stats("q").partitions == 1
    assert q.group_stats("q", "g").counts.pushed == 1
    recount(q)


def test_a_group_made_again_during_the_slices_of_its_delete_starts_anew(embedded: Session) -> None:
    q = embedded
    fill(q)
    q.ack(q.pop("q", group="g", batch=20))
    q.pop("q", group="g", batch=5)
    begun = begin(q, admin.delete_group, "q", "g")
    with pytest.raises(GroupNotFound):
        q.group_stats("q", "g")
    assert sorted(drain(q)) == ALL
    finish(q, begun)
    assert q.group_stats("q", "g").counts.done == LANES * EACH
    recount(q)


def test_a_deleted_group_holds_back_neither_retention_nor_the_size_of_a_queue(
    embedded: Session, clock: VirtualClock
) -> None:
    q = embedded
    q.configure("q", max_size=LANES * EACH, retention_seconds=60)
    q.group("q", "g")
    q.group("q", "slow")
    fill(q)
    drain(q)
    begin(q, admin.delete_group, "q", "slow")
    q.push("q", "fits")
    clock.advance(61)
    q.upkeep()
    assert q.queue_stats("q").messages == 0
    recount(q)


@pytest.mark.parametrize("way", ["seek", "purge", "queue", "group"])
def test_upkeep_finishes_what_a_dead_process_has_begun(embedded: Session, way: str) -> None:
    q = embedded
    fill(q)
    q.pop("q", group="g", batch=9)
    start(q, way)
    (before,) = q.sweeps()
    assert (before.ended_at, before.lanes, before.queue) == (None, LANES, "q")
    assert before.lanes_done < LANES
    q.upkeep()
    (after,) = q.sweeps()
    assert after.ended_at is not None
    assert after.lanes_done == LANES
    assert after.purged == (LANES * EACH if way == "purge" else 0)
    recount(q)


def test_an_ended_sweep_is_listed_for_an_hour(embedded: Session, clock: VirtualClock) -> None:
    fill(embedded)
    embedded.purge("q")
    assert [sweep.kind for sweep in embedded.sweeps()] == ["purge"]
    clock.advance(3601)
    embedded.upkeep()
    assert embedded.sweeps() == []


def test_two_sweeps_are_applied_in_the_order_in_which_they_were_begun(embedded: Session) -> None:
    q = embedded
    fill(q)
    q.ack(q.pop("q", group="g", batch=LANES * EACH))
    first = begin(q, admin.seek, "q", "g", "start")
    second = begin(q, admin.seek, "q", "g", "end")
    third = begin(q, admin.seek, "q", "g", "start", False, "p3")
    finish(q, third)
    assert sorted(drain(q)) == [f"3.{n}" for n in range(EACH)]
    finish(q, second)
    finish(q, first)
    assert drain(q) == []
    recount(q)


def test_a_delete_ends_the_sweeps_of_its_queue(embedded: Session) -> None:
    q = embedded
    fill(q)
    purge = begin(q, admin.purge, "q")
    assert q.delete_queue("q")
    finish(q, purge)
    assert all(sweep.ended_at for sweep in q.sweeps())
    recount(q)


def test_a_transaction_id_may_be_used_again_as_soon_as_its_message_is_purged(
    embedded: Session,
) -> None:
    q = embedded
    q.configure("q", dedup_seconds=None)
    for n in range(EACH):
        q.push("q", ackflow.Item(data=n, transaction_id=f"t{n}"))
    begun = begin(q, admin.purge, "q")
    assert q.push("q", ackflow.Item(data="again", transaction_id="t3")).duplicates == []
    finish(q, begun)
    assert q.push("q", ackflow.Item(data="twice", transaction_id="t3")).duplicates == [0]
    assert [m.data for m in q.pop("q", batch=9)] == ["again"]
    recount(q)


def test_purged_messages_cannot_be_read_before_their_rows_are_removed(embedded: Session) -> None:
    q = embedded
    for n in range(20):
        q.push("q", n)
    batch = q.pop("q", group="g", batch=5)
    begun = begin(q, admin.purge, "q")
    assert q.browse("q").items == []
    with pytest.raises(NotFound):
        q.message("q", batch[0].id)
    assert q.queue_stats("q").bytes == 0
    assert q.why("q", batch[0].id, group="g").state == "purged"
    q.group("q", "old", start="all")
    assert not q.pop("q", group="old")
    finish(q, begun)
    recount(q)


def test_totals_never_decrease_while_a_delete_runs(embedded: Session) -> None:
    q = embedded
    broker = q.broker
    assert isinstance(broker, Broker)
    fill(q)
    q.ack(q.pop("q", group="g", batch=9))
    q.pop("q", group="other", batch=9)

    def totals() -> tuple[int, int, int]:
        found = broker.look(snapshot)
        groups = found.groups
        return (
            sum(found.pushed.values()),
            sum(group.delivered for group in groups),
            sum(group.acked for group in groups),
        )

    before = totals()
    for begun in (begin(q, admin.delete_group, "q", "g"), begin(q, admin.delete_queue, "q")):
        ended = False
        while not ended:
            assert totals() == before
            ended = broker.write(lambda tx: sweeps.run_slice(tx, begun.sweeps[0])).ended  # noqa: B023
    assert totals() == before
