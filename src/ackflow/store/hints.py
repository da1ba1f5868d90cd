"""Where scans of an index may start, as a broker passes it on to the next one that writes.

While another session holds an old snapshot, the entries of claims and turns that are over stay at the
front of their indexes. A broker knows where the live ones begin (`Cache.work_from`,
`Cache.next_times`) and writes it beside its number; one that finds the number of another broker drops
its cache and begins with these. A group that is not listed is scanned from the beginning.
"""

from msgspec import DecodeError, msgpack

from ..ids import GroupId
from .cache import Cache

MAX_GROUPS = 16  # those looked at last; each transaction that writes writes them again

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
