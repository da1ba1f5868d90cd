"""Consumers and their limits."""

import time
from collections.abc import Callable
from typing import Any

from .client import Client, scenario


@scenario
def consume_in_order(c: Client) -> None:
    c.declare()
    c.publish(*"abcde")
    for tag in c.consume(n=5):
        c.ch.basic_ack(tag)
    c.drain()


@scenario
def prefetch_limits_what_is_held(c: Client) -> None:
    c.declare()
    c.publish(*"abcde")
    c.ch.basic_qos(prefetch_count=2)
    tags = c.consume(n=2)
    c.count()
    c.ch.basic_ack(tags[0])
    c.consume(n=2)


@scenario
def prefetch_of_a_channel(c: Client) -> None:
    c.declare("q")
    c.declare("r")
    c.publish(*"abc", to="q")
    c.publish(*"xyz", to="r")
    c.count("q", expected=3)
    c.count("r", expected=3)
    c.ch.basic_qos(prefetch_count=3, global_qos=True)
    seen: list[Any] = []
    for queue in ("q", "r"):
        c.ch.basic_consume(c.name(queue), lambda _, m, __, body: seen.append(m.delivery_tag))
    c.pump(lambda: len(seen) >= 3, c.connection)
    c.connection.process_data_events(0.2)
    c.log(len(seen))
    c.ch.basic_ack(seen[-1], multiple=True)
    c.pump(lambda: len(seen) >= 6, c.connection)
    c.log(len(seen))


@scenario
def consumer_gets_what_is_published_later(c: Client) -> None:
    c.declare()
    seen: list[str] = []
    c.ch.basic_consume(c.name("q"), lambda *a: seen.append(a[3].decode()), auto_ack=True)
    c.publish("a", "b")
    c.pump(lambda: len(seen) >= 2, c.connection)
    c.log(seen)


@scenario
def two_consumers_share(c: Client) -> None:
    c.declare()
    seen: dict[str, int] = {"one": 0, "two": 0}
    c.ch.basic_qos(prefetch_count=1)
    for who in seen:

        def got(ch: Any, method: Any, _: Any, __: bytes, who: str = who) -> None:
            seen[who] += 1
            ch.basic_ack(method.delivery_tag)

        c.ch.basic_consume(c.name("q"), got)
    c.publish(*"abcdefghij")
    c.pump(lambda: sum(seen.values()) >= 10, c.connection)
    c.log(sum(seen.values()), all(seen.values()))


@scenario
def exclusive_consumer(c: Client) -> None:
    c.declare()
    c.ch.basic_consume(c.name("q"), lambda *_: None, exclusive=True)
    c.fails(lambda ch: ch.basic_consume(c.name("q"), lambda *_: None))


@scenario
def consume_from_a_missing_queue(c: Client) -> None:
    c.fails(lambda ch: ch.basic_consume(c.name("none"), lambda *_: None))


@scenario
def consumer_tag_used_twice(c: Client) -> None:
    other = c.connect()
    c.declare()
    ch = other.channel()
    ch._impl.basic_consume(c.name("q"), lambda *_: None, consumer_tag="t")
    other.process_data_events(0.2)

    def act(ch: Any) -> None:
        ch._impl._consumers.clear()  # or pika itself refuses
        ch._impl.basic_consume(c.name("q"), lambda *_: None, consumer_tag="t")
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            ch.connection.process_data_events(0.05)

    c.fails(act, ch)


@scenario
def cancelled_consumer_keeps_what_it_holds(c: Client) -> None:
    c.declare()
    c.publish("a", "b")
    c.ch.basic_qos(prefetch_count=1)
    (tag,) = c.consume(n=1)
    c.count()
    c.ch.basic_ack(tag)
    c.drain()


@scenario
def deleted_queue_cancels_its_consumer(c: Client) -> None:
    c.declare()
    cancelled: list[Any] = []
    c.ch.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    c.ch.basic_consume(c.name("q"), lambda *_: None, consumer_tag="t")
    c.connect().channel().queue_delete(c.name("q"))
    c.pump(lambda: bool(cancelled), c.connection)
    c.log(cancelled)


@scenario
def single_active_consumer(c: Client) -> None:
    c.declare(arguments={"x-single-active-consumer": True})
    seen: list[str] = []

    def got(who: str) -> Callable[..., None]:
        def one(ch: Any, method: Any, _: Any, body: bytes) -> None:
            seen.append(who + body.decode())
            ch.basic_ack(method.delivery_tag)

        return one

    first = c.ch.basic_consume(c.name("q"), got("1"))
    c.ch.basic_consume(c.name("q"), got("2"))
    c.publish("a", "b")
    c.pump(lambda: len(seen) >= 2, c.connection)
    c.ch.basic_cancel(first)
    c.publish("c")
    c.pump(lambda: len(seen) >= 3, c.connection)
    c.log(seen)


@scenario
def consumer_priority(c: Client) -> None:
    c.declare()
    seen: list[str] = []
    c.ch.basic_consume(c.name("q"), lambda *_: seen.append("low"), auto_ack=True)
    c.ch.basic_consume(
        c.name("q"), lambda *_: seen.append("high"), auto_ack=True, arguments={"x-priority": 10}
    )
    c.publish("a", "b")
    c.pump(lambda: len(seen) >= 2, c.connection)
    c.log(seen)
