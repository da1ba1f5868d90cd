"""Lists of dead letters return a bounded number of bytes, and can be continued."""

import pytest

from ackflow import Session
from ackflow.broker.broker import Broker
from ackflow.broker.core import dead_letters
from ackflow.broker.core.by_hand import dead_select
from ackflow.broker.core.by_hand.dead_select import DeadSelection
from ackflow.broker.requests import DeadFilter
from ackflow.dialects.queen.verbs import dead_letters as of_queues

LIMIT, SIZE, COUNT = 100_000, 10_000, 25


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("MAX_PAGE_BYTES", "SLICE_BYTES"):
        monkeypatch.setattr(dead_letters, limit, LIMIT)


@pytest.fixture
def filled(q: Session) -> Session:
    for number in range(COUNT):
        q.push("q", [[number, "x" * SIZE]], partition=str(number % 2))
    while batch := q.pop("q", group="g", batch=COUNT):
        q.reject(batch, "too bad")
    return q


def pages(q: Session, **which: object) -> list[list[int]]:
    found, after = [], None
    for _ in range(COUNT):
        page = q.dead_letters("q", limit=1_000, after=after, **which)  # type: ignore[arg-type]
        assert page.total == COUNT
        found.append([letter.id for letter in page])
        after = page.next
        if after is None:
            break
    return found


@pytest.mark.parametrize("filter", ["", "error", "ids"])
def test_a_page_of_large_letters_ends_early_and_the_next_ones_follow(
    filled: Session, filter: str
) -> None:
    everything = [letter.id for page in [filled.dead_letters("q", limit=1)] for letter in page]
    which: dict[str, object] = {}
    if filter == "error":
        which = {"error": "too bad"}
    if filter == "ids":
        newest = everything[0]
        which = {"ids": [*range(newest - COUNT + 1, newest + 1)]}
        if len(filled.dead_letters("q", limit=1, **which)) == 0:  # type: ignore[arg-type]
            pytest.skip("the numbers of several databases are not consecutive")
    found = pages(filled, **which)
    assert all(0 < len(page) <= LIMIT // SIZE for page in found)
    numbers = [number for page in found for number in page]
    assert len(set(numbers)) == COUNT
    assert numbers == sorted(numbers, reverse=True)


def test_a_letter_above_the_limit_comes_alone(q: Session) -> None:
    for _ in range(3):
        q.push("q", ["x" * 2 * LIMIT])
    q.reject(q.pop("q", group="g", batch=3))
    found, after = 0, None
    for _ in range(3):
        page = q.dead_letters("q", after=after)
        assert len(page) == 1
        found, after = found + 1, page.next
    assert (found, after) == (3, None)


def test_reprocess_takes_all_large_letters_in_their_order(filled: Session) -> None:
    assert filled.reprocess("q", "g") == COUNT
    assert filled.dead_letters("q").total == 0
    for part in range(2):
        seen = []
        while batch := filled.pop("q", group="again", batch=COUNT, partition=str(part)):
            seen += [message.data[0] for message in batch]
            filled.ack(batch)
        assert seen[-len(seen) // 2 :] == list(range(part, COUNT, 2))


def test_a_selection_by_error_is_returned_in_parts_from_the_oldest_on(filled: Session) -> None:
    broker = filled.broker
    if not isinstance(broker, Broker):
        pytest.skip("not on one database")
    chosen = DeadSelection(queue="q", error="too bad")
    seen: list[int] = []
    after: int | None = 0
    while after is not None:
        letters, after = broker.look(dead_select.page, chosen, after, 1_000, 5.0)
        assert 0 < len(letters) <= LIMIT // SIZE
        seen += [letter.id for letter in letters]
    assert len(seen) == COUNT
    assert seen == sorted(seen)


def test_the_list_of_several_queues_reads_no_more_bytes_than_a_page(filled: Session) -> None:
    broker = filled.broker
    if not isinstance(broker, Broker):
        pytest.skip("not on one database")
    seen: list[int] = []
    while len(seen) < COUNT:
        which = DeadFilter("q")
        found, total = broker.look(of_queues.letters, ["q"], which, 1_000, len(seen))
        assert total == COUNT
        assert 0 < len(found) <= LIMIT // SIZE
        seen += [one.letter.id for one in found]
    assert seen == sorted(seen, reverse=True)
