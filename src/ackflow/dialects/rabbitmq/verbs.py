"""Verbs of the RabbitMQ dialect over the core: declare, bind, purge and delete."""

import os
import secrets
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

from ... import validate
from ...broker.core.admin.admin import configure, configure_group, delete_queue, purge
from ...broker.core.routing.exchanges import (
    drop_exchange,
    drop_if_unused,
    find_exchange,
)
from ...broker.core.routing.publish import publish, ready_count
from ...broker.core.settle import extend, settle
from ...broker.core.topology import complete_cursors
from ...broker.core.upkeep.retention import drop_before
from ...broker.requests import Mark, Publication
from ...clock import micros
from ...errors import AckflowError, AlreadySettled, InvalidArgument, LeaseExpired, LeaseLost
from ...options import QUEUE_MODE, Dialect
from ...store.records import LEASED, Arguments, Binding, Declaration, Exchange, Queue
from ...store.tx import Tx
from .arguments import group_options, queue_options
from .errors import AmqpError, locked, no_exchange, no_queue

DIALECT: Dialect = "rabbitmq"
OWNER_SECONDS = 60.0  # a queue that ends with its server outlives a kill of it by this time
RUNNING: set[str] = set()  # the servers of this process


class QueueRequest(NamedTuple):
    """What queue.declare says about a queue; `owner` is its connection, if it is exclusive."""

    name: str
    durable: bool
    auto_delete: bool
    owner: str | None
    server: str
    arguments: Arguments


def declare_queue(tx: Tx, asked: QueueRequest, connection: str) -> int:
    """Create a queue, or check that it is as declared; returns the number of ready messages."""
    try:
        validate.name(asked.name, "queue")
    except InvalidArgument as error:
        raise AmqpError(406, error.message) from None
    queue = tx.queue(asked.name)
    known = tx.declaration(queue.id) if queue is not None else None
    if queue is not None and known is not None:
        _check_owner(known, asked.name, connection)
        _check_equivalent(known, asked)
    elif queue is not None and asked.owner:
        raise locked(asked.name)
    elif queue is not None and asked.auto_delete:
        raise _inequivalent("auto_delete", asked.name, "true", "false")
    if known is None:
        configure(tx, asked.name, queue_options(asked.arguments), DIALECT)
        changes = group_options(asked.arguments)
        configure_group(tx, asked.name, QUEUE_MODE, changes, DIALECT if queue is None else None)
        queue = tx.queue(asked.name)
        assert queue is not None
        known = Declaration(queue.id, asked.durable, asked.auto_delete, arguments=asked.arguments)
        known.owner, known.server = asked.owner, asked.server if asked.owner else None
    assert queue is not None
    known.used_at = tx.now
    tx.put_declaration(known)
    return ready_count(tx, queue)


def _check_equivalent(known: Declaration, asked: QueueRequest) -> None:
    if (asked.owner is None) != (known.owner is None):
        raise locked(asked.name)
    flags = (
        ("durable", asked.durable, known.durable),
        ("auto_delete", asked.auto_delete, known.auto_delete),
    )
    for name, received, current in flags:
        if received != current:
            raise _inequivalent(name, asked.name, _as_text(received), _as_text(current))
    _check_arguments(known.arguments, asked.arguments, asked.name, "queue")


def _check_arguments(known: Arguments, asked: Arguments, name: str, what: str) -> None:
    for key in sorted({*known, *asked}):
        given, stored = asked.get(key), known.get(key)
        if None not in (given, stored) and given != stored:
            raise _inequivalent(key, name, _as_text(given), _as_text(stored), what)
        if given != stored:
            raise AmqpError(
                406,
                f"inequivalent arg '{key}' for {what} '{name}' in vhost '/': "
                f"received {_typed(given)} but current is {_typed(stored)}",
            )


