"""The optional fields of messages are picked, sliced, selected and merged in one place."""

from hypothesis import given
from hypothesis import strategies as st

from ackflow import ranges
from ackflow.store.records import Rest, StoredRest

N = 6
rests = st.builds(
    lambda txids, headers, binary: Rest(txids, headers, ranges.of(sorted(binary))),
    st.dictionaries(st.integers(0, N - 1), st.text("ab", min_size=1, max_size=2)),
    st.dictionaries(st.integers(0, N - 1), st.just({"k": "v"})),
    st.sets(st.integers(0, N - 1)),
)


def test_every_field_is_compared_here() -> None:
    assert Rest.__struct_fields__ == ("txids", "headers", "binary"), "extend `rests` and `fields`"


def fields(rest: Rest, index: int) -> tuple[str | None, dict[str, str], bool]:
    return rest.txids.get(index), rest.headers.get(index, {}), rest.is_binary(index)


@given(rests, st.integers(0, N - 1))
def test_pick(rest: Rest, index: int) -> None:
    assert fields(rest.pick(index), 0) == fields(rest, index)


@given(rests, st.integers(0, N), st.integers(0, N))
def test_slice(rest: Rest, lo: int, hi: int) -> None:
    lo, hi = min(lo, hi), max(lo, hi)
    assert [fields(rest.slice(lo, hi), i) for i in range(hi - lo)] == [
        fields(rest, i) for i in range(lo, hi)
    ]


@given(rests, st.lists(st.integers(0, N - 1), unique=True))
def test_select(rest: Rest, indices: list[int]) -> None:
    chosen = rest.select(indices)
    assert [fields(chosen, i) for i in range(len(indices))] == [fields(rest, i) for i in indices]


@given(rests)
def test_merge_is_the_inverse_of_pick(rest: Rest) -> None:
    assert Rest.merge(rest.pick(i) for i in range(N)) == rest
    assert Rest.merge([None, None]).empty


@given(rests)
def test_a_sealed_body_keeps_every_field(rest: Rest) -> None:
    assert (StoredRest.sealed_from(rest, 2).plain() or Rest()) == rest
