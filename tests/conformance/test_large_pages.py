"""Browse, search, peek and follow return a bounded number of bytes, and can be continued."""

import pytest

from ackflow import Session
from ackflow.broker.broker import Broker
from ackflow.broker.views import browse, peek, search
from ackflow.broker.views.search import Search
from ackflow.model import News

LIMIT, SIZE, COUNT = 100_000, 10_000, 25


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (browse, peek, search):
        monkeypatch.setattr(module, "MAX_PAGE_BYTES", LIMIT)


@pytest.fixture
def filled(q: Session) -> Session:
    for number in range(COUNT):
        q.push("q", [[number, "x" * SIZE]], partition=str(number % 2))
    return q


def test_a_page_of_large_messages_ends_early_and_the_next_ones_follow(filled: Session) -> None:
    seen, after = [], None
    for _ in range(COUNT):
        page = filled.browse("q", limit=1_000, after=after)
        assert 0 < len(page) <= LIMIT // SIZE
        seen += [message.data[0] for message in page]
        after = page.next
        if after is None:
            break
    assert sorted(seen) == list(range(COUNT))


def test_peek_and_tail_return_no_more_bytes_than_a_page(filled: Session) -> None:
    assert 0 < len(filled.peek("q", group="g", limit=1_000)) <= LIMIT // SIZE


def test_what_follows_a_position_is_returned_in_parts(filled: Session) -> None:
    broker = filled.broker
    if not isinstance(broker, Broker):
        pytest.skip("not on one database")

    def look(after: dict[int, int] | None, last: int) -> News:
        return broker.look(peek.follow, "q", None, after, last, 1_000)

    lasts = [message.data[0] for message in look(None, 1_000).items]
    assert 0 < len(lasts) <= LIMIT // SIZE
    assert {COUNT - 1, COUNT - 2} & set(lasts)  # of the same time, in either partition
    after, seen = look(None, 0).after, list[int]()
    after = dict.fromkeys(after, 0)
    while items := (news := look(after, 0)).items:
        assert len(items) <= LIMIT // SIZE
        seen += [message.data[0] for message in items]
        after = news.after
    assert sorted(seen) == list(range(COUNT))


def test_a_search_ends_early_and_goes_on(filled: Session) -> None:
    broker = filled.broker
    if not isinstance(broker, Broker):
        pytest.skip("not on one database")
    seen, after = 0, None
    while True:
        request = Search(queue="q", limit=1_000, seconds=5.0, after=after)
        found = broker.look(search.search, request)
        assert 0 < len(found.items) <= LIMIT // SIZE
        seen, after = seen + len(found.items), found.next
        if after is None:
            break
    assert seen == COUNT
