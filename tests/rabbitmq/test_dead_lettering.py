"""Dead-letter exchanges and limits of length, also for messages that no AMQP client published."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ackflow
from ackflow import VirtualClock
from ackflow.broker.core.routing.publish import publish
from ackflow.broker.requests import Publication
from ackflow.dialects.rabbitmq.properties import decode_properties, encode_properties
from ackflow.dialects.rabbitmq.verbs import declare_queue

from .conftest import Amqp
from .test_exchanges import queue
from .test_pika import bodies, get


def declare(q: ackflow.Session, name: str, **arguments: object) -> None:
    q.broker.do(declare_queue, True, queue(name, **arguments), "c")


@pytest.mark.parametrize("kind", ["memory", pytest.param("postgres", marks=pytest.mark.outer)])
def test_what_is_pushed_to_a_queue_above_its_length_is_dropped_at_once(
    kind: str, request: pytest.FixtureRequest
) -> None:
    url = ":memory:" if kind == "memory" else request.getfixturevalue("postgres_url")
    with ackflow.connect(url) as q:
        check_length(q)


def check_length(q: ackflow.Session) -> None:
    declare(q, "dead")
    limits = {"max_length": 3, "dead_letter_exchange": "", "dead_letter_routing_key": "dead"}
    declare(q, "short", **limits)
    q.push("short", [1, 2, 3, 4, 5])
    q.push("short", 6)
    q.push("short", 7, headers={"k": "v"})
    assert [m.data for m in q.pop("short", batch=10)] == [5, 6, 7]
    assert [m.data for m in q.pop("dead", batch=10)] == [1, 2, 3, 4]
    with q.transaction() as tx:
        tx.push("short", [8, 9, 10, 11])
    assert [m.data for m in q.pop("short", batch=10)] == [9, 10, 11]


def test_a_message_that_many_queues_drop_in_turn_arrives_at_the_last() -> None:
    with ackflow.connect(":memory:") as q:
        for n in range(300):
            following = {"dead_letter_exchange": "", "dead_letter_routing_key": f"q{n + 1}"}
            declare(q, f"q{n}", max_length=0, **following)
        declare(q, "q300")
        assert q.broker.do(publish, True, [Publication("", ["q0"], b"far")]) == [1]
        assert [m.data for m in q.pop("q300")] == [b"far"]


DEEP = "[" * 3_000 + "]" * 3_000
ODD = [
    '[{"queue":"q","reason":"rejected","count":"many"}]',
    '[{"queue":"q","reason":"expired","count":null,"time":"now"}]',
    f'[{{"a":{DEEP}}}]',
    DEEP,
    "[1]",
    '[{"n":99999999999999999999999999}]',
    '{"a":',
]


@pytest.mark.parametrize("deaths", ODD, ids=range(len(ODD)))
def test_a_history_that_a_client_made_up_stops_nothing(
    amqp: Amqp, channel: Any, deaths: str
) -> None:
    channel.queue_declare("dead")
    to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("q", arguments=to_dead)
    headers = {"x-death": deaths[:6_000], "priority": "9" * 5_000}
    amqp.session.push("q", b"odd", headers=headers)
    method, _, body = get(channel, "q")
    assert body == b"odd"
    channel.basic_reject(method.delivery_tag, requeue=False)
    channel.queue_declare("dead", passive=True)
    _, properties, body = get(channel, "dead")
    assert (body, properties.headers["x-first-death-reason"]) == (b"odd", "rejected")


def test_expiry_goes_on_beside_a_history_that_a_client_made_up(clock: VirtualClock) -> None:
    with ackflow.connect(":memory:", clock=clock, upkeep=False) as q:
        declare(q, "dead")
        to_dead = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}
        declare(q, "q", message_ttl=1_000, **to_dead)
        for deaths in ODD:
            q.push("q", b"x", headers={"x-death": deaths[:6_000]})
        clock.advance(5)
        q.upkeep()
        assert len(q.pop("dead", batch=100)) == len(ODD)


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
names = st.sampled_from(["priority", "timestamp", "delivery-mode", "x-death", "amqp-table", "type"])


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(names | text, text | st.sampled_from(ODD), max_size=6), st.booleans())
def test_any_headers_are_properties_that_can_be_read(headers: dict[str, str], binary: bool) -> None:
    raw = encode_properties(headers, binary, "id")
    decode_properties(raw)


def test_bodies_are_in_the_order_of_their_deaths(channel: Any) -> None:
    channel.queue_declare("dead")
    channel.queue_declare(
        "q",
        arguments={
            "x-max-length": 2, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead",
        },
    )  # fmt: skip
    for n in range(6):
        channel.basic_publish("", "q", b"%d" % n)
    assert bodies(channel, "q") == [b"4", b"5"]
    assert bodies(channel, "dead") == [b"0", b"1", b"2", b"3"]
