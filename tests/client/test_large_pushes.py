"""A push that is larger than one request of the server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import ackflow
from ackflow import Item, Session
from ackflow.errors import BodyTooLarge, KeyConflict, PayloadTooLarge, QueueFull
from ackflow.remote import broker, protocol
from ackflow.server.limits import Limits

from ..running import Running


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Running]:
    running = Running(ackflow.connect(tmp_path / "test.db", upkeep=False))
    yield running
    running.stop()
    running.session.close()


@pytest.fixture
def q(served: Running) -> Iterator[Session]:
    with ackflow.connect(served.url) as session:
        yield session


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of 40 kB or 20,000 messages at most."""
    monkeypatch.setattr(protocol, "PUSH_BYTES", 40_000)
    for module in (protocol, broker):
        monkeypatch.setattr(module, "MAX_BATCH", 20_000)


def test_a_push_over_64_mib_works_over_http_as_on_a_file(q: Session) -> None:
    receipt = q.push("q", [b"x" * (13 << 20)] * 5)
    assert len(set(receipt)) == 5
    assert q.queue_stats("q").bytes == 65 << 20


@pytest.mark.usefixtures("small")
def test_a_push_in_parts_keeps_its_order_and_its_key(q: Session) -> None:
    items = [Item(data=n, partition=f"p{n % 50}", headers={"x": "y" * 1000}) for n in range(100)]
    first = q.push("q", items, key="k" * 255)
    assert list(q.push("q", items, key="k" * 255)) == list(first)
    found = {message.id: message.data for message in q.pop("q", batch=1000, partitions=100)}
    assert [found[id] for id in first] == list(range(100))
    with pytest.raises(KeyConflict):
        q.push("q", items[1:], key="k" * 255)


@pytest.mark.usefixtures("small")
def test_a_push_of_more_messages_than_a_server_takes_at_once_is_split(q: Session) -> None:
    assert len(q.push("q", list(range(45_000)))) == 45_000
    assert q.queue_stats("q").messages == 45_000


@pytest.mark.usefixtures("small")
def test_a_part_that_is_refused_says_how_much_was_pushed_before(q: Session) -> None:
    q.configure("q", max_size=25_000)
    with pytest.raises(QueueFull, match="20,000 of 45,000 messages were pushed before"):
        q.push("q", list(range(45_000)))
    assert q.queue_stats("q").messages == 20_000


def test_a_server_that_takes_less_refuses_with_an_error_of_its_own(tmp_path: Path) -> None:
    session = ackflow.connect(tmp_path / "test.db", upkeep=False)
    running = Running(session, limits=Limits(body_bytes=10_000))
    with ackflow.connect(running.url) as q, pytest.raises(BodyTooLarge) as refused:
        q.push("q", "x" * 20_000)
    assert refused.value.code == "body_too_large"
    assert isinstance(refused.value, PayloadTooLarge)
    running.stop()
    session.close()
