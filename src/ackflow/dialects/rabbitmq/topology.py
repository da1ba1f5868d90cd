"""The methods of a channel that declare, bind, purge and delete queues and exchanges."""

import secrets
from typing import TYPE_CHECKING, get_args

from pamqp.commands import Exchange, Queue

from ...broker.core.routing.exchanges import PREDECLARED
from ...store.records import Binding, ExchangeKind
from ...store.records import Exchange as ExchangeRecord
from . import frames
from .arguments import ALTERNATE, check_binding, check_exchange, check_queue
from .errors import AmqpError
from .verbs import (
    QueueRequest,
    bind,
    look_at_exchange,
    look_at_queue,
    remove_exchange,
    remove_queue,
    unbind,
)
from .verbs import declare_exchange as declare_exchange_verb
from .verbs import declare_queue as declare_queue_verb
from .verbs import purge_queue as purge_queue_verb

if TYPE_CHECKING:
    from .channel import Channel

KINDS: dict[str, ExchangeKind] = {kind: kind for kind in get_args(ExchangeKind)}
RESERVED = "amq."
REPLY_TO = "amq.rabbitmq.reply-to"  # a pseudo-queue: replies are not stored


async def declare_queue(channel: "Channel", method: Queue.Declare) -> None:
    connection, server = channel.connection, channel.server
    name = method.queue or ""
    if name == REPLY_TO and method.passive:
        connection.send(frames.declare_ok(channel.number, name, 0, 1))
        return
    if method.passive:
        name = channel.queue_named(name)
        connection.allow("read-only", "queue", name)
        facts = await server.app.do(look_at_queue, False, name, connection.id, True)
        ready = facts.ready
    else:
        if not name:
            name = f"amq.gen-{secrets.token_urlsafe(16)}"
        elif name.startswith(RESERVED):
            raise AmqpError(403, f"queue name '{name}' contains reserved prefix 'amq.*'")
        arguments = check_queue(name, method.arguments)
        if not name.startswith("amq.gen-"):
            connection.allow("read-write", "queue", name)
        _allow_dead_letters(channel, arguments)
        asked = QueueRequest(
            name, bool(method.durable), bool(method.auto_delete),
            connection.id if method.exclusive else None, server.id, arguments,
        )  # fmt: skip
        if method.exclusive:
            # To be deleted with the connection, if it is its owner; also if it ends meanwhile.
            connection.owned.add(name)
        ready = await server.app.do(declare_queue_verb, True, asked, connection.id)
        server.declared(name, arguments.get("x-expires"))
    channel.last_queue = name
    server.used(name)
    if (pump := server.pumps.get(name)) is not None:
        await pump.settled()  # what is not counted any more is written before the answer
    if not method.nowait and not channel.closed:
        consumers = len(server.consumers_of(name))
        connection.send(frames.declare_ok(channel.number, name, ready, consumers))


def _allow_dead_letters(channel: "Channel", arguments: dict[str, str]) -> None:
    """The queue publishes to its dead-letter exchange for the client that declares it."""
    exchange = arguments.get("x-dead-letter-exchange")
    if exchange is None:
        return
    if exchange:
        channel.connection.allow("read-write", "exchange", exchange)
    else:
        key = arguments.get("x-dead-letter-routing-key", "*")
        channel.connection.allow("read-write", "queue", key)


async def purge_queue(channel: "Channel", method: Queue.Purge) -> None:
    name = channel.queue_named(method.queue)
    connection = channel.connection
    purged = await channel.server.app.do(
        purge_queue_verb, True, name, connection.id, connection.unless_owned(name)
    )
    channel.server.used(name)
    if not method.nowait:
        channel.send(Queue.PurgeOk(purged))


async def delete_queue(channel: "Channel", method: Queue.Delete) -> None:
    name = channel.queue_named(method.queue)
    if method.if_unused and channel.server.consumers_of(name):
        raise AmqpError(406, f"queue '{name}' in vhost '/' in use")
    connection = channel.connection
    with channel.server.deleting(name):
        deleted = await channel.server.app.do(
            remove_queue, True, name, connection.id, bool(method.if_empty),
            connection.unless_owned(name),
        )  # fmt: skip
    connection.owned.discard(name)
    if not method.nowait:
        channel.send(Queue.DeleteOk(deleted))  # before the channel's own consumers are cancelled
    channel.server.queue_deleted(name)


