"""Deduplication: the key of a push, and the transaction ids of messages."""

from typing import Any

import pytest

from ackflow import Item, Session, VirtualClock
from ackflow.errors import KeyConflict, QueueNotFound

pytestmark = pytest.mark.every_store

DAY = 24 * 3600.0


def item(id: str, data: Any = 1, **more: Any) -> Item:
    return Item(data=data, transaction_id=id, **more)


def stored(q: Session, queue: str = "orders") -> list[Any]:
    try:
        return [m.data for m in q.browse(queue).items]
    except QueueNotFound:
        return []


# the key of a push


def test_a_key_repeats_the_first_receipt_and_adds_nothing(q: Session) -> None:
    first = q.push("orders", [1, 2, 3], key="request-7")
    again = q.push("orders", [1, 2, 3], key="request-7")
    assert list(again) == list(first)
    assert stored(q) == [1, 2, 3]


def test_without_a_key_a_repeat_is_new(q: Session) -> None:
    assert list(q.push("orders", [1])) != list(q.push("orders", [1]))
    assert stored(q) == [1, 1]


def test_another_key_is_another_request(q: Session) -> None:
    assert list(q.push("orders", [1], key="a")) != list(q.push("orders", [1], key="b"))
    assert stored(q) == [1, 1]


def test_a_key_covers_messages_of_many_lanes_in_the_order_of_the_push(q: Session) -> None:
    items = [Item(data=n, partition="abc"[n % 3], priority=n % 2) for n in range(7)]
    first = q.push("orders", items, key="k")
    again = q.push("orders", items, key="k")
    assert list(again) == list(first)
    assert [q.message("orders", id).data for id in again] == list(range(7))
    assert len(stored(q)) == 7


def test_a_repeat_says_that_it_is_one(q: Session) -> None:
    some = [Item(data=n, partition="ab"[n % 2]) for n in range(4)]
    assert not q.push("orders", some, key="k").repeated
    assert q.push("orders", some, key="k").repeated
    assert q.push("orders", some, key="k").duplicates == []
    assert not q.push("orders", some, key="other").repeated
    assert not q.push("orders", some).repeated


def test_a_repeated_key_tells_the_same_duplicates(q: Session) -> None:
    q.push("orders", [item("b")])
    some = [item("a"), item("b"), item("c")]
    assert q.push("orders", some, key="k").duplicates == [1]
    assert q.push("orders", some, key="k").duplicates == [1]


@pytest.mark.parametrize(
    "again",
    [
        {"data": [1, 3]},
        {"data": [1]},
        {"data": [1, 2, 3]},
        {"data": [12]},
        {"data": ["1", "2"]},
        {"data": [b"1", b"2"]},
        {"data": [Item(data=1, headers={"a": "b"}), 2]},
        {"data": [Item(data=1, transaction_id="t"), 2]},
        {"data": [Item(data=1, partition="p"), 2]},
        {"queue": "other"},
        {"partition": "p"},
        {"priority": 1},
        {"delay": 0.0},
    ],
)
@pytest.mark.one_database
def test_the_same_key_with_another_body_is_refused(q: Session, again: dict[str, Any]) -> None:
    request: dict[str, Any] = {"queue": "orders", "data": [1, 2], "key": "k"}
    q.push(**request)
    with pytest.raises(KeyConflict):
        q.push(**{**request, **again})
    assert stored(q) == [1, 2]
    assert [s.name for s in q.queues()] == ["orders"]


def test_a_refused_key_leaves_the_first_request_repeatable(q: Session) -> None:
    first = q.push("orders", [1], key="k")
    with pytest.raises(KeyConflict):
        q.push("orders", [2], key="k")
    assert list(q.push("orders", [1], key="k")) == list(first)


def test_a_key_repeats_its_answer_after_the_messages_are_done(q: Session) -> None:
    first = q.push("orders", [1, 2], key="k")
    q.ack(q.pop("orders", batch=2))
    assert list(q.push("orders", [1, 2], key="k")) == list(first)
    assert list(q.pop("orders")) == []


