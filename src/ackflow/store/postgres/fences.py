"""Fences: the units that a transaction locks, each with its own version.

A fence is a queue, by its id; a negative number is something that belongs to no queue. Every
transaction shares the fence of the schema (0) or has it alone:

    transaction            schema 0    its fences
    ─────────────────────────────────────────────────────────
    of known queues        shared      alone, in the order of ids
    of anything else       alone       (no other transaction has any)

The first verb of a group waits for its fences; for the others only what is free is taken, so that
no broker waits for a fence while it has one of another queue. docs/decisions/queue-locks.md says why
this is safe.
"""

import hashlib
from collections.abc import Collection
from typing import Protocol

from .capabilities import Capabilities
from .connection import PipelinedConnection, bigints

SCHEMA = 0
VALUES = -1  # keyed values
TURN = -2  # which broker runs upkeep
OUTSIDE = -1  # the broker of rows in `writes` that transactions of users have written
ADVISORY, ROWS = "advisory", "rows"  # the value of `locks` in `meta`

# Terminates the sessions that hold one of the brokers' locks and have waited for their client longer
# than idle_in_transaction_session_timeout. A role that may not see one may not terminate it either.
HUNG = """select pg_terminate_backend(a.pid) from pg_stat_activity a
where a.datname = current_database() and a.pid <> pg_backend_pid() and a.wait_event = 'ClientRead'
    and a.state_change < clock_timestamp()
        - nullif(current_setting('idle_in_transaction_session_timeout'), '0')::interval
    and exists (select 1 from pg_locks l where l.pid = a.pid and l.granted and """
BY_ADVISORY_LOCK = """l.locktype = 'advisory' and l.objsubid = 1 and l.database = a.datid
    and (l.classid::bigint << 32 | l.objid::bigint) = any($1))"""
SHARE_AND_TAKE = "select pg_advisory_xact_lock_shared($1), pg_advisory_xact_lock($2)"
BY_ROW = "l.relation = 'fences'::regclass and cardinality($1::bigint[]) > 0)"

# A standby that commits wait for may be behind the disk of this server.
ON_DISK = """pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()
    and current_setting('synchronous_standby_names') = ''"""
# Run while the fences are held, so that the result is current and includes every earlier transaction.
# The newest index entry is read first, so that dead rows before it are not visited.
LOOK = f"""select f.fence, coalesce(w.n, 0), case when w.n <> f.known then w.hints end,
    (extract(epoch from clock_timestamp()) * 1000000)::bigint,
    (select value from meta where key = 'schema'), {ON_DISK}
from unnest($1::bigint[], $2::bigint[]) as f (fence, known)
left join lateral (select n, hints from writes where fence = f.fence
    order by fence desc, n desc limit 1) as w on true"""
# It deletes the broker's last row, and the newest one if a transaction of a user wrote it.
WROTE = f"""with before as (delete from writes where fence = $1 and n = any(array[$4, $6])
        and broker in ($3, {OUTSIDE}))
    insert into writes (fence, n, broker, hints) values ($1, $2, $3, $5)"""
OUR_ROWS = """select w.fence, w.n from unnest($1::bigint[], $2::bigint[]) as m (fence, n)
join writes w on w.fence = m.fence and w.n = m.n where w.broker = $3"""


Query = tuple[str, tuple[object, ...]]


class Locks(Protocol):
    """Locks of fences, held until the end of the transaction."""

    hung: str
    kind: str

    def share_schema(self, channel: PipelinedConnection, fences: Collection[int]) -> None:
        """Share the schema, and take fences in the order of their ids."""

    def take_schema(self, channel: PipelinedConnection) -> None: ...
    def take_free(self, fences: Collection[int]) -> Query | None:
        """Return a query that takes the free ones and returns them."""

    def made(self, fences: Collection[int]) -> None:
        """Note that a transaction with these fences was committed."""

    def keys(self, fences: Collection[int]) -> list[int]: ...


class AdvisoryLocks:
    """Advisory locks: they write nothing, and are granted in the order of arrival."""

    hung = HUNG + BY_ADVISORY_LOCK
    kind = ADVISORY

    def __init__(self, schema: str) -> None:
        self._schema = schema
        self._known: dict[int, int] = {}
        self._fences: dict[int, int] = {}

    def key(self, fence: int) -> int:
        found = self._known.get(fence)
        if found is None:
            found = self._known[fence] = lock_key(self._schema, fence)
        return found

    def keys(self, fences: Collection[int]) -> list[int]:
        return [self.key(fence) for fence in sorted(fences)]

    def share_schema(self, channel: PipelinedConnection, fences: Collection[int]) -> None:
        schema, keys = self.key(SCHEMA), self.keys(fences)
        if len(keys) == 1:  # as nearly always
            channel.write(SHARE_AND_TAKE, (schema, keys[0]))
            return
        channel.write("select pg_advisory_xact_lock_shared($1)", (schema,))
        if keys:
            channel.write(
                "select pg_advisory_xact_lock(k) from unnest($1::bigint[]) as k", (bigints(keys),)
            )

    def take_schema(self, channel: PipelinedConnection) -> None:
        channel.write("select pg_advisory_xact_lock($1)", (self.key(SCHEMA),))

    def take_free(self, fences: Collection[int]) -> Query | None:
        known = sorted(fences)
        return (
            "select f from unnest($1::bigint[], $2::bigint[]) as k (f, key) "
            "where pg_try_advisory_xact_lock(key)",
            (bigints(known), bigints(self.key(fence) for fence in known)),
        )

    def made(self, fences: Collection[int]) -> None:
        pass


class RowLocks:
    """Locks of rows, for servers without advisory locks: each lock is a write."""

    hung = HUNG + BY_ROW
    kind = ROWS

    def __init__(self, skip_locked: bool) -> None:
        self._skip_locked = skip_locked
        self._made: set[int] = {SCHEMA}

    def keys(self, fences: Collection[int]) -> list[int]:
        return sorted(fences)

    def share_schema(self, channel: PipelinedConnection, fences: Collection[int]) -> None:
        channel.write("select from fences where id = 0 for share")
        for fence in sorted(fences):
            # Always: the row may have been lost in a crash, with a commit that was not synced.
            channel.write("insert into fences values ($1) on conflict do nothing", (fence,))
            channel.write("select from fences where id = $1 for update", (fence,))

    def take_schema(self, channel: PipelinedConnection) -> None:
        channel.write("select from fences where id = 0 for update")

    def take_free(self, fences: Collection[int]) -> Query | None:
        known = sorted(self._made.intersection(fences))  # a new row would wait for its inserter
        if not self._skip_locked or not known:
            return None
        return (
            "select id from fences where id = any($1::bigint[]) order by id for update skip locked",
            (bigints(known),),
        )

    def made(self, fences: Collection[int]) -> None:
        self._made.update(fences)


def locks_for(schema: str, capabilities: Capabilities) -> Locks:
    """Return the locks that a server with these capabilities offers."""
    if capabilities.advisory_locks:
        return AdvisoryLocks(schema)
    return RowLocks(capabilities.skip_locked)


def lock_key(schema: str, fence: int = SCHEMA) -> int:
    """Return the key of the advisory lock of a fence; that of the schema is that of older versions."""
    name = f"ackflow {schema}" if fence == SCHEMA else f"ackflow {schema} {fence}"
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
