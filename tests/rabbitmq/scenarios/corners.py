"""Corner cases: settling twice in other ways, transactions, fail-over, limits that meet."""

from typing import Any

import pika

from .client import Client, scenario


def after(c: Client, act: Any) -> Any:
    """An act whose error, if it has one, is seen by the next answer."""

    def both(ch: Any) -> None:
        act(ch)
        ch.queue_declare(c.name("q"), passive=True)

    return both


@scenario
def ack_of_many_up_to_a_settled_tag(c: Client) -> None:
    c.declare()
    c.publish("a", "b", "c")

    def act(ch: Any) -> None:
        _, second, _ = c.get(channel=ch), c.get(channel=ch), c.get(channel=ch)
        ch.basic_ack(second)
        ch.basic_ack(second, multiple=True)

    c.fails(after(c, act))
    c.drain()


@scenario
def ack_of_many_beyond_the_last(c: Client) -> None:
    c.declare()
    c.publish("a", "b")

    def act(ch: Any) -> None:
        c.get(channel=ch)
        ch.basic_ack(99, multiple=True)

    c.fails(after(c, act))
    c.drain()


@scenario
def ack_of_all_without_any(c: Client) -> None:
    c.declare()
    c.fails(after(c, lambda ch: ch.basic_ack(0, multiple=True)))


@scenario
def tag_of_another_channel(c: Client) -> None:
    c.declare()
    c.publish("a")
    tag = c.get()
    c.fails(after(c, lambda ch: ch.basic_ack(tag)))
    c.ch.basic_ack(tag)
    c.drain()


@scenario
def recover_in_a_transaction(c: Client) -> None:
    c.declare()
    c.declare("out")
    c.publish("a", "b")
    c.ch.tx_select()
    first = c.get()
    c.get()
    c.publish("result", to="out")
    c.ch.basic_ack(first)
    c.ch.basic_recover(requeue=True)
    c.ch.tx_commit()
    c.count("out", expected=1)
    c.get()
    c.get()


@scenario
def acks_of_a_rolled_back_transaction_can_be_repeated(c: Client) -> None:
    c.declare()
    c.publish("a", "b")
    c.ch.tx_select()
    tag = c.get()
    c.ch.basic_ack(tag)
    c.ch.tx_rollback()
    c.ch.basic_ack(tag)
    c.ch.tx_commit()
    c.get()


@scenario
def rejected_in_a_transaction(c: Client) -> None:
    c.declare("dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": c.name("dead")}
    c.declare(arguments=arguments)
    c.publish("a")
    c.ch.tx_select()
    c.ch.basic_nack(c.get(), requeue=False)
    c.count("dead", expected=0)
    c.ch.tx_commit()
    c.count("dead", expected=1)


@scenario
def the_next_active_consumer_gets_what_the_last_one_held_first(c: Client) -> None:
    c.declare(arguments={"x-single-active-consumer": True})
    c.publish("a", "b", "c")
    seen: list[str] = []
    first, second = c.connection.channel(), c.connect().channel()
    first.basic_qos(prefetch_count=2)
    first.basic_consume(c.name("q"), lambda *_: seen.append("held"))
    c.pump(lambda: len(seen) == 2, c.connection)

    def got(_: Any, method: Any, __: Any, body: bytes) -> None:
        seen.append(body.decode() + (" again" if method.redelivered else ""))

    second.basic_consume(c.name("q"), got)
    second.connection.process_data_events(0.2)
    first.close()
    c.pump(lambda: len(seen) == 5, second.connection)
    c.log(seen)


@scenario
def cancelled_active_consumer_keeps_what_it_holds(c: Client) -> None:
    c.declare(arguments={"x-single-active-consumer": True})
    c.publish("a", "b")
    seen: list[str] = []
    first, second = c.connection.channel(), c.connect().channel()
    first.basic_qos(prefetch_count=1)
    tag = first.basic_consume(c.name("q"), lambda *_: seen.append("held"))
    c.pump(lambda: len(seen) == 1, c.connection)
    second.basic_consume(c.name("q"), lambda _, __, ___, body: seen.append(body.decode()))
    first.basic_cancel(tag)
    second.connection.sleep(0.5)
    c.log(seen)


@scenario
def length_drops_the_lowest_priority(c: Client) -> None:
    c.declare(arguments={"x-max-length": 2, "x-max-priority": 3})
    for body, priority in (("low", 0), ("high", 3), ("middle", 2)):
        c.publish(body, priority=priority)
    c.count(expected=2)
    c.drain()


@scenario
def length_of_zero_keeps_nothing(c: Client) -> None:
    c.declare(arguments={"x-max-length": 0})
    c.publish("a", "b")
    c.count(expected=0)


@scenario
def expiration_of_zero_without_a_consumer(c: Client) -> None:
    c.declare()
    c.publish("a", expiration="0")
    c.publish("b")
    c.count(expected=1)
    c.drain()


