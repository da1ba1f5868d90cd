"""Range sets: sets of integers as a flat, sorted list of boundaries.

`[0, 5, 6, 1000]` is 0..4 and 6..999: every even place starts a range, every odd place ends it
(exclusive). A batch of a thousand is two numbers; membership is the parity of a bisection; one
message is added or taken out by one slice. No function changes its arguments.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

Ranges = list[int]


def of(numbers: Iterable[int]) -> Ranges:
    """The range set of the given numbers, in any order, repeated or not."""
    result: Ranges = []
    stop: int | None = None
    for number in sorted(numbers):
        if stop is not None and number < stop:
            continue
        if number != stop:
            if stop is not None:
                result.append(stop)
            result.append(number)
        stop = number + 1
    if stop is not None:
        result.append(stop)
    return result


def count(ranges: Ranges) -> int:
    if len(ranges) == 2:
        return ranges[1] - ranges[0]
    return sum(ranges[1::2]) - sum(ranges[::2])


def contains(ranges: Ranges, number: int) -> bool:
    return bisect_right(ranges, number) & 1 == 1


def covers(ranges: Ranges, first: int, stop: int) -> bool:
    """Whether all of [first, stop) is in a set."""
    after = bisect_right(ranges, first)
    return after & 1 == 1 and stop <= ranges[after]


def pairs(ranges: Ranges) -> Iterator[tuple[int, int]]:
    """Each range as (first, stop)."""
    return zip(ranges[::2], ranges[1::2], strict=True)


def numbers(ranges: Ranges) -> Iterator[int]:
    for first, stop in pairs(ranges):
        yield from range(first, stop)


def add(ranges: Ranges, first: int, stop: int) -> Ranges:
    left, right = bisect_left(ranges, first), bisect_right(ranges, stop)
    middle = ([] if left & 1 else [first]) + ([] if right & 1 else [stop])
    return ranges[:left] + middle + ranges[right:]


def remove(ranges: Ranges, first: int, stop: int) -> Ranges:
    left, right = bisect_left(ranges, first), bisect_right(ranges, stop)
    middle = ([first] if left & 1 else []) + ([stop] if right & 1 else [])
    return ranges[:left] + middle + ranges[right:]


def clip(ranges: Ranges, first: int, stop: int) -> Ranges:
    """The part of a set within [first, stop)."""
    left, right = bisect_right(ranges, first), bisect_left(ranges, stop)
    if left > right or first >= stop:
        return []
    return ([first] if left & 1 else []) + ranges[left:right] + ([stop] if right & 1 else [])


def union(a: Ranges, b: Ranges) -> Ranges:
    if not a:
        return b
    if len(b) == 2:
        return add(a, b[0], b[1])
    return _combine(a, b, lambda x, y: x or y)


def difference(a: Ranges, b: Ranges) -> Ranges:
    if not b or a == b:
        return [] if b else a
    if len(b) == 2:
        return remove(a, b[0], b[1])
    return _combine(a, b, lambda x, y: x and not y)


def intersection(a: Ranges, b: Ranges) -> Ranges:
    if a == b:
        return a
    if len(b) == 2:
        return clip(a, b[0], b[1])
    if len(a) == 2:
        return clip(b, a[0], a[1])
    return _combine(a, b, lambda x, y: x and y)


def lowest(ranges: Ranges, limit: int) -> Ranges:
    """The `limit` smallest numbers of a set."""
    result: Ranges = []
    for first, stop in pairs(ranges):
        if limit <= 0:
            break
        stop = min(stop, first + limit)
        result += (first, stop)
        limit -= stop - first
    return result


def pack(ranges: Ranges) -> bytes:
    """The form kept on disk: the width of a boundary, then the boundaries."""
    code = "I" if not ranges or (ranges[0] >= 0 and ranges[-1] < 1 << 32) else "q"
    return code.encode() + array(code, ranges).tobytes()


def unpack(data: bytes) -> Ranges:
    return array(chr(data[0]), data[1:]).tolist()


def _combine(a: Ranges, b: Ranges, keep) -> Ranges:  # type: ignore[no-untyped-def]
    result: Ranges = []
    i = j = 0
    inside = False
    while i < len(a) or j < len(b):
        at = min(a[i] if i < len(a) else b[j], b[j] if j < len(b) else a[i])
        i += i < len(a) and a[i] == at
        j += j < len(b) and b[j] == at
        if bool(keep(i & 1, j & 1)) != inside:
            result.append(at)
            inside = not inside
    return result
