"""Alternate exchanges, and names of every kind."""

from typing import Any

from .client import Client, scenario


def exchange(c: Client, short: str, kind: str = "direct", alternate: Any = None) -> None:
    arguments = {} if alternate is None else {"alternate-exchange": alternate}
    c.ch.exchange_declare(c.name(short), kind, arguments=arguments)


def queue(c: Client, short: str, source: str, key: str = "") -> None:
    c.declare(short)
    c.ch.queue_bind(c.name(short), c.name(source), key)


@scenario
def what_matches_no_binding_goes_to_the_alternate_exchange(c: Client) -> None:
    exchange(c, "alternate", "fanout")
    exchange(c, "x", alternate=c.name("alternate"))
    queue(c, "q", "x", "key")
    queue(c, "rest", "alternate")
    c.publish("1", exchange="x", to="key")
    c.publish("2", exchange="x", to="other")
    c.ch.queue_unbind(c.name("q"), c.name("x"), "key")
    c.publish("3", exchange="x", to="key")
    c.drain("q")
    c.drain("rest")


@scenario
def alternates_follow_each_other_and_end(c: Client) -> None:
    exchange(c, "a", alternate=c.name("b"))
    exchange(c, "b", "topic", alternate=c.name("c"))
    exchange(c, "c", "headers", alternate=c.name("a"))
    queue(c, "q", "b", "topic.#")
    c.ch.confirm_delivery()
    c.publish("1", exchange="a", to="topic.x")
    c.publish("lost", exchange="a", to="other")
    c.fails(lambda _: c.ch.basic_publish(c.name("a"), "other", b"returned", mandatory=True))
    c.ch.basic_publish(c.name("a"), "topic.y", b"2", mandatory=True)
    c.drain("q")


@scenario
def alternate_exchange_of_an_exchange_behind_another(c: Client) -> None:
    exchange(c, "rest", "fanout")
    exchange(c, "outer-rest", "fanout")
    exchange(c, "outer", "fanout", alternate=c.name("outer-rest"))
    exchange(c, "inner", alternate=c.name("rest"))
    c.ch.exchange_bind(c.name("inner"), c.name("outer"))
    queue(c, "q", "inner", "key")
    queue(c, "inner-rest", "rest")
    queue(c, "unused", "outer-rest")
    c.publish("1", exchange="outer", to="key")
    c.publish("2", exchange="outer", to="other")
    for short in ("q", "inner-rest", "unused"):
        c.drain(short)


@scenario
def alternate_exchange_that_does_not_exist_yet(c: Client) -> None:
    exchange(c, "x", alternate=c.name("later"))
    c.publish("lost", exchange="x", to="key")
    exchange(c, "later", "fanout")
    queue(c, "q", "later")
    c.publish("kept", exchange="x", to="key")
    c.drain("q")
    c.ch.exchange_delete(c.name("later"))
    c.publish("lost again", exchange="x", to="key")
    c.drain("q")


@scenario
def alternate_exchange_declared_differently(c: Client) -> None:
    exchange(c, "x", alternate="amq.fanout")
    exchange(c, "x", alternate="amq.fanout")
    c.ch.exchange_declare(c.name("x"), passive=True)
    c.fails(lambda ch: ch.exchange_declare(c.name("x"), "direct"))
    for short, other in (("x", "amq.direct"), ("new", 5)):
        c.fails(lambda _, short=short, other=other: exchange(c, short, alternate=other))
        c.ch = c.connection.channel()
    exchange(c, "plain")
    c.fails(
        lambda ch: ch.exchange_declare(
            c.name("plain"), "direct", arguments={"alternate-exchange": "amq.fanout"}
        )
    )


@scenario
def names_of_every_kind(c: Client) -> None:
    for short in ("with space", "ü/ñ *#", "a" * 100, "'\"\\"):
        name = c.declare(short)
        c.log(name == c.name(short))
        c.ch.queue_declare(name, passive=True)
        c.ch.exchange_declare(name, "direct")
        c.ch.queue_bind(name, name, short)
        c.publish("routed", exchange=short, to=short)
        c.drain(short)
    c.ch.confirm_delivery()
    c.fails(lambda _: c.ch.basic_publish(c.name("ü/ñ *#"), "ü ", b"x", mandatory=True))
    got: list[Any] = []
    c.ch.add_on_return_callback(lambda _, method, __, body: got.append(method))
    c.fails(lambda _: c.ch.basic_publish(c.name("ü/ñ *#"), "ü ", b"x", mandatory=True))
    c.log(c.ch.basic_consume(c.name("with space"), lambda *_: None, consumer_tag="täg /"))
    c.ch.basic_cancel("täg /")
    c.ch.queue_delete(c.name("with space"))