@pytest.mark.parametrize(("seconds", "copies"), [(0, 1), (DAY - 0.001, 1), (DAY, 2), (3 * DAY, 2)])
@pytest.mark.parametrize("upkeep", [False, True])
def test_a_key_is_remembered_for_a_day(
    q: Session, clock: VirtualClock, seconds: float, copies: int, upkeep: bool
) -> None:
    q.push("orders", 1, key="k")
    clock.advance(seconds)
    if upkeep:
        q.upkeep()
    q.push("orders", 1, key="k")
    assert len(stored(q)) == copies


def test_a_forgotten_key_may_be_used_for_another_body(q: Session, clock: VirtualClock) -> None:
    q.push("orders", 1, key="k")
    clock.advance(DAY)
    q.push("orders", 2, key="k")
    assert stored(q) == [1, 2]


def test_old_keys_are_removed_by_upkeep_and_counted(q: Session, clock: VirtualClock) -> None:
    for n in range(3):
        q.push("orders", n, key=f"k{n}")
    clock.advance(DAY - 1)
    assert q.upkeep().pruned == 0
    clock.advance(1)
    assert q.upkeep().pruned == 3
    assert q.upkeep().pruned == 0


@pytest.mark.one_database
def test_a_push_of_nothing_may_have_a_key_too(q: Session) -> None:
    assert list(q.push("orders", [], key="k")) == []
    assert list(q.push("orders", [], key="k")) == []
    with pytest.raises(KeyConflict):
        q.push("orders", [1], key="k")


# transaction ids


def test_a_known_transaction_id_adds_nothing_and_answers_with_the_first_id(q: Session) -> None:
    first = q.push("orders", [item("t", "first")])
    again = q.push("orders", [item("t", "second")])
    assert list(again) == list(first)
    assert (first.duplicates, again.duplicates) == ([], [0])
    assert stored(q) == ["first"]


def test_only_the_duplicates_of_a_push_are_left_out(q: Session) -> None:
    first = q.push("orders", [item("b", "old b"), item("d", "old d")])
    again = q.push("orders", [item(c, c) for c in "abcde"])
    assert again.duplicates == [1, 3]
    assert [again[1], again[3]] == list(first)
    assert stored(q) == ["old b", "old d", "a", "c", "e"]
    assert [q.message("orders", again[n]).data for n in (0, 2, 4)] == ["a", "c", "e"]


def test_a_duplicate_within_one_push_answers_with_the_first_of_them(q: Session) -> None:
    receipt = q.push("orders", [item("x", 1), item("y", 2), item("x", 3), item("x", 4)])
    assert receipt[0] == receipt[2] == receipt[3] != receipt[1]
    assert receipt.duplicates == [2, 3]
    assert stored(q) == [1, 2]


def test_messages_without_transaction_id_are_never_duplicates(q: Session) -> None:
    receipt = q.push("orders", [item("x", 1), 2, 2, item("x", 3), 2])
    assert receipt.duplicates == [3]
    assert stored(q) == [1, 2, 2, 2]


def test_what_is_left_of_a_push_keeps_headers_ids_and_bytes(q: Session) -> None:
    q.push("orders", [item("b")])
    receipt = q.push(
        "orders",
        [
            item("a", b"\x00\x01"),
            item("b", "known"),
            item("c", "c", headers={"h": "c"}),
            Item(data="d", headers={"h": "d"}),
        ],
    )
    found = [q.message("orders", id) for id in receipt]
    assert [m.data for m in found] == [b"\x00\x01", 1, "c", "d"]
    assert [m.headers for m in found] == [{}, {}, {"h": "c"}, {"h": "d"}]
    assert [m.transaction_id for m in found][:3] == ["a", "b", "c"]
    assert found[3].transaction_id == found[3].id


def test_a_transaction_id_counts_for_the_whole_partition(q: Session) -> None:
    first = q.push("orders", [item("t")], priority=3)
    again = q.push("orders", [item("t")], priority=0)
    assert list(again) == list(first)
    both = q.push("orders", [item("u", 1, priority=1), item("u", 2, priority=2)])
    assert both[0] == both[1]
    assert both.duplicates == [1]


