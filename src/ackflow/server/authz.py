"""What a verb from afar speaks of, held against a token that is good for some queues only.

Tokens of leases and ids of readers and stages are random: whoever knows one was given it. A lease
can be seen in lists, though, so its queue is checked too.
"""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct, structs

from ..broker.core.push import Chunk
from ..broker.core.transactions import Deletes, Puts, Settles
from ..broker.registry import Verb
from ..model import QueueStats
from .http import Call

OF_A_LEASE = frozenset({"settle", "extend", "read"})
OF_VALUES = frozenset({"value", "values"})


async def check(call: Call, verb: Verb, arguments: tuple[Any, ...]) -> None:
    """Refuse a verb on queues that the token of the call is not good for."""
    server = call.server
    if call.who is None:
        return
    for queue in verb.queues(*arguments) if verb.queues else ():
        server.allow(call, queue)
    if call.who.may_everywhere(call.role):
        return
    if verb.name in OF_VALUES:
        server.allow_all(call)
    leases = list(arguments[:1]) if verb.name in OF_A_LEASE else []
    if verb.name == "settle_many":
        leases += arguments[0]
    if verb.name == "redrive" and arguments[1] is not None:
        server.allow(call, arguments[1])
    for part in _parts(arguments):
        match part:
            case Chunk():
                server.allow(call, part.queue)
            case Settles():
                leases.append(part.token)
            case Puts() | Deletes():
                server.allow_all(call)
    await server.allow_lease(call, *leases)


def visible(call: Call, result: Any) -> Any:
    """A list of queues without those that the token of the call may not see."""
    if call.who is None or not isinstance(result, list):
        return result
    return [
        one for one in result
        if not isinstance(one, QueueStats) or call.server.sees(call, one.name)
    ]  # fmt: skip


def _parts(value: Any) -> Iterator[Struct]:
    """Every record inside an argument."""
    if isinstance(value, Struct):
        yield value
        for inner in structs.astuple(value):
            yield from _parts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _parts(inner)
    elif isinstance(value, dict):
        yield from _parts(list(value.values()))
