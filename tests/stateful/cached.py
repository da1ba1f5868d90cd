"""What a broker on PostgreSQL has cached, against the rows: what its versions vouch for is right.

A broker compares the versions of a queue and of the schema before it uses what it has cached of the
queue. So wherever these agree, each cached record and each cached fact must agree with the rows.
"""

from typing import Any

from ackflow.broker.core.admin import global_pause
from ackflow.broker.core.capacity import backlog
from ackflow.store.cache import WHOLE_GROUP, Cache
from ackflow.store.mapping import to_claim, to_lease, to_queue, unpack_body
from ackflow.store.postgres.fences import SCHEMA
from ackflow.store.postgres.store import PostgresStore
from ackflow.store.records import DUE, LEASED, RETURNED, WAITING, Cursor, Lane, Partition, Sweep
from ackflow.store.tx import Tx

FENCE = "select n from writes where fence = $1 order by n desc limit 1"


class CacheCheck:
    """Compares the cache of a broker with a snapshot, within the queues that it may still use."""

    def __init__(self, store: PostgresStore, tx: Tx) -> None:
        self.cache: Cache = store._cache
        self.versions: dict[int, int] = store._versions
        self.tx = tx

    def run(self) -> int:
        """Compare everything; returns in how many queues."""
        cache = self.cache
        if SCHEMA not in self.versions or not self.current(SCHEMA):
            return 0
        self.check_schema()
        queues = {id for id in cache.of_queues if self.current(id)}
        for lane in {lane.id: lane for lane in cache.lanes.values()}.values():
            assert lane.queue in cache.of_queues, (
                f"cached, and its version is not asked for: {lane}"
            )
            if lane.queue in queues:
                self.check_lane(lane)
        for group in {group.id: group for group in cache.groups.values()}.values():
            assert group.queue in cache.of_queues, f"cached without a version: {group}"
            if group.queue in queues:
                self.check_group(group.id)
        for queue in queues:
            self.check_queue(queue)
        return len(queues)

    def rows(self, sql: str, *args: object) -> list[Any]:
        return self.tx._execute(sql, args)

    def current(self, fence: int) -> bool:
        """Whether the broker would use what it has cached. Without a version it compares nothing."""
        found = self.rows(FENCE, fence)
        return self.versions.get(fence) in (None, found[0][0] if found else 0)

    # what transactions with the whole schema change

    def check_schema(self) -> None:
        cache, tx = self.cache, self.tx
        rows = {
            row[0]: row
            for row in self.rows("select id, name, created_at, paused, options from queues")
        }
        for id, queue in cache.queues.items():
            assert id in rows, f"{queue} is deleted"
            assert (queue, cache.queue_ids[queue.name]) == (to_queue(rows[id]), id)
        assert {*cache.queue_ids.values()} == cache.queues.keys()
        for partition in cache.partitions.values():
            (row,) = tx.all("partition_by_id", partition.id)
            assert partition == Partition(*row)
        for queue_id, ids in cache.group_ids.items():
            assert ids == [row[0] for row in tx.all("groups_of", queue_id)]
        if cache.halted is not None:
            assert cache.halted == global_pause.get(tx).on
        if cache.sweeps is not None:
            left = [Sweep(*row) for row in tx.all("sweeps")]
            left = [one for one in left if one.changes_lanes and one.ended_at is None]
            assert [one for some in cache.sweeps.values() for one in some] == left
        fresh = Tx(tx._execute, tx._write, tx._sql, Cache(), tx._savepoint, tx._insert,
                   store=tx.store, now=tx.now, writes=False)  # fmt: skip
        for name, exchange in cache.exchanges.items():
            assert exchange == fresh.exchange(name)
        for name, bindings in cache.bindings.items():
            assert bindings == fresh.bindings_from(name)
        for id, declaration in cache.declarations.items():
            assert declaration == fresh.declaration(id)
        for group in {group.id: group for group in cache.groups.values()}.values():
            found = fresh.group_by_id(group.id)
            assert group == found, f"{group} is cached, and is {found}"
            assert (group.id in cache.windowed) == (group.rules.max_ack_pending is not None)

    # what belongs to a queue

    def check_lane(self, lane: Lane) -> None:
        cache, tx = self.cache, self.tx
        (row,) = tx.all("lane_by_id", lane.id)
        assert lane == Lane(*row), f"{lane} is cached, and is {Lane(*row)}"
        for segment in [*cache.segments.get(lane.id, ()), *cache.ahead.get(lane.id, ())]:
            found = self.rows("select count, created_at, not_before, for_group, body from segments "
                              "where lane = $1 and first = $2", lane.id, segment.first)  # fmt: skip
            if segment.stop > lane.base:  # below it, a segment is removed in slices
                assert found == [(segment.count, segment.created_at, segment.not_before,
                                  segment.for_group, segment.body)], segment  # fmt: skip
        for (id, first), (body, _) in cache._bodies.items():
            if id == lane.id and (row := tx.one("small_body", id, first)) and row[1] is not None:
                stored = unpack_body(row, lambda how: None)  # type: ignore[arg-type, return-value]
                assert (body.data, list(body.joined().ends)) == (
                    stored.data,
                    list(stored.joined().ends),
                )
        if cache.expiring.get(lane.id) is False:
            assert tx.one("any_expiring", lane.id) is None
        known = cache.lanes_in.get(lane.partition)
        if known is not None:
            rows = self.rows("select id from lane_rows where partition = $1", lane.partition)
            assert sorted(known) == sorted(row[0] for row in rows)
        for _, (first, n) in cache.gone_after.get(lane.id, {}).items():
            assert n == int(tx.value("gone_after", lane.id, first) or 0)

    def check_group(self, id: Any) -> None:
        cache, tx = self.cache, self.tx
        cursors = [Cursor(*row) for row in tx.all("cursors_of_group", id)]
        claims = [
            (to_claim(row), bool(row[-1]))
            for row in self.rows(
                "select id, grp, lane, lo, hi, ranges, state, at, since, deliveries, failures, "
                "redelivered, error, lease, acked_at, held from claims where grp = $1", id,
            )
        ]  # fmt: skip
        rows = {cursor.lane: cursor for cursor in cursors}
        for (lane, group), cursor in cache.cursors.items():
            if group == id:
                row = rows[lane]
                row.counted = cursor.counted
                assert cursor == row, f"{cursor} is cached, and is {row}"
        ready = sorted((c.priority, c.served, c.lane) for c in cursors if c.ready and not c.blocked)
        if id in cache.alone:
            assert [lane for *_, lane in ready] == [cache.alone[id]], "not its only lane with work"
        if id in cache.work_from and ready:
            assert cache.work_from[id] <= ready[0][:2], "work before the known one"
        if id in cache.work_ahead:
            ahead = cache.work_ahead[id]
            due = [key for key in ready if ahead.end is None or key <= ahead.end]
            assert {*due} <= {*ahead.lanes}, f"{due} have work, and only {ahead} is known"
        times = [claim.at for claim, _ in claims if claim.at is not None]
        if id in cache.next_times and times:
            assert cache.next_times[id] <= min(times), "something happens before the known time"
        partition_of = {lane: cursor.partition for lane, cursor in rows.items()}
        for (group, partition), n in cache.leased.items():
            if group == id:
                found = [claim for claim, _ in claims if claim.state == LEASED
                         and partition in (WHOLE_GROUP, partition_of[claim.lane])]  # fmt: skip
                assert n == len(found), f"{n} leased claims are known, and there are {len(found)}"
        for claim, _ in claims:
            where = claim.lane, id
            assert claim.state != DUE or where not in cache.nothing_due
            if claim.state == WAITING and claim.redelivered == RETURNED:
                assert where not in cache.nothing_returned
        if id in cache.in_window:
            assert cache.in_window[id] == int(tx.value("tally", id, "in_window") or 0)
        for token, (lease, held) in cache.leases.items():
            if lease.group_id == id:
                self.check_lease(
                    token, lease, held, [one for one, _ in claims if one.lease == lease.id]
                )

    def check_lease(self, token: int, lease: Any, held: Any, claims: Any) -> None:
        (row,) = self.tx.all("lease_by_id", lease.id)
        found = to_lease(row)
        assert (lease.id, lease.token, lease.group_id, lease.expires_at, lease.ended_at) == (
            found.id, token, found.group_id, found.expires_at, None)  # fmt: skip
        facts = [
            sorted((c.lane, c.id, tuple(c.ranges), c.at, c.deliveries, c.failures) for c in some)
            for some in (held, claims)
        ]
        assert facts[0] == facts[1], f"the claims {facts[0]} are cached, and are {facts[1]}"
        assert found.ended_at is None

    def check_queue(self, queue: Any) -> None:
        cache, tx = self.cache, self.tx
        home = cache.queues.get(queue)
        if home is None:
            return
        if queue in cache.making:
            assert sorted(cache.making[queue]) == sorted(
                r[0] for r in tx.all("making_of_queue", queue)
            )
        most = home.options.max_size
        if queue in cache.room and most is not None and not tx.all("making_of_queue", queue):
            left = most - backlog(tx, home)
            assert cache.room[queue] <= left, f"{cache.room[queue]} are free, and {left} are"


def check_cache(store: PostgresStore) -> int:
    return store.read(lambda tx: CacheCheck(store, tx).run())
