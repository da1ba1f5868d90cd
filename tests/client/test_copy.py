"""Copying queues between databases: everything arrives, once, also when the copy is interrupted."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ackflow
from ackflow import Item, Session, VirtualClock
from ackflow.broker.broker import Broker
from ackflow.broker.sharded import transfer
from ackflow.errors import InvalidArgument
from ackflow.session import queue_copy
from ackflow.session.queue_copy import copy_queue, delete_source

from ..running import Running
from ..stateful.recount import Rows, check_rows


@pytest.fixture
def source(clock: VirtualClock) -> Iterator[Session]:
    """A queue with everything that can be copied: groups in the middle of lanes, holes, copies."""
    with ackflow.connect(":memory:", clock=clock, upkeep=False) as q:
        q.configure("orders", keep_seconds=0, retry_limit=5, dedup_seconds=1000)
        q.group("orders", "g", max_ack_pending=50)
        q.group("orders", "h", ordering="ordered", backoff=[1, 2])
        for p in range(3):
            items = [
                Item(data=i, transaction_id=f"t{p}-{i}", headers={"a": "b"}) for i in range(40)
            ]
            q.push("orders", items, partition=f"p{p}", priority=p)
        q.push("orders", ["late", "later"], delay=100)
        q.push("orders", [b"\x00binary"], partition="p0")
        some = q.pop("orders", group="g", batch=30)
        q.ack(some[:10])
        q.nack(some[10:15], "bad: very", delay=50)
        q.reject(some[15:18], "no")
        q.requeue(some[18:20])
        more = q.pop("orders", group="h", batch=10)
        q.ack(more[:3])
        q.nack(more[3:4], "x")
        q.delete_message("orders", q.browse("orders", partition="p2")[5].id)
        q.purge("orders", "p1")
        q.push("orders", [1, 2, 3], partition="p1", priority=1)
        q.seek("orders", "h", to="start", partition="p0")
        q.release(some[20:])
        q.upkeep()
        yield q


def seen(q: Session) -> dict[str, Any]:
    """What a user sees of a queue, without ids and times of creation."""
    stats = q.queue_stats("orders")
    groups = [msgspec.structs.replace(g, created_at=stats.created_at) for g in stats.groups]
    messages = [
        (m.partition, m.priority, m.sequence, m.raw, m.is_json, m.headers, m.created_at, m.due_at)
        for m in q.browse("orders", limit=1000)
    ]
    dead = [
        (
            d.group,
            d.partition,
            d.raw,
            d.kind,
            d.reason,
            d.error,
            d.deliveries,
            d.failures,
            d.died_at,
        )
        for d in q.dead_letters("orders")
    ]
    return {"options": stats.options, "messages": sorted(messages), "dead": sorted(dead),
            "groups": groups, "partitions": stats.partitions}  # fmt: skip


def seen_lanes(q: Session) -> set[tuple[str, int]]:
    return {(m.partition, m.priority) for m in q.browse("orders", limit=1000)}


def delivered(q: Session, group: str) -> list[tuple[Any, ...]]:
    """What the group is given next."""
    q.resume("orders")
    return [
        (m.partition, m.priority, m.sequence, m.data, m.deliveries, m.failures, m.redelivered)
        for m in q.pop("orders", group=group, batch=1000, partitions=100)
    ]


def check_same(source: Session, target: Session, clock: VirtualClock) -> None:
    assert seen(target) == seen(source)
    for q in (source, target):
        if isinstance(q.broker, Broker):
            q.broker.read(lambda tx: check_rows(Rows(tx)))
    clock.advance(60)
    for group in ("g", "h"):
        assert delivered(target, group) == delivered(source, group) != []
    assert target.push("orders", [Item(data=0, transaction_id="t0-0")], partition="p0").duplicates
    for q in (source, target):
        if isinstance(q.broker, Broker):
            q.broker.read(lambda tx: check_rows(Rows(tx)))


@pytest.mark.parametrize("kind", ["memory", "file", "several", "http"])
def test_a_copied_queue_goes_on_where_it_was(
    source: Session, clock: VirtualClock, tmp_path: Path, kind: str
) -> None:
    running = None
    place: Any = {"memory": ":memory:", "file": tmp_path / "t.db"}.get(kind)
    if kind == "several":
        place = [tmp_path / "a.db", tmp_path / "b.db"]
    if kind == "http":
        running = Running(ackflow.connect(":memory:", clock=clock, upkeep=False))
        place = running.url
    with ackflow.connect(place, clock=clock, upkeep=False) as target:
        copied = copy_queue(source, target, "orders")
        assert (copied.dead_letters, copied.leased, copied.resumed) == (3, 0, False)
        check_same(source, target, clock)
    if running is not None:
        running.stop()
        running.session.close()


def test_a_queue_is_copied_to_and_from_postgresql(
    source: Session, clock: VirtualClock, postgres_url: str
) -> None:
    with (
        ackflow.connect(postgres_url, clock=clock, upkeep=False) as between,
        ackflow.connect(":memory:", clock=clock, upkeep=False) as target,
    ):
        copy_queue(source, between, "orders")
        copy_queue(between, target, "orders")
        check_same(source, target, clock)


class Killed(Exception):
    pass


def test_a_copy_that_is_interrupted_after_any_step_goes_on(
    source: Session, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(queue_copy, "SLICE_BYTES", 300)
    monkeypatch.setattr(queue_copy, "TXIDS", 7)
    monkeypatch.setattr(queue_copy, "LANES", 2)
    with ackflow.connect(tmp_path / "t.db", clock=clock, upkeep=False) as target:
        broker = target.broker
        assert isinstance(broker, Broker)
        do, left, runs = broker.do, 0, 0

        def limited(verb: Any, synced: bool, *args: Any, **kwargs: Any) -> Any:
            nonlocal left
            answer = do(verb, synced, *args, **kwargs)
            left -= 1
            if left == 0:
                raise Killed()
            return answer

        monkeypatch.setattr(broker, "do", limited)
        while True:
            runs += 1
            left = runs  # one step more each time, so that every step is the last one once
            try:
                copied = copy_queue(source, target, "orders")
                break
            except Killed:
                paused = [queue.paused for queue in target.queues()]
                assert paused in ([], [True]) or runs > 10
        monkeypatch.undo()
        assert runs > 10
        assert copied.resumed
        check_same(source, target, clock)


def test_positions_are_set_in_slices_and_later_ones_replace_them(
    source: Session, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_copy, "LANES", 1)
    held = source.pop("orders", group="g", batch=10)
    with ackflow.connect(":memory:", clock=clock, upkeep=False) as target:
        broker = target.broker
        assert isinstance(broker, Broker)
        do, written = broker.do, list[int]()

        def counted(verb: Any, synced: bool, *args: Any, **kwargs: Any) -> Any:
            answer = do(verb, synced, *args, **kwargs)
            if verb is transfer.import_states:
                written.append(len(msgspec.msgpack.decode(args[-1])))
                if len(written) == 3:
                    raise Killed()
            return answer

        monkeypatch.setattr(broker, "do", counted)
        with pytest.raises(Killed):
            copy_queue(source, target, "orders")
        while target.upkeep().total:  # it trims nothing that a later position may need
            pass
        source.ack(held)
        source.seek("orders", "g", to="start", partition="p2")
        assert copy_queue(source, target, "orders").resumed
        monkeypatch.undo()
        assert set(written) == {1}
        assert len(written) == 3 + len(seen_lanes(source))
        check_same(source, target, clock)


def test_what_is_pushed_after_the_copy_keeps_the_source_from_being_deleted(
    source: Session, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the copy was interrupted after the positions were set."""
    with ackflow.connect(":memory:", clock=clock, upkeep=False) as target:
        with monkeypatch.context() as patched:

            def killed(*_: object) -> None:
                raise Killed()

            patched.setattr(queue_copy, "_copy_dead_letters", killed)
            with pytest.raises(Killed):
                copy_queue(source, target, "orders")
        source.push("orders", ["late 1", "late 2"])
        copied = copy_queue(source, target, "orders")
        assert copied.resumed
        with pytest.raises(InvalidArgument, match="2 messages were pushed to queue 'orders' after"):
            delete_source(source, copied)
        last = list(source.browse("orders", partition="Default"))[-2:]
        assert [message.data for message in last] == ["late 1", "late 2"]


