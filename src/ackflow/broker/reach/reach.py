"""What a verb reads and changes, for a store that locks by queue.

It is found in what `@verb` declares, which authorization uses as well. A verb that declares too little
is no danger: the store runs it again alone (`WiderReach`).
"""

from functools import partial
from typing import Any

from ...store.job import Verb
from ...store.protocol import EVERYTHING, Reach
from ..core.pop import WidePop
from ..core.take import dead_letter_overdue
from ..core.upkeep.retention import trim
from ..presence import announce, leave, take_turn, write_clock
from ..requests import PopRequest, PushRequest
from ..upkeep import drop_expired_in, drop_forgotten, drop_leases, drop_old_in, refresh_group
from ..verb import BY_FUNCTION, Scope

# The parameter of a duty of upkeep that holds a group or a lane.
_OF_GROUP = {refresh_group: "id"}
_OF_LANE = {
    trim: "lane_id",
    drop_old_in: "lane",
    drop_expired_in: "lane",
    dead_letter_overdue: "lane_id",
}
_OF_TURN = {take_turn, announce, leave}
# They delete rows that no other verb reads any more.
_OF_NOTHING = {drop_leases, drop_forgotten, write_clock}


def reach_of(verb: Verb, args: tuple[Any, ...], merge: PushRequest | None) -> Reach | None:
    """Return the reach of a call; None where it may be anything."""
    if merge is not None:
        return Reach({chunk.queue for chunk in merge.chunks})
    named: dict[str, Any] = {}
    bound: Any = verb
    if isinstance(bound, partial):
        verb, args, named = bound.func, (*bound.args, *args), bound.keywords
    if args and isinstance(request := args[0], PopRequest):  # a pop, or a check and a pop
        return EVERYTHING if isinstance(request, WidePop) else Reach({request.queue})
    if verb in _OF_GROUP:
        return Reach(groups=[named[_OF_GROUP[verb]]])
    if verb in _OF_LANE:
        return Reach(lanes=[named[_OF_LANE[verb]]])
    if verb in _OF_TURN:
        return Reach(turn=True)
    if verb in _OF_NOTHING:
        return Reach()
    known = BY_FUNCTION.get(verb)
    if known is None:
        return EVERYTHING
    given = dict(zip(known.parameters, known.defaults, strict=True))
    given.update(zip(known.parameters, args, strict=False))
    given.update(named)
    try:
        return _reach(known.scope(tuple(given[name] for name in known.parameters)))
    except TypeError:  # an argument of another type, which the verb refuses
        return EVERYTHING


def _reach(scope: Scope) -> Reach | None:
    if scope.readers or scope.producers or scope.stages or scope.batches:
        return EVERYTHING
    if not (scope.queues or scope.leases or scope.values):
        return EVERYTHING
    return Reach(scope.queues, scope.leases, values=scope.values)
