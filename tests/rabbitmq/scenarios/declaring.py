"""Declaring and deleting queues."""

import time

from .client import Client, scenario


@scenario
def declare_answers_with_name_and_counts(c: Client) -> None:
    method = c.ch.queue_declare(c.name("q"), durable=True).method
    c.log(method.queue, method.message_count, method.consumer_count)
    c.publish("a", "b")
    c.count(expected=2)


@scenario
def declare_again_with_the_same_arguments(c: Client) -> None:
    for _ in range(2):
        c.declare(arguments={"x-message-ttl": 60000, "x-max-length": 10})
    c.log("same")


@scenario
def declare_again_with_other_flags(c: Client) -> None:
    c.declare()
    c.fails(lambda ch: c.declare(channel=ch, durable=False))
    c.fails(lambda ch: c.declare(channel=ch, auto_delete=True))


@scenario
def declare_again_with_other_arguments(c: Client) -> None:
    c.declare(arguments={"x-message-ttl": 60000})
    c.fails(lambda ch: c.declare(channel=ch))
    c.fails(lambda ch: c.declare(channel=ch, arguments={"x-message-ttl": 70000}))
    c.fails(lambda ch: c.declare("p", channel=ch, arguments={"x-max-priority": 300}))
    c.fails(lambda ch: c.declare("p", channel=ch, arguments={"x-message-ttl": -1}))


@scenario
def unknown_argument(c: Client) -> None:
    c.fails(lambda ch: c.declare(channel=ch, arguments={"x-unknown": 1}))


@scenario
def passive_declare_of_a_missing_queue(c: Client) -> None:
    c.fails(lambda ch: c.declare("missing", channel=ch, passive=True))
    c.fails(lambda ch: ch.exchange_declare(c.name("missing"), passive=True))


@scenario
def reserved_names(c: Client) -> None:
    c.fails(lambda ch: ch.queue_declare("amq.mine"))
    c.fails(lambda ch: ch.exchange_declare("amq.mine", "direct"))
    c.fails(lambda ch: ch.exchange_delete("amq.direct"))


@scenario
def server_named_queue(c: Client) -> None:
    name = c.ch.queue_declare("", exclusive=True).method.queue
    c.log(name[:8], len(name) > 20)
    c.ch.basic_publish("", name, b"x")
    c.log(c.ch.basic_get(name, auto_ack=True)[2].decode())


@scenario
def exclusive_queue_of_another_connection(c: Client) -> None:
    c.declare(exclusive=True, durable=False)
    other = c.connect()
    for act in (
        lambda ch: c.declare(channel=ch, exclusive=True, durable=False),
        lambda ch: ch.basic_get(c.name("q")),
        lambda ch: ch.queue_delete(c.name("q")),
    ):
        c.fails(act, other.channel())


@scenario
def exclusive_queue_goes_with_its_connection(c: Client) -> None:
    other = c.connect()
    c.declare(channel=other.channel(), exclusive=True, durable=False)
    other.close()
    time.sleep(0.2)
    c.fails(lambda ch: c.declare(channel=ch, passive=True))


@scenario
def auto_delete_queue_goes_with_its_last_consumer(c: Client) -> None:
    c.declare(auto_delete=True, durable=False)
    c.count()
    tag = c.ch.basic_consume(c.name("q"), lambda *_: None)
    c.ch.basic_cancel(tag)
    time.sleep(0.2)
    c.fails(lambda ch: c.declare(channel=ch, passive=True))


@scenario
def delete_counts_messages_and_a_second_time_is_no_error(c: Client) -> None:
    c.declare()
    c.publish("a", "b")
    c.count(expected=2)
    c.log(c.ch.queue_delete(c.name("q")).method.message_count)
    c.log(c.ch.queue_delete(c.name("q")).method.message_count)


@scenario
def delete_if_empty_and_if_unused(c: Client) -> None:
    c.declare()
    c.publish("a")
    c.count(expected=1)
    c.fails(lambda ch: ch.queue_delete(c.name("q"), if_empty=True))
    c.ch.queue_purge(c.name("q"))
    c.ch.basic_consume(c.name("q"), lambda *_: None)
    c.fails(lambda ch: ch.queue_delete(c.name("q"), if_unused=True))


@scenario
def purge_leaves_what_is_held(c: Client) -> None:
    c.declare()
    c.publish("a", "b", "c")
    tag = c.get()
    c.count(expected=2)
    c.log("purged", c.ch.queue_purge(c.name("q")).method.message_count)
    c.ch.basic_nack(tag, requeue=True)
    c.drain()


@scenario
def queue_expires_without_use(c: Client) -> None:
    c.declare(arguments={"x-expires": 300})
    time.sleep(3)
    c.fails(lambda ch: c.declare(channel=ch, passive=True))


@scenario
def the_last_declared_queue_needs_no_name(c: Client) -> None:
    c.declare()
    c.publish("a")
    c.log(c.ch.basic_get("", auto_ack=True)[2].decode())
    c.fails(lambda ch: ch.basic_get(""))
