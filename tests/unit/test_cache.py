"""The writer's cache stays within its limits, however small its entries are."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import ackflow
from ackflow import Session
from ackflow.store import cache
from ackflow.store.cache import Cache


@pytest.fixture
def q(tmp_path: Path) -> Iterator[Session]:
    with ackflow.connect(tmp_path / "a.db", upkeep=False) as session:
        yield session


def cache_of(q: Session) -> Cache:
    return q._broker.store._cache  # type: ignore[attr-defined,no-any-return]


def test_tiny_bodies_count_for_what_they_take_beside_their_payload(
    q: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MAX_BODY_BYTES", 20 * cache.BODY_COST)
    for number in range(50):
        q.push("q", number)
    assert len(cache_of(q)._bodies) < 20
    assert [message.data for message in q.pop("q", batch=50)] == list(range(50))


def test_more_lanes_than_are_remembered_are_served_all_the_same(
    q: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MAX_CURSORS", 5)
    q.group("q", "g")
    for number in range(20):
        q.push("q", number, partition=str(number))
        assert len(cache_of(q).cursors) <= 6
    popped = [q.pop("q", group="g")[0] for _ in range(20)]
    assert sorted(message.data for message in popped) == list(range(20))
    q.ack(popped)
    assert q.group_stats("q", "g").counts.done == 20
