"""The queue of each lease, group and lane, and the ids of queues by name.

The queue of an id never changes. Only a transaction that holds the schema exclusively can give the name of
a queue to another queue.
"""

from collections.abc import Sequence

from ..protocol import Reach
from .connection import PipelinedConnection, bigints
from .fences import TURN, VALUES

RESOLVE = """select 0, name, 0::bigint, id from queues where name = any($1::text[])
union all select 1, '', l.token, g.queue from unnest($2::bigint[]) as t (token)
    cross join lateral ({by_id} union all {by_token}) as l join groups g on g.id = l.grp
union all select 2, '', id, queue from groups where id = any($3::bigint[])
union all select 3, '', id, queue from lane_rows where id = any($4::bigint[])"""
QUEUE, LEASE, GROUP, LANE = range(4)  # the first column of RESOLVE
KNOWN = 100_000  # leases of which the queue is remembered
UNKNOWN = 1 << 62  # in place of the queue of what does not exist


class Homes:
    """What is known, and the query for the rest."""

    def __init__(self, statements: dict[str, str]) -> None:
        by_id, by_token = (
            statements[name].replace("$1", "t.token")
            for name in ("lease_of_token", "lease_by_token")
        )
        self._resolving = RESOLVE.format(by_id=by_id, by_token=by_token)
        self._queues: dict[str, int] = {}
        self.leases: dict[int, int] = {}  # by token
        self._of: dict[int, dict[int, int]] = {LEASE: self.leases, GROUP: {}, LANE: {}}

    def forget_names(self) -> None:
        self._queues.clear()

    def find(self, reach: Reach) -> bool:
        """Set the fences of a verb by what is known; returns False if something is not."""
        found: set[int | None] = {self._queues.get(name) for name in reach.queues}
        if reach.leases:
            found |= {self.leases.get(token) for token in reach.leases}
        if reach.groups:
            found |= {self._of[GROUP].get(group) for group in reach.groups}
        if reach.lanes:
            found |= {self._of[LANE].get(lane) for lane in reach.lanes}
        found.discard(UNKNOWN)
        if reach.values:
            found.add(VALUES)
        if reach.turn:
            found.add(TURN)
        reach.fences = None if None in found else frozenset(f for f in found if f is not None)
        return reach.fences is not None

    def ask(self, channel: PipelinedConnection, reaches: Sequence[Reach | None]) -> None:
        """Ask for what verbs need to know of their fences."""
        asked = [reach for reach in reaches if reach is not None]
        # NUL cannot be in a text; as elsewhere it is replaced, and no queue has such a name.
        names = {str(name).replace("\0", "\ufffd") for reach in asked for name in reach.queues}
        wanted: dict[int, set[int]] = {
            LEASE: {token for reach in asked for token in reach.leases},
            GROUP: {group for reach in asked for group in reach.groups},
            LANE: {lane for reach in asked for lane in reach.lanes},
        }
        if len(self.leases) > KNOWN:
            self.leases.clear()
        new = {kind: ids - self._of[kind].keys() for kind, ids in wanted.items()}
        for kind, name, id, queue in channel.execute(
            self._resolving, (list(names), *(bigints(ids) for ids in new.values()))
        ):
            if kind == QUEUE:
                self._queues[name] = queue
            else:
                self._of[kind][id] = queue
        for kind, ids in new.items():
            for id in ids:
                self._of[kind].setdefault(id, UNKNOWN)
