"""A transaction that is confined to its fences, so that others can run concurrently.

The declaration of a verb is not trusted. If the verb reads or changes more than it declared, it uses a
queue, a lane or a statement that is not permitted; `WiderReach` then makes it run again alone.
"""

from collections.abc import Callable, Collection
from typing import Any

from ...ids import BodyId, GroupId, LaneId, LeaseId, QueueId
from ..mapping import Row
from ..protocol import Reach, WiderReach
from ..records import Group, Lane, Lease, Packed, Queue
from ..tx import Tx
from .connection import PipelinedConnection
from .fences import SCHEMA
from .homes import KNOWN

# By nextval: a broker of an earlier version may use the sequence at the same time.
BODY_IDS = """select nextval(pg_get_serial_sequence('bodies', 'id')) from generate_series(1, 64)"""
FEW_BODY_IDS = 16  # a transaction of one round trip then takes more
# Statements that touch rows of one queue only, or rows that no two queues share. A statement that is
# not listed runs alone in the schema.
OF_QUEUE = frozenset(
    """
    add_body add_claim add_cursor add_dead add_expiring add_gone add_key add_lane add_lease
    add_partition add_segment add_tally any_expiring body body_rest claims_in claims_of_lane
    claims_of_lease claims_of_queue created_at cursor cursors_of_group cursors_of_lane dead_by_id
    declaration delayed_due drop_body drop_claim drop_expiring drop_gone drop_gone_below drop_lease
    drop_segment drop_segments_below drop_txid due_claims end_lease expired_leases expiring_in
    first_returned first_segment get_key get_meta get_txids gone_after gone_near group_by_id
    group_named groups_of headers_from hold_claim is_swept keeper lane_by_id lane_ids_in lane_of
    lanes_of_partition lease_by_id lease_by_token lease_of_token leased_count leased_with_gaps
    leased_without_gaps leases_of let_keep
    lock_end lowest_cursor lowest_unheld making_of_queue move_claims move_kept next_time next_work
    next_work_in note_odd odd_lanes odd_run odd_segments old_keys old_txids over_or_due put_body
    partition_by_id partition_leased partition_named put_off_expiring put_tally put_txids
    queue_by_id queue_left queue_named queue_totals quiet_time quiet_work save_claim save_counts
    save_cursor save_kept save_lane save_lease segment_since segments_before segments_below
    segments_from shrink_claim small_body sweep sweeps tally uneven_lanes unheld_claims
    unleased_claims unread_of_queue used_in wake_due
    """.split()  # noqa: SIM905
)
# Statements on what belongs to no queue, for a verb that has its fence.
OF_NO_QUEUE = frozenset(
    """
    put_meta drop_meta meta_between get_value put_value put_ending_value set_value_end drop_value drop_values values_with
    values_with_from_end
    """.split()  # noqa: SIM905
)


class Confined(dict[str, str]):
    """The statements of a transaction with fences."""

    def __init__(self, statements: dict[str, str], names: Collection[str]) -> None:
        super().__init__((name, statements[name]) for name in names if name in statements)

    def __missing__(self, name: str) -> str:
        raise WiderReach(name)


