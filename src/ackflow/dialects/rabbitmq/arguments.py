"""The arguments of queues, consumers and exchanges: what is supported, and what else is refused."""

from collections.abc import Callable, Mapping
from datetime import datetime
from types import NoneType
from typing import Any

from ...store.records import Arguments
from .errors import AmqpError

MAX_MILLISECONDS = 10 * 365 * 86_400_000
MAX_COUNT = 1 << 48
STRATEGY = "x-dead-letter-strategy"  # dead letters are moved in one transaction under either
ALTERNATE = "alternate-exchange"
_KINDS: dict[type, str] = {  # of values, as RabbitMQ calls them
    bool: "bool", int: "signedint", float: "double", list: "array", dict: "table",
    NoneType: "void", datetime: "timestamp",
}  # fmt: skip
QUORUM_DELIVERY_LIMIT = 20
SHORTEST_TTL = (
    0.1  # for a time to live of 0: a consumer that waits has the time to take the message
)


def _count(least: int, most: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value <= most


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _among(*texts: str) -> Callable[[Any], bool]:
    return lambda value: value in texts


_QUEUE: dict[str, tuple[Callable[[Any], bool], str]] = {
    "x-message-ttl": (_count(0, MAX_MILLISECONDS), f"an integer from 0 to {MAX_MILLISECONDS}"),
    "x-expires": (_count(1, MAX_MILLISECONDS), f"an integer from 1 to {MAX_MILLISECONDS}"),
    "x-max-length": (_count(0, MAX_COUNT), "an integer of at least 0"),
    "x-overflow": (_among("drop-head", "reject-publish"), "drop-head or reject-publish"),
    "x-dead-letter-exchange": (_text, "text"),
    "x-dead-letter-routing-key": (_text, "text"),
    STRATEGY: (_among("at-most-once", "at-least-once"), "at-most-once or at-least-once"),
    "x-delivery-limit": (_count(-1, MAX_COUNT), "an integer of at least -1"),
    "x-max-priority": (_count(1, 255), "an integer from 1 to 255"),
    "x-single-active-consumer": (lambda value: type(value) is bool, "a boolean"),
    "x-queue-type": (_among("classic", "quorum"), "classic or quorum"),
    "x-queue-mode": (_among("lazy", "default"), "lazy or default"),
}


def check_queue(name: str, given: Mapping[str, Any] | None) -> Arguments:
    """Return the arguments of a queue; raise 406 for one that is unknown or has a wrong value."""
    checked: Arguments = {}
    for key, value in (given or {}).items():
        value = _plain(value)
        if key not in _QUEUE:
            raise _invalid(key, name, "Ackflow does not support this argument")
        allowed, shown = _QUEUE[key]
        if not allowed(value):
            raise _invalid(key, name, f"it must be {shown}")
        checked[key] = value
    if "x-dead-letter-routing-key" in checked and "x-dead-letter-exchange" not in checked:
        raise _invalid("x-dead-letter-routing-key", name, "routing_key_but_no_dlx_defined")
    if STRATEGY in checked and checked.get("x-queue-type") != "quorum":
        raise AmqpError(
            406,
            f"invalid arg '{STRATEGY}' for queue '{name}' in vhost '/' of queue type "
            "rabbit_classic_queue",
        )
    return checked


def _plain(value: Any) -> Any:
    return bytes(value).decode(errors="replace") if isinstance(value, bytes | bytearray) else value


def _invalid(key: str, name: str, why: str, what: str = "queue") -> AmqpError:
    return AmqpError(406, f"invalid arg '{key}' for {what} '{name}' in vhost '/': {why}")


def queue_options(arguments: Arguments) -> dict[str, object]:
    """The options of a queue that its arguments set."""
    options: dict[str, object] = {}
    if (ttl := arguments.get("x-message-ttl")) is not None:
        options["ttl_seconds"] = ttl / 1000 or SHORTEST_TTL
    if arguments.get("x-overflow") == "reject-publish" and "x-max-length" in arguments:
        options["max_size"] = arguments["x-max-length"]
    return options


def group_options(arguments: Arguments) -> dict[str, object]:
    """The options of the group of consumers that the arguments of a queue set.

    A message is delivered once more than the limit says, because the limit counts returns.
    """
    limit = arguments.get("x-delivery-limit")
    if limit is None and arguments.get("x-queue-type") == "quorum":
        limit = QUORUM_DELIVERY_LIMIT
    if limit is None:
        return {}
    return {"retry_limit": None if limit < 0 else limit + 1}


def check_consumer(given: Mapping[str, Any] | None) -> int:
    """Return the priority of a consumer, its only argument."""
    for key, value in (given or {}).items():
        if key != "x-priority":
            raise AmqpError(406, f"invalid arg '{key}' for a consumer: Ackflow does not support it")
        if type(value) is not int:
            raise AmqpError(406, "invalid arg 'x-priority': it must be an integer")
    return int((given or {}).get("x-priority", 0))


def check_exchange(name: str, given: Mapping[str, Any] | None) -> Arguments:
    """Return the arguments of an exchange; raise 406 for one that is unknown or not text."""
    checked: Arguments = {}
    for key, value in (given or {}).items():
        value = _plain(value)
        if key != ALTERNATE:
            raise _invalid(key, name, "Ackflow does not support this argument", "exchange")
        if not _text(value):
            kind = _KINDS.get(type(value), type(value).__name__)
            raise AmqpError(
                406, f"invalid type '{kind}' for arg '{key}' in exchange '{name}' in vhost '/'"
            )
        checked[key] = value
    return checked


def check_binding(key: str, given: Mapping[str, Any] | None) -> Arguments:
    """Return the arguments of a binding: values that a headers exchange can compare."""
    if "\0" in key:
        raise AmqpError(406, "a routing key must not contain NUL")
    checked: Arguments = {}
    for key, value in (given or {}).items():
        value = _plain(value)
        if not isinstance(value, str | int | float | None):
            raise AmqpError(406, f"invalid arg '{key}' for a binding: it must be text or a number")
        checked[key] = value
    how = checked.get("x-match", "all")
    if how not in ("all", "any", "all-with-x", "any-with-x"):
        raise AmqpError(
            406,
            f'Invalid x-match field value <<"{how}">>; expected all, any, all-with-x, or any-with-x',
        )
    return checked
