"""Range sets: sets of integers as a flat, sorted list of boundaries.

`[0, 5, 6, 1000]` is 0..4 and 6..999: every even index starts a range, every odd index ends it
(exclusive). A batch of a thousand is two numbers; membership is the parity of a bisection; one
message is added or removed by one slice. No function changes its arguments.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

Ranges = list[int]


def of(numbers: Iterable[int]) -> Ranges:
    """Return the range set of numbers in any order, with or without repeats."""
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
    """Return whether a set contains all of [first, stop)."""
    after = bisect_right(ranges, first)
    return after & 1 == 1 and stop <= ranges[after]


def pairs(ranges: Ranges) -> Iterator[tuple[int, int]]:
    """Yield each range as (first, stop)."""
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
    """Return the part of a set within [first, stop)."""
    left, right = bisect_right(ranges, first), bisect_left(ranges, stop)
    if left > right or first >= stop:
        return []
    return ([first] if left & 1 else []) + ranges[left:right] + ([stop] if right & 1 else [])


def union(a: Ranges, b: Ranges) -> Ranges:
    if not a:
        return b
    if len(b) == 2:
        return add(a, b[0], b[1])
    if b and a[-1] < b[0]:
        return a + b
    return _combine(a, b, _UNION)


def union_all(sets: Iterable[Ranges]) -> Ranges:
    """Return the union of any number of sets; their ranges are sorted once."""
    result: Ranges = []
    for first, stop in sorted(pair for one in sets for pair in pairs(one)):
        if not result or first > result[-1]:
            result += (first, stop)
        elif stop > result[-1]:
            result[-1] = stop
    return result


def difference(a: Ranges, b: Ranges) -> Ranges:
    if not b or a == b:
        return [] if b else a
    if len(b) == 2:
        return remove(a, b[0], b[1])
    return _combine(a, b, _DIFFERENCE)


def intersection(a: Ranges, b: Ranges) -> Ranges:
    if a == b:
        return a
    if len(b) == 2:
        return clip(a, b[0], b[1])
    if len(a) == 2:
        return clip(b, a[0], a[1])
    return _combine(a, b, _INTERSECTION)


def lowest(ranges: Ranges, limit: int) -> Ranges:
    """Return the `limit` smallest numbers of a set."""
    result: Ranges = []
    for first, stop in pairs(ranges):
        if limit <= 0:
            break
        stop = min(stop, first + limit)
        result += (first, stop)
        limit -= stop - first
    return result


def pack(ranges: Ranges) -> bytes:
    """Encode a set for storage: the width of a boundary, then the boundaries."""
    code = "I" if not ranges or (ranges[0] >= 0 and ranges[-1] < 1 << 32) else "q"
    return code.encode() + array(code, ranges).tobytes()


def unpack(data: bytes) -> Ranges:
    return array(chr(data[0]), data[1:]).tolist()


# A truth table: is a number in the result, indexed by whether it is in the first and second set.
_Table = tuple[tuple[bool, bool], tuple[bool, bool]]
_UNION: _Table = (False, True), (True, True)
_DIFFERENCE: _Table = (False, False), (True, False)
_INTERSECTION: _Table = (False, False), (False, True)
_END = 1 << 62


def _combine(a: Ranges, b: Ranges, table: _Table) -> Ranges:
    """Combine two sets in one pass over their boundaries; a sentinel ends each list."""
    a, b = [*a, _END], [*b, _END]
    result: Ranges = []
    i = j = 0
    x, y = a[0], b[0]
    inside = False
    while True:
        at = x if x < y else y
        if at == _END:
            return result
        if x == at:
            i += 1
            x = a[i]
        if y == at:
            j += 1
            y = b[j]
        if table[i & 1][j & 1] != inside:
            result.append(at)
            inside = not inside
