"""What a verb from afar speaks of, held against a token that is good for some queues only.

Tokens of leases and ids of readers and stages are random: whoever knows one was given it. A lease
can be seen in lists, though, so its queue is checked too.
"""

from typing import Any

from ..broker.registry import Verb
from ..model import QueueStats
from .http import Call


async def check(call: Call, verb: Verb, arguments: tuple[Any, ...]) -> None:
    """Refuse a verb on queues that the token of the call is not good for."""
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
    """A list of queues without those that the token of the call may not see."""
    if call.who is None or not isinstance(result, list):
        return result
    return [
        one for one in result
        if not isinstance(one, QueueStats) or call.server.sees(call, one.name)
    ]  # fmt: skip
