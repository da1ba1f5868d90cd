"""Message ids and tokens: every number has one text form, and no other text is accepted."""

import secrets
from base64 import urlsafe_b64encode
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackflow import ids
from ackflow.errors import InvalidArgument

stores = st.integers(0, (1 << 40) - 1)
lanes = st.integers(0, (1 << 34) - 1)
sequences = st.integers(0, (1 << 48) - 1)
tokens = st.integers(-(1 << 63), (1 << 63) - 1)

HIGHEST = ((1 << 40) - 1, (1 << 34) - 1, (1 << 48) - 1)


@given(stores, lanes, sequences)
def test_a_message_id_tells_store_lane_and_sequence(store: int, lane: int, sequence: int) -> None:
    assert ids.parse_message_id(ids.message_id(store, lane, sequence)) == (store, lane, sequence)


@given(stores, lanes, sequences)
def test_a_message_id_is_a_uuid_of_version_8(store: int, lane: int, sequence: int) -> None:
    text = ids.message_id(store, lane, sequence)
    found = UUID(text)
    assert found.version == 8
    assert found.variant == "specified in RFC 4122"
    assert str(found) == text


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ((0, 0, 0), "00000000-0000-8000-8000-000000000000"),
        ((0, 0, 1), "00000000-0000-8000-8000-000000000001"),
        ((0, 1, 0), "00000000-0000-8000-8001-000000000000"),
        ((1, 0, 0), "00000000-0100-8000-8000-000000000000"),
        (HIGHEST, "ffffffff-ffff-8fff-bfff-ffffffffffff"),
    ],
)
def test_the_written_form_of_an_id_is_fixed(place: tuple[int, int, int], text: str) -> None:
    assert ids.message_id(*place) == text
    assert ids.parse_message_id(text) == place


@given(stores, lanes, sequences, sequences)
def test_ids_of_a_lane_sort_as_its_sequences(store: int, lane: int, a: int, b: int) -> None:
    first, second = ids.message_id(store, lane, a), ids.message_id(store, lane, b)
    assert (first < second) == (a < b)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "17",
        "not an id",
        "00000000-0000-8000-8000-00000000000",
        "00000000-0000-8000-8000-0000000000000",
        "00000000-0000-8000-8000-00000000000g",
        "00000000-0000-4000-8000-000000000000",
        "00000000-0000-8000-0000-000000000000",
        "6fa459ea-ee8a-3ca4-894e-db77e160355e",
        None,
        5,
        b"00000000-0000-8000-8000-000000000000",
        UUID(int=0),
    ],
)
def test_what_is_not_a_message_id_is_refused(text: object) -> None:
    with pytest.raises(InvalidArgument, match="message id"):
        ids.parse_message_id(text)  # type: ignore[arg-type]


@given(tokens)
def test_both_written_forms_of_a_token_are_read(token: int) -> None:
    assert ids.parse_token(ids.token_text(token)) == token
    assert ids.parse_token(ids.token_uuid(token)) == token


@given(tokens)
def test_the_short_form_is_that_of_token_urlsafe_and_the_long_one_a_uuid(token: int) -> None:
    assert len(ids.token_text(token)) == len(secrets.token_urlsafe(8)) == 11
    assert UUID(ids.token_uuid(token)).version == 8


@given(st.binary(min_size=8, max_size=8))
def test_every_token_of_token_urlsafe_is_read_and_written_the_same(raw: bytes) -> None:
    text = urlsafe_b64encode(raw).rstrip(b"=").decode()
    assert ids.token_text(ids.parse_token(text)) == text


@given(st.integers(1, (1 << 62)))
def test_a_token_made_for_a_lease_ends_in_the_bits_of_its_id(lease: int) -> None:
    token = ids.new_token(lease)
    assert (token - lease) % ids.TOKEN_SPAN == 0
    assert -(1 << 63) <= token < 1 << 63
    assert not ids.token_text(token).startswith("-")


def test_new_tokens_fit_64_bits_and_differ() -> None:
    some = {ids.new_token() for _ in range(1000)}
    assert len(some) == 1000
    assert all(-(1 << 63) <= token < 1 << 63 for token in some)


def test_new_stores_fit_40_bits_and_differ() -> None:
    some = {ids.new_store() for _ in range(100)}
    assert len(some) == 100
    assert all(0 <= store < 1 << 40 for store in some)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "short",
        "AAAAAAAAAA",
        "AAAAAAAAAAAA",
        "AAAAAAAAAAB",
        "AAAA AAAAAA",
        "AAAAAAAAA+A",
        "AAAAAAAAA/A",
        "ÄAAAAAAAAAA",
        "6fa459ea-ee8a-3ca4-894e-db77e160355e",
        None,
        5,
        b"AAAAAAAAAAA",
    ],
)
def test_what_is_not_a_token_is_refused(text: object) -> None:
    with pytest.raises(InvalidArgument, match="lease token"):
        ids.parse_token(text)  # type: ignore[arg-type]


@given(st.integers(0, (1 << 40) - 1), lanes, st.integers(1, (1 << 48) - 1))
def test_a_message_id_is_not_read_as_a_token(store: int, lane: int, sequence: int) -> None:
    with pytest.raises(InvalidArgument, match="lease token"):
        ids.parse_token(ids.message_id(store, lane, sequence))


@pytest.mark.parametrize("kind", ["partition", "queue", "dead letter", "trace", "query"])
def test_a_row_that_is_no_message_has_a_uuid_of_its_own_kind(kind: ids.Kind) -> None:
    text = ids.row_uuid(kind, 7, 12345)
    assert UUID(text).version == 8
    assert ids.parse_row_uuid(kind, 7, text) == 12345
    other: ids.Kind = "queue" if kind == "partition" else "partition"
    with pytest.raises(InvalidArgument, match=f"not the id of a {other}"):
        ids.parse_row_uuid(other, 7, text)
    with pytest.raises(InvalidArgument):
        ids.parse_row_uuid(kind, 8, text)
    with pytest.raises(InvalidArgument):
        ids.parse_row_uuid(kind, 7, ids.message_id(7, 12345, 1))