def test_the_same_transaction_id_in_another_partition_is_new(q: Session) -> None:
    a = q.push("orders", [item("t")], partition="a")
    b = q.push("orders", [item("t")], partition="b")
    assert list(a) != list(b)
    assert b.duplicates == []
    mixed = q.push("orders", [item("u", 1, partition="a"), item("u", 2, partition="b")])
    assert mixed.duplicates == []
    assert len(stored(q)) == 4


def test_the_same_transaction_id_in_another_queue_is_new(q: Session) -> None:
    q.push("orders", [item("t")])
    assert q.push("bills", [item("t")]).duplicates == []


def test_the_id_a_message_gives_itself_is_no_transaction_id_to_collide_with(q: Session) -> None:
    (id,) = q.push("orders", 1)
    assert q.push("orders", [item(id)]).duplicates == []
    assert len(stored(q)) == 2


def test_a_duplicate_is_known_after_the_message_is_acked(q: Session) -> None:
    first = q.push("orders", [item("t")])
    q.ack(q.pop("orders"))
    assert list(q.push("orders", [item("t")])) == list(first)
    assert list(q.pop("orders")) == []


@pytest.mark.parametrize(
    ("window", "seconds", "duplicate"),
    [
        (60, 0, True),
        (60, 59.999, True),
        (60, 60, False),
        (60, 61, False),
        (DAY, DAY - 1, True),
        (DAY, DAY, False),
        (0, 0, False),
        (0, 1, False),
        (None, 400 * DAY, True),
    ],
)
@pytest.mark.parametrize("upkeep", [False, True])
def test_a_transaction_id_is_known_for_the_window_of_its_queue(
    q: Session,
    clock: VirtualClock,
    window: float | None,
    seconds: float,
    duplicate: bool,
    upkeep: bool,
) -> None:
    q.configure("orders", dedup_seconds=window)
    first = q.push("orders", [item("t")])
    clock.advance(seconds)
    if upkeep:
        q.upkeep()
    again = q.push("orders", [item("t")])
    assert again.duplicates == ([0] if duplicate else [])
    assert (again[0] == first[0]) is duplicate


def test_the_window_is_a_day_unless_configured(q: Session, clock: VirtualClock) -> None:
    q.push("orders", [item("t")])
    clock.advance(DAY - 1)
    assert q.push("orders", [item("t")]).duplicates == [0]
    clock.advance(1)
    assert q.push("orders", [item("t")]).duplicates == []


def test_a_duplicate_does_not_lengthen_the_window(q: Session, clock: VirtualClock) -> None:
    q.configure("orders", dedup_seconds=60)
    q.push("orders", [item("t")])
    clock.advance(40)
    assert q.push("orders", [item("t")]).duplicates == [0]
    clock.advance(40)
    assert q.push("orders", [item("t")]).duplicates == []


def test_after_its_window_the_second_message_is_the_one_known(
    q: Session, clock: VirtualClock
) -> None:
    q.configure("orders", dedup_seconds=60)
    q.push("orders", [item("t", 1)])
    clock.advance(60)
    second = q.push("orders", [item("t", 2)])
    clock.advance(59)
    assert list(q.push("orders", [item("t", 3)])) == list(second)


def test_old_transaction_ids_are_removed_by_upkeep(q: Session, clock: VirtualClock) -> None:
    q.configure("orders", dedup_seconds=60)
    q.push("orders", [item("a"), item("b")])
    clock.advance(59)
    assert q.upkeep().pruned == 0
    clock.advance(1)
    assert q.upkeep().pruned == 2


# dedup_seconds=None: as long as the message is kept


def keep_ids_with_messages(q: Session) -> None:
    q.configure("orders", dedup_seconds=None, keep_seconds=60)
    q.push("orders", [item("t")])


