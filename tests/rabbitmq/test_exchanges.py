"""Exchanges and what queues give up, on the broker itself: matching, limits, and every counter."""

import contextlib
import random
import re
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import decode, encode

import ackflow
from ackflow import Session, VirtualClock
from ackflow.broker.core.routing.exchanges import headers_match, topic_matches
from ackflow.broker.core.routing.publish import publish
from ackflow.broker.requests import Publication
from ackflow.dialects.rabbitmq.tables import entries
from ackflow.dialects.rabbitmq.verbs import (
    QueueRequest,
    bind,
    declare_exchange,
    declare_queue,
    purge_queue,
)
from ackflow.errors import LeaseLost, QueueFull
from ackflow.store.records import Binding, Exchange

from ..stateful.recount import Rows, check_rows


def expected(pattern: str, key: str) -> bool:
    """Match by a regular expression over words that each end with a dot."""
    parts = [r"[^.]*\." if part == "*" else re.escape(part) + r"\." for part in pattern.split(".")]
    parts = [
        r"([^.]*\.)*" if raw == "#" else part
        for raw, part in zip(pattern.split("."), parts, strict=True)
    ]
    return re.fullmatch("".join(parts), key + ".") is not None


def test_topics_match_as_a_regular_expression_does() -> None:
    words = ["a", "b", "*", "#"]
    patterns = [".".join(some) for n in (1, 2, 3, 4) for some in product(words, repeat=n)]
    keys = [".".join(some) for n in (1, 2, 3, 4) for some in product("ab", repeat=n)]
    for pattern in patterns:
        for key in keys:
            found = topic_matches(pattern.split("."), key.split("."))
            assert found == expected(pattern, key), (pattern, key)


def test_a_pattern_of_many_hashes_costs_little() -> None:
    assert not topic_matches(["#", "a"] * 60 + ["b"], ["a"] * 125)


def test_a_binding_tells_true_from_one() -> None:
    assert headers_match({"a": True}, {"a": True})
    assert not headers_match({"a": True}, {"a": 1})


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    | st.floats(width=32, allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, max_size=3)
    ),
    max_leaves=10,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.text("abcdef", min_size=1, max_size=5), values, max_size=5))
def test_tables_are_decoded_as_pamqp_does(table: dict[str, object]) -> None:
    data = encode.field_table(table)  # type: ignore[arg-type]
    found = list(entries(data, 4, len(data)))
    assert {entry.name: entry.value for entry in found} == decode.field_table(data)[1]
    assert b"".join(entry.raw for entry in found) == data[4:]


def queue(name: str, **arguments: object) -> QueueRequest:
    given = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return QueueRequest(name, True, False, None, "s", given)


@pytest.mark.parametrize("seed", range(4))
def test_every_counter_is_right_whatever_a_queue_gives_up(seed: int) -> None:
    clock, rng = VirtualClock(), random.Random(seed)
    with ackflow.connect(":memory:", clock=clock, upkeep=False) as q:
        do = q.broker.do
        do(declare_exchange, True, Exchange("x", "topic"))
        do(declare_exchange, True, Exchange("dlx", "fanout"))
        limits = {"max_length": 7, "message_ttl": 20_000, "delivery_limit": 1, "max_priority": 2}
        for name in ("a", "b", "dead"):
            chosen = {k: v for k, v in limits.items() if rng.random() < 0.6}
            if name != "dead" or rng.random() < 0.3:
                chosen["dead_letter_exchange"] = "dlx"
            do(declare_queue, True, queue(name, **chosen), "c")
        for source, name, key in (("x", "a", "a.#"), ("x", "b", "#.b"), ("dlx", "dead", "")):
            do(bind, True, Binding(source, False, name, key), "c")
        held: list[ackflow.Message] = []
        for _ in range(120):
            step(q, clock, rng, held)
            q.broker.read(lambda tx: check_rows(Rows(tx)))
            assert q.queue_stats("a").groups


def step(q: Session, clock: VirtualClock, rng: random.Random, held: list[ackflow.Message]) -> None:
    do = q.broker.do
    match rng.randrange(8):
        case 0 | 1 | 2:
            some = [
                Publication(
                    "x", [rng.choice(["a", "a.b", "c.b"])], b"%d" % n, priority=rng.randrange(4),
                    ttl=rng.choice([None, None, 1.0, 30.0]),
                )
                for n in range(rng.randint(1, 6))
            ]  # fmt: skip
            assert all(isinstance(reached, int) for reached in do(publish, True, some))
        case 3 | 4:
            held += q.pop(rng.choice(["a", "b", "dead"]), batch=rng.randint(1, 4))
        case 5:
            rng.shuffle(held)
            for message in [held.pop() for _ in range(len(held) // 2)]:
                with contextlib.suppress(LeaseLost):  # it was held for too long
                    getattr(message, rng.choice(["ack", "nack", "reject", "release"]))()
        case 6:
            clock.advance(rng.choice([0.5, 2.0, 40.0]))
            q.upkeep()
        case 7:
            if rng.random() < 0.3:
                do(purge_queue, True, rng.choice(["a", "b"]), "c")


def test_a_held_message_expires_when_it_is_given_back(clock: VirtualClock) -> None:
    with ackflow.connect(":memory:", clock=clock, upkeep=False) as q:
        do = q.broker.do
        do(declare_queue, True, queue("q"), "c")
        for ttl in (1.0, None):
            do(publish, True, [Publication("", ["q"], b"x", ttl=ttl)])
        (message,) = q.pop("q")
        clock.advance(5)
        q.upkeep()
        message.release()
        clock.advance(2)
        assert [one.transaction_id for one in q.pop("q", batch=5)] != [message.transaction_id]
        assert q.group_stats("q").counts.purged == 1


def test_a_message_reaches_all_queues_or_none(clock: VirtualClock) -> None:
    with ackflow.connect(":memory:", clock=clock, upkeep=False) as q:
        do = q.broker.do
        do(declare_exchange, True, Exchange("x", "fanout"))
        full = queue("full", max_length=1, overflow="reject-publish")
        for asked in (queue("open"), full):
            do(declare_queue, True, asked, "c")
            do(bind, True, Binding("x", False, asked.name, ""), "c")
        results = do(publish, True, [Publication("x", ["k"], b"%d" % n) for n in range(3)])
        assert results[0] == 2
        assert all(isinstance(one, QueueFull) for one in results[1:])
        assert [q.queue_stats(name).messages for name in ("open", "full")] == [1, 1]
