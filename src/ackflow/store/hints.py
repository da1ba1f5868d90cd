"""Hints where index scans may start, passed from one broker to the next one that writes.

While another session holds an old snapshot, dead entries of claims and cursors remain at the front
of their indexes. A broker knows where the live entries begin (`Cache.work_from`,
`Cache.next_times`) and writes this to its row in `writes`. A broker that finds a row of another
broker drops its cache and starts with these hints. A group that is not listed is scanned from the
beginning.
"""

from msgspec import DecodeError, msgpack

from ..ids import GroupId
from .cache import Cache

MAX_GROUPS = 16  # the most recently used; every transaction that writes stores them again

_encode = msgpack.Encoder().encode
_decode = msgpack.Decoder(list[tuple[GroupId, int, int, int]]).decode


def pack(cache: Cache) -> bytes:
    times = cache.next_times
    groups = list(cache.work_from)[-MAX_GROUPS:]
    return _encode(
        [(group_id, *cache.work_from[group_id], times.get(group_id, 0)) for group_id in groups]
    )


def unpack(packed: bytes | None, cache: Cache) -> None:
    try:
        found = _decode(packed) if packed else []
    except DecodeError:
        return
    for group_id, priority, served, time in found:
        cache.work_from[group_id] = priority, served
        if time:
            cache.next_times[group_id] = time
