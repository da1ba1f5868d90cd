"""What is refused, and what is done twice without an error; and what consumers meet on the way."""

from typing import Any

import pika

from .client import Client, scenario


@scenario
def exclusive_queue_of_another_connection_refuses_everything_but_messages(c: Client) -> None:
    c.declare(exclusive=True)
    name, other = c.name("q"), c.connect()
    acts: list[Any] = [
        lambda ch: ch.queue_declare(name, passive=True),
        lambda ch: ch.queue_delete(name),
        lambda ch: ch.queue_purge(name),
        lambda ch: ch.queue_bind(name, "amq.direct", "k"),
        lambda ch: ch.queue_unbind(name, "amq.direct", "k"),
        lambda ch: ch.basic_get(name),
        lambda ch: ch.basic_consume(name, print),
        lambda ch: ch.basic_publish("", name, b"allowed") or ch.queue_declare("", exclusive=True),
    ]
    for act in acts:
        c.fails(act, channel=other.channel())
    c.count(expected=1)


@scenario
def own_exclusive_queue_is_declared_again(c: Client) -> None:
    c.declare(exclusive=True)
    c.fails(lambda ch: ch.queue_declare(c.name("q"), durable=True, exclusive=True))
    c.fails(lambda ch: ch.queue_declare(c.name("q"), durable=True))


@scenario
def exchanges_that_are_not_to_be_touched(c: Client) -> None:
    acts: list[Any] = [
        lambda ch: ch.exchange_declare(c.name("missing"), passive=True),
        lambda ch: ch.exchange_declare("amq.own"),
        lambda ch: ch.exchange_declare("amq.direct"),
        lambda ch: ch.exchange_declare("amq.direct", durable=True),
        lambda ch: ch.exchange_declare("", durable=True),
        lambda ch: ch.exchange_delete("amq.direct"),
        lambda ch: ch.exchange_delete(""),
    ]
    for act in acts:
        c.fails(act)


@scenario
def modes_of_a_channel(c: Client) -> None:
    c.fails(lambda ch: ch.tx_commit())
    c.fails(lambda ch: ch.tx_rollback())
    c.fails(lambda ch: (ch.tx_select(), ch.tx_select(), ch.tx_commit()))
    c.fails(lambda ch: (ch.confirm_delivery(), ch.tx_select()))


@scenario
def mandatory_in_a_transaction(c: Client) -> None:
    returned: list[str] = []
    c.ch.add_on_return_callback(lambda _, method, __, body: returned.append(body.decode()))
    c.ch.tx_select()
    c.ch.basic_publish("", c.name("missing"), b"back", mandatory=True)
    c.connection.process_data_events(0.1)
    c.log(list(returned))
    c.ch.tx_commit()
    c.pump(lambda: bool(returned), c.connection)
    c.log(returned)


@scenario
def priority_above_the_highest(c: Client) -> None:
    c.declare(arguments={"x-max-priority": 2})
    c.publish("two", priority=2)
    c.publish("many", priority=200)
    c.publish("none")
    c.count(expected=3)
    c.drain()


@scenario
def message_behind_another_expires(c: Client) -> None:
    c.declare()
    c.publish("stays")
    c.publish("goes", expiration="50")
    c.count(expected=2)
    c.connection.sleep(0.5)
    c.drain()


@scenario
def rejected_to_its_own_queue(c: Client) -> None:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": c.name("q")}
    c.declare(arguments=arguments)
    c.publish("a")
    for _ in range(3):
        c.count(expected=1)
        c.ch.basic_reject(c.get(), requeue=False)
    c.count(expected=1)


@scenario
def dead_letters_are_routed_by_their_headers(c: Client) -> None:
    c.ch.exchange_declare(c.name("x"), "headers")
    c.declare("dead")
    c.ch.queue_bind(c.name("dead"), c.name("x"), "", {"x-match": "all", "kind": "bad"})
    c.declare(arguments={"x-dead-letter-exchange": c.name("x")})
    c.publish("other", headers={"kind": "good"})
    c.publish("bad", headers={"kind": "bad"})
    for _ in range(2):
        c.ch.basic_reject(c.get(), requeue=False)
    c.count("dead", expected=1)
    c.drain("dead")


