"""Authorization of remote verbs: checks the queues in their arguments against the caller's token.

Lease tokens and the ids of readers and stages are random, so a caller that sends one was given it.
Lists show lease tokens, however, so the queue of a lease is checked too.
"""

from typing import Any

from ..broker.registry import Verb
from ..model import QueueStats
from .http import Call


async def check(call: Call, verb: Verb, arguments: tuple[Any, ...]) -> None:
    """Raise Forbidden unless the caller's token covers every queue that the verb touches."""
    server = call.server
    if call.who is None:
        return
    scope = verb.scope(arguments)
    for queue in scope.queues:
        server.allow(call, queue)
    if call.who.may_everywhere(call.role):
        return
    if scope.values:
        server.allow_all(call)
    await server.allow_lease(call, *scope.leases)


def visible(call: Call, result: Any) -> Any:
    """Remove the queues that the caller's token does not cover from a list."""
    if call.who is None or not isinstance(result, list):
        return result
    return [
        one for one in result
        if not isinstance(one, QueueStats) or call.server.may_see(call, one.name)
    ]  # fmt: skip
