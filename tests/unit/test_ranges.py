"""Range sets behave like Python's sets, and keep their canonical form."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackflow import ranges
from ackflow.ranges import Ranges

numbers = st.sets(st.integers(0, 40), max_size=25)
spans = st.tuples(st.integers(0, 41), st.integers(1, 12)).map(lambda s: (s[0], s[0] + s[1]))


def assert_is(found: Ranges, wanted: set[int]) -> None:
    """Check that a range set has these numbers and strictly increasing boundaries."""
    assert set(ranges.numbers(found)) == wanted
    assert len(found) % 2 == 0
    assert all(a < b for a, b in pairwise(found))


@pytest.mark.parametrize(
    ("given_numbers", "boundaries"),
    [
        ([], []),
        ([5], [5, 6]),
        ([0, 1, 2], [0, 3]),
        ([2, 0, 1, 1], [0, 3]),
        ([0, 1, 2, 3, 4, 6, 7], [0, 5, 6, 8]),
        ([7, 3, 5], [3, 4, 5, 6, 7, 8]),
        ([1 << 47, (1 << 47) + 1], [1 << 47, (1 << 47) + 2]),
    ],
)
def test_a_range_set_is_a_flat_list_of_boundaries(
    given_numbers: list[int], boundaries: list[int]
) -> None:
    assert ranges.of(given_numbers) == boundaries


@given(st.lists(st.integers(0, 40)))
def test_of_holds_the_numbers_given_in_any_order(some: list[int]) -> None:
    assert_is(ranges.of(some), set(some))


@given(numbers)
def test_count_is_the_size_of_the_set(some: set[int]) -> None:
    assert ranges.count(ranges.of(some)) == len(some)


@given(numbers, st.integers(-2, 45))
def test_contains_is_membership(some: set[int], number: int) -> None:
    assert ranges.contains(ranges.of(some), number) == (number in some)


@given(numbers, spans)
def test_covers_is_that_a_range_is_a_part(some: set[int], span: tuple[int, int]) -> None:
    assert ranges.covers(ranges.of(some), *span) == (set(range(*span)) <= some)


@given(numbers)
def test_numbers_come_in_order(some: set[int]) -> None:
    assert list(ranges.numbers(ranges.of(some))) == sorted(some)


@given(numbers)
def test_pairs_are_the_ranges_with_gaps_between_them(some: set[int]) -> None:
    pairs = list(ranges.pairs(ranges.of(some)))
    assert {n for first, stop in pairs for n in range(first, stop)} == some
    assert all(stop < first for (_, stop), (first, _) in pairwise(pairs))


@given(numbers, spans)
def test_add_is_union_with_one_range(some: set[int], span: tuple[int, int]) -> None:
    assert_is(ranges.add(ranges.of(some), *span), some | set(range(*span)))


@given(numbers, spans)
def test_remove_is_difference_with_one_range(some: set[int], span: tuple[int, int]) -> None:
    assert_is(ranges.remove(ranges.of(some), *span), some - set(range(*span)))


@given(numbers, st.integers(0, 45), st.integers(0, 45))
def test_clip_is_intersection_with_one_range(some: set[int], first: int, stop: int) -> None:
    assert_is(ranges.clip(ranges.of(some), first, stop), some & set(range(first, stop)))


@given(numbers, numbers)
def test_union_is_that_of_sets(a: set[int], b: set[int]) -> None:
    assert_is(ranges.union(ranges.of(a), ranges.of(b)), a | b)


@given(numbers, numbers)
def test_difference_is_that_of_sets(a: set[int], b: set[int]) -> None:
    assert_is(ranges.difference(ranges.of(a), ranges.of(b)), a - b)


@given(numbers, numbers)
def test_intersection_is_that_of_sets(a: set[int], b: set[int]) -> None:
    assert_is(ranges.intersection(ranges.of(a), ranges.of(b)), a & b)


@given(numbers, st.integers(0, 30))
def test_lowest_is_the_front_of_the_sorted_set(some: set[int], limit: int) -> None:
    assert_is(ranges.lowest(ranges.of(some), limit), set(sorted(some)[:limit]))


@given(st.sets(st.integers(0, (1 << 48) - 1), max_size=20))
def test_what_is_packed_is_unpacked_the_same(some: set[int]) -> None:
    boundaries = ranges.of(some)
    packed = ranges.pack(boundaries)
    assert len(packed) <= 1 + 8 * len(boundaries)
    assert ranges.unpack(packed) == boundaries


@given(numbers, numbers, spans)
def test_no_function_changes_its_arguments(a: set[int], b: set[int], span: tuple[int, int]) -> None:
    left, right = ranges.of(a), ranges.of(b)
    kept = list(left), list(right)
    ranges.add(left, *span)
    ranges.remove(left, *span)
    ranges.clip(left, *span)
    ranges.union(left, right)
    ranges.difference(left, right)
    ranges.intersection(left, right)
    ranges.lowest(left, 3)
    assert (left, right) == kept


def test_taking_one_message_out_of_a_thousand_leaves_four_numbers() -> None:
    assert ranges.remove([0, 1000], 5, 6) == [0, 5, 6, 1000]


def test_putting_it_back_closes_the_gap() -> None:
    assert ranges.add([0, 5, 6, 1000], 5, 6) == [0, 1000]


@given(st.lists(numbers, max_size=5))
def test_union_all_is_the_union_of_all_sets(some: list[set[int]]) -> None:
    assert_is(ranges.union_all(map(ranges.of, some)), set().union(*some))
