"""Ack and pop: settle what was handled and lease the next messages in one commit."""

import asyncio
from pathlib import Path

import pytest
from tests.running import Running

import ackflow
from ackflow import Session, VirtualClock, aio
from ackflow.errors import LeaseExpired

pytestmark = pytest.mark.every_store


def test_it_acks_what_was_handled_and_leases_the_next(q: Session) -> None:
    q.push("q", [1, 2, 3])
    batch = q.pop("q")
    found = []
    while batch:
        found += [message.data for message in batch]
        settled, batch = q.ack_and_pop(batch, "q")
        assert (settled.settled, settled.refused) == (1, [])
    assert found == [1, 2, 3]
    counts = q.group_stats("q").counts
    assert (counts.done, counts.leased, counts.ready) == (3, 0, 0)


def test_what_is_refused_is_listed_and_the_next_batch_comes_all_the_same(
    q: Session, clock: VirtualClock
) -> None:
    q.push("q", [1, 2])
    late = q.pop("q", lease_seconds=1)
    clock.advance(2)
    settled, batch = q.ack_and_pop(late, "q", batch=5)
    assert settled.settled == 0
    assert settled.refused[0].code == LeaseExpired().code
    assert sorted(message.data for message in batch) == [1, 2]


def test_an_ack_makes_room_in_the_window_for_the_pop_behind_it(q: Session) -> None:
    q.group("q", "g", max_ack_pending=1)
    q.push("q", [1, 2])
    first = q.pop("q", group="g", batch=2)
    assert [message.data for message in first] == [1]
    _, second = q.ack_and_pop(first, "q", group="g")
    assert [message.data for message in second] == [2]


def test_with_nothing_to_ack_it_is_a_pop(q: Session) -> None:
    q.push("q", 1)
    settled, batch = q.ack_and_pop([], "q")
    assert (settled.settled, [message.data for message in batch]) == (0, [1])


def test_it_commits_once(tmp_path: Path) -> None:
    with ackflow.connect(str(tmp_path / "a.db"), upkeep=False) as q:
        q.push("q", [1, 2])
        batch = q.pop("q")
        before = q.broker.writer.commits  # type: ignore[attr-defined]
        _, batch = q.ack_and_pop(batch, "q")
        assert q.broker.writer.commits == before + 1  # type: ignore[attr-defined]
        assert [message.data for message in batch] == [2]


@pytest.mark.parametrize("remote", [False, True])
def test_asyncio_has_it_too(remote: bool) -> None:
    async def work(url: str) -> None:
        async with await aio.connect(url) as q:
            await q.push("q", [1, 2])
            batch = await q.pop("q")
            settled, batch = await q.ack_and_pop(batch, "q", wait=5)
            assert (settled.settled, [message.data for message in batch]) == (1, [2])
            await batch[0].ack()
            assert (await q.group_stats("q")).counts.done == 2

    if not remote:
        asyncio.run(work(":memory:"))
        return
    running = Running(ackflow.connect(":memory:"))
    try:
        asyncio.run(work(running.url))
    finally:
        running.stop()
        running.session.close()
