"""The time from the death of a stage until what it held is handed out again."""

import os

import pytest

from ackflow.pipeline.aggregate import Aggregator
from ackflow.pipeline.finish import Finisher
from ackflow.pipeline.recovery import PARENT, Back, Recovery, aggregator_name, works

from .conftest import SHOP, Bench, sold

PIDS = dict.fromkeys(("worker-0", "router", "aggregator", "finisher"), os.getpid())


class Watch(Recovery):
    """A recovery on the clock of a bench."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        super().__init__(bench.q, SHOP, self.now)

    def now(self) -> float:
        return self.bench.clock.now() / 1e6

    def dies(self, stage: str) -> None:
        self.died(stage, PIDS[stage], self.now())

    def seen(self) -> list[Back]:
        return self.back(PIDS)


@pytest.fixture
def at_work(monkeypatch: pytest.MonkeyPatch, bench: Bench) -> None:
    """Every stage that is started says that it works."""
    monkeypatch.setenv(PARENT, "1")
    for stage in PIDS:
        works(bench.q, SHOP, stage)


def test_a_stage_that_held_nothing_is_back_when_it_works(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PARENT, "1")
    watch = Watch(bench)
    watch.dies("worker-0")
    bench.later(2)
    assert watch.seen() == []
    works(bench.q, SHOP, "worker-0")
    assert watch.seen() == [Back("worker-0", 2.0, 0)]
    assert watch.seen() == []


def test_what_says_that_it_works_without_a_run_leaves_nothing(bench: Bench) -> None:
    works(bench.q, SHOP, "router")
    assert bench.q.values(SHOP.value("working")) == []


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
    assert watch.seen() == [Back("aggregator", 10.0, 2, 10.0)]


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
    assert watch.seen() == [Back("finisher", 10.0, 2, 10.0)]


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
    assert watch.seen() == [Back("router", 16.0, 1, 11.0)]


def test_a_recovery_is_told_with_what_was_held() -> None:
    assert str(Back("router", 7.04, 12)) == (
        "router: what it held (12) was handed out again 7.0 s after its death"
    )
    assert str(Back("router", 14.2, 12, 9.81)) == (
        "router: what it held (12) was free after 9.8 s, handed out 14.2 s after its death"
    )
    assert str(Back("worker-1", 1.5, 0)) == "worker-1: it works again 1.5 s after its death"