class FencedTx(Tx):
    """A transaction under the fences that were granted, and its writes by fence."""

    first_step = 16  # a step is a round trip

    def __init__(
        self, channel: PipelinedConnection, statements: dict[str, str], *args: Any, **kwargs: Any
    ) -> None:
        self._channel = channel
        self._of_queue = Confined(statements, OF_QUEUE)
        self._of_more = Confined(statements, OF_QUEUE | OF_NO_QUEUE)
        self.granted: frozenset[int] | None = None  # None: the whole schema
        self._fences: frozenset[int] | None = None  # of the verb that runs; None: no limit
        self._entered = False
        self.written: set[int] = set()
        self.homes: dict[int, int] = {}  # by token, the queue of a lease, which never changes
        # Alone in the schema, while something may not be on disk: the queues whose versions were
        # compared. What it shows of others may be of another broker and lost in a crash.
        self.compared: Collection[int] | None = None
        self.next_block: Callable[[], tuple[int, int]] = _no_block
        self._block = (0, 0)  # ids for leases: the next one, and the end
        self.body_ids: list[int] = []  # taken in advance; lost with the connection
        self.stocks_body_ids = False
        self._takes = False
        super().__init__(channel.execute, channel.write, statements, *args, **kwargs)

    # fences

    def grant(self, fences: frozenset[int] | None) -> None:
        """Begin with these fences; None: alone in the schema."""
        self.granted, self._fences, self._entered = fences, fences, False
        self.compared = None
        self.written = set()
        self._sql = self._whole

    def admits(self, reach: Reach | None) -> bool:
        if self.granted is None:
            return True
        return reach is not None and reach.fences is not None and reach.fences <= self.granted

    def enter(self, reach: Reach | None) -> None:
        fences = None if self.granted is None or reach is None else reach.fences
        if self._entered and fences == self._fences:
            return
        self.leave()
        self._fences, self._entered = fences, True
        if fences is None:
            self._sql = self._whole
        else:
            self._sql = self._of_more if any(fence < 0 for fence in fences) else self._of_queue

    def leave(self) -> None:
        """End the verbs of one reach: what was written belongs to its fences."""
        if not self._entered:
            return
        self.flush()
        if self._channel.wrote:
            self.written |= {SCHEMA} if self._fences is None else self._fences
            self._channel.wrote = False

    def _check(self, queue: QueueId) -> None:
        if self._fences is not None and queue not in self._fences:
            raise WiderReach(f"queue {queue}")

    def queue(self, name: str) -> Queue | None:
        found = super().queue(name)
        if found is not None:
            self._check(found.id)
        return found

    def queue_by_id(self, id: QueueId) -> Queue | None:
        self._check(id)
        return super().queue_by_id(id)

    def group(self, queue: QueueId, name: str) -> Group | None:
        self._check(queue)
        return super().group(queue, name)

    def group_by_id(self, id: GroupId) -> Group | None:
        found = super().group_by_id(id)
        if found is not None:
            self._check(found.queue)
        return found

    def lane(self, id: LaneId) -> Lane | None:
        found = super().lane(id)
        if found is not None:
            self._check(found.queue)
        return found

    def show(self, lane: LaneId, stop: int) -> None:
        super().show(lane, stop)
        if self.compared is not None and not self.sync_number and self._record is not None:
            home = self.lane(lane)
            if home is None or home.queue not in self.compared:
                self.sync_number = self._record.begun

    # leases, whose ids brokers take in blocks

    def next_lease(self) -> LeaseId:
        if self._block[0] == self._block[1]:
            self._block = self.next_block()
        return LeaseId(self._block[0])

    def add_lease(self, lease: Lease) -> LeaseId:
        id = super().add_lease(lease)
        self._block = id + 1, self._block[1]
        group = self.cache.groups.get(lease.group_id)
        if group is not None:
            if len(self.homes) > KNOWN:
                self.homes.clear()
            self.homes[lease.token] = group.queue
        return id

    # bodies, whose ids are taken in advance: the server need not answer with one

    def add_body(self, packed: Packed) -> BodyId:
        if not self.stocks_body_ids:
            return super().add_body(packed)
        if not self.body_ids:
            self.body_ids += (id for (id,) in self._channel.execute(BODY_IDS))
        id = BodyId(self.body_ids.pop())
        self.run("put_body", id, *packed)
        return id

    def take_body_ids(self) -> None:
        """Take more with a transaction that is about to be sent, if only a few are left."""
        self._takes = self.stocks_body_ids and len(self.body_ids) <= FEW_BODY_IDS
        if self._takes:
            self._channel.write(BODY_IDS)

    def took_body_ids(self, index: int) -> None:
        """Keep what that transaction took, by one of its statements."""
        if self._takes:
            self.body_ids += (id for (id,) in self._channel.rows_at(index))

    def lease_row(self, token: int) -> Row | None:
        return self.one("lease_of_token", token) or self.one("lease_by_token", token)


def _no_block() -> tuple[int, int]:
    raise AssertionError("no block of ids")
