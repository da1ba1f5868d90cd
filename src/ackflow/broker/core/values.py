"""Small keyed values with versions; a value may end at a time, or with a lease.

A value that has ended is as good as deleted, whether or not upkeep has removed it. One that is bound
to a lease needs no renewal: it lives as long as the lease does, whoever extends it, and ends when the
lease is settled or expires. So a lock cannot outlive its holder.
"""

from collections.abc import Iterator

from ...clock import micros
from ...errors import LeaseLost, VersionConflict
from ...store.mapping import Row, to_lease
from ...store.tx import Tx
from ..requests import DeleteOperation, PutOperation

LAST_DELETED = "last deleted version"
END = "\U0010ffff"
STEP = 500


def put(tx: Tx, operation: PutOperation) -> int:
    """Set a value, and return its version."""
    row = tx.one("get_value", operation.key)
    _check(tx, operation.key, row, operation.expect)
    version = (int(row[1]) if row else _last_deleted(tx)) + 1
    known = operation.key, operation.value, version, tx.now
    if operation.ttl is not None:
        tx.run("put_ending_value", *known, tx.now + micros(operation.ttl), None)
    elif operation.lease is not None:
        end = _lease_end(tx, operation.lease)
        if end is None:
            raise LeaseLost()
        tx.run("put_ending_value", *known, end, operation.lease)
    else:
        tx.run("put_value", *known)
    return version


def delete(tx: Tx, operation: DeleteOperation) -> None:
    """Delete a value, if there is one."""
    row = tx.one("get_value", operation.key)
    _check(tx, operation.key, row, operation.expect)
    if row is not None:
        _drop(tx, operation.key, int(row[1]))


def find(tx: Tx, key: str) -> Row | None:
    """Return (key, value, version, updated_at, end) of a value that has not ended."""
    row = tx.one("get_value", key)
    return None if row is None else _unless_over(tx, (key, *row))


def find_all(
    tx: Tx, prefix: str, limit: int, after: str | None = None, reverse: bool = False
) -> list[Row]:
    """Return the values whose keys begin with a prefix, in order of key, after a key."""
    found: list[Row] = []
    for row in _rows(tx, prefix, limit, after, reverse):
        if (value := _unless_over(tx, row)) is not None:
            found.append(value)
            if len(found) == limit:
                break
    return found


def drop_ended(tx: Tx, limit: int) -> int:
    """Delete values that have ended; those of a lease that was extended are kept longer."""
    rows = tx.all("ended_values", tx.now, limit)
    for key, version, lease in rows:
        end = None if lease is None else _lease_end(tx, lease)
        if end is None:
            _drop(tx, key, version)
        else:
            tx.run("set_value_end", key, end)
    return len(rows)


def _rows(tx: Tx, prefix: str, limit: int, after: str | None, reverse: bool) -> Iterator[Row]:
    """Yield the stored values, ended ones included, in steps."""
    first, stop = prefix, prefix + END
    step = min(limit, STEP) if limit > 0 else STEP
    statement = "values_with_from_end" if reverse else "values_with"
    while True:
        if after is not None and reverse:
            stop = min(stop, after)
        elif after is not None:
            first = max(first, after + "\x01")  # no key contains a control character
        rows = tx.all(statement, first, stop, step)
        yield from rows
        if len(rows) < step:
            return
        after = str(rows[-1][0])


def _unless_over(tx: Tx, row: Row) -> Row | None:
    key, value, version, updated_at, end, lease = row
    if lease is not None:
        end = _lease_end(tx, lease)
    over = (lease is not None and end is None) or (end is not None and end <= tx.now)
    return None if over else (key, value, version, updated_at, end)


def _lease_end(tx: Tx, token: int) -> int | None:
    """Return the end of a live lease, or None. A token is never used again, as an id may be."""
    row = tx.lease_row(token)
    lease = None if row is None else to_lease(row)
    over = lease is None or lease.ended_at is not None or lease.expires_at <= tx.now
    return None if lease is None or over else lease.expires_at


def _drop(tx: Tx, key: str, version: int) -> None:
    tx.run("drop_value", key)
    if version > _last_deleted(tx):
        tx.run("put_meta", LAST_DELETED, str(version))


def _last_deleted(tx: Tx) -> int:
    """Return the highest deleted version; new values start above it.

    Otherwise a new value could have the version of a deleted one.
    """
    return int(tx.value("get_meta", LAST_DELETED) or 0)


def _check(tx: Tx, key: str, row: Row | None, expect: int | None) -> None:
    if expect is None:
        return
    live = None if row is None else _unless_over(tx, (key, *row))
    version = int(live[2]) if live else 0
    if expect != version:
        raise VersionConflict(
            f"value {key!r} has version {version}, expected {expect}", version=version
        )
