"""Exchanges and bindings: which queues a published message reaches.

A message is published to an exchange under a routing key. The bindings of the exchange name queues,
or other exchanges, which forward it by their own bindings. A message that matches no binding of an
exchange goes on to its alternate exchange, if it has one. Each queue gets a message once.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ....errors import NotFound
from ....store.records import Binding, Exchange, ExchangeKind
from ....store.tx import Tx

DEFAULT_EXCHANGE = ""  # routes to the queue that the routing key names
ROUTES_KEPT = 10_000
_PREDECLARED: dict[str, ExchangeKind] = {
    "": "direct",
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
}
PREDECLARED = {name: Exchange(name, kind) for name, kind in _PREDECLARED.items()}


def find_exchange(tx: Tx, name: str) -> Exchange | None:
    """Return an exchange, predeclared or stored."""
    return PREDECLARED.get(name) or tx.exchange(name)


def route(
    tx: Tx, exchange: str, keys: Sequence[str], headers: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the queues that a message reaches; raises NotFound if there is no such exchange."""
    if len(keys) == 1 and (known := tx.cache.routes.get((exchange, keys[0]))) is not None:
        return known
    if find_exchange(tx, exchange) is None:
        raise NotFound(f"no exchange {exchange!r}", exchange=exchange)
    found: dict[str, None] = {}
    kept = _collect(tx, exchange, keys, headers, found, set())
    queues = tuple(found)
    if kept and len(keys) == 1:
        if len(tx.cache.routes) >= ROUTES_KEPT:
            tx.cache.routes.clear()
        tx.cache.routes[exchange, keys[0]] = queues
    return queues


def _collect(
    tx: Tx,
    name: str,
    keys: Sequence[str],
    headers: Mapping[str, Any],
    found: dict[str, None],
    seen: set[str],
) -> bool:
    """Add the queues behind an exchange; returns whether the result depends on the keys alone.

    The result for the default exchange is not kept either, because queues come and go.
    """
    seen.add(name)
    exchange = find_exchange(tx, name)
    if exchange is None:
        return True
    if name == DEFAULT_EXCHANGE:
        found.update((key, None) for key in keys if key and tx.queue(key) is not None)
        return False
    kept, matched = exchange.kind != "headers", False
    for binding in tx.bindings_from(name):
        if not matches(exchange.kind, binding, keys, headers):
            continue
        matched = True
        if not binding.to_exchange:
            found[binding.destination] = None
        elif binding.destination not in seen:
            kept = _collect(tx, binding.destination, keys, headers, found, seen) and kept
    alternate = None if matched else exchange.alternate
    if alternate is not None and alternate not in seen:
        kept = _collect(tx, alternate, keys, headers, found, seen) and kept
    return kept


def matches(
    kind: ExchangeKind, binding: Binding, keys: Sequence[str], headers: Mapping[str, Any]
) -> bool:
    """Return whether a binding of an exchange of this kind forwards a message."""
    match kind:
        case "fanout":
            return True
        case "direct":
            return binding.routing_key in keys
        case "topic":
            pattern = _words(binding.routing_key)
            return any(topic_matches(pattern, _words(key)) for key in keys)
        case "headers":
            return headers_match(binding.arguments, headers)


def _words(key: str) -> list[str]:
    return key.split(".") if key else []


def topic_matches(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """Match words against a pattern, in which `*` is one word and `#` any number of words.

    It remembers the last `#` and tries again from there, so that its cost is at most the product
    of both lengths.
    """
    at = word = 0
    retry: tuple[int, int] | None = None
    while word < len(words):
        if at < len(pattern) and pattern[at] == "#":
            retry, at = (at, word), at + 1
        elif at < len(pattern) and pattern[at] in ("*", words[word]):
            at, word = at + 1, word + 1
        elif retry is not None:
            retry = retry[0], retry[1] + 1
            at, word = retry[0] + 1, retry[1]
        else:
            return False
    return all(part == "#" for part in pattern[at:])


def headers_match(arguments: Mapping[str, Any], headers: Mapping[str, Any]) -> bool:
    """Match headers against the arguments of a binding, of which all or any must be equal.

    A header with value None in the binding only has to be there. Names that begin with `x-` are not
    compared, unless x-match says so.
    """
    how = str(arguments.get("x-match", "all"))
    with_x = how.endswith("-with-x")
    wanted = {
        name: value
        for name, value in arguments.items()
        if name != "x-match" and (with_x or not name.startswith("x-"))
    }
    equal = (
        name in headers and (value is None or _same(value, headers[name]))
        for name, value in wanted.items()
    )
    return any(equal) if how.startswith("any") else all(equal)


def _same(a: object, b: object) -> bool:
    """Compare values like the clients that sent them: true is not 1."""
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def drop_if_unused(tx: Tx, name: str) -> None:
    """Delete an exchange with auto_delete that has lost its last binding."""
    exchange = tx.exchange(name)
    if exchange is not None and exchange.auto_delete and not tx.one("any_binding_from", name):
        drop_exchange(tx, name)


def drop_exchange(tx: Tx, name: str) -> None:
    """Delete an exchange, its bindings, and exchanges with auto_delete that lose their last one."""
    sources = {binding.source for binding in tx.bindings_to(name, to_exchange=True)}
    tx.drop_exchange(name)
    for source in sources - {name}:
        drop_if_unused(tx, source)


def forget_queue(tx: Tx, name: str) -> None:
    """Delete the bindings of a queue that is being deleted."""
    for source in tx.drop_bindings_of_queue(name):
        drop_if_unused(tx, source)