def _inequivalent(
    arg: str, name: str, received: str, current: str, what: str = "queue"
) -> AmqpError:
    return AmqpError(
        406,
        f"inequivalent arg '{arg}' for {what} '{name}' in vhost '/': "
        f"received '{received}' but current is '{current}'",
    )


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _typed(value: Any) -> str:
    """A value with its type, as RabbitMQ writes it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"the value '{_as_text(value)}' of type 'bool'"
    kind = "longstr" if isinstance(value, str) else "signedint"
    return f"the value '{value}' of type '{kind}'"


class QueueFacts(NamedTuple):
    """What a consumer must know about a queue."""

    ready: int
    auto_delete: bool = False
    single_active: bool = False
    expires: int | None = None
    quorum: bool = False


def look_at_queue(tx: Tx, name: str, connection: str, use: bool = False) -> QueueFacts:
    """Return the facts of a queue; raises 404 if it does not exist, 405 if another one owns it."""
    queue = tx.queue(name)
    if queue is None:
        raise no_queue(name)
    known = tx.declaration(queue.id)
    if known is None:
        return QueueFacts(ready_count(tx, queue))
    _check_owner(known, name, connection)
    if use:
        tx.run("use_queue", queue.id, tx.now)
    single = bool(known.arguments.get("x-single-active-consumer"))
    quorum = known.arguments.get("x-queue-type") == "quorum"
    return QueueFacts(ready_count(tx, queue), known.auto_delete, single, known.expires, quorum)


def consume_queue(tx: Tx, name: str, connection: str, server: str) -> QueueFacts:
    """Return the facts of a queue that gets a consumer of a server; see `remove_abandoned`."""
    facts = look_at_queue(tx, name, connection, use=True)
    queue = tx.queue(name)
    known = tx.declaration(queue.id) if queue is not None else None
    if known is not None and known.auto_delete and not known.durable and known.server != server:
        known.server, known.used_at = server, tx.now
        tx.put_declaration(known)
    return facts


def _check_owner(known: Declaration, name: str, connection: str) -> None:
    if known.owner is not None and known.owner != connection:
        raise locked(name)


def _check_remover(
    known: Declaration | None, name: str, connection: str, unless_owned: AmqpError | None
) -> None:
    if known is not None:
        _check_owner(known, name, connection)
    if unless_owned is not None and (known is None or known.owner is None):
        raise unless_owned


def remove_queue(
    tx: Tx, name: str, connection: str, if_empty: bool, unless_owned: AmqpError | None = None
) -> int:
    """Delete a queue; returns how many ready messages it had. One that is not there is no error.

    `unless_owned` is raised if the queue does not belong to the connection.
    """
    queue = tx.queue(name)
    if queue is None:
        return 0
    _check_remover(tx.declaration(queue.id), name, connection, unless_owned)
    ready = ready_count(tx, queue)
    if if_empty and ready:
        raise AmqpError(406, f"queue '{name}' in vhost '/' not empty")
    delete_queue(tx, name)
    return ready


def remove_owned(tx: Tx, connection: str, names: Sequence[str]) -> None:
    """Delete the exclusive queues of a connection that ends."""
    for name in names:
        queue = tx.queue(name)
        known = tx.declaration(queue.id) if queue is not None else None
        if known is not None and known.owner == connection:
            delete_queue(tx, name)


def remove_unused(tx: Tx, name: str) -> bool:
    """Delete a queue that was not used for as long as it says; returns whether it is gone."""
    queue = tx.queue(name)
    known = tx.declaration(queue.id) if queue is not None else None
    if known is None or known.expires is None:
        return True
    if tx.value("used_at", known.queue) + known.expires * 1000 > tx.now:
        return False
    delete_queue(tx, name)
    return True


def use_queues(tx: Tx, names: Sequence[str]) -> None:
    """Record that queues are in use, by their consumers or by the connection that owns them."""
    for name in names:
        queue = tx.queue(name)
        if queue is not None:
            tx.run("use_queue", queue.id, tx.now)


def new_server_id() -> str:
    """A name for a server, by which others see whether its process lives."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(8)}"