def test_a_source_that_was_copied_whole_is_deleted(source: Session, clock: VirtualClock) -> None:
    with ackflow.connect(":memory:", clock=clock, upkeep=False) as target:
        delete_source(source, copy_queue(source, target, "orders"))
        assert source.queues() == []
        assert target.queue_stats("orders").messages


def test_a_queue_that_exists_at_the_target_is_left_alone(
    source: Session, clock: VirtualClock
) -> None:
    with ackflow.connect(":memory:", clock=clock, upkeep=False) as target:
        target.push("orders", "mine")
        with pytest.raises(InvalidArgument, match="exists at the target"):
            copy_queue(source, target, "orders")
        assert [m.data for m in target.pop("orders")] == ["mine"]
        assert not source.queue_stats("orders").paused


def test_what_is_leased_is_due_in_the_copy(clock: VirtualClock) -> None:
    with (
        ackflow.connect(":memory:", clock=clock, upkeep=False) as source,
        ackflow.connect(":memory:", clock=clock, upkeep=False) as target,
    ):
        source.push("orders", [1, 2, 3])
        source.pop("orders", batch=2)
        copied = copy_queue(source, target, "orders")
        assert (copied.messages, copied.leased) == (3, 2)
        counts = target.group_stats("orders").counts
        assert (counts.ready, counts.leased) == (3, 0)
        batch = target.pop("orders", batch=10)
        assert [(m.data, m.deliveries, m.redelivered) for m in batch] == [
            (1, 2, True), (2, 2, True), (3, 1, False),
        ]  # fmt: skip


def test_what_is_pushed_during_the_copy_is_copied_too(
    source: Session, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_copy, "SLICE_BYTES", 300)
    pushes = iter(range(3))

    def push(_: int) -> None:
        if (n := next(pushes, None)) is not None:
            source.push("orders", f"new {n}", partition=f"new {n}")

    with ackflow.connect(":memory:", clock=clock, upkeep=False) as target:
        copy_queue(source, target, "orders", progress=push)
        check_same(source, target, clock)
