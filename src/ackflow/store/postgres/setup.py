"""Creating and migrating a schema, and what its brokers agree on."""

import contextlib
from importlib import resources
from typing import NamedTuple

from psycopg import errors as pg

from ... import ids
from ...clock import Clock
from ...errors import InvalidArgument, NotADatabase
from .. import migrate
from ..tx import CLOCK_BACK
from .capabilities import Capabilities
from .clock import ServerClock
from .connection import Connection, DatabaseUrl
from .fences import lock_key

# The server's time, and the newest time that was written while the clock was ahead.
CLOCKS = """select (extract(epoch from clock_timestamp()) * 1000000)::bigint,
    (select (extract(epoch from max(at)) * 1000000)::bigint
        from writes where at > now() + interval '60 seconds')"""


FORGET = """delete from writes as w where at < now() - interval '1 day'
    and (n < (select max(n) from writes where fence = w.fence)
        or fence > 0 and not exists (select from queues where id = w.fence))"""
FUNCTIONS = ["enter_queue_1", "share_flush_1"]
PRESENT = """select count(distinct p.proname) from pg_proc p
join pg_namespace s on s.oid = p.pronamespace where s.nspname = %s and p.proname = any(%s)"""


class Opened(NamedTuple):
    """What a broker learns when it opens a schema."""

    schema: int  # its version
    store: int  # its id
    pooled: bool  # whether there is a pooler
    functions: bool  # whether those of functions.sql are there


def open_schema(place: DatabaseUrl, can: Capabilities, locks: str, clock: Clock) -> Opened:
    """Create or migrate a schema if needed, and agree with its other brokers."""
    with contextlib.closing(place.open()) as db:
        schema = migrate_schema(db, place.schema, can)
        functions = can.functions and can.advisory_locks and provide_functions(db, place.schema)
        with db.begun():
            store = store_id(db)
            agree_on_locks(db, locks)
            db.execute(FORGET)
            if isinstance(clock, ServerClock):
                clock.follow(look_at_clocks(db))
    return Opened(schema, store, db.pooled, functions)


def provide_functions(db: Connection, schema: str) -> bool:
    """Create the functions if they are missing; returns False if the role may not."""

    def present() -> bool:
        return db.execute(PRESENT, (schema, FUNCTIONS)).fetchone() == (len(FUNCTIONS),)

    if present():
        return True
    folder = resources.files("ackflow.store") / "sql" / "postgres"
    try:
        with db.begun():
            db.execute("select pg_advisory_xact_lock(%s)", (lock_key(schema),))
            if not present():
                db.execute((folder / "functions.sql").read_bytes())
    except (pg.InsufficientPrivilege, pg.UndefinedObject):
        return False
    return True


def migrate_schema(db: Connection, schema: str, can: Capabilities) -> int:
    """Migrate a schema to the newest version, in one transaction, and return its version.

    Other brokers may do the same concurrently, where there are advisory locks and DDL belongs to a
    transaction.
    """
    shipped = migrate.shipped("postgres")
    newest = shipped[-1][0]
    with db.begun() if can.transactional_ddl else contextlib.nullcontext():
        if can.advisory_locks:
            db.execute("select pg_advisory_xact_lock(%s)", (lock_key(schema),))
        tables = db.execute("select tablename from pg_tables where schemaname = %s", (schema,))
        names = {row[0] for row in tables.fetchall()}
        if names and not {"meta", "writes"} <= names:
            raise NotADatabase(f"the schema {schema} holds tables of another program")
        version = 0
        if names:
            row = db.execute("select value from meta where key = 'schema'").fetchone()
            version = int(str(row[0])) if row else 0
        migrate.refuse_newer(version, newest)
        if version == newest:
            return newest
        if not names:
            db.execute(f'create schema if not exists "{schema}"'.encode())
        for sql in migrate.missing(version, shipped, migrate.schema("postgres")):
            db.execute(sql.encode())
        put = "insert into meta values ('schema', %s) on conflict (key) do update set value = %s"
        db.execute(put, (str(newest), str(newest)))
    return newest


def look_at_clocks(db: Connection) -> int:
    """Return the server's time; store a mark if its clock went back since the last write."""
    row = db.execute(CLOCKS).fetchone()
    assert row is not None
    now, last = row
    if last is not None:
        put = "insert into meta values (%s, %s) on conflict (key) do update set value = %s"
        mark = f"{now} {last}"
        db.execute(put, (CLOCK_BACK, mark, mark))
        db.execute("update writes set at = now() where at > now()")
    return int(str(now))


def agree_on_locks(db: Connection, kind: str) -> None:
    """Refuse to lock in another way than the other brokers of the schema."""
    db.execute("insert into meta values ('locks', %s) on conflict do nothing", (kind,))
    row = db.execute("select value from meta where key = 'locks'").fetchone()
    if row != (kind,):
        raise InvalidArgument(
            "the brokers of this schema lock in another way; give all of them the same `without`"
        )


def store_id(db: Connection) -> int:
    db.execute(
        "insert into meta values ('store', %s) on conflict do nothing", (str(ids.new_store()),)
    )
    row = db.execute("select value from meta where key = 'store'").fetchone()
    assert row is not None
    return int(str(row[0]))
