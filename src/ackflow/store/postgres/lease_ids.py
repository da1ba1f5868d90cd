"""Ids of leases, which brokers take in blocks. They are not given back by a rollback."""

import contextlib
from collections.abc import Callable

from .connection import Connection, PipelinedConnection

LEASES_AT_ONCE = 64
LEASE_IDS = "select nextval('lease_ids')"
COUNT_LEASE_IDS = f"""insert into meta values ('lease_ids',
    ((select coalesce(max(id), 0) from leases) + {LEASES_AT_ONCE})::text)
on conflict (key) do update set value = (meta.value::bigint + {LEASES_AT_ONCE})::text
returning value::bigint - {LEASES_AT_ONCE - 1}"""


def next_block(
    channel: PipelinedConnection, open: Callable[[], Connection], sequences: bool
) -> tuple[int, int]:
    """Take ids from the sequence, or where there is none, by a connection of its own."""
    if sequences:
        first = channel.execute(LEASE_IDS)[0][0]
    else:
        with contextlib.closing(open()) as db:
            first = db.execute(COUNT_LEASE_IDS).fetchall()[0][0]
    return first, first + LEASES_AT_ONCE
