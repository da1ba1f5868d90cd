"""The features that a server should have, and the fallback for each.

The table is for engines that speak PostgreSQL's protocol and lack parts of it. None of them was tried;
the conformance tests run on PostgreSQL with each capability switched off.
"""

from msgspec import Struct, structs

from ...errors import InvalidArgument


class Capabilities(Struct, frozen=True):
    """What a server offers; the comment says what is done without it."""

    advisory_locks: bool = True  # rows of the table `fences` are locked
    notify: bool = True  # waiting pops poll every 50 ms
    skip_locked: bool = (
        True  # without advisory locks: a group has the queues of its first verb only
    )
    sequences: bool = True  # blocks of lease ids are counted in a row of `meta`
    functions: bool = True  # in PL/pgSQL; each transaction takes two round trips
    transactional_ddl: bool = True  # a migration may be run by one broker at a time only


def without(names: str | None) -> Capabilities:
    """Return the capabilities less those in a list, `notify,sequences`."""
    known = [field.name for field in structs.fields(Capabilities)]
    missing = [name for name in (names or "").split(",") if name]
    unknown = [name for name in missing if name not in known]
    if unknown:
        raise InvalidArgument(f"without={unknown[0]} is none of {', '.join(known)}")
    return Capabilities(**dict.fromkeys(missing, False))
