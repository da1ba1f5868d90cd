"""Transactions: settles, pushes and keyed values over several queues, all or nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from ackflow import Batch, Item, Message, Session, Verdict, VirtualClock
from ackflow.errors import (
    AckflowError,
    AlreadySettled,
    InvalidArgument,
    KeyConflict,
    LeaseExpired,
    LeaseLost,
    QueueNotFound,
    TransactionFailed,
    VersionConflict,
)

pytestmark = pytest.mark.every_store

DAY = 24 * 3600.0


def leased(q: Session, *data: Any, queue: str = "in") -> Batch[Message]:
    q.push(queue, list(data))
    return q.pop(queue, batch=len(data))


def stored(q: Session, queue: str) -> list[Any]:
    try:
        return [m.data for m in q.browse(queue).items]
    except QueueNotFound:
        return []


# all together


def test_acks_and_pushes_over_several_queues_happen_together(q: Session) -> None:
    a, b = leased(q, 1, 2)
    (c,) = leased(q, 3, queue="more")
    with q.transaction() as t:
        t.ack([a, b]).ack(c).push("out", {"sum": 6}).push("log", ["x", "y"], partition="p")
    assert q.group_stats("in").counts.done == 2
    assert q.group_stats("more").counts.done == 1
    assert stored(q, "out") == [{"sum": 6}]
    assert stored(q, "log") == ["x", "y"]


def test_nothing_happens_before_the_commit(q: Session) -> None:
    (message,) = leased(q, 1)
    t = q.transaction()
    t.ack(message).push("out", 1).put("k", 1)
    assert q.group_stats("in").counts.leased == 1
    assert stored(q, "out") == []
    assert q.value("k") is None
    t.commit()
    assert q.group_stats("in").counts.done == 1
    assert stored(q, "out") == [1]
    assert q.value("k") is not None


def test_a_commit_tells_what_was_settled_and_where_the_pushes_lie(q: Session) -> None:
    batch = leased(q, 1, 2, 3)
    done = q.transaction().ack(batch).push("out", ["a", "b"]).push("out", "c").commit()
    assert done.settled == 3
    assert [len(receipt) for receipt in done.receipts] == [2, 1]
    ids = [id for receipt in done.receipts for id in receipt]
    assert [q.message("out", id).data for id in ids] == ["a", "b", "c"]


def test_ids_of_a_push_in_a_transaction_are_in_the_order_of_the_push(q: Session) -> None:
    items = [Item(data=n, partition="ab"[n % 2]) for n in range(5)]
    (receipt,) = q.transaction().push("out", items).commit().receipts
    assert [q.message("out", id).data for id in receipt] == [0, 1, 2, 3, 4]


def test_every_push_has_its_receipt_also_an_empty_one(q: Session) -> None:
    done = q.transaction().push("out", []).push("out", "x").commit()
    assert [len(receipt) for receipt in done.receipts] == [0, 1]


def test_a_transaction_of_nothing_succeeds(q: Session) -> None:
    done = q.transaction().commit()
    assert (done.settled, done.receipts) == (0, [])


def test_a_block_that_raises_does_nothing(q: Session) -> None:
    (message,) = leased(q, 1)
    with pytest.raises(ZeroDivisionError), q.transaction() as t:
        t.ack(message).push("out", 1 // 0)
    assert q.group_stats("in").counts.leased == 1
    assert stored(q, "out") == []


def test_a_second_commit_is_refused(q: Session) -> None:
    with q.transaction() as t:
        t.push("out", 1)
    with pytest.raises(InvalidArgument, match="already committed"):
        t.commit()
    assert stored(q, "out") == [1]


@pytest.mark.parametrize("verb", ["push", "put", "delete"])
def test_what_comes_after_the_commit_is_refused_and_not_lost(q: Session, verb: str) -> None:
    args = {"push": ("out", 2), "put": ("k", 2), "delete": ("k",)}[verb]
    t = q.transaction().push("out", 1)
    t.commit()
    with pytest.raises(InvalidArgument, match="already committed"):
        getattr(t, verb)(*args)
    assert stored(q, "out") == [1]


def test_every_verb_may_be_part_of_a_transaction(q: Session, clock: VirtualClock) -> None:
    ack, nack, reject, release, requeue, dead = leased(q, *range(6))
    with q.transaction() as t:
        t.ack(ack).nack(nack, "busy", delay=60).reject(reject, "bad")
        t.settle(release, Verdict("release")).settle(requeue, Verdict("requeue"))
        t.settle(dead, Verdict("dead_letter", "late"))
    counts = q.group_stats("in").counts
    assert (counts.done, counts.waiting, counts.dead, counts.ready) == (2, 1, 2, 2)
    assert counts.leased == 0
    assert {d.reason for d in q.dead_letters("in").items} == {"bad", "late"}
    assert q.why("in", nack.id).error == "busy"


def test_what_was_handed_out_as_done_needs_no_settling(q: Session) -> None:
    q.push("in", 1)
    batch = q.pop("in", auto_ack=True)
    assert q.transaction().ack(batch).push("out", 1).commit().settled == 0
    assert stored(q, "out") == [1]


def test_an_ack_in_a_transaction_stands_afterwards(q: Session) -> None:
    (message,) = leased(q, 1)
    q.transaction().ack(message).commit()
    message.ack()
    with pytest.raises(AlreadySettled):
        message.nack()
    assert q.group_stats("in").counts.done == 1


# or nothing


def settled_alike(q: Session, message: Message, clock: VirtualClock) -> None:
    message.ack()


def settled_otherwise(q: Session, message: Message, clock: VirtualClock) -> None:
    message.nack()


def expired(q: Session, message: Message, clock: VirtualClock) -> None:
    clock.advance(300)


def given_to_another(q: Session, message: Message, clock: VirtualClock) -> None:
    clock.advance(300)
    assert q.pop("in", batch=9, consumer="another")


def purged(q: Session, message: Message, clock: VirtualClock) -> None:
    q.purge("in")


def deleted(q: Session, message: Message, clock: VirtualClock) -> None:
    q.delete_message("in", message.id)


def sought(q: Session, message: Message, clock: VirtualClock) -> None:
    q.seek("in", message.group, to="start")


def queue_deleted(q: Session, message: Message, clock: VirtualClock) -> None:
    q.delete_queue("in")


SPOILS = [
    (settled_alike, AlreadySettled),
    (settled_otherwise, AlreadySettled),
    (expired, LeaseExpired),
    (given_to_another, LeaseExpired),
    (purged, LeaseLost),
    (deleted, LeaseLost),
    (sought, LeaseLost),
    (queue_deleted, LeaseLost),
]


@pytest.mark.parametrize(("spoil", "cause"), SPOILS)
@pytest.mark.one_database
def test_a_message_no_longer_held_fails_the_whole(
    q: Session,
    clock: VirtualClock,
    spoil: Callable[[Session, Message, VirtualClock], None],
    cause: type[AckflowError],
) -> None:
    (message,) = leased(q, 1)
    (other,) = leased(q, 2, queue="more")
    q.extend(other, 9999)
    spoil(q, message, clock)
    t = q.transaction().push("out", 1).put("k", 1).ack(other).ack(message).push("out", 2)
    with pytest.raises(TransactionFailed) as failed:
        t.commit()
    assert failed.value.details == {"index": 3, "code": cause.code}
    assert "operation 3 was refused, so nothing was done" in str(failed.value)
    assert type(failed.value.__cause__) is cause
    assert "out" not in [s.name for s in q.queues()]
    assert q.value("k") is None
    assert q.group_stats("more").counts.leased == 1
    other.ack()


def test_one_message_twice_in_a_transaction_fails_the_whole(q: Session) -> None:
    (message,) = leased(q, 1)
    with pytest.raises(TransactionFailed):
        q.transaction().ack(message).push("out", 1).ack(message).commit()
    assert stored(q, "out") == []
    assert q.group_stats("in").counts.leased == 1


def test_a_batch_with_one_settled_message_fails_the_whole(q: Session) -> None:
    batch = leased(q, 1, 2, 3)
    batch[1].ack()
    with pytest.raises(TransactionFailed):
        q.transaction().ack(batch).commit()
    counts = q.group_stats("in").counts
    assert (counts.leased, counts.done) == (2, 1)


def test_a_failed_transaction_can_be_tried_again_without_what_failed(q: Session) -> None:
    a, b = leased(q, 1, 2)
    b.ack()
    with pytest.raises(TransactionFailed):
        q.transaction().ack(a).ack(b).push("out", 1).commit()
    q.transaction().ack(a).push("out", 1).commit()
    assert q.group_stats("in").counts.done == 2
    assert stored(q, "out") == [1]


def test_dead_letters_and_copies_of_a_failed_transaction_are_undone(q: Session) -> None:
    a, b, c = leased(q, 1, 2, 3)
    c.ack()
    with pytest.raises(TransactionFailed):
        q.transaction().reject(a, "bad").settle(b, Verdict("requeue")).ack(c).commit()
    assert q.dead_letters("in").total == 0
    assert stored(q, "in") == [1, 2, 3]
    assert q.group_stats("in").counts.leased == 2
    a.ack()
    b.ack()


def test_a_push_after_a_failed_transaction_takes_the_next_place(q: Session) -> None:
    first = q.push("out", "first")
    with pytest.raises(TransactionFailed):
        q.transaction().push("out", "lost").put("k", 1, expect=5).commit()
    second = q.push("out", "second")
    assert [q.message("out", id).sequence for id in (first[0], second[0])] == [0, 1]
    assert [m.data for m in q.pop("out", batch=9)] == ["first", "second"]


# keys


def test_a_key_repeats_the_first_answer(q: Session) -> None:
    batch = leased(q, 1, 2)

    def commit() -> tuple[int, list[list[str]]]:
        t = q.transaction("t-1").ack(batch).push("out", {"n": 1}).put("k", 5)
        done = t.commit()
        return done.settled, [list(receipt) for receipt in done.receipts]

    first = commit()
    assert first[0] == 2
    assert commit() == first
    assert commit() == first
    assert stored(q, "out") == [{"n": 1}]
    value = q.value("k")
    assert value is not None
    assert value.version == 1


def test_a_key_of_acks_alone_repeats_the_first_answer(q: Session) -> None:
    batch = leased(q, 1, 2)
    assert q.transaction("t-1").ack(batch).commit().settled == 2
    assert q.transaction("t-1").ack(batch).commit().settled == 2
    assert q.group_stats("in").counts.done == 2


OTHER_BODIES: list[Callable[[Any, Batch[Message]], Any]] = [
    lambda t, batch: t.put("k", 2),
    lambda t, batch: t.put("other", 1),
    lambda t, batch: t.put("k", 1, expect=1),
    lambda t, batch: t.delete("k"),
    lambda t, batch: t.put("k", 1).put("k", 1),
    lambda t, batch: t.put("k", 1).ack(batch),
    lambda t, batch: t.put("k", 1).push("out", 1),
    lambda t, batch: t,
]


@pytest.mark.parametrize("body", OTHER_BODIES)
@pytest.mark.one_database
def test_the_same_key_with_another_body_is_refused(
    q: Session, body: Callable[[Any, Batch[Message]], Any]
) -> None:
    batch = leased(q, 1)
    q.transaction("t-1").put("k", 1).commit()
    with pytest.raises(KeyConflict):
        body(q.transaction("t-1"), batch).commit()
    value = q.value("k")
    assert value is not None
    assert (value.data, value.version) == (1, 1)
    assert q.group_stats("in").counts.leased == 1
    assert stored(q, "out") == []


@pytest.mark.parametrize(
    "again",
    [
        {"data": [1, 3]},
        {"data": [1]},
        {"queue": "elsewhere"},
        {"partition": "p"},
        {"priority": 1},
        {"delay": 1.0},
    ],
)
@pytest.mark.one_database
def test_the_same_key_with_another_push_is_refused(q: Session, again: dict[str, Any]) -> None:
    plain = {"queue": "out", "data": [1, 2], "partition": "Default", "priority": 0, "delay": None}
    q.transaction("t-1").push(**plain).commit()
    with pytest.raises(KeyConflict):
        q.transaction("t-1").push(**{**plain, **again}).commit()
    assert stored(q, "out") == [1, 2]


def test_a_failed_transaction_does_not_use_up_its_key(q: Session) -> None:
    a, b = leased(q, 1, 2)
    b.ack()
    with pytest.raises(TransactionFailed):
        q.transaction("t-1").ack(b).commit()
    assert q.transaction("t-1").ack(a).commit().settled == 1


@pytest.mark.parametrize(("seconds", "version"), [(0, 1), (DAY - 1, 1), (DAY, 2), (2 * DAY, 2)])
def test_a_key_is_remembered_for_a_day(
    q: Session, clock: VirtualClock, seconds: float, version: int
) -> None:
    q.transaction("t-1").put("k", 1).commit()
    clock.advance(seconds)
    q.upkeep()
    q.transaction("t-1").put("k", 1).commit()
    value = q.value("k")
    assert value is not None
    assert value.version == version


# keyed values


def test_a_value_is_kept_with_version_and_time(q: Session, clock: VirtualClock) -> None:
    q.transaction().put("offsets/eu", {"at": [1, 2]}).commit()
    clock.advance(5)
    q.transaction().put("offsets/eu", None).commit()
    value = q.value("offsets/eu")
    assert value is not None
    assert (value.key, value.data, value.version) == ("offsets/eu", None, 2)
    assert value.updated_at.timestamp() == 1_700_000_005


def test_there_is_no_value_before_the_first_put_nor_after_a_delete(q: Session) -> None:
    assert q.value("k") is None
    q.transaction().put("k", 1).commit()
    q.transaction().delete("k").commit()
    assert q.value("k") is None


@pytest.mark.parametrize(
    ("puts", "expect", "agrees"),
    [
        (0, None, True), (0, 0, True), (0, 1, False),
        (1, None, True), (1, 0, False), (1, 1, True), (1, 2, False),
        (3, 2, False), (3, 3, True), (3, 4, False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("verb", ["put", "delete"])
def test_a_value_changes_only_at_the_version_expected(
    q: Session, puts: int, expect: int | None, agrees: bool, verb: str
) -> None:
    for _ in range(puts):
        q.transaction().put("k", "old").commit()
    t = q.transaction().push("out", 1)
    t.put("k", "new", expect=expect) if verb == "put" else t.delete("k", expect=expect)
    if agrees:
        t.commit()
        value = q.value("k")
        if verb == "delete":
            assert value is None
        else:
            assert value is not None
            assert (value.data, value.version) == ("new", puts + 1)
        return
    with pytest.raises(TransactionFailed) as failed:
        t.commit()
    assert failed.value.details["code"] == VersionConflict.code
    assert isinstance(failed.value.__cause__, VersionConflict)
    assert stored(q, "out") == []
    value = q.value("k")
    assert (value.version if value else 0) == puts


def test_operations_of_a_transaction_see_those_before_them(q: Session) -> None:
    q.transaction().put("k", 1, expect=0).put("k", 2, expect=1).commit()
    with pytest.raises(TransactionFailed):
        q.transaction().delete("k", expect=2).put("k", 3, expect=2).commit()
    value = q.value("k")
    assert value is not None
    assert (value.data, value.version) == (2, 2)


def test_values_are_listed_by_prefix_in_order_of_key(q: Session) -> None:
    t = q.transaction()
    for key in ("b/2", "a/1", "b/1", "b", "c/1", "b/10", "b/é"):
        t.put(key, key.upper())
    t.commit()
    assert [v.key for v in q.values("b/")] == ["b/1", "b/10", "b/2", "b/é"]
    assert [v.key for v in q.values("b/", limit=2)] == ["b/1", "b/10"]
    assert len(q.values()) == 7
    assert q.values("nothing") == []
    assert [v.data for v in q.values("c")] == ["C/1"]


# settling atomically


def test_an_atomic_settle_with_one_refused_undoes_all(q: Session) -> None:
    a, b, c = leased(q, 1, 2, 3)
    b.ack()
    answer = q.settle([(a, "ack"), (b, "nack"), (c, Verdict("reject", "bad"))], atomic=True)
    assert answer.settled == answer.noop == answer.dead == 0
    assert {r.message_id: r.code for r in answer.refused} == {
        a.id: "rolled_back",
        b.id: "already_settled",
        c.id: "rolled_back",
    }
    counts = q.group_stats("in").counts
    assert (counts.leased, counts.done, counts.dead) == (2, 1, 0)


def test_neighbours_of_a_refused_message_report_the_rollback_too(q: Session) -> None:
    a, b, c = leased(q, 1, 2, 3)
    b.nack(delay=60)
    answer = q.settle([(a, "ack"), (b, "ack"), (c, "ack")], atomic=True)
    assert answer.settled == 0
    assert {r.message_id: r.code for r in answer.refused} == {
        a.id: "rolled_back",
        b.id: "already_settled",
        c.id: "rolled_back",
    }


def test_an_atomic_settle_without_refusals_settles_all(q: Session) -> None:
    a, b, c = leased(q, 1, 2, 3)
    answer = q.settle([(a, "ack"), (b, Verdict("reject", "bad")), (c, "release")], atomic=True)
    assert (answer.settled, answer.dead, answer.refused) == (3, 1, [])


def test_without_atomic_each_message_answers_for_itself(q: Session) -> None:
    a, b, c = leased(q, 1, 2, 3)
    b.ack()
    answer = q.settle([(a, "ack"), (b, "nack"), (c, "ack")])
    assert answer.settled == 2
    assert [(r.message_id, r.code) for r in answer.refused] == [(b.id, "already_settled")]


def test_a_version_never_comes_again_when_its_value_was_deleted(q: Session) -> None:
    for n in range(3):
        q.transaction().put("k", n).commit()
    known = q.value("k")
    assert known is not None
    assert known.version == 3
    q.transaction().delete("k").commit()
    q.transaction().put("k", "new", expect=0).commit()
    for stale in range(1, 4):
        with pytest.raises(TransactionFailed) as refused:
            q.transaction().put("k", "stale", expect=stale).commit()
        assert refused.value.details["code"] == VersionConflict.code
    found = q.value("k")
    assert found is not None
    assert (found.data, found.version) == ("new", 4)
