"""Acknowledging, rejecting, requeueing."""

from typing import Any

from .client import Client, scenario


@scenario
def ack_and_get(c: Client) -> None:
    c.declare()
    c.publish("a", "b")
    c.ch.basic_ack(c.get())
    c.ch.basic_ack(c.get())
    c.get()


@scenario
def get_counts_what_is_left(c: Client) -> None:
    c.declare()
    c.publish("a", "b", "c")
    c.count(expected=3)
    for _ in range(3):
        method, _, _ = c.ch.basic_get(c.name("q"))
        c.log(method.message_count, method.delivery_tag)


@scenario
def unknown_delivery_tag(c: Client) -> None:
    c.declare()
    c.publish("a")

    def act(ch: Any) -> None:
        ch.basic_ack(99)
        ch.queue_declare(c.name("q"), passive=True)

    c.fails(act)


@scenario
def acknowledged_twice(c: Client) -> None:
    c.declare()
    c.publish("a", "b")

    def act(ch: Any) -> None:
        tag = c.get(channel=ch)
        ch.basic_ack(tag)
        ch.basic_ack(tag)
        ch.queue_declare(c.name("q"), passive=True)

    c.fails(act)
    c.drain()


@scenario
def nack_keeps_the_place(c: Client) -> None:
    c.declare()
    c.publish("a", "b", "c")
    first, second = c.get(), c.get()
    c.ch.basic_nack(second, requeue=True)
    c.ch.basic_nack(first, requeue=True)
    c.count(expected=3)
    c.drain()


@scenario
def reject_with_requeue(c: Client) -> None:
    c.declare()
    c.publish("a", "b")
    c.ch.basic_reject(c.get(), requeue=True)
    c.count(expected=2)
    c.drain()


@scenario
def reject_without_requeue_drops(c: Client) -> None:
    c.declare()
    c.publish("a", "b")
    c.ch.basic_reject(c.get(), requeue=False)
    c.drain()


@scenario
def ack_of_many(c: Client) -> None:
    c.declare()
    c.publish("a", "b", "c", "d")
    tags = [c.get() for _ in range(3)]
    c.ch.basic_ack(tags[1], multiple=True)
    c.ch.basic_nack(tags[2], requeue=True)
    c.count(expected=2)
    c.drain()


@scenario
def ack_of_all_with_tag_zero(c: Client) -> None:
    c.declare()
    c.publish("a", "b")
    c.get()
    c.get()
    c.ch.basic_ack(0, multiple=True)
    c.ch.basic_ack(0, multiple=True)
    c.drain()


@scenario
def nack_of_many(c: Client) -> None:
    c.declare()
    c.publish("a", "b", "c")
    for _ in range(3):
        tag = c.get()
    c.ch.basic_nack(tag, multiple=True, requeue=True)
    c.count(expected=3)
    c.drain()


@scenario
def recover_requeues(c: Client) -> None:
    c.declare()
    c.publish("a", "b")
    c.get()
    c.get()
    c.ch.basic_recover(requeue=True)
    c.count(expected=2)
    c.drain()


@scenario
def recover_without_requeue_is_refused(c: Client) -> None:
    other = c.connect()
    c.fails(lambda ch: ch.basic_recover(requeue=False), other.channel())


@scenario
def closed_channel_requeues(c: Client) -> None:
    c.declare()
    c.publish("a", "b")
    ch = c.connection.channel()
    c.get(channel=ch)
    ch.close()
    c.count(expected=2)
    c.drain()


@scenario
def failed_channel_requeues(c: Client) -> None:
    c.declare()
    c.publish("a")
    ch = c.connection.channel()
    c.get(channel=ch)
    c.fails(lambda ch: ch.queue_declare(c.name("none"), passive=True), ch)
    c.count(expected=1)
    c.drain()


@scenario
def lost_connection_requeues(c: Client) -> None:
    c.declare()
    c.publish("a")
    other = c.connect()
    c.get(channel=other.channel())
    other._impl._transport._sock.shutdown(2)
    c.count(expected=1)
    c.drain()


@scenario
def auto_ack_is_done_at_once(c: Client) -> None:
    c.declare()
    c.publish("a")
    ch = c.connection.channel()
    c.get(channel=ch, auto_ack=True)
    ch.close()
    c.drain()
