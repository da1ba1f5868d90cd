"""Large pushes: stored as one JSON array, and each message behaves like any other."""

from typing import Any

import pytest
from msgspec import Raw

from ackflow import Session, VirtualClock
from ackflow.errors import InvalidArgument, PayloadTooLarge, QueueFull
from ackflow.options import MAX_PAYLOAD, MAX_SEGMENT_BYTES, MAX_SEGMENT_COUNT
from ackflow.session.encoding import MANY

pytestmark = pytest.mark.every_store

N = 3 * MANY
VALUES: list[Any] = [
    {"n": n, "text": 'ä,]"[\n' * (n % 3), "none": None, "deep": [[n], {}]} for n in range(N)
]


def test_each_message_of_a_large_push_comes_out_as_it_went_in(q: Session) -> None:
    receipt = q.push("q", VALUES)
    popped = q.pop("q", batch=N)
    assert [m.data for m in popped] == VALUES
    assert list(receipt) == [m.id for m in popped]


@pytest.mark.parametrize("n", [MANY - 1, MANY, MANY + 1])
def test_a_push_is_the_same_around_the_size_where_it_is_stored_in_one_piece(
    q: Session, n: int
) -> None:
    q.push("q", tuple(range(n)))
    assert [m.raw for m in q.pop("q", batch=1000)] == [str(i).encode() for i in range(n)]


def test_a_large_push_is_handed_out_in_small_batches_and_settled_one_by_one(q: Session) -> None:
    q.push("q", VALUES)
    seen = []
    while batch := q.pop("q", batch=100):
        for message in batch:
            seen.append(message.data)
            message.ack()
    assert seen == VALUES
    assert q.group_stats("q").counts.done == N


def test_messages_of_a_large_push_fail_return_and_die_one_by_one(q: Session) -> None:
    q.group("q", "g", retry_limit=1)
    q.push("q", VALUES)
    batch = q.pop("q", group="g", batch=N)
    batch[7].nack("bad")
    batch[300].requeue()
    batch[301].release()
    q.ack(batch[302:])
    assert [letter.data for letter in q.dead_letters("q").items] == [VALUES[7]]
    again = q.pop("q", group="g", batch=N)
    assert [m.data for m in again] == [VALUES[301], VALUES[300]]


def test_a_large_push_can_be_browsed_and_searched(q: Session) -> None:
    q.push("q", VALUES)
    page = q.browse("q", limit=5)
    assert [m.data for m in page.items] == VALUES[:5]
    found = q.search("q", f'"n":{N - 1},', limit=5)
    assert [m.data for m in found.items] == [VALUES[-1]]


def test_a_large_push_is_as_many_bytes_as_its_payloads(q: Session) -> None:
    q.push("q", ["four"] * N)
    assert q.queue_stats("q").bytes == 6 * N


def test_large_and_small_pushes_keep_their_order(q: Session) -> None:
    q.push("q", "before")
    q.push("q", VALUES)
    q.push("q", "after")
    assert [m.data for m in q.pop("q", batch=N + 2)] == ["before", *VALUES, "after"]


def test_a_large_push_can_be_delayed(q: Session, clock: VirtualClock) -> None:
    q.push("q", VALUES, delay=10)
    assert not q.pop("q", batch=N)
    clock.advance(10)
    assert [m.data for m in q.pop("q", batch=N)] == VALUES


def test_a_large_push_with_a_key_is_repeated_without_effect(q: Session) -> None:
    first = q.push("q", VALUES, key="k")
    assert list(q.push("q", VALUES, key="k")) == list(first)
    assert q.queue_stats("q").messages == N


@pytest.mark.parametrize("others", [[], VALUES], ids=["small", "large"])
@pytest.mark.parametrize(
    "bad",
    [
        float("nan"),
        {"deep": [float("inf")]},
        object(),
        {"x": {1, object()}},
        {"broken": Raw(b"}")},
        {"two": Raw(b'1},{"messages":2')},
    ],
    ids=["NaN", "infinity", "object", "object inside", "broken JSON inside", "two in one"],
)
def test_one_bad_value_refuses_a_push_whole(q: Session, others: list[Any], bad: Any) -> None:
    q.configure("q")
    with pytest.raises(InvalidArgument):
        q.push("q", [*others, bad])
    assert q.queue_stats("q").messages == 0


def test_json_inside_a_value_is_pushed_as_it_is(q: Session) -> None:
    q.push("q", [*VALUES, {"inside": Raw(b"[1,  2]")}])
    assert q.pop("q", batch=N + 1)[-1].raw == b'{"inside":[1,  2]}'


def test_whole_numbers_of_any_size_are_pushed_with_others(q: Session) -> None:
    q.push("q", [*range(N), 1 << 80])
    assert q.pop("q", batch=N + 1)[-1].raw == str(1 << 80).encode()


def test_a_push_larger_than_one_segment_is_split(q: Session) -> None:
    text = "x" * (MAX_SEGMENT_BYTES // MANY)
    q.push("q", [text] * (MANY + 44))
    assert [m.data for m in q.pop("q", batch=1000)] == [text] * (MANY + 44)
    q.push("q", list(range(MAX_SEGMENT_COUNT + 1)))
    assert q.queue_stats("q").messages == MAX_SEGMENT_COUNT + 1 + MANY + 44


def test_one_message_too_large_refuses_a_large_push_whole(q: Session) -> None:
    q.configure("q")
    with pytest.raises(PayloadTooLarge):
        q.push("q", [*range(N), "x" * MAX_PAYLOAD])
    assert q.queue_stats("q").messages == 0


def test_a_full_queue_refuses_a_large_push(q: Session) -> None:
    q.configure("q", max_size=N)
    q.push("q", VALUES)
    with pytest.raises(QueueFull):
        q.push("q", VALUES[:MANY])
    assert q.queue_stats("q").messages == N
