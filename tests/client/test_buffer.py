"""Buffered pushes and acks: sent by size, by time, before half of the lease is over, on close."""

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

import ackflow
from ackflow import Item, Session, VirtualClock, aio
from ackflow.errors import InvalidArgument, SessionClosed, Unavailable
from ackflow.session import buffer, encoding

from .waiting import until

pytestmark = pytest.mark.every_store


def sizes(q: Session) -> int:
    return q.queue_stats("orders").messages if q.queues() else 0


def test_nothing_is_sent_before_size_or_time(q: Session, clock: VirtualClock) -> None:
    with q.buffer(size=3, seconds=10) as gathering:
        gathering.push("orders", 1)
        gathering.push("orders", 2)
        clock.advance(9.9)
        assert (sizes(q), gathering.pending) == (0, 2)
        clock.advance(0.1)
        until(lambda: gathering.pending == 0)
        assert sizes(q) == 2


def test_pushes_are_sent_when_there_are_enough(q: Session) -> None:
    with q.buffer(size=3, seconds=1e6) as gathering:
        gathering.push("orders", [1, 2])
        gathering.push("orders", 3, partition="eu", priority=2)
        until(lambda: gathering.pending == 0)
    assert [(m.data, m.partition, m.priority) for m in q.pop("orders", batch=9)] == [
        (1, "Default", 0),
        (2, "Default", 0),
        (3, "eu", 2),
    ]


def test_closing_the_session_sends_what_is_left(open_session: Any) -> None:
    q, other = open_session(), open_session() if open_session else None
    gathering = q.buffer(seconds=1e6)
    gathering.push("orders", [Item(data=b"raw", headers={"h": "v"}), {"a": 1}])
    if q.broker.store.id != other.broker.store.id:
        q._background.close()  # a private database: no other session sees it
        other = q
    else:
        q.close()
    assert [m.data for m in other.pop("orders", batch=9)] == [b"raw", {"a": 1}]
    with pytest.raises(SessionClosed):
        gathering.push("orders", 1)


def test_acks_and_nacks_are_sent_together(q: Session) -> None:
    q.push("orders", [1, 2, 3])
    one, two, three = q.pop("orders", batch=3)
    with q.buffer(seconds=1e6) as gathering:
        gathering.ack([one, two])
        gathering.nack(three, "later", delay=60)
        assert q.group_stats("orders").counts.leased == 3
        gathering.flush()
        found = q.group_stats("orders").counts
        assert (found.done, found.waiting) == (2, 1)
    assert str(q.ack_stats()).startswith("total 3, successful 3, failed 0, success rate 100.00%")


def test_an_ack_is_sent_before_half_of_its_lease_is_over(q: Session, clock: VirtualClock) -> None:
    q.push("orders", [1, 2])
    batch = q.pop("orders", batch=2, lease_seconds=60)
    clock.advance(20)  # 40 are left, so 20 may pass
    with q.buffer(seconds=1e6) as gathering:
        gathering.ack(batch[0])
        clock.advance(19)
        assert gathering.pending == 1
        clock.advance(1)
        until(lambda: gathering.pending == 0)
        assert q.group_stats("orders").counts.done == 1


