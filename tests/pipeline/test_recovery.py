"""The time from the death of a stage until what it held is handed out again."""

import os

import pytest

from ackflow.pipeline.aggregator import Aggregator
from ackflow.pipeline.finisher import Finisher
from ackflow.pipeline.supervisor import (
    PARENT,
    Recovered,
    RecoveryTracker,
    aggregator_name,
    report_working,
)

from .conftest import SHOP, Bench, sold

PIDS = dict.fromkeys(("worker-0", "router", "aggregator", "finisher"), os.getpid())


class Watch(RecoveryTracker):
    """A recovery on the clock of a bench."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        super().__init__(bench.q, SHOP, self.now)

    def now(self) -> float:
        return self.bench.clock.now() / 1e6

    def dies(self, stage: str) -> None:
        self.died(stage, PIDS[stage], self.now())

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
    report_working(bench.q, SHOP, "router")
    assert bench.q.values(SHOP.state_key("working")) == []


@pytest.mark.usefixtures("at_work")
def test_an_aggregator_is_back_when_its_shard_is_served_again(bench: Bench) -> None:
    worker = Aggregator(bench.q, SHOP)
    bench.forward([sold("1", "2"), sold("2", "3")], [])
    dead = bench.session(aggregator_name(PIDS["aggregator"])).pop(
        SHOP.shards, group="aggregators", batch=10, lease_seconds=10
    )
    assert len(dead) == 2
    watch = Watch(bench)
    watch.dies("aggregator")
    bench.later(4)
    bench.fold(worker)
    assert watch.seen() == []  # it runs again, but what its predecessor held is not its own yet
    bench.later(6)
    assert watch.seen() == []
    bench.fold(worker)
    assert watch.seen() == [Recovered("aggregator", 10.0, 2, 10.0)]


@pytest.mark.usefixtures("at_work")
def test_a_finisher_is_back_when_it_holds_again_what_the_dead_one_held(bench: Bench) -> None:
    bench.forward([], [("sales", 0)])
    bench.fold()
    Finisher(bench.q, SHOP, bench.out, 2).run_once(wait=0)
    watch = Watch(bench)
    watch.dies("finisher")
    again = bench.finisher()
    again.run_once(wait=0)
    assert watch.seen() == []
    bench.later(10)
    assert watch.seen() == []
    again.run_once(wait=0)
    assert watch.seen() == [Recovered("finisher", 10.0, 2, 10.0)]


@pytest.mark.usefixtures("at_work")
def test_a_stage_that_died_twice_is_down_since_the_first_time(bench: Bench) -> None:
    bench.send_end("sales", 0)
    bench.receive(bench.ends())
    watch = Watch(bench)
    watch.dies("router")
    bench.later(7)
    watch.dies("router")
    bench.later(4)
    assert watch.seen() == []
    bench.later(5)
    bench.receive(bench.ends())
    assert watch.seen() == [Recovered("router", 16.0, 1, 11.0)]


def test_a_recovery_is_told_with_what_was_held() -> None:
    assert str(Recovered("router", 7.04, 12)) == (
        "router: its 12 messages were redelivered 7.0 s after it died"
    )
    assert str(Recovered("router", 14.2, 12, 9.81)) == (
        "router: its 12 messages were free after 9.8 s, redelivered 14.2 s after it died"
    )
    assert str(Recovered("worker-1", 1.5, 0)) == "worker-1: working again 1.5 s after it died"
