"""Exchanges, bindings and what they route."""

from typing import Any

from .client import Client, scenario


@scenario
def direct_exchange(c: Client) -> None:
    c.ch.exchange_declare(c.name("x"), "direct")
    for queue, key in (("q", "a"), ("q", "b"), ("r", "b")):
        c.declare(queue)
        c.ch.queue_bind(c.name(queue), c.name("x"), key)
    c.publish("1", exchange="x", to="a")
    c.publish("2", exchange="x", to="b")
    c.publish("3", exchange="x", to="c")
    c.drain("q")
    c.drain("r")


@scenario
def fanout_and_unbind(c: Client) -> None:
    c.ch.exchange_declare(c.name("x"), "fanout")
    for queue in ("q", "r"):
        c.declare(queue)
        c.ch.queue_bind(c.name(queue), c.name("x"))
    c.publish("1", exchange="x", to="any")
    c.ch.queue_unbind(c.name("r"), c.name("x"))
    c.publish("2", exchange="x", to="")
    c.drain("q")
    c.drain("r")


@scenario
def topic_patterns(c: Client) -> None:
    c.ch.exchange_declare(c.name("x"), "topic")
    patterns = ["#", "*", "a.*", "a.#", "#.z", "*.b.*", "a.#.z", "", "#.#", "a.b.c"]
    for at, pattern in enumerate(patterns):
        c.declare(f"q{at}")
        c.ch.queue_bind(c.name(f"q{at}"), c.name("x"), pattern)
    for key in ("", "a", "a.b", "a.b.c", "z", "a.z", "x.b.z", "a.b.c.z", "a..z", "."):
        c.publish(key or "(none)", exchange="x", to=key)
    for at, pattern in enumerate(patterns):
        c.log(pattern)
        c.drain(f"q{at}")


@scenario
def headers_exchange(c: Client) -> None:
    c.ch.exchange_declare(c.name("x"), "headers")
    bindings: dict[str, dict[str, Any]] = {
        "all": {"x-match": "all", "a": 1, "b": "t"},
        "any": {"x-match": "any", "a": 1, "b": "t"},
        "default": {"a": 1},
        "none": {},
        "x": {"x-match": "all", "a": 1, "x-ignored": 5},
    }
    for queue, arguments in bindings.items():
        c.declare(queue)
        c.ch.queue_bind(c.name(queue), c.name("x"), "", arguments)
    for body, headers in {
        "a": {"a": 1}, "ab": {"a": 1, "b": "t"}, "b": {"b": "t"}, "text": {"a": "1"},
        "nothing": {}, "other": {"a": 2, "b": "u"},
    }.items():  # fmt: skip
        c.publish(body, exchange="x", to="", headers=headers)
    for queue in bindings:
        c.drain(queue)


@scenario
def two_bindings_deliver_once(c: Client) -> None:
    c.ch.exchange_declare(c.name("x"), "topic")
    c.declare()
    for key in ("a.#", "#", "a.b"):
        c.ch.queue_bind(c.name("q"), c.name("x"), key)
    c.publish("once", exchange="x", to="a.b")
    c.drain()


@scenario
def exchange_to_exchange(c: Client) -> None:
    c.ch.exchange_declare(c.name("x"), "topic")
    c.ch.exchange_declare(c.name("y"), "fanout")
    c.declare()
    c.ch.queue_bind(c.name("q"), c.name("y"))
    c.ch.exchange_bind(c.name("y"), c.name("x"), "k.#")
    c.publish("1", exchange="x", to="k.1")
    c.publish("2", exchange="x", to="other")
    c.ch.exchange_unbind(c.name("y"), c.name("x"), "k.#")
    c.publish("3", exchange="x", to="k.1")
    c.drain()


@scenario
def default_exchange_cannot_be_bound(c: Client) -> None:
    c.declare()
    c.fails(lambda ch: ch.queue_bind(c.name("q"), "", "k"))
    c.fails(lambda ch: ch.exchange_declare("", "direct"))


@scenario
def exchange_declared_differently(c: Client) -> None:
    c.ch.exchange_declare(c.name("x"), "direct", durable=True)
    c.fails(lambda ch: ch.exchange_declare(c.name("x"), "fanout", durable=True))
    c.fails(lambda ch: ch.exchange_declare(c.name("x"), "direct", durable=False))
    c.fails(lambda ch: ch.exchange_declare(c.name("x"), "direct", durable=True, auto_delete=True))


@scenario
def unknown_exchange_type(c: Client) -> None:
    other = c.connect()
    c.fails(lambda ch: ch.exchange_declare(c.name("x"), "x-unknown"), other.channel())


@scenario
def bind_what_is_missing(c: Client) -> None:
    c.declare()
    c.fails(lambda ch: ch.queue_bind(c.name("q"), c.name("none"), "k"))
    c.fails(lambda ch: ch.queue_bind(c.name("none"), "amq.direct", "k"))


@scenario
def auto_delete_exchange_goes_with_its_last_binding(c: Client) -> None:
    c.ch.exchange_declare(c.name("x"), "direct", auto_delete=True)
    c.declare()
    c.ch.queue_bind(c.name("q"), c.name("x"), "k")
    c.ch.queue_unbind(c.name("q"), c.name("x"), "k")
    c.fails(lambda ch: ch.exchange_declare(c.name("x"), passive=True))


@scenario
def exchange_in_use_is_not_deleted_if_unused(c: Client) -> None:
    c.ch.exchange_declare(c.name("x"), "direct")
    c.declare()
    c.ch.queue_bind(c.name("q"), c.name("x"), "k")
    c.fails(lambda ch: ch.exchange_delete(c.name("x"), if_unused=True))
    c.ch.exchange_delete(c.name("x"))
    c.fails(lambda ch: ch.exchange_declare(c.name("x"), passive=True))


@scenario
def internal_exchange(c: Client) -> None:
    c.ch.exchange_declare(c.name("x"), "fanout", internal=True)

    def act(ch: Any) -> None:
        ch.confirm_delivery()
        ch.basic_publish(c.name("x"), "", b"m")

    c.fails(act)
