"""A push over HTTP is validated like one on the database."""

import json
from array import array
from itertools import accumulate

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackflow.broker.requests import Chunk, PushRequest
from ackflow.errors import InvalidArgument
from ackflow.options import MAX_SEGMENT_COUNT
from ackflow.store.records import Rest

GOOD = Chunk("q", "p", 0, None, array("i", [1, 3]), b"123")


def check(**changes: object) -> None:
    PushRequest([msgspec.structs.replace(GOOD, **changes)]).check()


def test_a_good_chunk_passes() -> None:
    check()


@pytest.mark.parametrize(
    "ends",
    [[], [-1, 3], [3, 1], [1, 2], [1, 4], [0] * MAX_SEGMENT_COUNT + [3]],
    ids=["none", "negative", "falling", "short", "long", "too many"],
)
def test_offsets_that_do_not_fit_the_data_are_refused(ends: list[int]) -> None:
    with pytest.raises(InvalidArgument):
        check(ends=array("i", ends))


def test_a_chunk_in_one_piece_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="offset at which each of its messages ends"):
        check(ends=array("i"), data=b"[1,23]", whole=2)


@pytest.mark.parametrize(
    "rest", [Rest({2: "t"}), Rest({}, {-1: {}}), Rest({}, {}, [0, 3]), Rest({}, {}, [1, 0])]
)
def test_a_chunk_speaks_only_of_messages_in_it(rest: Rest) -> None:
    with pytest.raises(InvalidArgument):
        check(rest=rest)


@pytest.mark.parametrize(
    "changes", [{"queue": ""}, {"partition": "\n"}, {"priority": -1}, {"delay": -1.0}]
)
def test_names_and_numbers_are_checked(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        check(**changes)


# Values, spaces around them, and pieces that together look like values.
PIECES = [
    "1",
    "23",
    '"a"',
    " 1",
    "1 ",
    "[",
    "1]",
    "{}",
    '{"a":1}',
    "[1,2]",
    "",
    "nul",
    "l",
    "\n",
    "0",
    "-",
    "\ud7ff",
]


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=5))
def test_each_payload_must_be_json_by_itself(texts: list[str]) -> None:
    payloads = [text.encode() for text in texts]
    ends = array("i", accumulate(map(len, payloads)))
    chunk = msgspec.structs.replace(GOOD, ends=ends, data=b"".join(payloads))
    try:
        PushRequest([chunk]).check()
        accepted = True
    except InvalidArgument:
        accepted = False
    assert accepted is all(map(is_json, payloads))


def is_json(payload: bytes) -> bool:
    try:
        json.loads(payload)
    except ValueError:
        return False
    return True
