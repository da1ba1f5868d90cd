"""Message attributes: payload byte for byte, headers, ids, sequences and counts."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
import pytest

from ackflow import Batch, Item, Message, Session, VirtualClock, ids
from ackflow.errors import InvalidArgument
from ackflow.model import when

pytestmark = pytest.mark.every_store


class Color(Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: int


def pop(q: Session, n: int = 100, **options: Any) -> Batch[Message]:
    return q.pop("q", **{"group": "g", "batch": n, **options})


def again_by_nack(q: Session, batch: Batch[Message]) -> Batch[Message]:
    q.nack(batch)
    return pop(q)


def again_by_requeue(q: Session, batch: Batch[Message]) -> Batch[Message]:
    q.requeue(batch)
    return pop(q)


def again_by_token(q: Session, batch: Batch[Message]) -> Batch[Message]:
    assert batch.token is not None
    return q.read(batch.token)


def again_by_redrive(q: Session, batch: Batch[Message]) -> Batch[Message]:
    q.reject(batch)
    q.redrive("q")
    return pop(q)


Again = Callable[[Session, Batch[Message]], Batch[Message]]
AGAIN: list[Again] = [again_by_nack, again_by_requeue, again_by_token, again_by_redrive]


# payloads

VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    2**53 + 1,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
    0.1,
    -0.0,
    1e300,
    5e-324,
    "",
    "plain",
    'quotes " and \\ and / and \n',
    "\x00 nul",
    "ümläut ☃ 🦆 \u2028",
    [],
    {},
    [[[]]],
    {"": {"a": [1, None, {"b": "c"}]}},
    {"null": "null"},
    ["many", "in", "one"],
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_any_json_value_comes_out_as_it_went_in(q: Session, value: Any) -> None:
    q.push("q", Item(data=value))
    (message,) = pop(q)
    assert message.data == value
    assert type(message.data) is type(value)


def test_integers_beyond_64_bits_come_out_as_they_went_in(q: Session) -> None:
    q.push("q", [2**64, -(2**70), {"n": 10**40}])
    batch = pop(q)
    assert [m.raw for m in batch] == [
        b"18446744073709551616",
        b"-1180591620717411303424",
        b'{"n":10000000000000000000000000000000000000000}',
    ]
    assert [m.data for m in batch] == [2**64, -(2**70), {"n": 10**40}]


RAWS = [
    b'{"b":1,"a":2}',
    b'{ "spaced" :  [ 1 , 2 ] }',
    b'\n\t"text"\r\n',
    b"1.0",
    b"1e2",
    b"-0",
    b"0.10",
    b"100000000000000000000000000000000001",
    b'"\\u00e9 \\/ \\ud83e\\udd86"',
    b'{"a":1,"a":2}',
    b"null",
    b"[]",
]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ((1, 2), [1, 2]),
        ({3}, [3]),
        ({1: "a"}, {"1": "a"}),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05Z"),
        (date(2026, 1, 2), "2026-01-02"),
        (UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (Decimal("1.50"), "1.50"),
        (Color.RED, "red"),
        (Point(1, 2), {"x": 1, "y": 2}),
        (b"\x00", "AA=="),
    ],
)
def test_what_json_has_no_form_for_is_written_in_the_form_nearest_to_it(
    q: Session, value: object, written: object
) -> None:
    q.push("q", {"in": value})
    assert q.pop("q")[0].data == {"in": written}


@pytest.mark.parametrize("raw", RAWS, ids=repr)
def test_raw_json_is_kept_byte_for_byte(q: Session, raw: bytes) -> None:
    q.push("q", msgspec.Raw(raw))
    q.push("q", ["before", msgspec.Raw(raw), b"after"])
    q.push("q", Item(data=msgspec.Raw(raw), headers={"h": "1"}))
    batch = pop(q)
    assert [m.raw for m in batch] == [raw, b'"before"', raw, b"after", raw]


@pytest.mark.parametrize("raw", [b"", b"{", b"nan", b"{'a':1}", b"1 2", b"\xff"], ids=repr)
def test_raw_that_is_not_json_is_refused(q: Session, raw: bytes) -> None:
    with pytest.raises(InvalidArgument):
        q.push("q", msgspec.Raw(raw))
    assert not pop(q)


@pytest.mark.parametrize("again", AGAIN)
def test_a_payload_is_the_same_byte_for_byte_when_it_comes_again(q: Session, again: Again) -> None:
    raws: list[Any] = [msgspec.Raw(b'{ "a":1.0 }'), b"\x00\x01", {"b": "☃"}]
    q.push("q", raws)
    batch = again(q, pop(q))
    assert [m.raw for m in batch] == [b'{ "a":1.0 }', b"\x00\x01", '{"b":"☃"}'.encode()]
    assert [type(m.data) for m in batch] == [dict, bytes, dict]


def test_a_dead_letter_and_a_browsed_message_have_the_same_bytes(q: Session) -> None:
    q.push("q", [msgspec.Raw(b"[ 1 ]"), b"\xff\x00"])
    assert [m.raw for m in q.browse("q").items] == [b"[ 1 ]", b"\xff\x00"]
    q.reject(pop(q))
    letters = sorted(q.dead_letters("q").items, key=lambda d: d.message_id)
    assert [(d.raw, d.is_json) for d in letters] == [(b"[ 1 ]", True), (b"\xff\x00", False)]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_come_out_as_bytes(q: Session, kind: Callable[[bytes], Any]) -> None:
    every = bytes(range(256))
    q.push("q", kind(every))
    q.push("q", Item(data=kind(every), partition="p"))
    batch = pop(q)
    assert [m.data for m in batch] == [every, every]
    assert {type(m.data) for m in batch} == {bytes}


def test_empty_bytes_are_a_message(q: Session) -> None:
    q.push("q", [b"", "", b""])
    assert [m.data for m in pop(q)] == [b"", "", b""]


def test_bytes_that_look_like_json_stay_bytes(q: Session) -> None:
    q.push("q", [b'{"a":1}', {"a": 1}, b"null", None])
    assert [m.data for m in pop(q)] == [b'{"a":1}', {"a": 1}, b"null", None]


def test_looking_at_data_twice_gives_equal_but_separate_values(q: Session) -> None:
    q.push("q", {"a": [1]})
    (message,) = pop(q)
    message.data["a"].append(2)
    assert message.data == {"a": [1]}


# headers and transaction ids


@pytest.mark.parametrize("again", AGAIN)
def test_headers_and_transaction_ids_stay_with_their_message(q: Session, again: Again) -> None:
    q.push(
        "q",
        [
            "plain",
            Item(data="both", headers={"a": "1", "ü": "☃"}, transaction_id="t1"),
            Item(data="headers", headers={"b": ""}),
            Item(data="id", transaction_id="t2"),
        ],
    )
    first = pop(q)
    found = {m.data: (m.headers, m.transaction_id) for m in again(q, first)}
    assert found == {
        "plain": ({}, first[0].id),
        "both": ({"a": "1", "ü": "☃"}, "t1"),
        "headers": ({"b": ""}, first[2].id),
        "id": ({}, "t2"),
    }


def test_a_message_without_a_transaction_id_has_its_id_as_one(q: Session) -> None:
    (id,) = q.push("q", 1)
    (message,) = pop(q)
    assert message.transaction_id == message.id == id


@pytest.mark.parametrize(
    "item",
    [
        Item(data=1, headers={"a": 1}),  # type: ignore[dict-item]
        Item(data=1, headers={1: "a"}),  # type: ignore[dict-item]
        Item(data=1, headers=["a"]),  # type: ignore[arg-type]
        Item(data=1, transaction_id=""),
        Item(data=1, transaction_id="t" * 256),
        Item(data=1, partition=""),
        Item(data=1, priority=2**31),
        Item(data=1, delay=-1),
    ],
)
def test_a_bad_item_is_refused_with_the_whole_push(q: Session, item: Item) -> None:
    with pytest.raises(InvalidArgument):
        q.push("q", ["good", item])
    assert not pop(q)


# where a message lies


def test_a_message_tells_where_it_lies(q: Session) -> None:
    q.push("q", ["x", "y"], partition="p", priority=7)
    message = pop(q)[1]
    assert (message.queue, message.group, message.partition) == ("q", "g", "p")
    assert (message.priority, message.sequence) == (7, 1)


def test_a_message_id_says_the_place_of_the_message(q: Session) -> None:
    receipt = q.push("q", [0, 1, 2])
    places = [ids.parse_message_id(id) for id in receipt]
    assert len({(p.store, p.lane) for p in places}) == 1
    assert [p.sequence for p in places] == [0, 1, 2]


# times


def test_the_timestamp_is_when_it_was_pushed_however_often_it_comes(
    q: Session, clock: VirtualClock
) -> None:
    pushed = when(clock.now())
    q.push("q", 1)
    for _ in range(3):
        clock.advance(400)
        (message,) = pop(q)
        assert message.metadata.timestamp == message.created_at == pushed
        assert message.created_at.tzinfo is UTC


def test_a_delayed_message_was_created_when_it_was_pushed(q: Session, clock: VirtualClock) -> None:
    pushed = when(clock.now())
    q.push("q", 1, delay=50)
    clock.advance(50)
    assert pop(q)[0].created_at == pushed


def test_created_at_never_decreases_within_a_lane(q: Session, clock: VirtualClock) -> None:
    for step in (5, -3, 1, -1, 10):
        q.push("q", step)
        clock.advance(step)
    times = [m.created_at for m in pop(q)]
    assert times == sorted(times)


def test_messages_of_one_batch_may_differ_in_time(q: Session, clock: VirtualClock) -> None:
    for _ in range(3):
        q.push("q", [1, 1])
        clock.advance(1)
    times = [m.created_at for m in pop(q)]
    second = timedelta(seconds=1)
    assert [t - times[0] for t in times] == [0 * second] * 2 + [second] * 2 + [2 * second] * 2


# counters and sequences


def test_num_delivered_counts_hand_outs(q: Session, clock: VirtualClock) -> None:
    q.push("q", 1)
    seen = []
    for end in ("nack", "release", "nack", "expire", None):
        (message,) = pop(q)
        seen.append((message.metadata.num_delivered, message.deliveries, message.redelivered))
        if end == "expire":
            clock.advance(300)
        elif end:
            getattr(message, end)()
    assert seen == [(1, 1, False), (2, 2, True), (2, 2, True), (3, 3, True), (4, 4, True)]


def test_the_stream_sequence_is_the_place_in_the_lane_for_every_group(q: Session) -> None:
    q.push("q", list(range(5)))
    q.push("q", list(range(3)), partition="p")
    for group in ("one", "two"):
        batch = pop(q, group=group)
        assert all(m.metadata.sequence.stream == m.sequence + 1 == m.data + 1 for m in batch)


def test_the_consumer_sequence_numbers_the_hand_outs_of_a_lane_to_a_group(q: Session) -> None:
    q.push("q", list(range(4)))
    first, second = pop(q, 3), pop(q, 1)
    assert [m.metadata.sequence.consumer for m in [*first, *second]] == [1, 2, 3, 4]
    q.nack([first[0], first[2]])
    again = pop(q)
    assert [m.metadata.sequence.stream for m in again] == [1, 3]
    assert [m.metadata.sequence.consumer for m in again] == [5, 6]
    assert [m.metadata.sequence.consumer for m in pop(q, group="other")] == [1, 2, 3, 4]


def test_the_consumer_sequence_goes_on_over_segments_and_counters(q: Session) -> None:
    for value in range(4):
        q.push("q", value)
    batch = pop(q)
    assert [m.metadata.sequence.consumer for m in batch] == [1, 2, 3, 4]
    batch[0].nack()
    batch[1].release()
    q.push("q", 4)
    again = pop(q)
    assert sorted(m.metadata.sequence.consumer for m in again) == [5, 6, 7]
    assert {m.metadata.sequence.stream for m in again} == {1, 2, 5}


def test_num_pending_counts_the_later_messages_of_the_lane(q: Session) -> None:
    q.push("q", list(range(5)))
    q.push("q", list(range(9)), partition="p")
    batch = pop(q, partition="Default")
    assert [m.metadata.num_pending for m in batch] == [4, 3, 2, 1, 0]


def test_num_pending_grows_with_new_messages_only(q: Session) -> None:
    q.push("q", [0, 1, 2])
    (first,) = pop(q, 1)
    assert first.metadata.num_pending == 2
    q.push("q", [3, 4])
    assert pop(q, 1)[0].metadata.num_pending == 3


def test_num_pending_does_not_count_copies_for_other_groups(q: Session) -> None:
    q.push("q", [0, 1])
    pop(q, 1)[0].requeue()
    assert [m.metadata.num_pending for m in pop(q, group="other")] == [1, 0]


def test_a_lease_read_again_tells_the_same_counters(q: Session) -> None:
    q.push("q", [0, 1])
    q.push("q", [2, 3, 4])
    q.nack(pop(q, 4)[:2])
    batch = pop(q, 3)
    assert batch.token is not None
    told = [(m.id, m.deliveries, m.failures, m.redelivered) for m in q.read(batch.token)]
    assert told == [(m.id, m.deliveries, m.failures, m.redelivered) for m in batch]
    assert [deliveries for _, deliveries, _, _ in told] == [2, 2, 1]


def another_pop(q: Session, batch: Batch[Message]) -> None:
    pop(q, 2)


def some_acks(q: Session, batch: Batch[Message]) -> None:
    q.ack([batch[0], batch[2]])


def nothing(q: Session, batch: Batch[Message]) -> None:
    pass


@pytest.mark.parametrize("meanwhile", [nothing, another_pop, some_acks])
def test_a_lease_read_again_tells_the_same_sequences(
    q: Session, meanwhile: Callable[[Session, Batch[Message]], None]
) -> None:
    q.push("q", list(range(6)))
    batch = pop(q, 4)
    meanwhile(q, batch)
    assert batch.token is not None
    told = [m.metadata.sequence for m in q.read(batch.token)]
    assert told == [m.metadata.sequence for m in batch]