def _is_killed(server: str) -> bool:
    """Whether a server ran on this machine and its process does not exist any more."""
    host, _, rest = server.rpartition(":")[0].rpartition(":")
    if host != socket.gethostname() or not rest.isdecimal():
        return False
    if int(rest) == os.getpid():  # in a container, every server may have the same
        return server not in RUNNING
    try:
        os.kill(int(rest), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def remove_abandoned(tx: Tx, server: str, starts_alone: bool = False) -> list[tuple[str, int]]:
    """Delete the queues that ended with servers that were killed; returns those that expire.

    These are exclusive queues, and those with auto_delete that are not durable and had consumers.
    Consumers of the latter may have moved to other servers, which record them as used, unless this
    server `starts_alone`.
    """
    expiring = []
    for known in tx.declarations():
        queue = tx.queue_by_id(known.queue)
        if queue is None:
            tx.drop_declaration(known.queue)
        elif known.server is not None and known.server != server:
            over = known.used_at + micros(OWNER_SECONDS) <= tx.now
            may_have_moved = known.owner is None and not starts_alone
            if over or (not may_have_moved and _is_killed(known.server)):
                delete_queue(tx, queue.name)
        elif known.expires is not None:
            expiring.append((queue.name, known.expires))
    return expiring


def purge_queue(tx: Tx, name: str, connection: str, unless_owned: AmqpError | None = None) -> int:
    """Remove the ready messages of a queue; those that a consumer holds stay."""
    ready = look_at_queue(tx, name, connection, use=True).ready
    queue = tx.queue(name)
    assert queue is not None
    _check_remover(tx.declaration(queue.id), name, connection, unless_owned)
    if any(
        claim.state == LEASED for lane in tx.lanes(queue.id) for claim in tx.claims_of_lane(lane.id)
    ):
        _purge_around_leases(tx, queue)
    else:
        purge(tx, name)
    return ready


def _purge_around_leases(tx: Tx, queue: Queue) -> None:
    for lane in tx.lanes(queue.id):
        complete_cursors(tx, queue, lane)
        drop_before(tx, queue, lane, lane.head)
    tx.cache.room.pop(queue.id, None)


# exchanges and bindings


def declare_exchange(tx: Tx, asked: Exchange) -> None:
    """Create an exchange, or check that it is as declared."""
    try:
        validate.name(asked.name, "exchange")
    except InvalidArgument as error:
        raise AmqpError(406, error.message) from None
    known = find_exchange(tx, asked.name)
    if known is None:
        tx.add_exchange(asked)
        return
    flags = (
        ("type", asked.kind, known.kind),
        ("durable", _as_text(asked.durable), _as_text(known.durable)),
        ("auto_delete", _as_text(asked.auto_delete), _as_text(known.auto_delete)),
        ("internal", _as_text(asked.internal), _as_text(known.internal)),
    )
    for name, received, current in flags:
        if received != current:
            raise _inequivalent(name, asked.name, received, current, "exchange")
    _check_arguments(known.arguments, asked.arguments, asked.name, "exchange")


def look_at_exchange(tx: Tx, name: str) -> None:
    if find_exchange(tx, name) is None:
        raise no_exchange(name)


def remove_exchange(tx: Tx, name: str, if_unused: bool) -> None:
    if tx.exchange(name) is None:
        return
    if if_unused and tx.one("any_binding_from", name):
        raise AmqpError(406, f"exchange '{name}' in vhost '/' in use")
    drop_exchange(tx, name)


def bind(tx: Tx, binding: Binding, connection: str) -> None:
    """Bind a queue or an exchange to an exchange; a second time has no effect."""
    if not binding.to_exchange:
        look_at_queue(tx, binding.destination, connection)
    elif find_exchange(tx, binding.destination) is None:
        raise no_exchange(binding.destination)
    if find_exchange(tx, binding.source) is None:
        raise no_exchange(binding.source)
    tx.add_binding(binding)


def unbind(tx: Tx, binding: Binding, connection: str) -> None:
    """Remove a binding; one that is not there is no error."""
    if not binding.to_exchange and binding in tx.bindings_from(binding.source):
        queue = tx.queue(binding.destination)
        known = tx.declaration(queue.id) if queue is not None else None
        if known is not None:
            _check_owner(known, binding.destination, connection)
    if tx.drop_binding(binding):
        drop_if_unused(tx, binding.source)


# leases and transactions


def extend_many(tx: Tx, tokens: Sequence[int], seconds: float) -> list[int]:
    """Extend leases; returns those that are lost."""
    lost = []
    for token in tokens:
        try:
            extend(tx, token, seconds)
        except (LeaseLost, LeaseExpired, AlreadySettled):
            lost.append(token)
    return lost


def commit(
    tx: Tx, publications: list[Publication], settles: dict[int, list[Mark]]
) -> list[int | AckflowError]:
    """Publish and settle in one transaction, all or nothing."""
    with tx.savepoint():
        for token, marks in settles.items():
            settle(tx, token, marks)
        results = publish(tx, publications)
        for result in results:
            if isinstance(result, AckflowError):
                raise result
    return results
