"""The time from the death of a stage until what it held is handed out again."""

import os

import pytest

from ackflow.pipeline.supervisor import PARENT, Recovered, RecoveryTracker, report_working

from .conftest import SHOP, Bench

PIDS = dict.fromkeys(("worker-0", "spark"), os.getpid())


class Watch(RecoveryTracker):
    """A recovery on the clock of a bench."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        super().__init__(bench.q, SHOP, self.now)

    def now(self) -> float:
        return self.bench.clock.now() / 1e6

    def dies(self, stage: str) -> None:
        self.died(stage, self.now())

    def seen(self) -> list[Recovered]:
        return self.recovered(PIDS)


@pytest.fixture
def at_work(monkeypatch: pytest.MonkeyPatch, bench: Bench) -> None:
    """Every stage that is started says that it works."""
    monkeypatch.setenv(PARENT, "1")
    for stage in PIDS:
        report_working(bench.q, SHOP, stage)


def test_a_stage_that_held_nothing_is_back_when_it_works(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PARENT, "1")
    watch = Watch(bench)
    watch.dies("worker-0")
    bench.later(2)
    assert watch.seen() == []
    report_working(bench.q, SHOP, "worker-0")
    assert watch.seen() == [Recovered("worker-0", 2.0, 0)]
    assert watch.seen() == []


def test_what_says_that_it_works_without_a_run_leaves_nothing(bench: Bench) -> None:
    report_working(bench.q, SHOP, "spark")
    assert bench.q.values(SHOP.state_key("working")) == []


@pytest.mark.usefixtures("at_work")
def test_spark_is_back_when_it_holds_again_the_ends_that_the_dead_one_held(bench: Bench) -> None:
    bench.q.configure(SHOP.ends, keep_seconds=0)
    bench.q.push(SHOP.ends, [1, 2], partition="00")
    bench.q.pop(SHOP.ends, group="answer", batch=10, lease_seconds=10)
    watch = Watch(bench)
    watch.dies("spark")
    bench.q.pop(SHOP.ends, group="answer", batch=10, lease_seconds=10)
    assert watch.seen() == []
    bench.later(10)
    assert watch.seen() == []
    bench.q.pop(SHOP.ends, group="answer", batch=10, lease_seconds=10)
    assert watch.seen() == [Recovered("spark", 10.0, 2, 10.0)]


@pytest.mark.usefixtures("at_work")
def test_a_stage_that_died_twice_is_down_since_the_first_time(bench: Bench) -> None:
    bench.send_end("sales", 0)
    bench.receive(bench.ends())
    watch = Watch(bench)
    watch.dies("spark")
    bench.later(7)
    watch.dies("spark")
    bench.later(4)
    assert watch.seen() == []
    bench.later(5)
    bench.receive(bench.ends())
    assert watch.seen() == [Recovered("spark", 16.0, 1, 11.0)]


def test_a_recovery_is_told_with_what_was_held() -> None:
    assert str(Recovered("spark", 7.04, 12)) == (
        "spark: its 12 messages were redelivered 7.0 s after it died"
    )
    assert str(Recovered("spark", 14.2, 12, 9.81)) == (
        "spark: its 12 messages were free after 9.8 s, redelivered 14.2 s after it died"
    )
    assert str(Recovered("worker-1", 1.5, 0)) == "worker-1: working again 1.5 s after it died"