async def bind_queue(channel: "Channel", method: Queue.Bind) -> None:
    await _bind_queue(channel, method)
    if not method.nowait:
        channel.send(Queue.BindOk())


async def unbind_queue(channel: "Channel", method: Queue.Unbind) -> None:
    await _bind_queue(channel, method)
    channel.send(Queue.UnbindOk())


async def _bind_queue(channel: "Channel", method: Queue.Bind | Queue.Unbind) -> None:
    name = channel.queue_named(method.queue)
    key = method.routing_key or ""
    if not method.queue and not key:
        key = name
    binding = Binding(method.exchange, False, name, key, check_binding(key, method.arguments))
    verb = bind if isinstance(method, Queue.Bind) else unbind
    _check_binding(channel, binding, isinstance(method, Queue.Bind))
    channel.connection.allow("read-write", "queue", name)
    channel.connection.allow("read-write", "exchange", binding.source)
    await channel.server.app.do(verb, True, binding, channel.connection.id)


def _check_binding(channel: "Channel", binding: Binding, adds: bool) -> None:
    if binding.source == "" or (binding.to_exchange and binding.destination == ""):
        raise AmqpError(403, "operation not permitted on the default exchange")


async def declare_exchange(channel: "Channel", method: Exchange.Declare) -> None:
    connection, name = channel.connection, method.exchange
    if method.passive:
        connection.allow("read-only", "exchange", name)
        await channel.server.app.do(look_at_exchange, False, name)
    else:
        if name == "":
            raise AmqpError(403, "operation not permitted on the default exchange")
        if name.startswith(RESERVED) and name not in PREDECLARED:
            raise AmqpError(403, f"exchange name '{name}' contains reserved prefix 'amq.*'")
        if method.exchange_type not in KINDS:
            raise AmqpError(503, f"unknown exchange type '{method.exchange_type}'")
        arguments = check_exchange(name, method.arguments)
        connection.allow("read-write", "exchange", name)
        if alternate := arguments.get(ALTERNATE):  # it gets what clients publish to this one
            connection.allow("read-write", "exchange", alternate)
        elif ALTERNATE in arguments:  # the default exchange reaches every queue
            connection.allow("read-write", "queue", "*")
        asked = ExchangeRecord(
            name, KINDS[method.exchange_type], bool(method.durable), bool(method.auto_delete),
            bool(method.internal), arguments,
        )  # fmt: skip
        await channel.server.app.do(declare_exchange_verb, True, asked)
    if not method.nowait:
        channel.send(Exchange.DeclareOk())


async def delete_exchange(channel: "Channel", method: Exchange.Delete) -> None:
    name = method.exchange
    if name == "":
        raise AmqpError(403, "operation not permitted on the default exchange")
    if name.startswith(RESERVED):
        raise AmqpError(403, f"deletion of system exchange '{name}' in vhost '/' not allowed")
    channel.connection.allow("admin", "exchange", name)
    await channel.server.app.do(remove_exchange, True, name, bool(method.if_unused))
    if not method.nowait:
        channel.send(Exchange.DeleteOk())


async def bind_exchange(channel: "Channel", method: Exchange.Bind) -> None:
    await _bind_exchange(channel, method)
    if not method.nowait:
        channel.send(Exchange.BindOk())


async def unbind_exchange(channel: "Channel", method: Exchange.Unbind) -> None:
    await _bind_exchange(channel, method)
    if not method.nowait:
        channel.send(Exchange.UnbindOk())


async def _bind_exchange(channel: "Channel", method: Exchange.Bind | Exchange.Unbind) -> None:
    key = method.routing_key or ""
    binding = Binding(
        method.source, True, method.destination, method.routing_key or "",
        check_binding(key, method.arguments),
    )  # fmt: skip
    verb = bind if isinstance(method, Exchange.Bind) else unbind
    _check_binding(channel, binding, isinstance(method, Exchange.Bind))
    channel.connection.allow("read-write", "exchange", binding.source)
    channel.connection.allow("read-write", "exchange", binding.destination)
    await channel.server.app.do(verb, True, binding, channel.connection.id)