@scenario
def expiration_of_zero_reaches_a_consumer_that_waits(c: Client) -> None:
    c.declare()
    seen: list[str] = []
    c.ch.basic_consume(
        c.name("q"), lambda _, __, ___, body: seen.append(body.decode()), auto_ack=True
    )
    c.ch.queue_declare(c.name("q"), passive=True)
    c.publish("now", expiration="0")
    c.pump(lambda: bool(seen), c.connection)
    c.log(seen)


@scenario
def get_from_a_queue_with_an_exclusive_consumer(c: Client) -> None:
    c.declare()
    c.ch.basic_consume(c.name("q"), lambda *_: None, exclusive=True)
    c.fails(lambda ch: ch.basic_get(c.name("q")))


@scenario
def nack_of_many_keeps_the_order(c: Client) -> None:
    c.declare()
    c.publish("a", "b", "c", "d")
    tags = [c.get() for _ in range(4)]
    c.ch.basic_nack(tags[2], multiple=True, requeue=True)
    c.drain()


@scenario
def unknown_consumer_tag_is_cancelled_without_error(c: Client) -> None:
    c.declare()
    c.fails(after(c, lambda ch: ch._impl.basic_cancel("nobody")))


@scenario
def bound_twice_and_unbound_once(c: Client) -> None:
    c.declare()
    c.ch.exchange_declare(c.name("x"), "direct")
    for _ in range(2):
        c.ch.queue_bind(c.name("q"), c.name("x"), "k")
    c.ch.queue_unbind(c.name("q"), c.name("x"), "k")
    c.ch.queue_unbind(c.name("q"), c.name("x"), "k")
    c.publish("lost", to="k", exchange="x")
    c.count(expected=0)
    c.ch.exchange_delete(c.name("x"))
    c.ch.exchange_delete(c.name("x"))
    c.fails(after(c, lambda ch: ch.basic_publish(c.name("x"), "k", b"lost")))


@scenario
def delivery_count_of_a_quorum_queue(c: Client) -> None:
    c.declare(arguments={"x-queue-type": "quorum"})
    c.publish("a")
    c.count(expected=1)
    for _ in range(3):
        method, properties, _ = c.ch.basic_get(c.name("q"))
        c.log(method.redelivered, properties.headers)
        c.ch.basic_nack(method.delivery_tag, requeue=True)
        c.count(expected=1)


@scenario
def released_messages_of_a_quorum_queue_count_as_delivered(c: Client) -> None:
    c.declare("dead")
    arguments = {
        "x-queue-type": "quorum", "x-delivery-limit": 1, "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": c.name("dead"),
    }  # fmt: skip
    c.declare(arguments=arguments)
    c.publish("a")
    c.count(expected=1)
    for _ in range(2):
        other = c.connection.channel()
        c.get(channel=other)
        other.close()
        c.count(expected=1)
    c.count("dead")


@scenario
def history_of_a_message_that_died_twice(c: Client) -> None:
    to_second = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": c.name("second")}
    to_last = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": c.name("last")}
    c.declare(arguments=to_second)
    c.declare("second", arguments={**to_last, "x-message-ttl": 1})
    c.declare("last")
    c.publish("a", headers={"own": 1}, expiration="60000", priority=2)
    c.ch.basic_reject(c.get(), requeue=False)
    _, properties, _ = c.wait_get("last")
    headers = properties.headers
    for death in headers["x-death"]:
        death.pop("time")
    c.log(dict(sorted(headers.items())), properties.expiration, properties.priority)


@scenario
def returned_message_has_its_properties(c: Client) -> None:
    ch = c.connection.channel()
    returned: list[Any] = []
    ch.add_on_return_callback(
        lambda _, method, properties, body: returned.append(
            [
                method.reply_code,
                method.exchange,
                method.routing_key,
                properties.headers,
                properties.message_id,
                body.decode(),
            ]
        )
    )
    properties = pika.BasicProperties(headers={"a": [1, {"b": True}]}, message_id="m")
    ch.basic_publish("", c.name("missing"), b"body", properties, mandatory=True)
    c.pump(lambda: bool(returned), c.connection)
    c.log(*returned)


@scenario
def confirms_begin_at_one_on_each_channel(c: Client) -> None:
    for _ in range(2):
        ch = c.connection.channel()
        ch.confirm_delivery()
        tags: list[int] = []
        ch._impl.add_callback(
            lambda frame, tags=tags: tags.append(frame.method.delivery_tag),
            [pika.spec.Basic.Ack],
            False,
        )
        for _ in range(2):
            ch.basic_publish("", c.name("missing"), b"x")
        c.log(tags)
        ch.close()


@scenario
def exclusive_consumer_beside_others(c: Client) -> None:
    c.declare()
    c.ch.basic_consume(c.name("q"), lambda *_: None)
    c.fails(lambda ch: ch.basic_consume(c.name("q"), lambda *_: None, exclusive=True))


@scenario
def confirm_of_a_full_queue_after_room_was_made(c: Client) -> None:
    c.declare(arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    ch = c.connection.channel()
    ch.confirm_delivery()
    for _ in range(2):
        c.fails(lambda _: ch.basic_publish("", c.name("q"), b"x"), channel=ch)
    c.drain()
    c.fails(lambda _: ch.basic_publish("", c.name("q"), b"x"), channel=ch)