@scenario
def dead_letter_exchange_that_is_declared_later(c: Client) -> None:
    c.declare("dead")
    c.declare(arguments={"x-dead-letter-exchange": c.name("later")})
    c.publish("lost", "kept")
    c.ch.basic_reject(c.get(), requeue=False)
    c.ch.queue_declare(c.name("q"), passive=True)
    c.ch.exchange_declare(c.name("later"), "fanout")
    c.ch.queue_bind(c.name("dead"), c.name("later"), "")
    c.ch.basic_reject(c.get(), requeue=False)
    c.count("dead", expected=1)
    c.drain("dead")


@scenario
def direct_reply_without_a_consumer(c: Client) -> None:
    c.declare()

    def act(ch: Any) -> None:
        properties = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to")
        ch.basic_publish("", c.name("q"), b"?", properties)
        ch.queue_declare(c.name("q"), passive=True)

    c.fails(act)


@scenario
def prefetch_set_after_consume_is_for_the_next_consumer(c: Client) -> None:
    c.declare()
    c.publish("a", "b", "c", "d")
    c.count(expected=4)
    seen: list[str] = []
    ch = c.connection.channel()
    ch.basic_qos(prefetch_count=1)
    ch.basic_consume(c.name("q"), lambda *_: seen.append("first"))
    c.pump(lambda: len(seen) == 1, c.connection)
    ch.basic_qos(prefetch_count=2)
    ch.basic_consume(c.name("q"), lambda *_: seen.append("second"))
    c.pump(lambda: len(seen) == 3, c.connection)
    c.connection.process_data_events(0.1)
    c.log(seen)


@scenario
def nacked_message_comes_to_its_consumer_again_before_later_ones(c: Client) -> None:
    c.declare()
    c.publish("a", "b", "c")
    c.count(expected=3)
    seen: list[str] = []

    def got(ch: Any, method: Any, _: Any, body: bytes) -> None:
        seen.append(body.decode() + (" again" if method.redelivered else ""))
        if body == b"a" and not method.redelivered:
            ch.basic_nack(method.delivery_tag, requeue=True)
        else:
            ch.basic_ack(method.delivery_tag)

    c.ch.basic_qos(prefetch_count=1)
    c.ch.basic_consume(c.name("q"), got)
    c.pump(lambda: len(seen) == 4, c.connection)
    c.log(seen)


@scenario
def auto_delete_queue_stays_while_another_consumes(c: Client) -> None:
    c.declare(auto_delete=True)
    c.get()
    first = c.ch.basic_consume(c.name("q"), lambda *_: None)
    second = c.ch.basic_consume(c.name("q"), lambda *_: None)
    c.ch.basic_cancel(first)
    c.count(expected=0)
    c.ch.basic_cancel(second)
    c.fails(lambda ch: ch.queue_declare(c.name("q"), passive=True))


@scenario
def queue_deleted_and_declared_again_is_empty(c: Client) -> None:
    c.ch.exchange_declare(c.name("x"), "fanout")
    for _ in range(2):
        c.declare()
        c.ch.queue_bind(c.name("q"), c.name("x"), "")
        c.publish("a", to="k", exchange="x")
        c.count(expected=1)
        c.log(c.ch.queue_delete(c.name("q")).method.message_count)
    c.declare()
    c.publish("unbound", to="k", exchange="x")
    c.count(expected=0)


@scenario
def passive_declare_counts_consumers(c: Client) -> None:
    c.declare()
    for expected in (1, 2):
        c.ch.basic_consume(c.name("q"), lambda *_: None)
        method = c.ch.queue_declare(c.name("q"), passive=True).method
        c.log(method.consumer_count, expected)


@scenario
def headers_exchange_with_names_that_begin_with_x(c: Client) -> None:
    c.declare()
    c.ch.exchange_declare(c.name("x"), "headers")
    c.ch.queue_bind(c.name("q"), c.name("x"), "", {"x-match": "any-with-x", "x-kind": "a"})
    c.ch.queue_bind(c.name("q"), c.name("x"), "", {"x-match": "any", "x-kind": "b"})
    for kind in ("a", "b"):
        c.publish(kind, to="k", exchange="x", headers={"x-kind": kind})
    c.drain()
    c.fails(lambda ch: ch.queue_bind(c.name("q"), c.name("x"), "", {"x-match": "most"}))


@scenario
def topics_with_empty_words(c: Client) -> None:
    c.declare()
    c.ch.exchange_declare(c.name("x"), "topic")
    c.ch.queue_bind(c.name("q"), c.name("x"), "a.*.b")
    c.ch.queue_bind(c.name("q"), c.name("x"), "#.z")
    for key in ("a..b", "a.b", "", ".", "z", ".z", "z."):
        c.publish(key or "empty", to=key, exchange="x")
    c.drain()