def assert_new(q: Session) -> None:
    again = q.push("orders", [item("t", "new")])
    assert again.duplicates == []
    assert q.message("orders", again[0]).data == "new"
    assert q.push("orders", [item("t")]).duplicates == [0]


def test_without_a_window_an_id_lasts_until_its_message_is_trimmed(
    q: Session, clock: VirtualClock
) -> None:
    keep_ids_with_messages(q)
    q.ack(q.pop("orders"))
    clock.advance(59)
    q.upkeep()
    assert q.push("orders", [item("t")]).duplicates == [0]
    clock.advance(10_000)
    q.upkeep()
    q.upkeep()
    assert stored(q) == []
    assert_new(q)


def test_without_a_window_an_id_goes_when_retention_removes_its_message(
    q: Session, clock: VirtualClock
) -> None:
    keep_ids_with_messages(q)
    q.configure("orders", retention_seconds=100)
    clock.advance(100)
    q.upkeep()
    assert stored(q) == []
    assert_new(q)


def test_without_a_window_an_id_goes_when_its_message_is_purged(q: Session) -> None:
    keep_ids_with_messages(q)
    q.purge("orders")
    assert_new(q)


def test_without_a_window_an_id_goes_when_its_message_is_deleted(q: Session) -> None:
    keep_ids_with_messages(q)
    q.delete_message("orders", q.browse("orders").items[0].id)
    assert_new(q)


def test_an_id_goes_when_its_queue_is_deleted(q: Session) -> None:
    q.push("orders", [item("t")])
    q.delete_queue("orders")
    assert_new(q)


# elsewhere


def test_a_push_in_a_transaction_knows_transaction_ids_too(q: Session) -> None:
    first = q.push("orders", [item("t", "first")])
    (receipt,) = q.transaction().push("orders", [item("t"), item("u")]).commit().receipts
    assert receipt[0] == first[0]
    assert receipt.duplicates == [0]
    assert q.push("orders", [item("u")]).duplicates == [0]
    assert len(stored(q)) == 2


def test_an_undone_push_leaves_its_transaction_ids_free(q: Session) -> None:
    t = q.transaction().push("orders", [item("t", "undone")]).put("k", 1, expect=9)
    with pytest.raises(Exception, match="nothing was done"):
        t.commit()
    assert_new(q)


def test_a_published_message_with_a_known_transaction_id_adds_nothing(q: Session) -> None:
    q.push("orders", [item("t", "pushed")])
    stage = q.stage("job", 1, "orders", [item("t", "staged"), item("u", "staged")])
    q.publish("job", 1, [stage])
    assert stored(q) == ["pushed", "staged"]


def test_a_published_transaction_id_is_known_from_then_on(q: Session) -> None:
    stage = q.stage("job", 1, "orders", [item("t", "staged")])
    q.publish("job", 1, [stage])
    assert q.push("orders", [item("t", "pushed")]).duplicates == [0]


def test_a_copy_keeps_the_transaction_id_of_its_original(q: Session) -> None:
    q.push("orders", [item("t"), 2])
    q.requeue(q.pop("orders", batch=2))
    originals = q.browse("orders", limit=2).items
    copies = q.pop("orders", batch=9)
    assert [m.transaction_id for m in copies] == [m.transaction_id for m in originals]
    assert [m.transaction_id for m in copies] == ["t", originals[1].id]
    assert q.push("orders", [item("t")]).duplicates == [0]


def test_of_two_with_one_id_the_first_of_a_push_counts_whatever_their_priorities(
    q: Session,
) -> None:
    receipt = q.push(
        "orders",
        [
            Item(data="x", priority=0),
            item("t", "first", priority=1),
            item("t", "later", priority=0),
        ],
    )
    assert receipt.duplicates == [2]
    assert [q.message("orders", id).data for id in receipt] == ["x", "first", "first"]


def test_one_id_in_two_partitions_is_two_messages(q: Session) -> None:
    receipt = q.push("orders", [item("t", 1, partition="a"), item("t", 2, partition="b")])
    assert receipt.duplicates == []
    assert sorted(stored(q)) == [1, 2]
