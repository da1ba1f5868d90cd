"""Pushing and popping: what goes in comes out once, in order, under a lease."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

import ackflow
from ackflow import Item, Session, VirtualClock, ids
from ackflow.errors import InvalidArgument, KeyConflict, PayloadTooLarge, QueueNotFound
from ackflow.model import when
from ackflow.options import MAX_PAYLOAD

pytestmark = pytest.mark.every_store

DAY = 86_400


def counts(q: Session, queue: str = "q", group: str = "g") -> dict[str, int]:
    """The counts of a group, without those that are 0."""
    found = msgspec.structs.asdict(q.group_stats(queue, group).counts)
    return {name: n for name, n in found.items() if n}


def pop_data(q: Session, n: int = 1000, **options: Any) -> list[Any]:
    return [m.data for m in q.pop("q", **{"group": "g", "batch": n, **options})]


# what a push brings


def test_the_next_pop_sees_what_a_push_confirmed(q: Session) -> None:
    assert not q.pop("q", group="g")
    q.push("q", "first")
    assert pop_data(q) == ["first"]
    q.push("q", "second")
    assert pop_data(q) == ["second"]


@pytest.mark.parametrize("many", [["a", "b", "c"], ("a", "b", "c")])
def test_a_list_or_tuple_is_many_messages(q: Session, many: Any) -> None:
    assert len(q.push("q", many)) == 3
    assert pop_data(q) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "one", [{"a": 1}, "text", 7, 1.5, True, None, "", {}, b"\x00raw", Item(data=[1, 2])]
)
def test_anything_else_is_one_message(q: Session, one: Any) -> None:
    assert len(q.push("q", one)) == 1
    expected = one.data if isinstance(one, Item) else one
    assert pop_data(q) == [expected]


def test_an_empty_list_pushes_nothing(q: Session) -> None:
    assert list(q.push("q", [])) == []
    assert pop_data(q) == []


def test_the_receipt_names_the_messages_in_the_order_of_the_push(q: Session) -> None:
    receipt = q.push("q", list(range(10)))
    assert receipt[3] == list(receipt)[3]
    assert receipt[2:5] == list(receipt)[2:5]
    assert [m.id for m in q.pop("q", batch=10)] == list(receipt)


def test_the_receipt_keeps_the_order_over_partitions_priorities_and_delays(q: Session) -> None:
    items = [
        Item(data=i, partition=f"p{i % 3}", priority=i % 2, delay=60.0 if i == 7 else None)
        for i in range(12)
    ]
    receipt = q.push("q", items)
    by_id = {m.id: m.data for m in q.pop("q", batch=100)}
    assert [by_id.get(id) for id in receipt] == [i if i != 7 else None for i in range(12)]


def test_ids_are_distinct_over_lanes_queues_and_databases(q: Session) -> None:
    with ackflow.connect(":memory:", upkeep=False) as other:
        receipts = [
            session.push(queue, [1, 2], partition=partition, priority=priority)
            for session in (q, other)
            for queue in ("q", "r")
            for partition in ("a", "b")
            for priority in (0, 1)
        ]
    assert len({id for receipt in receipts for id in receipt}) == 32


def test_a_push_larger_than_a_segment_stays_in_order(q: Session) -> None:
    q.push("q", list(range(25_000)))
    assert pop_data(q, 30_000) == list(range(25_000))


def test_messages_larger_together_than_a_segment_stay_in_order(q: Session) -> None:
    texts = [f"{i}" + "x" * 1_000_000 for i in range(9)]
    q.push("q", texts)
    assert pop_data(q) == texts


def test_a_payload_over_the_limit_is_refused_with_the_whole_push(q: Session) -> None:
    with pytest.raises(PayloadTooLarge):
        q.push("q", ["small", b"x" * (MAX_PAYLOAD + 1)])
    assert pop_data(q) == []


@pytest.mark.parametrize(
    "bad",
    [
        float("nan"),
        {"deep": [1, float("inf")]},
        object(),
        {"set": object()},
        msgspec.Raw(b"{not json"),
    ],
)
def test_what_is_not_json_is_refused_with_the_whole_push(q: Session, bad: Any) -> None:
    with pytest.raises(InvalidArgument):
        q.push("q", ["good", bad])
    assert pop_data(q) == []


@pytest.mark.parametrize(
    "options",
    [
        {"priority": -1},
        {"priority": 2**31},
        {"priority": 1.0},
        {"priority": True},
        {"delay": -1},
        {"delay": float("nan")},
        {"partition": ""},
        {"partition": "p" * 256},
        {"partition": "line\nbreak"},
        {"key": ""},
    ],
)
def test_a_bad_argument_of_push_is_refused(q: Session, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        q.push("q", 1, **options)
    assert pop_data(q) == []


# request keys and transaction ids


def test_a_push_repeated_with_its_key_adds_nothing_and_answers_the_same(q: Session) -> None:
    first = list(q.push("q", ["a", "b"], key="once"))
    assert list(q.push("q", ["a", "b"], key="once")) == first
    assert pop_data(q) == ["a", "b"]


def test_a_key_is_known_also_after_its_messages_are_done(q: Session) -> None:
    first = list(q.push("q", "a", key="once"))
    q.ack(q.pop("q", group="g"))
    assert list(q.push("q", "a", key="once")) == first
    assert pop_data(q) == []


def test_a_key_used_with_another_body_is_refused(q: Session) -> None:
    q.push("q", "a", key="once")
    for change in ({"data": "b"}, {"data": "a", "partition": "p"}, {"data": "a", "priority": 1}):
        with pytest.raises(KeyConflict):
            q.push("q", key="once", **change)
    assert pop_data(q) == ["a"]


@pytest.mark.parametrize(("after", "added"), [(DAY - 1, 0), (DAY + 1, 1)])
def test_a_key_is_kept_for_a_day(q: Session, clock: VirtualClock, after: float, added: int) -> None:
    q.push("q", "a", key="once")
    clock.advance(after)
    q.upkeep()
    q.push("q", "a", key="once")
    assert len(pop_data(q)) == 1 + added


def test_a_transaction_id_seen_before_adds_nothing_and_answers_with_the_first_id(
    q: Session,
) -> None:
    (first,) = q.push("q", Item(data="a", transaction_id="t"))
    receipt = q.push("q", [Item(data="b", transaction_id="u"), Item(data="a", transaction_id="t")])
    assert receipt[1] == first
    assert receipt.duplicates == [1]
    assert pop_data(q) == ["a", "b"]


def test_a_transaction_id_repeated_within_one_push_counts_once(q: Session) -> None:
    items = [Item(data=i, transaction_id=t) for i, t in enumerate("abacb")]
    receipt = q.push("q", items)
    assert receipt.duplicates == [2, 4]
    assert (receipt[2], receipt[4]) == (receipt[0], receipt[1])
    assert pop_data(q) == [0, 1, 3]


def test_transaction_ids_are_distinct_by_partition_but_not_by_priority(q: Session) -> None:
    item = Item(data="a", transaction_id="t")
    q.push("q", item, partition="p")
    assert q.push("q", item, partition="p", priority=3).duplicates == [0]
    assert q.push("q", item, partition="r").duplicates == []
    assert q.push("other", item, partition="p").duplicates == []


@pytest.mark.parametrize(("after", "duplicate"), [(9.999, True), (10.001, False)])
def test_a_transaction_id_is_remembered_for_its_window(
    q: Session, clock: VirtualClock, after: float, duplicate: bool
) -> None:
    q.configure("q", dedup_seconds=10)
    q.push("q", Item(data="a", transaction_id="t"))
    clock.advance(after)
    receipt = q.push("q", Item(data="a", transaction_id="t"))
    assert (receipt.duplicates == [0]) is duplicate


# what a pop brings


def test_a_pop_of_a_queue_that_never_was_is_empty_and_has_no_token(q: Session) -> None:
    batch = q.pop("nothing")
    assert (len(batch), batch.token, batch.expires_at, batch.why) == (0, None, None, None)


def test_a_pop_brings_one_message_unless_asked_for_more(q: Session) -> None:
    q.push("q", [1, 2, 3])
    assert len(q.pop("q")) == 1


@pytest.mark.parametrize(("asked", "given"), [(1, 1), (3, 3), (5, 5), (100, 5)])
def test_a_batch_has_what_is_there_and_never_more_than_asked(
    q: Session, asked: int, given: int
) -> None:
    q.push("q", list(range(5)))
    assert pop_data(q, asked) == list(range(given))


def test_a_batch_goes_over_partitions(q: Session) -> None:
    for partition in "abc":
        q.push("q", [partition, partition], partition=partition)
    assert sorted(pop_data(q)) == ["a", "a", "b", "b", "c", "c"]


def test_pops_never_overlap(q: Session) -> None:
    q.push("q", list(range(30)))
    given = [value for _ in range(6) for value in pop_data(q, 7)]
    assert given == list(range(30))


def test_one_batch_has_one_token_and_every_pop_a_new_one(q: Session) -> None:
    q.push("q", list(range(6)), partition="a")
    q.push("q", list(range(6)), partition="b")
    batches = [q.pop("q", batch=4) for _ in range(3)]
    for batch in batches:
        assert {m.token for m in batch} == {batch.token}
    assert len({batch.token for batch in batches}) == 3


@pytest.mark.parametrize(("asked", "seconds"), [(None, 300), (0.5, 0.5), (4000, 4000)])
def test_a_lease_ends_after_its_time(
    q: Session, clock: VirtualClock, asked: float | None, seconds: float
) -> None:
    q.push("q", 1)
    batch = q.pop("q", lease_seconds=asked)
    end = when(clock.now()) + timedelta(seconds=seconds)
    assert batch.expires_at == batch[0].lease_expires_at == end


def test_a_batch_larger_than_a_claim_is_one_lease_and_ends_as_one(q: Session) -> None:
    q.push("q", list(range(2_500)))
    batch = q.pop("q", group="g", batch=2_500)
    assert len(q.leases("q")) == 1
    assert q.ack(batch).settled == 2_500
    assert counts(q) == {"done": 2_500}


def test_auto_ack_hands_out_as_done_without_a_lease(q: Session, clock: VirtualClock) -> None:
    q.push("q", [1, 2])
    batch = q.pop("q", group="g", batch=2, auto_ack=True)
    assert [m.data for m in batch] == [1, 2]
    assert (batch.token, batch[0].token, batch[0].lease_expires_at) == (None, None, None)
    clock.advance(DAY)
    assert pop_data(q) == []
    assert counts(q) == {"done": 2}


def test_a_pop_of_one_partition_brings_nothing_of_others(q: Session) -> None:
    for partition in "abc":
        q.push("q", partition, partition=partition)
    assert pop_data(q, partition="b") == ["b"]
    assert pop_data(q, partition="b") == []
    assert pop_data(q, partition="never pushed") == []


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_batch_may_be_limited_to_some_partitions(q: Session, most: int) -> None:
    for partition in "abc":
        q.push("q", [1, 2], partition=partition)
    batch = q.pop("q", batch=100, partitions=most)
    assert len({m.partition for m in batch}) == most
    assert len(batch) == 2 * most


def test_a_lease_shows_its_consumer(q: Session) -> None:
    q.push("q", [1, 2])
    q.pop("q")
    q.pop("q", consumer="worker 7")
    assert sorted(lease.consumer for lease in q.leases("q")) == ["tester", "worker 7"]


@pytest.mark.parametrize(
    "options",
    [
        {"batch": 0},
        {"batch": 100_001},
        {"batch": 1.5},
        {"wait": -1},
        {"wait": float("inf")},
        {"lease_seconds": 0},
        {"lease_seconds": -5},
        {"partitions": 0},
        {"group": ""},
        {"consumer": ""},
        {"token": "short"},
        {"dialect": "klingon"},
    ],
)
def test_a_bad_argument_of_pop_is_refused(q: Session, options: dict[str, Any]) -> None:
    q.push("q", 1)
    with pytest.raises(InvalidArgument):
        q.pop("q", **options)
    assert len(q.pop("q")) == 1


# a client's own token, and reading a lease again


@pytest.mark.parametrize("written", [ids.token_text, ids.token_uuid])
def test_a_pop_repeated_with_its_token_answers_with_the_same_lease(
    q: Session, written: Callable[[int], str]
) -> None:
    token = ids.new_token()
    q.push("q", list(range(6)))
    first = q.pop("q", group="g", batch=3, token=written(token))
    again = q.pop("q", group="g", batch=3, token=written(token))
    assert first.token == again.token == ids.token_text(token)
    assert [m.id for m in again] == [m.id for m in first]
    assert [m.deliveries for m in again] == [1, 1, 1]
    assert again.expires_at == first.expires_at
    assert counts(q) == {"leased": 3, "ready": 3}


def test_a_pop_repeated_with_another_token_is_another_lease(q: Session) -> None:
    q.push("q", [1, 2])
    tokens = [ids.token_text(ids.new_token()) for _ in range(2)]
    assert [pop_data(q, 1, token=token) for token in tokens] == [[1], [2]]


def test_the_token_of_another_group_is_refused(q: Session) -> None:
    token = ids.token_text(ids.new_token())
    q.push("q", 1)
    q.pop("q", group="g", token=token)
    with pytest.raises(InvalidArgument):
        q.pop("q", group="other", token=token)


def test_a_pop_that_found_nothing_may_be_repeated_with_its_token(q: Session) -> None:
    token = ids.token_text(ids.new_token())
    assert pop_data(q, token=token) == []
    q.push("q", 1)
    assert pop_data(q, token=token) == [1]


def test_a_lease_can_be_read_again_also_when_part_of_it_is_settled(q: Session) -> None:
    q.push("q", list(range(5)))
    batch = q.pop("q", batch=5)
    assert batch.token is not None
    q.ack(batch[1:3])
    batch[4].reject()
    again = q.read(batch.token)
    assert [m.data for m in again] == [0, 1, 2, 3, 4]
    again[0].ack()
    assert counts(q, group=batch[0].group) == {"done": 3, "dead": 1, "leased": 1}


# pausing


@pytest.mark.parametrize("group", [None, "g"])
def test_what_is_paused_hands_out_nothing_but_goes_on_settling(
    q: Session, group: str | None
) -> None:
    q.push("q", [1, 2])
    (message,) = q.pop("q", group="g")
    q.pause("q", group)
    batch = q.pop("q", group="g")
    assert (len(batch), batch.why) == (0, "paused")
    message.ack()
    q.resume("q", group)
    assert pop_data(q) == [2]


def test_a_paused_group_does_not_pause_others(q: Session) -> None:
    q.push("q", 1)
    q.group("q", "g")
    q.pause("q", "g")
    assert pop_data(q) == []
    assert pop_data(q, group="other") == [1]


# many at once


def test_threads_that_push_and_pop_at_once_lose_and_double_nothing(q: Session) -> None:
    given: list[list[int]] = [[] for _ in range(4)]
    pushed = threading.Barrier(8)

    def produce(worker: int) -> None:
        pushed.wait()
        for i in range(50):
            q.push("q", worker * 50 + i, partition=f"p{worker}")

    def consume(worker: int) -> None:
        pushed.wait()
        for _ in range(400):
            batch = q.pop("q", group="g", batch=3)
            given[worker] += [m.data for m in batch]
            q.ack(batch)
            if sum(map(len, given)) >= 200:
                return

    threads = [threading.Thread(target=produce, args=[i]) for i in range(4)]
    threads += [threading.Thread(target=consume, args=[i]) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    given.append(pop_data(q))
    assert sorted(value for some in given for value in some) == list(range(200))


def test_messages_pushed_one_by_one_small_and_large_come_in_one_batch(q: Session) -> None:
    sizes = [1, 700, 790, 800, 801, 5000, 2]
    for n, size in enumerate(sizes):
        q.push("q", Item(data="x" * size, headers={"n": str(n)}) if n % 2 else "x" * size)
    batch = q.pop("q", batch=100)
    assert [len(m.data) for m in batch] == sizes
    assert [m.headers.get("n") for m in batch] == [None, "1", None, "3", None, "5", None]
    q.ack(batch)
    assert q.queue_stats("q").messages == len(sizes)
    assert [len(m.data) for m in q.browse("q").items] == sizes


def test_a_pop_that_creates_nothing_refuses_a_queue_that_is_not_there(q: Session) -> None:
    for wait in (0, 5):
        with pytest.raises(QueueNotFound, match="there is no queue 'ordres'"):
            q.pop("ordres", group="g", create=False, wait=wait)
    assert q.queues() == []
    q.push("orders", 1)
    (message,) = q.pop("orders", group="g", create=False)
    message.ack()
    assert q.pop("orders", group="g", create=False) == ()
    assert [group.name for group in q.queue_stats("orders").groups] == ["g"]
