"""Exchanges, bindings and declarations of queues, as primitives over named SQL statements."""

from msgspec import msgpack

from ...ids import LaneId, QueueId
from ..mapping import Row
from ..records import Arguments, Binding, Declaration, Exchange
from ..statements import Statements

_encode = msgpack.Encoder(order="sorted").encode  # equal arguments are equal bytes
_arguments = msgpack.Decoder(Arguments).decode


class ExchangeRows(Statements):
    """The operations of a transaction on exchanges, bindings and declarations."""

    def exchange(self, name: str) -> Exchange | None:
        found = self.cache.exchanges.get(name)
        if found is None and name not in self.cache.exchanges:
            row = self.one("exchange", name)
            found = self.cache.exchanges[name] = _exchange(row) if row else None
        return found

    def exchanges(self) -> list[Exchange]:
        return [_exchange(row) for row in self.all("all_exchanges")]

    def add_exchange(self, exchange: Exchange) -> None:
        self.run(
            "add_exchange", exchange.name, exchange.kind, int(exchange.durable),
            int(exchange.auto_delete), int(exchange.internal), _encode(exchange.arguments),
        )  # fmt: skip
        self.cache.forget_exchanges()

    def drop_exchange(self, name: str) -> None:
        self.run("drop_exchange", name)
        self.run("drop_bindings_from", name)
        self.run("drop_bindings_to", 1, name)
        self.cache.forget_exchanges()

    def bindings_from(self, exchange: str) -> list[Binding]:
        found = self.cache.bindings.get(exchange)
        if found is None:
            found = [_binding(row) for row in self.all("bindings_from", exchange)]
            self.cache.bindings[exchange] = found
        return found

    def bindings_to(self, destination: str, to_exchange: bool = False) -> list[Binding]:
        return [_binding(row) for row in self.all("bindings_to", int(to_exchange), destination)]

    def add_binding(self, binding: Binding) -> None:
        self.run("add_binding", *_binding_columns(binding))
        self.cache.forget_exchanges()

    def drop_binding(self, binding: Binding) -> bool:
        """Delete a binding; returns whether it existed."""
        self.cache.forget_exchanges()
        return bool(self.all("drop_binding", *_binding_columns(binding)))

    def drop_bindings_of_queue(self, name: str) -> list[str]:
        """Delete the bindings of a queue; returns the exchanges that they were from."""
        sources = [binding.source for binding in self.bindings_to(name)]
        if sources:
            self.run("drop_bindings_to", 0, name)
            self.cache.forget_exchanges()
        return sources

    def declaration(self, queue: QueueId) -> Declaration | None:
        found = self.cache.declarations.get(queue)
        if found is None and queue not in self.cache.declarations:
            row = self.one("declaration", queue)
            found = self.cache.declarations[queue] = _declaration(row) if row else None
        return found

    def declarations(self) -> list[Declaration]:
        return [_declaration(row) for row in self.all("all_declarations")]

    def put_declaration(self, of: Declaration) -> None:
        self.run(
            "put_declaration", of.queue, int(of.durable), int(of.auto_delete), of.owner, of.server,
            of.used_at, _encode(of.arguments),
        )  # fmt: skip
        self.cache.declarations[of.queue] = of

    def drop_declaration(self, queue: QueueId) -> None:
        self.run("drop_declaration", queue)
        self.cache.declarations.pop(queue, None)

    def expiring_in(self, lane: LaneId, limit: int) -> list[int]:
        """Return messages of a lane whose own time to live is over, by sequence."""
        return [row[0] for row in self.all("expiring_in", lane, self.now, limit)]


def _exchange(row: Row) -> Exchange:
    name, kind, durable, auto_delete, internal, arguments = row
    return Exchange(
        name, kind, bool(durable), bool(auto_delete), bool(internal), _arguments(arguments)
    )


def _binding(row: Row) -> Binding:
    source, to_exchange, destination, key, arguments = row
    return Binding(source, bool(to_exchange), destination, key, _arguments(arguments))


def _binding_columns(of: Binding) -> tuple[object, ...]:
    return of.source, int(of.to_exchange), of.destination, of.routing_key, _encode(of.arguments)


def _declaration(row: Row) -> Declaration:
    queue, durable, auto_delete, owner, server, used_at, arguments = row
    return Declaration(
        queue, bool(durable), bool(auto_delete), owner, server, used_at, _arguments(arguments)
    )
