"""Authorization of remote verbs: checks the queues that they touch against the caller's token.

Leases, readers, producers and stages belong to queues, which only the database knows. Those are
checked in the transaction of the verb itself, before it does anything.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from ..broker.reach.scope import queues_behind
from ..broker.registry import Verb
from ..broker.requests import PushRequest, TransactionRequest
from ..broker.verb import structs_in
from ..broker.views.metrics import MetricsSnapshot
from ..errors import Forbidden
from ..model import QueueStats, SweepStats
from ..store.tx import Tx
from .http import Call

NOT_YOURS = "a lease, reader, producer, stage or batch of this call belongs to another queue"


def authorized(call: Call, verb: Verb, arguments: tuple[Any, ...]) -> Callable[..., Any]:
    """The function to run for a verb; it raises Forbidden unless the caller's token covers every
    queue that the verb touches. Queues that the arguments name are checked at once."""
    server, who = call.server, call.who
    if who is None:
        return verb.run
    scope = verb.scope(arguments)
    for queue in scope.queues:
        server.allow(call, queue)
    if who.may_everywhere(call.role):
        return verb.run
    if scope.values:
        server.allow_all(call)
    for part in structs_in(arguments):
        if isinstance(part, PushRequest | TransactionRequest):
            own_key(call, part)
    if not scope.indirect:
        return verb.run

    @wraps(verb.run)
    def run(tx: Tx, *given: Any) -> Any:
        if not all(server.may_see(call, queue) for queue in queues_behind(tx, scope)):
            raise Forbidden(NOT_YOURS, role=call.role)  # it names no queue of another tenant
        return verb.run(tx, *given)

    return run


def own_key(call: Call, request: PushRequest | TransactionRequest) -> None:
    """Keep the keys of tokens with other grants apart: a key answers a repeat, or refuses it.

    A key of a token for every queue stays as it is. Tokens with the same grants share their keys.
    """
    if request.key is not None and call.who is not None and not call.who.may_everywhere(call.role):
        request.key = f"{call.who.key_prefix}\x1f{request.key}"


def visible(call: Call, result: Any) -> Any:
    """Remove the queues that the caller's token does not cover from a list or snapshot."""
    if call.who is None:
        return result
    if isinstance(result, MetricsSnapshot):
        return result if call.who.may_everywhere(call.role) else _visible_metrics(call, result)
    if not isinstance(result, list):
        return result
    return [one for one in result if _is_visible(call, one)]


def _visible_metrics(call: Call, found: MetricsSnapshot) -> MetricsSnapshot:
    seen = {name for name in found.queues if call.server.may_see(call, name)}
    return MetricsSnapshot(
        {name: n for name, n in found.pushed.items() if name in seen},
        [group for group in found.groups if group.queue in seen],
        {name: one for name, one in found.queues.items() if name in seen}, found.at,
    )  # fmt: skip


def _is_visible(call: Call, one: Any) -> bool:
    match one:
        case QueueStats():
            return call.server.may_see(call, one.name)
        case SweepStats():
            return call.server.may_see(call, one.queue)
    return True
