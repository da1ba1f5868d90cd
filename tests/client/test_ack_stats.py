"""Ack statistics of a session: counts, rates and latencies."""

from contextlib import suppress

import pytest

from ackflow import Session, VirtualClock, aio
from ackflow.errors import LeaseLost, TransactionFailed, Unavailable
from ackflow.session import ack_stats
from ackflow.session.ack_stats import AckMeter, AckStats

from .conftest import Run


class Watch:
    """A stop-watch that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    watch = Watch()
    monkeypatch.setattr(ack_stats, "time", watch)
    return watch


def counted(q: Session) -> tuple[int, int, int]:
    stats = q.ack_stats()
    return stats.total, stats.successful, stats.failed


# the meter


def test_before_the_first_settle_there_is_no_rate_and_no_latency() -> None:
    stats = AckMeter().stats()
    assert stats == AckStats(0, 0, 0, None, None, None)
    assert str(stats) == "total 0, successful 0, failed 0, success rate -, average latency -"


def test_statistics_tell_total_successful_failed_rate_and_average_latency(watch: Watch) -> None:
    meter = AckMeter()
    for seconds in (0.010, 0.030):
        with meter.measure(1):
            watch.now += seconds
    with suppress(Unavailable), meter.measure(1):
        watch.now += 9
        raise Unavailable
    stats = meter.stats()
    assert (stats.total, stats.successful, stats.failed) == (3, 2, 1)
    assert stats.success_rate == pytest.approx(2 / 3)
    assert stats.average_latency == pytest.approx(0.020), "what failed is not measured"
    assert str(stats) == (
        "total 3, successful 2, failed 1, success rate 66.67%, average latency 20.00ms"
    )


def test_the_slowest_of_a_hundred_is_seen(watch: Watch) -> None:
    meter = AckMeter()
    for _ in range(99):
        with meter.measure(1):
            watch.now += 0.001
    with meter.measure(1):
        watch.now += 1
    assert meter.stats().p99_latency == pytest.approx(1)


def test_the_percentile_is_of_the_last_thousand_calls(watch: Watch) -> None:
    meter = AckMeter()
    for seconds in [5.0] * 100 + [0.001] * ack_stats.LAST:
        with meter.measure(1):
            watch.now += seconds
    assert meter.stats().p99_latency == pytest.approx(0.001)


# what a session counts


def test_every_verb_counts_its_messages(q: Session) -> None:
    q.push("orders", list(range(9)))
    batch = q.pop("orders", batch=9)
    batch[0].ack()
    batch[1].nack("bad")
    q.ack(batch[2:5])
    q.release(batch[5:6])
    q.settle([(batch[6], "ack"), (batch[7], "reject")])
    assert counted(q) == (8, 8, 0)
    assert q.ack_stats().success_rate == 1.0
    assert (q.ack_stats().average_latency or 0) > 0


def test_what_is_refused_counts_as_failed(q: Session, clock: VirtualClock) -> None:
    q.push("orders", [1, 2, 3])
    one, *others = q.pop("orders", batch=3, lease_seconds=10)
    clock.advance(11)
    with pytest.raises(LeaseLost):
        one.ack()
    q.ack(others)
    assert counted(q) == (3, 0, 3)
    assert q.ack_stats().success_rate == 0.0
    assert q.ack_stats().average_latency is None


def test_a_batch_is_counted_message_by_message(q: Session) -> None:
    q.push("orders", [1, 2, 3])
    batch = q.pop("orders", batch=3)
    batch[0].reject()
    q.ack(batch)
    assert counted(q) == (4, 3, 1)


def test_a_repeated_ack_is_a_success(q: Session) -> None:
    q.push("orders", 1)
    (message,) = q.pop("orders")
    message.ack()
    message.ack()
    assert counted(q) == (2, 2, 0)


def test_settles_in_a_transaction_count_and_its_pushes_do_not(q: Session) -> None:
    q.push("orders", [1, 2])
    batch = q.pop("orders", batch=2)
    q.transaction().ack(batch).push("invoices", [1, 2, 3]).commit()
    q.transaction().push("invoices", 4).commit()
    assert counted(q) == (2, 2, 0)


def test_settles_of_a_transaction_that_fails_have_failed(q: Session) -> None:
    q.push("orders", [1, 2])
    batch = q.pop("orders", batch=2)
    batch[1].ack()
    with pytest.raises(TransactionFailed):
        q.transaction().ack(batch).commit()
    assert counted(q) == (3, 1, 2)


def test_what_is_handed_out_as_done_is_not_counted(q: Session) -> None:
    q.push("orders", 1)
    q.ack(q.pop("orders", auto_ack=True))
    assert counted(q) == (0, 0, 0)


def test_a_buffer_counts_when_it_sends(q: Session) -> None:
    q.push("orders", [1, 2])
    with q.buffer() as buffer:
        for message in q.pop("orders", batch=2):
            buffer.ack(message)
        assert counted(q) == (0, 0, 0)
    assert counted(q) == (2, 2, 0)


def test_an_awaitable_session_counts_too(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        await q.push("orders", [1, 2, 3])
        batch = await q.pop("orders", batch=3)
        await batch[0].ack()
        await q.nack(batch[1:2], "bad")
        await q.transaction().ack(batch[2:]).commit()
        assert counted(q.sync) == (3, 3, 0)
        assert q.ack_stats().total == 3

    run(test)