def test_an_ack_that_comes_too_late_is_counted_as_refused(
    q: Session, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    q.push("orders", 1)
    (message,) = q.pop("orders", lease_seconds=10)
    clock.advance(11)
    with caplog.at_level(logging.WARNING), q.buffer() as gathering:
        gathering.ack(message)
        gathering.flush()
        assert gathering.refused == 1
    assert "too late" in caplog.text
    assert q.ack_stats().failed == 1


def test_pushes_go_before_the_acks_gathered_with_them(
    q: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.push("in", 1)
    order: list[str] = []
    push, settle = q.broker.push, q.settle
    monkeypatch.setattr(q.broker, "push", lambda r: (order.append("push"), push(r))[1])
    monkeypatch.setattr(q, "settle", lambda v: (order.append("settle"), settle(v))[1])
    with q.buffer(seconds=1e6) as gathering:
        gathering.ack(q.pop("in")[0])
        gathering.push("out", 1)
    assert order == ["push", "settle"]


def test_what_cannot_be_sent_is_kept_and_sent_once(
    q: Session, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    push, away = q.broker.push, threading.Event()
    away.set()

    def flaky(request: Any) -> Any:
        answer = push(request)
        if away.is_set():
            raise Unavailable()  # done, but the answer was lost
        return answer

    monkeypatch.setattr(q.broker, "push", flaky)
    gathering = q.buffer(seconds=5)
    gathering.push("orders", [1, 2])
    with pytest.raises(Unavailable):
        gathering.flush()
    assert gathering.pending == 2
    gathering.push("orders", 3)
    away.clear()
    clock.advance(buffer.AGAIN_SECONDS)
    until(lambda: gathering.pending == 0)
    gathering.close()
    assert [m.data for m in q.pop("orders", batch=9)] == [1, 2, 3]


def test_a_close_that_cannot_send_says_so_and_keeps_everything(
    q: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(request: Any) -> Any:
        raise Unavailable()

    monkeypatch.setattr(q.broker, "push", away)
    gathering = q.buffer()
    gathering.push("orders", [1, 2])
    with pytest.raises(Unavailable):
        gathering.close()
    assert gathering.pending == 2


def test_a_full_buffer_makes_its_callers_wait(q: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer, "MOST", 2)
    push, go = q.broker.push, threading.Event()
    monkeypatch.setattr(q.broker, "push", lambda r: (go.wait(20), push(r))[1])
    gathering = q.buffer(size=5)
    gathering.push("orders", list(range(10)))
    pushing = threading.Thread(target=gathering.push, args=("orders", 10))
    pushing.start()
    pushing.join(0.1)
    assert pushing.is_alive()
    go.set()
    pushing.join()
    gathering.close()
    assert sizes(q) == 11


def test_what_is_not_valid_is_refused_at_once(q: Session) -> None:
    with q.buffer() as gathering:
        with pytest.raises(InvalidArgument):
            gathering.push("orders", {1, object()})
        with pytest.raises(InvalidArgument):
            gathering.push("", 1)
        with pytest.raises(InvalidArgument):
            gathering.ack("no message")  # type: ignore[arg-type]
        assert gathering.pending == 0
    with pytest.raises(InvalidArgument):
        q.buffer(size=0)


def test_many_threads_fill_one_buffer(q: Session) -> None:
    with q.buffer(size=50) as gathering:
        threads = [
            threading.Thread(
                target=lambda n=n: [gathering.push("orders", [n, i]) for i in range(50)]
            )
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sizes(q) == 8 * 50 * 2


def test_large_pushes_are_sent_in_parts(q: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MOST_BYTES", 1000)
    push, made = q.broker.push, list[int]()
    monkeypatch.setattr(q.broker, "push", lambda r: (made.append(len(r.chunks)), push(r))[1])
    with q.buffer(seconds=1e6) as gathering:
        for n in range(10):
            gathering.push("orders", f"{n}" * 400)
    assert made == [2, 2, 2, 2, 2]


@pytest.mark.parametrize("kind", ["file", "http"])
def test_an_awaitable_buffer_keeps_the_same_promises(
    kind: str, tmp_path: Path, clock: VirtualClock
) -> None:
    from ..running import Running

    running, url = None, str(tmp_path / "test.db")
    if kind == "http":
        running = Running(ackflow.connect(":memory:", clock=clock, upkeep=False))
        url = running.url

    async def main() -> None:
        q = await aio.connect(url, clock=clock, upkeep=False)
        gathering = q.buffer(seconds=1e6)
        await gathering.push("orders", [1, 2, 3])
        assert gathering.pending == 3
        await gathering.flush()
        one, two, three = await q.pop("orders", batch=3)
        await gathering.ack([one, two])
        await gathering.nack(three, "later", delay=60)
        await q.close()
        async with await aio.connect(url, clock=clock, upkeep=False) as q:
            found = (await q.group_stats("orders")).counts
            assert (found.done, found.waiting) == (2, 1)

    asyncio.run(main())
    if running is not None:
        running.stop()
        running.session.close()
