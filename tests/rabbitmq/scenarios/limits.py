"""Priorities, expiry, lengths and dead letters."""

import time
from typing import Any

from .client import Client, scenario

QUORUM = {"x-queue-type": "quorum"}


@scenario
def priorities(c: Client) -> None:
    c.declare(arguments={"x-max-priority": 5})
    for n, priority in enumerate((None, 0, 5, 9, 2, 5)):
        c.publish(f"{n}:{priority}", priority=priority)
    c.count(expected=6)
    c.drain()


@scenario
def requeued_message_keeps_its_priority(c: Client) -> None:
    c.declare(arguments={"x-max-priority": 5})
    c.publish("low", priority=1)
    c.publish("high", priority=5)
    c.count(expected=2)
    c.ch.basic_nack(c.get(), requeue=True)
    c.count(expected=2)
    c.drain()


@scenario
def priority_without_the_argument_means_nothing(c: Client) -> None:
    c.declare()
    c.publish("a", priority=1)
    c.publish("b", priority=9)
    c.drain()


@scenario
def message_expires(c: Client) -> None:
    c.declare()
    c.publish("short", expiration="100")
    c.publish("long", expiration="60000")
    time.sleep(0.5)
    c.drain()


@scenario
def queue_expires_its_messages(c: Client) -> None:
    c.declare(arguments={"x-message-ttl": 100})
    c.publish("a")
    time.sleep(0.5)
    c.drain()


@scenario
def held_message_does_not_expire(c: Client) -> None:
    c.declare()
    c.publish("a", expiration="200")
    tag = c.get()
    time.sleep(0.6)
    c.ch.basic_ack(tag)
    c.log("acked")
    c.drain()


@scenario
def requeued_message_expires(c: Client) -> None:
    c.declare(arguments={"x-message-ttl": 200})
    c.publish("a")
    tag = c.get()
    time.sleep(0.6)
    c.ch.basic_nack(tag, requeue=True)
    time.sleep(0.3)
    c.drain()


@scenario
def longest_queue_drops_its_head(c: Client) -> None:
    c.declare(arguments={"x-max-length": 2})
    c.publish(*"abcd")
    c.count(expected=2)
    c.drain()


@scenario
def full_queue_refuses(c: Client) -> None:
    c.declare(arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    c.ch.confirm_delivery()
    c.publish("a")
    c.fails(lambda _: c.publish("b"), c.ch)
    c.drain()


def _dead_letters(c: Client, **arguments: Any) -> None:
    c.ch.exchange_declare(c.name("dlx"), "direct")
    c.declare("dead")
    c.ch.queue_bind(c.name("dead"), c.name("dlx"), c.name("q"))
    c.ch.queue_bind(c.name("dead"), c.name("dlx"), "special")
    given = {"x-dead-letter-exchange": c.name("dlx"), **arguments}
    c.declare(arguments={key.replace("_", "-"): value for key, value in given.items()})


def _log_dead(c: Client) -> None:
    method, properties, body = c.wait_get("dead")
    if method is None:
        return c.log("no dead letter")
    headers = properties.headers or {}
    death = headers.get("x-death", [{}])[0]
    shown = {key: value for key, value in death.items() if key != "time"}
    c.log(body.decode(), method.exchange, method.routing_key, method.redelivered)
    c.log(sorted((key, str(value)) for key, value in shown.items()), "time" in death)
    c.log(sorted((k, v) for k, v in headers.items() if k.startswith("x-first")))
    c.log(properties.expiration, properties.content_type)


@scenario
def rejected_message_is_dead_lettered(c: Client) -> None:
    _dead_letters(c)
    c.publish("m", content_type="text/plain", headers={"own": "h"})
    c.ch.basic_reject(c.get(), requeue=False)
    _log_dead(c)
    c.drain()


@scenario
def dead_letter_routing_key(c: Client) -> None:
    _dead_letters(c, **{"x-dead-letter-routing-key": "special"})
    c.publish("m")
    c.ch.basic_nack(c.get(), requeue=False)
    _log_dead(c)


@scenario
def expired_message_is_dead_lettered(c: Client) -> None:
    _dead_letters(c)
    c.publish("m", expiration="100")
    _log_dead(c)


@scenario
def message_that_the_queue_expires_is_dead_lettered(c: Client) -> None:
    _dead_letters(c, **{"x-message-ttl": 100})
    c.publish("m")
    _log_dead(c)


@scenario
def dropped_head_is_dead_lettered(c: Client) -> None:
    _dead_letters(c, **{"x-max-length": 1})
    c.publish("a", "b")
    _log_dead(c)
    c.drain()


@scenario
def delivery_limit_of_a_quorum_queue(c: Client) -> None:
    _dead_letters(c, **{"x-delivery-limit": 1, **QUORUM})
    c.publish("m")
    c.count(expected=1)
    for expected in (1, 0):
        c.ch.basic_nack(c.get(), requeue=True)
        c.count(expected=expected)
    _log_dead(c)


@scenario
def rejected_twice_counts(c: Client) -> None:
    _dead_letters(c)
    c.publish("m")
    c.ch.basic_reject(c.get(), requeue=False)
    _, properties, body = c.wait_get("dead")
    c.ch.basic_publish("", c.name("q"), body, properties)
    c.count(expected=1)
    c.ch.basic_reject(c.get(), requeue=False)
    _log_dead(c)


@scenario
def dead_letter_cycle_ends(c: Client) -> None:
    c.declare(
        arguments={
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": c.name("q"),
            "x-message-ttl": 100,
        }
    )
    c.publish("m")
    time.sleep(2.5)
    c.drain()


@scenario
def missing_dead_letter_exchange_loses_nothing_else(c: Client) -> None:
    c.declare(arguments={"x-dead-letter-exchange": c.name("none")})
    c.publish("a", "b")
    c.ch.basic_reject(c.get(), requeue=False)
    c.drain()


@scenario
def dead_letter_key_without_exchange(c: Client) -> None:
    c.fails(lambda ch: c.declare(channel=ch, arguments={"x-dead-letter-routing-key": "k"}))


@scenario
def dead_letter_strategy_is_for_quorum_queues(c: Client) -> None:
    strategy = {"x-dead-letter-strategy": "at-least-once"}
    _dead_letters(c, **strategy, **QUORUM, **{"x-overflow": "reject-publish"})
    c.publish("m", expiration="50")
    method, _, body = c.wait_get("dead")
    c.log(body.decode() if method is not None else "no dead letter")
    c.fails(lambda ch: ch.queue_declare(c.name("c"), durable=True, arguments=strategy))


@scenario
def longest_times(c: Client) -> None:
    ten_years = 10 * 365 * 86_400_000
    for name in ("x-message-ttl", "x-expires"):
        c.declare(name, arguments={name: ten_years})
        c.log(
            c.ch.queue_declare(
                c.name(name), durable=True, arguments={name: ten_years}
            ).method.message_count
        )
    c.declare()
    c.publish("m", expiration=str(ten_years))
    c.count(expected=1)
